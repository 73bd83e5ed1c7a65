"""The home page's one page."""

import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from agentkv_env.sites.site import Site, render

if TYPE_CHECKING:
    from agentkv_env.sites.world import World


async def home(request: Request) -> Response:
    return render(request, "home.html")


def _fill(world: "World", db: sqlite3.Connection) -> None:
    db.execute("INSERT INTO world VALUES (?, ?)", (world.seed, world.now.isoformat()))


def _routes(world: "World") -> Sequence[BaseRoute]:
    return [Route("/", home)]


SITE = Site(
    name="home",
    placeholder="__HOMEPAGE__",
    folder=Path(__file__).parent,
    schema="CREATE TABLE world (seed INTEGER NOT NULL, now TEXT NOT NULL);",
    fill=_fill,
    routes=_routes,
)
