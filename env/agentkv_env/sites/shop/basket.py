"""Cart, coupon, wishlist and comparison."""

import sqlite3

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from agentkv_env.sites.shop.cart import as_lines, lines, summary
from agentkv_env.sites.shop.content import Product
from agentkv_env.sites.shop.view import product_numbered, shop, show
from agentkv_env.sites.site import database, form, money, see_other, whole_number

MOST_PIECES = 99
MOST_COMPARED = 4


async def cart(request: Request) -> Response:
    db = database(request)
    return show(
        request,
        "cart.html",
        lines=lines(db, shop(request)),
        summary=summary(db, shop(request)),
        later=as_lines(
            shop(request), db.execute("SELECT * FROM shop_later ORDER BY id").fetchall()
        ),
        error=request.query_params.get("e"),
    )


async def add(request: Request) -> Response:
    """Add a product to the cart, at its club price if the customer enters that price."""
    fields = await form(request)
    product = product_numbered(request, fields.get("product", ""))
    cents = product.cents
    if fields.get("tag"):
        cents = product.club_cents or 0
        if fields["tag"].lstrip("$") != money(cents).lstrip("$"):
            return see_other(f"/product/{product.number}?e=tag")
    if not shop(request).detail(product).stock:
        return see_other(f"/product/{product.number}?e=sold-out")
    quantity = whole_number(fields.get("quantity"), 1, 1, MOST_PIECES)
    colour = _one_of(fields.get("colour"), product.colours)
    size = _one_of(fields.get("size"), product.sizes)
    put_in_cart(request, product, colour=colour, size=size, cents=cents, quantity=quantity)
    return see_other("/cart")


def put_in_cart(
    request: Request, product: Product, *, colour: str, size: str, cents: int, quantity: int
) -> None:
    """Add a line, or increase the quantity of an existing line."""
    database(request).execute(
        "INSERT INTO shop_cart (product, colour, size, cents, quantity) VALUES (?, ?, ?, ?, ?)"
        " ON CONFLICT DO UPDATE SET quantity = min(?, quantity + excluded.quantity)",
        (product.number, colour, size, cents, quantity, MOST_PIECES),
    )


def _one_of(choice: str | None, choices: tuple[str, ...]) -> str:
    if choice in choices:
        return str(choice)
    return choices[0] if choices else ""


async def change_quantity(request: Request) -> Response:
    fields = await form(request)
    quantity = whole_number(fields.get("quantity"), 1, 0, MOST_PIECES)
    line = request.path_params["line"]
    db = database(request)
    if quantity:
        db.execute("UPDATE shop_cart SET quantity = ? WHERE id = ?", (quantity, line))
    else:
        db.execute("DELETE FROM shop_cart WHERE id = ?", (line,))
    return see_other("/cart")


async def remove(request: Request) -> Response:
    database(request).execute("DELETE FROM shop_cart WHERE id = ?", (request.path_params["line"],))
    return see_other("/cart")


async def save_for_later(request: Request) -> Response:
    _move(request, "shop_cart", "shop_later")
    return see_other("/cart")


async def move_to_cart(request: Request) -> Response:
    _move(request, "shop_later", "shop_cart")
    return see_other("/cart")


def _move(request: Request, source: str, target: str) -> None:
    db, line = database(request), request.path_params["line"]
    columns = "product, colour, size, cents, quantity"
    db.execute(
        f"INSERT INTO {target} ({columns}) SELECT {columns} FROM {source} WHERE id = ?"
        " ON CONFLICT DO UPDATE SET quantity = min(?, quantity + excluded.quantity)",
        (line, MOST_PIECES),
    )
    db.execute(f"DELETE FROM {source} WHERE id = ?", (line,))


async def use_coupon(request: Request) -> Response:
    code = (await form(request)).get("code", "").upper()
    if code not in {coupon.code for coupon in shop(request).coupons}:
        return see_other("/cart?e=coupon")
    database(request).execute("UPDATE shop_customer SET coupon = ?", (code,))
    return see_other("/cart")


async def drop_coupon(request: Request) -> Response:
    database(request).execute("UPDATE shop_customer SET coupon = ''")
    return see_other("/cart")


async def wishlist(request: Request) -> Response:
    return show(request, "wishlist.html", products=kept(request, "shop_wish"))


async def add_wish(request: Request) -> Response:
    product = product_numbered(request, (await form(request)).get("product", ""))
    keep(database(request), "shop_wish", product)
    return see_other("/wishlist")


async def remove_wish(request: Request) -> Response:
    product = product_numbered(request, (await form(request)).get("product", ""))
    database(request).execute("DELETE FROM shop_wish WHERE product = ?", (product.number,))
    return see_other("/wishlist")


async def compare(request: Request) -> Response:
    return show(request, "compare.html", products=kept(request, "shop_compare"))


async def add_compare(request: Request) -> Response:
    """Add a product to the comparison; a full comparison drops its oldest product."""
    product = product_numbered(request, (await form(request)).get("product", ""))
    keep(database(request), "shop_compare", product)
    database(request).execute(
        "DELETE FROM shop_compare WHERE product NOT IN"
        " (SELECT product FROM shop_compare ORDER BY added DESC LIMIT ?)",
        (MOST_COMPARED,),
    )
    return see_other("/compare")


async def remove_compare(request: Request) -> Response:
    product = product_numbered(request, (await form(request)).get("product", ""))
    database(request).execute("DELETE FROM shop_compare WHERE product = ?", (product.number,))
    return see_other("/compare")


def keep(db: sqlite3.Connection, table: str, product: Product) -> None:
    """Add `product` to the list in a table, unless the list has it."""
    db.execute(
        f"INSERT INTO {table} VALUES (?, (SELECT 1 + coalesce(max(added), 0) FROM {table}))"
        " ON CONFLICT DO NOTHING",
        (product.number,),
    )


def kept(request: Request, table: str) -> list[Product]:
    """Return the products of the list in a table, in the order of insertion."""
    rows = database(request).execute(f"SELECT product FROM {table} ORDER BY added")
    return [shop(request).catalogue[number - 1] for (number,) in rows]


ROUTES: list[BaseRoute] = [
    Route("/cart", cart),
    Route("/cart/add", add, methods=["POST"]),
    Route("/cart/{line:int}/quantity", change_quantity, methods=["POST"]),
    Route("/cart/{line:int}/remove", remove, methods=["POST"]),
    Route("/cart/{line:int}/later", save_for_later, methods=["POST"]),
    Route("/later/{line:int}/cart", move_to_cart, methods=["POST"]),
    Route("/cart/coupon", use_coupon, methods=["POST"]),
    Route("/cart/coupon/remove", drop_coupon, methods=["POST"]),
    Route("/wishlist", wishlist),
    Route("/wishlist/add", add_wish, methods=["POST"]),
    Route("/wishlist/remove", remove_wish, methods=["POST"]),
    Route("/compare", compare),
    Route("/compare/add", add_compare, methods=["POST"]),
    Route("/compare/remove", remove_compare, methods=["POST"]),
]
