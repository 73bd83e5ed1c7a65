"""Members: their pages and comments, and the user's own settings."""

import sqlite3

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from agentkv_env.sites.forum import store
from agentkv_env.sites.forum.content import FLAIRS_OF_MEMBERS, ForumContent
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

COMMENTS_ON_A_PAGE = 8
_NEWEST_SHOWN = 4


async def member(request: Request) -> Response:
    connection, shown = database(request), _member(request)
    handle = shown["handle"]
    said = _said(connection, handle)
    threads = store.threads(
        connection, now=region(request).now.isoformat(), order="new", author=handle
    )
    moderated = [
        x.board for x in site_content(request, ForumContent).charters if handle in x.moderators
    ]
    return render(
        request,
        "member.html",
        member=shown,
        comments=said[:_NEWEST_SHOWN],
        threads=threads[:_NEWEST_SHOWN],
        num_comments=len(said),
        num_threads=len(threads),
        points=sum(row["points"] for row in (*said, *threads)),
        moderated=moderated,
    )


async def comments(request: Request) -> Response:
    """List the comments of a member, newest first."""
    shown = _member(request)
    said = _said(database(request), shown["handle"])
    part = paging(len(said), page=request.query_params.get("page"), size=COMMENTS_ON_A_PAGE)
    return render(
        request,
        "comments.html",
        member=shown,
        comments=said[part.start : part.start + part.size],
        count=len(said),
        paging=part,
    )


async def settings(request: Request) -> Response:
    """Show or change the user's bio and flair."""
    connection, handle = database(request), region(request).me.handle
    fields = await form(request) if request.method == "POST" else {}
    row = connection.execute("SELECT * FROM forum_member WHERE handle = ?", (handle,)).fetchone()
    if request.method == "POST":
        flair = fields.get("flair", "")
        database(request).execute(
            "UPDATE forum_member SET bio = ?, flair = ? WHERE handle = ?",
            (
                fields.get("bio", ""),
                flair if flair in FLAIRS_OF_MEMBERS else row["flair"],
                handle,
            ),
        )
        return see_other(f"/user/{handle}")
    return render(request, "settings.html", member=row, flairs=FLAIRS_OF_MEMBERS)


def _member(request: Request) -> sqlite3.Row:
    row: sqlite3.Row | None = database(request).execute(
        "SELECT * FROM forum_member WHERE handle = ?", (request.path_params["handle"],)
    ).fetchone()  # fmt: skip
    if row is None:
        raise missing()
    return row


def _said(connection: sqlite3.Connection, handle: str) -> list[sqlite3.Row]:
    return connection.execute(
        "SELECT c.*, c.score + c.vote AS points, t.title FROM forum_comment c"
        " JOIN forum_thread t ON t.id = c.thread WHERE c.author = ?"
        " ORDER BY c.posted_at DESC, c.id DESC",
        (handle,),
    ).fetchall()


ROUTES = (
    Route("/user/{handle}", member),
    Route("/user/{handle}/comments", comments),
    Route("/settings", settings, methods=["GET", "POST"]),
)
