"""The pages of the wiki: articles and their annexes, categories, search and an index."""

import zlib
from collections.abc import Sequence
from pathlib import Path

from markupsafe import Markup, escape
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from agentkv_env.sites.region import Region
from agentkv_env.sites.site import Site, missing, paging, region, render, see_other, site_content
from agentkv_env.sites.wiki.about import ROUTES as PAGES_ABOUT_ARTICLES
from agentkv_env.sites.wiki.about import SCHEMA
from agentkv_env.sites.wiki.article import Article
from agentkv_env.sites.wiki.articles import CATEGORIES, articles, draw
from agentkv_env.sites.wiki.content import WikiContent, generate
from agentkv_env.sites.wiki.lookup import exact, former_names, shared_names
from agentkv_env.sites.wiki.lookup import search as find

ARTICLES_ON_A_PAGE = 8
ROWS_ON_A_PAGE = 8


class Linker:
    """Turns the first `[[Title]]` of each title into a link, and later ones into text."""

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
    known = list(articles(site_content(request, WikiContent)).values())
    counts = [(name, sum(a.category == name for a in known)) for name in CATEGORIES]
    day = region(request).now.toordinal()
    featured = [known[(day * 7 + index * 13) % len(known)] for index in range(4)]
    return render(request, "home.html", counts=counts, featured=featured, total=len(known))


async def article(request: Request) -> Response:
    """Show an article by its title or a former name, or the articles that share a name."""
    wiki = site_content(request, WikiContent)
    known, name = articles(wiki), request.path_params["slug"].replace("_", " ")
    if name in shared_names(wiki):
        return render(request, "shared.html", name=name, articles=shared_names(wiki)[name])
    former = name if name in former_names(wiki) else ""
    shown = known.get(former_names(wiki).get(name, name))
    if shown is None:
        raise missing()
    link = Linker(known, shown.title)
    return render(request, "article.html", article=shown, link=link, former=former)


async def annex(request: Request) -> Response:
    """Show a table of an article on its own page."""
    known = articles(site_content(request, WikiContent))
    shown = known.get(request.path_params["slug"].replace("_", " "))
    annexes = {each.slug: each for each in shown.annexes} if shown else {}
    found = annexes.get(request.path_params["annex"])
    if shown is None or found is None:
        raise missing()
    page = paging(len(found.rows), page=request.query_params.get("page"), size=ROWS_ON_A_PAGE)
    rows = found.rows[page.start : page.start + page.size]
    link = Linker(known, shown.title)
    return render(
        request, "annex.html", article=shown, annex=found, rows=rows, link=link, paging=page
    )


async def category(request: Request) -> Response:
    name = request.path_params["name"].replace("_", " ")
    if name not in CATEGORIES:
        raise missing()
    found = [a for a in articles(site_content(request, WikiContent)).values() if a.category == name]
    return _listing(request, f"Category: {name}", found, f"{len(found)} articles in {name}")


async def everything(request: Request) -> Response:
    found = list(articles(site_content(request, WikiContent)).values())
    return _listing(request, "All pages", found, f"{len(found)} articles, A to Z")


async def search(request: Request) -> Response:
    """List the best matches of a query, or open the page with that exact name."""
    text = " ".join(request.query_params.get("q", "").split())
    if not text:
        return _listing(request, "Search", (), "Type a word to search for")
    wiki = site_content(request, WikiContent)
    if name := exact(wiki, text):
        return see_other(f"/wiki/{name.replace(' ', '_')}")
    found = find(wiki, text)
    count = len(found.articles)
    note = f"{count} article{'' if count == 1 else 's'} found"
    return _listing(
        request, f"Search results for {text}", found.articles, note,
        with_category=True, suggestion=found.suggestion,
    )  # fmt: skip


async def random_article(request: Request) -> Response:
    """Open another article, chosen by the article that the link is on and nothing else."""
    known = list(articles(site_content(request, WikiContent)).values())
    came_from = request.query_params.get("from", "")
    number = zlib.crc32(f"{region(request).seed}/{came_from}".encode())
    chosen = known[number % len(known)]
    if chosen.slug == came_from:
        chosen = known[(number + 1) % len(known)]
    return see_other(f"/wiki/{chosen.slug}")


def _listing(
    request: Request, title: str, found: Sequence[Article], note: str, *,
    with_category: bool = False, suggestion: str = "",
) -> Response:  # fmt: skip
    shown = paging(len(found), page=request.query_params.get("page"), size=ARTICLES_ON_A_PAGE)
    page = found[shown.start : shown.start + shown.size]
    return render(
        request, "listing.html", title=title, articles=page, note=note, paging=shown,
        with_category=with_category, suggestion=suggestion,
    )  # fmt: skip


ROUTES = (
    Route("/", home),
    Route("/wiki/{slug}", article),
    Route("/wiki/{slug}/{annex}", annex),
    Route("/category/{name}", category),
    Route("/all", everything),
    Route("/search", search),
    Route("/random", random_article),
    *PAGES_ABOUT_ARTICLES,
)


def _picture(region: Region, content: WikiContent, key: str) -> bytes | None:
    found = articles(content).get(key.replace("_", " "))
    return None if found is None else draw(found)


SITE = Site(
    name="wiki",
    placeholder="__WIKIPEDIA__",
    folder=Path(__file__).parent,
    schema=SCHEMA,
    generate=generate,
    routes=ROUTES,
    picture=_picture,
)
