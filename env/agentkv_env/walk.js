// Reads one document, and every same-origin frame and open shadow root in it, in reading order.
//
// Runs in an isolated world: the page's scripts can neither see these names nor patch what they call.
// Nothing here writes to the page's DOM; an element's number lives in a WeakMap of this world.
// All boxes are [x, y, width, height] in pixels of the page's viewport.
(() => {
  "use strict";
  if (globalThis.agentkv) return;

  const ids = new WeakMap(); // element -> its number
  const elements = new Map(); // number -> WeakRef(element)
  const hashes = new WeakMap(); // image -> {source, hash}
  const pictures = new Map(); // picture number -> WeakRef(image), for pixels()
  const pictureIds = new WeakMap();
  const token = Math.random().toString(36).slice(2);
  let nextPicture = 1;
  let frames = []; // cross-origin iframes met by the last walk

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
  const MIN_OVERLAP = 2; // pixels; less is a border or a rounding error
  const MIN_PICTURE = [40, 14]; // no text worth reading is smaller
  const MAX_PICTURE = 1600; // pixels a side; larger pictures are scaled down before they are read

  const squeeze = (text) => text.replace(/\s+/g, " ").trim();
  const styleOf = (el) => el.ownerDocument.defaultView.getComputedStyle(el);

  function cut(rect, clip) {
    const x = Math.max(rect.x, clip.x), y = Math.max(rect.y, clip.y);
    const right = Math.min(rect.x + rect.width, clip.x + clip.width);
    const bottom = Math.min(rect.y + rect.height, clip.y + clip.height);
    return { x, y, width: Math.max(0, right - x), height: Math.max(0, bottom - y) };
  }
  const shift = (rect, at) =>
    ({ x: rect.x + at.x, y: rect.y + at.y, width: rect.width, height: rect.height });
  const seen = (rect, clip) => {
    const part = cut(rect, clip);
    return part.width >= Math.min(MIN_OVERLAP, rect.width) && part.width > 0 &&
      part.height >= Math.min(MIN_OVERLAP, rect.height) && part.height > 0 &&
      rect.width > 1 && rect.height > 1;
  };
  const numbers = (rect) => {
    const x = Math.round(rect.x), y = Math.round(rect.y);
    return [x, y, Math.round(rect.x + rect.width) - x, Math.round(rect.y + rect.height) - y];
  };

  // The rectangles of an element; of its content where it has none of its own (a link around a float).
  function rectsOf(el) {
    const rects = [...el.getClientRects()].filter((rect) => rect.width > 1 && rect.height > 1);
    if (rects.length || !el.firstElementChild) return rects;
    for (const child of el.children) {
      const inner = rectsOf(child);
      if (inner.length) return inner;
    }
    return [];
  }

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
    const children = el.shadowRoot ? el.shadowRoot.childNodes
      : el.localName === "slot" && el.assignedNodes().length ? el.assignedNodes() : el.childNodes;
    for (const child of children) {
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

  function deepest(doc, x, y) {
    let hit = doc.elementFromPoint(x, y);
    while (hit?.shadowRoot) {
      const inner = hit.shadowRoot.elementFromPoint(x, y);
      if (!inner || inner === hit) break;
      hit = inner;
    }
    return hit;
  }
  const parentOf = (node) => node.assignedSlot || node.parentNode || node.host || null;
  const within = (node, ancestor) => {
    for (; node; node = parentOf(node)) if (node === ancestor) return true;
    return false;
  };
  // Whether a press at x, y of the element's own viewport reaches it, its label or a box around it.
  function reaches(el, x, y) {
    const hit = deepest(el.ownerDocument, x, y);
    if (!hit) return false;
    if (within(hit, el) || within(el, hit)) return true;
    return [...(el.labels || [])].some((label) => within(hit, label));
  }

  // cyrb53 over the pixels: quick, and 53 bits are plenty for the images of one cache.
  function hashOf(words) {
    let a = 0xdeadbeef ^ words.length, b = 0x41c6ce57;
    for (let i = 0; i < words.length; i++) {
      a = Math.imul(a ^ words[i], 2654435761);
      b = Math.imul(b ^ words[i], 1597334677);
    }
    a = Math.imul(a ^ (a >>> 16), 2246822507) ^ Math.imul(b ^ (b >>> 13), 3266489909);
    b = Math.imul(b ^ (b >>> 16), 2246822507) ^ Math.imul(a ^ (a >>> 13), 3266489909);
    return (4294967296 * (2097151 & b) + (a >>> 0)).toString(36);
  }

  function draw(image) {
    const width = image.naturalWidth || image.width, height = image.naturalHeight || image.height;
    const scale = Math.min(1, MAX_PICTURE / Math.max(width, height));
    const canvas = document.createElement("canvas"); // never attached to the page
    canvas.width = Math.max(1, Math.round(width * scale));
    canvas.height = Math.max(1, Math.round(height * scale));
    const pen = canvas.getContext("2d", { willReadFrequently: true });
    pen.fillStyle = "white";
    pen.fillRect(0, 0, canvas.width, canvas.height);
    pen.drawImage(image, 0, 0, canvas.width, canvas.height);
    return [canvas, pen];
  }

  // How Python is to get at a picture: by its pixels' hash, or by a crop of the screenshot.
  function picture(el, plain) {
    if (!pictureIds.has(el)) {
      pictureIds.set(el, nextPicture);
      pictures.set(nextPicture++, new WeakRef(el));
    }
    const number = pictureIds.get(el);
    const source = plain ? el.currentSrc || el.localName : "background";
    const known = hashes.get(el);
    if (known && known.source === source && el.localName === "img") return [number, known.hash];
    let hash = "";
    if (plain) {
      try {
        const [canvas, pen] = draw(el);
        const pixels = pen.getImageData(0, 0, canvas.width, canvas.height).data;
        hash = hashOf(new Uint32Array(pixels.buffer)) + `-${canvas.width}x${canvas.height}`;
      } catch {
        hash = ""; // pixels of another origin may be shown but not read
      }
    }
    hashes.set(el, { source, hash });
    return [number, hash];
  }

  function scroller() {
    const root = document.scrollingElement || document.documentElement;
    if (!root || !document.body || root.scrollHeight > innerHeight + 1) return root;
    let best = root, area = (innerWidth * innerHeight) / 4; // a quarter of the window, or no scroller
    for (const el of document.body.querySelectorAll("*")) {
      if (el.scrollHeight <= el.clientHeight + 1 || el.clientHeight < 100) continue;
      if (el.clientWidth * el.clientHeight <= area) continue;
      if (!/auto|scroll|overlay/.test(styleOf(el).overflowY)) continue;
      best = el;
      area = el.clientWidth * el.clientHeight;
    }
    return best;
  }

  // Numbers go on from `firstId`; if `expected` names another document than this one, from 1.
  function walk(firstId, expected, at, view, withPictures) {
    const out = [];
    view ||= { x: 0, y: 0, width: innerWidth, height: innerHeight };
    let nextId = expected === null || expected === token ? firstId : 1, pending = "", pendingBox = null;
    frames = [];

    const flush = () => {
      const text = squeeze(pending);
      if (text && pendingBox) out.push({ k: "text", r: "text", n: text, b: numbers(pendingBox) });
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
      const node = { k: "element", r: role, n: nameOf(el, role), b: numbers(rect), i: idOf(el) };
      const value = valueOf(el, role), options = optionsOf(el), states = statesOf(el);
      const part = cut(rect, view);
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
      const range = node.ownerDocument.createRange();
      range.selectNodeContents(node);
      const rect = shift(range.getBoundingClientRect(), s.at);
      if (!seen(rect, s.clip)) return;
      if (s.pre && node.data.includes("\n")) {
        for (const line of node.data.split("\n")) {
          pending += line;
          pendingBox ||= rect;
          flush();
        }
        return;
      }
      pending += node.data;
      if (!pendingBox) { pendingBox = rect; return; }
      const x = Math.min(pendingBox.x, rect.x), y = Math.min(pendingBox.y, rect.y);
      pendingBox = { x, y,
        width: Math.max(pendingBox.x + pendingBox.width, rect.x + rect.width) - x,
        height: Math.max(pendingBox.y + pendingBox.height, rect.y + rect.height) - y };
    }

    function image(el, name, s, plain) {
      const rect = shift(el.getBoundingClientRect(), s.at);
      if (s.hidden || !seen(rect, s.clip)) return;
      flush();
      const node = { k: "text", r: "image", n: s.inside ? "" : name, b: numbers(rect) };
      const ready = !plain || el.localName === "canvas" || (el.complete && el.naturalWidth > 0);
      if (withPictures && ready && rect.width >= MIN_PICTURE[0] && rect.height >= MIN_PICTURE[1]) {
        [node.p, node.h] = picture(el, plain);
      }
      if (s.inside) node.q = 1; // its link or button speaks for it; only what is written in it counts
      if (node.n || node.p) out.push(node);
    }

    function children(el, s) {
      const nodes = el.shadowRoot ? el.shadowRoot.childNodes
        : el.localName === "slot" && el.assignedNodes().length ? el.assignedNodes() : el.childNodes;
      for (const node of nodes) {
        if (node.nodeType === 3) text(node, s);
        else if (node.nodeType === 1) element(node, s);
      }
    }

    function frame(el, s) {
      flush();
      const style = styleOf(el), outer = el.getBoundingClientRect();
      const left = el.clientLeft + parseFloat(style.paddingLeft);
      const top = el.clientTop + parseFloat(style.paddingTop);
      const inner = shift({ x: outer.x + left, y: outer.y + top,
        width: outer.width - 2 * left, height: outer.height - 2 * top }, s.at);
      const clip = cut(inner, s.clip);
      if (s.hidden || clip.width < MIN_OVERLAP || clip.height < MIN_OVERLAP) return;
      let root = null;
      try { root = el.contentDocument?.documentElement; } catch { root = null; }
      if (root) {
        element(root, { at: { x: inner.x, y: inner.y }, clip, absolute: clip, window: clip,
          inside: false, hidden: false, pre: false });
      } else {
        out.push({ k: "frame", f: frames.length, b: [inner.x, inner.y, inner.width, inner.height],
          c: [clip.x, clip.y, clip.width, clip.height] });
        frames.push(el);
      }
    }

    function element(el, s) {
      const tag = el.localName;
      if (SKIPPED.has(tag)) return;
      if (tag === "br") { flush(); return; }
      const style = styleOf(el);
      if (style.display === "none") return;
      if (style.display !== "contents" && !el.checkVisibility()) return;
      const control = CONTROLS.has(tag);
      const custom = control && ["checkbox", "radio", "file"].includes(el.type);
      if (style.opacity === "0" && !custom) return;
      const position = style.position;
      const clip = position === "fixed" ? s.window : position === "absolute" ? s.absolute : s.clip;
      s = { ...s, clip, hidden: style.visibility !== "visible",
        pre: style.whiteSpace.startsWith("pre") };

      if (tag === "iframe" || tag === "frame") { frame(el, s); return; }
      const inline = style.display === "inline" || style.display === "contents";
      if (!inline) flush();

      if (tag === "img" || tag === "canvas") {
        const claimed = el.getAttribute("role");
        const role = ROLES[claimed] || (el.hasAttribute("onclick") ? "button" : "");
        if (!role || s.inside) {
          image(el, squeeze(el.getAttribute("aria-label") || el.alt || el.title || ""), s, true);
          return;
        }
      }
      if (tag === "svg" && !s.inside && svgName(el)) { image(el, svgName(el), s, null); return; }

      const role = s.hidden ? "" : roleOf(el, style);
      if (role) {
        const rect = rectsOf(el).map((rect) => shift(rect, s.at)).find((rect) => seen(rect, s.clip));
        const shown = rect && !(style.opacity === "0" && hiddenBehindLabel(el));
        if (shown) emit(el, role, rect, s.at);
        if (control && tag !== "button") return;
        if (shown) s = { ...s, inside: true };
      }

      if (tag === "label" && el.control && !s.hidden) {
        if (hiddenBehindLabel(el.control)) {
          const rect = rectsOf(el).map((rect) => shift(rect, s.at)).find((r) => seen(r, s.clip));
          const natural = roleOf(el.control, styleOf(el.control));
          if (rect && natural && el.control.labels[0] === el) emit(el.control, natural, rect, s.at);
          s = { ...s, inside: true };
        } else if (rectsOf(el.control).length) {
          s = { ...s, inside: true }; // the control carries these words as its name
        }
      }

      if (style.overflowX !== "visible" || style.overflowY !== "visible") {
        if (tag !== "body" && tag !== "html" && !inline) {
          s = { ...s, clip: cut(shift(el.getBoundingClientRect(), s.at), s.clip) };
        }
      }
      if (position !== "static" || style.transform !== "none") s = { ...s, absolute: s.clip };

      if (!s.inside && !s.hidden) {
        if ((/^h[1-6]$/.test(tag) || el.getAttribute("role") === "heading") &&
            !el.querySelector(ACTIVE)) {
          const rect = shift(el.getBoundingClientRect(), s.at), name = textOf(el);
          if (name && seen(rect, s.clip)) {
            flush();
            out.push({ k: "text", r: "heading", n: name, b: numbers(rect) });
          }
          s = { ...s, inside: true };
        } else if (tag === "tr" && !el.querySelector(`${ACTIVE},img,canvas,table,iframe`)) {
          const rect = shift(el.getBoundingClientRect(), s.at);
          const cells = [...el.cells].map((cell) => textOf(cell)).filter((cell) => cell);
          if (cells.length && seen(rect, s.clip)) {
            out.push({ k: "text", r: "text", n: cells.join(" | "), b: numbers(rect) });
          }
          return;
        }
      }
      // A picture behind other text is not read: the crop would show that text a second time.
      if (withPictures && style.backgroundImage.includes("url(") && !squeeze(el.textContent)) {
        image(el, "", s, false);
      }
      children(el, s);
      if (!inline) flush();
    }

    if (document.documentElement) element(document.documentElement, { at, clip: view, absolute: view, window: view,
      inside: false, hidden: false, pre: false });
    flush();
    const moving = scroller() || { scrollTop: 0, scrollHeight: 0, clientHeight: 0 };
    return JSON.stringify({ token, url: location.href, title: document.title, nodes: out, nextId,
      above: Math.round(moving.scrollTop),
      below: Math.max(0, Math.round(moving.scrollHeight - moving.clientHeight - moving.scrollTop)) });
  }

  // Custom checkboxes, radios and file fields hide the real one and style its label.
  function hiddenBehindLabel(el) {
    if (!el.labels?.length || !["checkbox", "radio", "file"].includes(el.type)) return false;
    const style = styleOf(el), rect = el.getBoundingClientRect();
    return style.display === "none" || style.visibility !== "visible" || style.opacity === "0" ||
      rect.width <= 2 || rect.height <= 2 || /rect\(0|inset\((50|100)%/.test(style.clip + style.clipPath);
  }

  const find = (id) => {
    const el = elements.get(id)?.deref();
    return el && el.isConnected ? el : null;
  };

  // Where to press for element `id`, in pixels of this frame's page viewport.
  function locate(id) {
    const el = find(id);
    if (!el) return JSON.stringify({ error: "gone" });
    const target = hiddenBehindLabel(el)
      ? [...el.labels].find((label) => rectsOf(label).length) || el : el;
    const view = el.ownerDocument.defaultView;
    const middles = () => rectsOf(target).map((r) => [r.x + r.width / 2, r.y + r.height / 2]);
    const inView = ([x, y]) => x >= 0 && y >= 0 && x < view.innerWidth && y < view.innerHeight;
    let points = middles();
    if (!points.length) return JSON.stringify({ error: "invisible" });
    if (!points.some((point) => inView(point) && reaches(target, ...point))) {
      target.scrollIntoView({ block: "center", inline: "nearest", behavior: "instant" });
      points = middles();
    }
    const finer = rectsOf(target).flatMap((r) => [[0.25, 0.5], [0.75, 0.5], [0.5, 0.2], [0.5, 0.8]]
      .map(([u, v]) => [r.x + u * r.width, r.y + v * r.height]));
    const point = [...points, ...finer].find((p) => inView(p) && reaches(target, ...p));
    const [px, py] = point || points[0];
    let x = px, y = py;
    for (let w = view; w.frameElement; w = w.parent) {
      const box = w.frameElement.getBoundingClientRect(), style = styleOf(w.frameElement);
      x += box.x + w.frameElement.clientLeft + parseFloat(style.paddingLeft);
      y += box.y + w.frameElement.clientTop + parseFloat(style.paddingTop);
    }
    const over = point ? null : deepest(el.ownerDocument, px, py);
    const role = roleOf(el, styleOf(el));
    return JSON.stringify({ x, y, role, name: nameOf(el, role), tag: el.localName,
      type: el.localName === "input" ? el.type : "",
      disabled: el.matches(":disabled"), readonly: el.readOnly === true,
      covered: point ? "" : over ? `${over.localName} ${textOf(over).slice(0, 40)}`.trim() : "nothing" });
  }

  // Focus a field; with `all`, select what it holds, so that typing replaces it.
  function focus(id, all) {
    const el = find(id);
    if (!el) return false;
    if (!within(deepActive(el), el)) el.focus();
    if (!all) return true;
    if (typeof el.select === "function") el.select();
    else el.ownerDocument.defaultView.getSelection().selectAllChildren(el);
    return true;
  }
  function deepActive(el) {
    let active = el.ownerDocument.activeElement;
    while (active?.shadowRoot?.activeElement) active = active.shadowRoot.activeElement;
    return active;
  }

  function announce(el) {
    el.dispatchEvent(new Event("input", { bubbles: true, composed: true }));
    el.dispatchEvent(new Event("change", { bubbles: true }));
  }

  // Choose an option of a native select by its label: as written, then in any case, then in part.
  function choose(id, label) {
    const el = find(id), wanted = squeeze(label), low = wanted.toLowerCase();
    const options = [...el.options].filter((option) => !option.disabled);
    const test = (way) => options.find((option) => way(squeeze(option.label), option.value));
    const option = test((text) => text === wanted) || test((text) => text.toLowerCase() === low) ||
      test((_, value) => value === label) || test((text) => text.toLowerCase().startsWith(low)) ||
      test((text) => text.toLowerCase().includes(low));
    if (!option || !wanted) return JSON.stringify({ error: options.map((o) => squeeze(o.label)) });
    el.focus();
    if (el.multiple) for (const other of el.options) other.selected = other === option;
    else option.selected = true;
    announce(el);
    return JSON.stringify({ chosen: squeeze(option.label) });
  }

  // Dates, times, colours and sliders take a whole value; keys would depend on the locale.
  function assign(id, value) {
    const el = find(id), before = el.value;
    el.focus();
    el.value = value;
    if (value && el.value === "") { el.value = before; return false; }
    announce(el);
    return true;
  }

  function scroll(sign) {
    const moving = scroller(), before = moving?.scrollTop;
    if (!moving) return false;
    const height = moving === document.scrollingElement ? innerHeight : moving.clientHeight;
    moving.scrollBy({ top: sign * height, behavior: "instant" });
    return moving.scrollTop !== before;
  }

  // The pixels of a picture as a PNG data URL; "" if they may not be read.
  function pixels(number) {
    const el = pictures.get(number)?.deref();
    try { return el ? draw(el)[0].toDataURL("image/png") : ""; } catch { return ""; }
  }

  // Resolves when the page has had one frame and one task to react in.
  const turn = () => Promise.race([
    new Promise((done) => requestAnimationFrame(() => setTimeout(done, 0))),
    new Promise((done) => setTimeout(done, 50)), // a tab in the background draws no frames
  ]);

  globalThis.agentkv = { walk, turn, locate, focus, choose, assign, scroll, pixels,
    frame: (index) => frames[index] };
})();
