"""Tasks that reach a page: the address, or what the last page shows, is what counts."""

from agentkv_env.sites.shop.content import slug
from agentkv_tasks.template import Draft, Draw, Template, all_of, reaches, shows
from agentkv_tasks.vwa75.elsewhere import (
    article,
    article_of_a_mayor,
    birthplace_of_a_founder,
    board_of_the_forum,
    listing_page,
    page_of_a_seller,
    page_of_an_author,
    thread_page,
    top_thread_of_a_board,
    wiki_article,
)
from agentkv_tasks.vwa75.shop import look_for_order
from agentkv_tasks.vwa75.steps import choose, done, find_article, find_product


def category_of_the_shop(draw: Draw) -> Draft:
    """From the home page through the shop's front page."""
    category = draw.rng.choice(draw.world.shop.categories)
    return Draft(
        intent=draw.rng.choice(
            (
                "Go to the shop and open the category {{category}}.",
                "Take me to the {{category}} section of the shop.",
            )
        ),
        values={"category": category},
        start="__HOMEPAGE__",
        check=reaches(f"__SHOPPING__/category/{slug(category)}"),
        solution=["click [link: Shop]", f"click [link: {category}]", done()],
    )


def product_page(draw: Draw) -> Draft:
    """Search and open."""
    product = draw.rng.choice(draw.world.shop.products)
    return Draft(
        intent=draw.rng.choice(
            (
                "Open the page of the {{product}}.",
                "Find the {{product}} in the shop and open its page.",
                "Show me the {{product}}.",
            )
        ),
        values={"product": product.name},
        start="__SHOPPING__",
        check=reaches(f"__SHOPPING__/product/{product.number}"),
        solution=[*find_product(product.name), done()],
    )


def page_of_the_account(draw: Draw) -> Draft:
    """Two links that need no search."""
    link, path = draw.rng.choice(
        (("Addresses", "addresses"), ("Edit profile", "profile"), ("Messages", "messages"))
    )
    return Draft(
        intent=draw.rng.choice(
            (
                "In the shop, open the {{link}} page of my account.",
                "Open {{link}} in my shop account.",
            )
        ),
        values={"link": link},
        start="__SHOPPING__",
        check=reaches(f"__SHOPPING__/account/{path}"),
        solution=["click [link: Account]", f"click [link: {link}]", done()],
    )


def category_with_the_best_coupon(draw: Draw) -> Draft:
    """Only in the pictures: the percentages on the posters."""
    best = max(draw.world.shop.coupons, key=lambda coupon: coupon.percent)
    return Draft(
        intent=draw.rng.choice(
            (
                "Open the category for which the shop's deals page gives the largest reduction.",
                "Which category has the best coupon on the shop's deals page? Open it.",
            )
        ),
        start="__SHOPPING__",
        check=reaches(f"__SHOPPING__/category/{slug(best.category)}"),
        solution=["click [link: Deals]", f"click [link: {best.category}]", done()],
        reads_image=True,
        turns_on=f"{best.percent} PERCENT OFF",
    )


def order_with_a_tracking_code(draw: Draw) -> Draft:
    """Only in the picture: open the orders one by one until the parcel's label fits."""
    wanted = draw.rng.choice(draw.world.shop.orders[:-1])
    return Draft(
        intent="Find the order whose parcel label says {{tracking}} and stay on its page.",
        values={"tracking": wanted.tracking},
        start="__SHOPPING__",
        check=reaches(f"__SHOPPING__/order/{wanted.number}"),
        solution=[*look_for_order(draw, wanted), done()],
        difficulty="medium",
        reads_image=True,
        turns_on=wanted.tracking,
    )


def sorted_second_page(draw: Draw) -> Draft:
    """Sort first, then turn the page."""
    category = draw.rng.choice(draw.world.shop.categories)
    return Draft(
        intent="Show the second page of the category {{category}}, sorted by highest price.",
        values={"category": category},
        start="__SHOPPING__",
        check=all_of(
            shows("last", "document.querySelector('h1').innerText", exact_match=category),
            shows("last", "document.querySelector('[name=sort]').value",
                  exact_match="Highest price"),
            shows("last", "document.querySelector('.pager span').innerText",
                  exact_match="Page 2 of 2"),
        ),
        solution=[
            f"click [link: {category}]",
            choose("Sort by", "Highest price"),
            "click [button: Apply]",
            "click [link: Next page]",
            done(),
        ],
        difficulty="medium",
    )  # fmt: skip


def cheapest_of_a_kind(draw: Draw) -> Draft:
    """Search for a kind of thing and compare prices."""
    kind = draw.rng.choice(draw.world.shop.products).kind
    cheapest = min((one for one in draw.world.shop.products if one.kind == kind),
                   key=lambda one: one.cents)  # fmt: skip
    return Draft(
        intent="Search the shop for {{kind}} and open the page of the cheapest {{kind}}.",
        values={"kind": kind},
        start="__SHOPPING__",
        check=reaches(f"__SHOPPING__/product/{cheapest.number}"),
        solution=[
            f"type [textbox: Search] [{kind}] [1]",
            choose("Sort by", "Lowest price"),
            "click [button: Apply]",
            f"click [link: {cheapest.name}]",
            done(),
        ],
        difficulty="medium",
    )


def where_a_product_is_made(draw: Draw) -> Draft:
    """A name read in the shop, searched for in the wiki."""
    product = draw.rng.choice(draw.world.shop.products)
    place = dict(product.facts)["Made in"]
    return Draft(
        intent="Open the wiki's article about the town in which the shop's {{product}} is made.",
        values={"product": product.name},
        start="__HOMEPAGE__",
        check=reaches(article(place)),
        solution=[
            "click [link: Shop]",
            *find_product(product.name),
            "click [link: All sites]",
            "click [link: Wiki]",
            find_article(place),
            done(),
        ],
        difficulty="hard",
        memory_distance_pages=2,
    )


TEMPLATES = (
    Template(category_of_the_shop),
    Template(product_page, 2),
    Template(page_of_the_account),
    Template(category_with_the_best_coupon),
    Template(order_with_a_tracking_code),
    Template(sorted_second_page),
    Template(cheapest_of_a_kind),
    Template(where_a_product_is_made),
    Template(wiki_article, 2),
    Template(article_of_a_mayor),
    Template(birthplace_of_a_founder),
    Template(board_of_the_forum),
    Template(thread_page),
    Template(page_of_an_author),
    Template(top_thread_of_a_board),
    Template(listing_page),
    Template(page_of_a_seller),
)
