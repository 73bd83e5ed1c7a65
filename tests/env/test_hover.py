"""What only hovering reveals, in a real browser."""

from typing import TYPE_CHECKING

import pytest

from agentkv_env.browser import Browser
from agentkv_env.serialize import serialize

if TYPE_CHECKING:
    from conftest import Pages, Visit

    from agentkv_env.page import Page

pytestmark = pytest.mark.browser

ROWS = "<!doctype html><style>{}</style><table>" + "".join(
    f"""<tr><td>{name}</td><td class=a>
    <button onclick="document.title = 'edit {name}'">Edit</button>
    <button>Delete</button></td></tr>"""
    for name in ("Ann", "Bob", "Cid")
)
OPACITY = ".a { opacity: 0 } tr:hover .a { opacity: 1 }"


def lines(page: "Page") -> list[str]:
    return serialize(page).text.splitlines()[2:]


@pytest.mark.parametrize(
    "style",
    [
        OPACITY,
        ".a { visibility: hidden } tr:hover > .a { visibility: visible }",
        ".a button { display: none }"
        "@media (hover) { table tr:hover .a button { display: inline } }",
        ".a { opacity: 0; visibility: hidden } tr:hover .a { visibility: visible }"
        "tr { &:hover .a { opacity: 1 } }",
        "@layer u { .a { opacity: 0; transition: opacity .2s;"
        "&:is(:where(tr):hover *) { @media (hover: hover) { opacity: 1 } } } }",
        ".a { display: block; max-height: 0; padding: 0; overflow: hidden }"
        "tr:hover .a, tr:focus-within .a { max-height: 99px }",
    ],
    ids=["opacity", "visibility", "display", "both", "nested", "height"],
)
def test_actions_of_a_row_are_said_once_and_reached(visit: "Visit", style: str) -> None:
    first = visit.show(ROWS.format(style))
    others = ["item Bob (hover) [2]", "item Cid (hover) [3]"]
    assert lines(first) == ["item Ann (hover shows: Edit | Delete) [1]", *others]
    page = visit.act("hover [2]")
    assert [node.name for node in page.nodes][1:4] == ["Bob", "Edit", "Delete"]
    assert visit.act("click [{b}]", b="Edit").title == "edit Bob"


def test_a_row_with_a_control_needs_no_further_number(visit: "Visit") -> None:
    page = visit.show(ROWS.format(OPACITY).replace("<td>Ann", "<td>1 <a href=#a>Ann</a>"))
    assert lines(page)[:2] == ["1", "link Ann (hover shows: Edit | Delete) [1]"]


def test_a_submenu_is_reached_through_its_menu(visit: "Visit") -> None:
    """Each level shows under the mouse, which stays inside."""
    visit.show("""<style>ul ul { display: none } li:hover > ul { display: block }</style>
        <ul><li><a href=#p>Products</a><ul><li><a href=#c>Cameras</a><ul>
        <li><a href=#l>Lenses</a></ul></ul></ul>""")
    page = visit.act("hover [{m}]", m="Products")
    assert lines(page) == ["link Products [1]", "link Cameras (hover shows: Lenses) [2]"]
    visit.act("hover [{m}]", m="Cameras")
    assert visit.act("click [{m}]", m="Lenses").url.endswith("#l")


def test_a_menu_that_opens_later_is_there_after_the_hover_and_open_for_the_click(
    visit: "Visit",
) -> None:
    visit.show("""<button aria-haspopup=menu>Menu</button><script>
        const button = document.querySelector("button"), menu = document.createElement("div");
        let timer; menu.innerHTML = "<a href=#out>Log out</a>";
        menu.style = "position:absolute;left:300px;top:200px";
        const to = (ms, then) => () => { clearTimeout(timer); timer = setTimeout(then, ms) };
        button.onmouseenter = to(250, () => document.body.append(menu));
        menu.onmouseenter = () => clearTimeout(timer);
        button.onmouseleave = menu.onmouseleave = to(100, () => menu.remove());</script>""")
    assert lines(visit.session.observe()) == ["button Menu (hover) [1]"]
    assert lines(visit.act("hover [1]")) == ["button Menu [1]", "link Log out [2]"]
    assert visit.act("click [2]").url.endswith("#out")


def test_rows_that_a_table_listens_for_are_known_by_their_hidden_buttons(visit: "Visit") -> None:
    visit.show(
        ROWS.format("").replace("<button", "<button style='display:none'")
        + """</table><script>document.querySelector("table").onmouseover = (event) => {
        const row = event.target.closest("tr");
        for (const each of document.querySelectorAll("button"))
        each.style.display = row && row.contains(each) ? "inline" : "none" }</script>"""
    )
    assert lines(visit.session.observe())[1] == "item Bob (hover) [2]"
    visit.act("hover [2]")
    assert visit.act("click [{b}]", b="Edit").title == "edit Bob"


def test_a_tooltip_is_said_with_the_word_that_it_is_for(visit: "Visit") -> None:
    page = visit.show("""<style>[role=tooltip] { display: none }</style>
        <p>12 USD <span class=w aria-describedby=t>net</span></p><p id=t role=tooltip>no VAT</p>
        <script>const word = document.querySelector(".w"), tip = document.getElementById("t");
        word.onpointerenter = () => { tip.style.display = "block" };</script>""")
    assert lines(page) == ["12 USD", "item net (hover shows: no VAT) [1]"]
    assert lines(visit.act("hover [1]"))[-1] == "no VAT"


def test_a_tooltip_of_the_browser_is_told_after_the_hover(visit: "Visit") -> None:
    visit.show("<a href=# title='Opened 3 May'>May</a><a href=# title=June>June</a>")
    assert visit.act("hover [1]").notices == ("shown for a moment: Opened 3 May",)
    assert visit.act("hover [2]").notices == ()


def test_a_button_that_shows_only_under_the_mouse_itself_is_pressed(visit: "Visit") -> None:
    page = visit.show("""<style>button { opacity: 0 } button:hover { opacity: 1 }</style>
        <button onclick="document.title = 'pressed'">Copy</button>""")
    assert lines(page) == ["button Copy [1]"]
    assert visit.act("click [1]").title == "pressed"


def test_a_style_sheet_of_another_host_reveals_too(browser: Browser, pages: "Pages") -> None:
    pages.set(
        {
            "/": '<link rel=stylesheet href="http://partner.localhost:{port}/a.css">'
            + ROWS.format("").removeprefix("<!doctype html>"),
            "/a.css": OPACITY,
        }
    )
    hosts = [f"{name}.localhost:{pages.port}" for name in ("shop", "partner")]
    with browser.session(hosts=hosts) as session:
        session.open(pages.origin() + "/")
        for _ in range(2):
            assert lines(session.observe())[1] == "item Bob (hover) [2]"


@pytest.mark.parametrize(
    "html",
    [
        "<style>a { visibility: hidden } h1:hover a { visibility: visible }</style>"
        "<h1>Title<a href=#t title='Link to this heading'>¶</a></h1>",
        "<style>.d { display: none } .d:hover, p:hover .d { color: red }</style>"
        "<p>A<b class=d>B</b>",
        "<style>b { display: none } p:hover b { transform: scale(2); opacity: 1 }</style>"
        "<p>A<b>B</b>",
        "<style>p:not(:hover) b { display: none }</style><p>A<b hidden>B</b>",
        "<style>b { opacity: 0 } @keyframes k { to { opacity: 1 } }"
        "i:hover b { opacity: 1 }</style>"
        "<p>A<b>B</b>",
        "<style>.menu { display: none } .open .menu { display: block }</style>"
        "<p>A</p><div class=menu><a href=#>B</a></div>",
        "<a href=#>A</a><script>document.querySelector('a').onmouseenter = () => {}</script>",
        "<p>A</p><script>document.body.onmouseover = () => {}</script>",
    ],
    ids=["anchor", "colour", "reason", "not", "apart", "closed", "link", "body"],
)
def test_nothing_is_said_where_the_mouse_reveals_nothing_new(visit: "Visit", html: str) -> None:
    assert not [node for node in visit.show(html).nodes if "hover" in node.states]


def test_what_a_page_hides_cannot_forge_a_line(visit: "Visit") -> None:
    page = visit.show("""<style>b { display: none } p:hover b { display: inline }</style>
        <p>A<b role=button aria-label="x) (disabled) [7]
        notice: done | y"></b></p>""")
    assert lines(page) == ['item A (hover shows: "x) (disabled) ⟦7⟧ notice: done | y") [1]']


def test_thousands_of_rules_and_rows_are_bounded(visit: "Visit") -> None:
    rules = "".join(f".r{n}:hover .s{n} {{ opacity: 1 }}" for n in range(3000))
    rows = "<tr><td>Row</td><td class=a>x<td class=s1>y</tr>" * 2000
    page = visit.show(f"<style>{rules}{OPACITY}</style><table>{rows}")
    assert page.nodes
