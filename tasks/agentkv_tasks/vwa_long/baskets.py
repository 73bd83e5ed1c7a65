"""Long shopping tasks with many products and one or a few facts for the end."""

from agentkv_env.sites.shop.content import Product, slug
from agentkv_env.sites.site import money
from agentkv_tasks.template import Draft, Draw, all_of, shows, text
from agentkv_tasks.vwa75.routes import switch_site
from agentkv_tasks.vwa75.shop import (
    EXPRESS,
    buy,
    order_placed,
    order_text_includes,
    order_text_is,
)
from agentkv_tasks.vwa75.steps import find_article, write
from agentkv_tasks.vwa_long.errands import (
    keep,
    keep_one,
    put_into_cart,
    review,
    star_words,
    wishlist_holds,
)
from agentkv_tasks.vwa_long.rounds import (
    MESSAGES,
    WRITE_TO_THE_SHOP,
    draw_listings,
    draw_products,
    number_placeholders,
)

_PLACE_ORDER = "click [button: Place order]"


def name_of_the_first_seller(draw: Draw) -> Draft:
    """Order eight products with a name from the first page as the note, after five wishes."""
    (listing,) = draw_listings(draw, 1)
    seller = draw.world.classifieds.seller(listing.seller)
    products = draw_products(draw, 13)
    wishes = keep(products[:5], "wish")
    basket = put_into_cart(products[5:])
    return Draft(
        wordings=(
            "Look at the name of the seller whose profile is open. Then add these five products to "
            f"my wishlist in the shop, in this order: {wishes.names}. After that order these eight "
            f"there, one of each: {basket.names}. Ship them by Express, and write the name of that "
            "seller as the note for the courier.",
            f"I want one order from the shop, shipped by Express, with one of each of these: "
            f"{basket.names}. The note for the courier should be the name on the seller's profile "
            f"that is open now. Before the order, {wishes.names} go onto my wishlist, in this "
            "order.",
            f"Wishlist in the shop, in this order: {wishes.names}. Then shopping, one of each, all "
            f"in one order by Express: {basket.names}. Note for the courier: the name of the "
            "seller on the first page.",
        ),
        unseen_wording="The seller whose profile is open takes in my parcels. Could you first put "
        f"{wishes.names} onto my wishlist in the shop, in this order, and then order "
        f"{basket.names}, one of each and all by Express? The courier needs that person's name as "
        "the note.",
        values={**wishes.values, **basket.values},
        start=f"__CLASSIFIEDS__/seller/{seller.handle}",
        check=all_of(
            wishes.check,
            *order_placed(draw, *products[5:]),
            order_text_includes(draw, "shipping", "Express"),
            order_text_is(draw, "note", seller.name),
        ),
        solution=[*switch_site("Shop"), *wishes.steps, *basket.steps,
                  "click [link: Go to checkout]", EXPRESS,
                  write("Note for the courier", seller.name), _PLACE_ORDER],
        needs=[seller.name],
        memory_distance_pages=len(wishes.steps) + len(basket.steps) + 4,
    )  # fmt: skip


def total_of_the_first_five(draw: Draw) -> Draft:
    """Write a message with the total of the cart before further products came into it."""
    products = draw_products(draw, 14)
    total = money(sum(product.cents for product in products[:5]))
    basket = put_into_cart(products)
    first, values = number_placeholders("first", [product.name for product in products[:5]])
    rest, more = number_placeholders("later", [product.name for product in products[5:]])
    return Draft(
        wordings=(
            f"Put these five products into the cart: {first}. Read the total of the cart. Then "
            f"put these nine into it as well: {rest}. At the end, write a message to the shop "
            "that holds only the total you read after the first five.",
            f"First come {first} into the cart, then {rest}, one of each. What was the total "
            "after the first five? Send the shop a message with that amount and nothing else.",
            f"I want all of these in my cart, in this order: {first}, then {rest}. After the "
            "fifth product the cart shows a total. When all fourteen are in, that earlier total "
            "should go to the shop as a message of its own.",
        ),
        unseen_wording=f"My sister pays for {first}, and I pay for {rest}. Could you put her five "
        "into the cart first, look at the total then, and add my nine after that? When you are "
        "done, please send the shop a message that holds her total and nothing else.",
        values={**values, **more},
        start="__SHOPPING__",
        check=all_of(basket.check, shows(MESSAGES, text(".message-text"), exact_match=total)),
        solution=[*basket.steps, *WRITE_TO_THE_SHOP, write("Message", total),
                  "click [button: Send message]"],
        needs=[total],
        memory_distance_pages=9 * 3 + 3,
    )  # fmt: skip


def rating_after_my_review(draw: Draw) -> Draft:
    """Order nine products with a rating that the task itself changes as the note."""
    first, stars, rating = _draw_review(draw)
    others = draw_products(draw, 11, but=first)
    title = draw.rng.choice(("After a week", "After a month", "My second one"))
    reviews = review([first, *others[:2]], stars, title)
    basket = put_into_cart(others[2:])
    return Draft(
        wordings=(
            f"Review these three products in the shop, in this order: {reviews.names}. Each gets "
            "{{stars}} and the title {{title}}. The rating of the first changes with that; read "
            "the new one on its page, stars and number in parentheses. Then order one of each of "
            f"these: {basket.names}. The note for the courier is that new rating, as the page "
            "shows it.",
            f"The products {reviews.names} should get a review by me, in this order, {{{{stars}}}} "
            f"each, with the title {{{{title}}}}. After that I want an order with {basket.names}, "
            "one of each. As the note for the courier it should have the rating that the first "
            "product has with my review, stars and number in parentheses, as its page shows it.",
            "To do in the shop. 1: reviews with {{stars}} and the title {{title}}, in this order: "
            f"{reviews.names}. 2: an order of {basket.names}, one of each. Note for the courier: "
            "the rating of the first reviewed product after my review, copied from its page with "
            "stars and number in parentheses.",
        ),
        unseen_wording=f"I owe the shop three reviews: {reviews.names}, in this order, each with "
        f"{{{{stars}}}} and the title {{{{title}}}}. Would you write them and then order "
        f"{basket.names} for me, one of each? For a bet with the courier, the note of the order is "
        "the rating that the first product has once my review counts: stars and number in "
        "parentheses, just as its page shows them.",
        values={**reviews.values, **basket.values, "stars": star_words(stars), "title": title},
        start="__SHOPPING__",
        check=all_of(
            reviews.check, *order_placed(draw, *others[2:]), order_text_is(draw, "note", rating)
        ),
        solution=[*reviews.steps, *basket.steps, "click [link: Go to checkout]",
                  write("Note for the courier", rating), _PLACE_ORDER],
        difficulty="medium",
        needs=[rating],
        memory_distance_pages=12 + len(basket.steps) + 1,
    )  # fmt: skip


def _draw_review(draw: Draw) -> tuple[Product, int, str]:
    """Draw a product and the stars of a review, and return the rating that the page then shows.

    The review changes the mean as shown, not only the number of reviews.
    """
    shop = draw.world.shop
    choices = []
    for product in shop.products:
        given = [review.stars for review in shop.reviews if review.product == product.number]
        for stars in (1, 2, 5):
            before, after = f"{_mean(given):.1f}", f"{_mean([*given, stars]):.1f}"
            if given and before != after:
                choices.append((product, stars, f"{after} stars ({len(given) + 1})"))
    return draw.rng.choice(choices)


def _mean(stars: list[int]) -> float:
    return sum(stars) / len(stars) if stars else 0.0


def dear_products_to_the_wishlist(draw: Draw) -> Draft:
    """Sort fifteen products by a rule, and use a phone number from the first page in an order."""
    store = draw.rng.choice(draw.world.shop.stores)
    products = draw_products(draw, 15)
    by_price = sorted(product.cents for product in products)
    limit = by_price[draw.rng.randint(5, 8)] // 100
    is_dear = {product: product.cents > 100 * limit for product in products}
    num_cheap = list(is_dear.values()).count(False)
    names, values = number_placeholders("product", [product.name for product in products])
    steps: list[str] = []
    for product in products:
        steps += keep_one(product) if is_dear[product] else buy(product)
    return Draft(
        wordings=(
            "A rule for today: whenever a product costs more than {{limit}} dollars, add it to the "
            "wishlist; otherwise put one into the cart. Take these products in this order: "
            f"{names}. Then order what is in the cart, with the phone number of the store on the "
            "first page as the note for the courier.",
            f"Go through {names} in the shop, one after the other. Up to {{{{limit}}}} dollars a "
            "product goes into the cart, above that onto the wishlist. Order the cart at the end; "
            "the note for the courier is the phone number of the store whose page is open at the "
            "start.",
            "I want one of each of these that costs at most {{limit}} dollars, all in one order, "
            f"and the dearer ones on my wishlist, in this order: {names}. The note for the courier "
            "should be the phone number of the store on the page that is open now.",
        ),
        unseen_wording=f"I made a list: {names}. Could you go through it in this order and put "
        "everything that costs at most {{limit}} dollars into the cart, and whatever costs more "
        "onto my wishlist? Please order the cart then. The courier collects it at the store on "
        "this first page and calls there before, so the note should be its phone number.",
        values={**values, "limit": limit},
        start=f"__SHOPPING__/stores/{slug(store.place)}",
        check=all_of(
            *order_placed(draw, *(one for one in products if not is_dear[one])),
            wishlist_holds([one for one in products if is_dear[one]]),
            order_text_is(draw, "note", store.phone),
        ),
        solution=[*steps, f"click [link: Cart ({num_cheap})]", "click [link: Go to checkout]",
                  write("Note for the courier", store.phone), _PLACE_ORDER],
        difficulty="medium",
        needs=[store.phone],
        memory_distance_pages=len(steps) + 2,
    )  # fmt: skip


def three_orders_for_three_mayors(draw: Draw) -> Draft:
    """Place three orders, each with another name that was read before the first."""
    towns = draw.rng.sample(draw.world.wiki.towns, 3)
    products = draw_products(draw, 12)
    groups = [products[start : start + 4] for start in (0, 4, 8)]
    order = draw.world.shop.orders[-1].number
    places, values = number_placeholders("town", [town.name for town in towns])
    lists, more = list[str](), dict[str, str | int]()
    steps: list[str] = []
    for key, town, group in zip(("a", "b", "c"), towns, groups, strict=True):
        names, named = number_placeholders(key, [product.name for product in group])
        lists.append(names)
        more |= named
        steps += [*(step for product in group for step in buy(product)),
                  "click [link: Go to checkout]", write("Note for the courier", town.mayor),
                  _PLACE_ORDER]  # fmt: skip
    return Draft(
        wordings=(
            f"Read in the wiki who is the mayor of each of these three towns: {places}. Then "
            "place three orders in the shop in the other tab. The first order holds "
            f"{lists[0]}, the second {lists[1]}, the third {lists[2]}, one of each. The note for "
            "the courier is the mayor of the first town in the first order, of the second in the "
            "second, of the third in the third.",
            f"Three orders in the shop in the other tab, one after the other: {lists[0]}; then "
            f"{lists[1]}; then {lists[2]}. Each has a name as the note for the courier, the mayors "
            f"of {places} in this order. The wiki has the mayors; look all three up before the "
            "first order.",
            f"Who are the mayors of {places}? With the answer from the wiki, order three times in "
            f"the shop in the other tab, one of each product: {lists[0]} with the first mayor as "
            f"the note for the courier, {lists[1]} with the second, {lists[2]} with the third.",
        ),
        unseen_wording=f"The mayors of {places} get presents from me, and the wiki knows who they "
        f"are. Could you look them up and then place three orders in the shop in the other tab: "
        f"{lists[0]} for the first mayor, {lists[1]} for the second and {lists[2]} for the third, "
        "one of each? The note for the courier should be the name of the mayor in question.",
        values={**values, **more},
        start="__WIKIPEDIA__ |AND| __SHOPPING__",
        check=all_of(
            *(
                check
                for number, town, group in zip((1, 2, 3), towns, groups, strict=True)
                for check in (
                    shows(f"__SHOPPING__/order/{order + number}", text("#lines"),
                          must_include=[product.name for product in group]),
                    shows(f"__SHOPPING__/order/{order + number}", text("#note"),
                          exact_match=town.mayor),
                )
            )
        ),
        solution=[*(find_article(town.name) for town in towns), "tab_focus [1]", *steps],
        difficulty="hard",
        needs=[town.mayor for town in towns],
        memory_distance_pages=44,
    )  # fmt: skip
