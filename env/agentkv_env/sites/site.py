"""The definition of a site, and the helpers of its request handlers.

A site is a value: a name, content generated from the world's seed, tables with a function that
fills them, routes and pictures. Its templates extend its own `layout.html`, or an empty one, which
extends the shared `base.html`. Handlers are coroutines. They call `database(request)` after their
last `await` and do not keep the connection, because a reset replaces it.
"""

import sqlite3
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar, cast
from urllib.parse import parse_qsl

import jinja2
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import BaseRoute

from agentkv_env.sites.names import Names
from agentkv_env.sites.region import Region

FORM_LIMIT_BYTES = 64 * 1024
"""Largest posted form that is accepted."""

C = TypeVar("C")


def _fill_nothing(region: Region, content: object, connection: sqlite3.Connection) -> None:
    pass


def _no_picture(region: Region, content: object, key: str) -> bytes | None:
    return None


@dataclass(frozen=True, slots=True)
class Site(Generic[C]):
    """One site of a world, with content of type `C`."""

    name: str
    """Also the host: "shop" is served at shop.localhost."""
    placeholder: str
    """Stands for the site's address in task files: "__SHOPPING__"."""
    folder: Path
    """Holds `templates/` and, optionally, `style.css`."""
    generate: Callable[[Names, Region], C]
    """Draws the content; the same seed must give the same content."""
    routes: Sequence[BaseRoute]
    """The pages."""
    schema: str = ""
    """SQL that creates the tables. The sites share one database, so name tables `<site>_...`."""
    fill: Callable[[Region, C, sqlite3.Connection], None] = _fill_nothing
    """Inserts the content; must insert the same rows in the same order every time."""
    picture: Callable[[Region, C, str], bytes | None] = _no_picture
    """Returns the PNG for `/image/<key>.png`, or None for an unknown key; called once per key."""


@dataclass(slots=True)
class Database:
    """Holds the connection to the current state; a reset replaces the connection."""

    connection: sqlite3.Connection


def database(request: Request) -> sqlite3.Connection:
    """Return the current database: rows are `sqlite3.Row`, each statement commits by itself."""
    return cast(Database, request.app.state.database).connection


def region(request: Request) -> Region:
    """Return the facts that all sites of the served world share."""
    return cast(Region, request.app.state.region)


def site_content(request: Request, kind: type[C]) -> C:
    """Return the content of the request's own site, which is of type `kind`."""
    content = request.app.state.content
    assert isinstance(content, kind), f"the content of this site is no {kind.__name__}"
    return content


def origin(request: Request, site: str) -> str:
    """Return the origin of the site named `site` in this world: the same port, its own host."""
    port = request.url.port
    return f"http://{site}.localhost" + (f":{port}" if port else "")


def render(request: Request, template: str, *, status: int = 200, **values: object) -> HTMLResponse:
    """Answer with `template` of the request's site.

    Besides `values`, every template has `region`, `content` (the site's), `me` (the signed-in
    person), `site`, `path`, `query` (the request's parameters) and `origin(name)`.
    """
    state = request.app.state
    html = state.templates.get_template(template).render(
        region=state.region,
        content=state.content,
        me=state.region.me,
        site=state.site,
        path=request.url.path,
        query=request.query_params,
        origin=lambda name: origin(request, name),
        **values,
    )
    return HTMLResponse(html, status)


def see_other(path: str) -> Response:
    """Redirect the browser to `path` with a GET, as after every handled form."""
    return RedirectResponse(path, 303)


async def form(request: Request) -> dict[str, str]:
    """Return the posted fields, stripped; of a repeated field, the last value counts.

    Raises:
        HTTPException: 413 when the body is larger than `FORM_LIMIT_BYTES`.
    """
    body = await request.body()
    if len(body) > FORM_LIMIT_BYTES:
        raise HTTPException(413)
    pairs = parse_qsl(body.decode("utf-8", "replace"), keep_blank_values=True)
    return {key: value.strip() for key, value in pairs}


def whole_number(text: str | None, default: int, least: int = 0, most: int = 10**9) -> int:
    """Return `text` as an int clamped to `least` and `most`, or `default` if it is no number."""
    digits = (text or "").strip()
    if not digits.isascii() or not digits.isdigit() or len(digits) > 12:
        return default
    return max(least, min(most, int(digits)))


def missing() -> HTTPException:
    """Return the exception to raise for a missing page; it shows the site's own 404 page."""
    return HTTPException(404)


@dataclass(frozen=True, slots=True)
class Paging:
    """One page of a list that is too long for a screen."""

    number: int
    """The shown page, counted from 1."""
    num_pages: int
    start: int
    """Index of its first item."""
    size: int
    """Items on a full page."""


def paging(count: int, *, page: str | None, size: int) -> Paging:
    """Return the requested `page` of `count` items, clamped to the pages that exist."""
    num_pages = max(1, -(-count // size))
    number = whole_number(page, 1, 1, num_pages)
    return Paging(number, num_pages, (number - 1) * size, size)


def environment(folder: Path, filters: Mapping[str, Callable[..., object]]) -> jinja2.Environment:
    """Return the templates of one site and the shared ones; a missing variable is an error."""
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
    """Format an amount in cents: 1250 becomes $12.50."""
    return f"${cents // 100:,}.{cents % 100:02d}"
