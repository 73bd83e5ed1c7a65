"""Actions in a real browser."""

from typing import TYPE_CHECKING

import pytest

from agentkv_env import loading, tab
from agentkv_env.actions import Action, parse
from agentkv_env.browser import Browser
from agentkv_env.errors import ActionFailed
from agentkv_env.page import Page

if TYPE_CHECKING:
    from conftest import Pages, Visit

pytestmark = pytest.mark.browser

FORM = """<title>Form</title><form action=/done><label>Name <input name=n value=old></label>
<label>Sort <select name=s onchange="document.title=this.value"><option>Price
<option value=nm>By name</select></label><label>Day <input type=date name=d></label>
<button>Send</button></form>"""


def values(page: Page) -> dict[str, str]:
    return {node.name: node.value for node in page.nodes if node.id is not None}


def test_clicking_a_link_gives_the_next_page(visit: "Visit") -> None:
    visit.show("<a href=/two>Two</a>", two="<title>Second</title>there")
    page = visit.act("click [{link}]", link="Two")
    assert page.title == "Second"
    assert page.url.endswith("/two")


def test_a_link_whose_middle_is_empty_is_hit_all_the_same(visit: "Visit") -> None:
    visit.show(
        """<body style="margin:0;font:20px/30px DejaVu Sans"><div style="width:300px"><span
        style="display:inline-block;width:220px">x</span><a href=/two>aaa bb</a></div>""",
        two="<title>Second</title>",
    )
    assert visit.act("click [1]").title == "Second"


def test_an_element_below_the_window_is_scrolled_to(visit: "Visit") -> None:
    visit.show("""<div style="overflow:auto;height:100px" id=b><div style="height:95px"></div>
        <button onclick="document.title='hit'">Low</button><div style="height:500px"></div>""")
    visit.session.page.evaluate("b.scrollTop = 60")
    visit.session.observe()
    visit.session.page.evaluate("b.scrollTop = 400")
    visit.session.act(Action("click", element_id=2))
    assert visit.session.observe().title == "hit"


def test_an_element_that_a_scroller_cuts_off_above_its_middle_is_scrolled_to(
    visit: "Visit",
) -> None:
    visit.show("""<div style="overflow:auto;height:100px"><div style="height:95px"></div>
        <button onclick="document.title='hit'" style="height:40px">Low</button>
        <div style="height:500px"></div></div>""")
    assert visit.act("click [2]").title == "hit"


def test_typing_replaces_and_strict_typing_appends(visit: "Visit", browser: Browser) -> None:
    visit.show(FORM)
    assert values(visit.act("type [{f}] [new words] [0]", f="Name"))["Name"] == "new words"
    with browser.session(hosts=[f"shop.localhost:{visit.pages.port}"], strict=True) as session:
        session.open(visit.pages.origin() + "/")
        session.observe()
        session.act(parse("type [1] [X] [0]"))
        value = values(session.observe())["Name"]
    assert sorted(value) == sorted("oldX")


def test_enter_sends_the_form_unless_told_not_to(visit: "Visit") -> None:
    visit.show(FORM, done="<title>Done</title>")
    assert visit.act("type [{f}] [a b&c] [0]", f="Name").title == "Form"
    page = visit.act("type [{f}] [a b&c]", f="Name")
    assert page.title == "Done" and "n=a+b%26c" in page.url


def test_typing_fires_the_events_a_searching_field_listens_to(visit: "Visit") -> None:
    visit.show("""<input aria-label=q onkeyup="o.textContent = 'up ' + this.value"
        oninput="i.textContent = 'in ' + this.value"><p id=o></p><p id=i></p>""")
    names = [node.name for node in visit.act("type [1] [kayak] [0]").nodes]
    assert names[1:] == ["up kayak", "in kayak"]


@pytest.mark.parametrize("label", ["By name", "by NAME", "nm", "name"])
def test_typing_on_a_native_list_chooses_by_label(visit: "Visit", label: str) -> None:
    visit.show(FORM)
    page = visit.act(f"type [{{s}}] [{label}] [0]", s="Sort")
    assert values(page)["Sort"] == "By name"
    assert page.title == "nm"


def test_an_unknown_option_is_refused_with_the_known_ones(visit: "Visit") -> None:
    visit.show(FORM)
    with pytest.raises(ActionFailed, match=r'"Price" \| "By name"'):
        visit.act("type [{s}] [Colour] [0]", s="Sort")
    with pytest.raises(ActionFailed, match="choose with type"):
        visit.act("click [{s}]", s="Sort")


def test_a_date_is_set_as_a_whole(visit: "Visit") -> None:
    visit.show(FORM)
    assert values(visit.act("type [{d}] [2026-03-04] [0]", d="Day"))["Day"] == "2026-03-04"
    with pytest.raises(ActionFailed, match="such as 2026-01-31"):
        visit.act("type [{d}] [tomorrow] [0]", d="Day")


def test_clear_empties_a_field(visit: "Visit") -> None:
    visit.show(FORM + "<div contenteditable aria-label=Post>draft</div>")
    assert values(visit.act("clear [{f}]", f="Name"))["Name"] == ""
    assert values(visit.act("clear [{f}]", f="Post"))["Post"] == ""
    assert values(visit.act("type [{f}] [hi there] [0]", f="Post"))["Post"] == "hi there"


def test_keys_hover_and_scrolling_reach_the_page(visit: "Visit") -> None:
    visit.show("""<button onmouseover="document.title='over'">Menu</button>
        <div style="height:3000px"></div><script>
        onkeydown = (e) => { document.title = (e.ctrlKey ? 'ctrl ' : '') + e.key }</script>""")
    assert visit.act("hover [1]").title == "over"
    assert visit.act("press [ctrl+k]").title == "ctrl k"
    with pytest.raises(ActionFailed, match="unknown key"):
        visit.act("press [Hyper]")
    assert visit.act("scroll [down]").pixels_above == 600
    assert visit.act("scroll [up]").pixels_above == 0
    with pytest.raises(ActionFailed, match="further up"):
        visit.act("scroll [up]")


def test_a_page_whose_middle_scrolls_is_scrolled_there(visit: "Visit") -> None:
    visit.show("""<body style="margin:0"><div style="height:100vh;overflow:auto">
        <div style="height:2000px">top</div>end</div>""")
    page = visit.act("scroll [down]")
    assert page.pixels_above == 600 and page.pixels_below > 0


def test_history_goes_back_and_forward_but_not_before_the_first_page(first_visit: "Visit") -> None:
    first_visit.show("<title>One</title><a href=/two>Two</a>", two="<title>Two</title>")
    first_visit.act("click [1]")
    assert first_visit.act("go_back").title == "One"
    assert first_visit.act("go_forward").title == "Two"
    first_visit.act("go_back")
    with pytest.raises(ActionFailed, match="no page to go back"):
        first_visit.act("go_back")


def test_a_new_window_becomes_the_current_tab(visit: "Visit") -> None:
    visit.show(
        "<title>One</title><a href=/two target=_blank>Link</a>"
        "<button onclick=\"window.open('/two')\">Script</button>",
        two="<title>Two</title><button onclick='close()'>Close</button>",
    )
    page = visit.act("click [{l}]", l="Link")
    assert (page.title, page.tabs, page.tab) == ("Two", ("One", "Two"), 1)
    assert visit.act("tab_focus [0]").title == "One"
    page = visit.act("click [{b}]", b="Script")
    assert (page.title, len(page.tabs)) == ("Two", 3)
    assert visit.act("close_tab").tabs == ("One", "Two")
    with pytest.raises(ActionFailed, match="tabs are 0 to 1"):
        visit.act("tab_focus [2]")
    visit.act("close_tab")
    page = visit.act("close_tab")
    assert (page.url, page.tabs) == ("about:blank", ("about:blank",))


def test_several_addresses_open_as_tabs_with_the_first_current(visit: "Visit") -> None:
    visit.pages.set({"/": "<title>One</title>", "/two": "<title>Two</title>"})
    visit.session.open(visit.pages.origin() + "/", visit.pages.origin() + "/two")
    page = visit.session.observe()
    assert page.title == "One" and page.tabs[-2:] == ("One", "Two")


def test_public_addresses_stand_for_real_ones(browser: Browser, pages: "Pages") -> None:
    pages.set({"/": "<title>One</title>", "/a": "<title>A</title>"})
    addresses = {"http://shop.localhost": pages.origin()}
    with browser.session(hosts=["shop.localhost"], addresses=addresses) as session:
        session.open("http://shop.localhost/")
        assert session.observe().url == "http://shop.localhost/"
        session.act(parse("goto [shop.localhost/a]"))
        assert session.observe().url == "http://shop.localhost/a"
        session.act(parse(f"goto [{pages.origin()}/]"))
        assert session.observe().title == "One"


def test_a_download_is_cancelled_and_told(visit: "Visit") -> None:
    visit.show("<a href=/f.bin>File</a>", **{"f.bin": b"data"})
    page = visit.act("click [1]")
    assert page.notices == ("download of file.bin cancelled",)
    assert [node.name for node in page.nodes] == ["File"]


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waits longer than a user would like, so that a busy machine changes no result."""
    monkeypatch.setattr(loading, "FETCH_S", 60.0)
    monkeypatch.setattr(tab, "AFTER_FRAME_MS", 200)


@pytest.mark.usefixtures("patient")
def test_an_answer_that_comes_over_the_network_is_waited_for(visit: "Visit") -> None:
    visit.show(
        """<button onclick="fetch('/two').then((a) => a.text()).then((t) => {
        document.title = t })">Load</button>""",
        two="loaded",
    )
    assert visit.act("click [1]").title == "loaded"


@pytest.mark.usefixtures("patient")
def test_what_an_answer_makes_the_page_ask_for_is_waited_for_too(visit: "Visit") -> None:
    visit.show(
        """<button onclick="fetch('/two').then((a) => a.text())
        .then((t) => setTimeout(() => fetch('/three').then((a) => a.text())
        .then((u) => setTimeout(() => { document.title = t + u }))))">Load</button>""",
        two="lo",
        three="aded",
    )
    assert visit.act("click [1]").title == "loaded"


@pytest.mark.parametrize("verb", ["click [77]", "hover [77]", "type [77] [x] [0]", "clear [77]"])
def test_an_unknown_number_is_refused_in_words(visit: "Visit", verb: str) -> None:
    visit.show("<p>nothing")
    with pytest.raises(ActionFailed, match=r"no element \[77\]"):
        visit.act(verb)


def test_what_can_have_no_effect_is_refused_in_words(visit: "Visit") -> None:
    visit.show("""<button disabled>Off</button><button id=g>Gone</button><button>Plain</button>
        <button style="position:fixed;top:300px">Under</button>
        <div style="position:fixed;top:200px;left:0;right:0;bottom:0">Over</div>""")
    visit.session.page.evaluate("g.remove()")
    for text, reason in [
        ("click [1]", "disabled"),
        ("click [2]", "no element"),
        ("type [3] [x] [0]", "takes no text"),
        ("click [4]", 'covered by "div Over"'),
    ]:
        with pytest.raises(ActionFailed, match=reason):
            visit.session.act(parse(text))


def test_elements_inside_frames_can_be_used(visit: "Visit") -> None:
    inner = "<input aria-label=F><button onclick=\"this.textContent = 'Hit'\">Inner</button>"
    visit.show(
        """<div style="height:80px"></div><iframe src=/in></iframe>
        <iframe src="http://partner.localhost:{port}/in"></iframe>""",
        **{"in": inner},
    )
    fields = [node.id for node in visit.session.observe().nodes if node.name == "F"]
    buttons = [node.id for node in visit.session.observe().nodes if node.name == "Inner"]
    for number, (field, button) in enumerate(zip(fields, buttons, strict=True)):
        visit.do(Action("type", element_id=field, text=f"in {number}", enter=False))
        visit.do(Action("click", element_id=button))
    page = visit.session.observe()
    assert [node.value for node in page.nodes if node.name == "F"] == ["in 0", "in 1"]
    assert [node.name for node in page.nodes if node.role == "button"] == ["Hit", "Hit"]


def test_stop_leaves_the_page_alone(visit: "Visit") -> None:
    before = visit.show("<title>One</title><p>x")
    assert visit.act("stop [done]") == before
    assert visit.session.screenshot()[:2] == b"\xff\xd8"


def test_a_transparent_checkbox_over_its_label_is_checked(visit: "Visit") -> None:
    """MediaWiki's menus are such checkboxes."""
    visit.show("""<div style="position:relative;width:100px;height:30px">
        <input type=checkbox id=c
        style="position:absolute;z-index:1;margin:0;opacity:0;width:100px;height:30px">
        <label for=c style="position:absolute">Menu</label></div>""")
    page = visit.act("click [1]")
    (box,) = [node for node in page.nodes if node.role == "checkbox"]
    assert (box.name, box.states) == ("Menu", ("checked",))
