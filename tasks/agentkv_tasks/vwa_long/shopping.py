"""Long shopping tasks that compare many pages or use facts from other sites."""

from itertools import combinations

from agentkv_env.sites.shop.content import PastOrder, Product
from agentkv_env.sites.site import money
from agentkv_tasks.template import Draft, Draw, TaskTemplate, all_of, shows, text
from agentkv_tasks.vwa75.shop import buy, cart_holds, new_order_url, order_placed
from agentkv_tasks.vwa75.steps import choose, find_article, find_listing, find_product, write
from agentkv_tasks.vwa_long import baskets
from agentkv_tasks.vwa_long.rounds import (
    MESSAGES,
    WRITE_TO_THE_SHOP,
    draw_products,
    join_facts,
    number_placeholders,
    unique_facts,
)


def _fact(product: Product, key: str) -> str:
    return dict(product.facts)[key]


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
        wordings=(
            f"Look at these nine products in the shop, in this order: {names}. There are three of "
            "each kind. Of each kind put the one with the longest warranty into the cart. Then "
            "write a message to the shop that holds only the towns where the nine are made, in the "
            "order above, with a comma and a space between two.",
            f"Which of {names} has the longest warranty of its kind? There are three kinds with "
            "three products each. When all nine pages are read, the three winners go into the "
            "cart, in the order in which they are named here. Last comes a message to the shop: "
            "the towns where the nine are made, in order, with a comma and a space between two.",
            f"Nine products of the shop, three of each kind: {names}. I want the longest warranty "
            "of each kind in the cart, one piece each, after a look at all nine pages in this "
            "order. The shop should then have a message by me with nothing but the nine towns they "
            "are made in, in the same order, with a comma and a space between two.",
        ),
        unseen_wording=f"I compare nine products, three of each kind: {names}. Could you read "
        "their pages in this order and put the one with the longest warranty of each kind into my "
        "cart? The shop mixes up its makers, so please send it a message as well that holds only "
        "the towns where the nine are made, in the same order, with a comma and a space between "
        "two.",
        values=values,
        start="__SHOPPING__",
        check=all_of(
            cart_holds(*best),
            shows(MESSAGES, text(".message-text"), exact_match=join_facts(towns)),
        ),
        solution=[*steps, *WRITE_TO_THE_SHOP, write("Message", join_facts(towns)),
                  "click [button: Send message]"],
        difficulty="hard",
        needs=unique_facts(towns),
        memory_distance_pages=29,
    )  # fmt: skip


def _draw_groups_with_a_best(draw: Draw) -> list[tuple[Product, ...]]:
    """Draw three products with a unique longest warranty for each kind that has such a group."""
    of_kind: dict[str, list[Product]] = {}
    for product in draw.world.shop.products:
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
            "them: {{stars}} stars, as title the word Order and the number of the order, as text "
            "the material in the product's table.",
            f"Everything in my orders {numbers} should get a review of {{{{stars}}}} stars, order "
            "by order, in the order of the lines. The title is the word Order with the number of "
            "the order, and the text is the material that the product's table names. All the "
            "orders come before the first review.",
            "Reviews to write, {{stars}} stars each: the products of my shop orders "
            f"{numbers}, in that order. Title: Order and the number. Text: the product's material, "
            "from its table. First read what is in the orders.",
        ),
        unseen_wording=f"The shop asks for reviews of my orders {numbers}. Will you look up which "
        "products were in them and then review those one by one, in the same order, with "
        "{{stars}} stars? The title should be the word Order and the number of the order, and the "
        "text the material that the table of the product names.",
        values={**values, "stars": stars},
        start="__SHOPPING__",
        check=all_of(*checks),
        solution=steps,
        difficulty="hard",
        needs=unique_facts(
            name for _, one in bought for name in (one.name, _fact(one, "Material"))
        ),
        memory_distance_pages=7 * len(bought) + 1,
    )


def parcel_for_a_seller(draw: Draw) -> Draft:
    """Order eight products with a name and a town from the classifieds and a day from the wiki."""
    content, me = draw.world.classifieds, draw.world.me.handle
    listing = draw.rng.choice([x for x in content.listings if x.seller != me])
    seller = content.seller(listing.seller)
    town = draw.world.wiki.town(seller.town)
    products = draw_products(draw, 8)
    names, values = number_placeholders("product", [product.name for product in products])
    street, code = f"{draw.rng.randint(2, 97)} Mill Lane", draw.rng.randint(10000, 99999)
    basket: list[str] = []
    for product in products:
        basket += buy(product)
    return Draft(
        wordings=(
            "Open the page of the seller of the {{listing}} in the classifieds and read Name and "
            "Home town. Look up the Market day of that town in the wiki. Then put these eight "
            f"products into the cart of the shop: {names}. Go to the checkout and add another "
            "address: label Parcel, name and town of the seller, street and number {{street}}, "
            "postcode {{code}}. Send the order there by Express. The note for the courier is the "
            "market day.",
            f"A parcel with {names} from the shop should go by Express to the seller of the "
            "{{listing}}, whose page in the classifieds has the name and the home town. The street "
            "is {{street}}, the postcode {{code}}. At the checkout that makes another address with "
            "the label Parcel. Before the shopping, read in the wiki on which day that town has "
            "its market: the day is the note for the courier.",
            "Who sells the {{listing}} in the classifieds, and in which town does this person "
            "live? When is the market there, according to the wiki? With the answers, order "
            f"{names} in the shop, one of each, by Express, to a new address made at the checkout: "
            "label Parcel, the seller's name, {{street}}, the home town, postcode {{code}}. Note "
            "for the courier: the market day.",
        ),
        unseen_wording="The seller of the {{listing}} in the classifieds did me a favour. Could "
        f"you order {names} in the shop as a present, one of each, by Express? It goes to "
        "{{street}}, postcode {{code}}, in the seller's home town, so at the checkout please add "
        "another address with the label Parcel and the seller's name. The courier should come on "
        "the market day of that town, which the wiki knows; look it up before the shopping and "
        "write the day as the note.",
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
                  write("Note for the courier", town.market_day), "click [button: Place order]"],
        difficulty="medium",
        needs=unique_facts([seller.town, seller.name, town.market_day]),
        memory_distance_pages=35,
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
        wordings=(
            "Find the price of the cheapest product in each of these categories of the shop, in "
            f"this order: {names}. Then write a message to the shop that holds only the six "
            "prices, in this order, with a comma and a space between two.",
            f"What is the lowest price in {names}, each a category of the shop? The six prices, in "
            "this order and with a comma and a space between two, are the whole text of a message "
            "to the shop.",
            f"Message to the shop: six prices with a comma and a space between two. They are the "
            f"lowest of the categories {names}, in this order.",
        ),
        unseen_wording="I am making a price list of this shop. Could you look for the lowest price "
        f"in each of the categories {names}, in this order? Please send the shop the six prices as "
        "a message, with a comma and a space between two and nothing else in it.",
        values=values,
        start="__SHOPPING__",
        check=shows(MESSAGES, text(".message-text"), exact_match=join_facts(prices)),
        solution=[*steps, *WRITE_TO_THE_SHOP, write("Message", join_facts(prices)),
                  "click [button: Send message]"],
        difficulty="hard",
        needs=unique_facts(prices),
        memory_distance_pages=24,
    )  # fmt: skip


TEMPLATES: tuple[TaskTemplate, ...] = (
    TaskTemplate(baskets.name_of_the_first_seller, 2),
    TaskTemplate(baskets.total_of_the_first_five, 2),
    TaskTemplate(baskets.rating_after_my_review, 2),
    TaskTemplate(baskets.dear_products_to_the_wishlist, 2),
    TaskTemplate(baskets.three_orders_for_three_mayors, 2),
    TaskTemplate(longest_warranties),
    TaskTemplate(review_what_was_ordered),
    TaskTemplate(parcel_for_a_seller, 2),
    TaskTemplate(cheapest_of_six_categories),
)
