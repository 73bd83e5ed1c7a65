// Fields: what they hold, and how text gets into them.

const isField = (el) => tagOf(el) === "textarea" || tagOf(el) === "input";
const NO_TEXT = new Set("button checkbox color file hidden image radio range reset submit".split(" "));
const takesKeys = (el) => (isField(el) && !NO_TEXT.has(el.type)) || el.isContentEditable === true;
const isSpinButton = (el) => !isField(el) && attributeOf(el, "role") === "spinbutton";

// Returns the element that takes the keys typed into an element: itself, or a field inside it.
function fieldOf(el) {
  if (isField(el) || takesKeys(el)) return el;
  const active = deepActive(el);
  if (active && active !== el && isInside(active, el) && takesKeys(active)) return active;
  return fieldInside(el, 0);
}
function fieldInside(el, depth) {
  for (const child of depth < MAX_NESTING ? childrenOf(el) : []) {
    if (nodeTypeOf(child) !== 1) continue;
    const found = takesKeys(child) ? child : fieldInside(child, depth + 1);
    if (found) return found;
  }
  return null;
}

// Returns whether an element may take text; what a custom element holds may be out of sight.
const isWritable = (el) => isField(el) || attributeOf(el, "role") !== "combobox" ||
  tagOf(el).includes("-") || Boolean(fieldOf(el));

// Focuses a field; with `all`, selects its text, so that typing replaces it.
function focus(id, all) {
  const el = find(id);
  if (!el) return false;
  const field = fieldOf(el) || el;
  ensureFocus(field);
  if (!all) return true;
  secretFields.delete(el);
  selectAll(field);
  return true;
}
function selectAll(el) {
  if (!isForm(el) && typeof el.select === "function") el.select();
  else (viewOf(documentOf(el)) || window).getSelection().selectAllChildren(el);
}
function ensureFocus(el) {
  // the body of a frame is active in its document also while another document has the focus
  if (!hasFocus(documentOf(el))) (viewOf(documentOf(el)) || window).focus();
  if (!isInside(deepActive(el), el)) focusOn(el);
}
function deepActive(el) {
  let active = activeIn(documentOf(el));
  while (active && shadowOf(active) && activeIn(shadowOf(active))) active = activeIn(shadowOf(active));
  return active;
}

// Returns what a field holds now, when the page has had a frame to react if it `reacts`: its text, the
// parts of it before and after the selection, what of its end is selected, and how often each of
// `words` stands near it. `hides` is true for a password or secret, `locked` for a field that is
// disabled now. `row` has the texts of a row of boxes that the field begins, and `moved` is true if
// the focus is in a later one. A field that the page has put in the place of element `id` stands for
// it (`replaced`); `left` is true if there is none.
async function held(id, words, reacts) {
  if (reacts) await nextFrame();
  const el = find(id) || successorOf(id);
  if (!el) return { left: true };
  const field = fieldOf(el) || el, isInput = tagOf(field) === "input";
  const text = matches(el, EDITORS) ? partsOf(el)[0] : isField(field) ? field.value
    : field.isContentEditable ? innerTextOf(field) : textOf(field);
  const [start, end] = isField(field) ? [field.selectionStart, field.selectionEnd] : [null, null];
  const row = isInput ? sequenceOf(field) : [];
  return { text, hides: hidesValue(el) || hidesValue(field), replaced: !find(id),
    locked: matches(field, ":disabled"),
    head: text.slice(0, start ?? text.length), tail: text.slice(end ?? text.length),
    selected: end === text.length ? text.slice(start) : "", near: timesNear(field, words),
    row: row.map((box) => box.value), moved: row.indexOf(deepActive(field)) > 0 };
}
const hidesValue = (el) => el.type === "password" || secretFields.has(el);

// A page that draws a field anew after every change replaces the element.
function successorOf(id) {
  if (aim.id !== id || !aim.document || !viewOf(aim.document)) return null;
  const isIt = (el) => el && takesKeys(el) && nameOf(el, roleOf(el, styleOf(el))) === aim.name;
  const el = hitTest(aim.document, ...aim.point);
  if (isIt(el)) return el;
  const alike = aim.name
    ? [...queryAllInDocument(aim.document, "input,textarea,[contenteditable]")].filter(isIt) : [];
  return alike.length === 1 ? alike[0] : null; // it may have moved
}

const MAX_AROUND = 5000; // characters of the text around a field

// Returns for each of some words how many elements around a field have it as their own text, as a tag.
function timesNear(field, words) {
  let around = null;
  for (let node = parentOf(field), level = 0; node && level < 4; node = parentOf(node), level++) {
    if (nodeTypeOf(node) !== 1 || textContentOf(node).length > MAX_AROUND) break;
    around = node;
  }
  const counts = new Map();
  for (const el of around && words.length ? queryAllIn(around, "*") : []) {
    const own = [...childNodesOf(el)].map((node) => (nodeTypeOf(node) === 3 ? node.data : "")).join(" ");
    counts.set(wordsOf(own), (counts.get(wordsOf(own)) || 0) + 1);
  }
  return words.map((word) => counts.get(wordsOf(word)) || 0);
}

// Puts the cursor at the end of a field, or with `words` before them.
function placeCursor(id, words) {
  const element = find(id), el = element && (fieldOf(element) || element);
  if (!el) return { error: "gone" };
  ensureFocus(el);
  if (isField(el)) {
    const place = words ? findWords(el.value, words) : [el.value.length];
    if (!place) return { error: "unfound", text: hidesValue(el) ? "" : el.value };
    return selectInField(el, place[0], place[0]) ? {} : { error: words ? "unplaced" : "end" };
  }
  const selection = selectionOf(el);
  if (!words) {
    selection.selectAllChildren(el);
    selection.collapseToEnd();
    return {};
  }
  const all = partsOf(el), place = findWords(all[0], words);
  if (!place) return { error: "unfound", text: hidesValue(element) ? "" : all[0] };
  selection.collapse(...placeAt(all, place[0]));
  return {};
}

// ---- secrets

// Returns the origins of an element's document and of all pages around it.
function origins(id) {
  const el = find(id);
  if (!el) return { error: "gone" };
  const view = viewOf(documentOf(el)) || window;
  return { origins: [view.origin, ...view.location.ancestorOrigins] };
}

// Puts a secret into a field at the cursor, or with `all` in place of its text. Only this document
// gets it, whatever has the focus by then. `shown` is what a reader sees as the field's value.
function insertSecret(id, text, shown, all) {
  if (!focus(id, all)) return { error: "gone" };
  return insertInto(find(id), text, shown, all);
}
function insertInto(el, text, shown, all) {
  if (!isInside(deepActive(el), el)) return { error: "unfocused" };
  const before = secretFields.get(el) ?? el.value ?? textContentOf(el);
  secretFields.set(el, all ? shown : before + shown);
  return insertText(documentOf(el), "insertText", false, text) ? {} : { error: "refused" };
}

// ---- fields whose value is set as a whole

function dispatchChange(el) {
  el.dispatchEvent(new Event("input", { bubbles: true, composed: true }));
  el.dispatchEvent(new Event("change", { bubbles: true }));
}

// Sets the value of date, time, color and range inputs; key presses would depend on the locale.
// Returns the field's value then, or null for one that the field does not take, or, if `exact`, turns
// into another.
function setValue(id, value, shown, exact) {
  const el = find(id), before = el.value; // at once after `locate`
  const plain = (text) => text.toLowerCase().replace(/[^0-9a-su-z.-]/g, ""); // without the T of a time
  el.focus();
  el.value = value;
  if (el.value !== value && (exact ? plain(el.value) !== plain(value) : el.value === "")) {
    el.value = before;
    return null;
  }
  if (shown) secretFields.set(el, shown);
  else secretFields.delete(el);
  const became = el.value;
  dispatchChange(el);
  return became;
}

// ---- rows of fields that take a few characters each, and segments of dates

const MAX_BOX = 8; // characters
const MAX_ROW = 40; // boxes
const ROW_LEVELS = 5; // ancestors that a row of boxes may have in common
const BOXES = "input:is([type=text],[type=tel],[type=number],[type=password],:not([type]))[maxlength]";
const isBox = (el) => el.maxLength > 0 && el.maxLength <= MAX_BOX && rectsOf(el).length > 0;

// Returns the fields after `el`, itself included, that belong to one row of the page.
function following(el, selector, belongs) {
  let found = [el];
  for (let node = parentOf(el), level = 0; node && level < ROW_LEVELS; node = parentOf(node), level++) {
    if (isDocument(node)) break;
    const all = [...(nodeTypeOf(node) === 1 ? queryAllIn(node, selector)
      : node.querySelectorAll(selector))], first = all.indexOf(el);
    if (first < 0) continue;
    let end = first + 1;
    while (end < all.length && belongs(all[end - 1], all[end])) end++;
    found = all.slice(first, end);
  }
  return found;
}

// Boxes of several characters are of one row only if nothing but punctuation stands between them.
function boxesOf(el) {
  return following(el, BOXES, (one, other) => {
    if (!isBox(one) || !isBox(other)) return false;
    if (one.maxLength === 1 && other.maxLength === 1) return true;
    const range = newRange(documentOf(el)), [a, b] = [boxOf(one), boxOf(other)];
    range.setStartAfter(one);
    range.setEndBefore(other);
    return !/[\p{L}\p{N}]/u.test(range.toString()) && Math.abs(a.y - b.y) < a.height;
  });
}
const segmentsOf = (el) => following(el, "[role=spinbutton]", () => true);
// Boxes without a maximum are known by their equal sizes, and by the focus that moves on in them.
const TEXTS = BOXES.replace("[maxlength]", "");
const alikeOf = (el) => following(el, TEXTS, (one, other) => {
  const [a, b] = [boxOf(one), boxOf(other)];
  return b.width > 0 && Math.abs(a.width - b.width) <= 2 && Math.abs(a.y - b.y) < a.height;
});
const sequenceOf = (el) => (isSpinButton(el) ? segmentsOf(el) : el.maxLength > 0 ? boxesOf(el)
  : alikeOf(el)).slice(0, MAX_ROW);

const numberIn = (el, name) => {
  const text = attributeOf(el, `aria-${name}`);
  return text !== null && text.trim() !== "" && isFinite(text) ? Number(text) : null;
};

// Returns the boxes of a row, with the characters that each has room for and holds, or the segments,
// with name, id and range.
async function sequence(id, reacts) {
  if (reacts) await nextFrame();
  const el = find(id);
  if (!el) return { left: true };
  return { parts: sequenceOf(el).map((part) => isSpinButton(part)
    ? { name: nameOf(part, "textbox"), id: ids.get(part) ?? null, ...rangeOf(part) }
    : { room: Math.max(1, part.maxLength), text: part.value }) };
}

// Focuses a part of a row, with its text selected. Pages move on to the next box by themselves, and
// some unlock it only then.
async function enterPart(id, number) {
  const el = find(id), part = el && sequenceOf(el)[number];
  if (!part) return false;
  for (let frame = 0; number && frame < 3 && deepActive(part) !== part; frame++) await nextFrame();
  ensureFocus(part);
  if (isField(part) && part.value) selectAll(part);
  return deepActive(part) === part;
}

// Puts a character of a secret into a part of a row; see `insertSecret`.
async function insertSecretPart(id, number, text, shown) {
  if (!(await enterPart(id, number))) return { error: "unfocused" };
  return insertInto(sequenceOf(find(id))[number], text, shown, true);
}

// ---- sliders

// Returns the value of a slider or segment as a number and in words, and the numbers that it allows.
function rangeOf(el) {
  if (tagOf(el) === "input") {
    const [now, least, most] = [el.value, el.min || 0, el.max || 100].map(Number);
    return { now, least, most, step: el.step === "any" ? 0 : Number(el.step) || 1, text: el.value, shown: "" };
  }
  const now = numberIn(el, "valuenow");
  const text = collapse(attributeOf(el, "aria-valuetext") || "") || String(now ?? "");
  return { now, least: numberIn(el, "valuemin"), most: numberIn(el, "valuemax"), step: 0, text,
    shown: textOf(el) };
}

async function slider(id, reacts) {
  if (reacts) await nextFrame();
  const el = find(id);
  return el ? rangeOf(el) : { left: true };
}
