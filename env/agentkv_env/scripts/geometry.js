// Geometry: rectangles, hit tests and scrolling.
//
// The files of this folder are joined into one script with one scope (page_script.py). It runs in
// an isolated world, where the page's scripts can neither see these names nor patch the functions
// that they call. Reading does not change the page's DOM; a WeakMap of this world holds the ids of
// elements. All boxes are in pixels of the page's viewport.

const SCROLLS = /auto|scroll|overlay/; // values of `overflow-y`
const MIN_OVERLAP = 2; // pixels; a smaller overlap is a border or a rounding error

const MAX_TEXT = 20000; // characters of one text
const MAX_VALUE_READ = 200000; // characters of a field's value, of which Python shows the beginning
const MAX_NESTING = 800; // depth of elements; the parser stops at 512, but scripts can nest deeper

const collapse = (text, most = MAX_TEXT) => text.slice(0, most).replace(/\s+/g, " ").trim();
const styleOf = (el) => (viewOf(documentOf(el)) || window).getComputedStyle(el);

// After the deadline (performance.now), reading stops with what it has found.
let deadline = Infinity;
const isOverdue = () => performance.now() > deadline;

// Returns what `read` does, which has `ms` milliseconds, whatever is left to others.
function within(ms, read) {
  const before = deadline;
  deadline = performance.now() + ms;
  try { return read(); } finally { deadline = before; }
}

function intersect(rect, clip) {
  const x = Math.max(rect.x, clip.x), y = Math.max(rect.y, clip.y);
  const right = Math.min(rect.x + rect.width, clip.x + clip.width);
  const bottom = Math.min(rect.y + rect.height, clip.y + clip.height);
  return { x, y, width: Math.max(0, right - x), height: Math.max(0, bottom - y) };
}
const isSeen = (rect, clip) => {
  const part = intersect(rect, clip);
  return part.width >= Math.min(MIN_OVERLAP, rect.width) && part.width > 0 &&
    part.height >= Math.min(MIN_OVERLAP, rect.height) && part.height > 0 &&
    rect.width > 1 && rect.height > 1;
};
const rounded = (rect) => {
  const x = Math.round(rect.x), y = Math.round(rect.y);
  return [x, y, Math.round(rect.x + rect.width) - x, Math.round(rect.y + rect.height) - y];
};

// Returns the image with the map of an area, if any.
function imageOf(area) {
  const map = parentElementOf(area), name = map && attributeOf(map, "name");
  const images = name ? queryAllInDocument(documentOf(area), "img[usemap]") : [];
  return [...images].find((each) => attributeOf(each, "usemap") === `#${name}`);
}

// Returns the rectangle around an area of the image's map.
function areaRects(area, image, place = placeOf(image)) {
  const shape = (attributeOf(area, "shape") || "rect").toLowerCase();
  if (shape === "default") return [shift(insideOf(image), place)];
  const numbers = (attributeOf(area, "coords") || "").slice(0, MAX_TEXT).split(/[\s,]+/).map(Number);
  if (numbers.length < 3 || !numbers.every(Number.isFinite)) return [];
  const at = (x, y, width, height) => [shift({ x, y, width, height }, place)];
  const [a, b, radius] = numbers;
  if (shape.startsWith("circ")) return at(a - radius, b - radius, 2 * radius, 2 * radius);
  const xs = numbers.filter((_, index) => index % 2 === 0);
  const ys = numbers.filter((_, index) => index % 2 === 1);
  const left = Math.min(...xs), top = Math.min(...ys);
  return at(left, top, Math.max(...xs) - left, Math.max(...ys) - top);
}

// Returns the rectangles of an element, or of its content if it has none (a link around a float).
function rectsOf(el, depth = 0) {
  if (tagOf(el) === "area") {
    const image = imageOf(el);
    return image ? areaRects(el, image) : [];
  }
  const rects = [...clientRectsOf(el)].filter((rect) => rect.width > 1 && rect.height > 1);
  if (rects.length || depth > MAX_NESTING) return rects;
  for (const child of childElementsOf(el)) {
    const inner = rectsOf(child, depth + 1);
    if (inner.length) return inner;
  }
  return [];
}

// Returns the displayed children: those of the shadow root, or the nodes assigned to a slot.
const childrenOf = (el) => shadowOf(el) ? childNodesOf(shadowOf(el))
  : tagOf(el) === "slot" && el.assignedNodes?.().length ? el.assignedNodes() : childNodesOf(el);

function hitTest(doc, x, y) {
  let hit = hitIn(doc, x, y);
  while (hit && shadowOf(hit)) {
    const inner = hitIn(shadowOf(hit), x, y);
    if (!inner || inner === hit) break;
    hit = inner;
  }
  return hit;
}
const parentOf = (node) => (nodeTypeOf(node) === 1 || nodeTypeOf(node) === 3 ? slotOf(node) : null) ||
  parentNodeOf(node) || (nodeTypeOf(node) === 11 ? node.host : null) || null;
const isInside = (node, ancestor) => {
  for (; node; node = parentOf(node)) if (node === ancestor) return true;
  return false;
};
// Returns whether a press at x, y (own viewport) hits the element, its label or an ancestor.
function reaches(el, x, y) {
  const hit = hitTest(documentOf(el), x, y);
  if (!hit) return false;
  if (isInside(hit, el) || isInside(el, hit)) return true;
  return [...(labelsOf(el) || [])].some((label) => isInside(hit, label));
}

// Returns whether the point is outside a scrolling ancestor, which shows no part of the element there.
function isScrolledAway(el, x, y) {
  for (let node = parentOf(el); node; node = parentOf(node)) {
    if (nodeTypeOf(node) !== 1 || !SCROLLS.test(styleOf(node).overflowY)) continue;
    if (node === scrollingElementOf(documentOf(el)) || node === bodyOf(documentOf(el))) continue;
    const box = boxOf(node);
    if (x < box.x || y < box.y || x > box.x + box.width || y > box.y + box.height) return true;
  }
  return false;
}

const MIN_AREA = 40; // pixels; lower boxes that scroll are single lines
const MIN_REST = 8; // pixels; what is hidden of a box that scrolls less is padding

// Returns the states of a box that scrolls.
function scrollStates(el) {
  const above = scrollTopOf(el), height = clientHeightOf(el);
  if (height < MIN_AREA) return [];
  return [...(above > MIN_REST ? ["more above"] : []),
    ...(scrollHeightOf(el) - height - above > MIN_REST ? ["more below"] : [])];
}

function findScroller() {
  const root = scrollingElementOf(document) || rootElementOf(document), body = bodyOf(document);
  if (!root || !body || scrollHeightOf(root) > innerHeight + 1) return root;
  let best = root, area = (innerWidth * innerHeight) / 4; // a smaller box does not count
  for (const el of queryAllIn(body, "*")) {
    if (isOverdue()) break;
    if (scrollHeightOf(el) <= clientHeightOf(el) + 1 || clientHeightOf(el) < 100) continue;
    if (clientWidthOf(el) * clientHeightOf(el) <= area) continue;
    if (!SCROLLS.test(styleOf(el).overflowY)) continue;
    best = el;
    area = clientWidthOf(el) * clientHeightOf(el);
  }
  return best;
}
