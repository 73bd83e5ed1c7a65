"""Serve the sites of one world on loopback, by host name, over one database with a fast reset."""

import asyncio
import concurrent.futures
import contextlib
import errno
import socket
import sqlite3
import threading
from collections.abc import Callable, Mapping
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import BaseRoute, Host, Route

from agentkv_env.sites.images import label
from agentkv_env.sites.site import Database, Site, environment, missing, money, render
from agentkv_env.sites.world import World

_CACHED = {"Cache-Control": "public, max-age=86400"}
START_LIMIT_S = 20.0


class PortBusy(ValueError):
    """The requested port is in use."""


def template_bytes(world: World) -> bytes:
    """Return the database of a fresh `world` in SQLite's serialization."""
    with contextlib.closing(_connect()) as connection:
        connection.execute("PRAGMA user_version = 1")  # SQLite cannot serialize an empty file
        for site, content in zip(world.sites, world.contents, strict=True):
            connection.executescript(site.schema)
            connection.execute("BEGIN")
            site.fill(world.region, content, connection)
            connection.execute("COMMIT")
        return connection.serialize()


def application(world: World, database: Database) -> Starlette:
    """Return the sites as one ASGI application; the Host header selects the site."""
    routes: list[BaseRoute] = [
        Host(f"{site.name}.localhost", _site_application(site, world, database))
        for site in world.sites
    ]
    known = ", ".join(f"{site.name}.localhost" for site in world.sites)

    async def no_such_host(request: Request) -> Response:
        host = request.headers.get("host", "")
        return PlainTextResponse(f"no site at {host!r}; the sites are {known}", 404)

    return Starlette(routes=[*routes, Route("/{rest:path}", no_such_host)])


class Server:
    """One world, served on 127.0.0.1 from a daemon thread; a context manager.

        Args:
    world: the world to serve.
            port: the port to listen on; 0 selects any free port.

        Raises:
            PortBusy: `start` raises it if the port is in use.
    """

    def __init__(self, world: World, port: int = 0) -> None:
        self.world = world
        self._asked_port = port
        self._template = template_bytes(world)
        self._database = Database(_restored(self._template))
        self._socket: socket.socket | None = None
        self._uvicorn: uvicorn.Server | None = None
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self.application = application(world, self._database)

    def start(self) -> "Server":
        """Start to serve, and return when requests are answered.

        Raises:
            PortBusy: the port is in use.
            RuntimeError: the server did not start within `START_LIMIT_S` seconds.
        """
        assert self._thread is None, "a server is started once"
        self._socket = _bind(self._asked_port)
        config = uvicorn.Config(
            self.application, log_config=None, log_level="warning", access_log=False, lifespan="off"
        )
        self._uvicorn = uvicorn.Server(config)
        ready: concurrent.futures.Future[None] = concurrent.futures.Future()
        self._thread = threading.Thread(target=self._serve, args=(ready,), daemon=True)
        self._thread.start()
        try:
            ready.result(START_LIMIT_S)
        except concurrent.futures.TimeoutError:
            raise RuntimeError(f"the sites did not start in {START_LIMIT_S:.0f} s") from None
        return self

    @property
    def port(self) -> int:
        """The port that the server listens on."""
        assert self._socket is not None, "start() the server first"
        return int(self._socket.getsockname()[1])

    @property
    def origins(self) -> dict[str, str]:
        """Real origins by site: {"shop": "http://shop.localhost:41233", ...}."""
        return {site.name: f"http://{site.name}.localhost:{self.port}" for site in self.world.sites}

    @property
    def addresses(self) -> dict[str, str]:
        """Public to real origin: {"http://shop.localhost": "http://shop.localhost:41233", ...}."""
        return {f"http://{name}.localhost": real for name, real in self.origins.items()}

    @property
    def placeholders(self) -> dict[str, str]:
        """Placeholder to public origin: {"__SHOPPING__": "http://shop.localhost", ...}."""
        return {site.placeholder: f"http://{site.name}.localhost" for site in self.world.sites}

    @property
    def hosts(self) -> tuple[str, ...]:
        """The host names of the sites, for the allow list of an agent."""
        return tuple(f"{site.name}.localhost" for site in self.world.sites)

    @property
    def db(self) -> sqlite3.Connection:
        """The connection to the current state; a reset replaces it, so do not keep it."""
        return self._database.connection

    def reset(self) -> None:
        """Restore the fresh state of every site, in less than a millisecond."""
        if self._loop is None:
            self._replace()
            return
        done: concurrent.futures.Future[None] = concurrent.futures.Future()

        def replace() -> None:
            self._replace()
            done.set_result(None)

        self._loop.call_soon_threadsafe(replace)  # on the loop, so that no handler is interrupted
        done.result(START_LIMIT_S)

    def stop(self) -> None:
        """Stop to serve and free the port; stopping twice does nothing."""
        if self._uvicorn is not None and self._thread is not None:
            self._uvicorn.should_exit = True
            self._uvicorn.force_exit = True
            self._thread.join(START_LIMIT_S)
        if self._socket is not None:
            self._socket.close()
        self._uvicorn = self._socket = self._loop = None

    def __enter__(self) -> "Server":
        return self if self._thread is not None else self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def _replace(self) -> None:
        old = self._database.connection
        self._database.connection = _restored(self._template)
        old.close()

    def _serve(self, ready: "concurrent.futures.Future[None]") -> None:
        assert self._uvicorn is not None and self._socket is not None
        server, listening = self._uvicorn, self._socket

        async def serve() -> None:
            self._loop = asyncio.get_running_loop()
            serving = asyncio.ensure_future(server.serve(sockets=[listening]))
            while not server.started and not serving.done():
                await asyncio.sleep(0.005)
            ready.set_result(None)
            await serving

        asyncio.run(serve())


def _connect() -> sqlite3.Connection:
    # Used by the loop's thread and the caller's; SQLite serializes the calls.
    connection = sqlite3.connect(":memory:", check_same_thread=False, isolation_level=None)
    connection.row_factory = sqlite3.Row
    return connection


def _restored(template: bytes) -> sqlite3.Connection:
    connection = _connect()
    connection.deserialize(template)
    return connection


def _bind(port: int) -> socket.socket:
    # asyncio disables Nagle's algorithm, 44 ms per page, only if the protocol is given explicitly.
    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(("127.0.0.1", port))
    except OSError as error:
        listening.close()
        if error.errno != errno.EADDRINUSE:
            raise
        raise PortBusy(
            f"port {port} on 127.0.0.1 is busy; choose another, or 0 for any free one"
        ) from None
    return listening


def _site_application(site: Site[Any], world: World, database: Database) -> Starlette:
    content = world.content_of(site)
    pictures: dict[str, bytes] = {}
    base = (Path(__file__).parent / "templates" / "style.css").read_bytes()
    own = site.folder / "style.css"
    style = base + (own.read_bytes() if own.exists() else b"")

    async def picture(request: Request) -> Response:
        key = request.path_params["key"]
        if key not in pictures:
            drawn = site.picture(world.region, content, key)
            if drawn is None:
                raise missing()
            pictures[key] = drawn
        return Response(pictures[key], media_type="image/png", headers=_CACHED)

    async def stylesheet(request: Request) -> Response:
        return Response(style, media_type="text/css", headers=_CACHED)

    async def icon(request: Request) -> Response:
        drawn = label([site.name[0].upper()], key=site.name, width=64, height=64)
        return Response(drawn, media_type="image/png", headers=_CACHED)

    async def on_http_error(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        template = "missing.html" if error.status_code == 404 else "failed.html"
        return render(request, template, status=error.status_code, code=error.status_code)

    async def on_overflow(request: Request, error: Exception) -> Response:
        # A number in the address is too large for SQLite, so the page does not exist.
        return render(request, "missing.html", status=404, code=404)

    async def on_failure(request: Request, error: Exception) -> Response:
        return render(request, "failed.html", status=500, code=500)

    result = Starlette(
        routes=[
            Route("/style.css", stylesheet),
            Route("/favicon.ico", icon),
            Route("/image/{key}.png", picture),
            *site.routes,
        ],
        exception_handlers={
            HTTPException: on_http_error,
            OverflowError: on_overflow,
            500: on_failure,
        },
    )
    result.state.region = world.region
    result.state.content = content
    result.state.site = site
    result.state.database = database
    result.state.templates = environment(site.folder, _FILTERS)
    return result


def _day(when: datetime | str) -> str:
    moment = datetime.fromisoformat(when) if isinstance(when, str) else when
    return f"{moment.day} {moment:%B %Y}"


_FILTERS: Mapping[str, Callable[..., object]] = {"money": money, "day": _day}
