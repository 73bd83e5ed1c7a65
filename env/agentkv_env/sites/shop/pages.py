"""The shop's public pages: start, categories, search, products, reviews, deals, help."""

import sqlite3
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from agentkv_env.sites.shop import account, basket, orders
from agentkv_env.sites.shop.catalogue import ORDERS, filtered, ordered, ratings, search
from agentkv_env.sites.shop.content import Product, slug
from agentkv_env.sites.shop.pictures import picture
from agentkv_env.sites.shop.view import requested_product, shop, show
from agentkv_env.sites.site import (
    Site,
    database,
    form,
    missing,
    paging,
    see_other,
    whole_number,
    world,
)

if TYPE_CHECKING:
    from agentkv_env.sites.world import World

PAGE_SIZE = 8
RATED_ON_START_PAGE = 4


async def start(request: Request) -> Response:
    rated = ratings(database(request))
    best = ordered(shop(request).products, "Best rated", rated)[:RATED_ON_START_PAGE]
    return show(request, "start.html", best=best)


async def category(request: Request) -> Response:
    for name in shop(request).categories:
        if slug(name) == request.path_params["name"]:
            return _listing(request, name, shop(request).in_category(name))
    raise missing()


async def brand(request: Request) -> Response:
    for name in shop(request).brands:
        if slug(name) == request.path_params["name"]:
            made = [product for product in shop(request).products if product.brand == name]
            return _listing(request, f"Made by {name}", made, brand=name)
    raise missing()


async def results(request: Request) -> Response:
    words = request.query_params.get("q", "").strip()[:100]
    title = f"Results for {words}" if words else "All products"
    found = search(shop(request), words) if words else list(shop(request).products)
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
    chosen = filtered(products, query)
    order = query.get("sort", ORDERS[0])
    sorted_products = ordered(chosen, order, ratings(database(request)))
    shown = paging(len(chosen), page=query.get("page"), size=PAGE_SIZE)
    return show(
        request,
        "listing.html",
        title=title,
        words=words,
        made_by=brand,
        brands=[] if brand else sorted({product.brand for product in products}),
        orders=ORDERS,
        count=len(chosen),
        products=sorted_products[shown.start : shown.start + shown.size],
        paging=shown,
    )


async def product(request: Request) -> Response:
    shown = requested_product(request)
    reviews = (
        database(request)
        .execute(
            "SELECT * FROM shop_review WHERE product = ? ORDER BY written DESC, id DESC",
            (shown.number,),
        )
        .fetchall()
    )
    return show(
        request, "product.html", product=shown, reviews=reviews, error=request.query_params.get("e")
    )


async def review_form(request: Request) -> Response:
    return show(request, "review.html", product=requested_product(request), error="", fields={})


async def write_review(request: Request) -> Response:
    fields = await form(request)
    product = requested_product(request)
    stars = whole_number(fields.get("stars", "")[:1], 0)
    title, text = fields.get("title", "")[:80], fields.get("text", "")[:1000]
    if not 1 <= stars <= 5 or not title:
        error = "Please choose a rating and write a title."
        return show(request, "review.html", status=422, product=product, error=error, fields=fields)
    now = world(request).now
    db = database(request)
    db.execute(
        "INSERT INTO shop_review (product, author, stars, title, text, written)"
        " VALUES (?, (SELECT name FROM shop_customer), ?, ?, ?, ?)",
        (product.number, stars, title, text, now.isoformat()),
    )
    return see_other(f"/product/{product.number}#reviews")


async def deals(request: Request) -> Response:
    return show(request, "deals.html")


async def shipping(request: Request) -> Response:
    return show(request, "shipping.html", methods=orders.SHIPPING)


async def returns(request: Request) -> Response:
    return show(request, "returns.html")


def _fill(world: "World", db: sqlite3.Connection) -> None:
    content = world.shop
    db.executemany(
        "INSERT INTO shop_review (product, author, stars, title, text, written)"
        " VALUES (?, ?, ?, ?, ?, ?)",
        (
            (
                review.product, review.author, review.stars, review.title, review.text,
                (world.now - timedelta(days=review.days_ago)).isoformat(),
            )
            for review in content.reviews
        ),
    )  # fmt: skip
    orders.fill(world, db)
    account.fill(world, db)


def _routes(world: "World") -> Sequence[BaseRoute]:
    return [
        Route("/", start),
        Route("/category/{name}", category),
        Route("/brand/{name}", brand),
        Route("/search", results),
        Route("/product/{number:int}", product),
        Route("/product/{number:int}/review", review_form),
        Route("/product/{number:int}/review", write_review, methods=["POST"]),
        Route("/deals", deals),
        Route("/help/shipping", shipping),
        Route("/help/returns", returns),
        *basket.ROUTES,
        *orders.ROUTES,
        *account.ROUTES,
    ]


SITE = Site(
    name="shop",
    placeholder="__SHOPPING__",
    folder=Path(__file__).parent,
    schema=Path(__file__).with_name("schema.sql").read_text(),
    fill=_fill,
    routes=_routes,
    picture=picture,
)
