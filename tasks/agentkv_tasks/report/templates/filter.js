"use strict";
for (const filter of document.querySelectorAll(".filter")) {
  const [text, outcome, policy] = filter.querySelectorAll("input, select");
  const count = filter.querySelector("output");
  const tables = document.querySelectorAll("table.tasks");
  const lines = [...tables].flatMap((table) => [...table.tBodies[0].rows]);
  const show = () => {
    const wanted = text.value.trim().toLowerCase();
    const isOf = (cell) => !policy.value || cell.dataset.policy === policy.value;
    let shown = 0;
    for (const line of lines) {
      const cells = [...line.querySelectorAll("[data-policy]")];
      const marks = cells.filter(isOf).flatMap((cell) => [...cell.querySelectorAll(".mark")]);
      const kinds = new Set(cells.flatMap((cell) => [...cell.querySelectorAll(".mark")])
        .map((mark) => mark.dataset.outcome === "yes"));
      const fits = outcome.value === "differ" ? kinds.size > 1
        : marks.some((mark) => !outcome.value || mark.dataset.outcome === outcome.value);
      line.hidden = !(fits && line.dataset.text.toLowerCase().includes(wanted));
      shown += !line.hidden;
    }
    for (const table of tables)
      for (const cell of table.querySelectorAll("[data-policy]")) cell.hidden = !isOf(cell);
    count.value = `${shown} of ${lines.length} tasks`;
  };
  filter.addEventListener("input", show);
  filter.hidden = false;
  show();
}
