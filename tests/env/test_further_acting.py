"""Actions that VisualWebArena lacks, in a real browser."""

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from agentkv_env.actions import Action, parse
from agentkv_env.browser import Browser
from agentkv_env.errors import ActionFailed
from agentkv_env.sanitize import neutralize
from agentkv_env.uploads import MAX_NAMES, Uploads

if TYPE_CHECKING:
    from conftest import Pages, Visit

pytestmark = pytest.mark.browser

NOTE = "<textarea aria-label=Note rows=5 oninput='document.title = value'>one\ntwo</textarea>"
POST = """<div contenteditable aria-label=Post oninput="document.title = this.innerText">
<p>Dear <b>Ann</b>,</p><p>see you.</p></div>"""


# ---- text -----------------------------------------------------------------------------------


def test_text_is_appended_to_what_a_text_area_has(visit: "Visit") -> None:
    visit.show(NOTE)
    visit.act("append [{f}] [\nthree\nfour]", f="Note")
    assert visit.session.page.input_value("textarea") == "one\ntwo\nthree\nfour"


def test_typing_keeps_line_breaks_where_a_field_has_lines(visit: "Visit") -> None:
    visit.show(NOTE + "<input aria-label=Line>")
    visit.act("type [{f}] [a\n\nb] [0]", f="Note")
    assert visit.session.page.input_value("textarea") == "a\n\nb"
    visit.act("type [{f}] [a\nb] [0]", f="Line")
    assert visit.session.page.input_value("input") == "a b"


def test_text_is_inserted_before_words_or_at_the_cursor(visit: "Visit") -> None:
    visit.show("<textarea aria-label=Note>red  and\nblue [1]</textarea>")
    visit.act("insert [{f}] [and blue] [green ]", f="Note")
    visit.act("insert [{f}] [more ]", f="Note")
    visit.act("insert [{f}] [(1)] [x]", f="Note")
    value = visit.session.page.input_value("textarea")
    assert value == "red  green more and\nblue x[1]"
    with pytest.raises(ActionFailed, match="does not have the words 'gold'"):
        visit.act("insert [{f}] [gold] [x]", f="Note")


def test_a_visual_editor_keeps_its_formatting_when_text_is_added(visit: "Visit") -> None:
    visit.show(POST)
    visit.act("append [{f}] [ Bye,\nBob]", f="Post")
    visit.act("insert [{f}] [Ann, see] [dear ]", f="Post")
    editor = visit.session.page.locator("[contenteditable]")
    assert editor.inner_text().split() == "Dear dear Ann, see you. Bye, Bob".split()
    assert editor.inner_text().rstrip().endswith("Bye,\nBob")
    assert editor.locator("b").inner_text() in ("Ann", "dear Ann")


def test_a_line_break_in_a_visual_editor_sends_nothing(visit: "Visit") -> None:
    visit.show("""<div contenteditable aria-label=Chat onkeydown="if (event.key === 'Enter' &&
        !event.shiftKey) { event.preventDefault(); document.title = 'sent' }"></div>""")
    page = visit.act("type [{f}] [one\ntwo] [0]", f="Chat")
    assert page.title != "sent"
    assert visit.session.page.locator("div").inner_text() == "one\ntwo"


# As in CodeMirror: the text is drawn apart from the field that is written to.
CODE = """<div class=CodeMirror aria-label=Code style="height:99px;font:16px monospace"><pre></pre>
<textarea style="position:absolute;left:0;width:1px;height:1px;padding:0;border:0;opacity:0">
</textarea></div><script>
const box = document.querySelector(".CodeMirror"), [lines, field] = box.children;
let code = "one\\ntwo", at = 0, isAll = false;
const draw = () => { lines.textContent = code };
box.onmousedown = (event) => { event.preventDefault(); field.focus(); at = 0; isAll = false };
field.onkeydown = (event) => {
  if (event.ctrlKey && event.key === "a") { isAll = true; event.preventDefault() }
  if (event.ctrlKey && event.key === "End") { at = code.length; event.preventDefault() }
  if (event.key === "Backspace") { code = isAll ? "" : code; draw() }
};
field.oninput = () => {
  code = isAll ? field.value : code.slice(0, at) + field.value + code.slice(at);
  field.value = ""; isAll = false; draw();
};
draw();
</script>"""


def test_an_editor_of_code_takes_lines_in_place_of_its_own(visit: "Visit") -> None:
    page = visit.show(CODE)
    assert page.nodes[0].uses == ("lines",)
    visit.act("type [{f}] [if a:\n    b()] [0]", f="Code")
    code = visit.session.page.locator("pre")
    assert code.inner_text() == "if a:\n    b()"
    visit.act("append [{f}] [\nc()]", f="Code")
    assert code.inner_text() == "if a:\n    b()\nc()"
    with pytest.raises(ActionFailed, match="only be put at the end"):
        visit.act("insert [{f}] [b()] [x]", f="Code")
    visit.act("clear [{f}]", f="Code")
    assert code.inner_text() == ""


def test_a_field_of_an_editor_in_a_frame_takes_more_text(visit: "Visit") -> None:
    """TinyMCE's field is the body of such a frame."""
    body = "<body contenteditable aria-label=Text><p>Dear Ann,</p></body>"
    visit.show("<iframe src=/in></iframe>", **{"in": body})
    page = visit.session.observe()
    field = next(node.id for node in page.nodes if node.role == "textbox")
    visit.act(f"append [{field}] [ hello]")
    frame = visit.session.page.frames[1]
    assert frame.locator("body").inner_text() == "Dear Ann, hello"


@pytest.mark.parametrize("html", ["<input readonly aria-label=F>", "<button>F</button>"])
def test_what_takes_no_text_is_refused_in_words(visit: "Visit", html: str) -> None:
    visit.show(html)
    with pytest.raises(ActionFailed, match=r"read-only|takes no text"):
        visit.act("append [{f}] [x]", f="F")


def test_text_is_selected_from_words_to_words(visit: "Visit") -> None:
    visit.show(f"{NOTE}<p>One <i>two</i> three.</p><p>Four five.</p>")
    selected = "getSelection().toString().split(/\\s+/).join(' ')"
    for text, expected in (
        ("select_text [two three]", "two three"),
        ("select_text [Two] [four]", "two three. Four"),
    ):
        visit.act(text)
        assert visit.session.page.evaluate(selected) == expected
    visit.act("select_text [{f}] [two]", f="Note")
    visit.act("press [x]")
    assert visit.session.page.input_value("textarea") == "one\nx"
    with pytest.raises(ActionFailed, match="the page does not have the words 'six'"):
        visit.act("select_text [five] [six]")


# ---- lists and files ------------------------------------------------------------------------

COLOURS = """<select multiple aria-label=Colours onchange="document.title =
[...this.selectedOptions].map((each) => each.label).join()"><option selected>Red<option>Green
<option>[Blue]</select><select aria-label=Size><option>S<option>M</select>"""


def test_several_options_are_chosen_and_others_deselected(visit: "Visit") -> None:
    visit.show(COLOURS)
    assert visit.act("choose [{f}] [Green] [(Blue)]", f="Colours").title == "Green,[Blue]"
    assert visit.act("choose [{f}] []", f="Colours").title == ""
    visit.act("choose [{f}] [M]", f="Size")
    with pytest.raises(ActionFailed, match="takes exactly one option"):
        visit.act("choose [{f}] [S] [M]", f="Size")
    with pytest.raises(ActionFailed, match=r"no option 'Gold'; it has: \"Red\" \|"):
        visit.act("choose [{f}] [Red] [Gold]", f="Colours")


UPLOAD = """<input type=file aria-label=Photo onchange="document.title = files[0].name">
<input type=file id=inner style="display:none" onchange="document.title = 'by ' + files[0].name">
<button onclick="inner.click()">Attach</button><button>Other</button>"""


ODD_NAMES = ("circle", "x" * 300, "a\0b", "x/" * 3000)


def test_no_file_is_uploaded_unless_the_user_allows_it(visit: "Visit") -> None:
    visit.show(UPLOAD)
    with pytest.raises(ActionFailed, match="the user allows none"):
        visit.act("upload [{f}] [/etc/passwd]", f="Photo")
    with pytest.raises(ActionFailed, match="files cannot be uploaded"):
        visit.act("type [{f}] [/etc/passwd] [0]", f="Photo")


def test_only_files_that_the_user_allows_are_uploaded(
    browser: Browser, pages: "Pages", tmp_path: Path
) -> None:
    folder, alone, secret = tmp_path / "folder", tmp_path / "alone.txt", tmp_path / "secret.txt"
    (folder / "deep").mkdir(parents=True)
    for path in (alone, secret, folder / "deep" / "cat.png"):
        path.write_text("x")
    (folder / "link.txt").symlink_to(secret)
    (folder / "circle").symlink_to(folder / "circle")
    pages.set({"/": UPLOAD})
    hosts = [f"shop.localhost:{pages.port}"]
    with browser.session(hosts=hosts, files=[folder, alone]) as session:
        session.open(pages.origin() + "/")
        session.observe()
        session.act(parse("upload [1] [deep/cat.png]", strict=False))
        assert session.observe().title == "cat.png"
        session.act(parse("upload [2] [alone.txt]", strict=False))
        assert session.observe().title == "by alone.txt"
        refused = r'allows: "deep/cat\.png" \| "alone\.txt"'
        with pytest.raises(ActionFailed, match=refused):
            session.act(Action("upload", element_id=1, items=("link.txt",)))
        uploads = Uploads([folder, alone])
        for name in ("secret.txt", "../secret.txt", "link.txt", str(secret), "deep", *ODD_NAMES):
            with pytest.raises(ActionFailed, match=refused):
                uploads.find([name])
        with pytest.raises(ActionFailed, match="asks for no file"):
            session.act(parse("upload [3] [alone.txt]", strict=False))


def test_files_are_found_by_the_names_shown(tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    names = ("a  b.png", "photo[1].png", "it`s.txt")
    for folder in (one, other):
        folder.mkdir()
        (folder / "same.txt").write_text(folder.name)
    for name in names:
        (one / name).write_text(name)
    uploads = Uploads([one, other])
    shown = [neutralize(name) for name in uploads.names()]
    assert shown == ["a b.png", "it's.txt", "photo⟦1⟧.png", "same.txt", "other/same.txt"]
    read = [path.read_text() for path in uploads.find(shown)]
    assert read == ["a  b.png", "it`s.txt", "photo[1].png", "one", "other"]


def test_only_the_first_files_of_a_large_folder_are_named_but_all_are_found(tmp_path: Path) -> None:
    for number in range(MAX_NAMES + 1):
        (tmp_path / f"{number:03}.txt").write_text("x")
    uploads = Uploads([tmp_path])
    assert len(uploads.names()) == MAX_NAMES
    assert uploads.find([f"{MAX_NAMES:03}.txt"])


def test_a_missing_folder_of_files_is_an_error_at_once(browser: Browser, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="does not exist; name files or folders"):
        browser.session(hosts=(), files=[tmp_path / "none"])


# ---- the mouse ------------------------------------------------------------------------------

CANVAS = """<body style="margin:0"><canvas width=200 height=100 onclick="tell(event, 'click')"
ondblclick="tell(event, 'double')" oncontextmenu="tell(event, 'right')"></canvas><script>
function tell(event, kind) { document.title = [kind, event.offsetX, event.offsetY].join(' ') }
</script>"""


def test_points_of_an_element_are_pressed(visit: "Visit") -> None:
    visit.show(CANVAS)
    assert visit.act("click [1] [20,30]").title == "click 20 30"
    assert visit.act("double_click [1] [25%,10%]").title == "double 50 10"
    assert visit.act("right_click [1]").title == "right 100 50"
    with pytest.raises(ActionFailed, match="the point is outside"):
        visit.act("click [1] [120%,50%]")


def test_a_point_of_an_element_larger_than_the_window_is_scrolled_to(visit: "Visit") -> None:
    visit.show(CANVAS.replace("height=100", "height=3000"))
    assert visit.act("click [1] [10,2900]").title == "click 10 2900"
    assert visit.act("click [1] [10,20]").title == "click 10 20"


def test_an_element_is_dragged_onto_another(visit: "Visit") -> None:
    visit.show("""<button draggable=true ondragstart="event.dataTransfer.setData('text', 'card')">
        Card</button><div style="height:200px"></div><button ondragover="event.preventDefault()"
        ondrop="document.title = event.dataTransfer.getData('text')">Box</button>""")
    assert visit.act("drag [{c}] [{b}]", c="Card", b="Box").title == "card"


def test_a_drag_may_begin_and_end_at_points_of_one_element(visit: "Visit") -> None:
    visit.show("""<canvas width=200 height=100 onclick="0" onmousedown="from = event.offsetX"
        onmouseup="document.title = [from, event.offsetX].join(' to ')"></canvas>""")
    assert visit.act("drag [1] [10,50] [1] [150,50]").title == "10 to 150"


def test_a_field_grows_by_its_corner_which_is_dragged_beyond_it(visit: "Visit") -> None:
    visit.show("<textarea style='width:100px; height:50px; resize:both'></textarea>")
    width = visit.session.page.evaluate("document.querySelector('textarea').offsetWidth")
    visit.act(f"drag [1] [{width - 4},46] [1] [{width + 36},46]")
    grown = visit.session.page.evaluate("document.querySelector('textarea').offsetWidth")
    assert grown == pytest.approx(width + 40, abs=2)


def test_a_target_below_the_window_is_dragged_to(visit: "Visit") -> None:
    visit.show("""<button onmousedown="held = 1">Card</button><div style="height:2000px"></div>
        <button onmouseup="document.title = 'dropped ' + window.held">Box</button>""")
    visit.session.page.evaluate("scrollTo(0, 9999)")
    box = next(node.id for node in visit.session.observe().nodes if node.name == "Box")
    visit.session.page.evaluate("scrollTo(0, 0)")
    numbers = visit.session.observe()
    card = next(node.id for node in numbers.nodes if node.name == "Card")
    page = visit.act(f"drag [{card}] [{box}]")
    assert page.title == "dropped 1"


def test_a_drag_without_a_target_presses_nothing(visit: "Visit") -> None:
    visit.show("""<title>as it was</title>
        <button onclick="document.title = 'deleted'">Delete</button>""")
    with pytest.raises(ActionFailed, match=r"no element \[99\]"):
        visit.act("drag [1] [99]")
    with pytest.raises(ActionFailed, match="the point is outside the window of button"):
        visit.act("drag [1] [1] [9999,9999]")
    with pytest.raises(ActionFailed, match="the point is outside button"):
        visit.act("hover [1] [9999,9999]")
    assert visit.session.observe().title == "as it was"


def test_a_menu_that_opens_over_an_element_is_not_pressed_for_it(visit: "Visit") -> None:
    visit.show("""<title>as it was</title><style>a { position: absolute; top: 0; left: 0 }</style>
        <a href=#>Shop</a><script>
        const show = (html) => document.body.insertAdjacentHTML("beforeend", html);
        document.querySelector("a").onmouseenter = () => show(
          `<div style="position:fixed;inset:0" onclick="document.title = 'bought'">Buy</div>`);
        </script>""")
    with pytest.raises(ActionFailed, match=r'is covered by "div Buy"'):
        visit.act("click [1]")
    assert visit.session.observe().title == "as it was"


def test_text_without_an_element_is_missed_on_the_page(visit: "Visit") -> None:
    visit.show("<button></button>")
    with pytest.raises(ActionFailed, match="the page has no text that can be selected"):
        visit.do(Action("select_text"))


def test_areas_scroll_on_their_own(visit: "Visit") -> None:
    rows = "".join(f"<p><a href=#>Row {n}</a></p>" for n in range(40))
    visit.show(
        f"""<div style="height:150px;width:200px;overflow:auto">{rows}</div>
        <iframe src=/in height=100></iframe><button>Plain</button>""",
        **{"in": rows},
    )
    page = visit.act("scroll [down] [{f}]", f="Row 0")
    assert page.pixels_above == 0
    names = [node.name for node in page.nodes if node.id is not None]
    assert "Row 4" in names and names.count("Row 0") == 1  # the frame's
    inner = next(node.id for node in page.nodes if node.name == "Row 0")
    page = visit.act(f"scroll [down] [{inner}]")
    assert "Row 0" not in [node.name for node in page.nodes]
    with pytest.raises(ActionFailed, match="nothing around"):
        visit.act("scroll [down] [{f}]", f="Plain")
    with pytest.raises(ActionFailed, match="nothing around"):
        visit.act("scroll [right] [{f}]", f="Plain")


def test_a_wide_page_scrolls_sideways(visit: "Visit") -> None:
    visit.show('<div style="width:3000px">Wide</div>')
    visit.act("scroll [right]")
    assert visit.session.page.evaluate("scrollX") > 0
    visit.act("scroll [left]")
    with pytest.raises(ActionFailed, match="further left"):
        visit.act("scroll [left]")


# ---- what elements support -------------------------------------------------------------------


def test_elements_say_what_they_support(browser: Browser, pages: "Pages") -> None:
    rows = "".join(f"<p><a href=#>Row {n}</a></p>" for n in range(20))
    pages.set(
        {
            "/": f"""{NOTE}{POST}{COLOURS}<input aria-label=Line><input type=file aria-label=Photo>
            <div style="height:90px;overflow:auto" aria-label=Rows>{rows}</div>
            <button draggable=true>Card</button><div class=ui-draggable>Tile</div>
            <canvas onclick="0" aria-label=Map></canvas>"""
        }
    )
    with browser.session(hosts=[f"shop.localhost:{pages.port}"], files=[__file__]) as session:
        session.open(pages.origin() + "/")
        page = session.observe()
    uses = {node.name: node.uses for node in page.nodes if node.uses}
    assert uses == {
        "Note": ("lines",),
        "Post": ("lines", "format"),
        "Colours": ("several",),
        "Photo": ("file",),
        "Rows": ("area",),
        "Card": ("drag",),
        "Tile": ("drag",),
        "Map": ("point",),
    }
    assert page.uploads == (Path(__file__).name,)
    assert not any(node.uses for node in page.without_uses().nodes)
