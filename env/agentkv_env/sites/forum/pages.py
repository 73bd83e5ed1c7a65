"""The forum's lists of threads: front page, boards, saved threads and search."""

from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from agentkv_env.sites import images
from agentkv_env.sites.forum import discussion, inbox, people, post, store
from agentkv_env.sites.forum.boards import Board
from agentkv_env.sites.forum.content import ForumContent, generate
from agentkv_env.sites.forum.extras import FLAIRS
from agentkv_env.sites.region import Region
from agentkv_env.sites.site import (
    Site,
    database,
    form,
    missing,
    paging,
    region,
    render,
    see_other,
    site_content,
)

THREADS_ON_A_PAGE = 8


async def front(request: Request) -> Response:
    return _threads(request, "home.html")


async def boards(request: Request) -> Response:
    counts = database(request).execute("SELECT board, count(*) FROM forum_thread GROUP BY board")
    return render(
        request, "boards.html", subscribed=_subscribed(request), counts=dict(counts.fetchall())
    )


async def board(request: Request) -> Response:
    boards = {board.name: board for board in site_content(request, ForumContent).boards}
    shown = boards.get(request.path_params["name"])
    if shown is None:
        raise missing()
    return _threads(request, "board.html", board=shown)


async def subscribe(request: Request) -> Response:
    """Subscribe to a board, or cancel the subscription."""
    await form(request)
    name = request.path_params["name"]
    if all(board.name != name for board in site_content(request, ForumContent).boards):
        raise missing()
    if name in _subscribed(request):
        database(request).execute("DELETE FROM forum_subscription WHERE board = ?", (name,))
    else:
        database(request).execute("INSERT INTO forum_subscription VALUES (?)", (name,))
    return see_other(f"/board/{name}")


async def about(request: Request) -> Response:
    """Show the statistics, moderators and rules of a board."""
    charters = {charter.board: charter for charter in site_content(request, ForumContent).charters}
    charter = charters.get(request.path_params["name"])
    if charter is None:
        raise missing()
    counts = database(request).execute(
        "SELECT count(DISTINCT t.id) AS threads, count(c.id) AS comments FROM forum_thread t"
        " LEFT JOIN forum_comment c ON c.thread = t.id WHERE t.board = ?",
        (charter.board,),
    ).fetchone()  # fmt: skip
    return render(request, "about.html", charter=charter, counts=counts)


async def subscribed(request: Request) -> Response:
    return _threads(request, "kept.html", kept="subscribed")


async def saved(request: Request) -> Response:
    return _threads(request, "kept.html", kept="saved")


async def search(request: Request) -> Response:
    text = " ".join(request.query_params.get("q", "").split())
    if not text:
        return render(request, "search.html", text="")
    return _threads(request, "search.html", text=text)


def _threads(
    request: Request, template: str, *, board: Board | None = None, text: str = "",
    kept: str = "",
) -> Response:  # fmt: skip
    query = request.query_params
    order = query.get("sort", "hot")
    name = board.name if board else ""
    now = region(request).now.isoformat()
    flair = query.get("flair", "")
    found = store.threads(
        database(request), now=now, order=order, board=name, text=text, flair=flair, kept=kept
    )
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
        flairs=FLAIRS,
        kept=kept,
        board=board,
        is_subscribed=name in _subscribed(request),
    )


def _subscribed(request: Request) -> set[str]:
    rows = database(request).execute("SELECT board FROM forum_subscription")
    return {row["board"] for row in rows}


ROUTES = (
    Route("/", front),
    Route("/boards", boards),
    Route("/board/{name}", board),
    Route("/board/{name}/about", about),
    Route("/board/{name}/subscribe", subscribe, methods=["POST"]),
    Route("/subscribed", subscribed),
    Route("/saved", saved),
    Route("/search", search),
    *discussion.ROUTES,
    *inbox.ROUTES,
    *people.ROUTES,
    *post.ROUTES,
)


def _picture(region: Region, content: ForumContent, key: str) -> bytes | None:
    posters = {f"poster-{t.id}": t.poster for t in content.threads if t.poster is not None}
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
    generate=generate,
    routes=ROUTES,
    picture=_picture,
)
