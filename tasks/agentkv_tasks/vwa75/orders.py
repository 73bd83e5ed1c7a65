"""Shopping tasks about coupons and orders."""

from agentkv_tasks.template import Draft, Draw, all_of, shows
from agentkv_tasks.vwa75.shop import (
    CART,
    any_product,
    buy,
    in_cart,
    look_for_order,
    order_says,
    ordered,
    with_coupon,
)
from agentkv_tasks.vwa75.steps import choose, done, write


def cancel_an_order(draw: Draw) -> Draft:
    """The newest order is still being packed."""
    order = draw.world.shop.orders[-1]
    return Draft(
        intent=draw.rng.choice(
            (
                "Cancel my order {{order}} in the shop.",
                "I do not want order {{order}} any more. Please cancel it.",
            )
        ),
        values={"order": order.number},
        start="__SHOPPING__",
        check=shows(f"__SHOPPING__/order/{order.number}",
                    "document.querySelector('#status').innerText", exact_match="Cancelled"),
        solution=[
            "click [link: Orders]",
            f"click [link: Order {order.number}]",
            "click [button: Cancel order]",
            done(),
        ],
    )  # fmt: skip


def order_a_product(draw: Draw) -> Draft:
    """From the search box to the order."""
    product = any_product(draw)
    return Draft(
        intent=draw.rng.choice(
            (
                "Order one {{product}} for me.",
                "Buy the {{product}} in the shop; standard shipping is fine.",
                "Go to the shop and place an order for one {{product}}.",
            )
        ),
        values={"product": product.name},
        start="__HOMEPAGE__",
        check=all_of(*ordered(draw, product)),
        solution=[
            "click [link: Shop]",
            *buy(product),
            "click [link: Go to checkout]",
            "click [button: Place order]",
            done(),
        ],
        difficulty="medium",
    )


def order_as_a_gift(draw: Draw) -> Draft:
    """Radio button, checkbox, native select."""
    product = any_product(draw)
    return Draft(
        intent=(
            "Order one {{product}} with Express shipping and gift wrap, and pay by bank transfer."
        ),
        values={"product": product.name},
        start="__SHOPPING__",
        check=all_of(
            *ordered(draw, product),
            order_says(draw, "shipping", "Express"),
            order_says(draw, "gift-wrap", "$2.50"),
            order_says(draw, "payment", "Bank transfer"),
        ),
        solution=[
            *buy(product),
            "click [link: Go to checkout]",
            "click [radio: Express ($9.90, next day)]",
            choose("Payment", "Bank transfer"),
            "click [checkbox: Gift wrap ($2.50)]",
            "click [button: Place order]",
            done(),
        ],
        difficulty="medium",
    )


def coupon_from_the_poster(draw: Draw) -> Draft:
    """Only in the picture: the code, to be typed two pages later."""
    coupon, product = with_coupon(draw)
    return Draft(
        intent=(
            "Put the {{product}} into the cart and use the coupon code for {{category}} "
            "from the posters on the deals page."
        ),
        values={"product": product.name, "category": coupon.category},
        start="__SHOPPING__",
        check=all_of(
            in_cart(product),
            shows(CART, "document.querySelector('#coupon').innerText", must_include=[coupon.code]),
        ),
        solution=[
            *buy(product),
            "click [link: Deals]",
            "click [link: Cart (1)]",
            f"type [textbox: Coupon code] [{coupon.code}] [1]",
            done(),
        ],
        difficulty="medium",
        reads_image=True,
        turns_on=coupon.code,
        memory_distance_pages=1,
    )


def order_again_by_tracking_code(draw: Draw) -> Draft:
    """Only in the picture: open the orders one by one until the parcel's label fits."""
    wanted = draw.rng.choice(draw.world.shop.orders)
    bought = [draw.world.shop.products[number - 1] for number, _ in wanted.lines]
    return Draft(
        intent="One of my orders has {{tracking}} on its parcel label. "
        "Order again what was in it: it is enough to put it into the cart.",
        values={"tracking": wanted.tracking},
        start="__SHOPPING__",
        check=in_cart(*bought),
        solution=[*look_for_order(draw, wanted), "click [button: Order again]", done()],
        difficulty="hard",
        reads_image=True,
        turns_on=wanted.tracking,
    )


def whole_order(draw: Draw) -> Draft:
    """Two products, a coupon from a picture, a new address, and shipping: the whole way."""
    coupon, first = with_coupon(draw)
    second = draw.rng.choice(
        [one for one in draw.world.shop.products if one.category != coupon.category]
    )
    friend = draw.rng.choice(draw.world.people[1:])
    street = f"{draw.rng.randint(2, 97)} {draw.world.shop.addresses[0].street.split()[1]} Lane"
    postcode = str(draw.rng.randint(10000, 99999))
    return Draft(
        intent=(
            "Order one {{first}} and one {{second}} with the coupon for {{category}} from the "
            "deals page. Send them by Express to {{friend}}, {{street}}, {{postcode}} {{place}}; "
            "call the new address Gift."
        ),
        values={
            "first": first.name, "second": second.name, "category": coupon.category,
            "friend": friend.name, "street": street, "postcode": postcode, "place": friend.place,
        },
        start="__SHOPPING__",
        check=all_of(
            *ordered(draw, first, second),
            order_says(draw, "coupon", coupon.code),
            order_says(draw, "shipping", "Express"),
            order_says(draw, "address", f"{friend.name}, {street}, {postcode} {friend.place}"),
        ),
        solution=[
            "click [link: Deals]",
            *buy(first),
            *buy(second),
            f"type [textbox: Coupon code] [{coupon.code}] [1]",
            "click [link: Go to checkout]",
            "click [link: Add another address]",
            write("Label", "Gift"),
            write("Name", friend.name),
            write("Street and number", street),
            write("Town", friend.place),
            write("Postcode", postcode),
            "click [button: Save address]",
            choose("Send to", f"Gift: {street}, {friend.place}"),
            "click [radio: Express ($9.90, next day)]",
            "click [button: Place order]",
            done(),
        ],
        difficulty="hard",
        reads_image=True,
        turns_on=coupon.code,
        memory_distance_pages=7,
    )  # fmt: skip
