"""The shop's pages."""

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


async def start(request: Request) -> Response:
    return render(request, "start.html")


def _fill(world: "World", db: sqlite3.Connection) -> None:
    pass


def _routes(world: "World") -> Sequence[BaseRoute]:
    return [Route("/", start)]


SITE = Site("shop", "__SHOPPING__", Path(__file__).parent, "", _fill, _routes)
