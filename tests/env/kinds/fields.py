"""Text fields and lists."""

from tests.env.kinds.kind import Done, Kind, Refused

VALUE = "document.querySelector('input').value"


def field(label: str, attributes: str, script: str) -> str:
    """Return a field with a script; `e` is the field."""
    return f"""<label>{label} <input {attributes}></label><script>
const e = document.querySelector("input"); {script}</script>"""


# React keeps the value of a field itself, and writes it back after every change.
REVERTS = "let own = e.value; e.addEventListener('input', () => { const next = (%s)(e.value); "
REVERTS += "own = next ?? own; queueMicrotask(() => { e.value = own }) });"

KINDS = (
    Kind(
        name="text field",
        toolkit="HTML",
        html="<label>City <input value=Rome></label>",
        reads=("textbox City = Rome",),
        action="type [{id}] [Oslo] [0]",
        target=("textbox", "City"),
        outcome=Done(VALUE, "Oslo"),
        read_after=("textbox City = Oslo",),
    ),
    Kind(
        name="telephone number with a mask",
        toolkit="IMask",
        html=field(
            "Phone",
            "type=tel",
            "e.addEventListener('input', () => { const d = e.value.replace(/\\D/g, '');"
            "e.value = d.replace(/(\\d{3})(\\d{3})(\\d+)/, '($1) $2-$3') });",
        ),
        reads=("textbox Phone",),
        action="type [{id}] [5551234567] [0]",
        target=("textbox", "Phone"),
        outcome=Done(VALUE, "(555) 123-4567"),
        read_after=(
            'notice: textbox "Phone" holds "(555) 123-4567" now',
            "textbox Phone = (555) 123-4567",
        ),
    ),
    Kind(
        name="date with a mask that accepts only key presses",
        toolkit="jQuery Inputmask",
        html=field(
            "Born",
            "value=__/__/____",
            """let buffer = "";
const draw = () => { let at = 0;
  e.value = "__/__/____".replace(/_/g, (blank) => buffer[at++] ?? blank) };
e.addEventListener("keydown", (event) => { if (event.key === "Backspace") {
  event.preventDefault();
  buffer = e.selectionStart < e.selectionEnd ? "" : buffer.slice(0, -1); draw() } });
e.addEventListener("keypress", (event) => { event.preventDefault();
  if (/\\d/.test(event.key) && buffer.length < 8) buffer += event.key; draw() });""",
        ),
        reads=("textbox Born = __/__/____",),
        action="type [{id}] [03141990] [0]",
        target=("textbox", "Born"),
        outcome=Done(VALUE, "03/14/1990"),
        read_after=("textbox Born = 03/14/1990",),
    ),
    Kind(
        name="card number in groups of four",
        toolkit="Cleave.js",
        html=field(
            "Card",
            "inputmode=numeric maxlength=19",
            "e.addEventListener('input', () => {"
            "e.value = (e.value.replace(/\\D/g, '').match(/.{1,4}/g) || []).join(' ') });",
        ),
        reads=("textbox Card",),
        action="type [{id}] [4111111111111111] [0]",
        target=("textbox", "Card"),
        outcome=Done(VALUE, "4111 1111 1111 1111"),
        read_after=('notice: textbox "Card" holds "4111 1111 1111 1111" now',),
    ),
    Kind(
        name="IBAN in capitals and groups",
        toolkit="Vuetify",
        html=field(
            "IBAN",
            "",
            "e.addEventListener('keyup', () => { e.value = (e.value.toUpperCase()"
            ".replace(/[^A-Z0-9]/g, '').match(/.{1,4}/g) || []).join(' ') });",
        ),
        reads=("textbox IBAN",),
        action="type [{id}] [de89370400440532013000] [0]",
        target=("textbox", "IBAN"),
        outcome=Done(VALUE, "DE89 3704 0044 0532 0130 00"),
    ),
    Kind(
        name="field that accepts only digits",
        toolkit="Ant Design",
        html=field(
            "Floor",
            "value=3",
            "e.addEventListener('beforeinput', (event) => {"
            "if (/\\D/.test(event.data || '')) event.preventDefault() });",
        ),
        reads=("textbox Floor = 3",),
        action="type [{id}] [12a4] [0]",
        target=("textbox", "Floor"),
        outcome=Refused('holds "124" now, not the text'),
        read_after=("textbox Floor = 124",),
    ),
    Kind(
        name="number that is clamped",
        toolkit="Ant Design",
        html=field(
            "Seats",
            "value=2 role=spinbutton",
            "e.addEventListener('input', () => { if (e.value > 10) e.value = 10 });",
        ),
        reads=("textbox Seats = 2",),
        action="type [{id}] [25] [0]",
        target=("textbox", "Seats"),
        outcome=Refused('holds "10" now, not the text'),
    ),
    Kind(
        name="number field",
        toolkit="Bootstrap",
        html="<label>Copies <input type=number min=1 max=20 value=1></label>",
        reads=("textbox Copies = 1",),
        action="type [{id}] [12] [0]",
        target=("textbox", "Copies"),
        outcome=Done(VALUE, "12"),
    ),
    Kind(
        name="number field, given words",
        toolkit="HTML",
        html="<label>Copies <input type=number min=1 max=20 value=1></label>",
        reads=("textbox Copies = 1",),
        action="type [{id}] [12 pieces] [0]",
        target=("textbox", "Copies"),
        outcome=Refused("takes a number such as 1250 or 12.5, without separators and units"),
        read_after=("textbox Copies = 1",),
    ),
    Kind(
        name="amount with separators",
        toolkit="PrimeNG",
        html=field(
            "Amount",
            "inputmode=decimal value=0.00",
            """let typed = ""; e.addEventListener("beforeinput", (event) => event.preventDefault());
e.addEventListener("keydown", (event) => {
  if (event.key === "Backspace") typed = "";
  else if (/^[\\d.]$/.test(event.key)) typed += event.key; else return;
  e.value = Number(typed).toLocaleString("en-US", { minimumFractionDigits: 2 }) });""",
        ),
        reads=("textbox Amount = 0.00",),
        action="type [{id}] [1234.5] [0]",
        target=("textbox", "Amount"),
        outcome=Done(VALUE, "1,234.50"),
        read_after=('notice: textbox "Amount" holds "1,234.50" now',),
    ),
    Kind(
        name="field with a maximum length",
        toolkit="HTML",
        html="<label>Note <input maxlength=10 value=old></label>",
        reads=("textbox Note = old",),
        action="type [{id}] [far too long] [0]",
        target=("textbox", "Note"),
        outcome=Refused("takes at most 10 characters; the text has 12; shorten it"),
        read_after=("textbox Note = old",),
    ),
    Kind(
        name="controlled field that reverts",
        toolkit="React",
        html=field("Plan", "value=Basic", REVERTS % "() => null"),
        reads=("textbox Plan = Basic",),
        action="type [{id}] [Gold] [0]",
        target=("textbox", "Plan"),
        outcome=Refused('holds "Basic" now, not the text'),
        read_after=("textbox Plan = Basic",),
    ),
    Kind(
        name="controlled field in capitals",
        toolkit="React",
        html=field("Plate", "", REVERTS % "(text) => text.toUpperCase()"),
        reads=("textbox Plate",),
        action="type [{id}] [ab 123] [0]",
        target=("textbox", "Plate"),
        outcome=Done(VALUE, "AB 123"),
        read_after=('notice: textbox "Plate" holds "AB 123" now',),
    ),
    Kind(
        name="controlled field that accepts one character at a time",
        toolkit="React",
        html=field("Coupon", "", REVERTS % "(text) => text.length > own.length + 1 ? own : text"),
        reads=("textbox Coupon",),
        action="type [{id}] [SAVE20] [0]",
        target=("textbox", "Coupon"),
        outcome=Done(VALUE, "SAVE20"),
        note="typed with keys after an insertion failed",
    ),
    Kind(
        name="field that is replaced at every change",
        toolkit="React",
        html="""<label for=f>Name</label> <span id=box></span><script>
const draw = (text) => { box.innerHTML = "<input id=f>"; f.value = text;
  f.oninput = () => draw(f.value) }; draw("");</script>""",
        reads=("textbox Name",),
        action="type [{id}] [Ann] [0]",
        target=("textbox", "Name"),
        outcome=Refused('holds "An" now, not the text'),
    ),
    Kind(
        name="password that is cut",
        toolkit="HTML",
        html=field(
            "Password", "type=password", "e.oninput = () => { e.value = e.value.slice(0, 4) };"
        ),
        reads=("textbox Password (password)",),
        action="type [{id}] [otter-99-moss] [0]",
        target=("textbox", "Password"),
        outcome=Refused("holds something else now, not the text"),
        note="no message quotes a password",
    ),
    Kind(
        name="rich text",
        toolkit="Quill",
        html="""<div class=ql-editor contenteditable aria-label=Post><p>Hello</p></div>""",
        reads=("textbox Post = Hello",),
        action="type [{id}] [Dear Ann,\nsee you] [0]",
        target=("textbox", "Post"),
        outcome=Done("document.querySelector('.ql-editor').innerText.trim()", "Dear Ann,\nsee you"),
    ),
    Kind(
        name="rich text with its own document model",
        toolkit="Lexical",
        html="""<div contenteditable aria-label=Post></div><script>
const e = document.querySelector("div"); let own = "";
const all = () => getSelection().toString() === own && own;
e.addEventListener("beforeinput", (event) => { event.preventDefault();
  if (event.inputType === "insertText") own = (all() ? "" : own) + event.data;
  if (event.inputType.startsWith("delete")) own = all() ? "" : own.slice(0, -1);
  requestAnimationFrame(() => { e.textContent = own; getSelection().selectAllChildren(e);
    getSelection().collapseToEnd() }) });</script>""",
        reads=("textbox Post",),
        action="type [{id}] [Dear Ann] [0]",
        target=("textbox", "Post"),
        outcome=Done("document.querySelector('div').innerText", "Dear Ann"),
    ),
    Kind(
        name="rich text that rejects every change",
        toolkit="ProseMirror",
        html="""<div contenteditable aria-label=Post>Locked</div><script>
document.querySelector("div").addEventListener("beforeinput", (event) => event.preventDefault());
</script>""",
        reads=("textbox Post = Locked",),
        action="append [{id}] [ more]",
        target=("textbox", "Post"),
        outcome=Refused('holds "Locked" now, not the text'),
        read_after=("textbox Post = Locked",),
    ),
    Kind(
        name="text area with a counter",
        toolkit="Bootstrap",
        html="""<textarea aria-label=Story oninput="n.textContent = value.length + ' of 100'">
</textarea> <p id=n>0 of 100</p>""",
        reads=("textbox Story", "0 of 100"),
        action="type [{id}] [one\ntwo] [0]",
        target=("textbox", "Story"),
        outcome=Done("document.querySelector('textarea').value", "one\ntwo"),
        read_after=("7 of 100",),
    ),
    Kind(
        name="tags that a comma completes",
        toolkit="Tagify",
        html="""<p><span id=tags></span> <input aria-label=Tags></p><script>
const e = document.querySelector("input");
e.addEventListener("keydown", (event) => { if (event.key !== ",") return;
  event.preventDefault();
  tags.insertAdjacentHTML("beforeend", `<span>${e.value} <button>x</button></span> `);
  e.value = "" });</script>""",
        reads=("textbox Tags",),
        action="type [{id}] [red,] [0]",
        target=("textbox", "Tags"),
        outcome=Done("tags.innerText.trim()", "red x"),
        read_after=('notice: textbox "Tags" has taken "red," and holds nothing now', "red"),
    ),
    Kind(
        name="combobox that filters",
        toolkit="Headless UI",
        html="""<input role=combobox aria-expanded=false aria-label=Town><ul role=listbox></ul>
<script>
const e = document.querySelector("input"), list = document.querySelector("ul");
e.oninput = () => { e.ariaExpanded = "true"; list.innerHTML = ["Oslo", "Osaka", "Rome"]
  .filter((each) => each.startsWith(e.value)).map((each) => `<li role=option>${each}`).join("") };
</script>""",
        reads=("textbox Town (collapsed)",),
        action="type [{id}] [Os] [0]",
        target=("textbox", "Town"),
        outcome=Done(VALUE, "Os"),
        read_after=("textbox Town = Os (expanded)", "option Oslo", "option Osaka"),
    ),
    Kind(
        name="field that completes what is typed",
        toolkit="Vuetify",
        html=field(
            "Town",
            "",
            "e.addEventListener('input', (event) => { const n = e.value.length;"
            "if (event.inputType === 'insertText' && 'Romeo'.startsWith(e.value)) {"
            "e.value = 'Romeo'; e.setSelectionRange(n, 5) } });",
        ),
        reads=("textbox Town",),
        action="type [{id}] [Rome] [0]",
        target=("textbox", "Town"),
        outcome=Done(VALUE, "Rome"),
        note="the completion is deleted",
    ),
    Kind(
        name="list that is not native",
        toolkit="Radix",
        html="""<button role=combobox aria-expanded=false aria-label=Fruit>Apple</button>""",
        reads=("combobox Fruit (collapsed)",),
        action="type [{id}] [Pear] [0]",
        target=("combobox", "Fruit"),
        outcome=Refused("takes no text: click [1], and then the option that opens"),
    ),
    Kind(
        name="date that opens a calendar",
        toolkit="flatpickr",
        html="<input readonly class=flatpickr-input aria-label=Arrival>",
        reads=("textbox Arrival (readonly)",),
        action="type [{id}] [2026-03-14] [0]",
        target=("textbox", "Arrival"),
        outcome=Refused("is read-only; click it, or what is beside it, to choose a value"),
    ),
    Kind(
        name="native date",
        toolkit="HTML",
        html="<label>Day <input type=date></label>",
        reads=("textbox Day",),
        action="type [{id}] [2026-03-14] [0]",
        target=("textbox", "Day"),
        outcome=Done(VALUE, "2026-03-14"),
    ),
    Kind(
        name="native time",
        toolkit="HTML",
        html="<label>Start <input type=time></label>",
        reads=("textbox Start",),
        action="type [{id}] [9 o'clock] [0]",
        target=("textbox", "Start"),
        outcome=Refused("takes a time such as 09:30"),
    ),
    Kind(
        name="native color",
        toolkit="HTML",
        html="<label>Ink <input type=color value='#112233'></label>",
        reads=("textbox Ink = #112233",),
        action="type [{id}] [reddish] [0]",
        target=("textbox", "Ink"),
        outcome=Refused("takes a color such as #ff8800"),
        read_after=("textbox Ink = #112233",),
    ),
    Kind(
        name="list with equal labels in groups",
        toolkit="HTML",
        html="""<label>Team <select><optgroup label=Sales><option>Wien<option>Other</optgroup>
<optgroup label=Support><option>Bonn<option value=o2>Other</optgroup></select></label>""",
        reads=("combobox Team = Wien (options: Wien | Sales: Other | Bonn | Support: Other)",),
        action="type [{id}] [Support: Other] [0]",
        target=("combobox", "Team"),
        outcome=Done("document.querySelector('select').value", "o2"),
        read_after=(
            "combobox Team = Support: Other (options: Wien | Sales: Other | Bonn | Support: Other)",
        ),
    ),
    Kind(
        name="list with equal labels, by the label alone",
        toolkit="HTML",
        html="""<label>Team <select><option>Wien<option>Other<option>Other</select></label>""",
        reads=("combobox Team = Wien (options: Wien | Other | Other (2))",),
        action="choose [{id}] [Oth]",
        target=("combobox", "Team"),
        outcome=Refused('has several options for \'Oth\'; write one of: "Other" | "Other (2)"'),
    ),
    Kind(
        name="controlled list that reverts",
        toolkit="React",
        html="""<select aria-label=Size><option>S<option>M</select><script>
const e = document.querySelector("select");
e.onchange = () => requestAnimationFrame(() => { e.value = "S" });</script>""",
        reads=("combobox Size = S (options: S | M)",),
        action="type [{id}] [M] [0]",
        target=("combobox", "Size"),
        outcome=Refused('does not keep the choice: the page has selected "S" now'),
    ),
)
