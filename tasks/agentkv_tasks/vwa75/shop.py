"""Checks, draws and steps that the shop tasks share."""

from agentkv_env.sites.shop.content import Coupon, PastOrder, Product
from agentkv_tasks.task import Evaluation
from agentkv_tasks.template import Draw, all_of, shows, text, texts
from agentkv_tasks.vwa75.steps import find_product, write

CART = "__SHOPPING__/cart"
EXPRESS = "click [radio: Express ($9.90, next day)]"
GIFT_WRAP = "click [checkbox: Gift wrap ($2.50)]"


def cart_holds(*products: Product, pieces: int = 1) -> Evaluation:
    """Require the cart to hold exactly `pieces` of each of these products."""
    quantities = "[...document.querySelectorAll('#cart .quantity')].map(e => e.value).join(' ')"
    return all_of(
        shows(CART, text("#cart"), must_include=[product.name for product in products]),
        shows(CART, quantities, exact_match=" ".join([str(pieces)] * len(products))),
    )  # fmt: skip


def order_placed(draw: Draw, *products: Product) -> list[Evaluation]:
    """Require a new order for exactly one of each of these products."""
    page = new_order_url(draw)
    quantities = texts("#lines .quantity", "")
    return [
        shows(page, text("#status"), exact_match="Being packed"),
        shows(page, quantities, exact_match="1" * len(products)),
        shows(page, text("#lines"), must_include=[product.name for product in products]),
    ]  # fmt: skip


def new_order_url(draw: Draw) -> str:
    """Return the address of the next order, which does not exist before it is placed."""
    return f"__SHOPPING__/order/{draw.world.shop.orders[-1].number + 1}"


def order_text_is(draw: Draw, part: str, words: str) -> Evaluation:
    """Require the element `part` (an id) of the new order to equal `words`."""
    return shows(new_order_url(draw), text(f"#{part}"), exact_match=words)


def order_text_includes(draw: Draw, part: str, words: str) -> Evaluation:
    """Require the element `part` (an id) of the new order to include `words`."""
    return shows(new_order_url(draw), text(f"#{part}"), must_include=[words])


def draw_product(draw: Draw) -> Product:
    """Draw a product."""
    return draw.rng.choice(draw.world.shop.products)


def draw_coupon(draw: Draw) -> tuple[Coupon, Product]:
    """Draw a coupon and a product that it applies to."""
    coupon = draw.rng.choice(draw.world.shop.coupons)
    return coupon, draw.rng.choice(draw.world.shop.in_category(coupon.category))


def draw_other_product(draw: Draw, *known: Product) -> Product:
    """Draw a product from a category that contains none of `known`."""
    categories = {product.category for product in known}
    return draw.rng.choice(
        [product for product in draw.world.shop.products if product.category not in categories]
    )


def draw_street(draw: Draw) -> str:
    """Draw a house number in a street of this world."""
    name = draw.rng.choice(draw.world.shop.addresses).street.partition(" ")[2]
    return f"{draw.rng.randint(2, 97)} {name}"


def draw_postcode(draw: Draw) -> str:
    """Draw five digits."""
    return str(draw.rng.randint(10000, 99999))


def buy(product: Product) -> list[str]:
    """Return the steps that put `product` into the cart."""
    return [*find_product(product.name), "click [button: Add to cart]"]


def save_address(label: str, name: str, street: str, town: str, postcode: str) -> list[str]:
    """Return the steps that fill in and send the form for a new address."""
    return [
        write("Label", label),
        write("Name", name),
        write("Street and number", street),
        write("Town", town),
        write("Postcode", postcode),
        "click [button: Save address]",
    ]


def open_orders_until(draw: Draw, wanted: PastOrder) -> list[str]:
    """Return the steps that open orders, newest first, until the `wanted` one."""
    steps = ["click [link: Orders]"]
    for order in reversed(draw.world.shop.orders):
        steps.append(f"click [link: Order {order.number}]")
        if order == wanted:
            break
        steps.append("go_back")
    return steps
