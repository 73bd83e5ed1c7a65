// Layers: the dialog on top of a page, and what it covers. Motion: what loads and moves.

const MODALS = ":modal:not(:fullscreen),[aria-modal=true]";
const FULL = 0.9; // share of the viewport's width and height that a layer over the page takes

const MIN_COVERED = 3; // nodes; a layer over fewer, such as a link to the content, is the page itself

// Returns the element of `document` that shows `el`: itself, or the frame with it.
function inDocument(el) {
  let shown = el;
  while (shown && documentOf(shown) !== document) shown = viewOf(documentOf(shown))?.frameElement;
  return shown;
}

// Returns what a press at the middle of a node's box hits; `at` is the place of the document.
function hitOf(node, at, view) {
  const [x, y, width, height] = node.b;
  const part = intersect({ x, y, width, height }, view);
  return hitTest(document, ...into(at, [part.x + part.width / 2, part.y + part.height / 2]));
}

const isOver = (hit, el) => hit && !isInside(hit, el) && !isInside(el, hit) &&
  ![...(labelsOf(el) || [])].some((label) => isInside(hit, label));

// Returns the outermost layer with `hit` that does not hold `el`; `full`: and takes the viewport.
function layerOf(hit, el, full) {
  let layer = null;
  for (let node = hit; node && !(el && isInside(el, node)); node = parentOf(node)) {
    if (nodeTypeOf(node) !== 1 || !/fixed|absolute/.test(styleOf(node).position)) continue;
    const box = boxOf(node);
    if (!full || (box.width >= FULL * innerWidth && box.height >= FULL * innerHeight)) layer = node;
  }
  return layer;
}

// Returns the dialog that the page declares modal, and else the layer over all of the page.
function findModal(nodes, sources, at, view) {
  for (const el of [...queryAllInDocument(document, MODALS)].reverse()) {
    if (isOverdue()) return null;
    const box = boxOf(el), x = box.x + box.width / 2, y = box.y + box.height / 2;
    if (!isSeen(shift(box, at), view) || !isVisible(el)) continue;
    if (isInside(hitTest(document, x, y), el)) return el;
  }
  for (let index = 0; index < nodes.length && !isOverdue(); index++) {
    if (!nodes[index].s?.includes("covered")) continue;
    const el = inDocument(sources[index]), hit = hitOf(nodes[index], at, view);
    const cover = el && hit ? layerOf(hit, el, true) : null;
    if (!cover) continue;
    // The dialog lies in the layer that covers the page, or on it.
    const middle = hitTest(document, innerWidth / 2, innerHeight / 2);
    return !middle || isInside(middle, cover) ? cover : layerOf(middle, el, false);
  }
  return null;
}

// Returns the nodes, those of an open dialog first and without those that it covers, and their
// number. A veil without anything to read is no dialog.
function underModal(nodes, sources, at, view) {
  const modal = isOverdue() ? null : findModal(nodes, sources, at, view);
  if (!modal) return { nodes, covered: 0 };
  const inside = [], others = [];
  nodes.forEach((node, index) => {
    const el = isOverdue() ? null : inDocument(sources[index]);
    if (!el || isInside(el, modal)) inside.push(node);
    else if (!isOver(hitOf(node, at, view), el)) others.push(node);
  });
  const covered = nodes.length - inside.length - others.length;
  if (!inside.length || (!matches(modal, MODALS) && covered < MIN_COVERED)) return { nodes, covered: 0 };
  return { nodes: [...inside, ...others], covered };
}

// Returns the nodes without doubled controls: of two in a row with the same role, name and place, as
// where a library draws a control over the native one, the one that a press reaches.
function withoutTwins(nodes, sources) {
  const kept = [], keptSources = [];
  nodes.forEach((node, index) => {
    const last = kept.at(-1);
    if (last && areTwins(last, node)) {
      if (last.n && !last.s?.includes("covered")) return;
      kept.pop();
      keptSources.pop();
    }
    kept.push(node);
    keptSources.push(sources[index]);
  });
  return [kept, keptSources];
}

function areTwins(one, other) {
  if (one.k !== "element" || other.k !== "element" || one.r !== other.r) return false;
  if (one.n === other.n ? !one.n : one.n && other.n) return false; // one of them may have no name
  const states = (node) => (node.s || []).filter((state) => state !== "covered").join();
  if (one.v !== other.v || states(one) !== states(other)) return false;
  const [first, second] = [one.b, other.b].map(([x, y, width, height]) => ({ x, y, width, height }));
  const part = intersect(first, second);
  const smaller = Math.min(first.width * first.height, second.width * second.height);
  return 2 * part.width * part.height >= smaller;
}

const isBusy = (at, view) => [...queryAllInDocument(document, "[aria-busy=true]")]
  .some((el) => !isOverdue() && isVisible(el) && isSeen(shift(boxOf(el), at), view));

const MIN_MOVING = 3; // fewer nodes that move are a detail of the page, our choice

// Returns how many nodes are in elements that move now and will rest; a spinner does not rest.
function countMoving(sources) {
  const targets = new Set();
  for (const animation of animationsOf(document)) {
    if (isOverdue()) return 0;
    const effect = animation.playState === "running" ? animation.effect : null;
    if (effect?.target && Number.isFinite(effect.getComputedTiming().endTime) && moves(effect)) {
      targets.add(effect.target);
    }
  }
  if (!targets.size) return 0;
  const isMoving = (el) => {
    for (let node = el; node; node = parentOf(node)) if (targets.has(node)) return true;
    return false;
  };
  const count = sources.filter((el) => !isOverdue() && isMoving(el)).length;
  return count < MIN_MOVING ? 0 : count;
}

const MOVES =
  /^(?:transform|translate|scale|rotate|left|right|top|bottom|width|height|margin|inset|max)/;
const moves = (effect) => effect.getKeyframes?.()
  .some((frame) => Object.keys(frame).some((name) => MOVES.test(name)));
