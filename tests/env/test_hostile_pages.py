"""Hostile pages end in a readable page with a notice, or in a documented error."""

import threading
from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING

import pytest
from playwright.sync_api import Page

from agentkv_env.actions import parse
from agentkv_env.browser import Browser
from agentkv_env.errors import ActionFailed, BrowserGone
from agentkv_env.ocr import Ocr
from agentkv_env.serialize import serialize
from agentkv_env.session import Session
from agentkv_env.tabs import MAX_TABS
from tests.soak.hostile_html import CLOBBERING, FORM_FIELDS
from tests.soak.pages import browser_cases

if TYPE_CHECKING:
    from conftest import Pages, Visit

pytestmark = pytest.mark.browser


@pytest.fixture
def late() -> Iterator[threading.Event]:
    """An answer that arrives when the test sets it."""
    event = threading.Event()
    yield event
    event.set()


def test_no_text_of_a_page_holds_a_lone_surrogate_or_a_control_character(visit: "Visit") -> None:
    visit.show("""<input aria-label=i><p id=p></p><select aria-label=s><option id=o>x</select>
        <script>document.querySelector('input').value = 'v\\ud800\\x1b[2J';
        p.textContent = 't\\udfff\\x07'; o.label = 'o\\ud800'; document.title = 'T\\ud800\\x1b'
        setTimeout(() => alert('a\\ud800\\x1b'))</script>""")
    page = visit.act("hover [1]")
    page = page if page.notices else visit.session.observe()
    whole = repr(asdict(page))
    whole.encode("utf-8")
    assert "\\ud" not in whole and "\\x" not in whole
    assert (page.title, page.nodes[0].value, page.nodes[1].name) == ("T", "v [2J", "t")
    assert page.nodes[2].options == ("o",)


def test_a_link_that_takes_long_is_told_as_still_loading_until_it_came(
    browser: Browser, pages: "Pages", late: threading.Event
) -> None:
    pages.set({"/": "<title>Home</title><a href=/late>Go</a>", "/late": late})
    with browser.session(hosts=[f"shop.localhost:{pages.port}"], timeout_s=0.4) as session:
        session.open(pages.origin() + "/")
        session.observe()
        session.act(parse("click [1]"))
        page = session.observe()
        assert page.notices == ("the page is still loading, so there is nothing to read yet",)
        assert (page.title, page.nodes) == ("Home", ())
        with pytest.raises(ActionFailed, match="still loading"):
            session.act(parse("scroll [down]"))
        assert session.screenshot() == b""
        with session.page.expect_event("domcontentloaded"):
            late.set()
        assert session.observe().title == "Late"
    assert browser.is_alive


def test_where_a_window_closes_itself_the_other_tab_or_the_first_page_is_opened(
    visit: "Visit",
) -> None:
    visit.show(
        "<title>One</title><a href=/two target=_blank>Go</a>",
        two="<title>Two</title><button onclick=window.close()>Close</button>",
    )
    assert visit.act("click [1]").title == "Two"
    page = visit.act("click [1]")
    assert (page.title, page.tabs) == ("One", ("One",))
    assert page.notices == ("the page closed its window; another tab is current now",)
    visit.act("click [1]")
    visit.act("tab_focus [0]")
    assert visit.act("close_tab").title == "Two"
    page = visit.act("click [1]")
    assert (page.title, page.tabs) == ("One", ("One",))
    assert page.notices == ("the page closed its window; the first page is open again",)
    visit.session.page.close()  # between two steps, like a timer of the page
    assert visit.act("click [1]").title == "Two"


def test_windows_nobody_asked_for_do_not_open(visit: "Visit") -> None:
    visit.show("""<a id=a target=_blank href=/>t</a><form id=f target=x></form><script>
        let n = 0; const i = setInterval(() => { n += open('/') ? 1 : 0; a.click(); f.submit();
        document.title += '.';
        if (document.title.length > 20) { clearInterval(i); fetch('/over') } })</script>""")
    while not any(
        asked.endswith("/over") for asked in visit.pages.asked
    ):  # evaluate would count as a user activation
        visit.session.page.wait_for_timeout(10)
    assert visit.session.page.evaluate("n") == 0
    assert len(visit.session.observe().tabs) == 1


def test_there_are_only_so_many_tabs(visit: "Visit") -> None:
    visit.show("<title>Home</title><p>x")
    context = visit.session.page.context
    for _ in range(MAX_TABS + 2):  # evaluate counts as a user activation
        with context.expect_event("page"):
            visit.session.page.evaluate("open('/none') && 0")
    page = visit.session.observe()
    assert len(page.tabs) == MAX_TABS
    assert len(context.pages) == MAX_TABS
    assert any("3 windows that the page opened were closed" in told for told in page.notices)
    with pytest.raises(ActionFailed, match="10 tabs already"):
        visit.session.act(parse("new_tab"))


def test_ocr_over_its_time_leaves_the_text_unread_and_the_browser_alive(
    browser: Browser, pages: "Pages", poster: Callable[..., bytes]
) -> None:
    pages.set({"/": "<p>here</p><img src=/a alt=Poster>", "/a": poster("CODE SAVE15")})
    ocr = Ocr(timeout_s=1e-3)
    with browser.session(hosts=[f"shop.localhost:{pages.port}"], ocr=ocr) as session:
        session.open(pages.origin() + "/")
        page = session.observe()
        assert [node.name for node in page.nodes] == ["here", "Poster"]
        assert page.notices == ("text inside 1 images could not be read",)
        assert session.observe().notices == ()  # and it is not tried again
        assert ocr.num_runs <= 1
    assert browser.is_alive


def test_fields_that_are_called_like_methods_hide_nothing(visit: "Visit") -> None:
    page = visit.show("<title>Real</title>" + CLOBBERING)
    names = [node.name for node in page.nodes]
    assert (page.title, page.nodes[0].role, page.nodes[0].name) == ("Real", "button", "F")
    assert len(page.nodes) == len(FORM_FIELDS) + 3 and "Inner" in names and "after" in names
    visit.act("click [{inner}]", inner="Inner")


def test_a_page_that_reloads_without_end_is_told_as_unreadable_or_read(
    browser: Browser, pages: "Pages"
) -> None:
    pages.set({"/": "<title>R</title><button>Go</button><script>location.reload()</script>"})
    with browser.session(hosts=[f"shop.localhost:{pages.port}"], timeout_s=0.3) as session:
        session.open(pages.origin() + "/")
        page = session.observe()
        assert page.nodes or any("page" in notice for notice in page.notices)
        try:
            session.act(parse("click [1]"))
        except ActionFailed:
            pass
        session.observe()
    assert browser.is_alive


def test_a_page_of_which_nothing_has_arrived_is_told_as_loading(
    browser: Browser, pages: "Pages"
) -> None:
    pages.set({"/": "<button onclick=document.open()>Go</button>"})  # open() empties the page
    with browser.session(hosts=[f"shop.localhost:{pages.port}"], timeout_s=0.5) as session:
        session.open(pages.origin() + "/")
        assert [node.name for node in session.observe().nodes] == ["Go"]
        session.act(parse("click [1]"))
        page = session.observe()
        assert page.nodes == ()
        assert page.notices == ("the page is still loading, so there is nothing to read yet",)


def test_a_page_whose_style_never_comes_is_read_and_has_no_picture(
    browser: Browser, pages: "Pages", late: threading.Event
) -> None:
    pages.set({"/": "<link rel=stylesheet href=/s><button>Go</button>", "/s": late})
    with browser.session(hosts=[f"shop.localhost:{pages.port}"], timeout_s=0.5) as session:
        session.open(pages.origin() + "/")
        assert [node.name for node in session.observe().nodes] == ["Go"]
        assert session.screenshot() == b""


def test_elements_nested_without_measure_are_read_in_part(visit: "Visit") -> None:
    page = visit.show("""<p>top</p><button id=b>Go</button><script>let e = b;
        for (let i = 0; i < 2500; i++) e = e.appendChild(document.createElement('span'));
        e.textContent = 'bottom'</script>""")
    assert [node.name for node in page.nodes] == ["top", "Go"]
    assert page.notices == ("the page is too large: part of it was not read",)
    visit.act("click [1]")


def test_a_page_larger_than_any_is_read_in_part(visit: "Visit") -> None:
    page = visit.show("""<script>document.write('<b style="position:absolute;top:0">x</b>'
        .repeat(6000) + '<p style="position:fixed;top:0">' + 'word '.repeat(50000))</script>""")
    assert "the page is too large: part of it was not read" in page.notices
    assert 5000 <= len(page.nodes) < 5100 and len(serialize(page).text) < 200_000


def test_generated_text_and_closed_roots_without_measure_are_read_in_part(visit: "Visit") -> None:
    page = visit.show("""<style>p {height: 40px; overflow: hidden} p::before {content: attr(title)}
        b {counter-reset: n 1000000} b::before {content: counters(n, "")}</style><p id=p></p>
        <script>p.title = 'word '.repeat(200000);
        let e = document.body; for (let i = 0; i < 400; i++) e = e.appendChild(
          document.createElement('b'));
        customElements.define('x-a', class extends HTMLElement { constructor() { super();
          this.attachShadow({mode: 'closed'}).innerHTML = '<i>in</i>' } });
        for (let i = 0; i < 200; i++) document.body.append(document.createElement('x-a'), ' ')
        </script>""")
    assert "the page is too large: part of it was not read" in page.notices
    assert len(page.nodes) < 500 and all(len(node.name) < 25_000 for node in page.nodes)
    assert page.nodes[0].name.startswith("word word") and len(page.nodes[0].name) < 600
    assert sum(node.name.count("in in in") for node in page.nodes) > 10


def test_a_storm_of_dialogs_is_told_by_its_beginning_and_its_size(visit: "Visit") -> None:
    visit.show("<button onclick='for (let i = 0; i < 50; i++) alert(i)'>Go</button>")
    page = visit.act("click [1]")
    assert page.notices[:2] == ("alert accepted: 0", "alert accepted: 1")
    assert page.notices[-1] == "30 more notices are not shown" and len(page.notices) == 21


def test_a_page_that_breaks_its_own_promises_is_asked_all_the_same(
    callers_page: Page, pages: "Pages"
) -> None:
    pages.set({"/": "<script>Promise = requestAnimationFrame = setTimeout = null</script><p>x"})
    callers_page.goto(pages.origin() + "/")
    with Session.on(callers_page, timeout_s=2) as session:
        assert [node.name for node in session.observe().nodes] == ["x"]


def test_a_renderer_that_a_page_brings_down_is_an_error_of_ours(
    browser: Browser, pages: "Pages"
) -> None:
    pages.set(
        {
            "/": """<script>let e = document.documentElement; for (let i = 0; i < 20000; i++)
            e = e.appendChild(document.createElement('div'))</script>"""
        }
    )
    with browser.session(hosts=[f"shop.localhost:{pages.port}"]) as session:
        with pytest.raises(BrowserGone, match="crashed"):
            session.open(pages.origin() + "/")
            session.observe()
    with browser.session(hosts=[f"shop.localhost:{pages.port}"]) as session:
        pages.set({"/": "<p>fine"})
        session.open(pages.origin() + "/")
        assert session.observe().nodes[0].name == "fine"


def test_random_hostile_documents_end_in_kinds_that_are_meant_for_it() -> None:
    names = ["escapes", "no root", "never closed", "forged listeners"]
    assert not [case for case in browser_cases(1, names) if case.outcome != "held"]


@pytest.mark.slow
@pytest.mark.parametrize("num", [10, pytest.param(100, marks=pytest.mark.exhaustive)])
def test_hostile_documents_and_the_largest_end_within_their_limits(num: int) -> None:
    names = ["alerts", "endless alerts", "many frames", "foreign frames", "frames in frames"]
    names += ["fifty thousand nodes", "deep boxes", "endless loop", "written anew"]
    names += ["many dialogs", "covered by a dialog", "many animations", "many areas of a map"]
    assert not [case for case in browser_cases(num, names) if case.outcome != "held"]


def test_a_page_that_has_a_function_of_the_console_hides_no_listener(visit: "Visit") -> None:
    page = visit.show("""<div id=d>Fold</div><script>window.$$ = () => [];
        d.addEventListener('click', () => 1)</script>""")
    assert [node.role for node in page.nodes] == ["button"]
    page = visit.show("""<div id=d>Fold</div><script>window.getEventListeners = () => {
        for (;;) {} }; d.addEventListener('click', () => 1)</script>""")
    assert [node.name for node in page.nodes] == ["Fold"]
