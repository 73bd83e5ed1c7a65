"""Shopping tasks with stores, returns, comparisons, filters, repeated orders and alerts."""

from agentkv_env.sites.shop.content import Product
from agentkv_env.sites.shop.returns import REASONS, REFUNDS
from agentkv_tasks.template import Draft, Draw, TaskTemplate, all_of, shows, text, texts
from agentkv_tasks.vwa75.shop import (
    EXPRESS,
    cart_holds,
    draw_product,
    new_order_url,
    order_text_includes,
    order_text_is,
)
from agentkv_tasks.vwa75.steps import choose, find_product

_WISHLIST = "__SHOPPING__/wishlist"


def wishlist_then_cart(draw: Draw) -> Draft:
    """Keep a product on the wishlist and put it into the cart from there."""
    product = draw_product(draw)
    return Draft(
        wordings=(
            "Add the {{product}} to my wishlist, and from there to the cart.",
            "The {{product}} should be on my wishlist and, one of it, in my cart.",
            "I want the {{product}}: keep it on the wishlist first, then put one into the cart.",
        ),
        unseen_wording=(
            "I buy the {{product}} again and again. Could you keep it on my wishlist and put one "
            "into the cart too?"
        ),
        values={"product": product.name},
        start="__SHOPPING__",
        check=all_of(
            cart_holds(product),
            shows(_WISHLIST, text("#wishlist"), must_include=[product.name]),
        ),
        solution=[
            *find_product(product.name),
            "click [button: Add to wishlist]",
            "click [button: Add to cart]",
        ],
    )


def alert_for_a_sold_out_product(draw: Draw) -> Draft:
    """Ask the shop for an alert because a product is sold out."""
    product = draw.rng.choice(draw.world.shop.sold_out)
    return Draft(
        wordings=(
            "The {{product}} is sold out. Find it in the shop and press Tell me when it is back.",
            "I want the shop to tell me when the {{product}} is back.",
            "Set an alert for the {{product}} in the shop: it is sold out, and the shop can tell "
            "me when it is back.",
        ),
        unseen_wording=(
            "I came too late for the {{product}}. Can you ask the shop to tell me when it is back?"
        ),
        values={"product": product.name},
        start="__SHOPPING__",
        check=shows("__SHOPPING__/account/alerts", text("#alerts"), must_include=[product.name]),
        solution=[*find_product(product.name), "click [button: Tell me when it is back]"],
    )


def reserve_where_most_are_left(draw: Draw) -> Draft:
    """Compare the stock of a product in the stores and reserve it in one of them."""
    shop = draw.world.shop
    product, place = draw.rng.choice(
        [(one, place) for one in shop.products if (place := _fullest_store(draw, one))]
    )
    return Draft(
        wordings=(
            "Find the {{product}} and open In stores. Reserve it in the store that has the most "
            "left.",
            "Which store has the most pieces of the {{product}} left? Reserve one there.",
            "I want to pick up the {{product}} in a store. Look under In stores where the most are "
            "left, and reserve it in that store.",
        ),
        unseen_wording=(
            "I would rather see the {{product}} before I pay. Would you look at its page In stores "
            "and reserve it in the store that has the most left?"
        ),
        values={"product": product.name},
        start="__SHOPPING__",
        check=shows(
            "__SHOPPING__/account/reservations",
            text("#reservations"),
            must_include=[product.name, f"Store: {place}"],
        ),
        solution=[
            *find_product(product.name),
            "click [link: In stores]",
            choose("Store", place),
            "click [button: Reserve]",
        ],
        difficulty="medium",
        needs=[place],
    )


def _fullest_store(draw: Draw, product: Product) -> str:
    """Return the town of the store with the most pieces left, or an empty text if two have them."""
    shop = draw.world.shop
    pieces = shop.detail(product).in_stores
    most = max(pieces)
    return shop.stores[pieces.index(most)].place if pieces.count(most) == 1 else ""


def return_a_product(draw: Draw) -> Draft:
    """Send back one product of a delivered order, with a reason and a refund."""
    shop = draw.world.shop
    order = next(one for one in reversed(shop.orders) if one.status == "Delivered")
    number, _ = draw.rng.choice(order.lines)
    product = shop.products[number - 1]
    reason, refund = draw.rng.choice(REASONS[1:]), draw.rng.choice(REFUNDS[1:])
    return Draft(
        wordings=(
            "Open my order {{order}} and return the {{product}}. The reason is {{reason}}, and I "
            "get: {{refund}}.",
            "The {{product}} from my order {{order}} goes back to the shop. Reason: {{reason}}. "
            "You get: {{refund}}.",
            "I do not want to keep the {{product}}. It was in order {{order}}: choose Return "
            "something there, the reason {{reason}} and, under You get, {{refund}}.",
        ),
        unseen_wording=(
            "I am not happy with the {{product}} from my order {{order}}. Could you return it? The "
            "reason is {{reason}}, and what I would like to get is {{refund}}."
        ),
        values={
            "order": order.number,
            "product": product.name,
            "reason": reason,
            "refund": refund,
        },
        start="__SHOPPING__",
        check=shows(
            "__SHOPPING__/account/returns",
            text(".return"),
            must_include=[f"Order {order.number}", product.name, reason, refund],
        ),
        solution=[
            "click [link: Orders]",
            f"click [link: Order {order.number}]",
            "click [link: Return something]",
            choose("Product", product.name),
            choose("Reason", reason),
            choose("You get", refund),
            "click [button: Send return]",
        ],
        difficulty="medium",
    )


def cheaper_of_two(draw: Draw) -> Draft:
    """Compare two products and put the cheaper one into the cart."""
    shop = draw.world.shop
    # Prices differ within a category only.
    one, other = draw.rng.sample(shop.in_category(draw.rng.choice(shop.categories)), 2)
    cheaper = min(one, other, key=lambda product: product.cents)
    return Draft(
        wordings=(
            "Add the {{one}} and the {{other}} to the comparison. Then put the cheaper one into "
            "the cart.",
            "Which is cheaper, the {{one}} or the {{other}}? Add both to the comparison, and the "
            "cheaper of them to the cart.",
            "I want to compare the {{one}} with the {{other}}: both should be in the comparison "
            "of the shop, and the one with the lower price in my cart.",
        ),
        unseen_wording=(
            "I cannot decide between the {{one}} and the {{other}}. Would you add both to the "
            "comparison and put the cheaper one into my cart?"
        ),
        values={"one": one.name, "other": other.name},
        start="__SHOPPING__",
        check=all_of(
            cart_holds(cheaper),
            shows("__SHOPPING__/compare", text("#compare"), must_include=[one.name, other.name]),
        ),
        solution=[
            *find_product(one.name),
            "click [button: Add to comparison]",
            *find_product(other.name),
            "click [button: Add to comparison]",
            f"click [link: {cheaper.name}]",
            "click [button: Add to cart]",
        ],
        difficulty="medium",
    )


def cheapest_of_a_brand(draw: Draw) -> Draft:
    """Filter a category by brand, sort it and take the first product."""
    shop = draw.world.shop
    groups: dict[tuple[str, str], list[Product]] = {}
    for one in shop.catalogue:
        groups.setdefault((one.category, one.brand), []).append(one)
    cheapest = {
        key: min(products, key=lambda one: one.cents)
        for key, products in groups.items()
        if len(products) > 1
    }
    (category, brand), product = draw.rng.choice(
        [(key, one) for key, one in cheapest.items() if one not in shop.sold_out]
    )
    return Draft(
        wordings=(
            "Open the category {{category}}, choose the brand {{brand}}, sort by Lowest price, and "
            "put the first product into the cart.",
            "Which product of the brand {{brand}} has the Lowest price in the category "
            "{{category}}? Put it into the cart.",
            "I want something from {{category}}, but only from {{brand}}: filter the category by "
            "this brand, sort by Lowest price, and the first product should be in my cart.",
        ),
        unseen_wording=(
            "My family trusts only {{brand}}. Could you open the category {{category}}, filter it "
            "by this brand, sort by Lowest price, and put the first product into my cart?"
        ),
        values={"category": category, "brand": brand},
        start="__SHOPPING__",
        check=cart_holds(product),
        solution=[
            f"click [link: {category}]",
            choose("Sort by", "Lowest price"),
            choose("Brand", brand),
            "click [button: Apply]",
            f"click [link: {product.name}]",
            "click [button: Add to cart]",
        ],
        difficulty="medium",
        needs=[product.name],
    )


def order_again(draw: Draw) -> Draft:
    """Repeat an old order with another shipping and payment."""
    shop = draw.world.shop
    order = draw.rng.choice(shop.orders)
    payment = draw.rng.choice(("Bank transfer", "Cash on delivery"))
    products = [shop.products[number - 1].name for number, _ in order.lines]
    quantities = "".join(str(count) for _, count in order.lines)
    page = new_order_url(draw)
    return Draft(
        wordings=(
            "Open my order {{order}} and order it again, by Express and with the payment "
            "{{payment}}.",
            "Everything from my order {{order}} should come once more. Press Order again, go to "
            "the checkout, choose Express and the payment {{payment}}, and place the order.",
            "I need the same products as in order {{order}}: order them again. Shipping Express, "
            "payment {{payment}}.",
        ),
        unseen_wording=(
            "Everything from my order {{order}} is used up. Can you order it again for me, by "
            "Express and with the payment {{payment}}?"
        ),
        values={"order": order.number, "payment": payment},
        start="__SHOPPING__",
        check=all_of(
            shows(page, text("#lines"), must_include=products),
            shows(
                page,
                texts("#lines .quantity", ""),
                exact_match=quantities,
            ),
            order_text_includes(draw, "shipping", "Express"),
            order_text_is(draw, "payment", payment),
        ),
        solution=[
            "click [link: Orders]",
            f"click [link: Order {order.number}]",
            "click [button: Order again]",
            "click [link: Go to checkout]",
            EXPRESS,
            choose("Payment", payment),
            "click [button: Place order]",
        ],
        difficulty="hard",
    )


TEMPLATES = (
    TaskTemplate(wishlist_then_cart),
    TaskTemplate(alert_for_a_sold_out_product),
    TaskTemplate(reserve_where_most_are_left),
    TaskTemplate(return_a_product),
    TaskTemplate(cheaper_of_two),
    TaskTemplate(cheapest_of_a_brand),
    TaskTemplate(order_again),
)
