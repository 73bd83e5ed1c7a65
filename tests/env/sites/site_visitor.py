"""Visit one site without a browser: fetch pages by path and post forms as fields."""

import http.client
import re
from dataclasses import dataclass
from html import unescape
from urllib.parse import urlencode

from agentkv_env.sites.server import Server
from agentkv_env.sites.world import World


@dataclass(frozen=True)
class Answer:
    """The answer of a site after redirects; `text` is the page's text on one line."""

    status: int
    path: str
    body: bytes

    @property
    def html(self) -> str:
        return self.body.decode()

    @property
    def text(self) -> str:
        return " ".join(unescape(re.sub(r"<[^>]+>", " ", self.html)).split())

    @property
    def links(self) -> list[str]:
        """Paths on the same site."""
        return [unescape(path) for path in re.findall(r'<a\b[^>]*href="(/[^"]*)"', self.html)]


@dataclass(frozen=True)
class SiteVisitor:
    """One site of a served world."""

    server: Server
    site: str

    @property
    def world(self) -> World:
        return self.server.world

    def get(self, path: str) -> Answer:
        return self._ask("GET", path, None)

    def post(self, path: str, **fields: object) -> Answer:
        return self._ask("POST", path, urlencode(fields))

    def _ask(self, method: str, path: str, body: str | None) -> Answer:
        connection = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=20)
        headers = {"Host": f"{self.site}.localhost"}
        if body is not None:
            headers["Content-Type"] = "application/x-www-form-urlencoded"
        connection.request(method, path.split("#")[0], body, headers)
        response = connection.getresponse()
        content = response.read()
        connection.close()
        if response.status == 303:
            return self._ask("GET", response.headers["Location"], None)
        return Answer(response.status, path, content)
