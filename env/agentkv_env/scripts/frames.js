// Frames: where the document of a frame is drawn, however the page scales, turns or zooms it.
//
// The place of a document is {x, y, m}: its point (u, v) is drawn at (x + a u + c v, y + b u + d v)
// with m = [a, b, c, d]; m is null where nothing scales or turns the document.

const outOf = (at, [u, v]) => at.m
  ? [at.x + at.m[0] * u + at.m[2] * v, at.y + at.m[1] * u + at.m[3] * v] : [at.x + u, at.y + v];

function into(at, [x, y]) {
  const left = x - at.x, top = y - at.y;
  if (!at.m) return [left, top];
  const [a, b, c, d] = at.m, area = a * d - b * c;
  return area ? [(d * left - c * top) / area, (a * top - b * left) / area] : [-1, -1]; // edge-on
}

// Returns the place in the viewport of a document at `inner` in a document at `outer`.
function compose(outer, inner) {
  const [x, y] = outOf(outer, [inner.x, inner.y]);
  if (!outer.m) return { x, y, m: inner.m };
  const [a, b, c, d] = outer.m, [e, f, g, h] = inner.m || [1, 0, 0, 1];
  return { x, y, m: [a * e + c * f, b * e + d * f, a * g + c * h, b * g + d * h] };
}

// Returns the lengths of a pixel of the document along its axes, in pixels of the viewport.
const scalesOf = (at) =>
  at.m ? [Math.hypot(at.m[0], at.m[1]) || 1, Math.hypot(at.m[2], at.m[3]) || 1] : [1, 1];

// Returns the rectangle around a rectangle of a document at `at`.
function shift(rect, at) {
  const { x, y, width, height } = rect;
  if (!at.m) return { x: x + at.x, y: y + at.y, width, height };
  const corners = [[x, y], [x + width, y], [x, y + height], [x + width, y + height]]
    .map((corner) => outOf(at, corner));
  const [xs, ys] = [0, 1].map((axis) => corners.map((corner) => corner[axis]));
  const left = Math.min(...xs), top = Math.min(...ys);
  return { x: left, y: top, width: Math.max(...xs) - left, height: Math.max(...ys) - top };
}

const UNTURNED = /^(?:inline|contents)$/; // values of `display` of boxes that are never transformed
const flat = (matrix) => new DOMMatrix([matrix.a, matrix.b, matrix.c, matrix.d, 0, 0]);

// Returns how the styles of a box itself scale and turn it, or null.
function ownTurn(style) {
  const { rotate, scale, transform } = style, depth = style.translate.split(" ")[2];
  if (transform === "none" && rotate === "none" && scale === "none" && !depth) return null;
  const axes = { x: "1,0,0", y: "0,1,0", z: "0,0,1" }, turn = rotate.split(" ");
  const turned = rotate === "none" ? "" : turn.length === 1 ? `rotate(${rotate})`
    : `rotate3d(${axes[turn[0]] || turn.slice(0, 3).join()},${turn.at(-1)})`;
  const sizes = scale.split(" ");
  const scaled = scale === "none" ? "" : `scale${sizes.length > 2 ? "3d" : ""}(${sizes.join()})`;
  try {
    return new DOMMatrix(`${depth ? `translateZ(${depth})` : ""} ${turned} ${scaled} ${
      transform === "none" ? "" : transform}`.trim());
  } catch { return null; } // a form of the future
}

// Whether a matrix leaves a plane without depth and in parallel lines.
const isFlat = ({ m13, m14, m23, m24, m34, m43 }) =>
  [m13, m14, m23, m24, m34, m43].every((number) => Math.abs(number) < 1e-6);

// Returns how the content of a frame or an image is turned: m of its place, from all boxes around it and
// its zoom, and whether a perspective bends it, which m does not tell.
function turnOf(el) {
  let turn = null, isBent = false;
  for (let node = el; node; node = parentOf(node)) {
    if (nodeTypeOf(node) !== 1) continue;
    const style = styleOf(node);
    const own = node !== el && UNTURNED.test(style.display) ? null : ownTurn(style);
    if (turn && style.perspective !== "none" && !isFlat(turn)) isBent = true;
    if (turn && style.transformStyle !== "preserve-3d") turn = flat(turn);
    if (own) turn = turn ? own.multiply(turn) : own;
    if (own && (turn.m14 || turn.m24 || turn.m44 !== 1)) isBent = true;
  }
  const zoom = el.currentCSSZoom || 1;
  if (!turn && zoom === 1) return { m: null, isBent };
  const { a, b, c, d } = turn || new DOMMatrix();
  return { m: [a, b, c, d].map((number) => number * zoom), isBent };
}

// Returns the place of a frame's document, or of an image's pixels, in the document with the element:
// inside its border and padding.
function placeOf(el) {
  const style = styleOf(el), outer = boxOf(el), { m } = turnOf(el);
  const left = el.clientLeft + parseFloat(style.paddingLeft);
  const top = el.clientTop + parseFloat(style.paddingTop);
  if (!m) return { x: outer.x + left, y: outer.y + top, m };
  // The middle of a box is drawn in the middle of the rectangle around it.
  const middle = { x: outer.x + outer.width / 2, y: outer.y + outer.height / 2, m };
  const [x, y] = outOf(middle, [left - el.offsetWidth / 2, top - el.offsetHeight / 2]);
  return { x, y, m };
}

// Returns the rectangle of an element inside its border and padding, in pixels of its content.
function insideOf(el) {
  const style = styleOf(el);
  const { width, height } =
    turnOf(el).m ? { width: el.offsetWidth, height: el.offsetHeight } : boxOf(el);
  const left = el.clientLeft + parseFloat(style.paddingLeft);
  const top = el.clientTop + parseFloat(style.paddingTop);
  return { x: 0, y: 0, width: width - 2 * left, height: height - 2 * top };
}

// Returns the frames around the document of an element, the innermost first, as far as their
// documents may be read.
function framesAround(el) {
  const around = [], next = (node) => viewOf(documentOf(node))?.frameElement;
  for (let frame = next(el); frame; frame = next(frame)) around.push(frame);
  return around;
}

// Returns the place of the document of an element in the viewport of the document that we run in.
const placeOfDocument = (el) =>
  framesAround(el).reduce((at, frame) => compose(placeOf(frame), at), { x: 0, y: 0, m: null });

const isInWindow = (view, [x, y]) => x >= 0 && y >= 0 && x < view.innerWidth && y < view.innerHeight;

// Returns where a point of a frame's document is drawn in the document with the frame, whether the
// frame is not what lies there, and what does. Scrolls that document if the point is not in its window.
function outward(frame, inner) {
  const doc = documentOf(frame), view = viewOf(doc) || window;
  let point = outOf(placeOf(frame), inner);
  if (isScrolledAway(frame, ...point)) {
    scrollIntoView(frame, { block: "center", inline: "nearest", behavior: "instant" });
    point = outOf(placeOf(frame), inner);
  }
  if (!isInWindow(view, point)) {
    const [left, top] = [point[0] - view.innerWidth / 2, point[1] - view.innerHeight / 2];
    scrollBy(scrollingElementOf(doc) || rootElementOf(doc), { left, top, behavior: "instant" });
    point = outOf(placeOf(frame), inner);
  }
  const over = hitTest(doc, ...point);
  return { point, over, isOut: !over || !isInside(over, frame) };
}
