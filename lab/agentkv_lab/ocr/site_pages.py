"""The pictures of pages of the embedded sites."""

import http.client
import io
import re
from collections.abc import Iterator
from contextlib import closing
from html import unescape
from urllib.parse import urljoin, urlsplit

from PIL import Image

from agentkv_env.sites.server import Server
from agentkv_env.sites.world import World


def site_pages(world_seed: int, num_pages: int) -> list[list[Image.Image]]:
    """Return the pictures of the first pages of each site that have new ones.

    Links are followed in the order in which they stand. A picture is read once, as by `Ocr`.

    Args:
        num_pages: pages of each site at most.
    """
    with (
        Server(World(world_seed)) as server,
        closing(http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)) as connection,
    ):
        return [
            page
            for host in server.hosts
            for _, page in zip(range(num_pages), _pages(connection, host), strict=False)
        ]


def _pages(connection: http.client.HTTPConnection, host: str) -> Iterator[list[Image.Image]]:
    waiting, known, drawn = [f"http://{host}/"], {f"http://{host}/"}, set[bytes]()
    while waiting:
        url = waiting.pop(0)
        kind, body = _get(connection, url)
        if "html" not in kind:
            continue
        html = body.decode()
        pictures = [_get(connection, address) for address in _addresses(html, "src", url)]
        new = {data for kind, data in pictures if kind.startswith("image/")} - drawn
        drawn |= new
        if new:
            yield [Image.open(io.BytesIO(data)).convert("RGB") for data in sorted(new)]
        for address in _addresses(html, "href", url):
            if urlsplit(address).hostname == host and address not in known:
                known.add(address)
                waiting.append(address)


def _addresses(html: str, attribute: str, base: str) -> list[str]:
    found = re.findall(rf'{attribute}="([^"]*)"', html)
    return [urljoin(base, unescape(each)).partition("#")[0] for each in found]


def _get(connection: http.client.HTTPConnection, url: str) -> tuple[str, bytes]:
    """Return content type and body."""
    parts = urlsplit(url)
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    connection.request("GET", path, headers={"Host": parts.netloc})
    answer = connection.getresponse()
    return answer.headers.get("content-type", ""), answer.read()
