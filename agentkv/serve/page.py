"""The page at `/`: files of fixed names, without data, and what a browser may do with them."""

from collections.abc import Awaitable, Callable
from importlib import resources

from starlette.requests import Request
from starlette.responses import Response

_FILES = {
    "/": ("page.html", "text/html"),
    "/page.css": ("page.css", "text/css"),
    "/page.js": ("page.js", "text/javascript"),
    "/held.css": ("held.css", "text/css"),
    "/held.js": ("held.js", "text/javascript"),
    "/page.svg": ("page.svg", "image/svg+xml"),
}
PATHS = frozenset(_FILES)
"""Paths of the page's files, which need no key."""
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)
PRIVATE = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}
"""Headers of answers with the text of sessions."""
_HEADERS = {
    "Cache-Control": "no-cache",
    "Content-Security-Policy": _POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
_Handler = Callable[[Request, str], Awaitable[Response]]


def routes() -> list[tuple[str, list[str], _Handler]]:
    """Return the routes of the page's files, which are read now."""
    return [(path, ["GET"], _sending(*_FILES[path])) for path in _FILES]


def _sending(name: str, kind: str) -> _Handler:
    content = resources.files("agentkv.serve").joinpath("static", name).read_bytes()

    async def send(request: Request, owner: str) -> Response:
        return Response(content, media_type=kind, headers=_HEADERS)

    return send
