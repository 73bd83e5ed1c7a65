"""Private messages: the inbox, sent messages, replies and new messages."""

import sqlite3

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from agentkv_env.sites.forum.content import ForumContent
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

LETTERS_ON_A_PAGE = 8


async def inbox(request: Request) -> Response:
    return _letters(request, is_sent=False)


async def sent(request: Request) -> Response:
    return _letters(request, is_sent=True)


async def letter(request: Request) -> Response:
    """Show a message and mark it as read."""
    row = _letter(request)
    database(request).execute("UPDATE forum_letter SET is_read = 1 WHERE id = ?", (row["id"],))
    return render(request, "letter.html", letter=row)


async def write(request: Request) -> Response:
    """Show the form for a message to a member, or send a complete one."""
    fields = await form(request) if request.method == "POST" else {}
    handle = request.path_params["handle"]
    known = {member.handle for member in site_content(request, ForumContent).members}
    if handle not in known - {region(request).me.handle}:
        raise missing()
    return _answered(request, "write.html", fields, person=handle, subject=fields.get("subject"))


async def reply(request: Request) -> Response:
    """Show the form for a reply, below the message, or send a complete one."""
    fields = await form(request) if request.method == "POST" else {}
    row = _letter(request)
    subject = "Re: " + str(row["subject"]).removeprefix("Re: ")
    return _answered(
        request, "answer.html", fields, person=row["person"], subject=subject, letter=row
    )


async def delete(request: Request) -> Response:
    await form(request)
    row = _letter(request)
    database(request).execute("DELETE FROM forum_letter WHERE id = ?", (row["id"],))
    return see_other("/sent" if row["is_sent"] else "/inbox")


def _answered(
    request: Request, template: str, fields: dict[str, str], *, person: str, subject: str | None,
    letter: sqlite3.Row | None = None,
) -> Response:  # fmt: skip
    """Send a complete message, or show the form with the missing fields."""
    checks = ((bool(subject), "Give the message a subject"),
              (bool(fields.get("body")), "Write a message first"))  # fmt: skip
    is_posted = request.method == "POST"
    wrong = [message for good, message in checks if not good] if is_posted else []
    if wrong or not is_posted:
        return render(
            request, template, fields=fields, wrong=wrong, person=person, letter=letter,
            status=422 if wrong else 200,
        )  # fmt: skip
    database(request).execute(
        "INSERT INTO forum_letter (is_sent, person, subject, body, sent_at, is_read)"
        " VALUES (1, ?, ?, ?, ?, 1)",
        (person, subject, fields["body"], region(request).now.isoformat()),
    )
    return see_other("/sent")


def _letters(request: Request, *, is_sent: bool) -> Response:
    found = database(request).execute(
        "SELECT * FROM forum_letter WHERE is_sent = ? ORDER BY sent_at DESC, id DESC", (is_sent,)
    ).fetchall()  # fmt: skip
    part = paging(len(found), page=request.query_params.get("page"), size=LETTERS_ON_A_PAGE)
    shown = found[part.start : part.start + part.size]
    return render(request, "letters.html", letters=shown, is_sent=is_sent, paging=part)


def _letter(request: Request) -> sqlite3.Row:
    row: sqlite3.Row | None = database(request).execute(
        "SELECT * FROM forum_letter WHERE id = ?", (request.path_params["id"],)
    ).fetchone()  # fmt: skip
    if row is None:
        raise missing()
    return row


ROUTES = (
    Route("/inbox", inbox),
    Route("/sent", sent),
    Route("/message/{id:int}", letter),
    Route("/message/{id:int}/reply", reply, methods=["GET", "POST"]),
    Route("/message/{id:int}/delete", delete, methods=["POST"]),
    Route("/user/{handle}/message", write, methods=["GET", "POST"]),
)
