// Options of lists: the names by which they are shown and chosen.

const groupOf = (option) => {
  const group = closestOf(option, "optgroup");
  return group ? collapse(attributeOf(group, "label") || "") : "";
};

// Returns [option, name] of the first options, up to `most`, that can be chosen or are. A name is the
// label. Where several have one label, the label of the group stands before it; where that does not
// tell them apart, a number after it, from the second on.
function namedOptions(list, most = MAX_OPTIONS) {
  const length = Math.min(list.length, most);
  const options = Array.from({ length }, (_, index) => list[index])
    .filter((option) => !matches(option, ":disabled") || option.selected);
  const labels = options.map((option) => collapse(option.label || option.value));
  const repeated = repeatedIn(labels);
  const taken = new Set(labels.filter((label) => !repeated.has(label)));
  const numbers = new Map(); // base -> the last number after it
  return options.map((option, index) => {
    const label = labels[index];
    if (!repeated.has(label)) return [option, label];
    const group = groupOf(option), base = group ? `${group}: ${label}` : label;
    let name = base, number = numbers.get(base) || 1;
    while (taken.has(name)) name = `${base} (${++number})`;
    numbers.set(base, number);
    taken.add(name);
    return [option, name];
  });
}

// Returns the set of texts that a list has more than once.
function repeatedIn(texts) {
  const seen = new Set(), repeated = new Set();
  for (const text of texts) (seen.has(text) ? repeated : seen).add(text);
  repeated.delete("");
  return repeated;
}

const OPENING = "[(\u27e6", CLOSING = "])\u27e7"; // brackets that a reader may see for each other
const plainBrackets = (text) => [...text].map((c) =>
  OPENING.includes(c) ? "(" : CLOSING.includes(c) ? ")" : c === "`" ? "'" : c).join("");
const wordsOf = (text) => text.toLowerCase().match(/[\p{L}\p{N}]+/gu)?.join(" ") || "";

const enabledOptions = (el) => namedOptions(el.options, el.options.length)
  .filter(([option]) => !matches(option, ":disabled"));

// Returns the [option, name] pairs that a text of the reader's means, by the first of these ways that
// finds one: the name, the label, the value, the words with or without the group, a prefix, a part.
function optionsFor(el, text) {
  const wanted = collapse(text), low = wanted.toLowerCase(), words = wordsOf(wanted);
  const pairs = enabledOptions(el);
  const ways = [
    (name) => name === wanted,
    (name) => name.toLowerCase() === low,
    (_, option) => collapse(option.label).toLowerCase() === low,
    (_, option) => option.value === text,
    (name) => plainBrackets(name) === plainBrackets(wanted),
    (name, option) => words && [wordsOf(name), wordsOf(`${groupOf(option)} ${name}`)].includes(words),
    (name) => name.toLowerCase().startsWith(low),
    (name) => name.toLowerCase().includes(low),
  ];
  for (const fits of wanted ? ways : []) {
    const found = pairs.filter(([option, name]) => fits(name, option));
    if (found.length) return found;
  }
  return [];
}

// Selects the options with these names and no others. A list of one option has one name.
function selectOptions(id, texts) {
  const el = find(id), found = texts.map((text) => optionsFor(el, text));
  const unclear = found.findIndex((pairs) => pairs.length !== 1);
  if (unclear >= 0) {
    const among = found[unclear].length ? found[unclear] : enabledOptions(el);
    return { unclear: texts[unclear], several: found[unclear].length > 1,
      known: among.map(([, name]) => name) };
  }
  const chosen = found.map(([[option]]) => option);
  el.focus();
  if (el.multiple) for (const option of el.options) option.selected = chosen.includes(option);
  else chosen[0].selected = true;
  dispatchChange(el);
  return { chosen: found.map(([[, name]]) => name) };
}

// Returns the names of the selected options, or that the list has gone.
async function selectedOptions(id, reacts) {
  if (reacts) await nextFrame();
  const el = find(id);
  if (!el) return { left: true };
  const pairs = namedOptions(el.options, el.options.length);
  return { names: pairs.filter(([option]) => option.selected).map(([, name]) => name) };
}
