"""Write, edit and delete threads and comments, and vote."""

import sqlite3

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from agentkv_env.sites.forum import store
from agentkv_env.sites.forum.content import ForumContent
from agentkv_env.sites.forum.extras import FLAIRS
from agentkv_env.sites.site import database, form, missing, region, render, see_other, site_content

_VOTES = {"up": 1, "down": -1}


async def submit(request: Request) -> Response:
    """Show the form for a new thread, or store a complete thread."""
    fields = await form(request) if request.method == "POST" else dict(request.query_params)
    wrong = []
    if request.method == "POST":
        boards = {board.name for board in site_content(request, ForumContent).boards}
        checks = ((fields.get("board") in boards, "Choose a board"),
                  (bool(fields.get("title")), "Give the thread a title"))  # fmt: skip
        wrong = [message for good, message in checks if not good]
        if not wrong:
            shown = region(request)
            cursor = database(request).execute(
                "INSERT INTO forum_thread (board, author, title, body, score, vote, posted_at,"
                " has_picture, flair) VALUES (?, ?, ?, ?, 0, 1, ?, 0, ?)",
                (fields["board"], shown.me.handle, fields["title"], fields.get("body", ""),
                 shown.now.isoformat(), _flair(fields)),
            )  # fmt: skip
            return see_other(f"/thread/{cursor.lastrowid}")
    status = 422 if wrong else 200
    return render(request, "submit.html", fields=fields, flairs=FLAIRS, wrong=wrong, status=status)


async def comment(request: Request) -> Response:
    fields, id = await form(request), request.path_params["id"]
    if store.thread(database(request), id) is None:
        raise missing()
    if not fields.get("body"):
        return see_other(f"/thread/{id}?error=Write+a+comment+first")
    return see_other(f"/thread/{id}#comment-{_store(request, id, None, fields['body'])}")


async def reply(request: Request) -> Response:
    """Show a comment with a form for a reply, or store a reply."""
    fields = await form(request) if request.method == "POST" else {}
    row = _comment(request)
    if request.method == "POST" and fields.get("body"):
        new = _store(request, row["thread"], row["id"], fields["body"])
        return see_other(f"/thread/{row['thread']}#comment-{new}")
    error = "Write a reply first" if request.method == "POST" else ""
    return render(request, "reply.html", comment=row, error=error, status=422 if error else 200)


async def delete_comment(request: Request) -> Response:
    """Delete a comment of the user; its replies move up one level."""
    await form(request)
    row = _own_comment(request)
    connection = database(request)
    connection.execute(
        "UPDATE forum_comment SET parent = ? WHERE parent = ?", (row["parent"], row["id"])
    )
    connection.execute("DELETE FROM forum_comment WHERE id = ?", (row["id"],))
    return see_other(f"/thread/{row['thread']}")


async def vote_thread(request: Request) -> Response:
    """Vote; repeating the vote removes it."""
    fields = await form(request)
    row = store.thread(database(request), request.path_params["id"])
    if row is None:
        raise missing()
    _vote(request, "forum_thread", row, fields)
    return see_other(f"/thread/{row['id']}")


async def vote_comment(request: Request) -> Response:
    """Vote; repeating the vote removes it."""
    fields = await form(request)
    row = _comment(request)
    _vote(request, "forum_comment", row, fields)
    return see_other(f"/thread/{row['thread']}#comment-{row['id']}")


async def edit_comment(request: Request) -> Response:
    """Show the form for a comment of the user, or store its changes."""
    fields = await form(request) if request.method == "POST" else {}
    row = _own_comment(request)
    if request.method == "POST" and fields.get("body"):
        database(request).execute(
            "UPDATE forum_comment SET body = ?, is_edited = 1 WHERE id = ?",
            (fields["body"], row["id"]),
        )
        return see_other(f"/thread/{row['thread']}#comment-{row['id']}")
    error = "Write a comment first" if request.method == "POST" else ""
    status = 422 if error else 200
    return render(request, "edit_comment.html", comment=row, error=error, status=status)


async def edit_thread(request: Request) -> Response:
    """Edit the text and flair of a thread of the user."""
    fields = await form(request) if request.method == "POST" else {}
    row = store.thread(database(request), request.path_params["id"])
    if row is None:
        raise missing()
    if row["author"] != region(request).me.handle:
        raise HTTPException(403)
    if request.method == "GET":
        return render(request, "edit_thread.html", thread=row, flairs=FLAIRS)
    database(request).execute(
        "UPDATE forum_thread SET body = ?, flair = ? WHERE id = ?",
        (fields.get("body", ""), _flair(fields), row["id"]),
    )
    return see_other(f"/thread/{row['id']}")


def _flair(fields: dict[str, str]) -> str:
    return fields["flair"] if fields.get("flair") in FLAIRS else ""


def _own_comment(request: Request) -> sqlite3.Row:
    row = _comment(request)
    if row["author"] != region(request).me.handle:
        raise HTTPException(403)
    return row


def _comment(request: Request) -> sqlite3.Row:
    row = store.comment(database(request), request.path_params["id"])
    if row is None:
        raise missing()
    return row


def _store(request: Request, thread: int, parent: int | None, body: str) -> int:
    shown = region(request)
    cursor = database(request).execute(
        "INSERT INTO forum_comment (thread, parent, author, body, score, vote, posted_at)"
        " VALUES (?, ?, ?, ?, 0, 1, ?)",
        (thread, parent, shown.me.handle, body, shown.now.isoformat()),
    )
    assert cursor.lastrowid is not None, "an INSERT gives a row id"
    return cursor.lastrowid


def _vote(request: Request, table: str, row: sqlite3.Row, fields: dict[str, str]) -> None:
    value = _VOTES.get(fields.get("vote", ""))
    if value is None:
        raise HTTPException(400)
    new = 0 if row["vote"] == value else value
    database(request).execute(f"UPDATE {table} SET vote = ? WHERE id = ?", (new, row["id"]))


ROUTES = (
    Route("/submit", submit, methods=["GET", "POST"]),
    Route("/thread/{id:int}/comment", comment, methods=["POST"]),
    Route("/thread/{id:int}/vote", vote_thread, methods=["POST"]),
    Route("/comment/{id:int}/reply", reply, methods=["GET", "POST"]),
    Route("/thread/{id:int}/edit", edit_thread, methods=["GET", "POST"]),
    Route("/comment/{id:int}/edit", edit_comment, methods=["GET", "POST"]),
    Route("/comment/{id:int}/delete", delete_comment, methods=["POST"]),
    Route("/comment/{id:int}/vote", vote_comment, methods=["POST"]),
)
