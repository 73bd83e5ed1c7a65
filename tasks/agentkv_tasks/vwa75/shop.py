"""What the shop's tasks share: what to look at afterwards, what to draw, and runs of steps."""

from agentkv_env.sites.shop.content import Coupon, PastOrder, Product
from agentkv_tasks.task import Evaluation
from agentkv_tasks.template import Draw, all_of, shows
from agentkv_tasks.vwa75.steps import find_product, write

CART = "__SHOPPING__/cart"
EXPRESS = "click [radio: Express ($9.90, next day)]"
GIFT_WRAP = "click [checkbox: Gift wrap ($2.50)]"


def in_cart(*products: Product, pieces: int = 1) -> Evaluation:
    """The cart holds these products, `pieces` of each, and nothing else."""
    quantities = "[...document.querySelectorAll('#cart .quantity')].map(e => e.value).join(' ')"
    return all_of(
        shows(CART, "document.querySelector('#cart').innerText",
              must_include=[product.name for product in products]),
        shows(CART, quantities, exact_match=" ".join([str(pieces)] * len(products))),
    )  # fmt: skip


def ordered(draw: Draw, *products: Product) -> list[Evaluation]:
    """A new order has been placed, for one of each of these products and nothing else."""
    page = new_order(draw)
    quantities = "[...document.querySelectorAll('#lines .quantity')].map(e => e.innerText).join('')"
    return [
        shows(page, "document.querySelector('#status').innerText", exact_match="Being packed"),
        shows(page, quantities, exact_match="1" * len(products)),
        shows(page, "document.querySelector('#lines').innerText",
              must_include=[product.name for product in products]),
    ]  # fmt: skip


def new_order(draw: Draw) -> str:
    """Where the next order will be; nothing is there before."""
    return f"__SHOPPING__/order/{draw.world.shop.orders[-1].number + 1}"


def order_says(draw: Draw, part: str, text: str) -> Evaluation:
    """The new order's part with this id is `text`."""
    locator = f"document.querySelector('#{part}').innerText"
    return shows(new_order(draw), locator, exact_match=text)


def order_holds(draw: Draw, part: str, text: str) -> Evaluation:
    """The new order's part with this id includes `text`."""
    locator = f"document.querySelector('#{part}').innerText"
    return shows(new_order(draw), locator, must_include=[text])


def any_product(draw: Draw) -> Product:
    """One product of the shop."""
    return draw.rng.choice(draw.world.shop.products)


def with_coupon(draw: Draw) -> tuple[Coupon, Product]:
    """A coupon and a product it is good for."""
    coupon = draw.rng.choice(draw.world.shop.coupons)
    return coupon, draw.rng.choice(draw.world.shop.in_category(coupon.category))


def other_product(draw: Draw, *known: Product) -> Product:
    """A product of a category that none of `known` is of."""
    categories = {product.category for product in known}
    return draw.rng.choice(
        [product for product in draw.world.shop.products if product.category not in categories]
    )


def street(draw: Draw) -> str:
    """A house in a street of this world."""
    name = draw.rng.choice(draw.world.shop.addresses).street.partition(" ")[2]
    return f"{draw.rng.randint(2, 97)} {name}"


def postcode(draw: Draw) -> str:
    """Five digits."""
    return str(draw.rng.randint(10000, 99999))


def buy(product: Product) -> list[str]:
    """Steps: search, open, put into the cart."""
    return [*find_product(product.name), "click [button: Add to cart]"]


def save_address(label: str, name: str, street: str, town: str, postcode: str) -> list[str]:
    """Steps: fill in and send the form for a new address."""
    return [
        write("Label", label),
        write("Name", name),
        write("Street and number", street),
        write("Town", town),
        write("Postcode", postcode),
        "click [button: Save address]",
    ]


def look_for_order(draw: Draw, wanted: PastOrder) -> list[str]:
    """Steps: open the orders one by one, newest first, until it is the `wanted` one."""
    steps = ["click [link: Orders]"]
    for order in reversed(draw.world.shop.orders):
        steps.append(f"click [link: Order {order.number}]")
        if order == wanted:
            break
        steps.append("go_back")
    return steps
