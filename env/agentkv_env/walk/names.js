// What things are: the role, name, value, options and states of an element.

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
  "a[href],button,input:not([type=hidden]),select,textarea,summary,[onclick],[contenteditable]," +
  "[tabindex]:not([tabindex^='-'])," + Object.keys(ROLES).map((role) => `[role=${role}]`).join();

// Native controls keep their nature whatever role they claim.
function roleOf(el, style) {
  const tag = el.localName;
  if (tag === "input") {
    if (el.type === "hidden") return "";
    return INPUTS[el.type] || (el.list ? "combobox" : "textbox");
  }
  if (tag === "textarea") return "textbox";
  if (tag === "select") return el.multiple || el.size > 1 ? "listbox" : "combobox";
  const claimed = ROLES[(el.getAttribute("role") || "").trim().split(/\s+/)[0].toLowerCase()];
  if (claimed) return claimed;
  if (tag === "button") return "button";
  if (tag === "a" && el.hasAttribute("href")) return "link";
  if (tag === "summary" && el.parentElement?.localName === "details") return "button";
  const editable = el.getAttribute("contenteditable");
  if (editable !== null && editable !== "false") return "textbox";
  if (tag === "body" || tag === "html" || tag === "label") return "";
  const parent = el.parentElement;
  const pointer = style.cursor === "pointer" && parent && styleOf(parent).cursor !== "pointer";
  const reachable = el.hasAttribute("tabindex") && el.tabIndex >= 0;
  if (!el.hasAttribute("onclick") && !pointer && !reachable) return "";
  // A generic box is a button only if nothing inside is one, and if it is no scrollable article.
  if (el.querySelector(ACTIVE) || el.textContent.length > 200) return "";
  return tag === "a" ? "link" : "button";
}

const CONTROLS = new Set(["input", "select", "textarea", "button"]);

// What an element says: its text, the alternative text of its images, the labels of its parts.
function textOf(el, top = true) {
  let text = "";
  for (const child of childrenOf(el)) {
    if (child.nodeType === 3) { text += child.data; continue; }
    if (child.nodeType !== 1) continue;
    const tag = child.localName;
    if (tag === "img") { text += ` ${child.alt || child.title || ""} `; continue; }
    if (tag === "svg") { text += ` ${svgName(child)} `; continue; }
    if (tag === "br") { text += " "; continue; }
    if (SKIPPED.has(tag) || CONTROLS.has(tag)) continue;
    const style = styleOf(child);
    if (style.display !== "contents" && !child.checkVisibility()) continue;
    if (style.visibility !== "visible") continue;
    const inner = child.getAttribute("aria-label") || textOf(child, false);
    text += style.display === "inline" || style.display === "contents" ? inner : ` ${inner} `;
  }
  return top ? squeeze(text) : text;
}

const svgName = (svg) => squeeze(
  svg.getAttribute("aria-label") || svg.querySelector(":scope > title")?.textContent || "");

function byIds(el, attribute) {
  const root = el.getRootNode();
  return squeeze((el.getAttribute(attribute) || "").split(/\s+/)
    .map((id) => (id && root.getElementById ? root.getElementById(id) : null))
    .filter((other) => other)
    .map((other) => other.getAttribute("aria-label") || textOf(other)).join(" "));
}

function nameOf(el, role) {
  const tag = el.localName;
  const own = byIds(el, "aria-labelledby") || squeeze(el.getAttribute("aria-label") || "");
  if (own) return own;
  if (tag === "input" && role === "button") {
    const standard = { submit: "Submit", reset: "Reset", image: "Submit" }[el.type] || "";
    return squeeze(el.type === "image" ? el.alt || el.title || el.value : el.value) ||
      squeeze(el.title) || standard;
  }
  if (CONTROLS.has(tag) || el.labels) {
    const labels = [...(el.labels || [])].map((label) => textOf(label)).join(" ");
    if (squeeze(labels)) return squeeze(labels);
  }
  if (tag === "input" || tag === "textarea" || tag === "select" || role === "textbox") {
    return squeeze(el.getAttribute("placeholder") || el.title ||
      el.getAttribute("aria-placeholder") || "") || (tag === "input" ? beside(el) : "");
  }
  return textOf(el) || squeeze(el.title || el.querySelector?.("[title]")?.title || "");
}

// The words right of a bare checkbox or radio button, which sighted people read as its name.
function beside(el) {
  if (el.type !== "checkbox" && el.type !== "radio") return "";
  const next = el.nextSibling;
  return next && next.nodeType === 3 ? squeeze(next.data) : "";
}

function valueOf(el, role) {
  const tag = el.localName;
  if (tag === "select") {
    return [...el.selectedOptions].map((option) => squeeze(option.label)).join(", ");
  }
  if (tag === "input") {
    if (role === "button" || role === "checkbox" || role === "radio") return "";
    if (el.type === "file") return [...el.files].map((file) => file.name).join(", ");
    return el.type === "password" ? (el.value ? "********" : "") : squeeze(el.value);
  }
  if (tag === "textarea") return squeeze(el.value);
  if (role === "textbox") return squeeze(el.innerText || "");
  return squeeze(el.getAttribute("aria-valuetext") || el.getAttribute("aria-valuenow") || "");
}

function optionsOf(el) {
  const list = el.localName === "select" ? el.options : el.localName === "input" && el.list?.options;
  return list ? [...list].filter((option) => !option.disabled || option.selected)
    .map((option) => squeeze(option.label || option.value)) : [];
}

function statesOf(el) {
  const states = [];
  const aria = (name) => el.getAttribute(`aria-${name}`);
  if (el.localName === "input" ? el.checked : aria("checked") === "true") states.push("checked");
  if (aria("pressed") === "true") states.push("pressed");
  if (aria("selected") === "true") states.push("selected");
  if (aria("current") && aria("current") !== "false") states.push("current");
  if (el.matches(":disabled") || aria("disabled") === "true") states.push("disabled");
  if (el.readOnly === true || aria("readonly") === "true") states.push("readonly");
  if (el.required === true || aria("required") === "true") states.push("required");
  if (el.localName === "input" && el.type === "password") states.push("password");
  if (aria("invalid") && aria("invalid") !== "false") states.push("invalid");
  const open = el.localName === "summary" ? String(el.parentElement.open) : aria("expanded");
  if (open === "true") states.push("expanded");
  if (open === "false") states.push("collapsed");
  return states;
}

// Custom checkboxes, radios and file fields hide the real one and style its label.
function hiddenBehindLabel(el) {
  if (!el.labels?.length || !["checkbox", "radio", "file"].includes(el.type)) return false;
  const style = styleOf(el), rect = el.getBoundingClientRect();
  return style.display === "none" || style.visibility !== "visible" || style.opacity === "0" ||
    rect.width <= 2 || rect.height <= 2 ||
    /rect\(0|inset\((50|100)%/.test(style.clip + style.clipPath);
}
