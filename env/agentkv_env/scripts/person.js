// What a person does: presses, texts, choices and keys, each told to Python with the page before it.
//
// Python opens `TELL` to this world only, and events of scripts are not trusted, so no page can tell
// anything. We listen at the window before the page's scripts run, and so hear every event before it
// has an effect. The page is read at that moment, as an agent would read it: an agent does not scroll
// as people do, so we scroll, in no time and back, to where it would have to.

const APART = 8; // pixels between press and release that make a drag
const MAX_SCROLLS = 12; // windows that an agent scrolls to an element
const LOOK_MS = 1500; // longest reading of one page
const MAX_SAID = 60; // characters of the name of an element that has no number
const PRESSED = new Set("button checkbox file image radio reset submit".split(" "));
const SCROLL_KEYS = new Set("PageUp PageDown Home End ArrowUp ArrowDown".split(" ").concat(" "));
const TEXTS_OF = new Set("text search url tel email password number".split(" ")); // types of input
const MODIFIERS = new Set("Control Shift Alt Meta CapsLock AltGraph Dead Process".split(" "));
const EDITS = new Set("acvxyz".split("")); // keys that edit a field together with Control

const tell = globalThis[TELL];
let edit = null; // the field that the person writes into, and the page before
let press = null; // where the mouse was pressed
let lastKey = null; // the last key that may press an element

const outbox = []; // [message, event, decide] in their order; the last two of what is not decided yet
function say(message) {
  outbox.push([message, null, null]);
  post();
}
// Says what `decide` returns, if anything, once the page has handled the event.
function sayIf(event, decide) {
  outbox.push([null, event, decide]);
  setTimeout(post, 0);
}
function post() {
  for (const entry of outbox) {
    const [, event, decide] = entry;
    if (event?.eventPhase === Event.NONE) entry.splice(0, 3, decide(event.defaultPrevented), null, null);
  }
  while (outbox.length && !outbox[0][1]) {
    const [message] = outbox.shift();
    if (message) tell(JSON.stringify({ isMain: window === top, nextId: highest + 1, ...message }));
  }
}

// ---- the page as an agent would see it

const agentTops = new WeakMap(); // box that scrolls -> where an agent has it
const knownTops = new WeakMap(); // ... and where it was when we last looked
const scrolled = new Set(); // those that the person has scrolled
let isScrolling = false; // whether the person scrolls, rather than the page

function noteScroll(target) {
  const el = isDocument(target) ? scrollingElementOf(target) : target;
  if (!el || nodeTypeOf(el) !== 1 || knownTops.get(el) === scrollTopOf(el)) return;
  knownTops.set(el, scrollTopOf(el));
  if (isScrolling) scrolled.add(el);
  else {
    scrolled.delete(el);
    agentTops.set(el, scrollTopOf(el));
  }
}
function putTop(el, top) {
  el.scrollTo({ top, behavior: "instant" });
  knownTops.set(el, scrollTopOf(el));
}

const readNow = () => walk(highest + 1, null, { x: 0, y: 0, m: null }, null, LOOK_MS);

// Returns the number of the innermost element around `target` that a reading shows as one to act on.
function shownNumber(reading, target) {
  const shown = new Set(JSON.parse(reading).nodes.filter((node) => node.i && node.r !== "area")
    .map((node) => node.i));
  for (let node = target; node; node = parentOf(node)) {
    if (nodeTypeOf(node) !== 1) continue;
    for (const each of tagOf(node) === "label" && node.control ? [node, node.control] : [node]) {
      if (shown.has(ids.get(each))) return ids.get(each);
    }
  }
  return null;
}

// Returns the box to scroll, and -1 or 1, to come nearer to an element; null if nothing helps.
function wayTo(target) {
  const around = [];
  for (let node = target; node; node = parentOf(node)) if (scrolled.has(node)) around.unshift(node);
  for (const [index, box] of around.entries()) {
    const isPage = box === scrollingElementOf(documentOf(box));
    const frame = isPage ? { y: 0, height: innerHeight } : boxOf(box);
    const inner = boxOf(around[index + 1] || target), middle = inner.y + inner.height / 2;
    if (middle < frame.y) return [box, -1];
    if (middle > frame.y + frame.height) return [box, 1];
  }
  return null;
}

// Returns the readings of the page that an agent needs to act on `target` (null: on none), each but
// the last with the scroll that follows it, and the number of the element.
function look(target) {
  isScrolling = false;
  for (const el of [...scrolled]) if (!isConnected(el)) scrolled.delete(el);
  const own = [...scrolled].map((el) => [el, scrollTopOf(el)]);
  for (const [el] of own) putTop(el, agentTops.get(el) || 0);
  const readings = [{ page: readNow() }];
  let id = target && shownNumber(readings[0].page, target);
  if (target && !id && own.length) {
    const before = own.map(([el]) => [el, scrollTopOf(el)]);
    while (!id && readings.length <= MAX_SCROLLS) {
      const way = wayTo(target);
      if (!way || !scrollAsAgent(...way, readings)) break;
      id = shownNumber(readings.at(-1).page, target);
    }
    if (!id) {
      readings.length = 1;
      delete readings[0].scroll;
      for (const [el, top] of before) putTop(el, top);
    }
  }
  for (const [el, top] of own) {
    agentTops.set(el, scrollTopOf(el));
    putTop(el, top);
  }
  return { readings, id };
}
function scrollAsAgent(box, way, readings) {
  const isPage = box === findScroller(), area = isPage ? null : ids.get(box) ?? null;
  if (!isPage && area === null) return false;
  const top = scrollTopOf(box);
  if (isPage) scroll(0, way);
  else scrollArea(area, 0, way);
  if (scrollTopOf(box) === top) return false;
  knownTops.set(box, scrollTopOf(box));
  readings.at(-1).scroll = { way: way > 0 ? "down" : "up", area };
  readings.push({ page: readNow() });
  return true;
}

// Returns what `look` does for no element, at the place that the person has scrolled the page to.
function lookHere() {
  const box = findScroller(), goal = scrolled.has(box) ? scrollTopOf(box) : null;
  if (goal === null) return look(null);
  putTop(box, agentTops.get(box) || 0);
  const readings = [{ page: readNow() }];
  const half = (box === scrollingElementOf(document) ? innerHeight : clientHeightOf(box)) / 2;
  while (Math.abs(goal - scrollTopOf(box)) > half && readings.length <= MAX_SCROLLS) {
    if (!scrollAsAgent(box, goal > scrollTopOf(box) ? 1 : -1, readings)) break;
  }
  agentTops.set(box, scrollTopOf(box));
  putTop(box, goal);
  return { readings, id: null };
}

// ---- fields

// Returns the field that an element belongs to, if it takes a text, a choice or a value.
function writtenField(el) {
  for (let node = el; node; node = parentOf(node)) {
    if (nodeTypeOf(node) !== 1) continue;
    const tag = tagOf(node), control = tag === "label" ? node.control : null;
    if (control) return control === el ? null : writtenField(control);
    if (matches(node, EDITORS)) return node;
    if (tag === "select") return node;
    if (isField(node)) return PRESSED.has(node.type) || node.readOnly || saysDisabled(node) ? null : node;
    if (node.isContentEditable === true && !parentElementOf(node)?.isContentEditable) return node;
    if (["a", "button"].includes(tag)) return null;
  }
  return null;
}
const passwords = new WeakSet(); // fields that were ever shown as such: pages can show what is in them
const isSecret = (field) => hidesValue(field) || passwords.has(field) || /password/.test(field.autocomplete);
function textIn(field) {
  if (matches(field, EDITORS)) return partsOf(field)[0];
  return isField(field) ? field.value : innerTextOf(field);
}
function begin(field, isPressed) {
  if (field.type === "password") passwords.add(field);
  edit = { field, isPressed, seen: look(field), isChanged: false, hasKeys: false };
  beginAction(true, false);
}
// Tells what a field holds now, and forgets the field.
function finishEdit(enter = false) {
  if (!edit) return;
  const { field, seen, isChanged, isPressed } = edit;
  edit = null;
  if (!isChanged && !enter) {
    if (isPressed) say({ kind: "focus", ...seen, said: saidOf(field) });
    return;
  }
  say(written(field, seen, enter));
}
function written(field, seen, enter) {
  const isList = tagOf(field) === "select";
  const names = isList ? enabledOptions(field).filter(([option]) => option.selected)
    .map(([, name]) => name) : [];
  return { kind: "write", ...seen, said: saidOf(field), enter, hides: isSecret(field),
    text: isList ? "" : textIn(field), options: isList ? names : null,
    several: isList && field.multiple };
}

function saidOf(el) {
  const role = roleOf(el, styleOf(el)) || tagOf(el);
  const name = within(SHORT_MS, () => nameOf(el, role) || textOf(el));
  return `${role} ${name.slice(0, MAX_SAID)}`.trim();
}

// ---- events

function targetOf(event) {
  const el = event.composedPath()[0];
  if (!el || nodeTypeOf(el) !== 1) return null;
  if (event.clientX === undefined || !shadowOf(el)) return el;
  const hit = hitTest(documentOf(el), event.clientX, event.clientY);
  return hit && isInside(hit, el) ? hit : el;
}
function isOnScrollbar(event, el) {
  const isRoot = el === rootElementOf(documentOf(el));
  return isRoot ? event.clientX >= clientWidthOf(el) || event.clientY >= clientHeightOf(el)
    : scrolls(el, true) && event.offsetX >= clientWidthOf(el);
}

const heard = {
  pointerdown(event, el) {
    if (event.button === 3 || event.button === 4) { sayHistory(event.button === 3 ? "back" : "forward"); return; }
    if (event.button !== 0 && event.button !== 1) return;
    if (isOnScrollbar(event, el)) { isScrolling = true; return; }
    const field = writtenField(el);
    if (field && edit?.field === field) return;
    finishEdit();
    if (field) { begin(field, true); return; }
    if (tagOf(el) === "input" && el.type === "file") return;
    const isLink = Boolean(closestOf(el, "a[*|href]"));
    if (event.button === 1 && !isLink) { isScrolling = true; return; }
    const seen = look(el);
    beginAction(true, false);
    press = { x: event.clientX, y: event.clientY, el };
    say({ kind: "press", ...seen, said: saidOf(el), point: pointIn(seen.id, event),
      elsewhere: isLink && (event.button === 1 || event.ctrlKey || event.metaKey || event.shiftKey) });
  },
  pointerup(event, el) {
    if (!press) return;
    const far = Math.hypot(event.clientX - press.x, event.clientY - press.y) > APART;
    const isSame = isInside(el, press.el) || isInside(press.el, el);
    const isDrag = far && (!isSame || tagOf(press.el) === "canvas");
    press = null;
    say({ kind: "release", isDrag });
  },
  pointercancel() {
    if (press) say({ kind: "release", isDrag: true });
    press = null;
  },
  dblclick(event, el) {
    if (!writtenField(el)) say({ kind: "double" });
  },
  contextmenu(event, el) {
    finishEdit();
    const seen = look(el), said = saidOf(el);
    beginAction(true, false);
    sayIf(event, (isHandled) => isHandled && { kind: "right", ...seen, said });
  },
  // Enter or Space on a button or a link; a press of the mouse has been told already.
  click(event, el) {
    if (event.detail !== 0 || !lastKey || lastKey.el !== el) return;
    const { seen } = lastKey;
    lastKey = null;
    beginAction(true, false);
    say({ kind: "press", ...seen, said: saidOf(el), point: null, elsewhere: false });
    say({ kind: "release", isDrag: false });
  },
  keydown(event, el) {
    const { key } = event;
    if (event.isComposing || MODIFIERS.has(key)) return;
    if (event.altKey && (key === "ArrowLeft" || key === "ArrowRight")) {
      sayHistory(key === "ArrowLeft" ? "back" : "forward");
      return;
    }
    const field = writtenField(el), isLine = field && tagOf(field) === "input";
    const isHeld = event.ctrlKey || event.metaKey || event.altKey;
    if (key === "Escape") { finishEdit(); sayKey(event); return; }
    if (field && key === "Enter" && !isHeld && !event.shiftKey) {
      if (isLine && edit?.field === field && edit.hasKeys && !edit.isChanged) sayKey(event);
      else if (isLine) {
        if (edit?.field !== field) { finishEdit(); begin(field, false); }
        beginAction(true, false);
        finishEdit(true);
      } else if (tagOf(field) !== "select" && edit?.field === field) {
        const message = written(field, edit.seen, true);
        sayIf(event, (isHandled) => {
          if (!isHandled) return null; // a new line
          edit = null;
          return message;
        });
      }
      return;
    }
    if (field && (key.length === 1 || key === "Backspace" || key === "Delete" || isList(field, key))) {
      if (!isHeld || EDITS.has(key.toLowerCase())) {
        if (edit?.field !== field) { finishEdit(); begin(field, false); }
        return;
      }
    }
    if (!field && (key === "Enter" || key === " ")) lastKey = { el, seen: look(el) };
    if (key === "Tab") return;
    if (!field && SCROLL_KEYS.has(key)) isScrolling = true;
    const seen = look(null), name = nameOfKey(event), after = edit;
    beginAction(true, false);
    const isEditing = field && after?.field === field;
    const text = isEditing && after.isChanged ? written(field, after.seen, false) : null;
    sayIf(event, (isHandled) => {
      if (!isHandled) return null; // it did nothing, or a click follows
      isScrolling = false;
      if (isEditing) Object.assign(after, { isChanged: false, hasKeys: true });
      if (lastKey?.el === el && lastKey.seen.id) { // an agent has no focus there
        const pressed = lastKey.seen;
        lastKey = null;
        return { kind: "press", ...pressed, said: saidOf(el), point: null, elsewhere: false };
      }
      return { kind: "key", ...seen, key: name, before: text };
    });
  },
  // A script that edits a text causes input events that are trusted, but none before the input.
  beforeinput(event, el) {
    const field = writtenField(el);
    if (!field || (tagOf(field) === "input" && event.inputType === "insertLineBreak")) return; // Enter
    if (edit?.field !== field) { finishEdit(); begin(field, false); }
    edit.isChanged = true;
  },
  input(event, el) {
    const field = writtenField(el);
    if (!field) return;
    const isText = !matches(field, "select,input") || TEXTS_OF.has(field.type);
    if (edit?.field === field) edit.isChanged ||= !isText;
    else if (!isText || event.inputType === "insertReplacementText" || !event.inputType) {
      say({ kind: "missed", said: saidOf(field), why: "filled" });
    }
  },
  change(event, el) {
    if (tagOf(el) === "input" && el.type === "file" && el.files.length) {
      say({ kind: "missed", said: saidOf(el), why: "upload" });
    }
  },
  focusout(event, el) {
    if (edit && (isInside(el, edit.field) || isInside(edit.field, el))) finishEdit();
  },
  wheel() { isScrolling = true; },
  touchmove() { isScrolling = true; },
  visibilitychange() { if (document.visibilityState === "visible") say({ kind: "shown" }); },
};

// Whether a key changes a list or a value without an event before it.
const isList = (field, key) => key.startsWith("Arrow") && (tagOf(field) === "select" ||
  (tagOf(field) === "input" && !TEXTS_OF.has(field.type)));

function sayKey(event) {
  const seen = look(null);
  beginAction(true, false);
  say({ kind: "key", ...seen, key: nameOfKey(event), before: null });
}
function sayHistory(way) {
  finishEdit();
  say({ kind: "history", ...look(null), way });
}
function nameOfKey({ key, ctrlKey, altKey, metaKey, shiftKey }) {
  const held = [[ctrlKey, "Control"], [altKey, "Alt"], [metaKey, "Meta"], [shiftKey && key.length > 1, "Shift"]];
  return [...held.filter(([is]) => is).map(([, name]) => name), key === " " ? "Space" : key].join("+");
}
// Returns where on an element was pressed, in hundredths, if it takes presses at points.
function pointIn(id, { clientX, clientY }) {
  const el = id && find(id);
  if (!el || !usesOf(el).includes("point")) return null;
  const box = boxOf(el), part = (at, start, size) => Math.round(100 * (at - start) / size);
  return [part(clientX, box.x, box.width), part(clientY, box.y, box.height)];
}

function hearEvent(event) {
  post();
  if (event.type === "scroll") { noteScroll(event.target); return; }
  const el = isDocument(event.target) || event.target === window ? null : targetOf(event);
  if (el || event.type === "visibilitychange") {
    deadline = performance.now() + LOOK_MS;
    heard[event.type](event, el);
  }
}

// The document around this one that reads it too; itself if that is of another origin.
function reader() {
  let view = window;
  try {
    while (view.parent !== view && view.parent.agentkv?.hearEvent) view = view.parent;
  } catch { /* of another origin */ }
  return view.agentkv;
}
for (const type of [...Object.keys(heard), "scroll"]) {
  window.addEventListener(type, (event) => { if (event.isTrusted) reader().hearEvent(event); },
    { capture: true, passive: true });
}

// Tells what the person has not finished, and the page that is seen at last.
const rest = () => {
  finishEdit();
  say({ kind: "rest", ...lookHere() });
};
Object.assign(globalThis.agentkv, { hearEvent, rest,
  countFrom: (next) => { highest = Math.max(highest, next - 1); } });
