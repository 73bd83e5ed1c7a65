"""The public pages of the shop: start page, categories, search, new products, deals, help."""

import sqlite3
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from agentkv_env.sites.region import Region
from agentkv_env.sites.shop import account, basket, checkout, club, orders, returns, shelf, stores
from agentkv_env.sites.shop.catalogue import ORDERS, filtered, ordered, ratings, search
from agentkv_env.sites.shop.content import Product, ShopContent, generate, slug
from agentkv_env.sites.shop.pictures import picture
from agentkv_env.sites.shop.view import shop, show
from agentkv_env.sites.site import Site, database, missing, paging, region, whole_number

PAGE_SIZES = (8, 4)
"""The first size is the default."""
STARS = (4, 3, 2)
NUM_NEW = 18
NEW_A_PAGE = 6
RATED_ON_START_PAGE = 4


async def start(request: Request) -> Response:
    rated = ratings(database(request))
    best = ordered(shop(request).products, "Best rated", rated)[:RATED_ON_START_PAGE]
    return show(request, "start.html", best=best)


async def category(request: Request) -> Response:
    for name in shop(request).categories:
        if slug(name) == request.path_params["name"]:
            return _listing(
                request,
                name,
                [product for product in shop(request).catalogue if product.category == name],
            )
    raise missing()


async def brand(request: Request) -> Response:
    for name in shop(request).brands:
        if slug(name) == request.path_params["name"]:
            made = [product for product in shop(request).catalogue if product.brand == name]
            return _listing(request, f"Made by {name}", made, brand=name)
    raise missing()


async def results(request: Request) -> Response:
    words = request.query_params.get("q", "").strip()[:100]
    title = f"Results for {words}" if words else "All products"
    found = search(shop(request), words) if words else list(shop(request).catalogue)
    return _listing(request, title, found, words=words)


def _listing(
    request: Request,
    title: str,
    products: Sequence[Product],
    *,
    words: str = "",
    brand: str = "",
) -> Response:
    query = request.query_params
    rated = ratings(database(request))
    chosen = filtered(products, query, rated)
    order = query.get("sort", ORDERS[0])
    sorted_products = ordered(chosen, order, rated)
    size = whole_number(query.get("size"), PAGE_SIZES[0])
    shown = paging(
        len(chosen),
        page=query.get("page"),
        size=size if size in PAGE_SIZES else PAGE_SIZES[0],
    )
    return show(
        request,
        "listing.html",
        title=title,
        words=words,
        made_by=brand,
        brands=[] if brand else sorted({product.brand for product in products}),
        orders=ORDERS,
        stars=STARS,
        sizes=PAGE_SIZES,
        count=len(chosen),
        products=sorted_products[shown.start : shown.start + shown.size],
        paging=shown,
    )


async def arrivals(request: Request) -> Response:
    """List the newest products with their day of arrival."""
    content, now = shop(request), region(request).now
    newest = sorted(content.catalogue, key=lambda one: content.detail(one).arrived_days_ago)
    shown = paging(NUM_NEW, page=request.query_params.get("page"), size=NEW_A_PAGE)
    rows = [(product, now - timedelta(days=content.detail(product).arrived_days_ago))
            for product in newest[:NUM_NEW]]  # fmt: skip
    return show(
        request, "arrivals.html", rows=rows[shown.start : shown.start + shown.size], paging=shown
    )


async def deals(request: Request) -> Response:
    return show(request, "deals.html")


async def shipping(request: Request) -> Response:
    return show(request, "shipping.html", methods=checkout.SHIPPING)


async def delivery(request: Request) -> Response:
    return show(request, "delivery.html")


async def returning(request: Request) -> Response:
    return show(request, "returns.html", days=returns.RETURN_DAYS)


def _fill(region: Region, content: ShopContent, db: sqlite3.Connection) -> None:
    db.executemany(
        "INSERT INTO shop_review (product, author, stars, title, text, written)"
        " VALUES (?, ?, ?, ?, ?, ?)",
        (
            (
                review.product, review.author, review.stars, review.title, review.text,
                (region.now - timedelta(days=review.days_ago)).isoformat(),
            )
            for review in content.reviews
        ),
    )  # fmt: skip
    orders.fill(region, content, db)
    account.fill(region, content, db)


ROUTES = (
    Route("/", start),
    Route("/category/{name}", category),
    Route("/brand/{name}", brand),
    Route("/search", results),
    Route("/new", arrivals),
    Route("/deals", deals),
    Route("/help/shipping", shipping),
    Route("/help/delivery", delivery),
    Route("/help/returns", returning),
    *basket.ROUTES,
    *shelf.ROUTES,
    *checkout.ROUTES,
    *orders.ROUTES,
    *returns.ROUTES,
    *club.ROUTES,
    *stores.ROUTES,
    *account.ROUTES,
)


SITE = Site(
    name="shop",
    placeholder="__SHOPPING__",
    folder=Path(__file__).parent,
    schema=Path(__file__).with_name("schema.sql").read_text(),
    fill=_fill,
    generate=generate,
    routes=ROUTES,
    picture=picture,
)
