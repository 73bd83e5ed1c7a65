"""The pages of a product: overview, specifications, questions and reviews."""

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from agentkv_env.sites.shop.basket import keep, kept
from agentkv_env.sites.shop.view import requested_product, shop, show
from agentkv_env.sites.site import database, form, missing, paging, region, see_other, whole_number

NEWEST_REVIEWS = 2
"""Number of reviews on the product's page; another page shows all of them."""
REVIEWS_A_PAGE = 4
REVIEW_ORDERS = {
    "Newest": "written DESC, id DESC",
    "Most stars": "stars DESC, written DESC, id DESC",
    "Fewest stars": "stars, written DESC, id DESC",
}
NUM_SEEN = 4


async def product(request: Request) -> Response:
    shown = requested_product(request)
    db = database(request)
    reviews = db.execute(
        "SELECT * FROM shop_review WHERE product = ? ORDER BY written DESC, id DESC LIMIT ?",
        (shown.number, NEWEST_REVIEWS),
    ).fetchall()
    db.execute("DELETE FROM shop_seen WHERE product = ?", (shown.number,))
    keep(db, "shop_seen", shown)
    detail = shop(request).detail(shown)
    return show(
        request,
        "product.html",
        product=shown,
        detail=detail,
        also_bought=[shop(request).catalogue[number - 1] for number in detail.also_bought],
        reviews=reviews,
        error=request.query_params.get("e"),
    )


async def specifications(request: Request) -> Response:
    shown = requested_product(request)
    return show(request, "specifications.html", product=shown, detail=shop(request).detail(shown))


async def size_guide(request: Request) -> Response:
    shown = requested_product(request)
    if not shown.sizes:
        raise missing()
    return show(request, "size-guide.html", product=shown, detail=shop(request).detail(shown))


async def questions(request: Request) -> Response:
    return _questions(request, error="")


def _questions(request: Request, error: str) -> Response:
    shown = requested_product(request)
    return show(
        request,
        "questions.html",
        status=422 if error else 200,
        product=shown,
        answers=shop(request).detail(shown).answers,
        asked=database(request)
        .execute("SELECT * FROM shop_question WHERE product = ? ORDER BY id", (shown.number,))
        .fetchall(),
        error=error,
    )


async def ask(request: Request) -> Response:
    text = (await form(request)).get("question", "")[:200]
    if not text:
        return _questions(request, error="Please write a question.")
    shown = requested_product(request)
    database(request).execute(
        "INSERT INTO shop_question (product, text) VALUES (?, ?)", (shown.number, text)
    )
    return see_other(f"/product/{shown.number}/questions")


async def reviews(request: Request) -> Response:
    shown = requested_product(request)
    db = database(request)
    order = request.query_params.get("sort", "")
    (count,) = db.execute(
        "SELECT count(*) FROM shop_review WHERE product = ?", (shown.number,)
    ).fetchone()
    page = paging(count, page=request.query_params.get("page"), size=REVIEWS_A_PAGE)
    by = REVIEW_ORDERS.get(order, REVIEW_ORDERS["Newest"])
    rows = db.execute(
        f"SELECT * FROM shop_review WHERE product = ? ORDER BY {by} LIMIT ? OFFSET ?",
        (shown.number, page.size, page.start),
    ).fetchall()
    return show(
        request, "reviews.html", product=shown, reviews=rows, paging=page, orders=REVIEW_ORDERS
    )


async def review_form(request: Request) -> Response:
    return show(request, "review.html", product=requested_product(request), error="", fields={})


async def write_review(request: Request) -> Response:
    fields = await form(request)
    shown = requested_product(request)
    stars = whole_number(fields.get("stars", "")[:1], 0)
    title, text = fields.get("title", "")[:80], fields.get("text", "")[:1000]
    if not 1 <= stars <= 5 or not title:
        error = "Please choose a rating and write a title."
        return show(request, "review.html", status=422, product=shown, error=error, fields=fields)
    now = region(request).now
    database(request).execute(
        "INSERT INTO shop_review (product, author, stars, title, text, written)"
        " VALUES (?, (SELECT name FROM shop_customer), ?, ?, ?, ?)",
        (shown.number, stars, title, text, now.isoformat()),
    )
    return see_other(f"/product/{shown.number}#reviews")


async def recent(request: Request) -> Response:
    """Return the part of the start page with recently viewed products, which loads later."""
    seen = kept(request, "shop_seen")[: -NUM_SEEN - 1 : -1]
    return show(request, "recent.html", products=seen)


async def alerts(request: Request) -> Response:
    return show(request, "alerts.html", products=kept(request, "shop_alert"))


async def add_alert(request: Request) -> Response:
    """Store a stock alert for a sold-out product."""
    shown = requested_product(request)
    if not shop(request).detail(shown).stock:
        keep(database(request), "shop_alert", shown)
    return see_other("/account/alerts")


async def remove_alert(request: Request) -> Response:
    shown = requested_product(request)
    database(request).execute("DELETE FROM shop_alert WHERE product = ?", (shown.number,))
    return see_other("/account/alerts")


ROUTES: list[BaseRoute] = [
    Route("/product/{number:int}", product),
    Route("/product/{number:int}/specifications", specifications),
    Route("/product/{number:int}/sizes", size_guide),
    Route("/product/{number:int}/questions", questions),
    Route("/product/{number:int}/questions", ask, methods=["POST"]),
    Route("/product/{number:int}/reviews", reviews),
    Route("/product/{number:int}/review", review_form),
    Route("/product/{number:int}/review", write_review, methods=["POST"]),
    Route("/product/{number:int}/alert", add_alert, methods=["POST"]),
    Route("/product/{number:int}/alert/remove", remove_alert, methods=["POST"]),
    Route("/account/alerts", alerts),
    Route("/recent", recent),
]
