"""Fixtures: a real browser, and small pages on loopback under any host name."""

import contextlib
import http.server
import io
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Self

import pytest
from PIL import Image, ImageDraw, ImageFont
from playwright.sync_api import Error

from agentkv_env.actions import Action, parse
from agentkv_env.browser import Browser
from agentkv_env.errors import ActionFailed, BrowserGone
from agentkv_env.named_secrets import Secret
from agentkv_env.page import Node, Page
from agentkv_env.session import Session
from tests.callers_page import callers_chromium as callers_chromium
from tests.callers_page import callers_page as callers_page

Answer = str | bytes | tuple[str] | threading.Event


class Pages:
    """Serves HTML and PNG by path; `{port}` in a page is replaced; a tuple redirects.

    An answer that is an event arrives when the event is set.
    """

    def __init__(self) -> None:
        self.content: dict[str, Answer] = {}
        self.asked: list[str] = []
        """Host and path of every request."""
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                outer.answer(self)

            do_POST = do_GET

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self._server.server_port
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    def answer(self, request: http.server.BaseHTTPRequestHandler) -> None:
        host, path = request.headers["Host"].split(":")[0], request.path.split("?")[0]
        self.asked.append(host + request.path)
        if length := int(request.headers.get("Content-Length", 0)):
            request.rfile.read(length)
        found = self.content.get(path)
        body, headers = b"", {"Content-Type": "text/html; charset=utf-8"}
        if isinstance(found, threading.Event):
            found.wait(30)
            found = "<title>Late</title>came late"
        if isinstance(found, tuple):
            headers["Location"] = found[0].replace("{port}", str(self.port))
        elif isinstance(found, bytes):
            body, headers["Content-Type"] = found, "image/png"
            if path.endswith(".bin"):
                headers |= {
                    "Content-Type": "application/octet-stream",
                    "Content-Disposition": "attachment; filename=file.bin",
                }
        elif found is not None:
            if path.endswith(".css"):
                headers["Content-Type"] = "text/css"
            body = found.replace("{port}", str(self.port)).encode()
        request.send_response(404 if found is None else 302 if "Location" in headers else 200)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            request.send_header(name, value)
        request.end_headers()
        request.wfile.write(body)

    def set(self, content: Mapping[str, Answer]) -> None:
        self.content = dict(content)
        self.asked.clear()

    def origin(self, name: str = "shop") -> str:
        return f"http://{name}.localhost:{self.port}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class Visit:
    """A session on the served pages, with shortcuts for tests."""

    def __init__(self, session: Session, pages: Pages) -> None:
        self.session = session
        self.pages = pages

    def show(self, html: str, **others: Answer) -> Page:
        """Serve `html` at / and other pages at /name, open the page and observe it."""
        self.pages.set({"/": html, **{f"/{name}": page for name, page in others.items()}})
        self.session.open(self.pages.origin() + "/")
        return self.session.observe()

    def act(self, text: str, **named: str) -> Page:
        """Execute an action; `{name}` stands for the id of the element with that name."""
        page = self.session.observe()
        numbers = {key: element(page, name).id for key, name in named.items()}
        self.session.act(parse(text.format(**numbers), strict=False))
        return self.session.observe()

    def do(self, action: Action) -> Page:
        self.session.act(action)
        return self.session.observe()


def element(page: Page, name: str) -> Node:
    return next(node for node in page.nodes if node.id is not None and node.name == name)


@pytest.fixture(scope="session")
def pages() -> Iterator[Pages]:
    with Pages() as served:
        yield served


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """The browser of all tests, except those that kill their own."""
    with Browser.launch() as running:
        yield running


class Sessions:
    """A session that tests use one after the other, as long as each leaves it as it was."""

    def __init__(
        self, browser: Browser, pages: Pages, *, secrets: Mapping[str, Secret] | None = None
    ) -> None:
        self._browser = browser
        self._pages = pages
        self._secrets = secrets
        self._kept: Session | None = None

    def visit(self) -> Visit:
        if self._kept is None:
            self._kept = self.new()
        return Visit(self._kept, self._pages)

    def new(self) -> Session:
        hosts = [f"{name}.localhost:{self._pages.port}" for name in ("shop", "partner")]
        return self._browser.session(hosts=hosts, viewport=(800, 600), secrets=self._secrets)

    def leave(self) -> None:
        """Keep the session if it has one tab, which answers, and forget what it stored."""
        session, self._kept = self._kept, None
        if session is None:
            return
        with contextlib.suppress(BrowserGone, ActionFailed, Error):
            session.dismiss_dialogs()
            page = session.page
            page.goto("about:blank", timeout=2000)
            if page.context.pages == [page]:
                page.mouse.move(-1, -1)
                page.context.clear_cookies()
                session.observe()  # takes the notices
                self._kept = session
        if self._kept is None:
            session.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._kept is not None:
            self._kept.close()


@pytest.fixture(scope="session")
def sessions(browser: Browser, pages: Pages) -> Iterator[Sessions]:
    with Sessions(browser, pages) as made:
        yield made


@pytest.fixture
def visit(sessions: Sessions) -> Iterator[Visit]:
    """A session that other tests have used; its history is theirs."""
    yield sessions.visit()
    sessions.leave()


@pytest.fixture
def first_visit(sessions: Sessions, pages: Pages) -> Iterator[Visit]:
    """A session of the test's own."""
    with sessions.new() as session:
        yield Visit(session, pages)


@pytest.fixture(scope="session")
def poster() -> Callable[..., bytes]:
    """Draws text on a PNG."""

    def draw(
        text: str, ink: str = "black", paper: str = "white", size: tuple[int, int] = (320, 80)
    ) -> bytes:
        image = Image.new("RGB", size, paper)
        font = ImageFont.truetype("DejaVuSans.ttf", 24)
        ImageDraw.Draw(image).multiline_text((12, 20), text, fill=ink, font=font)
        file = io.BytesIO()
        image.save(file, "PNG")
        return file.getvalue()

    return draw
