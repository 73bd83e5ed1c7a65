"""A client for all sites at once that takes and returns absolute addresses."""

import http.client
import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from html import unescape
from urllib.parse import urlencode, urljoin, urlsplit
from zlib import crc32

import pytest

from agentkv_env.sites import Server, World


@dataclass(frozen=True)
class Answer:
    """A response; `url` is the last address after redirects, in public form."""

    url: str
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def is_page(self) -> bool:
        return "html" in self.headers["content-type"]

    @property
    def text(self) -> str:
        return unescape(self.body.decode())

    @property
    def links(self) -> list[str]:
        """All links of the page, absolute and without fragments."""
        if not self.is_page:
            return []
        found = re.findall(r'(?:href|src|action)="([^"]*)"', self.body.decode())
        return [urljoin(self.url, unescape(each)).partition("#")[0] for each in found]


class Visitor:
    """Sends HTTP requests to a server's port; the Host header selects the site."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)

    def get(self, url: str) -> Answer:
        return self._send("GET", url)

    def post(self, url: str, **fields: str | int) -> Answer:
        return self._send("POST", url, urlencode(fields))

    def _send(self, method: str, url: str, body: str | None = None) -> Answer:
        parts = urlsplit(url)
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        headers = {"Host": f"{parts.hostname}:{self.server.port}"}
        if body is not None:
            headers["Content-Type"] = "application/x-www-form-urlencoded"
        self.connection.request(method, path, body, headers)
        response = self.connection.getresponse()
        content = response.read().replace(b"localhost:%d" % self.server.port, b"localhost")
        received = {key.lower(): value for key, value in response.getheaders()}
        if response.status == 303:
            return self.get(urljoin(url, received["location"]))
        return Answer(url, response.status, received, content)


@contextmanager
def visiting(server: Server) -> Iterator[Visitor]:
    walking = Visitor(server)
    yield walking
    walking.connection.close()


@pytest.fixture(scope="session")
def served() -> Iterator[Server]:
    with Server(World(75)) as server:
        yield server


@pytest.fixture
def visitor(served: Server) -> Iterator[Visitor]:
    """All sites in their fresh state."""
    served.reset()
    with visiting(served) as walking:
        yield walking


@pytest.fixture
def serve_visitor() -> Callable[[World], AbstractContextManager[Visitor]]:
    """Return a context manager that serves another world and yields its visitor."""

    @contextmanager
    def serve(other: World) -> Iterator[Visitor]:
        with Server(other) as server, visiting(server) as walking:
            yield walking

    return serve


@pytest.fixture
def world(served: Server) -> World:
    return served.world


@pytest.fixture(scope="session")
def crawled(served: Server) -> dict[str, Answer]:
    """The answers of all pages, and of one in eight pictures, that links lead to from home."""

    def chosen(link: str) -> bool:
        return "/image/" not in link or crc32(link.encode()) % 8 == 0

    served.reset()
    todo, seen = ["http://home.localhost/"], dict[str, Answer]()
    with visiting(served) as walking:
        while todo:
            url = todo.pop()
            if url not in seen:
                seen[url] = walking.get(url)
                todo += [link for link in seen[url].links if link not in seen and chosen(link)]
    return seen
