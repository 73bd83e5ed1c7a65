// Reads one document, and every same-origin frame and open shadow root in it, in reading order.

const ids = new WeakMap(); // element -> its number
const elements = new Map(); // number -> WeakRef(element)
const token = Math.random().toString(36).slice(2); // names this document
let frames = []; // cross-origin iframes met by the last walk

const MAX_NODES = 5000; // in one viewport

// The document's nodes as JSON: k kind, r role, n name, b box (x, y, width, height), i number,
// v value, o options, s states, p and h number and hash of a picture, q a picture that is not told
// itself; for a frame of another origin f its index and c the part of it that shows.
//
// Numbers go on from `firstId`; if `expected` names another document than this one, from 1. `at` is
// where this document's corner lies in the viewport, `view` the part of it that shows (null: all).
// After `mostMs` milliseconds, or as many nodes as no page has, it ends; `part` says so.
function walk(firstId, expected, at, view, mostMs) {
  const out = [];
  deadline = performance.now() + mostMs;
  let isPart = false;
  view ||= { x: 0, y: 0, width: innerWidth, height: innerHeight };
  let nextId = expected === null || expected === token ? firstId : 1;
  let pending = "", pendingBox = null; // text that goes on one line, not told yet
  frames = [];

  // What holds for a subtree. at: its document's corner; clip, absolute, window: what shows of its
  // boxes by their position; inside: its words are told already; hidden; pre: line breaks count.
  const state = (at, clip) =>
    ({ at, clip, absolute: clip, window: clip, inside: false, hidden: false, pre: false, depth: 0 });

  const flush = () => {
    const text = collapse(pending);
    if (text && pendingBox) out.push({ k: "text", r: "text", n: text, b: rounded(pendingBox) });
    pending = "";
    pendingBox = null;
  };
  const idOf = (el) => {
    if (!ids.has(el)) {
      elements.set(nextId, new WeakRef(el));
      ids.set(el, nextId++);
    }
    return ids.get(el);
  };

  function emit(el, role, rect, at) {
    flush();
    const node = { k: "element", r: role, n: nameOf(el, role), b: rounded(rect), i: idOf(el) };
    const value = valueOf(el, role), options = optionsOf(el), states = statesOf(el);
    const part = intersect(rect, view);
    const x = part.x + part.width / 2 - at.x, y = part.y + part.height / 2 - at.y;
    if (!reaches(el, x, y)) states.push("covered");
    if (value) node.v = value;
    if (options.length) node.o = options;
    if (states.length) node.s = states;
    out.push(node);
  }

  function text(node, s) {
    if (s.inside || s.hidden) return;
    if (!/\S/.test(node.data)) { pending += " "; return; }
    const range = newRange(documentOf(node));
    range.selectNodeContents(node);
    const rect = shift(range.getBoundingClientRect(), s.at);
    if (!isSeen(rect, s.clip)) return;
    if (s.pre && node.data.includes("\n")) {
      for (const line of node.data.slice(0, MAX_TEXT).split("\n")) {
        pending += line;
        pendingBox ||= rect;
        flush();
      }
      return;
    }
    pending += node.data.slice(0, MAX_TEXT);
    if (!pendingBox) { pendingBox = rect; return; }
    const x = Math.min(pendingBox.x, rect.x), y = Math.min(pendingBox.y, rect.y);
    pendingBox = { x, y,
      width: Math.max(pendingBox.x + pendingBox.width, rect.x + rect.width) - x,
      height: Math.max(pendingBox.y + pendingBox.height, rect.y + rect.height) - y };
  }

  // `plain`: an image or canvas, whose pixels can be asked for; else a background or a drawing.
  function image(el, name, s, plain) {
    const rect = shift(boxOf(el), s.at);
    if (s.hidden || !isSeen(rect, s.clip)) return;
    flush();
    const node = { k: "text", r: "image", n: s.inside ? "" : name, b: rounded(rect) };
    const ready = !isOverdue() && (!plain || tagOf(el) === "canvas" || (el.complete && el.naturalWidth > 0));
    if (ready && rect.width >= MIN_PICTURE[0] && rect.height >= MIN_PICTURE[1]) {
      [node.p, node.h] = picture(el, plain);
    }
    if (s.inside) node.q = 1; // its link or button speaks for it; only what is written in it counts
    if (node.n || node.p) out.push(node);
  }

  function children(el, s) {
    for (const node of childrenOf(el)) {
      if (nodeTypeOf(node) === 3) text(node, s);
      else if (nodeTypeOf(node) === 1) element(node, s);
    }
  }

  function frame(el, s) {
    flush();
    const inner = shift(insideOf(el), s.at);
    const clip = intersect(inner, s.clip);
    if (s.hidden || clip.width < MIN_OVERLAP || clip.height < MIN_OVERLAP) return;
    let root = null;
    try { root = el.contentDocument && rootElementOf(el.contentDocument); } catch { root = null; }
    if (root) {
      element(root, { ...state({ x: inner.x, y: inner.y }, clip), depth: s.depth });
    } else {
      out.push({ k: "frame", f: frames.length, b: [inner.x, inner.y, inner.width, inner.height],
        c: [clip.x, clip.y, clip.width, clip.height] });
      frames.push(el);
    }
  }

  const shownRect = (el, s) =>
    rectsOf(el).map((rect) => shift(rect, s.at)).find((rect) => isSeen(rect, s.clip));

  // A label speaks for a control that hides behind it; elsewhere the control carries its words.
  function labels(el, s) {
    if (!hiddenBehindLabel(el.control)) return rectsOf(el.control).length > 0;
    const rect = shownRect(el, s);
    const role = roleOf(el.control, styleOf(el.control));
    if (rect && role && el.control.labels[0] === el) emit(el.control, role, rect, s.at);
    return true;
  }

  // A heading, or a table row without controls, is one line of text.
  function line(el, role, text, s) {
    const rect = shift(boxOf(el), s.at);
    if (!text || !isSeen(rect, s.clip)) return;
    flush();
    out.push({ k: "text", r: role, n: text, b: rounded(rect) });
  }

  function element(el, s) {
    const tag = tagOf(el);
    if (SKIPPED.has(tag)) return;
    if (isOverdue() || s.depth > MAX_NESTING || out.length > MAX_NODES) { isPart = true; return; }
    if (tag === "br") { flush(); return; }
    const style = styleOf(el);
    if (style.display === "none") return;
    if (style.display !== "contents" && !isVisible(el)) return;
    const control = CONTROLS.has(tag);
    const custom = control && ["checkbox", "radio", "file"].includes(el.type);
    if (style.opacity === "0" && !custom) return;
    const position = style.position;
    const clip = position === "fixed" ? s.window : position === "absolute" ? s.absolute : s.clip;
    s = { ...s, depth: s.depth + 1, clip, hidden: style.visibility !== "visible",
      pre: style.whiteSpace.startsWith("pre") };

    if (tag === "iframe" || tag === "frame") { frame(el, s); return; }
    const inline = style.display === "inline" || style.display === "contents";
    if (!inline) flush();

    if (tag === "img" || tag === "canvas") {
      const claimed = attributeOf(el, "role");
      const role = ROLES[claimed] || (hasAttribute(el, "onclick") ? "button" : "");
      if (!role || s.inside) {
        image(el, collapse(attributeOf(el, "aria-label") || el.alt || el.title || ""), s, true);
        return;
      }
    }
    if (tag === "svg" && !s.inside && svgName(el)) { image(el, svgName(el), s, false); return; }

    const role = s.hidden ? "" : roleOf(el, style);
    if (role) {
      const rect = shownRect(el, s);
      const shown = rect && !(style.opacity === "0" && hiddenBehindLabel(el));
      if (shown) emit(el, role, rect, s.at);
      if (control && tag !== "button") return;
      if (shown) s = { ...s, inside: true };
    }

    if (tag === "label" && el.control && !s.hidden && labels(el, s)) s = { ...s, inside: true };

    if (style.overflowX !== "visible" || style.overflowY !== "visible") {
      if (tag !== "body" && tag !== "html" && !inline) {
        s = { ...s, clip: intersect(shift(boxOf(el), s.at), s.clip) };
      }
    }
    if (position !== "static" || style.transform !== "none") s = { ...s, absolute: s.clip };

    if (!s.inside && !s.hidden) {
      if ((/^h[1-6]$/.test(tag) || attributeOf(el, "role") === "heading") &&
          !queryIn(el, ACTIVE)) {
        line(el, "heading", textOf(el), s);
        s = { ...s, inside: true };
      } else if (tag === "tr" && !queryIn(el, `${ACTIVE},img,canvas,table,iframe`)) {
        const cells = [...el.cells].map((cell) => textOf(cell)).filter((cell) => cell);
        line(el, "text", cells.join(" | "), s);
        return;
      }
    }
    // A picture behind other text is not read: the crop would show that text a second time.
    if (style.backgroundImage.includes("url(") && !collapse(textContentOf(el))) {
      image(el, "", s, false);
    }
    children(el, s);
    if (!inline) flush();
  }

  try {
    if (rootElementOf(document)) element(rootElementOf(document), state(at, view));
  } catch (error) {
    if (!(error instanceof RangeError)) throw error;
    isPart = true; // nested so deep that the stack is full
  }
  flush();
  const moving = findScroller(), top = moving ? scrollTopOf(moving) : 0;
  const room = moving ? scrollHeightOf(moving) - clientHeightOf(moving) : 0;
  return JSON.stringify({ token, url: location.href, title: titleOf(document).slice(0, MAX_TEXT),
    nodes: out, nextId, part: isPart || isOverdue(), above: Math.round(top),
    below: Math.max(0, Math.round(room - top)) });
}
