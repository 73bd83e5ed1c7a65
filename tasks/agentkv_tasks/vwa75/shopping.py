"""Tasks that add products to the cart, the wishlist or an order."""

from agentkv_env.sites.shop.catalogue import search
from agentkv_env.sites.shop.stock import CATEGORIES
from agentkv_env.sites.site import money
from agentkv_tasks.template import Draft, Draw, TaskTemplate, all_of, reaches, says, shows, text
from agentkv_tasks.vwa75 import gifts, orders
from agentkv_tasks.vwa75.shop import CART, buy, cart_holds, draw_product
from agentkv_tasks.vwa75.steps import choose, done, find_article, find_product, write


def add_to_cart(draw: Draw) -> Draft:
    """Search for a product and add it to the cart."""
    product = draw_product(draw)
    return Draft(
        wordings=(
            "Put the {{product}} into the cart.",
            "Please add one {{product}} to my cart.",
            "I need the {{product}}: find it in the shop and put it into the cart.",
        ),
        unseen_wording="I have broken my {{product}}. Could you put a new one into my cart?",
        values={"product": product.name},
        start="__SHOPPING__",
        check=cart_holds(product),
        solution=buy(product),
    )


def add_to_wishlist(draw: Draw) -> Draft:
    """Search for a product and add it to the wishlist."""
    product = draw_product(draw)
    return Draft(
        wordings=(
            "Add the {{product}} to my wishlist.",
            "Find the {{product}} and keep it on the wishlist for later.",
            "Save the {{product}} on my wishlist, please.",
            "I want the {{product}}, but not today. It should be on my wishlist.",
        ),
        unseen_wording="My birthday is soon. Would you add the {{product}} to my wishlist?",
        values={"product": product.name},
        start="__SHOPPING__",
        check=all_of(
            shows("__SHOPPING__/wishlist", text("#wishlist"), must_include=[product.name]),
            shows("__SHOPPING__/wishlist", "document.querySelectorAll('#wishlist tr').length",
                  exact_match="1"),
        ),
        solution=[*find_product(product.name), "click [button: Add to wishlist]"],
    )  # fmt: skip


def thing_the_shop_does_not_sell(draw: Draw) -> Draft:
    """Ask for a product that the search does not find."""
    shop = draw.world.shop
    elsewhere = [
        kind.name
        for category, kinds in CATEGORIES.items()
        if category not in shop.categories
        for kind in kinds
        if " " not in kind.name and not search(shop, kind.name)
    ]
    thing = draw.rng.choice(elsewhere)
    return Draft(
        wordings=(
            "Search the shop for {{thing}} and put the first one into the cart. Answer N/A if the "
            "shop has none.",
            "I need a {{thing}}. Search for it in the shop and put one into the cart. Answer N/A "
            "if nothing is found.",
            "Does the shop sell a {{thing}}? Then the first one should be in my cart. Answer N/A "
            "if the search finds none.",
        ),
        unseen_wording=(
            "We have no {{thing}} at home. Can you search the shop for one and put it into my "
            "cart? Please answer N/A if nothing is found."
        ),
        values={"thing": thing},
        start="__SHOPPING__",
        check=all_of(
            says(exact_match="N/A"),
            reaches(f"__SHOPPING__/search?q={thing}", note="GOLD in PRED"),
        ),
        solution=[f"type [textbox: Search] [{thing}] [1]", done("N/A")],
    )  # fmt: skip


def pieces_in_a_colour(draw: Draw) -> Draft:
    """Order several pieces in a color chosen from a native select."""
    product = draw.rng.choice([one for one in draw.world.shop.products if len(one.colours) > 1])
    colour, pieces = draw.rng.choice(product.colours[1:]), draw.rng.randint(2, 9)
    return Draft(
        wordings=(
            "Put the {{product}} into the cart: colour {{colour}}, quantity {{pieces}}.",
            "Add the {{product}} to the cart in {{colour}}. The quantity is {{pieces}}.",
            "I need {{pieces}} pieces of the {{product}} in my cart, all of them in the colour "
            "{{colour}}.",
        ),
        unseen_wording=(
            "Our club needs something new. Could you put {{pieces}} pieces of the {{product}} "
            "into my cart, in the colour {{colour}}?"
        ),
        values={"product": product.name, "colour": colour, "pieces": pieces},
        start="__SHOPPING__",
        check=all_of(
            cart_holds(product, pieces=pieces),
            shows(CART, text("#cart .options"), must_include=[colour]),
        ),
        solution=[
            *find_product(product.name),
            choose("Colour", colour),
            write("Quantity", pieces),
            "click [button: Add to cart]",
        ],
    )  # fmt: skip


def pay_the_price_on_the_tag(draw: Draw) -> Draft:
    """Use the club price, which appears only in the image of a price tag."""
    product = draw.rng.choice([one for one in draw.world.shop.products if one.club_cents])
    assert product.club_cents is not None
    price = money(product.club_cents)
    return Draft(
        wordings=(
            "Put the {{product}} into the cart at the club price on the tag in its photo.",
            "The tag in the photo of the {{product}} shows a club price. Buy at that price: put "
            "it into the cart.",
            "I want to pay the club price for the {{product}}. It is on the tag in the photo, and "
            "the product should be in my cart at that price.",
        ),
        unseen_wording=(
            "The photo of the {{product}} shows a tag with a club price. Can you put the product "
            "into my cart at that price?"
        ),
        values={"product": product.name},
        start="__SHOPPING__",
        check=all_of(
            cart_holds(product),
            shows(CART, text("#total"), exact_match=price),
        ),
        solution=[
            *find_product(product.name),
            f"type [textbox: Club price on the tag] [{price}] [1]",
        ],
        reads_image=True,
        turns_on=price,
        needs=[price],
    )


def cheapest_of_a_category(draw: Draw) -> Draft:
    """Sort a category by price and take the first product."""
    category = draw.rng.choice(draw.world.shop.categories)
    product = min(draw.world.shop.in_category(category), key=lambda one: one.cents)
    return Draft(
        wordings=(
            "Open the category {{category}}, sort by Lowest price, and put the first product into "
            "the cart.",
            "Find the product with the Lowest price in the category {{category}} and put it into "
            "the cart.",
            "I want the first product of the category {{category}} in my cart, with the list "
            "sorted by Lowest price.",
        ),
        unseen_wording=(
            "Anything from the category {{category}} will do. Would you sort it by Lowest price "
            "and put the first product into my cart?"
        ),
        values={"category": category},
        start="__SHOPPING__",
        check=cart_holds(product),
        solution=[
            f"click [link: {category}]",
            choose("Sort by", "Lowest price"),
            "click [button: Apply]",
            f"click [link: {product.name}]",
            "click [button: Add to cart]",
        ],
        difficulty="medium",
        needs=[product.name],
    )  # fmt: skip


def model_on_the_label(draw: Draw) -> Draft:
    """Open products of a kind until the image of a label shows the model number."""
    wanted = draw_product(draw)
    of_kind = [one for one in draw.world.shop.products if one.kind == wanted.kind]
    steps = [f"type [textbox: Search] [{wanted.kind}] [1]"]
    for product in of_kind:
        steps.append(f"click [link: {product.name}]")
        if product == wanted:
            break
        steps.append("go_back")
    return Draft(
        wordings=(
            "Search the shop for {{kind}}. One of them has the model number {{model}} on its "
            "label. Put that one into the cart.",
            "I need the {{kind}} with {{model}} on its label. Search for {{kind}}, open one after "
            "the other, and put the right one into the cart.",
            "Which {{kind}} in the shop has the model number {{model}} on its label? Search for "
            "{{kind}}, look at the labels, and put the right one into the cart.",
        ),
        unseen_wording=(
            "My old {{kind}} had the model number {{model}}. Could you search the shop for "
            "{{kind}}, find the one with this number on its label, and put it into my cart?"
        ),
        values={"kind": wanted.kind, "model": wanted.model},
        start="__SHOPPING__",
        check=cart_holds(wanted),
        solution=[*steps, "click [button: Add to cart]"],
        difficulty="medium",
        reads_image=True,
        turns_on=wanted.model,
        needs=[wanted.name],
    )


def product_of_a_founder(draw: Draw) -> Draft:
    """Find a founder's company in the wiki and one of its products in the shop."""
    product = draw_product(draw)
    maker = next(maker for maker in draw.world.wiki.makers if maker.name == product.brand)
    return Draft(
        wordings=(
            "Find the article {{founder}} in the wiki. It says which company this person founded. "
            "Then go to the shop in the other tab and put the {{kind}} of that company into the "
            "cart.",
            "Which company did {{founder}} found? The wiki says so. Search the shop in the other "
            "tab for that company and {{kind}}, and put it into the cart.",
            "I want a {{kind}} from the shop in the other tab in my cart, made by the company "
            "that {{founder}} founded. Look up the company in the wiki first.",
        ),
        unseen_wording=(
            "I have read about {{founder}}. Could you look up in the wiki which company this "
            "person founded, and then put the {{kind}} of that company into my cart in the shop "
            "in the other tab?"
        ),
        values={"founder": maker.founder, "kind": product.kind},
        start="__WIKIPEDIA__ |AND| __SHOPPING__",
        check=cart_holds(product),
        solution=[
            find_article(maker.founder),
            "tab_focus [1]",
            f"type [textbox: Search] [{maker.name} {product.kind}] [1]",
            f"click [link: {product.name}]",
            "click [button: Add to cart]",
        ],
        difficulty="medium",
        memory_distance_pages=1,
        needs=[maker.name, product.name],
    )  # fmt: skip


TEMPLATES = (
    TaskTemplate(add_to_cart),
    TaskTemplate(add_to_wishlist),
    TaskTemplate(thing_the_shop_does_not_sell),
    TaskTemplate(orders.cancel_an_order),
    TaskTemplate(pieces_in_a_colour),
    TaskTemplate(pay_the_price_on_the_tag),
    TaskTemplate(orders.coupon_in_the_goal, 2),
    TaskTemplate(cheapest_of_a_category),
    TaskTemplate(model_on_the_label),
    TaskTemplate(product_of_a_founder),
    TaskTemplate(orders.coupon_from_the_poster),
    TaskTemplate(orders.coupon_and_model_number),
    TaskTemplate(orders.product_of_an_old_order),
    TaskTemplate(orders.products_of_two_orders),
    TaskTemplate(gifts.phone_for_the_courier),
    TaskTemplate(gifts.motto_for_the_courier),
    TaskTemplate(gifts.gift_to_a_mayor),
    TaskTemplate(orders.whole_order),
)
