"""Long shopping tasks that compare many pages or use facts from other sites."""

from itertools import combinations

from agentkv_env.sites.shop.content import PastOrder, Product
from agentkv_env.sites.site import money
from agentkv_tasks.template import Draft, Draw, Template, all_of, shows
from agentkv_tasks.vwa75.shop import buy, cart_holds, new_order_url, order_placed
from agentkv_tasks.vwa75.steps import choose, done, find_article, find_listing, find_product, write
from agentkv_tasks.vwa_long.rounds import (
    MAX_STEPS,
    draw_distinct,
    join_facts,
    number_placeholders,
    text,
    unique_facts,
)

_WRITE_TO_THE_SHOP = [
    "click [link: Account]",
    "click [link: Messages]",
    "click [link: Write a message]",
]
_MESSAGES = "__SHOPPING__/account/messages"


def _fact(product: Product, key: str) -> str:
    return dict(product.facts)[key]


def _buyable(draw: Draw) -> list[Product]:
    """Return the products that are in stock."""
    shop = draw.world.shop
    return [product for product in shop.products if shop.detail(product).stock]


def longest_warranties(draw: Draw) -> Draft:
    """Compare nine products, put three into the cart and write a message about all nine."""
    groups = draw.rng.sample(_draw_groups_with_a_best(draw), 3)
    seen = [product for group in groups for product in group]
    best = [max(group, key=_warranty_years) for group in groups]
    towns = [_fact(product, "Made in") for product in seen]
    names, values = number_placeholders("product", [product.name for product in seen])
    steps: list[str] = []
    for product in seen:
        steps += find_product(product.name)
    for product in best:
        steps += buy(product)
    return Draft(
        wordings=(f"Look at these nine products in the shop, in this order: {names}. There are "
        "three of each kind. Of each kind put the one with the longest warranty into the cart. "
        "Then write a message to the shop that holds only the towns where the nine are made, in "
        "the order above, with a comma and a space between two.",),
        values=values,
        start="__SHOPPING__",
        check=all_of(
            cart_holds(*best),
            shows(_MESSAGES, text(".message-text"), exact_match=join_facts(towns)),
        ),
        solution=[*steps, *_WRITE_TO_THE_SHOP, write("Message", join_facts(towns)),
                  "click [button: Send message]", done()],
        difficulty="hard",
        needs=unique_facts(towns),
        memory_distance_pages=31,
        max_steps=MAX_STEPS,
    )  # fmt: skip


def _draw_groups_with_a_best(draw: Draw) -> list[tuple[Product, ...]]:
    """Draw three products with a unique longest warranty for each kind that has such a group."""
    of_kind: dict[str, list[Product]] = {}
    for product in _buyable(draw):
        of_kind.setdefault(product.kind, []).append(product)
    groups: list[tuple[Product, ...]] = []
    for products in of_kind.values():
        fitting = [
            group for group in combinations(products, 3)
            if sorted(map(_warranty_years, group))[-2] < max(map(_warranty_years, group))
        ]  # fmt: skip
        if fitting:
            groups.append(draw.rng.choice(fitting))
    return groups


def _warranty_years(product: Product) -> int:
    return int(_fact(product, "Warranty").split()[0])


def review_what_was_ordered(draw: Draw) -> Draft:
    """Review each product that was named on the pages of old orders."""
    shop = draw.world.shop
    orders: list[PastOrder] = []
    for order in draw.rng.sample(shop.orders, len(shop.orders)):
        if sum(len(one.lines) for one in orders) < 4:
            orders.append(order)
    bought = [(order, shop.products[number - 1]) for order in orders for number, _ in order.lines]
    stars = draw.rng.choice((2, 3, 4, 5))
    numbers, values = number_placeholders("order", [str(order.number) for order in orders])
    steps = ["click [link: Orders]"]
    for order in orders:
        steps += [f"click [link: Order {order.number}]", "go_back"]
    checks = []
    for order, product in bought:
        material = _fact(product, "Material")
        steps += [*find_product(product.name), "click [link: Write a review]",
                  choose("Rating", f"{stars} stars"), write("Title", f"Order {order.number}"),
                  write("Review", material), "click [button: Send review]"]  # fmt: skip
        page = f"__SHOPPING__/product/{product.number}"
        parts = {"stars": str(stars), "title": f"Order {order.number}", "text": material}
        checks += [shows(page, text(f".review-{part}"), exact_match=value)
                   for part, value in parts.items()]  # fmt: skip
    return Draft(
        wordings=(
            "Open my orders with these numbers in the shop and read which products were in "
            f"them: {numbers}. Then review each of those products, in the order in which you read "
            "them: {{stars}} stars, as title the word Order and the number of the order, as text the "
            "material in the product's table.",
        ),
        values={**values, "stars": stars},
        start="__SHOPPING__",
        check=all_of(*checks),
        solution=[*steps, done()],
        difficulty="hard",
        needs=unique_facts(
            name for _, one in bought for name in (one.name, _fact(one, "Material"))
        ),
        memory_distance_pages=7 * (len(bought) - 1),
        max_steps=MAX_STEPS,
    )


def parcel_for_a_seller(draw: Draw) -> Draft:
    """Order four products with a name and a town from the classifieds and a day from the wiki."""
    content, me = draw.world.classifieds, draw.world.me.handle
    listing = draw.rng.choice([x for x in content.listings if x.seller != me])
    seller = content.seller(listing.seller)
    town = draw.world.wiki.town(seller.town)
    products = draw_distinct(draw, _buyable(draw), lambda one: one.kind, 4)
    names, values = number_placeholders("product", [product.name for product in products])
    street, code = f"{draw.rng.randint(2, 97)} Mill Lane", draw.rng.randint(10000, 99999)
    basket: list[str] = []
    for product in products:
        basket += buy(product)
    return Draft(
        wordings=("Open the page of the seller of the {{listing}} in the classifieds and read Name "
        "and Home town. Look up the Market day of that town in the wiki. Then put these four "
        f"products into the cart of the shop: {names}. Go to the checkout and add another "
        "address: label Parcel, name and town of the seller, street and number {{street}}, "
        "postcode {{code}}. Send the order there by Express. The note for the courier is the "
        "market day.",),
        values={"listing": listing.title, **values, "street": street, "code": code},
        start="__CLASSIFIEDS__ |AND| __WIKIPEDIA__ |AND| __SHOPPING__",
        check=all_of(
            *order_placed(draw, *products),
            shows(new_order_url(draw), text("#address"),
                  exact_match=f"{seller.name}, {street}, {code} {seller.town}"),
            shows(new_order_url(draw), text("#shipping"), must_include=["Express"]),
            shows(new_order_url(draw), text("#note"), exact_match=town.market_day),
        ),
        solution=[*find_listing(listing.title), f"click [link: {seller.handle}]", "tab_focus [1]",
                  find_article(town.name), "tab_focus [2]", *basket,
                  "click [link: Go to checkout]", "click [link: Add another address]",
                  write("Label", "Parcel"), write("Name", seller.name),
                  write("Street and number", street), write("Town", seller.town),
                  write("Postcode", code), "click [button: Save address]",
                  choose("Send to", f"Parcel: {street}, {seller.town}"),
                  "click [radio: Express ($9.90, next day)]",
                  write("Note for the courier", town.market_day), "click [button: Place order]",
                  done()],
        difficulty="hard",
        needs=unique_facts([seller.town, seller.name, town.market_day]),
        memory_distance_pages=18,
        max_steps=MAX_STEPS,
    )  # fmt: skip


def cheapest_of_six_categories(draw: Draw) -> Draft:
    """Sort six categories and send one message with the six lowest prices."""
    shop = draw.world.shop
    categories = draw.rng.sample(shop.categories, 6)
    cheapest = [min(shop.in_category(name), key=lambda one: one.cents) for name in categories]
    prices = [money(product.cents) for product in cheapest]
    names, values = number_placeholders("category", categories)
    steps: list[str] = []
    for category in categories:
        steps += [f"click [link: {shop.name}]", f"click [link: {category}]",
                  choose("Sort by", "Lowest price"), "click [button: Apply]"]  # fmt: skip
    return Draft(
        wordings=("Find the price of the cheapest product in each of these categories of the shop, "
        f"in this order: {names}. Then write a message to the shop that holds only the six "
        "prices, in this order, with a comma and a space between two.",),
        values=values,
        start="__SHOPPING__",
        check=shows(_MESSAGES, text(".message-text"), exact_match=join_facts(prices)),
        solution=[*steps, *_WRITE_TO_THE_SHOP, write("Message", join_facts(prices)),
                  "click [button: Send message]", done()],
        difficulty="hard",
        needs=unique_facts(prices),
        memory_distance_pages=24,
        max_steps=MAX_STEPS,
    )  # fmt: skip


TEMPLATES: tuple[Template, ...] = (
    Template(longest_warranties),
    Template(review_what_was_ordered),
    Template(parcel_for_a_seller),
    Template(cheapest_of_six_categories),
)
