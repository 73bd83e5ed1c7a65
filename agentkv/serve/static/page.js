// Text of conversations is hostile: it only ever becomes the content of text nodes.
"use strict";

const POLL_MS = 1500, POINTS = 80;
const HINT = "Point at a token, or move through a text with the arrow keys.";
const at = (id) => document.getElementById(id);
const SVG = "http://www.w3.org/2000/svg";
let key = sessionStorage.getItem("agentkv-key") || "";
let model = null, sessions = [], shown = "", polling = false, writing = null;
let current = null;  // {slot, name, policy, messages}; the slot is null before the first reply
const sizes = new Map();  // bytes over time, by session

function make(tag, text, name) {
  const made = document.createElement(tag);
  if (text !== undefined) made.textContent = text;
  if (name) made.className = name;
  return made;
}

function shape(tag, attributes) {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  return made;
}

function bytes(count) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let i = 0;
  while (count >= 1024 && i < units.length - 1) { count /= 1024; i += 1; }
  return `${i && count < 100 ? count.toFixed(1) : Math.round(count)} ${units[i]}`;
}

function say(text, isBad) {
  at("status").textContent = text;
  at("status").className = isBad ? "bad" : "soft";
}

function headers(more) {
  return key ? {Authorization: `Bearer ${key}`, ...more} : {...more};
}

async function ask(path, body, options) {
  const sent = {headers: headers(), cache: "no-store", ...options};
  if (body !== undefined) {
    sent.method = "POST";
    sent.headers = headers({"Content-Type": "application/json"});
    sent.body = JSON.stringify(body);
  }
  const answer = await fetch(path, sent);
  if (answer.ok) return answer;
  if (answer.status === 401) askForKey();
  let message = `the server answered ${answer.status}`;
  try { message = (await answer.json()).error.message; } catch { /* it said no more */ }
  throw new Error(message);
}

const read = async (path, body) => (await ask(path, body)).json();

function askForKey() {
  const had = Boolean(key);
  key = "";
  model = null;
  sessionStorage.removeItem("agentkv-key");
  at("main").hidden = true;
  at("key-form").hidden = false;
  say(had ? "This key is wrong." : "This server asks for a key.", had);
}

// ---- sessions

async function start() {
  const [described] = (await read("/v1/models")).data;
  model = described.id;
  at("model").textContent = model;
  at("policy").replaceChildren(...described.policies.map((each) => {
    const option = make("option", each.budget === null ? each.policy : `${each.policy} (${each.budget})`);
    option.value = each.policy;
    return option;
  }));
  at("key-form").hidden = true;
  at("main").hidden = false;
  say("");
}

async function poll() {
  if (polling) return;
  polling = true;
  try {
    if (model === null) await start();
    sessions = await read("/slots");
    note();
    list();
    await look(false);
    if (at("status").textContent.startsWith("No answer")) say("");
  } catch (error) {
    if (error instanceof TypeError) say("No answer from the server.", true);
    else if (model !== null) say(error.message, true);
  } finally {
    polling = false;
  }
}

function note() {
  const known = new Set(sessions.map((each) => each.session));
  for (const name of sizes.keys()) if (!known.has(name)) sizes.delete(name);
  for (const each of sessions) {
    const points = sizes.get(each.session) || [];
    points.push(each.bytes);
    sizes.set(each.session, points.slice(-POINTS));
  }
}

function bar(session, most) {
  const drawn = shape("svg", {class: "bar", viewBox: "0 0 100 8", preserveAspectRatio: "none", "aria-hidden": "true"});
  drawn.append(shape("rect", {class: "back", x: 0, y: 3, width: 100, height: 2}));
  let x = 0;
  for (const [name, count] of [["hot", session.hot_bytes], ["cold", session.cold_bytes], ["snap", session.snapshot_bytes]]) {
    const width = 100 * count / most;
    drawn.append(shape("rect", {class: name, x, y: 0, width, height: 8}));
    x += width;
  }
  return drawn;
}

function sparkline(points) {
  const most = Math.max(...points, 1);
  const drawn = shape("svg", {class: "spark", viewBox: `0 0 ${POINTS - 1} 22`, preserveAspectRatio: "none", "aria-hidden": "true"});
  const places = points.map((each, i) => `${POINTS - points.length + i},${21 - 19 * each / most}`);
  drawn.append(shape("polyline", {points: places.join(" ")}));
  return drawn;
}

function list() {
  const most = Math.max(1, ...sessions.map((each) => each.bytes));
  const focused = document.activeElement && document.activeElement.dataset.slot;
  at("sessions").replaceChildren(...sessions.map((session) => {
    const item = make("li"), button = make("button");
    button.type = "button";
    button.dataset.slot = session.id;
    button.setAttribute("aria-pressed", String(current !== null && current.slot === session.id));
    const state = session.is_processing ? "busy" : session.in_memory ? "in memory" : "on disk";
    const budget = session.budget === null ? "" : `, budget ${session.budget}`;
    button.append(
      make("strong", session.name === null ? "(no name)" : session.name),
      make("span", `slot ${session.id}, ${state}, ${session.n_tokens.toLocaleString("en")} tokens`, "soft"),
      make("span", `${session.policy}${budget}`, "soft"),
      bar(session, most),
      make("span", `${bytes(session.hot_bytes)} hot, ${bytes(session.cold_bytes)} cold, ` +
        `${bytes(session.snapshot_bytes)} in snapshots` +
        (session.shared_bytes ? `, ${bytes(session.shared_bytes)} shared` : ""), "soft"),
      sparkline(sizes.get(session.session)));
    button.addEventListener("click", () => pick(session));
    item.append(button);
    return item;
  }));
  at("none").hidden = sessions.length > 0;
  at("bytes-legend").hidden = sessions.length === 0;
  if (focused !== undefined && focused !== null) {
    const again = at("sessions").querySelector(`[data-slot="${Number(focused)}"]`);
    if (again) again.focus();
  }
}

async function pick(session) {
  if (writing) writing.abort();
  const picked = {slot: session.id, name: session.name, policy: session.policy, messages: null};
  current = picked;
  shown = "";
  at("held-detail").textContent = HINT;
  list();
  await trying(async () => {
    picked.messages = (await read(`/slots/${session.id}/messages`)).messages;
    if (current !== picked) return;
    openChat();
    await look(false);
  });
}

function begin(event) {
  event.preventDefault();
  const name = at("name").value.trim();
  const same = sessions.find((each) => each.name === name);
  if (same) { say("There is a session of this name; it is open now."); pick(same); return; }
  if (!name) return;
  current = {slot: null, name, policy: at("policy").value, messages: []};
  shown = "";
  at("held").hidden = true;
  at("new-form").reset();
  openChat();
  list();
  at("text").focus();
}

async function trying(work) {
  try { say(""); await work(); } catch (error) { say(error.message, true); }
}

// ---- chat

function openChat() {
  const known = current.messages !== null;
  at("chat-title").textContent = current.name === null ? `Chat with slot ${current.slot}` : `Chat: ${current.name}`;
  at("messages").replaceChildren(...(current.messages || []).map((each) => entry(each.role, each.content)));
  at("chat-form").hidden = !known;
  at("chat-note").hidden = known && current.messages.length > 0;
  at("chat-note").textContent = known ? "Write the first message." :
    "Its messages are not known: it is a raw prompt, has functions, or comes from an earlier server.";
  at("messages").scrollTop = at("messages").scrollHeight;
}

function entry(role, content) {
  const item = make("li", undefined, role === "assistant" ? "assistant" : "other");
  item.append(make("b", role), make("p", content));
  return item;
}

function told(use) {
  const {how, kept, read: prefilled, forgotten} = use.reuse;
  return `${how}: kept ${kept.toLocaleString("en")}, read ${prefilled.toLocaleString("en")}, ` +
    `forgot ${forgotten.toLocaleString("en")} tokens`;
}

async function* events(answer) {
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const {done, value} = await reader.read();
    if (done) return;
    const parts = (rest + value).split("\n\n");
    rest = parts.pop();
    for (const part of parts) {
      const data = part.startsWith("data: ") ? part.slice(6) : "[DONE]";
      if (data !== "[DONE]") yield JSON.parse(data);
    }
  }
}

async function send(event) {
  event.preventDefault();
  const text = at("text").value, chat = current;
  if (writing || chat === null || chat.messages === null || !text.trim()) return;
  const messages = [...chat.messages, {role: "user", content: text}];
  const body = {model, messages, stream: true, stream_options: {include_usage: true}};
  if (chat.slot === null) body.agentkv = {session: chat.name, policy: chat.policy};
  else if (chat.name === null) body.id_slot = chat.slot;
  else body.agentkv = {session: chat.name};
  const reply = entry("assistant", ""), thought = make("p", "", "soft"), said = reply.lastChild;
  thought.hidden = true;
  reply.insertBefore(thought, said);
  at("messages").append(entry("user", text), reply);
  at("text").value = "";
  at("chat-note").hidden = true;
  const mine = writing = new AbortController();
  at("send").disabled = true;
  at("stop").disabled = false;
  let note = "", isBad = false, begun = false;
  try {
    say("");
    const answer = await ask("/v1/chat/completions", body, {signal: mine.signal});
    begun = true;
    for await (const each of events(answer)) {
      if (each.error) throw new Error(each.error.message);
      const delta = each.choices.length ? each.choices[0].delta : {};
      said.textContent += delta.content || "";
      thought.textContent += delta.reasoning_content || "";
      thought.hidden = !thought.textContent;
      if (each.usage) { note = told(each.usage.agentkv); chat.slot = each.usage.agentkv.slot; }
      at("messages").scrollTop = at("messages").scrollHeight;
    }
  } catch (error) {
    isBad = !mine.signal.aborted;
    note = isBad ? error.message : "stopped";
  }
  reply.append(make("p", note, `use ${isBad ? "bad" : "soft"}`));
  if (begun) chat.messages = [...messages, {role: "assistant", content: said.textContent}];
  else at("text").value = text;
  await poll();
  if (mine.signal.aborted) await settle(chat, begun ? said : null);
  writing = null;
  at("send").disabled = false;
  at("stop").disabled = true;
  at("messages").scrollTop = at("messages").scrollHeight;
  await trying(() => look(true));
}

// The server may have written more of a stopped reply than came here, and goes on after all of it.
// `said` is null if nothing came.
async function settle(chat, said) {
  for (let i = 0; i < 20; i += 1) {
    const found = sessions.find((each) => chat.slot === null ? each.name === chat.name : each.id === chat.slot);
    if (found && !found.is_processing) {
      chat.slot = found.id;
      list();
      if (said === null) return;
      try {
        const {messages} = await read(`/slots/${found.id}/messages`);
        if (messages && messages.length === chat.messages.length) {
          chat.messages = messages;
          said.textContent = messages[messages.length - 1].content;
        }
      } catch { /* it may be erased */ }
      return;
    }
    if (!found && said === null) return;
    await new Promise((resolve) => { setTimeout(resolve, 250); });
    await poll();
  }
}

// ---- what the cache holds

async function look(isAsked) {
  const looked = current;
  if (looked === null || looked.slot === null) return;
  const session = sessions.find((each) => each.id === looked.slot);
  at("held").hidden = session === undefined;
  if (session === undefined) return;
  const state = [session.id, session.session, session.n_tokens, session.bytes, session.is_processing].join();
  const isAway = !session.in_memory && !isAsked;
  at("load").hidden = !isAway;
  if (isAway) {
    at("held-note").textContent = "The session is on disk.";
    at("spans").replaceChildren();
    shown = "";
    return;
  }
  if (state === shown && !isAsked && !session.is_processing) return;
  const found = await read(`/slots/${session.id}/tokens`);
  if (looked !== current) return;
  shown = state;
  show(found, session);
}

function show(found, session) {
  const n = found.n_tokens;
  const inSome = found.pieces.reduce((sum, each) => sum + each.hot * each.n_tokens, 0);
  const numShown = n - found.first;
  const part = found.first ? `The newest ${numShown.toLocaleString("en")} of ` : "";
  const share = numShown ? ` On average ${Math.round(100 * inSome / numShown)} % of the layers and heads hold a token.` : "";
  at("held-note").textContent = `${part}${n.toLocaleString("en")} tokens.${share}`;
  const groups = [];
  let end = found.first;
  for (const span of found.spans) {
    if (span.start > end) groups.push({label: null, start: end, stop: span.start});
    groups.push(span);
    end = span.stop;
  }
  if (end < n || (found.unread.length && !groups.length)) groups.push({label: null, start: end, stop: n});
  const last = groups[groups.length - 1];
  const place = at("spans").scrollTop, focused = document.activeElement.dataset.does;
  at("spans").replaceChildren(...groups.filter((each) => each.stop > found.first || each === last)
    .map((each) => group(each, found, session, each === last)));
  for (const each of at("spans").querySelectorAll("[data-does]")) if (focused && each.dataset.does === focused) each.focus();
  at("spans").scrollTop = place;
}

function group(span, found, session, isLast) {
  const box = make("div", undefined, "span"), row = make("div", undefined, "row");
  const isPinned = found.pins.some((each) => each.start <= span.start && each.stop >= span.stop);
  row.append(make("h3", (span.label === null ? "(no label)" : span.label) + (isPinned ? ", pinned" : "")));
  const pieces = found.pieces.filter((each) => each.start >= span.start && each.start < span.stop);
  if (span.label !== null) {
    const pin = does(isPinned ? "unpin" : "pin", span.label, session);
    const drop = does("drop", span.label, session);
    // tokens that have left cannot be pinned
    pin.disabled = session.is_processing || (!isPinned && pieces.some((each) => each.hot < 1));
    drop.disabled = session.is_processing;
    row.append(pin, drop);
  }
  if (isLast) pieces.push(...found.unread);
  const about = heldText.summary(pieces), name = span.label === null ? "Text without a label" : `Text of ${span.label}`;
  box.append(row, ...(about ? [make("p", about, "about soft")] : []), heldText.paragraph(pieces, name, at("held-detail")));
  return box;
}

function does(action, label, session) {
  const button = make("button", {pin: "Pin", unpin: "Unpin", drop: "Drop"}[action]);
  button.type = "button";
  button.dataset.does = `${action} ${label}`;
  button.setAttribute("aria-label", `${button.textContent} ${label}`);
  const act = () => trying(async () => {
    await read(`/slots/${session.id}?action=${action}`, {label});
    await poll();
    await look(true);
  });
  button.addEventListener("click", action === "drop" ? () => {
    if (confirm("Drop these tokens from the cache? They cannot come back.")) act();
  } : act);
  return button;
}

function save(event) {
  event.preventDefault();
  trying(async () => {
    const done = await read(`/slots/${current.slot}?action=save`, {filename: at("file").value});
    say(`Saved ${done.n_saved.toLocaleString("en")} tokens in ${bytes(done.n_written)}.`);
  });
}

function fork() {
  trying(async () => {
    const from = current.name === null ? `slot ${current.slot}` : current.name;
    const name = [...`${from} (fork)`].slice(-256).join("");
    const done = await read(`/slots/${current.slot}?action=fork`, {session: name});
    await poll();
    const made = sessions.find((each) => each.id === done.id_slot);
    if (made) pick(made);
    say("Forked. Both sessions go on by themselves.");
  });
}

function erase() {
  if (!confirm("Erase this session?")) return;
  trying(async () => {
    await read(`/slots/${current.slot}?action=erase`, {});
    current = null;
    at("held").hidden = at("chat-form").hidden = true;
    at("messages").replaceChildren();
    at("chat-title").textContent = "Chat";
    at("chat-note").hidden = false;
    at("chat-note").textContent = "Pick a session, or begin a new one.";
    await poll();
  });
}

at("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  key = at("key").value.trim();
  at("key").value = "";
  sessionStorage.setItem("agentkv-key", key);
  poll();
});
at("new-form").addEventListener("submit", begin);
at("chat-form").addEventListener("submit", send);
at("text").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) send(event);
});
at("stop").addEventListener("click", () => writing && writing.abort());
at("load").addEventListener("click", () => trying(() => look(true)));
at("save-form").addEventListener("submit", save);
at("fork").addEventListener("click", fork);
at("erase").addEventListener("click", erase);
document.addEventListener("visibilitychange", () => document.hidden || poll());
setInterval(() => {
  if (!document.hidden && at("key-form").hidden) poll();
}, POLL_MS);
poll();
