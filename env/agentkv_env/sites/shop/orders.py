"""Checkout and orders."""

import sqlite3
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from agentkv_env.sites.shop.basket import put_in_cart
from agentkv_env.sites.shop.cart import as_lines, lines, summary
from agentkv_env.sites.shop.view import shop, show, signed_in
from agentkv_env.sites.site import database, form, missing, money, see_other, whole_number, world

if TYPE_CHECKING:
    from agentkv_env.sites.world import World


@dataclass(frozen=True, slots=True)
class Shipping:
    """One way to get an order."""

    name: str
    cents: int
    days: str

    @property
    def label(self) -> str:
        return f"{self.name} ({money(self.cents) if self.cents else 'free'}, {self.days})"


SHIPPING = (
    Shipping("Standard", 490, "3 to 5 days"),
    Shipping("Express", 990, "next day"),
    Shipping("Pick up", 0, "from our store"),
)
PAYMENTS = ("Invoice", "Bank transfer", "Cash on delivery")
GIFT_WRAP_CENTS = 250


def fill(world: "World", db: sqlite3.Connection) -> None:
    """Insert the orders from before."""
    home = world.shop.addresses[0]
    for order in world.shop.orders:
        bought = [(world.shop.products[number - 1], count) for number, count in order.lines]
        total = sum(product.cents * count for product, count in bought)
        placed = world.now - timedelta(days=order.days_ago)
        db.execute(
            "INSERT INTO shop_order VALUES (?, ?, ?, ?, ?, ?, ?, 'Pick up', 'Invoice', 0, '', '',"
            " 0, 0, ?)",
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


@signed_in
async def checkout(request: Request) -> Response:
    db = database(request)
    return show(
        request,
        "checkout.html",
        lines=lines(db, shop(request)),
        summary=summary(db, shop(request)),
        addresses=db.execute("SELECT * FROM shop_address ORDER BY id").fetchall(),
        methods=SHIPPING,
        payments=PAYMENTS,
        gift_wrap_cents=GIFT_WRAP_CENTS,
    )


@signed_in
async def place_order(request: Request) -> Response:
    """Turn the cart into an order and empty it; an empty cart goes back to the cart's page."""
    fields = await form(request)
    db = database(request)
    bought, sums = lines(db, shop(request)), summary(db, shop(request))
    address = db.execute(
        "SELECT * FROM shop_address ORDER BY id = ? DESC, id",
        (whole_number(fields.get("address"), 0),),
    ).fetchone()
    if not bought or address is None:
        return see_other("/cart" if not bought else "/account/addresses/new")
    method = next((way for way in SHIPPING if way.name == fields.get("shipping")), SHIPPING[0])
    payment = fields["payment"] if fields.get("payment") in PAYMENTS else PAYMENTS[0]
    free_from_cents = shop(request).free_shipping_dollars * 100
    is_free = method is SHIPPING[0] and sums.total_cents >= free_from_cents
    shipping_cents = 0 if is_free else method.cents
    wrap = int(fields.get("gift_wrap") == "yes")
    total = sums.total_cents + shipping_cents + wrap * GIFT_WRAP_CENTS
    (number,) = db.execute("SELECT max(number) + 1 FROM shop_order").fetchone()
    db.execute(
        "INSERT INTO shop_order VALUES (?, ?, 'Being packed', ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (number, world(request).now.isoformat(), address["person"], address["street"],
         address["place"], address["postcode"], method.name, payment, wrap,
         fields.get("note", "")[:200], sums.coupon.code if sums.coupon else "",
         sums.discount_cents, shipping_cents, total),
    )  # fmt: skip
    db.execute(
        "INSERT INTO shop_order_line (number, product, colour, size, cents, quantity)"
        " SELECT ?, product, colour, size, cents, quantity FROM shop_cart ORDER BY id",
        (number,),
    )
    db.execute("DELETE FROM shop_cart")
    db.execute("UPDATE shop_customer SET coupon = ''")
    return see_other(f"/order/{number}")


@signed_in
async def history(request: Request) -> Response:
    rows = database(request).execute("SELECT * FROM shop_order ORDER BY number DESC").fetchall()
    return show(request, "orders.html", orders=rows)


@signed_in
async def order(request: Request) -> Response:
    row = _order(request)
    known = {past.number for past in shop(request).orders}
    return show(
        request,
        "order.html",
        order=row,
        lines=as_lines(shop(request), _order_lines(request, row["number"])),
        gift_wrap_cents=GIFT_WRAP_CENTS,
        has_papers=row["number"] in known,
    )


@signed_in
async def latest(request: Request) -> Response:
    (number,) = database(request).execute("SELECT max(number) FROM shop_order").fetchone()
    return see_other(f"/order/{number}")


@signed_in
async def cancel(request: Request) -> Response:
    """Cancel an order that has not left yet; others stay as they are."""
    row = _order(request)
    database(request).execute(
        "UPDATE shop_order SET status = 'Cancelled' WHERE number = ? AND status = 'Being packed'",
        (row["number"],),
    )
    return see_other(f"/order/{row['number']}")


@signed_in
async def again(request: Request) -> Response:
    """Put everything of an order into the cart once more, at today's price."""
    row = _order(request)
    for line in as_lines(shop(request), _order_lines(request, row["number"])):
        put_in_cart(request, line.product, colour=line.colour, size=line.size,
                    cents=line.product.cents, quantity=line.quantity)  # fmt: skip
    return see_other("/cart")


def _order(request: Request) -> sqlite3.Row:
    row: sqlite3.Row | None = (
        database(request)
        .execute("SELECT * FROM shop_order WHERE number = ?", (request.path_params["number"],))
        .fetchone()
    )
    if row is None:
        raise missing()
    return row


def _order_lines(request: Request, number: int) -> list[sqlite3.Row]:
    query = "SELECT * FROM shop_order_line WHERE number = ? ORDER BY id"
    return database(request).execute(query, (number,)).fetchall()


ROUTES: list[BaseRoute] = [
    Route("/checkout", checkout),
    Route("/checkout", place_order, methods=["POST"]),
    Route("/orders", history),
    Route("/order/latest", latest),
    Route("/order/{number:int}", order),
    Route("/order/{number:int}/cancel", cancel, methods=["POST"]),
    Route("/order/{number:int}/again", again, methods=["POST"]),
]
