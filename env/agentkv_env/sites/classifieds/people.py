"""Sellers: their profiles, listings and ratings."""

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from agentkv_env.sites.classifieds import store
from agentkv_env.sites.classifieds.content import ClassifiedsContent, Seller
from agentkv_env.sites.classifieds.page import page
from agentkv_env.sites.site import (
    database,
    form,
    missing,
    paging,
    region,
    see_other,
    site_content,
    whole_number,
)

LISTINGS_ON_A_PAGE = 6
RATINGS_ON_A_PAGE = 6
MOST_STARS = 5


async def seller(request: Request) -> Response:
    shown = _seller(request)
    found = store.find(database(request), seller=shown.handle)
    part = paging(len(found), page=request.query_params.get("page"), size=LISTINGS_ON_A_PAGE)
    mean, count = database(request).execute(
        "SELECT avg(stars), count(*) FROM classifieds_rating WHERE seller = ?", (shown.handle,)
    ).fetchone()  # fmt: skip
    return page(
        request,
        "seller.html",
        seller=shown,
        rating=f"{mean:.1f}" if count else "none yet",
        num_ratings=count,
        listings=found[part.start : part.start + part.size],
        count=len(found),
        paging=part,
    )


async def phone(request: Request) -> Response:
    """Return the part of the page with which a button on the seller's page replaces itself."""
    return PlainTextResponse(f"Phone: {_seller(request).phone}")


async def ratings(request: Request) -> Response:
    """List the ratings of a seller; a complete form adds or replaces the user's own rating."""
    fields = await form(request) if request.method == "POST" else {}
    shown, connection, me = _seller(request), database(request), region(request).me.handle
    stars = whole_number(fields.get("stars"), 0)
    wrong = []
    if request.method == "POST":
        checks = ((shown.handle != me, "You cannot rate yourself"),
                  (1 <= stars <= MOST_STARS, "Choose the stars"),
                  (bool(fields.get("body")), "Write a few words"))  # fmt: skip
        wrong = [message for good, message in checks if not good]
        if not wrong:
            connection.execute(
                "DELETE FROM classifieds_rating WHERE seller = ? AND author = ?",
                (shown.handle, me),
            )
            connection.execute(
                "INSERT INTO classifieds_rating (seller, author, stars, body) VALUES (?, ?, ?, ?)",
                (shown.handle, me, stars, fields["body"]),
            )
            return see_other(f"/seller/{shown.handle}/ratings")
    found = connection.execute(
        "SELECT * FROM classifieds_rating WHERE seller = ? ORDER BY id DESC", (shown.handle,)
    ).fetchall()
    part = paging(len(found), page=request.query_params.get("page"), size=RATINGS_ON_A_PAGE)
    return page(
        request,
        "ratings.html",
        seller=shown,
        ratings=found[part.start : part.start + part.size],
        paging=part,
        most_stars=MOST_STARS,
        fields=fields,
        wrong=wrong,
        status=422 if wrong else 200,
    )


def _seller(request: Request) -> Seller:
    known = {seller.handle: seller for seller in site_content(request, ClassifiedsContent).sellers}
    if request.path_params["handle"] not in known:
        raise missing()
    return known[request.path_params["handle"]]


ROUTES = (
    Route("/seller/{handle}", seller),
    Route("/seller/{handle}/phone", phone),
    Route("/seller/{handle}/ratings", ratings, methods=["GET", "POST"]),
)
