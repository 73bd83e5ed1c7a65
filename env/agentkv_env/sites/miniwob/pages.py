"""Serve a MiniWoB++ page with a script that starts its episode and freezes its end."""

import re
import secrets
from pathlib import Path

from starlette.requests import Request
from starlette.responses import FileResponse, HTMLResponse, Response
from starlette.routing import Route
from starlette.staticfiles import StaticFiles

from agentkv_env.sites.miniwob.package import find_pages
from agentkv_env.sites.names import Names
from agentkv_env.sites.region import Region
from agentkv_env.sites.site import Site, missing, site_content

_FOLDER = Path(__file__).parent
_CORE = '<script src="../core/core.js"></script>'
_STARTED = f'{_CORE}\n<script src="../episode.js"></script>'


async def page(request: Request) -> Response:
    """Show the page `name`; the query's `seed` determines the episode's content."""
    name = request.path_params["name"]
    path = site_content(request, Path) / "miniwob" / f"{name}.html"
    if not re.fullmatch("[a-z0-9-]+", name) or not path.is_file():
        raise missing()
    html = path.read_text(encoding="utf-8").replace(_CORE, _STARTED)
    # Some pages show what was typed as HTML. Scripts in it must not run, for they could set the
    # reward; the pages' own scripts carry a number that nobody can guess.
    nonce = secrets.token_urlsafe()
    return HTMLResponse(
        html.replace("<script", f'<script nonce="{nonce}"'),
        headers={"Content-Security-Policy": f"script-src 'nonce-{nonce}'"},
    )


async def script(request: Request) -> Response:
    return FileResponse(_FOLDER / "episode.js", media_type="text/javascript")


async def asset(request: Request) -> Response:
    """Answer with a script, a style sheet or a picture of the package."""
    folder, path = request.path_params["folder"], request.path_params["path"]
    if folder not in ("core", "common"):
        raise missing()
    return await StaticFiles(directory=site_content(request, Path) / folder).get_response(
        path, request.scope
    )


def _generate(names: Names, region: Region) -> Path:
    return find_pages()


SITE: Site[Path] = Site(
    name="miniwob",
    placeholder="__MINIWOB__",
    folder=_FOLDER,
    generate=_generate,
    routes=(
        Route("/task/{name}", page),
        Route("/episode.js", script),
        Route("/{folder}/{path:path}", asset),
    ),
)
