// Actions on elements, and the functions that Python calls.

const find = (id) => {
  const el = elements.get(id)?.deref();
  return el && isConnected(el) ? el : null;
};

// Returns the point to press for element `id`, in pixels of the viewport of this frame's page.
function locate(id) {
  const el = find(id);
  deadline = performance.now() + 1000;
  if (!el) return { error: "gone" };
  const target = hiddenBehindLabel(el)
    ? [...labelsOf(el)].find((label) => rectsOf(label).length) || el : el;
  const view = viewOf(documentOf(el)) || window;
  const middles = () => rectsOf(target).map((r) => [r.x + r.width / 2, r.y + r.height / 2]);
  const inView = ([x, y]) => x >= 0 && y >= 0 && x < view.innerWidth && y < view.innerHeight;
  let points = middles();
  if (!points.length) return { error: "invisible" };
  // a transparent control may lie over the label that stands for it
  const isReached = (point) => reaches(target, ...point) || (target !== el && reaches(el, ...point));
  const isShown = (point) => inView(point) && !isScrolledAway(target, ...point);
  if (!points.some((point) => isShown(point) && isReached(point))) {
    scrollIntoView(target, { block: "center", inline: "nearest", behavior: "instant" });
    points = middles();
  }
  const finer = rectsOf(target).flatMap((r) => [[0.25, 0.5], [0.75, 0.5], [0.5, 0.2], [0.5, 0.8]]
    .map(([u, v]) => [r.x + u * r.width, r.y + v * r.height]));
  const point = [...points, ...finer].find((p) => inView(p) && isReached(p));
  const [px, py] = point || points[0];
  let x = px, y = py;
  for (let w = view; w.frameElement; w = w.parent) {
    const corner = insideOf(w.frameElement);
    x += corner.x;
    y += corner.y;
  }
  const over = point ? null : hitTest(documentOf(el), px, py);
  const role = roleOf(el, styleOf(el));
  const cover = over ? `${tagOf(over)} ${textOf(over).slice(0, 40)}`.trim() : "nothing";
  return { x, y, role, name: nameOf(el, role), tag: tagOf(el),
    type: tagOf(el) === "input" ? el.type : "",
    disabled: matches(el, ":disabled"), readonly: el.readOnly === true,
    covered: point ? "" : cover };
}

// Focuses a field; with `all`, selects its text, so that typing replaces it.
function focus(id, all) {
  const el = find(id);
  if (!el) return false;
  if (!isInside(deepActive(el), el)) focusOn(el);
  if (!all) return true;
  if (!isForm(el) && typeof el.select === "function") el.select();
  else (viewOf(documentOf(el)) || window).getSelection().selectAllChildren(el);
  return true;
}
function deepActive(el) {
  let active = activeIn(documentOf(el));
  while (active && shadowOf(active) && activeIn(shadowOf(active))) active = activeIn(shadowOf(active));
  return active;
}

function dispatchChange(el) {
  el.dispatchEvent(new Event("input", { bubbles: true, composed: true }));
  el.dispatchEvent(new Event("change", { bubbles: true }));
}

// Selects an option by its label: exact, then ignoring case, then by prefix or part.
function selectOption(id, label) {
  const el = find(id), wanted = collapse(label), low = wanted.toLowerCase();
  const options = [...el.options].filter((option) => !option.disabled);
  const test = (way) => options.find((option) => way(collapse(option.label), option.value));
  const option = test((text) => text === wanted) || test((text) => text.toLowerCase() === low) ||
    test((_, value) => value === label) || test((text) => text.toLowerCase().startsWith(low)) ||
    test((text) => text.toLowerCase().includes(low));
  if (!option || !wanted) return { error: options.map((o) => collapse(o.label)) };
  el.focus();
  if (el.multiple) for (const other of el.options) other.selected = other === option;
  else option.selected = true;
  dispatchChange(el);
  return { chosen: collapse(option.label) };
}

// Sets the value of date, time, color and range inputs; key presses would depend on the locale.
function setValue(id, value) {
  const el = find(id), before = el.value;
  el.focus();
  el.value = value;
  if (value && el.value === "") { el.value = before; return false; }
  dispatchChange(el);
  return true;
}

function scroll(sign) {
  deadline = performance.now() + 1000;
  const moving = findScroller();
  if (!moving) return false;
  const before = scrollTopOf(moving);
  const height = moving === scrollingElementOf(document) ? innerHeight : clientHeightOf(moving);
  scrollBy(moving, { top: sign * height, behavior: "instant" });
  return scrollTopOf(moving) !== before;
}

// Resolves after one animation frame and one task, in which the page can react.
const nextFrame = () => Promise.race([
  new Promise((done) => requestAnimationFrame(() => setTimeout(done, 0))),
  new Promise((done) => setTimeout(done, 50)), // a background tab draws no frames
]);

globalThis.agentkv = { walk, nextFrame, locate, focus, selectOption, setValue, scroll, pixels,
  frame: (index) => frames[index], title: () => titleOf(document).slice(0, MAX_TEXT) };
