"""What a site is, and the few things its request handlers need.

A site is a value: a name, tables, a way to fill them from the world, routes and pictures. Its
templates extend a `layout.html` of its own, which extends the shared `base.html`. Handlers are
plain coroutines; they take the database with `database(request)` after their last `await` and must
not keep it, because a reset puts another one in its place.
"""

import sqlite3
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, cast
from urllib.parse import parse_qsl

import jinja2
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import BaseRoute

if TYPE_CHECKING:
    from agentkv_env.sites.world import World

FORM_LIMIT_BYTES = 64 * 1024
"""A posted form may not be larger."""


def _no_picture(world: "World", key: str) -> bytes | None:
    return None


@dataclass(frozen=True, slots=True)
class Site:
    """One site of the embedded world."""

    name: str
    """Also the host: "shop" is served at shop.localhost."""
    placeholder: str
    """What tasks write for its address: "__SHOPPING__"."""
    folder: Path
    """Holds `templates/` and, if the site has its own looks, `style.css`."""
    schema: str
    """SQL that makes its tables, all named `<site>_...`: the sites share one database."""
    fill: Callable[["World", sqlite3.Connection], None]
    """Inserts the world's content; must insert the same rows in the same order every time."""
    routes: Callable[["World"], Sequence[BaseRoute]]
    picture: Callable[["World", str], bytes | None] = _no_picture
    """The PNG behind `/image/<key>.png`, or None for an unknown key; asked once per key."""


@dataclass(slots=True)
class Database:
    """Holds the connection of the present state; a reset replaces it."""

    connection: sqlite3.Connection


def database(request: Request) -> sqlite3.Connection:
    """The present database, rows as `sqlite3.Row`, each statement committed by itself."""
    return cast(Database, request.app.state.database).connection


def world(request: Request) -> "World":
    """The world that is being served."""
    return cast("World", request.app.state.world)


def origin(request: Request, site: str) -> str:
    """Where another site of this world is served: same port, that site's host."""
    port = request.url.port
    return f"http://{site}.localhost" + (f":{port}" if port else "")


def render(request: Request, template: str, *, status: int = 200, **values: object) -> HTMLResponse:
    """Answer with `template` of the request's site.

    Every template has `world`, `me` (the signed-in person), `site`, `path`, `query` (the
    request's) and `origin(name)` besides `values`.
    """
    environment = cast(jinja2.Environment, request.app.state.templates)
    shown = world(request)
    html = environment.get_template(template).render(
        world=shown,
        me=shown.me,
        site=request.app.state.site,
        path=request.url.path,
        query=request.query_params,
        origin=lambda name: origin(request, name),
        **values,
    )
    return HTMLResponse(html, status)


def see_other(path: str) -> Response:
    """Send the browser on to `path` with a GET, as every handled form does."""
    return RedirectResponse(path, 303)


async def form(request: Request) -> dict[str, str]:
    """The posted fields, each once (the last wins), white space at the ends removed.

    Raises:
        HTTPException: 413 when the body is larger than `FORM_LIMIT_BYTES`.
    """
    body = await request.body()
    if len(body) > FORM_LIMIT_BYTES:
        raise HTTPException(413)
    pairs = parse_qsl(body.decode("utf-8", "replace"), keep_blank_values=True)
    return {key: value.strip() for key, value in pairs}


def whole_number(text: str | None, default: int, least: int = 0, most: int = 10**9) -> int:
    """`text` as an int held between `least` and `most`; `default` if it is none."""
    digits = (text or "").strip()
    if not digits.isascii() or not digits.isdigit() or len(digits) > 12:
        return default
    return max(least, min(most, int(digits)))


def missing() -> HTTPException:
    """Raise this for a thing that does not exist: the site's own 404 page."""
    return HTTPException(404)


@dataclass(frozen=True, slots=True)
class Paging:
    """One page of a list that does not fit on a screen."""

    number: int
    """The page shown, from 1."""
    num_pages: int
    start: int
    """Index of its first item."""
    size: int
    """Items on a full page."""


def paging(count: int, *, page: str | None, size: int) -> Paging:
    """Which page of `count` items the query's `page` asks for; out of range goes to the nearest."""
    num_pages = max(1, -(-count // size))
    number = whole_number(page, 1, 1, num_pages)
    return Paging(number, num_pages, (number - 1) * size, size)


def environment(folder: Path, filters: Mapping[str, Callable[..., object]]) -> jinja2.Environment:
    """Templates of one site over the shared ones; a missing variable is an error."""
    shared = Path(__file__).parent / "templates"
    result = jinja2.Environment(
        loader=jinja2.FileSystemLoader([folder / "templates", shared]),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    result.filters.update(filters)
    return result


def money(cents: int) -> str:
    """$12.50 for 1250 cents."""
    return f"${cents // 100:,}.{cents % 100:02d}"
