"""The forum's pages: the front page, boards, threads, members, search."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from agentkv_env.sites import images
from agentkv_env.sites.forum import post, store
from agentkv_env.sites.forum.content import Board
from agentkv_env.sites.site import Site, database, form, missing, paging, render, see_other, world

if TYPE_CHECKING:
    from agentkv_env.sites.world import World

THREADS_ON_A_PAGE = 8


async def front(request: Request) -> Response:
    return _threads(request, "home.html")


async def boards(request: Request) -> Response:
    return render(request, "boards.html", subscribed=_subscribed(request))


async def board(request: Request) -> Response:
    boards = {board.name: board for board in world(request).forum.boards}
    shown = boards.get(request.path_params["name"])
    if shown is None:
        raise missing()
    return _threads(request, "board.html", board=shown)


async def subscribe(request: Request) -> Response:
    """Subscribe to a board, or stop if the user was subscribed."""
    await form(request)
    name = request.path_params["name"]
    if all(board.name != name for board in world(request).forum.boards):
        raise missing()
    if name in _subscribed(request):
        database(request).execute("DELETE FROM forum_subscription WHERE board = ?", (name,))
    else:
        database(request).execute("INSERT INTO forum_subscription VALUES (?)", (name,))
    return see_other(f"/board/{name}")


async def thread(request: Request) -> Response:
    connection = database(request)
    shown = store.thread(connection, request.path_params["id"])
    if shown is None:
        raise missing()
    return render(
        request,
        "thread.html",
        thread=shown,
        comments=store.comments(connection, shown["id"]),
        error=request.query_params.get("error", ""),
    )


async def member(request: Request) -> Response:
    connection = database(request)
    shown = connection.execute(
        "SELECT * FROM forum_member WHERE handle = ?", (request.path_params["handle"],)
    ).fetchone()
    if shown is None:
        raise missing()
    comments = connection.execute(
        "SELECT c.*, t.title FROM forum_comment c JOIN forum_thread t ON t.id = c.thread"
        " WHERE c.author = ? ORDER BY c.posted_at DESC, c.id DESC LIMIT 5",
        (shown["handle"],),
    ).fetchall()
    now = world(request).now.isoformat()
    threads = store.threads(connection, now=now, order="new", author=shown["handle"])[:5]
    return render(request, "member.html", member=shown, comments=comments, threads=threads)


async def search(request: Request) -> Response:
    text = " ".join(request.query_params.get("q", "").split())
    if not text:
        return render(request, "search.html", text="")
    return _threads(request, "search.html", text=text)


def _threads(
    request: Request, template: str, *, board: Board | None = None, text: str = ""
) -> Response:
    query = request.query_params
    order = query.get("sort", "hot")
    name = board.name if board else ""
    now = world(request).now.isoformat()
    found = store.threads(database(request), now=now, order=order, board=name, text=text)
    shown = paging(len(found), page=query.get("page"), size=THREADS_ON_A_PAGE)
    return render(
        request,
        template,
        threads=found[shown.start : shown.start + shown.size],
        count=len(found),
        paging=shown,
        orders=store.ORDERS,
        order=order if order in store.ORDERS else "hot",
        text=text,
        board=board,
        is_subscribed=name in _subscribed(request),
    )


def _subscribed(request: Request) -> set[str]:
    rows = database(request).execute("SELECT board FROM forum_subscription")
    return {row["board"] for row in rows}


def _routes(shown: "World") -> Sequence[BaseRoute]:
    return (
        Route("/", front),
        Route("/boards", boards),
        Route("/board/{name}", board),
        Route("/board/{name}/subscribe", subscribe, methods=["POST"]),
        Route("/thread/{id:int}", thread),
        Route("/user/{handle}", member),
        Route("/search", search),
        *post.ROUTES,
    )


def _picture(shown: "World", key: str) -> bytes | None:
    posters = {f"poster-{t.id}": t.poster for t in shown.forum.threads if t.poster is not None}
    poster = posters.get(key)
    if poster is None:
        return None
    return images.poster(poster.lines, key=f"{key}/{poster.code}", width=420, height=250)


SITE = Site(
    name="forum",
    placeholder="__REDDIT__",
    folder=Path(__file__).parent,
    schema=store.SCHEMA,
    fill=store.fill,
    routes=_routes,
    picture=_picture,
)
