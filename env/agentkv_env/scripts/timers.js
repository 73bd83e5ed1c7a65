// Knows which timers a page armed because of an action. Runs before the page's scripts in the page's
// own world, where these functions live; everything else of ours runs in another (late.js, which asks
// through events whose name the page does not know).
((channel) => {
  const { apply } = Reflect, source = Function.prototype.toString, cut = String.prototype.slice;
  const now = performance.now.bind(performance), Custom = CustomEvent;
  const send = EventTarget.prototype.dispatchEvent.bind(window);
  const detailOf = Object.getOwnPropertyDescriptor(Custom.prototype, "detail").get;

  const MAX_MS = 5000; // a wait of the agent takes no longer
  const MAX_TIMERS = 1000;
  const IDLE_MS = 16; // between two looks whether an idle callback has run
  const OWN = 2; // a timer armed so often between actions belongs to the page's own motion
  let armed = { __proto__: null }, num = 0; // timer -> { due, every, key, counts }
  let own = { __proto__: null }; // key -> times armed between actions
  let running = { __proto__: null }; // keys of timers that ran when the action began
  let frames = { __proto__: null }; // waiting frame callback -> whether the action requested it
  let drawn; // whether the frame callback that runs now counts; undefined outside one
  let isActing = true;

  // A key tells timers apart by delay and function. Neither the call nor the page's objects are read.
  function arm(kind, id, callback, given, isRepeated) {
    const number = typeof given === "number" || typeof given === "string" ? +given : 0;
    const delay = number > 0 ? number : 0;
    if (delay > MAX_MS) return;
    if (num++ > MAX_TIMERS) forget();
    const text = typeof callback === "function" ? apply(source, callback, []) : "";
    const key = delay + apply(cut, text, [0, 200]);
    if (!isActing) own[key] = (own[key] || 0) + 1;
    const counts = isActing && !(own[key] >= OWN) && !running[key];
    armed[kind + id] = { due: now() + delay, every: isRepeated ? delay : 0, key, counts };
  }
  function forget() {
    armed = { __proto__: null };
    own = { __proto__: null };
    frames = { __proto__: null };
    num = 0;
  }
  function clear(kind, id) {
    const timer = typeof id === "object" ? null : armed[kind + id];
    if (!timer) return;
    delete running[timer.key]; // it was stopped, so what is armed like it is news
    delete armed[kind + id];
  }
  const wrapped = (name, call) => {
    const native = window[name];
    window[name] = new Proxy(native, { apply: (_, self, given) => call(native, self, given) });
  };
  for (const name of ["setTimeout", "setInterval"]) wrapped(name, (native, self, given) => {
    const id = apply(native, self, given);
    arm("t", id, given[0], given[1], name === "setInterval");
    return id;
  });
  for (const name of ["clearTimeout", "clearInterval"]) wrapped(name, (native, self, given) => {
    clear("t", given[0]);
    return apply(native, self, given);
  });
  wrapped("requestIdleCallback", (native, self, given) => {
    const callback = given[0];
    if (typeof callback !== "function") return apply(native, self, given);
    given[0] = (idle) => {
      clear("i", id);
      apply(callback, undefined, [idle]);
    };
    const id = apply(native, self, given);
    arm("i", id, callback, IDLE_MS, true); // it has no time, so it counts until it has run
    return id;
  });
  wrapped("cancelIdleCallback", (native, self, given) => {
    clear("i", given[0]);
    return apply(native, self, given);
  });

  // A frame callback that another one requests belongs to what requested the first.
  wrapped("requestAnimationFrame", (native, self, given) => {
    const callback = given[0];
    if (typeof callback !== "function") return apply(native, self, given);
    given[0] = (at) => {
      drawn = frames[id];
      delete frames[id];
      try { apply(callback, undefined, [at]); } finally { drawn = undefined; }
    };
    if (num++ > MAX_TIMERS) forget();
    const counts = drawn ?? isActing, id = apply(native, self, given);
    frames[id] = counts;
    return id;
  });
  wrapped("cancelAnimationFrame", (native, self, given) => {
    if (typeof given[0] !== "object") delete frames[given[0]];
    return apply(native, self, given);
  });

  if (window.scheduler?.postTask) {
    const native = scheduler.postTask;
    let num = 0;
    Scheduler.prototype.postTask = new Proxy(native, { apply(_, self, given) {
      arm("s", num++, given[0], given[1]?.delay, false);
      return apply(native, self, given);
    } });
  }

  const ran = (timer, at) => !timer.every && timer.due < at;
  function sweep(at) {
    num = 0;
    for (const id in armed) if (ran(armed[id], at)) delete armed[id]; else num++;
  }
  // An action begins: what runs already is not its doing.
  function begin() {
    sweep(now());
    running = { __proto__: null };
    for (const id in armed) {
      running[armed[id].key] = true;
      armed[id].counts = false;
    }
    for (const id in frames) frames[id] = false;
    isActing = true;
  }
  // Returns the milliseconds, above 0, until the first of the action's timers that run within `most`;
  // 0 for none.
  function due(most) {
    const at = now();
    sweep(at);
    let first = 0;
    for (const id in armed) {
      const { due, every, counts } = armed[id];
      const left = every ? every - (at - due + every) % every : due - at;
      if (counts && left <= most && (!first || left < first)) first = left < 1 ? 1 : left;
    }
    return first;
  }
  // Returns 1 if a frame callback that the action requested is waiting, else 0.
  function draws() {
    for (const id in frames) if (frames[id]) return 1;
    return 0;
  }
  addEventListener(channel, (event) => {
    const asked = apply(detailOf, event, []);
    if (asked === "begin") begin();
    else if (asked === "go on" || asked === "end") isActing = asked === "go on";
    else send(new Custom(channel + ".", { detail: asked === "draws" ? draws() : due(+asked) }));
  });
})
