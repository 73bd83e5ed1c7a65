// Semantics: the role, name, value, options and states of an element.

const MAX_OPTIONS = 1000; // of one list
const MAX_COLUMNS = 50; // that one cell of a row spans

const SKIPPED = new Set(
  ("script style template noscript head meta link title datalist option optgroup audio video " +
    "object embed map param source track defs symbol").split(" "));
const ROLES = { button: "button", link: "link", checkbox: "checkbox", radio: "radio",
  switch: "switch", tab: "tab", menuitem: "menuitem", menuitemcheckbox: "menuitem",
  menuitemradio: "menuitem", option: "option", treeitem: "treeitem", combobox: "combobox",
  textbox: "textbox", searchbox: "textbox", spinbutton: "textbox", slider: "slider" };
const INPUTS = { button: "button", submit: "button", reset: "button", image: "button",
  checkbox: "checkbox", radio: "radio", range: "slider", file: "file" };
const ACTIVE =
  "a[*|href],button,input:not([type=hidden]),select,textarea,summary,[onclick],[contenteditable]," +
  "audio[controls],video[controls]," +
  "[tabindex]:not([tabindex^='-'])," + Object.keys(ROLES).map((role) => `[role=${role}]`).join();

// Native controls keep their native role, whatever their role attribute says.
function roleOf(el, style) {
  const tag = tagOf(el);
  if (tag === "input") {
    if (el.type === "hidden") return "";
    return INPUTS[el.type] || (el.list ? "combobox" : "textbox");
  }
  if (tag === "textarea") return "textbox";
  if (tag === "select") return el.multiple || el.size > 1 ? "listbox" : "combobox";
  const claimed = ROLES[(attributeOf(el, "role") || "").trim().split(/\s+/)[0].toLowerCase()];
  if (claimed) return claimed;
  if (tag === "button") return "button";
  if ((tag === "a" || tag === "area") && matches(el, "[*|href]")) return "link"; // xlink:href in SVG
  if (tag === "summary" && parentElementOf(el) && tagOf(parentElementOf(el)) === "details") return "button";
  const editable = attributeOf(el, "contenteditable");
  if (editable !== null && editable !== "false") return "textbox";
  if (tag === "body" || tag === "html" || tag === "label") return "";
  if (matches(el, EDITORS)) return "textbox";
  if (matches(el, DRAGGABLE)) return tag === "a" ? "link" : "item";
  if (!isPressable(el, tag, style)) return "";
  return tag === "a" ? "link" : "button";
}

const EDITORS = ".CodeMirror,.ace_editor,.monaco-editor"; // hide the field that they write to
const DRAGGABLE = "[draggable=true],.ui-draggable,.ui-sortable-handle"; // also of jQuery UI
// A list is no button, even if one listener of its serves all items. The items are the buttons.
const LISTS = "ul,ol,dl,table,thead,tbody,tfoot,[role=list],[role=listbox],[role=menu],[role=grid]";
// A box with such parts is no button if nothing but a listener speaks for it. Pages listen on boxes
// around their content for other reasons.
const PARTS = "h1,h2,h3,h4,h5,h6,p,form,label,table,ul,ol,section,article,header,main,nav";

let pressListeners = new WeakSet(); // elements that listen to presses, ...
let aroundListeners = new WeakSet(); // ... and the elements around them
let hoverListeners = new WeakSet(); // elements that listen to the mouse coming

// Remembers which elements listen to presses and to the mouse coming: "number of
// elements:index,index,:index,". The page's own world says so, so the text may be anything. Returns
// whether one was unknown; if so, `anew` forgets the ids of elements.
function hear(said, anew) {
  const all = queryAllInDocument(document, "*"), [size, presses, hovers] = said.split(":");
  if (Number(size) !== all.length || hovers === undefined) return false;
  const listed = (indices) => indices.split(",").map((index) => index && all[Number(index)]).filter((el) => el);
  const before = pressListeners, hoveredBefore = hoverListeners;
  let isNew = false;
  pressListeners = new WeakSet();
  aroundListeners = new WeakSet();
  hoverListeners = new WeakSet(listed(hovers));
  isNew = listed(hovers).some((el) => !hoveredBefore.has(el));
  for (const el of listed(presses)) {
    pressListeners.add(el);
    isNew ||= !before.has(el);
    for (let node = parentOf(el); node && !aroundListeners.has(node); node = parentOf(node)) {
      aroundListeners.add(node);
    }
  }
  if (isNew && anew) forget();
  return isNew;
}

// Returns whether a person would press a generic element: it has the cursor of a link, takes the
// focus or listens to presses, and has a short text and no controls inside.
function isPressable(el, tag, style) {
  const parent = parentElementOf(el);
  if (!parent) return false;
  const pointer = style.cursor === "pointer" &&
    (styleOf(parent).cursor !== "pointer" || isListed(el, parent));
  // An area that scrolls takes the focus for the keys that scroll it.
  const told = hasAttribute(el, "onclick") || (hasAttribute(el, "tabindex") &&
    tabIndexOf(el) >= 0 && !(SCROLLS.test(style.overflowY) && scrollStates(el).length));
  if (!told && !pointer && !pressListeners.has(el)) return isDay(el, tag, parent);
  if (!told && !pointer && aroundListeners.has(el)) return false;
  if (!told && (matches(el, LISTS) || queryIn(el, "table"))) return false;
  if (!told && tag === "td" && !collapse(textContentOf(el))) return false;
  if (!told && tag === "tr" && (isWeek(el) || !queryIn(el, "td"))) return false;
  if (queryIn(el, ACTIVE) || textContentOf(el).length > 200) return false;
  return told || pointer || tag === "a" || tag === "tr" || !queryIn(el, PARTS);
}

// Returns the cells of a table row, none of an element that is no row: scripts put cells anywhere.
const cellsOf = (row) => row && tagOf(row) === "tr" && row.cells ? [...row.cells] : [];

const isListed = (el, parent) => matches(parent, LISTS) || isWeek(parent);

// Returns whether an element is a row of a calendar, whose cells are pressed rather than the row.
function isWeek(el) {
  const cells = cellsOf(el);
  const days = cells.map((cell) => collapse(textContentOf(cell))).filter((text) => text);
  return cells.length > 1 && days.length > 0 && days.every((day) => /^\d{1,2}$/.test(day));
}

// Returns whether an element is a day of a calendar with one listener for all days.
function isDay(el, tag, parent) {
  if (tag !== "td" || !isWeek(parent)) return false;
  if (!collapse(textContentOf(el)) || queryIn(el, ACTIVE)) return false;
  for (let node = parent; node && tagOf(node) !== "body"; node = parentElementOf(node)) {
    if (pressListeners.has(node)) return true;
    if (tagOf(node) === "table") return false;
  }
  return false;
}

// Returns whether cells of a row are pressed, so that the row is not one line of text.
const hasPressableCells = (row) => aroundListeners.has(row) ||
  cellsOf(row).slice(0, 7).some((cell) => isPressable(cell, tagOf(cell), styleOf(cell)));

const STRUCK = new Set(["del", "s", "strike"]);

// Marks text that the page strikes through, such as the price before.
const struck = (text) => (/\S/.test(text) ? text.replace(/^(\s*)([^]*?)(\s*)$/, "$1~~$2~~$3") : text);

const CONTROLS = new Set(["input", "select", "textarea", "button"]);

// Returns the text of an element, with the alternative text of images and the labels of parts.
function textOf(el, depth = 0) {
  let text = partOf(el, "::before");
  for (const child of childrenOf(el)) {
    if (text.length > MAX_TEXT || depth > MAX_NESTING || isOverdue()) break;
    if (nodeTypeOf(child) === 3) { text += withoutIcons(child.data); continue; }
    if (nodeTypeOf(child) !== 1) continue;
    const tag = tagOf(child);
    if (tag === "img") { text += ` ${child.alt || child.title || ""} `; continue; }
    if (tag === "svg") { text += ` ${svgName(child) || textOf(child, depth + 1)} `; continue; }
    if (tag === "use") { text += ` ${usedText(child)} `; continue; }
    if (tag === "br") { text += " "; continue; }
    if (SKIPPED.has(tag) || CONTROLS.has(tag) || tag === "progress" || tag === "meter") continue;
    const style = styleOf(child);
    if (style.display !== "contents" && !isVisible(child)) continue;
    if (style.visibility !== "visible") continue;
    const inner = attributeOf(child, "aria-label") || textOf(child, depth + 1);
    const shown = STRUCK.has(tag) ? struck(inner) : inner;
    text += style.display === "inline" || style.display === "contents" ? shown : ` ${shown} `;
  }
  text += partOf(el, "::after");
  return depth ? text : collapse(text);
}

function partOf(el, pseudo) {
  const found = generatedWords(el, pseudo);
  return !found ? "" : found.isBlock ? ` ${found.text} ` : found.text;
}

// Returns the cells of a row between bars. Empty cells keep the others in their columns.
function rowOf(row) {
  const cells = cellsOf(row).flatMap((cell) =>
    [textOf(cell), ...Array(Math.min(cell.colSpan, MAX_COLUMNS) - 1).fill("")]);
  while (cells.length && !cells.at(-1)) cells.pop();
  return cells.join(" | ");
}

const HEADINGS = "h1,h2,h3,h4,h5,h6,[role=heading]";
const isHeading = (el) => matches(el, HEADINGS);

// Returns whether the name of a link or button is the heading inside it, as in a list of results.
function isNamedByHeading(el, name) {
  const heading = name && queryIn(el, HEADINGS);
  return heading ? textOf(heading) === name : false;
}

// Values of `white-space` with which spaces count.
const SPACES = new Set(["pre", "pre-wrap", "break-spaces"]);

// Returns a row whose last cell is a line of code, "lines" if it is several, or "" if it is none.
function codeRowOf(row) {
  const cells = cellsOf(row), last = cells.pop();
  if (!last || !SPACES.has(styleOf(queryIn(last, "pre") || last).whiteSpace)) return "";
  const code = textContentOf(last);
  if (/\S\s*\n\s*\S/.test(code)) return "lines";
  const others = cells.map((cell) => textOf(cell));
  return [...others, code.slice(0, MAX_TEXT).replace(/^\s*\n|\s+$/g, "")].join(" | ");
}

const isSvg = (el) => namespaceOf(el) === "http://www.w3.org/2000/svg";

const svgName = (svg) => collapse(byIds(svg, "aria-labelledby") || attributeOf(svg, "aria-label") ||
  queryIn(svg, ":scope > title")?.textContent || "");

// Returns the text that an element of SVG draws from elsewhere in its document.
function usedText(use) {
  const target = attributeOf(use, "href") || attributeOf(use, "xlink:href") || "";
  const used = target.startsWith("#") ? byIdIn(rootOf(use), target.slice(1)) : null;
  if (!used) return "";
  const texts = tagOf(used) === "text" ? [used] : [...queryAllIn(used, "text")];
  return collapse(texts.slice(0, MAX_OPTIONS).map((each) => textContentOf(each)).join(" "));
}

// Roles of the parts of a picture that have a name of their own, such as the bars of a chart.
const GRAPHICS = "[role=img],[role^=graphics-]";

function byIds(el, attribute) {
  const root = rootOf(el);
  return collapse((attributeOf(el, attribute) || "").split(/\s+/)
    .map((id) => (id ? byIdIn(root, id) : null))
    .filter((other) => other)
    .map((other) => attributeOf(other, "aria-label") || textOf(other)).join(" "));
}

const areaName = (el) => byIds(el, "aria-labelledby") ||
  collapse(attributeOf(el, "aria-label") || tooltipOf(el) || "");

function nameOf(el, role) {
  const tag = tagOf(el);
  const own = byIds(el, "aria-labelledby") || collapse(attributeOf(el, "aria-label") || "");
  if (own) return own;
  if (tag === "input" && role === "button") {
    const standard = { submit: "Submit", reset: "Reset", image: "Submit" }[el.type] || "";
    return collapse(el.type === "image" ? el.alt || el.title || el.value : el.value) ||
      collapse(el.title) || standard;
  }
  if (CONTROLS.has(tag) || labelsOf(el)) {
    const labels = [...(labelsOf(el) || [])].map((label) => textOf(label)).join(" ");
    if (collapse(labels)) return collapse(labels);
  }
  if (tag === "input" || tag === "textarea" || tag === "select" || role === "textbox") {
    return collapse(attributeOf(el, "placeholder") || tooltipOf(el) ||
      attributeOf(el, "aria-placeholder") || "") || (tag === "input" ? textAfter(el) : "") ||
      byIds(el, "aria-describedby") || textBeside(el);
  }
  if (PLAYERS.has(tag)) return collapse(tooltipOf(el) || "");
  if (tag === "area" || tag === "img") return collapse(el.alt || tooltipOf(el) || "");
  if (tag === "canvas") return collapse(tooltipOf(el) || textContentOf(el));
  if (tag === "tr" && el.cells) return rowOf(el);
  const titled = queryIn(el, "[title]");
  return textOf(el) || (isSvg(el) ? svgName(el) : "") ||
    collapse(tooltipOf(el) || (titled ? tooltipOf(titled) : "") || "") ||
    byIds(el, "aria-describedby") || signOf(el) || iconOf(el);
}

// The names below are our choice: they follow what the standard (accname) knows.

const MAX_ICON = 80; // characters of the name of an icon
const MAX_BESIDE = 80; // characters of a text beside a field that may be its name
const TOOLTIPS = ["data-tooltip", "data-title", "data-original-title", "data-bs-original-title"];

// Returns the text that people take for the label of a field: in a table the heading of its column or
// row, else the text before it in its line, or the block before that.
function textBeside(el) {
  const cell = cellOf(el);
  if (cell) return headingOf(cell);
  for (let node = el, level = 0; node && level < 3; node = parentElementOf(node), level++) {
    for (let before = previousOf(node); before; before = previousOf(before)) {
      if (nodeTypeOf(before) === 1 && (matches(before, ACTIVE) || queryIn(before, ACTIVE))) return "";
      const text = nodeTypeOf(before) === 3 ? collapse(before.data)
        : nodeTypeOf(before) === 1 && !SKIPPED.has(tagOf(before)) ? textOf(before) : "";
      if (text) return text.length <= MAX_BESIDE ? text.replace(/\s*[:*]+$/, "") : "";
    }
  }
  return "";
}

// Returns the table cell that an element fills, within three levels.
function cellOf(el) {
  let node = parentElementOf(el);
  for (let level = 0; node && level < 3; node = parentElementOf(node), level++) {
    if (tagOf(node) === "td" || tagOf(node) === "th") return node;
  }
  return null;
}

// Returns the heading of the cell's column after the first cell of its row, or the cell before it.
function headingOf(cell) {
  const row = parentElementOf(cell), cells = cellsOf(row), index = cells.indexOf(cell);
  if (!cells.length) return "";
  let table = row;
  while (table && tagOf(table) !== "table") table = parentElementOf(table);
  const column = cells.slice(0, index).reduce((sum, other) => sum + other.colSpan, 0);
  let end = 0;
  const above = [...(table?.rows?.[0]?.cells || [])].find((other) => (end += other.colSpan) > column);
  const isHeaded = above && above !== cell && tagOf(above) === "th" && !queryIn(above, ACTIVE);
  const beside = index > 0 ? cells[isHeaded ? 0 : index - 1] : null;
  const parts = [beside && !queryIn(beside, ACTIVE) ? beside : null, isHeaded ? above : null];
  const name = parts.map((part) => (part ? textOf(part).replace(/\s*[:*]+$/, "") : ""))
    .filter((text) => text).join(", ");
  return name.length <= MAX_BESIDE ? name : "";
}

// Returns the name of an icon: a tooltip that a script will show, the symbol that an SVG uses, or, if
// there is nothing else, the class of an icon font.
function iconOf(el) {
  for (const name of TOOLTIPS) if (attributeOf(el, name)) return collapse(attributeOf(el, name));
  const use = queryIn(el, "use");
  const target = use ? attributeOf(use, "href") || attributeOf(use, "xlink:href") || "" : "";
  const symbol = /#(?:icon-)?([\w-]+)$/.exec(target);
  const icon = queryIn(el, "i[class],span[class],svg[class]") || el;
  const classed = /(?:^|\s)(?:fa|bi|mdi|icon|ti|ri|glyphicon|lucide|octicon)-([a-z][a-z-]+)/
    .exec(attributeOf(icon, "class") || "");
  const found = symbol || classed;
  return found ? `icon ${collapse(found[1].replace(/[-_]+/g, " "), MAX_ICON)}` : "";
}

// Returns the text right of a checkbox or radio button without a label.
function textAfter(el) {
  if (el.type !== "checkbox" && el.type !== "radio") return "";
  const next = nextSiblingOf(el);
  return next && nodeTypeOf(next) === 3 ? collapse(next.data) : "";
}

// Fields into which a secret was typed, and what is shown as their value: they may cut or format it.
const secretFields = new WeakMap();

function valueOf(el, role) {
  const tag = tagOf(el);
  if (secretFields.has(el) && el.type !== "password") {
    const holds = tag === "input" || tag === "textarea" ? el.value : textContentOf(el);
    if (holds) return secretFields.get(el);
    secretFields.delete(el); // what it holds later is something else
    return "";
  }
  if (PLAYERS.has(tag)) return playerValue(el);
  if (tag === "select") {
    const names = new Map(el.selectedOptions.length ? namedOptions(el.options) : []);
    return [...el.selectedOptions].map((option) =>
      collapse(option.label) && (names.get(option) ?? collapse(option.label))).join(", ");
  }
  if (tag === "input") {
    if (role === "button" || role === "checkbox" || role === "radio") return "";
    if (el.type === "file") return [...el.files].map((file) => file.name).join(", ");
    return el.type === "password" ? (el.value ? "********" : "") : collapse(el.value, MAX_VALUE_READ);
  }
  if (tag === "textarea") return collapse(el.value, MAX_VALUE_READ);
  if (role === "textbox") return hasLines(el) ? "" : collapse(innerTextOf(el) || "", MAX_VALUE_READ);
  return collapse(attributeOf(el, "aria-valuetext") || attributeOf(el, "aria-valuenow") || "");
}

// Returns whether an editor shows lines of code, which are read one by one below it.
const hasLines = (el) => matches(el, EDITORS) || (!CONTROLS.has(tagOf(el)) &&
  SPACES.has(styleOf(el).whiteSpace) && /\S\s*\n\s*\S/.test(innerTextOf(el) || ""));

function optionsOf(el) {
  const tag = tagOf(el);
  if (tag === "select") return namedOptions(el.options).map(([, name]) => name);
  const list = tag === "input" && el.list?.options;
  return list ? Array.from({ length: Math.min(list.length, MAX_OPTIONS) }, (_, index) => list[index])
    .filter((option) => !option.disabled)
    .map((option) => collapse(option.label || option.value)) : [];
}

// Returns whether an element takes no presses: it or what is around it says so, or is inert.
const isDisabled = (el) => saysDisabled(el) || isInert(el);
const saysDisabled = (el) => matches(el, ":disabled") || Boolean(closest(el, "[aria-disabled=true]"));

// Returns whether presses and keys pass by an element: it is `inert`, or in such a part or frame.
const isInert = (el) => [el, ...framesAround(el)]
  .some((each) => styleOf(each).interactivity === "inert" || isUnderModal(each));

// A modal dialog makes the rest of its document inert, also what it does not cover. Says whether
// documents have one; begins anew with each look.
let withModal = new WeakMap();

function isUnderModal(el) {
  const doc = documentOf(el);
  if (!withModal.has(doc)) {
    const modals = [...queryAllInDocument(doc, ":modal:not(:fullscreen)")];
    withModal.set(doc, modals.some((modal) => isVisible(modal)));
  }
  if (!withModal.get(doc)) return false;
  for (let node = el; node; node = parentOf(node)) {
    if (nodeTypeOf(node) === 1 && matches(node, ":modal")) return false;
  }
  return true;
}

function statesOf(el) {
  const states = [];
  const tag = tagOf(el), aria = (name) => attributeOf(el, `aria-${name}`);
  const isMixed = tag === "input" ? el.type === "checkbox" && el.indeterminate
    : aria("checked") === "mixed" || aria("pressed") === "mixed";
  if (isMixed) states.push("mixed"); // drawn instead of the mark, whatever the box holds
  else if (tag === "input" ? el.checked : aria("checked") === "true") states.push("checked");
  if (aria("pressed") === "true") states.push("pressed");
  if (aria("selected") === "true") states.push("selected");
  if (aria("current") && aria("current") !== "false") states.push("current");
  if (isDisabled(el)) states.push("disabled");
  if (el.readOnly === true || aria("readonly") === "true") states.push("readonly");
  if (el.required === true || aria("required") === "true") states.push("required");
  if (matches(el, DRAGGABLE)) states.push("draggable");
  if (tag === "input" && el.type === "password") states.push("password");
  if (aria("invalid") && aria("invalid") !== "false") states.push("invalid");
  const open = tag === "summary" ? String(parentElementOf(el)?.open) : aria("expanded");
  if (open === "true") states.push("expanded");
  if (open === "false") states.push("collapsed");
  return states;
}

// Custom checkboxes, radio buttons and file fields hide the native input and style its label.
function hiddenBehindLabel(el) {
  if (!labelsOf(el)?.length || !["checkbox", "radio", "file"].includes(el.type)) return false;
  const style = styleOf(el), rect = boxOf(el);
  return style.display === "none" || style.visibility !== "visible" || style.opacity === "0" ||
    rect.width <= 2 || rect.height <= 2 ||
    /rect\(0|inset\((50|100)%/.test(style.clip + style.clipPath);
}
