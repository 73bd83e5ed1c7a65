"""Content that appears on hover, or late."""

from tests.env.kinds.kind import Done, Kind


def rows(style: str) -> str:
    """Return a table whose rows have actions in their last cells, `.actions`."""
    cells = "<td class=actions><button>Edit</button> <button>Delete</button></td>"
    return f"<!doctype html><style>{style}</style><table>" + "".join(
        f"<tr><td>{name}</td>{cells}</tr>" for name in ("Ann", "Bob", "Cid")
    )


def on_press(script: str, body: str = "") -> str:
    """Return a button whose press runs a script; `out` is where it writes."""
    return f"""<!doctype html>{body}<button onclick="go()">Go</button><div id=out></div><script>
const out = document.getElementById("out"), later = (ms, then) => setTimeout(then, ms);
function go() {{ {script} }}</script>"""


BUTTONS = ("button Edit", "button Delete")
FIRST_ROW = "item Ann (hover shows: Edit | Delete)"
TEXT = "document.body.innerText.includes('{}')"
GO = ("button", "Go")
PRESS = "click [{id}]"
HOVER = "hover [{id}]"

KINDS = (
    Kind(
        name="actions of a row, transparent until hover",
        toolkit="AG Grid",
        html=rows(
            ".actions { opacity: 0; transition: opacity .2s } tr:hover .actions { opacity: 1 }"
        ),
        reads=(FIRST_ROW, "item Bob (hover)"),
        action=HOVER,
        target=("item", "Bob"),
        outcome=Done("getComputedStyle(document.querySelectorAll('.actions')[1]).opacity", "1"),
        read_after=(FIRST_ROW, "Bob", *BUTTONS),
        note="named once for all equal rows",
    ),
    Kind(
        name="actions of a row, invisible until hover",
        toolkit="Tailwind CSS",
        html=rows(
            ".actions { visibility: hidden; opacity: 0 } @media (hover: hover) {"
            ".actions:is(:where(tr):hover *) { visibility: visible }"
            "tr { &:hover .actions { opacity: 1 } } }"
        ),
        reads=(FIRST_ROW, "item Bob (hover)"),
        action=HOVER,
        target=("item", "Bob"),
        outcome=Done("getComputedStyle(document.querySelectorAll('.actions')[1]).opacity", "1"),
        read_after=BUTTONS,
    ),
    Kind(
        name="menu in a bar, displayed on hover",
        toolkit="Bulma",
        html="""<style>.drop { display: none } .item:hover > .drop { display: block }</style>
<div class=item><a href=#all>Products</a><div class=drop><a href=#phones>Phones</a><br>
<a href=#cases>Cases</a></div></div><p>Text</p>""",
        reads=("link Products (hover shows: Phones | Cases)",),
        action=HOVER,
        target=("link", "Products"),
        outcome=Done("document.querySelector('.drop').checkVisibility()", True),
        read_after=("link Products", "link Phones", "link Cases"),
    ),
    Kind(
        name="menu that opens some time after hover",
        toolkit="Ant Design",
        html="""<button aria-haspopup=menu>Account</button><script>
const button = document.querySelector("button"); let timer, menu;
const open = () => { menu ??= document.createElement("div"); menu.onmouseenter = stop;
  menu.innerHTML = "<a href=#out>Log out</a>"; menu.style = "position:absolute;top:99px";
  menu.onmouseleave = close; document.body.append(menu) };
const stop = () => clearTimeout(timer);
const close = () => { timer = setTimeout(() => menu.remove(), 150) };
button.onmouseenter = () => { timer = setTimeout(open, 250) }; button.onmouseleave = close;
</script>""",
        reads=("button Account (hover)",),
        action=HOVER,
        target=("button", "Account"),
        outcome=Done(TEXT.format("Log out"), True),
        read_after=("link Log out",),
    ),
    Kind(
        name="card with a button created on hover",
        toolkit="React",
        html="""<div id=card><h3>Blue Kayak</h3>12 USD</div><script>
const enter = () => card.insertAdjacentHTML("beforeend", "<button>Quick view</button>");
card.__reactProps$a1 = { onMouseEnter: enter }; let inside = false;
document.addEventListener("mouseover", ({ target }) => {
  const now = card.contains(target); if (now && !inside) enter(); inside = now });</script>""",
        reads=("heading Blue Kayak (hover)",),
        action=HOVER,
        target=("heading", "Blue Kayak"),
        outcome=Done(TEXT.format("Quick view"), True),
        read_after=("button Quick view",),
        note="agentkv cannot predict what a listener creates",
    ),
    Kind(
        name="tooltip beside a word",
        toolkit="Bootstrap",
        html="""<style>.tip { visibility: hidden }
.word:hover + .tip { visibility: visible }</style>
<p>12 USD, <span class=word>net</span> <span class=tip>without VAT</span></p>""",
        reads=("item net (hover shows: without VAT)",),
        action=HOVER,
        target=("item", "net"),
        outcome=Done("getComputedStyle(document.querySelector('.tip')).visibility", "visible"),
        read_after=("12 USD, net without VAT",),
    ),
    Kind(
        name="tooltip of the browser",
        toolkit="HTML",
        html="<a href=#x title='Opened 3 May 2026'>May</a>",
        reads=("link May",),
        action=HOVER,
        target=("link", "May"),
        outcome=Done("document.querySelector('a').matches(':is(:hover)')", True),
        read_after=("notice: shown for a moment: Opened 3 May 2026",),
        note="not announced, because most tooltips repeat the name",
    ),
    Kind(
        name="suggestions, 600 ms after the last key",
        toolkit="Material UI",
        html="""<label>City <input aria-autocomplete=list></label><ul></ul><script>
const field = document.querySelector("input"), list = document.querySelector("ul"); let timer;
field.oninput = () => { clearTimeout(timer); list.textContent = "Loading…";
  timer = setTimeout(() => {
  list.innerHTML = `<li role=option tabindex=0>${field.value} City` }, 600) };
</script>""",
        reads=("textbox City",),
        action="type [{id}] [Oslo] [0]",
        target=("textbox", "City"),
        outcome=Done("document.querySelector('li').innerText", "Oslo City"),
        read_after=("option Oslo City",),
    ),
    Kind(
        name="results requested after a pause",
        toolkit="Algolia",
        html="""<label>Find <input></label><div id=out></div><script>
const field = document.querySelector("input"); let timer;
field.oninput = () => { clearTimeout(timer); timer = setTimeout(async () => {
  out.innerHTML = await (await fetch("/hits?" + field.value)).text() }, 300) };</script>""",
        reads=("textbox Find",),
        action="type [{id}] [kayak] [0]",
        target=("textbox", "Find"),
        outcome=Done("out.innerText", "Blue Kayak"),
        read_after=("link Blue Kayak",),
        pages={"/hits": "<a href=#1>Blue Kayak</a>"},
    ),
    Kind(
        name="skeleton that content replaces",
        toolkit="Chakra UI",
        html=on_press(
            "out.innerHTML = '<div class=bone></div>'; "
            "later(700, () => { out.innerHTML = 'Ready' })",
            "<style>@keyframes pulse { to { opacity: .4 } } .bone { height: 20px; "
            "background: silver; animation: pulse 1s infinite }</style>",
        ),
        reads=("button Go",),
        action=PRESS,
        target=GO,
        outcome=Done("out.innerText", "Ready"),
        read_after=("Ready",),
    ),
    Kind(
        name="panel that disappears before the next one appears",
        toolkit="Vue",
        html=on_press(
            "one.style.opacity = 0; "
            "one.ontransitionend = () => { one.hidden = true; two.hidden = false }",
            "<div id=one style='transition: opacity .4s'>Step 1</div>"
            "<div id=two hidden>Step 2</div>",
        ),
        reads=("Step 1",),
        action=PRESS,
        target=GO,
        outcome=Done("two.hidden", False),
        read_after=("Step 2",),
    ),
    Kind(
        name="message that appears briefly",
        toolkit="Sonner",
        html=on_press(
            "out.innerHTML = '<div role=status>Saved to drafts</div>';"
            "later(900, () => out.replaceChildren());"
            "later(1000, () => { out.textContent = 'Version 2' })"
        ),
        reads=("button Go",),
        action=PRESS,
        target=GO,
        outcome=Done("out.innerText", "Version 2"),
        read_after=("notice: shown for a moment: Saved to drafts", "Version 2"),
        note="a message that stays 1.5 s or longer is read in place",
    ),
    Kind(
        name="text that never ends",
        toolkit="a chat",
        html=on_press("setInterval(() => out.append('word '), 100)"),
        reads=("button Go",),
        action=PRESS,
        target=GO,
        outcome=Done(TEXT.format("word word"), True),
        note="read after 1.5 s at most; `wait` is possible",
    ),
    Kind(
        name="clock and automatic slides",
        toolkit="Swiper",
        html=on_press(
            "out.textContent = 'Done'",
            "<p id=clock></p><script>let n = 0; const tick = () => {"
            "clock.textContent = `second ${n++}`;"
            "setTimeout(tick, 1000) }; tick(); setInterval(() => {}, 300)</script>",
        ),
        reads=("second 0",),
        action=PRESS,
        target=GO,
        outcome=Done("out.innerText", "Done"),
        read_after=("Done",),
        note="not waited for",
    ),
)
