"""The page of a thread: sorted comments, poll, and saving the thread."""

import sqlite3

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from agentkv_env.sites.forum import store
from agentkv_env.sites.site import database, form, missing, render, see_other, whole_number


async def thread(request: Request) -> Response:
    connection, row = database(request), _thread(request)
    order = request.query_params.get("comments", "best")
    return render(
        request,
        "thread.html",
        thread=row,
        comments=store.comments(connection, row["id"], order),
        orders=store.COMMENT_ORDERS,
        order=order if order in store.COMMENT_ORDERS else "best",
        poll=connection.execute(
            "SELECT p.question, b.answer FROM forum_poll p"
            " LEFT JOIN forum_ballot b ON b.thread = p.thread WHERE p.thread = ?",
            (row["id"],),
        ).fetchone(),
        answers=_answers(request, row["id"]),
        shows_results="results" in request.query_params,
        is_saved=connection.execute(
            "SELECT 1 FROM forum_saved WHERE thread = ?", (row["id"],)
        ).fetchone(),
        error=request.query_params.get("error", ""),
    )


async def save(request: Request) -> Response:
    """Save a thread, or remove it from the saved threads."""
    await form(request)
    row, connection = _thread(request), database(request)
    forgotten = connection.execute("DELETE FROM forum_saved WHERE thread = ?", (row["id"],))
    if not forgotten.rowcount:
        connection.execute("INSERT INTO forum_saved VALUES (?)", (row["id"],))
    return see_other(f"/thread/{row['id']}")


async def vote_in_poll(request: Request) -> Response:
    """Vote in a poll or remove the vote; the results are shown from then on."""
    fields, id = await form(request), _thread(request)["id"]
    answer = whole_number(fields.get("answer"), 0)
    connection = database(request)
    if fields.get("take_back"):
        connection.execute("DELETE FROM forum_ballot WHERE thread = ?", (id,))
        return see_other(f"/thread/{id}")
    if answer not in {row["id"] for row in _answers(request, id)}:
        return see_other(f"/thread/{id}?error=Choose+an+answer+first")
    connection.execute("INSERT OR REPLACE INTO forum_ballot VALUES (?, ?)", (id, answer))
    return see_other(f"/thread/{id}")


def _thread(request: Request) -> sqlite3.Row:
    row = store.thread(database(request), request.path_params["id"])
    if row is None:
        raise missing()
    return row


def _answers(request: Request, thread: int) -> list[sqlite3.Row]:
    """Return a poll's answers with all votes, including the user's; empty without a poll."""
    return (
        database(request)
        .execute(
            "SELECT a.id, a.words, a.votes + (b.answer IS NOT NULL) AS votes FROM forum_answer a"
            " LEFT JOIN forum_ballot b ON b.answer = a.id WHERE a.thread = ? ORDER BY a.id",
            (thread,),
        )
        .fetchall()
    )


ROUTES = (
    Route("/thread/{id:int}", thread),
    Route("/thread/{id:int}/save", save, methods=["POST"]),
    Route("/thread/{id:int}/poll", vote_in_poll, methods=["POST"]),
)
