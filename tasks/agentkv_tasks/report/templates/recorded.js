// Text of pages and models is hostile: it only ever becomes the content of text nodes.
const episode = JSON.parse(document.getElementById("data").textContent);
const WHOLE = 4;
const SAYS = ["nothing of it is held", "less than a third of it is held", "a third to two thirds of it are held",
  "more than two thirds of it are held", "all of it is held"];
const at = (id) => document.getElementById(id);

function make(tag, text, name) {
  const made = document.createElement(tag);
  if (text !== undefined) made.textContent = text;
  if (name) made.className = name;
  return made;
}

// What the cache held of each span after a step, by label: only changes are recorded.
function levelsAfter(number) {
  const found = new Map();
  for (const step of episode.steps.slice(0, number + 1))
    for (const [label, each] of Object.entries(step.levels)) found.set(label, each);
  return found;
}

function shown(texts, levels, hasCold, more) {
  return texts.map((each, i) => {
    const level = levels.length === texts.length ? levels[i] : levels.length ? levels[0] : WHOLE;
    const rest = level === WHOLE || !hasCold ? "" : "; the rest is cold and may come back";
    return {...each, hot: level / WHOLE, cold: level < WHOLE && hasCold, says: SAYS[level] + rest, more: more && more(i)};
  });
}

function show(number) {
  const chosen = episode.steps[number], levels = levelsAfter(number);
  at("number").value = `${number + 1} of ${episode.steps.length}`;
  at("step").setAttribute("aria-valuetext", `step ${number + 1}: ${chosen.action}`);
  at("step-title").textContent = chosen.action;
  const own = new Set(episode.steps.flatMap((step) => [step.page, step.reply]));
  const others = [...levels].filter(([label]) => !own.has(label)).map(([, each]) => `${each.name}: ${SAYS[each.levels[0]]}`);
  at("facts").replaceChildren(...[...chosen.facts, ...others].map((each) => make("li", each)));
  const of = (label) => (levels.has(label) ? levels.get(label).levels : []);
  at("pages").replaceChildren(...episode.steps.slice(0, number + 1).map((step, i) => {
    const box = make("section", undefined, i === number ? "turn is-last" : "turn");
    const gone = (piece) => (step.gone_in[piece] === null || step.gone_in[piece] > number ? "" :
      `the last of it left in step ${step.gone_in[piece] + 1}`);
    const pieces = shown(step.pieces.map((text) => ({text})), of(step.page), chosen.has_cold, gone);
    const tokens = shown(step.tokens, of(step.reply), chosen.has_cold);
    const whole = pieces.filter((each) => each.hot === 1).length, none = pieces.filter((each) => !each.hot).length;
    box.append(make("h3", `${i + 1}. ${step.url}`));
    if (episode.is_known && pieces.length)
      box.append(make("p", `${whole} of ${pieces.length} pieces held whole, ${none} not at all`, "soft"));
    if (pieces.length) box.append(heldText.paragraph(pieces, `Page ${i + 1}`, at("held-detail")));
    box.append(make("h3", `Reply ${i + 1}: ${step.action}`));
    const about = heldText.summary(step.tokens);
    if (about) box.append(make("p", about, "soft"));
    box.append(heldText.paragraph(tokens, `Reply ${i + 1}`, at("held-detail")));
    return box;
  }));
}

at("goal").textContent = episode.goal;
at("about").textContent = episode.about;
at("ending").textContent = episode.ending;
at("unknown").hidden = episode.is_known;
const last = episode.steps.length;
at("step").max = Math.max(1, last);
at("step").value = last;
at("step").disabled = last < 2;
at("step").addEventListener("input", () => show(Number(at("step").value) - 1));
if (last) show(last - 1);
