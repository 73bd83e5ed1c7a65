"""Attaching to a Chrome that its user runs."""

import socket
from collections.abc import Iterator
from contextlib import closing

import pytest
from playwright.sync_api import Page as PlaywrightPage

from agentkv_env.actions import parse
from agentkv_env.attached import CannotAttach, attached_page, other_pages, require_loopback
from agentkv_env.browser import Browser, find_executable
from agentkv_env.errors import ActionFailed, BrowserMissing
from agentkv_env.session import Session
from tests.env.conftest import Pages
from tests.own_thread import in_own_thread

pytestmark = pytest.mark.browser


@pytest.fixture
def chrome(browser: Browser) -> Iterator[tuple[str, PlaywrightPage]]:
    """The endpoint of a Chrome with a debugging port, and a page of its user's."""
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        port = server.getsockname()[1]
    with browser.session(hosts=[]) as session:
        assert session.page.context.browser is not None
        chromium = session.page.context.browser.browser_type
    with chromium.launch(
        executable_path=find_executable(), args=[f"--remote-debugging-port={port}"]
    ) as running:
        yield f"http://127.0.0.1:{port}", running.new_context().new_page()


def test_a_running_chrome_keeps_its_tabs_and_the_agent_its_hosts(
    chrome: tuple[str, PlaywrightPage], pages: Pages
) -> None:
    endpoint, users = chrome
    pages.set({"/": "<title>Shop</title><a href='/two'>Two</a>", "/two": "<title>Two</title>two"})
    users.goto(f"http://127.0.0.1:{pages.port}/")

    def work() -> str:
        two = f"http://127.0.0.1:{pages.port}/two"
        with (
            attached_page(endpoint, two) as page,
            Session.on(
                page, hosts=[f"127.0.0.1:{pages.port}"], bystanders=other_pages(page)
            ) as session,
        ):
            session.open(two)
            with pytest.raises(ActionFailed, match="not on the allowed hosts"):
                session.act(parse(f"goto [http://localhost:{pages.port}/]", strict=False))
            return session.observe().title

    assert in_own_thread(work) == "Two"
    assert users.title() == "Shop"  # neither closed nor left


def test_requests_of_other_tabs_go_on_to_any_host(
    callers_page: PlaywrightPage, pages: Pages
) -> None:
    pages.set({"/": "<title>Shop</title>", "/other": "<title>Other</title>"})
    other = callers_page.context.new_page()
    callers_page.goto(f"http://127.0.0.1:{pages.port}/")
    with Session.on(callers_page, bystanders=[other]) as session:
        other.goto(f"http://localhost:{pages.port}/other")
        assert other.title() == "Other"
        assert session.observe().title == "Shop"
        address = f"'http://localhost:{pages.port}/other'"
        callers_page.evaluate(f"fetch({address}, {{mode: 'no-cors'}}).catch(() => 0)")
    assert [host for host in pages.asked if host == "localhost/other"] == ["localhost/other"]


@pytest.mark.parametrize(
    ("endpoint", "problem"),
    [
        ("http://shop.example:9222", "another machine.*ssh -L"),
        ("http://0.0.0.0:9222", "another machine"),
        ("http://localhost", "no debugging port; expected a port of this machine"),
        ("ws://localhost:9222/devtools", "no debugging port"),
        ("http://localhost:9222@shop.example:9222", "no debugging port"),
        ("http://localhost:port", "is no address"),
        ("9222", "no debugging port"),
    ],
)
def test_only_a_port_of_this_machine_is_attached_to(endpoint: str, problem: str) -> None:
    with pytest.raises(CannotAttach, match=problem):
        require_loopback(endpoint)


def test_a_port_where_nothing_answers_says_how_to_start_chrome() -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        endpoint = f"http://127.0.0.1:{server.getsockname()[1]}"

    def attach() -> None:
        with attached_page(endpoint):
            pass

    with pytest.raises(CannotAttach, match="--remote-debugging-port=9222"):
        in_own_thread(attach)


def test_a_visible_browser_needs_chromium_itself_and_a_display(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("DISPLAY", ":0")
    with pytest.raises(BrowserMissing, match="headless shell; install the package chromium"):
        Browser.launch(executable="/usr/bin/chromium-headless-shell", is_visible=True)
    monkeypatch.delenv("DISPLAY")
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    with pytest.raises(BrowserMissing, match="neither DISPLAY nor WAYLAND_DISPLAY is set"):
        Browser.launch(executable="/usr/bin/chromium", is_visible=True)
