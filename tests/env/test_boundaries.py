"""Sessions stay on the allowed hosts and survive misbehaving pages."""

import os
import signal
import socket
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from playwright.async_api import Page as AsyncPage
from playwright.sync_api import Page as PlaywrightPage

from agentkv_env.actions import parse
from agentkv_env.browser import Browser, find_executable
from agentkv_env.errors import ActionFailed, BrowserGone, BrowserMissing, PageHung
from agentkv_env.hosts import AllowList, HostAddresses, split_port
from agentkv_env.session import PageError, Session

if TYPE_CHECKING:
    from conftest import Pages, Visit

browsing = pytest.mark.browser


def test_an_allow_list_reads_hosts_ports_and_names_below() -> None:
    allow = AllowList(["shop.localhost", "127.0.0.1:8080", "*.example.org", "wiki.localhost:*"])
    for url in (
        *("http://shop.localhost/a", "https://SHOP.localhost:443/", "http://127.0.0.1:8080"),
        *(
            "http://www.example.org/?q",
            "about:blank",
            "https://wiki.localhost:99",
            "http://wiki.localhost",
        ),
    ):
        assert allow.allows(url) and not allow.refused.match(url)
    for url in (
        *("http://evil.localhost/", "http://127.0.0.1:8081/", "http://example.org/"),
        *("http://shop.localhost:8080/", "http://127.0.0.1/", "http://www.example.org:81/"),
        *(
            "http://shop.localhost.evil.com/",
            "http://evil.com/shop.localhost",
            "ftp://shop.localhost",
        ),
        *("file:///etc/passwd", "http://shop.localhost@evil.com/", "http://shop.localhost:x/"),
        *("javascript:alert(1)", "chrome://version", "view-source:http://shop.localhost"),
    ):
        assert not allow.allows(url)
        assert allow.refused.match(url)
    assert not allow.allows("data:text/html,x")


def test_who_may_reach_a_public_origin_may_reach_the_real_one() -> None:
    real = {"http://shop.localhost": "http://shop.localhost:41233", "http://b": "http://b:81"}
    allow = AllowList(["shop.localhost"], addresses=real)
    assert allow.allows("http://shop.localhost:41233/a") and allow.allows("http://shop.localhost")
    assert not allow.allows("http://shop.localhost:41234/a") and not allow.allows("http://b:81/")
    assert str(allow) == "shop.localhost"


def test_a_host_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match=r"http://shop"):
        AllowList(["http://shop.localhost/"])
    assert not AllowList([]).allows("http://localhost/")
    assert [*map(split_port, ["a.b", "a.b:80", "[::1]", "[::1]:80"])] == [
        *(("a.b", ""), ("a.b", "80"), ("[::1]", ""), ("[::1]", "80")),
    ]


@given(st.text("shop.localhostevil:/@?#\\[]0189", max_size=30))
def test_both_locks_agree_on_every_address(rest: str) -> None:
    allow = AllowList(["shop.localhost", "evil.localhost:80", "hop:8"])
    url = "http://" + rest
    if allow.allows(url):
        assert not allow.refused.match(url)


def test_addresses_map_only_whole_origins() -> None:
    addresses = HostAddresses({"http://shop.localhost": "http://shop.localhost:4123"})
    assert addresses.to_real("http://shop.localhost/a?b") == "http://shop.localhost:4123/a?b"
    assert addresses.to_real("shop.localhost") == "http://shop.localhost:4123"
    assert addresses.to_real("shop.localhost:4123/a") == "http://shop.localhost:4123/a"
    assert addresses.to_real("http://shop.localhost.evil/") == "http://shop.localhost.evil/"
    assert addresses.to_public("http://shop.localhost:4123/a") == "http://shop.localhost/a"
    assert addresses.to_public("http://shop.localhost:41234/") == "http://shop.localhost:41234/"


LEAVING = {  # test_fence checks the connections; these tests check the notices
    "link": "<a href='http://evil.localhost:{port}/bad'>Go</a>",
    "redirect": "<a href=/hop>Go</a>",
    "form": "<form method=post action='http://evil.localhost:{port}/bad'><button>Go</button></form>",
    "window": "<a target=_blank href='http://evil.localhost:{port}/bad'>Go</a>",
    "redirected window": "<a target=_blank href=/hop>Go</a>",
    "redirected form": "<form target=a method=post action=/hop><button>Go</button></form>",
    "port": "<a href='http://shop.localhost:1234/bad'>Go</a>",
}


@browsing
def test_a_session_begins_with_the_cookies_and_storage_it_is_given(
    browser: Browser, pages: "Pages"
) -> None:
    pages.set({"/": "<title>Shop</title>"})
    read = "document.cookie + ' ' + localStorage.getItem('cart')"
    with browser.session(hosts=[f"shop.localhost:{pages.port}"]) as first:
        first.open(pages.origin())
        first.page.evaluate("document.cookie = 'name=anna'; localStorage.setItem('cart', 'kayak')")
        state = first.page.context.storage_state()
    with browser.session(hosts=[f"shop.localhost:{pages.port}"], storage_state=state) as second:
        second.open(pages.origin())
        assert second.page.evaluate(read) == "name=anna kayak"
    with browser.session(hosts=[f"shop.localhost:{pages.port}"]) as third:
        third.open(pages.origin())
        assert third.page.evaluate(read) == " null"


@browsing
@pytest.mark.parametrize("way", LEAVING)
def test_a_way_off_the_allowed_hosts_is_refused_in_words(visit: "Visit", way: str) -> None:
    visit.show(
        "<title>Home</title>" + LEAVING[way],
        hop=("http://evil.localhost:{port}/bad",),
        bad="<title>Bad</title>",
    )
    page = visit.act("click [{go}]", go="Go")
    assert not any("evil" in asked or "127.0.0.1" in asked for asked in visit.pages.asked)
    assert any("refused" in notice for notice in page.notices)
    if page.title != "Home":
        page = visit.act("tab_focus [0]")
    assert page.title == "Home" and [node.name for node in page.nodes] == ["Go"]


@browsing
def test_a_window_refused_between_actions_takes_no_later_tab_with_it(visit: "Visit") -> None:
    visit.show("<title>Home</title>")
    with visit.session.page.context.expect_event("requestfailed"):
        visit.session.page.evaluate(f"window.open('{visit.pages.origin('evil')}/bad') && 0")
    assert any("refused" in notice for notice in visit.session.observe().notices)
    page = visit.act("new_tab")
    assert (page.tabs, page.tab) == (("Home", "about:blank"), 1)


@browsing
def test_goto_refuses_every_other_address(visit: "Visit") -> None:
    visit.show("<title>Home</title>")
    for url in (
        *("http://evil.localhost/", "file:///etc/passwd", "data:text/html,x", "chrome://version"),
        *("javascript:alert(1)", "ftp://shop.localhost/", "view-source:http://shop.localhost/"),
    ):
        with pytest.raises(ActionFailed, match="not on the allowed hosts"):
            visit.session.act(parse(f"goto [{url}]"))
        assert visit.session.observe().title == "Home", url


@browsing
def test_a_page_cannot_move_itself_to_an_address_of_its_own_making(visit: "Visit") -> None:
    # Inside an event handler attribute, `URL` is the address of the document.
    visit.show("""<title>Home</title><button onclick="location = window.URL.createObjectURL(
        new Blob(['<title>Blob</title>'], {type: 'text/html'}))">Go</button>""")
    page = visit.act("click [1]")
    assert any("left blob:" in notice for notice in page.notices)
    assert page.title == visit.session.observe().title == "Home"


@browsing
def test_a_server_that_is_down_is_told_to_the_model(browser: Browser) -> None:
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port = unused.getsockname()[1]
    hosts = [f"shop.localhost:{port}", "nowhere.invalid"]
    with browser.session(hosts=hosts) as session:
        with pytest.raises(ActionFailed, match="did not load: net::ERR_CONNECTION_REFUSED"):
            session.act(parse(f"goto [http://shop.localhost:{port}/]"))
        with pytest.raises(ActionFailed, match="did not load: net::ERR_NAME_NOT_RESOLVED"):
            session.act(parse("goto [http://nowhere.invalid/]"))
        session.observe()


@browsing
@pytest.mark.parametrize(
    "script",
    [
        pytest.param("for(;;){}", marks=pytest.mark.slow),
        "setTimeout(() => { for(;;){} }, 1)",
    ],
)
def test_a_page_that_never_answers_ends_in_bounded_time(pages: "Pages", script: str) -> None:
    pages.set({"/": f"<button onclick='{script}'>Loop</button>"})
    with Browser.launch() as browser:
        # The test ends after twice this time; a busy machine needs it to open the page.
        session = browser.session(hosts=[f"shop.localhost:{pages.port}"], timeout_s=2)
        session.open(pages.origin() + "/")
        session.observe()
        with pytest.raises(PageHung):
            session.act(parse("click [1]"))
            session.observe()
        assert not browser.is_alive
        with pytest.raises(BrowserGone):
            session.observe()
        with pytest.raises(BrowserGone):
            browser.session(hosts=[])
        session.close()


@browsing
def test_a_crashed_renderer_is_told_the_browser_serves_on_and_its_own_end_is_told_too(
    pages: "Pages",
) -> None:
    pages.set({"/": "<p>fine"})
    with Browser.launch() as browser:
        with browser.session(hosts=[f"shop.localhost:{pages.port}"]) as session:
            session.open(pages.origin() + "/")
            assert session.page.context.browser is not None
            wire = session.page.context.browser.new_browser_cdp_session()
            for process in wire.send("SystemInfo.getProcessInfo")["processInfo"]:
                if process["type"] == "renderer":
                    os.kill(process["id"], signal.SIGKILL)
            with pytest.raises(BrowserGone):
                session.observe()
        with browser.session(hosts=[f"shop.localhost:{pages.port}"]) as session:
            session.open(pages.origin() + "/")
            assert session.observe().nodes[0].name == "fine"
            assert browser.pid is not None
            os.kill(browser.pid, signal.SIGKILL)
            with pytest.raises(BrowserGone):
                session.observe()


@browsing
def test_a_page_of_the_callers_own_is_left_as_it_was_found(
    callers_page: PlaywrightPage, pages: "Pages"
) -> None:
    pages.set({"/": "<title>Mine</title><button onclick='alert(1)'>A</button>"})
    page = callers_page
    heard: list[str] = []
    page.on("dialog", lambda dialog: (heard.append(dialog.message), dialog.accept()))
    page.goto(pages.origin() + "/")
    with Session.on(page) as session:
        assert session.observe().title == "Mine"
        session.act(parse("click [1]"))
        with pytest.raises(ActionFailed):
            session.act(parse(f"goto [{pages.origin('evil')}/]"))
        page.evaluate(f"location = '{pages.origin('evil')}/'")
        assert any("refused" in notice for notice in session.observe().notices)
    assert heard == ["1"]
    page.evaluate("alert(2)")
    assert heard == ["1", "2"]
    page.goto(pages.origin("evil") + "/")
    assert page.title() == "Mine"
    assert page.evaluate("Boolean(window.RTCPeerConnection && navigator.serviceWorker)")


@browsing
@pytest.mark.parametrize("form", ["", "<input type=hidden name=a value=b>"])
def test_a_window_of_a_callers_page_loads_once_and_whole(
    callers_page: PlaywrightPage, pages: "Pages", form: str
) -> None:
    html = f"<form target=w {'method=post' if form else ''} action=/two>{form}<button>Go</button>"
    pages.set({"/": html, "/two": "<title>Two</title><script>new WebSocket('ws://x')</script>"})
    callers_page.goto(pages.origin() + "/")
    with Session.on(callers_page) as session:
        session.observe()
        session.act(parse("click [1]"))
        page = session.observe()
    assert page.title == "Two" and page.notices == ()
    assert [asked.rstrip("?") for asked in pages.asked].count("shop.localhost/two") == 1


@browsing
def test_a_page_that_is_not_allowed_is_left_unread_whatever_brought_it(
    visit: "Visit", callers_page: PlaywrightPage
) -> None:
    visit.show("<title>Home</title>", bad="<title>Bad</title><p>bad")
    callers_page.goto(visit.pages.origin("evil") + "/bad")
    with Session.on(callers_page, hosts=["shop.localhost"]) as session:
        page = session.observe()
        assert page.nodes == () and page.title == ""
        assert page.notices[0].startswith(f"left {visit.pages.origin('evil')}/bad: not on the")


def test_a_page_of_the_asynchronous_api_is_refused_by_name() -> None:
    page = AsyncPage.__new__(AsyncPage)
    with pytest.raises(TypeError, match=r"playwright\.async_api.*sync_playwright"):
        Session.on(page)  # type: ignore[arg-type]


def test_a_missing_browser_is_told_with_how_to_get_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: object
) -> None:
    monkeypatch.setenv("AGENTKV_BROWSER", f"{tmp_path}/none")
    with pytest.raises(BrowserMissing, match="AGENTKV_BROWSER"):
        find_executable()
    monkeypatch.delenv("AGENTKV_BROWSER")
    with pytest.raises(BrowserMissing, match="install chromium-headless-shell"):
        Browser.launch(executable=f"{tmp_path}/none")


@browsing
def test_a_callers_page_that_shows_a_file_is_refused(
    callers_page: PlaywrightPage, tmp_path: Path
) -> None:
    (tmp_path / "page.html").write_text("<p>Hello")
    callers_page.goto((tmp_path / "page.html").as_uri())
    with pytest.raises(PageError, match="agents act on pages of web servers only; serve its"):
        Session.on(callers_page)
    assert callers_page.url.startswith("file:")


@browsing
def test_a_callers_page_that_is_closed_is_refused(callers_page: PlaywrightPage) -> None:
    page = callers_page.context.new_page()
    page.close()
    with pytest.raises(PageError, match="the page is closed"):
        Session.on(page)


@browsing
def test_an_empty_page_allows_no_host(callers_page: PlaywrightPage) -> None:
    callers_page.set_content("<a href=http://a.test/>a</a>")
    with (
        Session.on(callers_page) as session,
        pytest.raises(ActionFailed, match="http://a.test/ is not on the allowed hosts: none"),
    ):
        session.open("http://a.test/")
