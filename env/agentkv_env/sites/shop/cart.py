"""The lines and totals of a cart or an order."""

import sqlite3
from dataclasses import dataclass

from agentkv_env.sites.shop.content import Coupon, Product, ShopContent


@dataclass(frozen=True, slots=True)
class CartLine:
    """One line of a cart or an order; `cents` is the unit price."""

    id: int
    product: Product
    colour: str
    size: str
    cents: int
    quantity: int

    @property
    def options(self) -> str:
        """Color and size as text."""
        return ", ".join(part for part in (self.colour, self.size) if part)

    @property
    def total_cents(self) -> int:
        return self.cents * self.quantity


@dataclass(frozen=True, slots=True)
class CartSummary:
    """The totals of a cart, without shipping."""

    subtotal_cents: int
    coupon: Coupon | None
    discount_cents: int

    @property
    def total_cents(self) -> int:
        return self.subtotal_cents - self.discount_cents


def lines(db: sqlite3.Connection, shop: ShopContent) -> list[CartLine]:
    """Return the lines of the cart, oldest first."""
    return as_lines(shop, db.execute("SELECT * FROM shop_cart ORDER BY id").fetchall())


def as_lines(shop: ShopContent, rows: list[sqlite3.Row]) -> list[CartLine]:
    """Convert rows of the cart's or the orders' table to lines."""
    return [
        CartLine(row["id"], shop.catalogue[row["product"] - 1], row["colour"], row["size"],
             row["cents"], row["quantity"])
        for row in rows
    ]  # fmt: skip


def summary(db: sqlite3.Connection, shop: ShopContent) -> CartSummary:
    """Return the totals of the cart; the active coupon reduces lines of its category."""
    in_cart = lines(db, shop)
    (code,) = db.execute("SELECT coupon FROM shop_customer").fetchone()
    coupon = next((coupon for coupon in shop.coupons if coupon.code == code), None)
    discount = 0
    if coupon is not None:
        affected = sum(line.total_cents for line in in_cart
                       if line.product.category == coupon.category)  # fmt: skip
        discount = affected * coupon.percent // 100
    return CartSummary(sum(line.total_cents for line in in_cart), coupon, discount)
