"""Fields that take single keys: code boxes, date segments, sliders."""

from tests.env.kinds.fields import REVERTS, VALUE, field
from tests.env.kinds.kind import Done, Kind, Refused

JOINED = "[...document.querySelectorAll('input')].map((each) => each.value).join('')"


def boxes(count: int, attributes: str, script: str) -> str:
    """Return boxes of a code in a row, each with a script; `e` is the box and `f` all of them."""
    drawn = "".join(f"<input {attributes} aria-label='Digit {n + 1}'>" for n in range(count))
    return f"""<div id=row>{drawn}</div><script>
const f = [...document.querySelectorAll("#row input")];
f.forEach((e, i) => {{ {script} }});</script>"""


MOVE_ON = "e.addEventListener('input', () => { if (e.value && f[i + 1]) f[i + 1].focus() });"

# A segment takes single digits, moves on when no further digit can follow, and shows numbers with
# two places. React Aria listens to `beforeinput`, MUI X to `keydown`.
SEGMENTS = """<div role=group aria-label=Day>%s</div><script>
const all = [...document.querySelectorAll("[role=spinbutton]")];
all.forEach((e, i) => {
  let typed = "";
  const most = Number(e.ariaValueMax), places = String(most).length;
  const show = (number) => {
    if (number === null) { e.removeAttribute("aria-valuenow"); e.ariaValueText = "Empty" }
    else { e.ariaValueNow = number; e.ariaValueText = String(number).padStart(2, "0") }
    e.textContent = number === null ? e.dataset.empty : e.ariaValueText;
  };
  const digit = (key) => {
    if (!/^\\d$/.test(key)) return;
    typed += key;
    if (Number(typed) > most) typed = key;
    show(Number(typed));
    if (typed.length === places || Number(typed) * 10 > most) { typed = ""; all[i + 1]?.focus() }
  };
  e.addEventListener("focus", () => { typed = "" });
  e.addEventListener("beforeinput", (event) => {
    event.preventDefault();
    if (event.inputType === "deleteContentBackward") show(null);
    else if ("BEFORE") digit(event.data || "");
  });
  e.addEventListener("keydown", (event) => {
    const step = { ArrowUp: 1, ArrowDown: -1 }[event.key];
    if (step) show(Math.min(most, Math.max(1, Number(e.ariaValueNow || 0) + step)));
    if (!"BEFORE" && /^\\d$/.test(event.key)) { event.preventDefault(); digit(event.key) }
  });
});</script>"""
SEGMENT = (
    "<span role=spinbutton contenteditable tabindex=0 inputmode=numeric aria-label={0} "
    "aria-valuemin=1 aria-valuemax={1} aria-valuetext=Empty data-empty={2}>{2}</span>"
)
DAY = " / ".join(
    SEGMENT.format(*part)
    for part in (("month", 12, "mm"), ("day", 31, "dd"), ("year", 9999, "yyyy"))
)
SHOWN = "[...document.querySelectorAll('[role=spinbutton]')].map((e) => e.textContent).join('/')"


def slider(least: int, most: int, now: int, keys: str, name: str = "Volume") -> str:
    """Return a slider of its own making; `keys` maps keys to steps."""
    return f"""<span role=slider tabindex=0 aria-label={name} aria-valuemin={least}
aria-valuemax={most} aria-valuenow={now} style="display:inline-block;width:20px;height:20px"></span>
<script>{{ const e = document.currentScript.previousElementSibling, steps = {keys};
e.addEventListener("keydown", (event) => {{
  if (!(event.key in steps)) return;
  event.preventDefault();
  const [least, most] = [Number(e.ariaValueMin), Number(e.ariaValueMax)];
  e.ariaValueNow = Math.min(most, Math.max(least, Number(e.ariaValueNow) + steps[event.key]));
}}) }}</script>"""


ARROWS = "{ArrowRight: 1, ArrowUp: 1, ArrowLeft: -1, ArrowDown: -1, PageUp: 10, PageDown: -10}"
NOW = "document.querySelector('[role=slider]').ariaValueNow"

KINDS = (
    Kind(
        name="code in boxes that advance",
        toolkit="react-otp-input",
        html=boxes(6, "maxlength=1 inputmode=numeric autocomplete=one-time-code", MOVE_ON),
        reads=("textbox Digit 1", "textbox Digit 6"),
        action="type [{id}] [482-913] [0]",
        target=("textbox", "Digit 1"),
        outcome=Done(JOINED, "482913"),
    ),
    Kind(
        name="code in boxes that advance after a delay, with old digits",
        toolkit="PrimeNG",
        html=boxes(
            4,
            "maxlength=1 value=7",
            "e.addEventListener('input', () => setTimeout(() => { f[i + 1]?.focus() }, 20));",
        ),
        reads=("textbox Digit 1 = 7",),
        action="type [{id}] [4829] [0]",
        target=("textbox", "Digit 1"),
        outcome=Done(JOINED, "4829"),
    ),
    Kind(
        name="code in boxes without a maximum",
        toolkit="Ant Design",
        html=boxes(
            4,
            "size=1 style='width:30px'",
            "e.addEventListener('input', () => {e.value = e.value.slice(-1); f[i + 1]?.focus() });",
        ),
        reads=("textbox Digit 1",),
        action="type [{id}] [4829] [0]",
        target=("textbox", "Digit 1"),
        outcome=Done(JOINED, "4829"),
    ),
    Kind(
        name="code in boxes that a paste fills",
        toolkit="Chakra UI",
        html=boxes(
            4,
            "maxlength=6 style='width:30px'",
            "e.addEventListener('input', () => { const all = [...e.value];"
            "all.forEach((each, n) => { if (f[i + n]) f[i + n].value = each });"
            "f[Math.min(3, i + all.length)].focus() });",
        ),
        reads=("textbox Digit 1",),
        action="type [{id}] [4829] [0]",
        target=("textbox", "Digit 1"),
        outcome=Done(JOINED, "4829"),
    ),
    Kind(
        name="code in boxes that are disabled at first",
        toolkit="Vuetify",
        html=boxes(
            4,
            "maxlength=1",
            "e.disabled = i > 0; e.addEventListener('input', () => {"
            "if (f[i + 1]) { f[i + 1].disabled = false; f[i + 1].focus() } });",
        ),
        reads=("textbox Digit 1", "textbox Digit 2 (disabled)"),
        action="type [{id}] [4829] [0]",
        target=("textbox", "Digit 1"),
        outcome=Done(JOINED, "4829"),
    ),
    Kind(
        name="code in boxes that do not advance",
        toolkit="HTML",
        html=boxes(4, "maxlength=1", ""),
        reads=("textbox Digit 1",),
        action="type [{id}] [48 29] [0]",
        target=("textbox", "Digit 1"),
        outcome=Done(JOINED, "4829"),
    ),
    Kind(
        name="code longer than its boxes",
        toolkit="HTML",
        html=boxes(4, "maxlength=1", MOVE_ON),
        reads=("textbox Digit 1",),
        action="type [{id}] [482913] [0]",
        target=("textbox", "Digit 1"),
        outcome=Refused("takes at most 1 character, and with the boxes after it 4; the text has 6"),
        read_after=("textbox Digit 1",),
    ),
    Kind(
        name="key in boxes of five characters",
        toolkit="HTML",
        html=boxes(
            3,
            "maxlength=5 size=5",
            "e.addEventListener('input', () => { e.value = e.value.toUpperCase();"
            "if (e.value.length === 5) f[i + 1]?.focus() });",
        ),
        reads=("textbox Digit 1",),
        action="type [{id}] [abcde-fghij-klmno] [0]",
        target=("textbox", "Digit 1"),
        outcome=Done(JOINED, "ABCDEFGHIJKLMNO"),
    ),
    Kind(
        name="code field with drawn boxes",
        toolkit="shadcn/ui",
        html="""<div style="position:relative;width:120px;height:30px"><div>_ _ _ _ _ _</div>
<input maxlength=6 aria-label=Code autocomplete=one-time-code
style="position:absolute;inset:0;color:transparent;background:none;border:0"></div>""",
        reads=("textbox Code",),
        action="type [{id}] [482913] [0]",
        target=("textbox", "Code"),
        outcome=Done(VALUE, "482913"),
    ),
    Kind(
        name="segment of a date",
        toolkit="React Aria",
        html=SEGMENTS.replace('"BEFORE"', "true") % DAY,
        reads=("textbox month = mm", "textbox day = dd", "textbox year = yyyy"),
        action="type [{id}] [2026] [0]",
        target=("textbox", "year"),
        outcome=Done(SHOWN, "mm/dd/2026"),
        read_after=("textbox year = 2026",),
    ),
    Kind(
        name="date in segments",
        toolkit="React Aria",
        html=SEGMENTS.replace('"BEFORE"', "true") % DAY,
        reads=("textbox month = mm",),
        action="type [{id}] [3/14/2026] [0]",
        target=("textbox", "month"),
        outcome=Done(SHOWN, "03/14/2026"),
        read_after=("textbox month = 03", "textbox day = 14", "textbox year = 2026"),
    ),
    Kind(
        name="date in segments that accept only keys",
        toolkit="MUI X",
        html=SEGMENTS.replace('"BEFORE"', "false") % DAY,
        reads=("textbox month = mm",),
        action="type [{id}] [12/05/2026] [0]",
        target=("textbox", "month"),
        outcome=Done(SHOWN, "12/05/2026"),
    ),
    Kind(
        name="date in segments, in another order",
        toolkit="MUI X",
        html=SEGMENTS.replace('"BEFORE"', "false") % DAY,
        reads=("textbox month = mm",),
        action="type [{id}] [2026-03-14] [0]",
        target=("textbox", "month"),
        outcome=Refused('does not take "2026"; type each segment by itself'),
        read_after=("textbox month = mm", "textbox day = dd", "textbox year = yyyy"),
    ),
    Kind(
        name="spin button with arrows",
        toolkit="ARIA Practices",
        html="""<div role=spinbutton tabindex=0 aria-label=Guests aria-valuenow=2 aria-valuemin=1
aria-valuemax=8>2</div><script>const e = document.querySelector("[role=spinbutton]");
e.onkeydown = (event) => { const step = { ArrowUp: 1, ArrowDown: -1 }[event.key];
if (step) e.textContent = e.ariaValueNow = Number(e.ariaValueNow) + step }</script>""",
        reads=("textbox Guests = 2",),
        action="type [{id}] [5] [0]",
        target=("textbox", "Guests"),
        outcome=Done("e.ariaValueNow", "5"),
        read_after=("textbox Guests = 5",),
    ),
    Kind(
        name="slider",
        toolkit="Radix",
        html=slider(0, 100, 20, ARROWS),
        reads=("slider Volume = 20",),
        action="type [{id}] [73] [0]",
        target=("slider", "Volume"),
        outcome=Done(NOW, "73"),
        read_after=("slider Volume = 73",),
    ),
    Kind(
        name="slider with large steps",
        toolkit="noUiSlider",
        html=slider(0, 100, 20, "{ArrowRight: 10, ArrowLeft: -10}"),
        reads=("slider Volume = 20",),
        action="type [{id}] [73] [0]",
        target=("slider", "Volume"),
        outcome=Refused('shows "70" now and does not go to 73 by keys'),
        read_after=("slider Volume = 70",),
        note="the nearest value stays set, and the error names it",
    ),
    Kind(
        name="slider from right to left",
        toolkit="MUI",
        html=slider(0, 50, 20, "{ArrowRight: -1, ArrowLeft: 1}"),
        reads=("slider Volume = 20",),
        action="type [{id}] [31] [0]",
        target=("slider", "Volume"),
        outcome=Done(NOW, "31"),
    ),
    Kind(
        name="slider with two thumbs",
        toolkit="PrimeNG",
        html=slider(0, 60, 20, ARROWS, "From") + slider(20, 100, 60, ARROWS, "To"),
        reads=("slider From = 20", "slider To = 60"),
        action="type [{id}] [45] [0]",
        target=("slider", "To"),
        outcome=Done(
            "[...document.querySelectorAll('[role=slider]')].map((e) => e.ariaValueNow)",
            ["20", "45"],
        ),
    ),
    Kind(
        name="slider that moves only with the mouse",
        toolkit="HTML",
        html=slider(0, 100, 20, "{}"),
        reads=("slider Volume = 20",),
        action="type [{id}] [73] [0]",
        target=("slider", "Volume"),
        outcome=Refused('shows "20" now and does not go to 73 by keys'),
    ),
    Kind(
        name="slider beyond its range",
        toolkit="Radix",
        html=slider(0, 100, 20, ARROWS),
        reads=("slider Volume = 20",),
        action="type [{id}] [150] [0]",
        target=("slider", "Volume"),
        outcome=Refused('does not take "150"; it takes a number from 0 to 100, and shows "20" now'),
        read_after=("slider Volume = 20",),
    ),
    Kind(
        name="native range",
        toolkit="HTML",
        html="<label>Price <input type=range min=0 max=500 step=50 value=100></label>",
        reads=("slider Price = 100",),
        action="type [{id}] [350] [0]",
        target=("slider", "Price"),
        outcome=Done(VALUE, "350"),
    ),
    Kind(
        name="native range between its steps",
        toolkit="Bootstrap",
        html="<label>Price <input type=range min=0 max=500 step=50 value=100></label>",
        reads=("slider Price = 100",),
        action="type [{id}] [370] [0]",
        target=("slider", "Price"),
        outcome=Refused("it takes a number from 0 to 500 in steps of 50"),
        read_after=("slider Price = 100",),
    ),
    Kind(
        name="range that a script resets",
        toolkit="React",
        html=field("Price", "type=range min=0 max=9 value=4", REVERTS % "() => null"),
        reads=("slider Price = 4",),
        action="type [{id}] [7] [0]",
        target=("slider", "Price"),
        outcome=Refused('shows "4" now and does not go to 7'),
        read_after=("slider Price = 4",),
    ),
)
