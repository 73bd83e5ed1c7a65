// Actions on elements, and the functions that Python calls.

const find = (id) => {
  const el = elements.get(id)?.deref();
  return el && isConnected(el) ? el : null;
};

// Returns the point to press for element `id`, in pixels of the viewport of this frame's page.
//
// `at` (null: the middle of a visible rectangle) is a point from the element's corner: x and y, in
// pixels, or hundredths of its size if `percent`. With `under`, other elements may cover the point.
function locate(id, at, under) {
  const el = find(id);
  deadline = performance.now() + 1000;
  if (!el) return { error: "gone" };
  const target = hiddenBehindLabel(el)
    ? [...labelsOf(el)].find((label) => rectsOf(label).length) || el : el;
  const view = viewOf(documentOf(el)) || window;
  const middles = () => rectsOf(target).map((r) =>
    at ? placeIn(boxOf(target), at) : [r.x + r.width / 2, r.y + r.height / 2]);
  const inView = ([x, y]) => x >= 0 && y >= 0 && x < view.innerWidth && y < view.innerHeight;
  let points = middles();
  if (!points.length) return { error: "invisible" };
  // a transparent control may lie over the label that stands for it
  const isReached = (point) => under || reaches(target, ...point) ||
    (target !== el && reaches(el, ...point));
  const isShown = (point) => inView(point) && !isScrolledAway(target, ...point);
  if (!points.some((point) => isShown(point) && isReached(point))) {
    scrollIntoView(target, { block: "center", inline: "nearest", behavior: "instant" });
    points = middles();
    if (at && !inView(points[0])) { // the element is larger than the window
      const [left, top] = [points[0][0] - view.innerWidth / 2, points[0][1] - view.innerHeight / 2];
      scrollBy(scrollingElementOf(documentOf(el)) || target, { left, top, behavior: "instant" });
      points = middles();
    }
  }
  const finer = at ? [] : rectsOf(target).flatMap((r) => [[0.25, 0.5], [0.75, 0.5], [0.5, 0.2], [0.5, 0.8]]
    .map(([u, v]) => [r.x + u * r.width, r.y + v * r.height]));
  const point = [...points, ...finer].find((p) => inView(p) && isReached(p));
  const [px, py] = point || points[0];
  aim = { id, point: [px, py], hit: hitTest(documentOf(el), px, py) };
  let x = px, y = py;
  for (let w = view; w.frameElement; w = w.parent) {
    const corner = insideOf(w.frameElement);
    x += corner.x;
    y += corner.y;
  }
  const over = point ? null : hitTest(documentOf(el), px, py);
  const role = roleOf(el, styleOf(el));
  const cover = over ? `${tagOf(over)} ${textOf(over).slice(0, 40)}`.trim() : "nothing";
  return { x, y, role, name: nameOf(el, role), tag: tagOf(el),
    type: tagOf(el) === "input" ? el.type : "",
    disabled: matches(el, ":disabled"), readonly: el.readOnly === true,
    several: el.multiple === true, editable: el.isContentEditable === true,
    editor: matches(el, EDITORS),
    outside: Boolean(at) && !isWithin(boxOf(target), ...points[0]),
    covered: point ? "" : cover };
}

// Returns whether the point that `locate` found for element `id` hits what it hit then.
function isAimedAt(id) {
  const el = find(id);
  if (!el || aim.id !== id) return false;
  const hit = hitTest(documentOf(el), ...aim.point);
  return hit === aim.hit || isInside(hit, el);
}
let aim = {};

const placeIn = (box, at) => at.percent
  ? [box.x + box.width * at.x / 100, box.y + box.height * at.y / 100] : [box.x + at.x, box.y + at.y];
const isWithin = (box, x, y) => // the right and lower edges belong to the element in percent
  x >= box.x && y >= box.y && x <= box.x + box.width && y <= box.y + box.height;

// Focuses a field; with `all`, selects its text, so that typing replaces it.
function focus(id, all) {
  const el = find(id);
  if (!el) return false;
  ensureFocus(el);
  if (!all) return true;
  secretFields.delete(el);
  if (!isForm(el) && typeof el.select === "function") el.select();
  else (viewOf(documentOf(el)) || window).getSelection().selectAllChildren(el);
  return true;
}
function ensureFocus(el) {
  // the body of a frame is active in its document also while another document has the focus
  if (!hasFocus(documentOf(el))) (viewOf(documentOf(el)) || window).focus();
  if (!isInside(deepActive(el), el)) focusOn(el);
}

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
  const el = find(id);
  if (!isInside(deepActive(el), el)) return { error: "unfocused" };
  const before = secretFields.get(el) ?? el.value ?? textContentOf(el);
  secretFields.set(el, all ? shown : before + shown);
  return insertText(documentOf(el), "insertText", false, text) ? {} : { error: "refused" };
}
function deepActive(el) {
  let active = activeIn(documentOf(el));
  while (active && shadowOf(active) && activeIn(shadowOf(active))) active = activeIn(shadowOf(active));
  return active;
}

function dispatchChange(el) {
  el.dispatchEvent(new Event("input", { bubbles: true, composed: true }));
  el.dispatchEvent(new Event("change", { bubbles: true }));
}

// Finds an option by its label: exact, then ignoring case, then by prefix or part.
function optionOf(el, label) {
  const wanted = collapse(label), low = wanted.toLowerCase();
  const options = [...el.options].filter((option) => !option.disabled);
  const test = (way) => options.find((option) => way(collapse(option.label), option.value));
  return wanted && (test((text) => text === wanted) || test((text) => text.toLowerCase() === low) ||
    test((_, value) => value === label) || test((text) => plainBrackets(text) === plainBrackets(wanted)) ||
    test((text) => text.toLowerCase().startsWith(low)) ||
    test((text) => text.toLowerCase().includes(low)));
}
const OPENING = "[(\u27e6", CLOSING = "])\u27e7"; // brackets that a reader may see for each other
const plainBrackets = (text) => [...text].map((c) =>
  OPENING.includes(c) ? "(" : CLOSING.includes(c) ? ")" : c === "`" ? "'" : c).join("");

// Selects the options with these labels and no others. A list of one option has one label.
function selectOptions(id, labels) {
  const el = find(id), chosen = labels.map((label) => optionOf(el, label));
  const missing = chosen.findIndex((option) => !option);
  if (missing >= 0) {
    const known = [...el.options].filter((option) => !option.disabled);
    return { missing: labels[missing], known: known.map((option) => collapse(option.label)) };
  }
  el.focus();
  if (el.multiple) for (const option of el.options) option.selected = chosen.includes(option);
  else chosen[0].selected = true;
  dispatchChange(el);
  return {};
}

const isField = (el) => tagOf(el) === "textarea" || tagOf(el) === "input";

// Returns the text of an editable or other element as [text, parts]; a part is a text node and
// where it begins in the text. Blocks and line breaks begin a new line.
function partsOf(el) {
  let text = "";
  const parts = [];
  const visit = (node, depth) => {
    if (nodeTypeOf(node) === 3) { parts.push([node, text.length]); text += node.data; return; }
    if (nodeTypeOf(node) !== 1 || depth > MAX_NESTING) return;
    if (SKIPPED.has(tagOf(node)) || isField(node)) return;
    const style = styleOf(node);
    if (style.display === "none") return;
    const inline = /^(inline|contents)/.test(style.display) && tagOf(node) !== "br";
    if (!inline) text += "\n";
    for (const child of childNodesOf(node)) visit(child, depth + 1);
    if (!inline) text += "\n";
  };
  for (const child of childNodesOf(el)) visit(child, 0);
  return [text, parts];
}

// Returns the place of words in a text, as [start, end], or null. White space and brackets of a
// reader may be others than the text's.
function findWords(text, words, from = 0) {
  const pattern = plainBrackets(collapse(words)).split(" ").map((word) =>
    word.replace(/[.*+?^${}()|[\]\\]/g, "\\$&")).join("\\s+");
  if (!pattern) return null;
  const search = (flags) => {
    const searched = new RegExp(pattern, flags);
    searched.lastIndex = from;
    return searched.exec(plainBrackets(text));
  };
  const match = search("g") || search("gi");
  return match && [match.index, match.index + match[0].length];
}

function selectInField(el, start, end) {
  try { el.setSelectionRange(start, end); return true; } catch { return false; } // not of this type
}
// Returns the text node and the offset in it at an index of a text, or just after that index.
const placeAt = ([, parts], index, after = 0) => {
  const [node, start] = parts.findLast(([, start]) => start <= index) || parts[0];
  return [node, Math.max(0, Math.min(index + after - start, node.data.length))];
};
const selectionOf = (el) => (viewOf(documentOf(el)) || window).getSelection();

// Puts the cursor at the end of a field, or with `words` before them.
function placeCursor(id, words) {
  const el = find(id);
  if (!el) return { error: "gone" };
  ensureFocus(el);
  if (isField(el)) {
    const place = words ? findWords(el.value, words) : [el.value.length];
    if (!place) return { error: "unfound" };
    return selectInField(el, place[0], place[0]) ? {} : { error: words ? "unplaced" : "end" };
  }
  const selection = selectionOf(el);
  if (!words) {
    selection.selectAllChildren(el);
    selection.collapseToEnd();
    return {};
  }
  const all = partsOf(el), place = findWords(all[0], words);
  if (!place) return { error: "unfound" };
  selection.collapse(...placeAt(all, place[0]));
  return {};
}

// Selects text: all of an element, or what begins with `first` and ends with `last` (empty: with
// `first`). Without an `id`, the text may stand anywhere on the page.
function selectText(id, first, last) {
  const el = id === null ? bodyOf(document) : find(id);
  if (!el) return { error: "gone" };
  if (id !== null) scrollIntoView(el, { block: "nearest", behavior: "instant" });
  const all = isField(el) ? [el.value, null] : partsOf(el);
  const start = first ? findWords(all[0], first) : [0, all[0].length];
  if (!start) return { missing: first };
  const end = last ? findWords(all[0], last, start[1]) : start;
  if (!end) return { missing: last };
  if (isField(el)) {
    focusOn(el);
    return selectInField(el, start[0], end[1]) ? {} : { error: "unplaced" };
  }
  if (!all[1].length) return { error: "empty" };
  if (el.isContentEditable) ensureFocus(el);
  const [from, to] = [placeAt(all, start[0]), placeAt(all, end[1] - 1, 1)];
  selectionOf(el).setBaseAndExtent(...from, ...to);
  return {};
}

// Sets the value of date, time, color and range inputs; key presses would depend on the locale.
function setValue(id, value, shown) {
  const el = find(id), before = el.value;
  el.focus();
  el.value = value;
  if (value && el.value === "") { el.value = before; return false; }
  if (shown) secretFields.set(el, shown);
  else secretFields.delete(el);
  dispatchChange(el);
  return true;
}

// Scrolls the page by a window; x and y are -1, 0 or 1.
function scroll(x, y) {
  deadline = performance.now() + 1000;
  const moving = findScroller();
  if (!moving) return false;
  const before = [scrollLeftOf(moving), scrollTopOf(moving)];
  const isRoot = moving === scrollingElementOf(document);
  const height = isRoot ? innerHeight : clientHeightOf(moving);
  const width = isRoot ? innerWidth : clientWidthOf(moving);
  scrollBy(moving, { left: x * width, top: y * height, behavior: "instant" });
  return scrollLeftOf(moving) !== before[0] || scrollTopOf(moving) !== before[1];
}

function scrolls(node, isVertical) {
  if (nodeTypeOf(node) !== 1) return false;
  const size = isVertical ? clientHeightOf(node) : clientWidthOf(node);
  const whole = isVertical ? scrollHeightOf(node) : scrollWidthOf(node);
  if (whole <= size + 1) return false;
  const style = styleOf(node), way = isVertical ? style.overflowY : style.overflowX;
  return node === scrollingElementOf(documentOf(node)) ? way !== "hidden" && way !== "clip"
    : SCROLLS.test(way);
}

// Returns the nearest area around an element, itself included, that scrolls along an axis, or null.
function scrollerOf(el, isVertical) {
  let node = el;
  while (node && !scrolls(node, isVertical)) {
    node = parentOf(node) || (isDocument(node) ? viewOf(node)?.frameElement : null);
  }
  return node;
}

// Returns the uses of an element (page.py); areas that scroll are nodes of their own.
function usesOf(el) {
  const uses = [], tag = tagOf(el), type = tag === "input" ? el.type : "";
  const isEditable = el.isContentEditable === true;
  if (tag === "textarea" || isEditable || matches(el, EDITORS)) uses.push("lines");
  if (isEditable) uses.push("format");
  if (tag === "select" && el.multiple) uses.push("several");
  if (type === "file") uses.push("file");
  if (["canvas", "svg"].includes(tag)) uses.push("point");
  if (matches(el, DRAGGABLE) || /grab|move/.test(styleOf(el).cursor)) uses.push("drag");
  return uses;
}

// Scrolls the nearest area around element `id` by its own size; x and y are -1, 0 or 1.
function scrollArea(id, x, y) {
  const el = find(id);
  if (!el) return { error: "gone" };
  const area = scrollerOf(el, y !== 0);
  if (!area) return { error: "fixed" };
  const before = [scrollLeftOf(area), scrollTopOf(area)];
  scrollBy(area, { left: x * clientWidthOf(area), top: y * clientHeightOf(area), behavior: "instant" });
  return { moved: before[0] !== scrollLeftOf(area) || before[1] !== scrollTopOf(area) };
}

const QUIET_MS = 500; // without a change, a page is quiet

// Resolves when the page has changed and is quiet again, or after `mostMs` milliseconds.
const settled = (mostMs) => new Promise((done) => {
  let timer = 0;
  isActing = true; // what changes now is not the page's own motion
  const finish = () => {
    note(observer.takeRecords());
    isActing = false;
    changed.disconnect();
    done(true);
  };
  const changed = new MutationObserver((records) => {
    if (records.every(({ target }) => restless.has(target))) return;
    clearTimeout(timer);
    timer = setTimeout(finish, QUIET_MS);
  });
  const all = { subtree: true, childList: true, characterData: true, attributes: true };
  for (const doc of documentsOf(document)) changed.observe(doc, all);
  setTimeout(finish, mostMs);
});

// Resolves after `ms` milliseconds, one animation frame and one task, in which the page can react.
const nextFrame = async (ms = 0) => {
  if (ms) await new Promise((done) => setTimeout(done, ms));
  return Promise.race([
    new Promise((done) => requestAnimationFrame(() => setTimeout(done, 0))),
    new Promise((done) => setTimeout(done, 50)), // a background tab draws no frames
  ]);
};

// Resolves when a whole frame has been drawn.
const drawn = () => Promise.race([
  new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done()))),
  new Promise((done) => setTimeout(done, 250)), // a background tab draws no frames
]);

globalThis.agentkv = { walk, hear, nextFrame, locate, focus, selectOptions, setValue, scroll, pixels,
  drawn, isAimedAt, origins, insertSecret, placeCursor, selectText, scrollArea, settled, beginAction, due, noteTooltip,
  readSheet,   element: find,
  frame: (index) => frames[index], title: () => titleOf(document).slice(0, MAX_TEXT) };
