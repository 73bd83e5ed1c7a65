// Text by what a cache holds of it, with what the model did at each token: for the page of a server,
// and for recorded episodes. Text is hostile: it only ever becomes the content of text nodes.
"use strict";

// A piece has `text`, and as far as it is known: `hot`, the share from 0 to 1 that is held; `cold`,
// if the rest may come back; `forced`, or `confidence` from 0 to 1; `look` with `fetched`,
// `most_of`, `n_most` and `changed`; `says`, how much is held in other words; `more`, a further
// sentence.
const heldText = (() => {
  const percent = (share) => `${Math.round(100 * share)} %`;
  const count = (number, one) => `${number.toLocaleString("en")} ${one}${number === 1 ? "" : "s"}`;

  function facts(piece) {
    const said = [];
    if (piece.says) said.push(piece.says);
    else if (piece.hot === undefined) said.push("not read yet");
    else if (piece.hot > 0) said.push(`${percent(piece.hot)} hold it` + (piece.cold ? "; the rest may come back" : ""));
    else said.push(piece.cold ? "cold: it may come back" : "gone");
    if (piece.more) said.push(piece.more);
    if (piece.forced) said.push("forced by the grammar");
    if (piece.confidence !== undefined) said.push(`confidence ${(100 * piece.confidence).toFixed(1)} %`);
    if (piece.look) {
      const {fetched, most_of: label, n_most: most, changed} = piece.look;
      const from = most === undefined ? "" : `, ${most === fetched ? "all" : most.toLocaleString("en")} of ${label || "text without a label"}`;
      said.push(`looked back and fetched ${fetched.toLocaleString("en")} ${fetched === 1 ? "entry" : "entries"}${from}` +
        (changed ? ", which changed the likeliest token" : ""));
    }
    return said.join("; ");
  }

  function classes(piece) {
    const names = [];
    if (piece.hot > 0) names.push(`h${Math.ceil(4 * piece.hot)}`);
    else if (piece.hot !== undefined && !piece.cold) names.push("gone");
    if (piece.cold) names.push("is-cold");
    if (piece.confidence < 0.5) names.push("unsure2");
    else if (piece.confidence < 0.9) names.push("unsure1");
    if (piece.look) names.push(piece.look.changed ? "changed" : "looked");
    return names.join(" ");
  }

  const isMarked = (span) => /unsure|looked|changed/.test(span.className);

  // One paragraph of pieces. One stop of the Tab key leads into it; the arrows left and right go to
  // the next piece, those up and down to the next one with a mark. `detail` says what is known of
  // the piece in focus.
  function paragraph(pieces, name, detail) {
    const made = document.createElement("p");
    made.className = "text";
    made.setAttribute("role", "group");
    made.setAttribute("aria-label", name);
    const spans = pieces.filter((piece) => piece.text).map((piece, i) => {
      const span = document.createElement("span");
      span.textContent = piece.text;
      span.className = classes(piece);
      span.title = facts(piece);
      span.tabIndex = i ? -1 : 0;
      span.setAttribute("role", "button");
      if (piece.start !== undefined) span.dataset.does = `at ${piece.start}`;
      return span;
    });
    made.append(...spans);
    const tell = (span) => {
      const whole = [...span.textContent], quoted = whole.length > 60 ? `${whole.slice(0, 57).join("")}...` : span.textContent;
      detail.textContent = `${JSON.stringify(quoted)}: ${span.title}`;
    };
    made.addEventListener("focusin", (event) => {
      if (!spans.includes(event.target)) return;
      for (const span of made.querySelectorAll("[tabindex='0']")) span.tabIndex = -1;
      event.target.tabIndex = 0;
      tell(event.target);
    });
    made.addEventListener("click", (event) => { if (spans.includes(event.target)) event.target.focus(); });
    made.addEventListener("keydown", (event) => {
      const at = spans.indexOf(event.target);
      if (at < 0 || event.ctrlKey || event.metaKey || event.altKey) return;
      let next;
      if (event.key === "ArrowRight") next = spans[at + 1];
      else if (event.key === "ArrowLeft") next = spans[at - 1];
      else if (event.key === "Home") next = spans[0];
      else if (event.key === "End") next = spans[spans.length - 1];
      else if (event.key === "ArrowDown") next = spans.slice(at + 1).find(isMarked);
      else if (event.key === "ArrowUp") next = spans.slice(0, at).reverse().find(isMarked);
      else return;
      event.preventDefault();
      if (next) next.focus();
    });
    return made;
  }

  // What there is to say of the tokens of a reply; empty for text without notes.
  function summary(pieces) {
    const sampled = pieces.filter((piece) => piece.confidence !== undefined);
    const noted = sampled.length + pieces.filter((piece) => piece.forced).length;
    if (!noted) return "";
    const said = [`${count(noted, "token")} written`];
    const looked = pieces.filter((piece) => piece.look);
    if (looked.length) said.push(`${looked.length.toLocaleString("en")} looked back`);
    if (sampled.length) {
      const least = sampled.reduce((one, other) => other.confidence < one.confidence ? other : one);
      said.push(`least confident ${least.confidence < 0.005 ? "under 1 %" : percent(least.confidence)}, at ${least.text ? JSON.stringify(least.text) : "a part of a character"}`);
    }
    return said.join(", ");
  }

  return {paragraph, summary};
})();
