"""The wiki's pages: articles, categories, search, an index. Read-only, so it keeps no tables."""

import sqlite3
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from markupsafe import Markup, escape
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from agentkv_env.sites.site import Site, missing, paging, render, see_other, world
from agentkv_env.sites.wiki.articles import CATEGORIES, Article, articles, draw

if TYPE_CHECKING:
    from agentkv_env.sites.world import World

ARTICLES_ON_A_PAGE = 20


class Linker:
    """Turns `[[Title]]` into a link at its first mention, into plain text afterwards."""

    def __init__(self, known: dict[str, Article], own: str) -> None:
        self._known = known
        self._linked = {own}

    def __call__(self, text: str) -> Markup:
        parts = []
        for index, part in enumerate(text.replace("]]", "[[").split("[[")):
            if index % 2 == 0 or part in self._linked:
                parts.append(escape(part))
                continue
            self._linked.add(part)
            parts.append(Markup('<a href="/wiki/{}">{}</a>').format(self._known[part].slug, part))
        return Markup("").join(parts)


async def home(request: Request) -> Response:
    known = list(articles(world(request).wiki).values())
    counts = [(name, sum(a.category == name for a in known)) for name in CATEGORIES]
    day = world(request).now.toordinal()
    featured = [known[(day * 7 + index * 13) % len(known)] for index in range(4)]
    return render(request, "home.html", counts=counts, featured=featured, total=len(known))


async def article(request: Request) -> Response:
    known = articles(world(request).wiki)
    shown = known.get(request.path_params["slug"].replace("_", " "))
    if shown is None:
        raise missing()
    return render(request, "article.html", article=shown, link=Linker(known, shown.title))


async def category(request: Request) -> Response:
    name = request.path_params["name"]
    if name not in CATEGORIES:
        raise missing()
    found = [a for a in articles(world(request).wiki).values() if a.category == name]
    return _listing(request, f"Category: {name}", found, f"{len(found)} articles in {name}")


async def everything(request: Request) -> Response:
    found = list(articles(world(request).wiki).values())
    return _listing(request, "All pages", found, f"{len(found)} articles, A to Z")


async def search(request: Request) -> Response:
    """Articles whose title or text has every word of the query; titles come first.

    A query that is a title leads straight to its article.
    """
    text = " ".join(request.query_params.get("q", "").split())
    words = text.lower().split()
    known = articles(world(request).wiki).values()
    exact = [a for a in known if a.title.lower() == text.lower()]
    if exact:
        return see_other(f"/wiki/{exact[0].slug}")
    by_title = [a for a in known if words and all(w in a.title.lower() for w in words)]
    by_text = [
        a for a in known
        if words and a not in by_title and all(w in _plain(a).lower() for w in words)
    ]  # fmt: skip
    found = by_title + by_text
    note = f"{len(found)} articles found" if words else "Type a word to search for"
    return _listing(request, f"Search results for {text}" if words else "Search", found, note)


async def random_article(request: Request) -> Response:
    """Another article; which one depends on the article it is asked from and on nothing else."""
    known = list(articles(world(request).wiki).values())
    came_from = request.query_params.get("from", "")
    number = zlib.crc32(f"{world(request).seed}/{came_from}".encode())
    chosen = known[number % len(known)]
    if chosen.slug == came_from:
        chosen = known[(number + 1) % len(known)]
    return see_other(f"/wiki/{chosen.slug}")


def _listing(request: Request, title: str, found: Sequence[Article], note: str) -> Response:
    shown = paging(len(found), page=request.query_params.get("page"), size=ARTICLES_ON_A_PAGE)
    page = found[shown.start : shown.start + shown.size]
    return render(request, "listing.html", title=title, articles=page, note=note, paging=shown)


def _plain(article: Article) -> str:
    boxed = (f"{name} {value}" for name, value in article.infobox)
    text = " ".join([article.title, article.lead, *boxed, *(t for _, t in article.sections)])
    return text.replace("[[", "").replace("]]", "")


def _fill(shown: "World", connection: sqlite3.Connection) -> None:
    """Nothing to insert: articles are written from the world's facts."""


def _routes(shown: "World") -> Sequence[BaseRoute]:
    return (
        Route("/", home),
        Route("/wiki/{slug}", article),
        Route("/category/{name}", category),
        Route("/all", everything),
        Route("/search", search),
        Route("/random", random_article),
    )


def _picture(shown: "World", key: str) -> bytes | None:
    found = articles(shown.wiki).get(key.replace("_", " "))
    return None if found is None else draw(found)


SITE = Site(
    name="wiki",
    placeholder="__WIKIPEDIA__",
    folder=Path(__file__).parent,
    schema="",
    fill=_fill,
    routes=_routes,
    picture=_picture,
)
