// Reads a document with its same-origin frames and open shadow roots, in reading order.

let ids = new WeakMap(); // element -> id
const elements = new Map(); // id -> WeakRef(element)
const token = Math.random().toString(36).slice(2); // identifies this document
let frames = []; // cross-origin frames found by the last walk
let highest = 0; // id of this document; a person's events are read between two walks of Python's

const forget = () => { ids = new WeakMap(); elements.clear(); highest = 0; };

const MAX_NODES = 5000; // in one viewport
const WORD = /[\p{L}\p{N}]+/gu;
const BREAKS = new Set([...SPACES, "pre-line"]); // values of `white-space` where line breaks count

// Returns the document's nodes as JSON. Fields of a node: k kind, r role, n name, b box (x, y,
// width, height), i id, v value, o options, s states, u uses, x what hovering reveals, w place in a row
// and l texts of its cells (rows.js), p and h number and hash of a picture, q 1 for a picture that is no
// node itself. A frame of another origin has f, its index, and c, its visible
// part.
//
// New ids count from `firstId`, or from 1 if `expected` is the token of another document. `at` is
// the position of this document in the viewport, `view` its visible part (null: all). The walk ends
// after `mostMs` milliseconds or `MAX_NODES` nodes; `part` is then true. `early` is true if nothing
// has arrived of a document that is still being parsed. `covered` is the number of nodes left out
// because an open dialog covers them, `moving` the number of those that an animation moves; `busy` is
// true if a visible part says that it is loading. `unsent`: see `takeUnsent`. `flashes` are texts that
// were shown for a moment; `mayChange` is true if something may still come; `sheets` are style sheets
// that `readSheet` should get. `hosts` is the number of elements that may have a closed shadow root
// (shadows.js).
function walk(firstId, expected, at, view, mostMs) {
  watch();
  findRevealed();
  beginRows();
  const said = new Set(); // what elements reveal, in words
  const out = [], sources = []; // nodes, and the element that each is of
  let numRead = 0; // nodes and pieces of text
  const put = (node, source) => { out.push(node); sources.push(source); numRead++; };
  deadline = performance.now() + mostMs;
  let isPart = false;
  view ||= { x: 0, y: 0, width: innerWidth, height: innerHeight };
  let nextId = Math.max(expected === null || expected === token ? firstId : 1, highest + 1);
  let pending = "", pendingBox = null, pendingSource = null; // text of the current line
  let generatedBox = null; // the box of the element with generated text in it
  let isCode = false; // whether that text is preformatted, so that its spaces count
  let isMidLine = false, isAfterBlank = false; // after an element; after a blank line of code
  frames = [];
  [suspects, others] = [[], []];
  [withModal, counters] = [new WeakMap(), new WeakMap()];
  const pageScroller = findScroller(); // the note of the page's own position tells of this one

  // The state of a subtree. at: position of its document; clip, absolute, window: visible area of
  // its static, absolute and fixed boxes; inside: an ancestor's name covers its text; hidden:
  // invisible; breaks: line breaks count; spaces: spaces count; struck: the text is deleted;
  // heading: the control that is the text of a heading; around: the frames of ours with the document.
  const state = (at, clip) =>
    ({ at, clip, absolute: clip, window: clip, inside: false, hidden: false, breaks: false,
      spaces: false, struck: false, heading: null, depth: 0, around: null });

  const flush = () => {
    const text = isCode ? pending.slice(0, MAX_TEXT).trimEnd() : collapse(pending);
    pendingBox ||= generatedBox;
    if (text && pendingBox) {
      const r = isCode ? "code" : "text", b = rounded(pendingBox);
      const isInCode = isCode && out.at(-1)?.r === "code";
      if (isAfterBlank && isInCode) put({ k: "text", r, n: "", b }, pendingSource);
      put({ k: "text", r, n: text, b }, pendingSource);
      isAfterBlank = false;
    }
    pending = "";
    pendingBox = generatedBox = null;
    isCode = false;
  };
  const endLine = () => { flush(); isMidLine = false; };
  const idOf = (el) => {
    if (!ids.has(el)) {
      elements.set(nextId, new WeakRef(el));
      highest = nextId;
      ids.set(el, nextId++);
    }
    return ids.get(el);
  };

  function emit(el, role, rect, s) {
    flush();
    isMidLine = true;
    const node = { k: "element", r: role, n: nameOf(el, role), b: rounded(rect), i: idOf(el) };
    const value = valueOf(el, role), options = optionsOf(el), states = statesOf(el);
    const part = intersect(rect, intersect(s.window, view));
    const middle = [part.x + part.width / 2, part.y + part.height / 2];
    if (s.heading === el || isNamedByHeading(el, node.n)) states.push("heading");
    if (!reaches(el, ...into(s.at, middle)) || isCoveredAround(s.around, middle)) states.push("covered");
    if (value) node.v = value;
    if (options.length) node.o = options;
    if (states.length) node.s = states;
    const uses = usesOf(el);
    if (uses.length) node.u = uses;
    put(node, el);
  }

  // Returns whether something covers one of the frames around a document at a point of the viewport.
  function isCoveredAround(around, point) {
    for (; around; around = around.next) {
      if (!reaches(around.frame, ...into(around.at, point))) return true;
    }
    return false;
  }

  function text(node, s) {
    if (s.inside || s.hidden) return;
    const data = withoutIcons(node.data.slice(0, MAX_TEXT)), lines = s.breaks ? data.split("\n") : [data];
    if (!s.spaces && !/\S/.test(data)) {
      pending += " ";
      if (lines.length > 1) endLine();
      return;
    }
    const range = newRange(documentOf(node));
    range.selectNodeContents(node);
    const rectOf = () => shift(range.getBoundingClientRect(), s.at);
    let rect = rectOf();
    if (!isSeen(rect, s.clip) && /\S/.test(data)) return;
    let start = 0;
    lines.forEach((line, index) => {
      if (index) {
        isAfterBlank ||= s.spaces && !/\S/.test(pending);
        endLine();
      }
      if (s.spaces && lines.length > 1 && /\S/.test(line)) {
        range.setStart(node, start);
        range.setEnd(node, start + line.length);
        rect = rectOf();
      }
      start += line.length + 1;
      if (!/\S/.test(line)) append(line, null, s.spaces);
      else if (isSeen(rect, s.clip)) {
        if (!pendingBox) pendingSource = parentOf(node);
        append(s.struck ? struck(line) : line, rect, s.spaces);
      }
    });
  }

  function append(piece, rect, spaces) {
    if (spaces && piece && !isMidLine && !isCode && !/\S/.test(pending)) {
      pending = "";
      isCode = true;
    }
    pending += isCode && !spaces ? piece.replace(/\s+/g, " ") : piece;
    if (!rect) return;
    numRead++;
    if (!pendingBox) { pendingBox = rect; return; }
    const x = Math.min(pendingBox.x, rect.x), y = Math.min(pendingBox.y, rect.y);
    pendingBox = { x, y,
      width: Math.max(pendingBox.x + pendingBox.width, rect.x + rect.width) - x,
      height: Math.max(pendingBox.y + pendingBox.height, rect.y + rect.height) - y };
  }

  // `plain`: an image or canvas with readable pixels; otherwise a background or an SVG.
  function image(el, name, s, plain) {
    const rect = shift(boxOf(el), s.at);
    if (s.hidden || !isSeen(rect, s.clip)) return;
    flush();
    const node = { k: "text", r: "image", n: s.inside ? "" : name, b: rounded(rect) };
    const ready = !isOverdue() && (!plain || tagOf(el) === "canvas" || (el.complete && el.naturalWidth > 0));
    if (ready && rect.width >= MIN_PICTURE[0] && rect.height >= MIN_PICTURE[1]) {
      [node.p, node.h] = picture(el, plain);
    }
    if (s.inside) node.q = 1; // its link or button has the name; only the text in the picture counts
    if (node.n || node.p) put(node, el);
  }

  // `box` is null where nothing is seen of the element itself.
  function children(el, s, style, box) {
    if (shadowOf(el)) {
      watchValidation(shadowOf(el));
      watchIn(shadowOf(el));
    }
    // Lines of code have their numbers, prompts and language there.
    const isDrawn = box && style.whiteSpace !== "pre";
    if (isDrawn && style.display === "list-item") drawn(markerOf(el, style), el, box);
    if (isDrawn) drawn(generatedWords(el, "::before"), el, box);
    for (const node of childrenOf(el)) {
      if (nodeTypeOf(node) === 3) text(node, s);
      else if (nodeTypeOf(node) === 1) part(node, s);
    }
    if (isDrawn) drawn(generatedWords(el, "::after"), el, box);
  }

  // Text that a style sheet draws has no box of its own.
  function drawn(found, el, box) {
    if (!found) return;
    if (found.isBlock) endLine();
    append(found.text, null, false);
    numRead++;
    generatedBox ||= box;
    pendingSource ||= el;
    if (found.isBlock) endLine();
  }

  // What reveals something under the mouse has a number: that of the first element in it, or its own.
  function part(el, s) {
    const names = revealed.get(el);
    if (!names) { element(el, s); return; }
    flush();
    const start = out.length;
    element(el, s);
    flush();
    const inside = out.slice(start).filter((node) => node.k !== "frame" && node.r !== "area");
    const node = inside.find((each) => each.i && !each.s?.includes("covered")) || inside[0];
    if (!node) return;
    if (!node.i) {
      const source = sources[out.indexOf(node)]; // the mouse goes to what can be seen
      const aim = cellsOf(source).find((cell) => !isHidden(cell)) || source;
      Object.assign(node, { k: "element", i: idOf(aim) });
      if (node.r === "text" || node.r === "code") node.r = "item";
    }
    const words = names.join("|");
    node.s = [...(node.s || []), "hover"];
    if (names.length && !said.has(words)) node.x = names; // once for all alike
    said.add(words);
  }

  function frame(el, s) {
    flush();
    const at = compose(s.at, placeOf(el));
    const inner = shift(insideOf(el), at);
    const clip = intersect(inner, s.clip);
    if (s.hidden || clip.width < MIN_OVERLAP || clip.height < MIN_OVERLAP) return;
    let root = null;
    try { root = el.contentDocument && rootElementOf(el.contentDocument); } catch { root = null; }
    if (root) {
      watchValidation(el.contentDocument);
      area(el, shift(boxOf(el), s.at), scrollingElementOf(el.contentDocument), s);
      const around = { frame: el, at: s.at, next: s.around };
      element(root, { ...state(at, clip), depth: s.depth, around });
    } else {
      put({ k: "frame", f: frames.length, b: [inner.x, inner.y, inner.width, inner.height],
        c: [clip.x, clip.y, clip.width, clip.height], at, n: areaName(el), i: idOf(el) }, el);
      frames.push(el);
    }
  }

  const shownRect = (el, s) =>
    rectsOf(el).map((rect) => shift(rect, s.at)).find((rect) => isSeen(rect, s.clip));

  // A label stands for the control that hides behind it; otherwise the control has the label's text.
  function labels(el, s) {
    if (!hiddenBehindLabel(el.control)) return rectsOf(el.control).length > 0;
    const rect = shownRect(el, s);
    const role = roleOf(el.control, styleOf(el.control));
    if (rect && role && el.control.labels[0] === el) emit(el.control, role, rect, s);
    return true;
  }

  // A box with more content than it shows begins with a line that says so.
  function area(el, rect, scroller, s) {
    const states = scroller && !s.inside && !s.hidden ? scrollStates(scroller) : [];
    if (!states.length || !isSeen(rect, s.clip)) return;
    put({ k: "element", r: "area", n: areaName(el), b: rounded(rect), i: idOf(el), s: states,
      u: ["area"] }, el);
  }

  // The areas of an image map follow their image.
  function mapAreas(image, s) {
    const usemap = attributeOf(image, "usemap"), name = usemap.startsWith("#") && usemap.slice(1);
    const place = name ? placeOf(image) : null;
    for (const area of name ? queryAllInDocument(documentOf(image), "map > area") : []) {
      if (isOverdue() || out.length > MAX_NODES) { isPart = true; return; }
      if (attributeOf(parentElementOf(area), "name") !== name) continue;
      const listens = hasAttribute(area, "onclick") || pressListeners.has(area);
      if (!listens && !hasAttribute(area, "href")) continue;
      const rect = areaRects(area, image, place).map((each) => shift(each, s.at))
        .find((each) => isSeen(each, s.clip));
      if (rect) emit(area, "link", rect, s);
    }
  }

  // Whether a name says all words of a text.
  const isIn = (text, name) => {
    const words = new Set(name.toLowerCase().match(WORD));
    return (text.toLowerCase().match(WORD) || []).every((word) => words.has(word));
  };

  // A heading, a table row without controls or a gauge is one line of text.
  function line(el, role, text, s, value = "", row = {}) {
    const rect = shift(boxOf(el), s.at);
    if (!(text || value) || !isSeen(rect, s.clip)) return;
    flush();
    put({ k: "text", r: role, n: text, b: rounded(rect), ...(value && { v: value }), ...row }, el);
  }

  // A player has a number if it shows its own controls or listens to presses.
  function player(el, tag, s) {
    const listens = hasAttribute(el, "onclick") || pressListeners.has(el);
    const rect = s.hidden || (isBackdrop(el) && !listens) ? null : shownRect(el, s);
    if (!rect) return;
    if (el.controls || listens) emit(el, tag, rect, s);
    else line(el, tag, nameOf(el, tag), s, playerValue(el));
  }

  function element(el, s) {
    const tag = tagOf(el);
    if (SKIPPED.has(tag) && !PLAYERS.has(tag)) return;
    if (isOverdue() || s.depth > MAX_NESTING || out.length > MAX_NODES) { isPart = true; return; }
    if (tag === "br") { endLine(); return; }
    const style = styleOf(el);
    if (style.display === "none") return;
    if (style.display !== "contents" && !isVisible(el)) return;
    const isControl = CONTROLS.has(tag);
    const custom = isControl && ["checkbox", "radio", "file"].includes(el.type);
    if (style.opacity === "0" && !custom && !selfRevealed.has(el)) return;
    const position = style.position;
    const clip = position === "fixed" ? s.window : position === "absolute" ? s.absolute : s.clip;
    s = { ...s, depth: s.depth + 1, clip, hidden: style.visibility !== "visible",
      breaks: BREAKS.has(style.whiteSpace), spaces: SPACES.has(style.whiteSpace),
      struck: s.struck || STRUCK.has(tag) };

    if (tag === "iframe" || tag === "frame") { frame(el, s); return; }
    const inline = style.display === "inline" || style.display === "contents";
    if (!inline) endLine();
    const start = out.length;

    if (PLAYERS.has(tag)) { player(el, tag, s); return; }
    const gauge = gaugeOf(el, tag);
    if (gauge && !s.hidden) {
      const name = gaugeName(el), value = gaugeValue(el, tag, gauge);
      line(el, gauge, name, s, value);
      if (gauge === tag || tag === "progress" || isIn(textOf(el), `${name} ${value}`)) return;
    }

    if (tag === "img" || tag === "canvas") {
      const name = collapse(attributeOf(el, "aria-label") || el.alt || el.title || "");
      const listens = hasAttribute(el, "onclick") || pressListeners.has(el);
      // A canvas takes presses at points of it, unless it lets them through.
      const role = ROLES[attributeOf(el, "role")] ||
        (tag === "canvas" && style.pointerEvents !== "none" ? "canvas"
          : matches(el, DRAGGABLE) ? "item" : listens ? "button" : "");
      if (!role || s.inside) {
        image(el, name, s, true);
        if (tag === "img" && hasAttribute(el, "usemap") && !s.hidden) mapAreas(el, s);
        return;
      }
      if (role === "canvas") {
        const rect = s.hidden ? null : shownRect(el, s);
        if (rect) emit(el, role, rect, s);
        image(el, "", { ...s, inside: true }, true);
        return;
      }
    }
    const role = s.hidden ? "" : roleOf(el, style);
    if (role) {
      const rect = shownRect(el, s);
      const shown = rect && !(style.opacity === "0" && hiddenBehindLabel(el));
      if (shown) emit(el, role, rect, s);
      if (isControl && tag !== "button") return;
      const reads = (role === "item" && queryIn(el, ACTIVE)) || (role === "textbox" && hasLines(el)) ||
        (tag === "svg" && textOf(el) !== nameOf(el, role));
      if (shown && !reads) s = { ...s, inside: true };
    }

    if (!role && !s.inside && tag === "use") line(el, "text", usedText(el), s);
    if (!role && !s.inside && (tag === "svg" || matches(el, GRAPHICS))) {
      const name = svgName(el), content = name && textOf(el);
      if (name && tag === "svg" && !content) image(el, name, s, false);
      else if (name) line(el, "image", name, s); // its text is read below, not in its pixels
      if (name && isIn(content, name) && !queryIn(el, ACTIVE) && !aroundListeners.has(el)) return;
    }

    if (tag === "label" && el.control && !s.hidden && labels(el, s)) s = { ...s, inside: true };

    if (style.overflowX !== "visible" || style.overflowY !== "visible") {
      if (tag !== "body" && tag !== "html" && !inline) {
        if (el !== pageScroller && SCROLLS.test(style.overflowY)) area(el, shift(boxOf(el), s.at), el, s);
        s = { ...s, clip: intersect(shift(boxOf(el), s.at), s.clip) };
      }
    }
    if (position !== "static" || style.transform !== "none") s = { ...s, absolute: s.clip };

    if (!s.inside && !s.hidden) {
      if (isHeading(el)) {
        const control = queryIn(el, ACTIVE);
        const title = control || isSeen(shift(boxOf(el), s.at), s.clip) ? textOf(el) : "";
        if (control && (!title || title === textOf(control))) s = { ...s, heading: control };
        else {
          line(el, "heading", title, s);
          s = { ...s, inside: true };
        }
      } else if (tag === "tr" && el.cells && !queryIn(el, `${ACTIVE},img,canvas,table,iframe`) &&
          !hasPressableCells(el)) {
        if (!isSeen(shift(boxOf(el), s.at), s.clip)) return;
        const code = codeRowOf(el);
        if (code !== "lines") {
          line(el, code ? "code" : "text", code || rowOf(el), s, "", code ? {} : textRow(el));
          return;
        }
      }
    }
    // A background behind text is not read, because the crop would repeat the text.
    if (style.backgroundImage.includes("url(") && !collapse(textContentOf(el))) {
      image(el, "", s, false);
    }
    const box = s.inside || s.hidden ? null : shift(boxOf(el), s.at), before = numRead;
    const isBoxSeen = box && isSeen(box, s.clip);
    children(el, s, style, isBoxSeen ? box : null);
    if (!inline) endLine();
    if (!inline || tag.includes("-") || isRow(el, tag, style)) joinRows(el, tag, style, out, sources, start);
    // The box of an inline element may be empty although its content is not.
    const isFlat = !(box?.width && box.height);
    if (isBoxSeen || (isFlat && (tag.includes("-") || (box && !childElementsOf(el).length)))) {
      suspect(el, tag, numRead === before);
    }
  }

  try {
    if (rootElementOf(document)) element(rootElementOf(document), state(at, view));
  } catch (error) {
    if (!(error instanceof RangeError)) throw error;
    isPart = true; // stack overflow: the page nests too deeply
  }
  flush();
  const root = rootElementOf(document), top = pageScroller ? scrollTopOf(pageScroller) : 0;
  const room = pageScroller ? scrollHeightOf(pageScroller) - clientHeightOf(pageScroller) : 0;
  const layered = underModal(...withoutTwins(out, sources), at, view);
  return JSON.stringify({ token, url: location.href, title: titleOf(document).slice(0, MAX_TEXT),
    nodes: layered.nodes, covered: layered.covered, busy: isBusy(at, view), moving: countMoving(sources),
    flashes: takeFlashes(), mayChange: mayChange(), unsent: takeUnsent(), sheets: foreignAddresses(),
    nextId, scripted: Boolean(root && queryIn(root, "script")),
    size: queryAllInDocument(document, "*").length, part: isPart || isOverdue(),
    hosts: suspects.length + others.length,
    early: !out.length && readyStateOf(document) === "loading", above: Math.round(top),
    below: Math.max(0, Math.round(room - top)) });
}
