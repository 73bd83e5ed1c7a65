// Late content: what a page may still show because of an action, and what it showed for a moment.
//
// timers.js, in the page's own world, answers which timers the action armed. The document's animations
// and a MutationObserver say the rest. What changes again and again between actions moves by itself.

const WATCHED = { subtree: true, childList: true, characterData: true,
  attributeFilter: ["class", "style", "hidden", "open", "aria-expanded", "aria-hidden"] };
const MAX_RECORDS = 500; // of one batch
const MAX_DOCUMENTS = 50;
const LONGEST_MS = 5000; // nobody waits longer for what may come
const APART_MS = 8; // changes within this time are one
const GOING_ON_MS = 150; // a page that changed three times in this time goes on changing
const FRAMES_MS = 50; // some frames
const MIN_FLASH_MS = 400; // what is replaced sooner was never meant to be read
const MAX_FLASHES = 3;
const MAX_FLASH = 100; // characters of one
const MAX_TOOLTIP = 300;
const SHORT_MS = 100; // for reading one text
const MAX_ADDED = 50; // elements looked at in one action

const changedAt = new WeakMap(); // node -> when it changed between actions
const restless = new WeakSet(); // nodes that did so more than once
const observed = new WeakSet(); // documents
let isActing = false, isNewDocument = true, expectsChange = false;
let changes = []; // times of the last changes since the action began
let added = new Map(), flashes = []; // element -> [text, when it came]; texts that went again

const observer = new MutationObserver((records) => note(records));

function note(records) {
  const now = performance.now();
  for (const { target, addedNodes, removedNodes } of records.slice(0, MAX_RECORDS)) {
    if (!isActing) {
      if (now - (changedAt.get(target) ?? now) > GOING_ON_MS) restless.add(target);
      if (!changedAt.has(target)) changedAt.set(target, now);
      continue;
    }
    if (restless.has(target)) continue;
    if (!changes.length || now - changes.at(-1) > APART_MS) changes = [...changes.slice(-2), now];
    for (const node of addedNodes) {
      if (nodeTypeOf(node) !== 1 || added.size >= MAX_ADDED || !isNotice(node)) continue;
      const text = within(SHORT_MS, () => textOf(node)).slice(0, MAX_FLASH);
      if (/\p{L}/u.test(text) && !/(\.\.\.|…)$/.test(text)) added.set(node, [text, now]);
    }
    for (const node of removedNodes) {
      const [text, at] = added.get(node) || [];
      if (text && now - at >= MIN_FLASH_MS && !isConnected(node)) flashes.push(text);
    }
  }
}

const LIVE = "[role=status],[role=alert],[role=log],[aria-live],output";

// Returns whether a new element reports something: it says so, or lies over the page.
function isNotice(el) {
  if (!isConnected(el) || !isVisible(el)) return false;
  for (let node = el; node && nodeTypeOf(node) === 1; node = parentOf(node)) {
    if (matches(node, LIVE) || /fixed|absolute/.test(styleOf(node).position)) return true;
  }
  return false;
}

// Returns the documents that we can reach: this one, and those of frames of its origin.
function documentsOf(doc, found = []) {
  found.push(doc);
  for (const frame of queryAllInDocument(doc, "iframe,frame")) {
    let inner = null;
    try { inner = frame.contentDocument; } catch { inner = null; }
    if (inner && found.length < MAX_DOCUMENTS) documentsOf(inner, found);
  }
  return found;
}

function watch() {
  documentsOf(document).forEach(watchIn);
}
function watchIn(root) {
  if (observed.has(root)) return;
  observed.add(root);
  observer.observe(root, WATCHED);
}

// Says something to timers.js in each document; returns the first of the times that it answers, or 0.
function tellTimers(said) {
  const times = [];
  const hear = (event) => times.push(Number(event.detail) || 0);
  for (const doc of documentsOf(document)) {
    const view = viewOf(doc);
    if (!view) continue;
    view.addEventListener(`${CHANNEL}.`, hear);
    view.dispatchEvent(new CustomEvent(CHANNEL, { detail: String(said) }));
    view.removeEventListener(`${CHANNEL}.`, hear);
  }
  return soonest(times);
}
const soonest = (times) => times.reduce((a, b) => (b > 0 && !(a > 0 && a < b) ? b : a), 0);

// An action begins, which as a rule `changesSomething` if a script listens; with `again`, the one before goes on.
function beginAction(changesSomething, again) {
  watch();
  note(observer.takeRecords());
  isActing = true;
  tellTimers(again ? "go on" : "begin");
  if (again) return;
  isNewDocument = false;
  expectsChange = changesSomething;
  changes = [];
  added = new Map();
}

// Returns the milliseconds until the next event within `mostMs` that may show what the action caused;
// 0 for none, and then the action is over.
//
// A new document must say that it is unfinished: while they load, pages arm timers for many things.
// Frames that the action requested are waited for until one of them changes something.
function due(mostMs) {
  watch();
  note(observer.takeRecords());
  const frames = !changes.length && !isNewDocument && mostMs > FRAMES_MS && tellTimers("draws") > 0;
  const time = soonest([tellTimers(mostMs), frames ? FRAMES_MS : 0, ...movesEnding(mostMs)]);
  isActing = time > 0 && (!isNewDocument || isUnfinished());
  if (!isActing) tellTimers("end");
  return isActing ? Math.ceil(time) : 0;
}

const BUSY = "[aria-busy=true],[role=progressbar]:not([aria-valuenow]),progress:not([value])";

// Returns whether a part of the document that can be seen says that it is loading.
const isLoading = () =>
  [...queryAllInDocument(document, BUSY)].some((el) => isVisible(el) && isOnScreen(el)) ||
  animationsOf(document).some(({ playState, effect }) => playState === "running" && effect?.target &&
    !Number.isFinite(effect.getComputedTiming().endTime) && isOnScreen(effect.target) &&
    !/\S/.test(textContentOf(effect.target))); // a spinner or a skeleton
const isOnScreen = (el) => isSeen(boxOf(el), { x: 0, y: 0, width: innerWidth, height: innerHeight });
const isUnfinished = () =>
  isLoading() || !bodyOf(document) || !within(SHORT_MS, () => textOf(bodyOf(document)));

// Returns the milliseconds until the end of each movement of text that ends within `mostMs`.
function movesEnding(mostMs) {
  return animationsOf(document).map(({ playState, currentTime, effect }) => {
    if (playState !== "running" || !effect?.target) return 0;
    const left = effect.getComputedTiming().endTime - (Number(currentTime) || 0);
    const counts = left <= mostMs && shows(effect) && /\S/.test(textContentOf(effect.target));
    return counts ? left : 0;
  });
}

const RESIZES = /^(?:visibility|display|clip|width|height|max|inset|left|right|top|bottom)/;
const SHIFTS = /^(?:transform|translate)$/;
const MIN_SHIFT = 16; // pixels; what moves less under the mouse only decorates

// Returns whether an effect shows, hides or moves its target, rather than decorates it.
const shows = (effect) => (effect.getKeyframes?.() || []).some((frame) =>
  Object.entries(frame).some(([name, value]) => RESIZES.test(name) ||
    (/^(?:opacity|scale)$/.test(name) && Number(value) < 0.1) ||
    (SHIFTS.test(name) && (String(value).match(/-?[\d.]+/g) || []).some((n) => Math.abs(n) >= MIN_SHIFT))));

// Returns whether something may still come: a part is loading, a timer of the action is to run, the page
// goes on changing or drawing, or it has scripts and the action has changed nothing yet.
function mayChange() {
  note(observer.takeRecords());
  const goesOn = changes.length > 2 && performance.now() - changes[0] < GOING_ON_MS ||
    changes.length > 0 && !isNewDocument && tellTimers("draws") > 0;
  const hasNoEffect = expectsChange && !changes.length && queryAllInDocument(document, "script").length > 0;
  return goesOn || hasNoEffect || isLoading() || (!isNewDocument && tellTimers(LONGEST_MS) > 0);
}

// Returns the texts that were shown for a moment, once.
function takeFlashes() {
  const taken = [...new Set(flashes)].slice(0, MAX_FLASHES);
  flashes = [];
  return taken;
}

// Returns nothing; notes the tooltip that the browser itself draws for element `id` under the mouse.
function noteTooltip(id) {
  let node = find(id);
  const name = node ? within(SHORT_MS, () => nameOf(node, roleOf(node, styleOf(node)))) : "";
  while (node && !(nodeTypeOf(node) === 1 && tooltipOf(node))) node = parentOf(node);
  const text = node ? collapse(tooltipOf(node), MAX_TOOLTIP) : "";
  if (text && !name.includes(text)) flashes.push(text);
}
