"""Placed orders: their pages, history and documents."""

import sqlite3
from datetime import timedelta

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from agentkv_env.sites.region import Region
from agentkv_env.sites.shop.basket import put_in_cart
from agentkv_env.sites.shop.cart import as_lines
from agentkv_env.sites.shop.checkout import GIFT_WRAP_CENTS
from agentkv_env.sites.shop.content import PastOrder, ShopContent
from agentkv_env.sites.shop.view import shop, show, signed_in
from agentkv_env.sites.site import database, missing, region, see_other

STEPS = {
    "Delivered": ("Ordered", "Paid", "Packed", "Sent", "Delivered"),
    "Cancelled": ("Ordered", "Paid", "Cancelled"),
    "Being packed": ("Ordered", "Paid"),
}
"""Past steps of an order by status."""


def fill(region: Region, content: ShopContent, db: sqlite3.Connection) -> None:
    """Insert the past orders."""
    home = content.addresses[0]
    for order in content.orders:
        bought = [(content.products[number - 1], count) for number, count in order.lines]
        total = sum(product.cents * count for product, count in bought)
        placed = region.now - timedelta(days=order.days_ago)
        db.execute(
            "INSERT INTO shop_order VALUES (?, ?, ?, ?, ?, ?, ?, 'Pick up', 'Invoice', 0, '', '',"
            " 0, 0, ?, 'Any time', 0)",
            (order.number, placed.isoformat(), order.status, home.person, home.street, home.place,
             home.postcode, total),
        )  # fmt: skip
        db.executemany(
            "INSERT INTO shop_order_line (number, product, colour, size, cents, quantity)"
            " VALUES (?, ?, ?, ?, ?, ?)",
            (
                (order.number, product.number, product.colours[0],
                 product.sizes[0] if product.sizes else "", product.cents, count)
                for product, count in bought
            ),
        )  # fmt: skip
        db.executemany(
            "INSERT INTO shop_order_event (number, step, happened) VALUES (?, ?, ?)",
            ((order.number, step, (placed + timedelta(days=days)).isoformat())
             for step, days in zip(STEPS[order.status], order.step_days, strict=False)),
        )  # fmt: skip


@signed_in
async def orders(request: Request) -> Response:
    rows = database(request).execute("SELECT * FROM shop_order ORDER BY number DESC").fetchall()
    return show(request, "orders.html", orders=rows)


@signed_in
async def order(request: Request) -> Response:
    row = requested_order(request)
    return show(
        request,
        "order.html",
        order=row,
        lines=as_lines(shop(request), requested_lines(request)),
        gift_wrap_cents=GIFT_WRAP_CENTS,
        has_papers=_from_before(request) is not None,
    )


@signed_in
async def history(request: Request) -> Response:
    """Show the status history; only this page names the courier."""
    row = requested_order(request)
    events = database(request).execute(
        "SELECT * FROM shop_order_event WHERE number = ? ORDER BY id", (row["number"],)
    )
    return show(
        request, "history.html", order=row, events=events.fetchall(), past=_from_before(request)
    )


@signed_in
async def invoice(request: Request) -> Response:
    row = requested_order(request)
    return show(request, "invoice.html", order=row, past=_from_before(request))


@signed_in
async def latest(request: Request) -> Response:
    (number,) = database(request).execute("SELECT max(number) FROM shop_order").fetchone()
    return see_other(f"/order/{number}")


@signed_in
async def cancel(request: Request) -> Response:
    """Cancel an order that has not been sent; other orders do not change."""
    row = requested_order(request)
    db = database(request)
    if row["status"] == "Being packed":
        db.execute("UPDATE shop_order SET status = 'Cancelled' WHERE number = ?", (row["number"],))
        db.execute(
            "UPDATE shop_customer SET gift_cents = gift_cents + ?", (row["gift_card_cents"],)
        )
        db.execute(
            "INSERT INTO shop_order_event (number, step, happened) VALUES (?, 'Cancelled', ?)",
            (row["number"], region(request).now.isoformat()),
        )
    return see_other(f"/order/{row['number']}")


@signed_in
async def again(request: Request) -> Response:
    """Add all lines of an order to the cart, at current prices."""
    requested_order(request)
    for line in as_lines(shop(request), requested_lines(request)):
        put_in_cart(request, line.product, colour=line.colour, size=line.size,
                    cents=line.product.cents, quantity=line.quantity)  # fmt: skip
    return see_other("/cart")


def requested_order(request: Request) -> sqlite3.Row:
    """Return the order in the address.

    Raises:
        HTTPException: 404 when there is none.
    """
    row: sqlite3.Row | None = (
        database(request)
        .execute("SELECT * FROM shop_order WHERE number = ?", (request.path_params["number"],))
        .fetchone()
    )
    if row is None:
        raise missing()
    return row


def requested_lines(request: Request) -> list[sqlite3.Row]:
    """Return the lines of the order in the address."""
    query = "SELECT * FROM shop_order_line WHERE number = ? ORDER BY id"
    return database(request).execute(query, (request.path_params["number"],)).fetchall()


def _from_before(request: Request) -> PastOrder | None:
    number = request.path_params["number"]
    return next((past for past in shop(request).orders if past.number == number), None)


ROUTES: list[BaseRoute] = [
    Route("/orders", orders),
    Route("/order/latest", latest),
    Route("/order/{number:int}", order),
    Route("/order/{number:int}/history", history),
    Route("/order/{number:int}/invoice", invoice),
    Route("/order/{number:int}/cancel", cancel, methods=["POST"]),
    Route("/order/{number:int}/again", again, methods=["POST"]),
]
