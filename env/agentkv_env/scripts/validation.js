// Fields that keep the browser from sending their form: a bubble at one of them, which no element shows.

const MAX_UNSENT = 5; // fields of one report

let unsent = []; // fields found invalid when a press was to send their form, since the last report
let isPressed = false; // in the task of a press, in which the browser checks the fields
const watched = new WeakSet(); // documents and shadow roots

function watchValidation(root) {
  if (watched.has(root)) return;
  watched.add(root);
  const press = (event) => {
    if (event.type === "keydown" && event.key !== "Enter") return;
    isPressed = true;
    setTimeout(() => { isPressed = false; }, 0);
  };
  root.addEventListener("click", press, true);
  root.addEventListener("keydown", press, true);
  // An event in a shadow root has no target any more once it was dispatched.
  root.addEventListener("invalid", (event) => {
    if (isPressed && unsent.length < MAX_NODES) unsent.push([event, event.target]);
  }, true);
}

// Returns the role, name and message of the fields that kept a form from being sent since the last
// call, and whether they are hidden. The browser focuses the first that can be; a page that checks
// its fields itself does not, or cancels the event and shows messages of its own.
function takeUnsent() {
  const events = unsent.filter(([event]) => !event.defaultPrevented);
  unsent = [];
  const fields = [...new Set(events.map(([, target]) => target))].filter((el) =>
    isConnected(el) && matches(el, ":invalid"));
  const shown = fields.filter((el) => rectsOf(el).length);
  if (shown.length && !shown.some((el) => deepActive(el) === el)) return [];
  const groups = new Set();
  const isFirst = (el) => el.type !== "radio" || !(groups.has(el.name) || !groups.add(el.name));
  return fields.filter(isFirst).slice(0, MAX_UNSENT).map((el) => {
    const role = roleOf(el, styleOf(el)), message = String(el.validationMessage || "");
    return { r: role || tagOf(el), n: nameOf(el, role) || attributeOf(el, "name") || "",
      m: el.validity?.patternMismatch ? `${message} ${tooltipOf(el)}` : message, // as the bubble
      h: !rectsOf(el).length };
  });
}

watchValidation(document);
