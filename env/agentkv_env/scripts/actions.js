// Actions on elements, and the functions that Python calls.

const find = (id) => {
  const el = elements.get(id)?.deref();
  return el && isConnected(el) ? el : null;
};

// Returns the point to press for element `id`, in pixels of the viewport of this frame's page.
//
// `at` (null: the middle of a visible rectangle) is a point from the element's corner: x and y, in
// pixels as the viewport shows them, or hundredths of the element's size if `percent`. `place`
// is this page's in the viewport. With `under`, other elements may cover the
// point.
function locate(id, at, under, place) {
  const el = find(id);
  deadline = performance.now() + 1000;
  withModal = new WeakMap();
  if (!el) return { error: "gone" };
  const target = hiddenBehindLabel(el)
    ? [...labelsOf(el)].find((label) => rectsOf(label).length) || el : el;
  const view = viewOf(documentOf(el)) || window;
  const scales = scalesOf(compose(place, placeOfDocument(el)));
  const middles = () => rectsOf(target).map((r) =>
    at ? placeIn(boxOf(target), at, scales) : pressedPoint(target, r));
  const inView = (point) => isInWindow(view, point);
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
  const role = roleOf(el, styleOf(el)), name = nameOf(el, role);
  aim = { id, name, point: [px, py], hit: hitTest(documentOf(el), px, py), document: documentOf(el) };
  const { x, y, covered, bent } = outwardAll(framesAround(el), [px, py]);
  const cover = point ? (under ? "" : covered) : coverName(aim.hit);
  const type = tagOf(el) === "input" ? el.type : "";
  return { x, y, role, name, tag: tagOf(el), type,
    disabled: saysDisabled(el), readonly: el.readOnly === true, inert: isInert(el),
    several: el.multiple === true, editable: el.isContentEditable === true,
    editor: matches(el, EDITORS), segment: isSpinButton(el),
    writable: ["textbox", "combobox"].includes(role) && isWritable(el),
    room: isField(el) && type !== "number" && el.maxLength >= 0 ? el.maxLength : null,
    outside: Boolean(at) && !isWithin(boxOf(target), ...points[0]),
    covered: cover, bent };
}
const coverName = (over) => over ? `${tagOf(over)} ${textOf(over).slice(0, 40)}`.trim() : "nothing";

// Returns where a point in the innermost of some frames is drawn in this document, what covers it, and
// whether a perspective bends one of the frames, so that the point is elsewhere.
function outwardAll(around, point) {
  let covered = "", bent = false;
  for (const frame of around) {
    bent ||= turnOf(frame).isBent;
    const outer = outward(frame, point);
    point = outer.point;
    if (outer.isOut) covered ||= coverName(outer.over);
  }
  return { x: point[0], y: point[1], covered, bent };
}

// Returns the same for a point of the document in frame `id`.
function through(id, point) {
  const frame = find(id);
  return frame ? outwardAll([frame, ...framesAround(frame)], point) : { error: "gone" };
}

// Returns whether the point that `locate` found for element `id` hits what it hit then.
function isAimedAt(id) {
  const el = find(id);
  if (!el || aim.id !== id) return false;
  const hit = hitTest(documentOf(el), ...aim.point);
  return hit === aim.hit || isInside(hit, el);
}
let aim = {};

const placeIn = (box, at, [across, down]) => at.percent
  ? [box.x + box.width * at.x / 100, box.y + box.height * at.y / 100]
  : [box.x + at.x / across, box.y + at.y / down];
const isWithin = (box, x, y) => // the right and lower edges belong to the element in percent
  x >= box.x && y >= box.y && x <= box.x + box.width && y <= box.y + box.height;

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
  if (["canvas", "svg", "audio", "video"].includes(tag)) uses.push("point");
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

globalThis.agentkv = { walk, hear, hosts, adopt, nextFrame, locate, through, focus, held, selectOptions,
  selectedOptions, setValue, sequence, enterPart, slider, scroll, pixels, drawn, isAimedAt, origins,
  insertSecret, insertSecretPart, placeCursor, selectText, scrollArea, settled, beginAction, due,
  noteTooltip, readSheet, element: find,
  frame: (index) => frames[index], title: () => titleOf(document).slice(0, MAX_TEXT) };
