// What only hovering reveals: parts of a page that a style sheet, or a listener, shows while the mouse
// is over an element around or before them.

const MAX_RULES = 20000; // of all style sheets
const MAX_REVEALING = 300; // selectors
const MAX_HIDDEN = 1000; // elements looked at
const MAX_NAMES = 8; // of what one element reveals
const MAX_REVEALED = 60; // characters of such a name
const REVEALS_MS = 300; // longest search

const SIZE = /^(?:(?:max-)?(?:height|width)|clip|clip-path|transform|scale|translate|left|right|top|bottom)$/;
const CONDITION = /:hover(?![\w-])/g;

// A revealing rule is [selector of what is shown, selector of what the mouse must be over, reasons why
// the former was hidden that the rule ends].
const sheetRules = new WeakMap(); // style sheet -> [number of its rules, revealing ones]
const foreignSheets = new Map(); // address -> the same of a style sheet that only the browser may read
let numRules = 0;

// Remembers the text of a style sheet that no script of this origin may read.
function readSheet(address, text) {
  const sheet = new CSSStyleSheet();
  try { sheet.replaceSync(text); } catch { return; }
  foreignSheets.set(address, revealingIn(sheet.cssRules));
}

// Returns the addresses of such style sheets, some of which `readSheet` may not know yet.
function foreignAddresses() {
  return [...document.styleSheets].filter((sheet) => !rulesOf(sheet) && sheet.href &&
    !foreignSheets.has(sheet.href)).map((sheet) => sheet.href).slice(0, 8);
}

function rulesOf(sheet) {
  try { return sheet.cssRules; } catch { return null; } // of another origin
}

function revealingRules(doc) {
  numRules = 0;
  const found = [];
  for (const sheet of [...doc.styleSheets, ...doc.adoptedStyleSheets]) {
    const rules = sheet.disabled ? null : rulesOf(sheet);
    if (!rules) { found.push(...foreignSheets.get(sheet.href) || []); continue; }
    const known = sheetRules.get(sheet);
    if (known?.[0] !== rules.length) sheetRules.set(sheet, [rules.length, revealingIn(rules)]);
    found.push(...sheetRules.get(sheet)[1]);
  }
  return found.slice(0, MAX_REVEALING);
}

function revealingIn(rules, around = "", found = []) {
  for (const rule of rules) {
    if (numRules++ > MAX_RULES || found.length > MAX_REVEALING) break;
    const nested = rule.selectorText, inner = rule.styleSheet ? rulesOf(rule.styleSheet) : rule.cssRules;
    const selector = !nested || !around ? nested || around
      : nested.includes("&") ? nested.replaceAll("&", `:is(${around})`) : `:is(${around}) ${nested}`;
    if (rule.keyText || rule instanceof CSSKeyframesRule) continue;
    const ended = selector.includes(":hover") && rule.style ? reasonsEnded(rule.style) : [];
    if (ended.length) {
      for (const each of splitSelectors(selector)) found.push(...conditionOf(each, ended));
    }
    if (inner?.length) revealingIn(inner, selector, found);
  }
  return found;
}

// Returns the reasons for being hidden that a style ends.
function reasonsEnded(style) {
  const value = (name) => style.getPropertyValue(name), reasons = [];
  if (value("display") && value("display") !== "none") reasons.push("display");
  if (value("visibility") === "visible") reasons.push("visibility");
  if (parseFloat(value("opacity")) > 0) reasons.push("opacity");
  if ([...style].some((name) => SIZE.test(name))) reasons.push("size");
  return reasons;
}

// Returns the reasons why an element itself is hidden; none if it can be seen, or nothing around it can.
function reasonsFor(el) {
  const style = styleOf(el), reasons = [];
  if (style.display === "none") return isHidden(parentElementOf(el) || el) ? [] : ["display"];
  if (style.visibility !== "visible") reasons.push("visibility");
  if (style.opacity === "0") reasons.push("opacity");
  if (!rectsOf(el).some((rect) => isSeen(rect, clipAround(el)))) reasons.push("size");
  return reasons;
}

// Splits a list of selectors at the commas outside brackets.
function splitSelectors(text) {
  const parts = [""];
  let depth = 0;
  for (const char of text) {
    depth += "([".includes(char) ? 1 : ")]".includes(char) ? -1 : 0;
    if (char === "," && !depth) parts.push("");
    else parts[parts.length - 1] += char;
  }
  return parts;
}

// Returns a revealing rule, or [].
function conditionOf(selector, ended) {
  const at = selector.search(CONDITION);
  if (at < 0 || selector.includes("::")) return [];
  let start = at, depth = 0; // to where the brackets around the condition begin
  for (; start > 0; start--) {
    const char = selector[start - 1];
    depth += ")]".includes(char) ? 1 : "([".includes(char) ? -1 : 0;
    if (depth < 0 || (!depth && char === ",")) break;
  }
  if (/:not\($/.test(selector.slice(0, start))) return [];
  const over = selector.slice(start, at);
  const hovered = /[\s>+~]$/.test(over) || !over ? `${over}*` : over;
  return [[selector.replace(CONDITION, ":is(*)"), hovered, ended]];
}

const isUndrawn = (el) => !isVisible(el, { opacityProperty: true, visibilityProperty: true });

// Returns whether an element is there but cannot be seen.
const isHidden = (el) => isUndrawn(el) ||
  !rectsOf(el).some((rect) => isSeen(rect, clipAround(el)));

// Returns the part of the page in which an element may be drawn, as boxes around it hide the rest.
function clipAround(el) {
  let clip = { x: -1e6, y: -1e6, width: 2e6, height: 2e6 };
  for (let node = el, level = 0; node && level < 4; node = parentElementOf(node), level++) {
    if (/hidden|clip/.test(styleOf(node).overflowY)) clip = intersect(clip, boxOf(node));
  }
  return clip;
}

// Returns what an element reveals, by element. The mouse over one of them shows the parts with these names.
let revealed = new Map(), selfRevealed = new WeakSet();

function findRevealed() {
  revealed = new Map();
  selfRevealed = new WeakSet();
  within(Math.min(REVEALS_MS, deadline - performance.now()), () => {
    for (const doc of documentsOf(document)) rootsIn(doc).forEach(revealByStyle);
    for (const el of queryAllInDocument(document, "*")) {
      if (isOverdue()) break;
      if (hoverListeners.has(el)) revealByListener(el);
    }
  });
}

// Returns a document or shadow root with all shadow roots in it.
function rootsIn(root, found = []) {
  found.push(root);
  for (const el of allIn(root, "*")) {
    if (isOverdue()) break;
    if (shadowOf(el)) rootsIn(shadowOf(el), found);
  }
  return found;
}
// A page can give its document another function of that name, but no shadow root.
const allIn = (root, selector) =>
  isDocument(root) ? queryAllInDocument(root, selector) : root.querySelectorAll(selector);

function revealByStyle(doc) {
  const parts = new Map(); // hidden element -> [what the mouse must be over, reasons that are left]
  for (const [shown, hovered, ended] of revealingRules(doc)) {
    let found = [];
    try { found = allIn(doc, shown); } catch { continue; } // no selector of this browser
    for (const part of found) {
      if (isOverdue() || parts.size > MAX_HIDDEN) break;
      if (!parts.has(part)) parts.set(part, [null, reasonsFor(part)]);
      const known = parts.get(part);
      if (!known[1].some((reason) => ended.includes(reason))) continue;
      known[0] ||= holderOf(part, hovered);
      known[1] = known[1].filter((reason) => !ended.includes(reason));
      if (known[1].length || !known[0]) continue;
      if (known[0] === part) selfRevealed.add(part);
      else reveal(known[0], part);
    }
  }
}

// Returns what the mouse must be over to show a part: an element around it, or one before it.
function holderOf(part, hovered) {
  try {
    for (let node = part; node; node = parentElementOf(node)) if (matches(node, hovered)) return node;
    for (let node = part; node; node = parentElementOf(node)) {
      for (let before = node.previousElementSibling; before; before = before.previousElementSibling) {
        if (matches(before, hovered)) return before;
      }
    }
  } catch { return null; }
  return null;
}

// Returns whether nothing is said of an element: it is hidden, the mouse is over it, or it is all.
// (In quirks mode, a bare `:hover` matches links only.)
const isPlain = (el) => matches(el, ":is(:hover),html,body") || isHidden(el);

function reveal(holder, part) {
  if (isPlain(holder)) return;
  const controls = [part, ...queryAllIn(part, ACTIVE)].filter((el) => matches(el, ACTIVE) && !queryIn(el, ACTIVE));
  const listOf = (el) => (matches(el, LISTS) ? el : queryIn(el, LISTS));
  const shown = (controls.length ? controls : [part]).slice(0, 2 * MAX_NAMES)
    .flatMap((el) => (listOf(el) ? [...childElementsOf(listOf(el))] : [el]));
  const names = shown.slice(0, 2 * MAX_NAMES).map(hiddenName);
  const known = revealed.get(holder) || [];
  const added = [...known, ...names.filter((name) => /[\p{L}\p{N}]/u.test(name))];
  if (added.length) revealed.set(holder, [...new Set(added)].slice(0, MAX_NAMES));
}

// Returns the name of a hidden element. `nameOf` reads only what can be seen.
function hiddenName(el) {
  const told = collapse(attributeOf(el, "aria-label") || "");
  const said = told || collapse(textContentOf(el).slice(0, MAX_TEXT), MAX_TEXT) || nameOf(el, "button");
  return said.length > MAX_REVEALED ? `${said.slice(0, MAX_REVEALED - 3)}...` : said;
}

const POPS_UP = "[aria-haspopup]:not([aria-haspopup=false])";
const ROWS = "tr,li,article,[role=row],[role=listitem]";

// What listens to the mouse coming may show anything. Its own hidden parts are named, and those beside
// it; a box without any is marked. Links and buttons listen for other reasons too, such as to change
// their colour or to load the page that a press would open, so they must say that they pop something up.
function revealByListener(el) {
  if (isPlain(el)) return;
  const isControl = matches(el, ACTIVE) || pressListeners.has(el), popsUp = matches(el, POPS_UP);
  for (const tip of describedBy(el)) reveal(el, tip);
  const next = !isControl || popsUp ? el.nextElementSibling : null;
  const parts = [...queryAllIn(el, "*"), ...(next ? [next] : [])].slice(0, MAX_HIDDEN).filter((part) =>
    !isOverdue() && !SKIPPED.has(tagOf(part)) && isUndrawn(part) && !isUndrawn(parentElementOf(part)) &&
    !matches(part, "input,select,textarea") && // which widgets hide that draw their own
    (queryIn(part, ACTIVE) || matches(part, `${ACTIVE},[role=tooltip]`)) && !isToggled(part, el));
  for (const part of parts) {
    const row = part === next ? el : part.closest?.(ROWS);
    reveal(row && row !== part && isInside(row, el) ? row : el, part);
  }
  if (parts.length || revealed.has(el)) return;
  if (popsUp || (!isControl && isOwnBox(el))) revealed.set(el, []);
}

// Returns whether an element is a part of the page without buttons: no popup, and not most of the page.
const isOwnBox = (el) => !aroundListeners.has(el) && !/fixed|absolute/.test(styleOf(el).position) &&
  2 * boxOf(el).width * boxOf(el).height < innerWidth * innerHeight;

// Returns whether a hidden list has a button beside it that opens it.
const isToggled = (part, around) => (matches(part, LISTS) || queryIn(part, LISTS)) &&
  [...queryAllIn(around, "*")].some((el) => pressListeners.has(el) && tagOf(el) !== "a" &&
    !isInside(el, part) && !matches(el, POPS_UP) && !isHidden(el));

// Returns the hidden descriptions of an element.
const describedBy = (el) => (attributeOf(el, "aria-describedby") || "").split(/\s+/)
  .map((id) => id && byIdIn(rootOf(el), id)).filter((tip) => tip && isHidden(tip));
