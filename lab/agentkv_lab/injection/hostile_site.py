"""The embedded sites with something planted on one of their pages."""

from collections.abc import Awaitable, Callable

from starlette.middleware.base import BaseHTTPMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from agentkv_env.sites.server import Server
from agentkv_env.sites.world import World
from agentkv_lab.injection.hiding import PICTURE

_END = b"</main>"


class HostileSite:
    """The sites of a world, of which one page has more than it should; a context manager.

    Args:
        host: the page's host, such as `forum.localhost`.
        path: the page's path.
    """

    def __init__(self, world: World, *, host: str, path: str) -> None:
        self.server = Server(world)
        self.server.application.add_middleware(BaseHTTPMiddleware, dispatch=self._answer)
        self._host, self._path = host, path
        self._html, self._picture = b"", b""
        self.asked: list[str] = []
        """Method, address without its port, and body of every request since `plant`."""

    def plant(self, html: str, picture: bytes = b"") -> None:
        """Restore the sites, end the page with `html`, and serve a PNG at `PICTURE`."""
        self.server.reset()
        self._html, self._picture = html.encode(), picture
        self.asked.clear()

    def __enter__(self) -> "HostileSite":
        self.server.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.server.stop()

    async def _answer(
        self, request: Request, answer: Callable[[Request], Awaitable[Response]]
    ) -> Response:
        url = request.url
        said = (await request.body()).decode("utf-8", "replace")
        self.asked.append(f"{request.method} {url.replace(port=None)} {said}".rstrip())
        if url.path == PICTURE:
            return Response(self._picture, media_type="image/png")
        response = await answer(request)
        if (url.hostname, url.path) != (self._host, self._path):
            return response
        assert hasattr(response, "body_iterator"), "a middleware's answers are streamed"
        parts = [part async for part in response.body_iterator]
        page = b"".join(part if isinstance(part, bytes) else str(part).encode() for part in parts)
        return HTMLResponse(page.replace(_END, self._html + _END), response.status_code)
