"""What is in the cart and what it comes to."""

import sqlite3
from dataclasses import dataclass

from agentkv_env.sites.shop.content import Content, Coupon, Product


@dataclass(frozen=True, slots=True)
class Line:
    """One row of a cart or of an order; `cents` is the price of one piece."""

    id: int
    product: Product
    colour: str
    size: str
    cents: int
    quantity: int

    @property
    def options(self) -> str:
        """Colour and size in a few words."""
        return ", ".join(part for part in (self.colour, self.size) if part)

    @property
    def total_cents(self) -> int:
        return self.cents * self.quantity


@dataclass(frozen=True, slots=True)
class Summary:
    """The sums under a cart; shipping comes later."""

    subtotal_cents: int
    coupon: Coupon | None
    discount_cents: int

    @property
    def total_cents(self) -> int:
        return self.subtotal_cents - self.discount_cents


def lines(db: sqlite3.Connection, shop: Content) -> list[Line]:
    """The cart's rows, oldest first."""
    return as_lines(shop, db.execute("SELECT * FROM shop_cart ORDER BY id").fetchall())


def as_lines(shop: Content, rows: list[sqlite3.Row]) -> list[Line]:
    """Rows of the cart's or the orders' table as values."""
    return [
        Line(row["id"], shop.catalogue[row["product"] - 1], row["colour"], row["size"],
             row["cents"], row["quantity"])
        for row in rows
    ]  # fmt: skip


def summary(db: sqlite3.Connection, shop: Content) -> Summary:
    """What the cart comes to, with the coupon in use taken off the lines of its category."""
    in_cart = lines(db, shop)
    (code,) = db.execute("SELECT coupon FROM shop_customer").fetchone()
    coupon = next((coupon for coupon in shop.coupons if coupon.code == code), None)
    discount = 0
    if coupon is not None:
        affected = sum(line.total_cents for line in in_cart
                       if line.product.category == coupon.category)  # fmt: skip
        discount = affected * coupon.percent // 100
    return Summary(sum(line.total_cents for line in in_cart), coupon, discount)
