// Gauges and players: what a progress bar, a meter, a video or a sound shows, in words.

const GAUGES = { progressbar: "progressbar", meter: "meter" };

// Returns the role of a gauge, or "".
const gaugeOf = (el, tag) => tag === "progress" ? "progressbar" : tag === "meter" ? "meter"
  : GAUGES[(attributeOf(el, "role") || "").trim().split(/\s+/)[0].toLowerCase()] || "";

const plainNumber = (number) => String(Number(number.toFixed(2)));

// Returns how far a gauge is: in percent, and as a share of its whole unless that is 1 or 100.
function share(value, least, most) {
  if (![value, least, most].every(Number.isFinite) || most <= least) return "";
  const percent = `${Math.round(100 * (value - least) / (most - least))}%`;
  if (least) return `${plainNumber(value)} (from ${plainNumber(least)} to ${plainNumber(most)})`;
  return most === 1 || most === 100 ? percent
    : `${plainNumber(value)} of ${plainNumber(most)} (${percent})`;
}

function gaugeValue(el, tag, role) {
  if (tag === "meter") return share(el.value, el.min, el.max);
  const running = "in progress", none = role === "progressbar" ? running : "";
  if (tag === "progress") return el.position < 0 ? running : share(el.value, 0, el.max);
  const said = (name) => collapse(attributeOf(el, `aria-${name}`) || "");
  const number = (name, missing) => parseFloat(said(name) || missing);
  return said("valuetext") ||
    (said("valuenow") && share(number("valuenow"), number("valuemin", 0), number("valuemax", 100))) || none;
}

const gaugeName = (el) => byIds(el, "aria-labelledby") || collapse(attributeOf(el, "aria-label") || "") ||
  collapse([...(labelsOf(el) || [])].map((label) => textOf(label)).join(" ")) ||
  collapse(tooltipOf(el) || "");

const PLAYERS = new Set(["audio", "video"]);

const clock = (seconds) => {
  const parts = [Math.floor(seconds / 3600), Math.floor(seconds / 60) % 60, Math.floor(seconds) % 60];
  if (!parts[0]) parts.shift();
  return parts.map((part, index) => (index ? String(part).padStart(2, "0") : part)).join(":");
};

// Returns what a player does and where it is.
function playerValue(el) {
  const isBroken = el.error || el.networkState === 3; // it has no source that can be played
  const doing = isBroken ? "cannot be played" : el.ended ? "ended" : el.paused ? "paused" : "playing";
  const at = isBroken || Number.isNaN(el.duration) ? ""
    : Number.isFinite(el.duration) ? ` at ${clock(el.currentTime)} of ${clock(el.duration)}` : " live";
  return doing + at + (el.muted || el.volume === 0 ? ", muted" : "");
}

// Returns whether a video is a moving background, which nobody is meant to stop.
const isBackdrop = (el) => !el.controls && el.muted && el.loop;

// Returns the point of a rectangle of an element that is pressed: the middle, or of a player the button
// that Chromium draws, because a press elsewhere on a video acts only once it cannot be a double one.
function pressedPoint(el, { x, y, width, height }) {
  const middle = [x + width / 2, y + height / 2];
  if (!PLAYERS.has(tagOf(el)) || !el.controls || width < 100) return middle;
  if (tagOf(el) === "audio") return [x + height / 2, middle[1]];
  return height < 100 ? middle : [x + 24, y + height - 48];
}
