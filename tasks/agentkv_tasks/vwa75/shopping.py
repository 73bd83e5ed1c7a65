"""Tasks that put something into the cart, the wishlist, the comparison or an order."""

from agentkv_env.sites.shop.content import Coupon, PastOrder, Product
from agentkv_env.sites.site import money
from agentkv_tasks.task import Evaluation
from agentkv_tasks.template import Draft, Draw, Template, all_of, shows
from agentkv_tasks.vwa75.steps import choose, done, find_product, write

CART = "__SHOPPING__/cart"


# ---- what to look at ------------------------------------------------------------------------


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


# ---- what to draw ---------------------------------------------------------------------------


def _product(draw: Draw) -> Product:
    return draw.rng.choice(draw.world.shop.products)


def _of_kind(draw: Draw, count: int = 2) -> list[Product]:
    """`count` products of one kind, each of another brand."""
    kind = _product(draw).kind
    return draw.rng.sample([one for one in draw.world.shop.products if one.kind == kind], count)


def _with_coupon(draw: Draw) -> tuple[Coupon, int, Product]:
    """A coupon, its number on the deals page, and a product it is good for."""
    index = draw.rng.randrange(len(draw.world.shop.coupons))
    coupon = draw.world.shop.coupons[index]
    return coupon, index + 1, draw.rng.choice(draw.world.shop.in_category(coupon.category))


def _buy(product: Product) -> list[str]:
    return [*find_product(product.name), "click [button: Add to cart]"]


# ---- easy -----------------------------------------------------------------------------------


def add_to_cart(draw: Draw) -> Draft:
    """Search, open, add."""
    product = _product(draw)
    return Draft(
        intent="Put the {{product}} into the cart.",
        values={"product": product.name},
        start="__SHOPPING__",
        check=in_cart(product),
        solution=[*_buy(product), done()],
    )


def add_to_wishlist(draw: Draw) -> Draft:
    """Search, open, keep."""
    product = _product(draw)
    return Draft(
        intent="Add the {{product}} to my wishlist.",
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
        intent="Put the {{product}} into the cart at the club price on the tag in its photo.",
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


def several_pieces(draw: Draw) -> Draft:
    """A quantity other than one."""
    product, pieces = _product(draw), draw.rng.randint(2, 9)
    quantity = f"document.querySelector('#cart [data-product=\"{product.number}\"] .quantity')"
    return Draft(
        intent="Put {{pieces}} pieces of the {{product}} into the cart.",
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
        intent="Put the {{product}} into the cart in {{colour}}.",
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


# ---- medium ---------------------------------------------------------------------------------


def cheapest_of_a_category(draw: Draw) -> Draft:
    """Sort a category by price, take the first."""
    category = draw.rng.choice(draw.world.shop.categories)
    product = min(draw.world.shop.in_category(category), key=lambda one: one.cents)
    return Draft(
        intent="Put the cheapest product of the category {{category}} into the cart.",
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
    kind = _product(draw).kind
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
    one, other = _of_kind(draw)
    keep = "click [button: Add to comparison]"
    return Draft(
        intent="Put the {{one}} and the {{other}} next to each other on the comparison page.",
        values={"one": one.name, "other": other.name},
        start="__SHOPPING__",
        check=shows("__SHOPPING__/compare", "document.querySelector('#compare').innerText",
                    must_include=[one.name, other.name]),
        solution=[*find_product(one.name), keep, *find_product(other.name), keep, done()],
        difficulty="medium",
    )  # fmt: skip


def order_a_product(draw: Draw) -> Draft:
    """From the search box to the order."""
    product = _product(draw)
    return Draft(
        intent="Order one {{product}} for me.",
        values={"product": product.name},
        start="__HOMEPAGE__",
        check=all_of(*ordered(draw, product)),
        solution=[
            "click [link: Shop]",
            *_buy(product),
            "click [link: Go to checkout]",
            "click [button: Place order]",
            done(),
        ],
        difficulty="medium",
    )


def order_as_a_gift(draw: Draw) -> Draft:
    """Radio button, checkbox, native select."""
    product = _product(draw)
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
            *_buy(product),
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
    coupon, _, product = _with_coupon(draw)
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
            *_buy(product),
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


# ---- hard -----------------------------------------------------------------------------------


def model_on_the_label(draw: Draw) -> Draft:
    """Only in the picture: open the products of a kind one by one until the label fits."""
    wanted = _product(draw)
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
    first, second = _of_kind(draw)
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


def order_again_by_tracking_code(draw: Draw) -> Draft:
    """Only in the picture: open the orders one by one until the parcel's label fits."""
    orders = draw.world.shop.orders
    wanted: PastOrder = draw.rng.choice(orders)
    steps = ["click [link: Orders]"]
    for order in reversed(orders):
        steps.append(f"click [link: Order {order.number}]")
        if order == wanted:
            break
        steps.append("go_back")
    bought = [draw.world.shop.products[number - 1] for number, _ in wanted.lines]
    return Draft(
        intent="One of my orders has {{tracking}} on its parcel label. "
        "Order again what was in it: it is enough to put it into the cart.",
        values={"tracking": wanted.tracking},
        start="__SHOPPING__",
        check=in_cart(*bought),
        solution=[*steps, "click [button: Order again]", done()],
        difficulty="hard",
        reads_image=True,
        turns_on=wanted.tracking,
    )


def longest_warranty(draw: Draw) -> Draft:
    """Three products side by side, then the one that is best in a row."""
    choices = _of_kind(draw, 3)
    years = {one.number: int(dict(one.facts)["Warranty"].split()[0]) for one in choices}
    best = max(choices, key=lambda one: years[one.number])
    while sorted(years.values())[-2] == years[best.number]:  # two are equally good
        choices = _of_kind(draw, 3)
        years = {one.number: int(dict(one.facts)["Warranty"].split()[0]) for one in choices}
        best = max(choices, key=lambda one: years[one.number])
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


def whole_order(draw: Draw) -> Draft:
    """Two products, a coupon from a picture, a new address, and shipping: the whole way."""
    coupon, _, first = _with_coupon(draw)
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
            *_buy(first),
            *_buy(second),
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
