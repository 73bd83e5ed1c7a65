"""Pages about articles: talk page, history, incoming links, and recent changes."""

from datetime import timedelta

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from agentkv_env.sites.site import (
    database,
    form,
    missing,
    paging,
    region,
    render,
    see_other,
    site_content,
)
from agentkv_env.sites.wiki.article import Article
from agentkv_env.sites.wiki.articles import articles
from agentkv_env.sites.wiki.content import WikiContent
from agentkv_env.sites.wiki.lookup import linked_from
from agentkv_env.sites.wiki.past import recent, remarks, revisions

SCHEMA = """
CREATE TABLE wiki_remark (id INTEGER PRIMARY KEY, title TEXT NOT NULL, body TEXT NOT NULL);
"""
REVISIONS_ON_A_PAGE = 6
LINKS_ON_A_PAGE = 8
_SPANS = {"7": 7, "30": 30}


async def talk(request: Request) -> Response:
    """Show the talk page of an article; a posted comment is appended."""
    shown = _article(request)
    fields = await form(request) if request.method == "POST" else {}
    error = ""
    if request.method == "POST":
        if fields.get("comment"):
            database(request).execute(
                "INSERT INTO wiki_remark (title, body) VALUES (?, ?)",
                (shown.title, fields["comment"]),
            )
            return see_other(f"/talk/{shown.slug}")
        error = "Write a comment first."
    own = database(request).execute(
        "SELECT body FROM wiki_remark WHERE title = ? ORDER BY id", (shown.title,)
    )
    return render(
        request, "talk.html", status=422 if error else 200, article=shown, error=error,
        remarks=remarks(region(request), shown), own=[row["body"] for row in own],
    )  # fmt: skip


async def history(request: Request) -> Response:
    shown = _article(request)
    found = revisions(region(request), shown)
    page = paging(len(found), page=request.query_params.get("page"), size=REVISIONS_ON_A_PAGE)
    part = found[page.start : page.start + page.size]
    return render(
        request, "history.html", article=shown, revisions=part, total=len(found), paging=page
    )


async def links_here(request: Request) -> Response:
    shown = _article(request)
    found = linked_from(site_content(request, WikiContent))[shown.title]
    page = paging(len(found), page=request.query_params.get("page"), size=LINKS_ON_A_PAGE)
    part = found[page.start : page.start + page.size]
    return render(
        request, "links.html", article=shown, articles=part, total=len(found), paging=page
    )


async def recent_changes(request: Request) -> Response:
    """List the changes of the last `days` days, or all changes."""
    days = _SPANS.get(request.query_params.get("days", ""), 10_000)
    since = region(request).now.date() - timedelta(days)
    found = [
        each
        for each in recent(region(request), site_content(request, WikiContent))
        if each.day >= since
    ]
    page = paging(len(found), page=request.query_params.get("page"), size=REVISIONS_ON_A_PAGE)
    part = found[page.start : page.start + page.size]
    return render(request, "recent.html", revisions=part, total=len(found), paging=page)


def _article(request: Request) -> Article:
    found = articles(site_content(request, WikiContent)).get(
        request.path_params["slug"].replace("_", " ")
    )
    if found is None:
        raise missing()
    return found


ROUTES = (
    Route("/talk/{slug}", talk, methods=["GET", "POST"]),
    Route("/history/{slug}", history),
    Route("/links/{slug}", links_here),
    Route("/recent", recent_changes),
)
