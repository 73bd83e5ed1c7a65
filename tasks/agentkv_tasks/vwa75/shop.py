"""What the shop's tasks share: what to look at afterwards, and what to draw."""

from agentkv_env.sites.shop.content import Coupon, PastOrder, Product
from agentkv_tasks.task import Evaluation
from agentkv_tasks.template import Draw, all_of, shows
from agentkv_tasks.vwa75.steps import find_product

CART = "__SHOPPING__/cart"


def in_cart(*products: Product) -> Evaluation:
    """The cart holds these products and nothing else."""
    return all_of(
        shows(CART, "document.querySelector('#cart').innerText",
              must_include=[product.name for product in products]),
        shows(CART, "document.querySelectorAll('#cart .line').length",
              exact_match=str(len(products))),
    )  # fmt: skip


def ordered(draw: Draw, *products: Product) -> list[Evaluation]:
    """A new order has been placed, for these products and nothing else."""
    page = new_order(draw)
    return [
        shows(page, "document.querySelector('#status').innerText", exact_match="Being packed"),
        shows(page, "document.querySelectorAll('#lines .line').length",
              exact_match=str(len(products))),
        shows(page, "document.querySelector('#lines').innerText",
              must_include=[product.name for product in products]),
    ]  # fmt: skip


def new_order(draw: Draw) -> str:
    """Where the next order will be; nothing is there before."""
    return f"__SHOPPING__/order/{draw.world.shop.orders[-1].number + 1}"


def order_says(draw: Draw, part: str, text: str) -> Evaluation:
    """The new order's part with this id includes `text`."""
    locator = f"document.querySelector('#{part}').innerText"
    return shows(new_order(draw), locator, must_include=[text])


def any_product(draw: Draw) -> Product:
    """One product of the shop."""
    return draw.rng.choice(draw.world.shop.products)


def of_one_kind(draw: Draw, count: int = 2) -> list[Product]:
    """`count` products of one kind, each of another brand."""
    kind = any_product(draw).kind
    return draw.rng.sample([one for one in draw.world.shop.products if one.kind == kind], count)


def with_coupon(draw: Draw) -> tuple[Coupon, Product]:
    """A coupon and a product it is good for."""
    coupon = draw.rng.choice(draw.world.shop.coupons)
    return coupon, draw.rng.choice(draw.world.shop.in_category(coupon.category))


def buy(product: Product) -> list[str]:
    """Steps: search, open, put into the cart."""
    return [*find_product(product.name), "click [button: Add to cart]"]


def look_for_order(draw: Draw, wanted: PastOrder) -> list[str]:
    """Steps: open the orders one by one, newest first, until it is the `wanted` one."""
    steps = ["click [link: Orders]"]
    for order in reversed(draw.world.shop.orders):
        steps.append(f"click [link: Order {order.number}]")
        if order == wanted:
            break
        steps.append("go_back")
    return steps
