// Text that style sheets draw: the content of ::before and ::after, of list markers, and counters.

const MAX_CONTENT = 2000; // characters of a value of `content`
const MAX_GENERATED = 500; // characters of one generated text
// Signs from fonts of icons, which nobody can read.
const PRIVATE = /[\ue000-\uf8ff\u{f0000}-\u{10ffff}]/gu;
const withoutIcons = (text) => (/[\ud800-\uf8ff]/.test(text) ? text.replace(PRIVATE, "") : text);
// Arrows, lines, boxes and triangles say nothing, nor do bullets and slashes between links.
const SHAPES = /[\u2190-\u21ff\u2500-\u25ff\u27f0-\u27ff\u2900-\u297f\u2b00-\u2bff]/g;
const SAYS = /[\p{L}\p{N}\p{Sc}\p{So}*%"\u201c-\u201f]/u;

const PIECE =
  /"((?:[^"\\]|\\[^])*)(?:"|$)|(counters?)\(([^)]*)\)|(open|close)-quote|(\/)|url\([^)]*\)|[^\s"/]+/g;
const unescape = (text) => text.replace(/\\(?:([0-9a-f]{1,6}) ?|([^]))/gi,
  (_, code, sign) => (code ? String.fromCodePoint(Math.min(parseInt(code, 16), 0x10ffff)) : sign));

// Returns whether nobody sees a generated box, as where it keeps room or waits to fade in.
function isHiddenBox(style) {
  if (style.display === "none" || style.visibility !== "visible" || style.opacity === "0") return true;
  const px = (name) => parseFloat(style[name]);
  if (style.overflow !== "visible" && (px("width") <= 1 || px("height") <= 1)) return true;
  if (px("fontSize") === 0 || px("textIndent") < -500 || /^rgba\(.*, 0\)$/.test(style.color)) return true;
  if (/^matrix\(0, 0, 0, 0/.test(style.transform)) return true;
  if (/rect\(0|inset\((50|100)%/.test(style.clip + style.clipPath)) return true;
  return /absolute|fixed/.test(style.position) && (px("left") < -500 || px("top") < -500);
}

// Returns the text of a value of `content`, or what stands for it after a slash.
function contentText(content, style, values) {
  let text = "", other = null;
  for (const [, quoted, counter, given, quote, slash] of content.matchAll(PIECE)) {
    if (slash) { other = ""; continue; }
    const piece = quoted !== undefined ? unescape(quoted) : counter ? counted(given, values)
      : quote ? quoteOf(style, quote) : "";
    if (other === null) text += piece;
    else other += piece;
  }
  return withoutIcons(other === null ? text : ` ${other} `);
}

function quoteOf(style, side) {
  const [opening, closing] = [...style.quotes.matchAll(/"((?:[^"\\]|\\.)*)"/g)].map(([, sign]) => sign);
  return side === "open" ? opening ?? "\u201c" : closing ?? "\u201d";
}

const OWN_QUOTE = /^(?:open|close)-quote$/; // of every <q>; only the quotes that a page chose count

// Returns what a pseudo-element of an element shows, and whether it stands on lines of its own, or null.
function generated(el, pseudo) {
  const style = (viewOf(documentOf(el)) || window).getComputedStyle(el, pseudo);
  const content = style.content;
  if (content === "none" || content === "normal" || content === '""' || isHiddenBox(style)) return null;
  if (tagOf(el) === "q" && style.quotes === "auto" && OWN_QUOTE.test(content)) return null;
  const values = /counter/.test(content) ? countersOf(documentOf(el)).get(el)?.[pseudo] : null;
  const text = contentText(content.slice(0, MAX_CONTENT), style, values).slice(0, MAX_GENERATED);
  // An effect draws the text of the element once more.
  if (!/\S/.test(text) || collapse(text) === collapse(textContentOf(el))) return null;
  const isInline = /^inline/.test(style.display);
  const gap = parseFloat(style.marginLeft) + parseFloat(style.marginRight);
  const isApart = style.display === "inline-block" || gap > 0;
  const isQuote = content.includes("-quote");
  return { text: isApart ? ` ${text} ` : text, isBlock: !isInline, isQuote };
}

const says = (text) => SAYS.test(text.replace(SHAPES, ""));

// Returns the same if it says anything.
function generatedWords(el, pseudo) {
  const found = generated(el, pseudo);
  return found && (found.isQuote || says(found.text)) ? found : null;
}

// Returns the marker of a list item if the page chose its text.
function markerOf(el, style) {
  const type = style.listStyleType, found = generated(el, "::marker");
  if (found || !type.startsWith('"')) return found && says(found.text) ? found : null;
  const text = contentText(type, style, null);
  return says(text) ? { text, isBlock: false } : null;
}

// Returns what is drawn on an element without any words of its own, such as a cross.
function signOf(el) {
  for (const each of [el, ...[...childElementsOf(el)].slice(0, 3)]) {
    for (const pseudo of ["::before", "::after"]) {
      const found = generated(each, pseudo);
      if (found) return collapse(found.text);
    }
  }
  return "";
}

const MAX_COUNTED = 20000; // elements, ...
const COUNTING_MS = 300; // ... and time for them; later ones have no number

let counters = new WeakMap(); // document -> its counters; begins anew with each look

// Returns for each element with counters in its generated text their values, as {pseudo: name -> values}.
//
// A counter lives from the element that resets it to the end of that element's parent. A counter that
// nobody has reset begins where it is first counted.
function countersOf(doc) {
  if (counters.has(doc)) return counters.get(doc);
  const found = new Map(), alive = new Map(); // name -> [{parent, value}], the innermost last
  counters.set(doc, found);
  const view = viewOf(doc) || window;
  const until = performance.now() + COUNTING_MS;
  let left = MAX_COUNTED;
  const pairs = (text) => text === "none" ? []
    : [...text.matchAll(/(\S+) (-?\d+)/g)].map(([, name, number]) => [name, Number(number)]);
  const count = (style, parent) => {
    for (const [name, value] of pairs(style.counterReset)) {
      if (!alive.has(name)) alive.set(name, []);
      const stack = alive.get(name), last = stack.at(-1);
      if (last?.parent === parent) last.value = value;
      else stack.push({ parent, value });
    }
    for (const [text, isSet] of [[style.counterIncrement, false], [style.counterSet, true]]) {
      for (const [name, number] of pairs(text)) {
        if (!alive.get(name)?.length) alive.set(name, [{ parent, value: 0 }]);
        const last = alive.get(name).at(-1);
        last.value = isSet ? number : last.value + number;
      }
    }
  };
  const note = (el, pseudo) => {
    const style = view.getComputedStyle(el, pseudo);
    if (pseudo !== "::marker" && style.content === "none") return;
    if (pseudo !== "::marker") count(style, el);
    const names = [...style.content.slice(0, MAX_CONTENT).matchAll(/counters?\(([^,)"]*)/g)];
    if (!names.length) return;
    const values = new Map(names.map(([, name]) =>
      [name.trim(), (alive.get(name.trim()) || []).map((each) => each.value)]));
    found.set(el, { ...found.get(el), [pseudo]: values });
  };
  const visit = (el, parent, depth) => {
    if (left-- <= 0 || depth > MAX_NESTING || performance.now() > until) return;
    const style = view.getComputedStyle(el);
    if (style.display === "none") return;
    count(style, parent);
    if (style.display === "list-item") note(el, "::marker");
    note(el, "::before");
    for (const child of childElementsOf(el)) visit(child, el, depth + 1);
    note(el, "::after");
    for (const stack of alive.values()) while (stack.at(-1)?.parent === el) stack.pop();
  };
  if (rootElementOf(doc)) visit(rootElementOf(doc), null, 0);
  return found;
}

// Returns the text of counter(name, style) or counters(name, "between", style).
function counted(given, values) {
  const [name, ...more] = given.replace(/"[^]*"/, "").split(",").map((part) => part.trim());
  const between = /"((?:[^"\\]|\\.)*)"/.exec(given), style = more.at(-1) || "decimal";
  if (!values) return "";
  const known = values.get(name), all = known?.length ? known : [0];
  const shown = between ? all : all.slice(-1);
  return shown.map((value) => numeral(value, style)).join(between ? unescape(between[1]) : "");
}

const ROMAN = [[1000, "m"], [900, "cm"], [500, "d"], [400, "cd"], [100, "c"], [90, "xc"], [50, "l"],
  [40, "xl"], [10, "x"], [9, "ix"], [5, "v"], [4, "iv"], [1, "i"]];

function numeral(value, style) {
  let text = String(value);
  if (style === "decimal-leading-zero") return text.padStart(2, "0");
  if (/alpha|latin/.test(style) && value > 0) {
    for (text = ""; value > 0; value = Math.floor((value - 1) / 26)) {
      text = String.fromCharCode(97 + (value - 1) % 26) + text;
    }
  } else if (/roman/.test(style) && value > 0 && value < 4000) {
    text = "";
    for (const [size, sign] of ROMAN) for (; value >= size; value -= size) text += sign;
  }
  return style.startsWith("upper") ? text.toUpperCase() : text;
}
