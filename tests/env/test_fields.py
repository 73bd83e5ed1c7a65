"""No action reports success for a value that is not there; docs/page-kinds.md lists the fields."""

from typing import TYPE_CHECKING

import pytest

from agentkv_env.actions import parse
from agentkv_env.errors import ActionFailed
from agentkv_env.sanitize import neutralize

if TYPE_CHECKING:
    from conftest import Visit

pytestmark = pytest.mark.browser

VALUE = "document.querySelector('input,textarea').value"


def scripted(attributes: str, script: str) -> str:
    """A field F with a script; `e` is the field."""
    find = "const e = document.querySelector('input');"
    return f"<input aria-label=F {attributes}><script>{find} {script}</script>"


def held(visit: "Visit") -> str:
    return str(visit.session.page.evaluate(VALUE))


# ---- how a text gets in


def test_an_ordinary_field_gets_its_text_at_once(visit: "Visit") -> None:
    visit.show(scripted("", "let n = 0; e.onkeydown = () => { document.title = ++n };"))
    assert visit.act("type [{f}] [a long search for otters] [0]", f="F").title == "1"
    assert held(visit) == "a long search for otters"


def test_a_field_that_ignores_insertions_is_typed_into_with_keys(visit: "Visit") -> None:
    visit.show(
        scripted(
            "",
            """let own = ""; e.onkeydown = ({ key }) => {
        own = key.length === 1 ? own + key : ""; }; e.oninput = () => { e.value = own };""",
        )
    )
    visit.act("type [{f}] [otter] [0]", f="F")
    assert held(visit) == "otter"
    visit.act("type [{f}] [moss] [0]", f="F")
    assert held(visit) == "moss"


def test_a_part_of_a_text_that_got_in_alone_is_replaced_by_all_of_it(visit: "Visit") -> None:
    visit.show("""<div contenteditable aria-label=F>to</div><script>
        document.querySelector("div").addEventListener("beforeinput", (event) => {
          if ((event.data || "").length > 1) event.preventDefault() });</script>""")
    visit.act("append [{f}] [day]", f="F")
    assert visit.session.page.locator("div").inner_text() == "today"


def test_a_wrapper_of_a_field_passes_the_text_on_to_it(visit: "Visit") -> None:
    visit.show("<div role=combobox aria-label=Town aria-expanded=false><input></div>")
    visit.act("type [{t}] [Oslo] [0]", t="Town")
    visit.act("append [{t}] [ S]", t="Town")
    assert held(visit) == "Oslo S"


def test_a_digit_for_one_box_of_a_code_leaves_the_others_alone(visit: "Visit") -> None:
    visit.show("".join(f"<input aria-label=D{n} maxlength=1 value=1>" for n in range(4)))
    page = visit.act("type [{d}] [7] [0]", d="D2")
    assert [node.value for node in page.nodes] == ["1", "1", "7", "1"]


def test_fields_that_only_stand_side_by_side_get_no_part_of_a_text(visit: "Visit") -> None:
    visit.show("<input aria-label=Zip maxlength=5><input aria-label=Code maxlength=3>")
    with pytest.raises(ActionFailed, match="takes at most 5 characters; the text has 9"):
        visit.act("type [{z}] [123456789] [0]", z="Zip")
    assert [node.value for node in visit.session.observe().nodes] == ["", ""]


# ---- what is compared afterwards


@pytest.mark.parametrize(
    "later", ["queueMicrotask(%s)", "requestAnimationFrame(%s)", "setTimeout(%s, 15)"]
)
def test_a_value_that_is_taken_back_a_moment_later_is_no_success(
    visit: "Visit", later: str
) -> None:
    back = later % "() => { e.value = 'old' }"
    visit.show(scripted("value=old", f"e.oninput = () => {{ {back} }};"))
    with pytest.raises(ActionFailed, match='holds "old" now, not the text'):
        visit.act("type [{f}] [new] [0]", f="F")


def test_enter_is_not_pressed_on_a_field_that_does_not_hold_the_text(visit: "Visit") -> None:
    visit.show(
        "<title>Form</title><form action=/sent>"
        + scripted("", "e.oninput = () => requestAnimationFrame(() => { e.value = 'x' });")
        + "</form>",
        sent="<title>Sent</title>",
    )
    with pytest.raises(ActionFailed, match='holds "x" now'):
        visit.act("type [{f}] [otter]", f="F")
    assert visit.session.observe().title == "Form"


def test_a_page_that_goes_on_with_the_last_character_is_no_failure(visit: "Visit") -> None:
    go_on = "e.oninput = () => { if (e.value.length === 4) %s };"
    leave, draw = "location = '/two'", "e.outerHTML = '<input aria-label=Next>'"
    visit.show(scripted("maxlength=4", go_on % leave), two="<title>Second</title>")
    assert visit.act("type [{f}] [4829] [0]", f="F").title == "Second"
    visit.show(scripted("maxlength=4", go_on % draw))
    page = visit.act("type [{f}] [4829] [0]", f="F")
    assert [(node.name, node.value) for node in page.nodes] == [("Next", "")]


def test_a_field_that_a_question_locks_is_said_to_be_disabled(visit: "Visit") -> None:
    visit.show(
        scripted("", "e.onfocus = () => { e.disabled = true; o.hidden = false };")
        + "<p id=o hidden>Sure?"
    )
    with pytest.raises(ActionFailed, match="holds nothing now: the page has disabled it"):
        visit.act("type [{f}] [otter] [0]", f="F")


def test_text_that_is_added_is_compared_as_well(visit: "Visit") -> None:
    visit.show(
        scripted(
            "value=1,234",
            """e.oninput = () => {
        e.value = Number(e.value.replace(/,/g, "")).toLocaleString("en-US") };""",
        )
    )
    page = visit.act("append [{f}] [5]", f="F")
    assert page.notices == ('textbox "F" holds "12,345" now',)
    visit.show(scripted("value=ab", "e.oninput = () => { e.value = 'ab' };"))
    for action in ("append [{f}] [cd]", "insert [{f}] [b] [x]"):
        with pytest.raises(ActionFailed, match='holds "ab" now, not the text'):
            visit.act(action, f="F")


def test_a_field_that_is_not_to_be_emptied_fails_the_clearing(visit: "Visit") -> None:
    visit.show(scripted("value=7", "e.oninput = () => { e.value = Number(e.value) };"))
    with pytest.raises(ActionFailed, match='holds "0" now and is not to be emptied'):
        visit.act("clear [{f}]", f="F")
    visit.show(scripted("value=7 disabled", ""))
    with pytest.raises(ActionFailed, match="is disabled"):
        visit.act("clear [{f}]", f="F")
    visit.show("<input type=color aria-label=F value='#112233'>")
    with pytest.raises(ActionFailed, match="takes a color such as"):
        visit.act("clear [{f}]", f="F")


def test_an_editor_of_code_that_shows_other_text_fails_the_action(visit: "Visit") -> None:
    visit.show("""<div class=CodeMirror aria-label=Code style="height:60px"><pre>locked</pre>
        <textarea style="width:1px;height:1px"></textarea></div><script>
        document.querySelector(".CodeMirror").onmousedown = (event) => {
          event.preventDefault(); document.querySelector("textarea").focus() };</script>""")
    with pytest.raises(ActionFailed, match='holds "locked" now'):
        visit.act("type [{f}] [a()\nb()] [0]", f="Code")


def test_an_editor_that_formats_or_draws_a_part_of_a_long_text_holds_it(visit: "Visit") -> None:
    visit.show("""<div contenteditable aria-label=F></div><script>
        const e = document.querySelector("div"); e.oninput = () => {
          const bold = /\\*\\*(\\w+)\\*\\*/.exec(e.textContent);
          if (bold) e.innerHTML = `<b>${bold[1]}</b>`;
          const lines = e.innerText.split("\\n");
          const drawn = lines.slice(-9).map((each) => `${each}<br>`).join("");
          if (lines.length > 22) e.innerHTML = drawn;
          getSelection().selectAllChildren(e); getSelection().collapseToEnd();
        };</script>""")
    page = visit.act("type [{f}] [**otter**] [0]", f="F")
    assert page.notices == ('textbox "F" holds "otter" now',)
    visit.act(f"type [{{f}}] [{'moss<br>' * 23}last] [0]".replace("<br>", "\n"), f="F")
    assert "last" in visit.session.page.locator("div").inner_text()


# ---- lists


def test_several_options_that_a_page_deselects_again_are_no_success(visit: "Visit") -> None:
    visit.show("""<select multiple aria-label=Days><option>Mon<option>Tue<option>Wed</select>
        <script>const e = document.querySelector("select");
        e.onchange = () => { e.options[2].selected = false };</script>""")
    with pytest.raises(ActionFailed, match='the page has selected "Mon" now'):
        visit.act("choose [{f}] [Mon] [Wed]", f="Days")
    visit.act("choose [{f}] [Mon] [Tue]", f="Days")


def test_an_option_of_a_disabled_group_is_neither_read_nor_chosen(visit: "Visit") -> None:
    page = visit.show("""<select aria-label=Seat><option>Aisle<optgroup label=Sold disabled>
        <option>Window</optgroup></select>""")
    assert page.nodes[0].options == ("Aisle",)
    with pytest.raises(ActionFailed, match="has no option 'Window'; it has: \"Aisle\""):
        visit.act("type [{f}] [Window] [0]", f="Seat")


@pytest.mark.parametrize(
    ("text", "value"),
    [("Other", "0"), ("Other (2)", "4"), ("Support: Other", "2"), ("support > other (2)", "3")],
)
def test_equal_labels_are_told_apart_by_group_and_number(
    visit: "Visit", text: str, value: str
) -> None:
    page = visit.show("""<select aria-label=Team><option value=9>Sales<option value=0>Other
        <optgroup label=Support><option value=2>Other<option value=3>Other</optgroup>
        <option value=4>Other</select>""")
    assert page.nodes[0].options == (
        *("Sales", "Other", "Support: Other", "Support: Other (2)", "Other (2)"),
    )
    visit.act(f"type [{{f}}] [{text}] [0]", f="Team")
    assert visit.session.page.locator("select").input_value() == value


def test_every_option_is_chosen_by_the_name_that_is_read(visit: "Visit") -> None:
    page = visit.show("""<select aria-label=Team><option>Other<option>other<option>Other
        <option>Other (2)<option>[1]<option>(1)<option>a `b`<option> <option>West | East
        <optgroup label="North [3]"><option>Other<option>Other</optgroup>
        <optgroup label="North [3]"><option>Other</optgroup></select>""")
    options = [name for name in page.nodes[0].options if name]
    chosen = []
    for name in options:
        visit.act(f"choose [{{f}}] [{neutralize(name)}]", f="Team")
        chosen.append(visit.session.observe().nodes[0].value)
    assert chosen == options
    assert len(set(options)) == 11


# ---- forms and inert parts


def test_what_the_browser_says_of_invalid_fields_is_told_once(visit: "Visit") -> None:
    visit.show("""<form><label>Mail <input type=email value=ann></label>
        <label><input type=radio name=r required> S</label>
        <label><input type=radio name=r required> M</label><button>Go</button></form>""")
    page = visit.act("click [{b}]", b="Go")
    assert len(page.notices) == 1
    said = 'the browser did not send the form; textbox "Mail": "Please include an'
    assert page.notices[0].startswith(said) and page.notices[0].count("radio") == 1
    assert visit.session.observe().notices == ()
    page = visit.act("type [{f}] [bob]", f="Mail")
    assert page.notices[0].startswith(said)


def test_a_page_that_shows_messages_of_its_own_is_not_doubled(visit: "Visit") -> None:
    visit.show("""<form onsubmit="return false"><input required aria-label=A
        oninvalid="event.preventDefault(); o.textContent = 'Name?'"><button>Go</button><p id=o>
        </form><form novalidate><input required aria-label=B oninput="checkValidity()"><button
        type=button onclick="form.checkValidity()">Check</button></form>""")
    page = visit.act("click [{b}]", b="Go")
    assert page.notices == () and "Name?" in [node.name for node in page.nodes]
    assert visit.act("click [{b}]", b="Check").notices == ()
    assert visit.act("type [{f}] [] [0]", f="B").notices == ()


def test_a_hidden_field_that_blocks_a_form_is_told_too(visit: "Visit") -> None:
    visit.show("<form><input name=token required hidden><button>Go</button></form>")
    page = visit.act("click [{b}]", b="Go")
    assert page.notices[0].endswith(
        'textbox "token", which is hidden: "Please fill out this field."'
    )


def test_the_message_of_a_frame_of_another_host_is_told(visit: "Visit") -> None:
    visit.show(
        '<iframe src="http://partner.localhost:{port}/in"></iframe>',
        **{"in": "<form><input required aria-label=Card><button>Pay</button></form>"},
    )
    page = visit.act("click [{b}]", b="Pay")
    assert page.notices == (
        'the browser did not send the form; textbox "Card": "Please fill out this field."',
    )


@pytest.mark.parametrize(
    "action", ["click [{b}]", "hover [{b}]", "type [{f}] [x] [0]", "clear [{f}]"]
)
def test_an_inert_part_takes_no_action(visit: "Visit", action: str) -> None:
    page = visit.show("""<title>as it was</title><div onmousedown="document.title = 'pressed'">
        <div id=d><button>Buy</button><input aria-label=F></div></div>""")
    ids = {node.name: node.id for node in page.nodes}
    visit.session.page.evaluate("d.inert = true")
    with pytest.raises(ActionFailed, match="is in a part of the page that is inert now"):
        visit.session.act(parse(action.format(b=ids["Buy"], f=ids["F"])))
    assert visit.session.observe().title == "as it was"
