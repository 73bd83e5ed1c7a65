"""Shopping tasks about coupons and orders."""

from collections.abc import Sequence

from agentkv_env.sites.shop.content import Product
from agentkv_tasks.template import Draft, Draw, all_of, says, shows, text
from agentkv_tasks.vwa75.shop import (
    CART,
    EXPRESS,
    GIFT_WRAP,
    buy,
    cart_holds,
    draw_coupon,
    draw_other_product,
    draw_postcode,
    draw_street,
    order_placed,
    order_text_includes,
    order_text_is,
    save_address,
)
from agentkv_tasks.vwa75.steps import choose, done, find_product, write


def cancel_an_order(draw: Draw) -> Draft:
    """Cancel the newest order, which is still being packed."""
    order = draw.world.shop.orders[-1]
    return Draft(
        wordings=(
            "Cancel my order {{order}} in the shop.",
            "I do not want order {{order}} any more. Please cancel it.",
            "My order {{order}} was a mistake: open it in the shop and press Cancel order.",
        ),
        unseen_wording=(
            "I ordered the wrong things. Could you cancel my order {{order}} in the shop?"
        ),
        values={"order": order.number},
        start="__SHOPPING__",
        check=shows(f"__SHOPPING__/order/{order.number}",
                    text("#status"), exact_match="Cancelled"),
        solution=[
            "click [link: Orders]",
            f"click [link: Order {order.number}]",
            "click [button: Cancel order]",
        ],
    )  # fmt: skip


def coupon_in_the_goal(draw: Draw) -> Draft:
    """Apply a coupon code; the shop accepts it in even instances and refuses it in odd ones."""
    coupon, product = draw_coupon(draw)
    is_good, code = draw.instance % 2 == 0, coupon.code
    known = {each.code for each in draw.world.shop.coupons}
    while not is_good and code in known:
        code = f"{coupon.code[:-2]}{draw.rng.choice((24, 35, 46, 53, 67, 79))}"
    used = shows(CART, text("#coupon"), must_include=[code])
    return Draft(
        wordings=(
            "Put the {{product}} into the cart and use the coupon code {{code}}. Answer N/A if "
            "the shop refuses the code.",
            "Add the {{product}} to the cart. Then type the coupon code {{code}}. Answer N/A if "
            "there is no such coupon.",
            "I want the {{product}} in my cart and a discount for the coupon code {{code}}. "
            "Answer N/A if the cart does not accept the code.",
        ),
        unseen_wording=(
            "I found a coupon code, {{code}}. Can you put the {{product}} into my cart and use "
            "the code there? Please answer N/A if the shop refuses it."
        ),
        values={"product": product.name, "code": code},
        start="__SHOPPING__",
        check=all_of(cart_holds(product), used if is_good else says(exact_match="N/A")),
        solution=[
            *buy(product),
            f"type [textbox: Coupon code] [{code}] [1]",
            done("" if is_good else "N/A"),
        ],
    )  # fmt: skip


def coupon_from_the_poster(draw: Draw) -> Draft:
    """Apply a coupon code that appears only on a poster, after adding two products."""
    coupon, first = draw_coupon(draw)
    second = draw_other_product(draw, first)
    third = draw_other_product(draw, first, second)
    return Draft(
        wordings=(
            "Open Deals and read the coupon code for {{category}} on its poster. Then put the "
            "{{first}}, the {{second}} and the {{third}} into the cart. Then use that coupon code.",
            "The posters on the page Deals show coupon codes. Read the one for {{category}} "
            "first. Put the {{first}}, the {{second}} and the {{third}} into the cart and use the "
            "code there.",
            "I want the {{first}}, the {{second}} and the {{third}} in my cart, and the coupon "
            "for {{category}} used there. Its code is on a poster: read it on the page Deals "
            "before anything goes into the cart.",
        ),
        unseen_wording=(
            "There is a coupon for {{category}} on a poster. Could you open Deals and read its "
            "code, put the {{first}}, the {{second}} and the {{third}} into my cart, and use the "
            "code there?"
        ),
        values={
            "category": coupon.category, "first": first.name, "second": second.name,
            "third": third.name,
        },
        start="__SHOPPING__",
        check=all_of(
            cart_holds(first, second, third),
            shows(CART, text("#coupon"), must_include=[coupon.code]),
        ),
        solution=[
            "click [link: Deals]",
            *buy(first),
            *buy(second),
            *buy(third),
            f"type [textbox: Coupon code] [{coupon.code}] [1]",
        ],
        difficulty="medium",
        reads_image=True,
        turns_on=coupon.code,
        memory_distance_pages=9,
        needs=[coupon.code],
    )  # fmt: skip


def coupon_and_model_number(draw: Draw) -> Draft:
    """Order with a coupon code and a model number that appear only in two images."""
    coupon, product = draw_coupon(draw)
    labelled = draw_other_product(draw, product)
    return Draft(
        wordings=(
            "Open Deals and read the coupon code for {{category}}. Then open the {{labelled}} and "
            "read the model number on its label. Put the {{product}} into the cart, use the "
            "coupon code, and order it by Express, payment Bank transfer, with gift wrap and with "
            "the model number as the note for the courier.",
            "First read two things: the coupon code for {{category}} on the page Deals, and the "
            "model number on the label of the {{labelled}}. Then order the {{product}} with that "
            "coupon: shipping Express, payment Bank transfer, gift wrap, note for the courier: "
            "the model number.",
            "I want to order the {{product}} with the coupon for {{category}}: shipping Express, "
            "payment Bank transfer, with gift wrap, and as the note for the courier the model "
            "number on the label of the {{labelled}}. Before the order, read the coupon code on "
            "the page Deals and then the label.",
        ),
        unseen_wording=(
            "Could you order the {{product}} for me? First open Deals and read the coupon code "
            "for {{category}}, then the model number on the label of the {{labelled}}. Please use "
            "the coupon, send it by Express with the payment Bank transfer and gift wrap, and "
            "type the model number as the note for the courier."
        ),
        values={"category": coupon.category, "labelled": labelled.name, "product": product.name},
        start="__SHOPPING__",
        check=all_of(
            *order_placed(draw, product),
            order_text_includes(draw, "coupon", coupon.code),
            order_text_includes(draw, "shipping", "Express"),
            order_text_is(draw, "payment", "Bank transfer"),
            order_text_is(draw, "gift-wrap", "$2.50"),
            order_text_is(draw, "note", labelled.model),
        ),
        solution=[
            "click [link: Deals]",
            *find_product(labelled.name),
            *buy(product),
            f"type [textbox: Coupon code] [{coupon.code}] [1]",
            "click [link: Go to checkout]",
            EXPRESS,
            choose("Payment", "Bank transfer"),
            GIFT_WRAP,
            write("Note for the courier", labelled.model),
            "click [button: Place order]",
        ],
        difficulty="hard",
        reads_image=True,
        turns_on=labelled.model,
        memory_distance_pages=8,
        needs=[coupon.code, labelled.model],
    )  # fmt: skip


def product_of_an_old_order(draw: Draw) -> Draft:
    """Search for a product named in an old order, after adding three others."""
    shop = draw.world.shop
    order = draw.rng.choice([order for order in shop.orders if len(order.lines) > 1])
    wanted = shop.products[order.lines[0][0] - 1]
    others = draw.rng.sample([x for x in shop.products if x.kind != wanted.kind], 3)
    return Draft(
        wordings=(
            "Open my order {{order}} and read the name of its first product. Then put the {{a}}, "
            "the {{b}}, the {{c}} and last that first product into the cart, one of each.",
            "Look at my order {{order}}: what is its first product? Put the {{a}}, the {{b}} and "
            "the {{c}} into the cart, and after them that first product, one of each.",
            "I want four things in my cart, one of each: the {{a}}, the {{b}}, the {{c}} and, "
            "after them, the first product of my order {{order}}. Read its name in the order "
            "first.",
        ),
        unseen_wording=(
            "I liked the first product of my order {{order}}. Could you read its name there, and "
            "then put the {{a}}, the {{b}}, the {{c}} and last that product into my cart, one of "
            "each?"
        ),
        values={"order": order.number, **_product_values("abc", others)},
        start="__SHOPPING__",
        check=cart_holds(*others, wanted),
        solution=[
            "click [link: Orders]",
            f"click [link: Order {order.number}]",
            *(step for product in (*others, wanted) for step in buy(product)),
        ],
        difficulty="hard",
        memory_distance_pages=9,
        needs=[wanted.name],
    )  # fmt: skip


def products_of_two_orders(draw: Draw) -> Draft:
    """Search for two products named in two orders, each many pages later."""
    shop = draw.world.shop
    one, other = draw.rng.sample([order for order in shop.orders if len(order.lines) > 1], 2)
    first, second = (shop.products[order.lines[0][0] - 1] for order in (one, other))
    known = (first.kind, second.kind)
    bought = draw.rng.sample([x for x in shop.products if x.kind not in known], 2)
    return Draft(
        wordings=(
            "Open my orders {{one}} and {{other}} and read the name of the first product of each. "
            "Then put the {{a}} and the {{b}} into the cart, and after them those two products, "
            "one of each.",
            "Read the first product of my order {{one}} and the first product of my order "
            "{{other}}. Then put four things into the cart, one of each: the {{a}}, the {{b}} and "
            "these two products.",
            "Which products are the first in my order {{one}} and in my order {{other}}? I want "
            "both again, one of each. Before them, the {{a}} and the {{b}} should go into the "
            "cart.",
        ),
        unseen_wording=(
            "My friends want what I have. Would you read the first product of my order {{one}} "
            "and the first product of my order {{other}}, and then put the {{a}}, the {{b}} and "
            "those two products into my cart, one of each?"
        ),
        values={"one": one.number, "other": other.number, **_product_values("ab", bought)},
        start="__SHOPPING__",
        check=cart_holds(*bought, first, second),
        solution=[
            "click [link: Orders]",
            f"click [link: Order {one.number}]",
            "go_back",
            f"click [link: Order {other.number}]",
            *(step for product in (*bought, first, second) for step in buy(product)),
        ],
        difficulty="hard",
        memory_distance_pages=9,
        needs=[first.name, second.name],
    )  # fmt: skip


def _product_values(keys: str, products: Sequence[Product]) -> dict[str, str]:
    return {key: product.name for key, product in zip(keys, products, strict=True)}


def whole_order(draw: Draw) -> Draft:
    """Order two products with a coupon from an image, shipped to a seller's name and town."""
    coupon, first = draw_coupon(draw)
    second = draw_other_product(draw, first)
    sellers = draw.world.classifieds.sellers
    friend = draw.rng.choice([one for one in sellers if one.handle != draw.world.me.handle])
    house, code = draw_street(draw), draw_postcode(draw)
    return Draft(
        wordings=(
            "Read the name and the home town of the seller in the other tab. Then read the coupon "
            "code for {{category}} on the page Deals of the shop. Order one {{first}} and one "
            "{{second}} with that coupon by Express. Send them to a new address: label Gift, the "
            "seller's name, {{house}}, the seller's home town, postcode {{code}}.",
            "The other tab shows a seller: read the name and the home town. Then open Deals in "
            "the shop and read the coupon code for {{category}}. Put the {{first}} and the "
            "{{second}} into the cart, use the code, and order them by Express to a new address "
            "with the label Gift, that name, the street {{house}}, that town and the postcode "
            "{{code}}.",
            "The seller in the other tab should get two presents from the shop by Express, one "
            "{{first}} and one {{second}}, bought with the coupon for {{category}}. The address "
            "is a new one: label Gift, the seller's name, {{house}}, the seller's home town, "
            "postcode {{code}}. Read the name and the home town first, and then the coupon code "
            "on the page Deals.",
        ),
        unseen_wording=(
            "I owe the seller in the other tab a favour. Could you read the seller's name and "
            "home town there, and then the coupon code for {{category}} on the page Deals of the "
            "shop? Then please order one {{first}} and one {{second}} with that coupon by "
            "Express, to a new address: label Gift, the seller's name, {{house}}, that home town, "
            "postcode {{code}}."
        ),
        values={
            "category": coupon.category, "first": first.name, "second": second.name,
            "house": house, "code": code,
        },
        start=f"__SHOPPING__ |AND| __CLASSIFIEDS__/seller/{friend.handle}",
        check=all_of(
            *order_placed(draw, first, second),
            order_text_includes(draw, "coupon", coupon.code),
            order_text_includes(draw, "shipping", "Express"),
            order_text_is(draw, "address", f"{friend.name}, {house}, {code} {friend.town}"),
        ),
        solution=[
            "tab_focus [1]",
            "tab_focus [0]",
            "click [link: Deals]",
            *buy(first),
            *buy(second),
            f"type [textbox: Coupon code] [{coupon.code}] [1]",
            "click [link: Go to checkout]",
            "click [link: Add another address]",
            *save_address("Gift", friend.name, house, friend.town, code),
            choose("Send to", f"Gift: {house}, {friend.town}"),
            EXPRESS,
            "click [button: Place order]",
        ],
        difficulty="hard",
        reads_image=True,
        turns_on=coupon.code,
        memory_distance_pages=14,
        needs=[coupon.code, friend.name, friend.town],
    )  # fmt: skip
