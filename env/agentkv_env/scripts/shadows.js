// Shadow roots: the open ones, and the closed ones that Python has opened to us.
//
// A page's script cannot see into a closed root, and neither can ours. The browser can: it tells Python
// which of the elements that we suspect have one, and Python hands us the root.

const closedRoots = new WeakMap(); // element -> closed shadow root
const shadowOf = (el) => openRootOf(el) || closedRoots.get(el) || null;

const rootHostOf = getter(ShadowRoot, "host");

const slotOfElement = getter(Element, "assignedSlot"), slotOfText = getter(Text, "assignedSlot");

// Returns the slot that shows an element or a text, or null.
function slotOf(node) {
  const slot = nodeTypeOf(node) === 1 ? slotOfElement(node) : slotOfText(node);
  if (slot) return slot;
  const parent = parentNodeOf(node), root = parent ? closedRoots.get(parent) : null;
  if (!root) return null;
  return [...root.querySelectorAll("slot")].find((each) => each.assignedNodes().includes(node)) || null;
}

// Elements of HTML that may have a shadow root, besides those with a hyphen in their name.
const HOSTS = new Set(
  ("article aside blockquote body div footer h1 h2 h3 h4 h5 h6 header main nav p section " +
    "span").split(" "));
const MAX_HOSTS = 60; // elements of one question, ...
const MAX_OTHERS = 20; // ... and this many of them that do not seem to have a root
const MAX_ASKED = 2; // questions about an element that seems to have a root; it may get one later

let suspects = []; // elements of the last walk that seem to have a closed root ...
let others = []; // ... and some that may have one although they show their own children
let numQuestions = 0;
const asked = new WeakMap(); // element -> number of questions

// Notes an element that may have a closed root. An element that shows nothing seems to have one, and so
// does one with behavior of its own.
function suspect(el, tag, isEmpty) {
  const times = asked.get(el) || 0, isCustom = tag.includes("-");
  if (times >= MAX_ASKED || shadowOf(el)) return;
  if (isCustom ? isEmpty || matches(el, ":defined") : isEmpty && HOSTS.has(tag)) suspects.push(el);
  else if (!times && numQuestions < MAX_ASKED && others.length < MAX_OTHERS && HOSTS.has(tag)) {
    others.push(el);
  }
}

// Returns the elements to ask the browser about.
function hosts() {
  numQuestions++;
  const all = [...suspects, ...others].slice(0, MAX_HOSTS);
  for (const el of all) asked.set(el, (asked.get(el) || 0) + 1);
  return all;
}

// Takes a closed root. If `anew`, elements lose their ids, so that the next walk counts from 1.
function adopt(root, anew) {
  closedRoots.set(rootHostOf(root), root);
  if (anew) forget();
}
