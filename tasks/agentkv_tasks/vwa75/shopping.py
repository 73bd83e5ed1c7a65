"""Tasks that put something into the cart, the wishlist, the comparison or an order."""

from agentkv_env.sites.shop.content import Product
from agentkv_env.sites.site import money
from agentkv_tasks.template import Draft, Draw, Template, all_of, shows
from agentkv_tasks.vwa75.orders import (
    cancel_an_order,
    coupon_from_the_poster,
    order_a_product,
    order_again_by_tracking_code,
    order_as_a_gift,
    whole_order,
)
from agentkv_tasks.vwa75.shop import CART, any_product, buy, in_cart, of_one_kind
from agentkv_tasks.vwa75.steps import choose, done, find_product, write


def add_to_cart(draw: Draw) -> Draft:
    """Search, open, add."""
    product = any_product(draw)
    return Draft(
        intent=draw.rng.choice(
            (
                "Put the {{product}} into the cart.",
                "Please add one {{product}} to my cart.",
                "I need the {{product}}: find it in the shop and put it into the cart.",
            )
        ),
        values={"product": product.name},
        start="__SHOPPING__",
        check=in_cart(product),
        solution=[*buy(product), done()],
    )


def add_to_wishlist(draw: Draw) -> Draft:
    """Search, open, keep."""
    product = any_product(draw)
    return Draft(
        intent=draw.rng.choice((
            "Add the {{product}} to my wishlist.",
            "Find the {{product}} and keep it on the wishlist for later.",
            "Save the {{product}} on my wishlist, please.",
        )),
        values={"product": product.name},
        start="__SHOPPING__",
        check=shows("__SHOPPING__/wishlist", "document.querySelector('#wishlist').innerText",
                    must_include=[product.name]),
        solution=[*find_product(product.name), "click [button: Add to wishlist]", done()],
    )  # fmt: skip


def pay_the_price_on_the_tag(draw: Draw) -> Draft:
    """Only in the picture: the club price."""
    product = draw.rng.choice([one for one in draw.world.shop.products if one.club_cents])
    assert product.club_cents is not None
    price = money(product.club_cents)
    return Draft(
        intent=draw.rng.choice(
            (
                "Put the {{product}} into the cart at the club price on the tag in its photo.",
                "The tag in the photo of the {{product}} shows a club price. Buy at that price: "
                "put it into the cart.",
            )
        ),
        values={"product": product.name},
        start="__SHOPPING__",
        check=all_of(
            in_cart(product),
            shows(CART, "document.querySelector('#total').innerText", exact_match=price),
        ),
        solution=[
            *find_product(product.name),
            f"type [textbox: Club price on the tag] [{price}] [1]",
            done(),
        ],
        reads_image=True,
        turns_on=price,
    )


def several_pieces(draw: Draw) -> Draft:
    """A quantity other than one."""
    product, pieces = any_product(draw), draw.rng.randint(2, 9)
    quantity = f"document.querySelector('#cart [data-product=\"{product.number}\"] .quantity')"
    return Draft(
        intent=draw.rng.choice((
            "Put {{pieces}} pieces of the {{product}} into the cart.",
            "We need {{pieces}} of the {{product}}. Put them into the cart.",
        )),
        values={"pieces": pieces, "product": product.name},
        start="__SHOPPING__",
        check=all_of(
            in_cart(product), shows(CART, f"{quantity}.value", exact_match=str(pieces))
        ),
        solution=[
            *find_product(product.name),
            write("Quantity", pieces),
            "click [button: Add to cart]",
            done(),
        ],
    )  # fmt: skip


def in_a_colour(draw: Draw) -> Draft:
    """A choice in a native select."""
    product = draw.rng.choice([one for one in draw.world.shop.products if len(one.colours) > 1])
    colour = draw.rng.choice(product.colours[1:])
    return Draft(
        intent=draw.rng.choice((
            "Put the {{product}} into the cart in {{colour}}.",
            "Add a {{product}} to the cart and choose the colour {{colour}}.",
        )),
        values={"product": product.name, "colour": colour},
        start="__SHOPPING__",
        check=all_of(
            in_cart(product),
            shows(CART, "document.querySelector('#cart .options').innerText",
                  must_include=[colour]),
        ),
        solution=[
            *find_product(product.name),
            choose("Colour", colour),
            "click [button: Add to cart]",
            done(),
        ],
    )  # fmt: skip


def cheapest_of_a_category(draw: Draw) -> Draft:
    """Sort a category by price, take the first."""
    category = draw.rng.choice(draw.world.shop.categories)
    product = min(draw.world.shop.in_category(category), key=lambda one: one.cents)
    return Draft(
        intent=draw.rng.choice(
            (
                "Put the cheapest product of the category {{category}} into the cart.",
                "Find out what costs least in the category {{category}} and put it into the cart.",
            )
        ),
        values={"category": category},
        start="__SHOPPING__",
        check=in_cart(product),
        solution=[
            f"click [link: {category}]",
            choose("Sort by", "Lowest price"),
            "click [button: Apply]",
            f"click [link: {product.name}]",
            "click [button: Add to cart]",
            done(),
        ],
        difficulty="medium",
    )


def dearest_of_a_kind(draw: Draw) -> Draft:
    """Search for a kind of thing, sort by price, keep the first."""
    kind = any_product(draw).kind
    product = max((one for one in draw.world.shop.products if one.kind == kind),
                  key=lambda one: one.cents)  # fmt: skip
    return Draft(
        intent="Search the shop for {{kind}} and add the most expensive {{kind}} to my wishlist.",
        values={"kind": kind},
        start="__SHOPPING__",
        check=shows("__SHOPPING__/wishlist", "document.querySelector('#wishlist').innerText",
                    must_include=[product.name]),
        solution=[
            f"type [textbox: Search] [{kind}] [1]",
            choose("Sort by", "Highest price"),
            "click [button: Apply]",
            f"click [link: {product.name}]",
            "click [button: Add to wishlist]",
            done(),
        ],
        difficulty="medium",
    )  # fmt: skip


def compare_two(draw: Draw) -> Draft:
    """The same three steps twice."""
    one, other = of_one_kind(draw)
    keep = "click [button: Add to comparison]"
    return Draft(
        intent=draw.rng.choice((
            "Put the {{one}} and the {{other}} next to each other on the comparison page.",
            "Add the {{one}} and the {{other}} to the comparison.",
        )),
        values={"one": one.name, "other": other.name},
        start="__SHOPPING__",
        check=shows("__SHOPPING__/compare", "document.querySelector('#compare').innerText",
                    must_include=[one.name, other.name]),
        solution=[*find_product(one.name), keep, *find_product(other.name), keep, done()],
        difficulty="medium",
    )  # fmt: skip


def model_on_the_label(draw: Draw) -> Draft:
    """Only in the picture: open the products of a kind one by one until the label fits."""
    wanted = any_product(draw)
    of_kind = [one for one in draw.world.shop.products if one.kind == wanted.kind]
    steps = [f"type [textbox: Search] [{wanted.kind}] [1]"]
    for product in of_kind:
        steps.append(f"click [link: {product.name}]")
        if product == wanted:
            break
        steps.append("go_back")
    return Draft(
        intent="One {{kind}} in the shop has the model number {{model}} on its label. "
        "Put that one into the cart.",
        values={"kind": wanted.kind, "model": wanted.model},
        start="__SHOPPING__",
        check=in_cart(wanted),
        solution=[*steps, "click [button: Add to cart]", done()],
        difficulty="medium",
        reads_image=True,
        turns_on=wanted.model,
    )


def the_heavier_one(draw: Draw) -> Draft:
    """Only in the pictures: two weights, to be compared across pages."""
    first, second = of_one_kind(draw)
    heavier = max((first, second), key=lambda one: one.grams)
    steps = [*find_product(first.name), *find_product(second.name)]
    if heavier == first:
        steps += find_product(first.name)
    return Draft(
        intent="Look at the labels of the {{first}} and the {{second}}, "
        "and put the heavier of the two into the cart.",
        values={"first": first.name, "second": second.name},
        start="__SHOPPING__",
        check=in_cart(heavier),
        solution=[*steps, "click [button: Add to cart]", done()],
        difficulty="hard",
        reads_image=True,
        turns_on=f"{heavier.grams} grams",
        memory_distance_pages=2,
    )


def longest_warranty(draw: Draw) -> Draft:
    """Three products side by side, then the one that is best in a row."""
    choices = of_one_kind(draw, 3)
    while len({_warranty(one) for one in choices}) < 3:
        choices = of_one_kind(draw, 3)
    best = max(choices, key=_warranty)
    steps: list[str] = []
    for product in choices:
        steps += [*find_product(product.name), "click [button: Add to comparison]"]
    return Draft(
        intent="Compare the {{a}}, the {{b}} and the {{c}}, "
        "and put the one with the longest warranty into the cart.",
        values=dict(zip("abc", (one.name for one in choices), strict=True)),
        start="__SHOPPING__",
        check=in_cart(best),
        solution=[
            *steps,
            f"click [link: {best.name}]",
            "click [button: Add to cart]",
            done(),
        ],
        difficulty="hard",
    )


def _warranty(product: Product) -> int:
    return int(dict(product.facts)["Warranty"].split()[0])


TEMPLATES = (
    Template(add_to_cart, 2),
    Template(add_to_wishlist, 2),
    Template(pay_the_price_on_the_tag),
    Template(cancel_an_order),
    Template(several_pieces),
    Template(in_a_colour),
    Template(cheapest_of_a_category),
    Template(dearest_of_a_kind),
    Template(compare_two),
    Template(order_a_product),
    Template(order_as_a_gift),
    Template(coupon_from_the_poster),
    Template(model_on_the_label),
    Template(the_heavier_one),
    Template(order_again_by_tracking_code),
    Template(longest_warranty),
    Template(whole_order),
)
