"""Navigation tasks, which are scored by the address or the content of the final page."""

from agentkv_env.sites.shop.content import slug
from agentkv_tasks.template import Draft, Draw, TaskTemplate, all_of, reaches, shows, text
from agentkv_tasks.vwa75 import elsewhere, journeys, missing
from agentkv_tasks.vwa75.shop import open_orders_until
from agentkv_tasks.vwa75.steps import choose, find_product


def category_of_the_shop(draw: Draw) -> Draft:
    """Start at the home page and open a category of the shop."""
    category = draw.rng.choice(draw.world.shop.categories)
    return Draft(
        wordings=(
            "Go to the shop and open the category {{category}}.",
            "In the shop, take me to the section {{category}}.",
            "I want to see what the shop has in the category {{category}}.",
        ),
        unseen_wording=(
            "I am looking for ideas. Could you go to the shop and open the category {{category}}?"
        ),
        values={"category": category},
        start="__HOMEPAGE__",
        check=reaches(f"__SHOPPING__/category/{slug(category)}"),
        solution=["click [link: Shop]", f"click [link: {category}]"],
    )


def product_page(draw: Draw) -> Draft:
    """Search for a product and open its page."""
    product = draw.rng.choice(draw.world.shop.products)
    return Draft(
        wordings=(
            "Open the page of the {{product}}.",
            "Find the {{product}} in the shop and open its page.",
            "Show me the {{product}}.",
            "I want to see the page of the {{product}} in the shop.",
        ),
        unseen_wording=(
            "My sister told me about the {{product}}. Can you open its page in the shop?"
        ),
        values={"product": product.name},
        start="__SHOPPING__",
        check=reaches(f"__SHOPPING__/product/{product.number}"),
        solution=find_product(product.name),
    )


def category_of_a_coupon(draw: Draw) -> Draft:
    """Open the category of a coupon whose percentage appears only on poster images."""
    coupon = draw.rng.choice(draw.world.shop.coupons)
    return Draft(
        wordings=(
            "Go to the deals page of the shop and open the category with the coupon for "
            "{{percent}} PERCENT OFF.",
            "One coupon on the deals page of the shop says {{percent}} PERCENT OFF. Open the "
            "category of this coupon.",
            "For which category of the shop is the coupon with {{percent}} PERCENT OFF? Look at "
            "the posters under Deals and open that category.",
        ),
        unseen_wording=(
            "I heard of a coupon with {{percent}} PERCENT OFF. Would you look at the deals page "
            "of the shop and open the category of this coupon?"
        ),
        values={"percent": coupon.percent},
        start="__SHOPPING__",
        check=reaches(f"__SHOPPING__/category/{slug(coupon.category)}"),
        solution=["click [link: Deals]", f"click [link: {coupon.category}]"],
        needs=[coupon.category],
        reads_image=True,
        turns_on=f"{coupon.percent} PERCENT OFF",
    )


def order_with_a_tracking_code(draw: Draw) -> Draft:
    """Open orders one by one until the image of a parcel label shows the tracking code."""
    wanted = draw.rng.choice(draw.world.shop.orders[:-1])
    return Draft(
        wordings=(
            "Open my orders in the shop one after the other, the newest first, and stop at the "
            "one whose parcel label says {{tracking}}.",
            "Find the order whose parcel label says {{tracking}} and stay on its page. Look at "
            "the newest order first.",
            "Which of my orders in the shop has {{tracking}} on its parcel label? Open one after "
            "the other, from the newest to the oldest, and stop at the right one.",
        ),
        unseen_wording=(
            "I got a parcel with the code {{tracking}}. Could you open my orders in the shop one "
            "after the other, the newest first, and stop at the one whose parcel label says this "
            "code?"
        ),
        values={"tracking": wanted.tracking},
        start="__SHOPPING__",
        check=reaches(f"__SHOPPING__/order/{wanted.number}"),
        solution=open_orders_until(draw, wanted),
        difficulty="medium",
        reads_image=True,
        turns_on=wanted.tracking,
    )


def sorted_second_page(draw: Draw) -> Draft:
    """Sort a list, then open its second page."""
    category = draw.rng.choice(draw.world.shop.categories)
    return Draft(
        wordings=(
            "Show the second page of the category {{category}}, sorted by highest price.",
            "Open the category {{category}} of the shop, sort it by highest price and go to the "
            "next page.",
            "I want to see the products of the category {{category}} with the highest price "
            "first, and of this list the second page.",
        ),
        unseen_wording=(
            "I am looking for something good from the category {{category}} of the shop. Can you "
            "sort it by highest price and show me the second page?"
        ),
        values={"category": category},
        start="__SHOPPING__",
        check=all_of(
            shows("last", text("h1"), exact_match=category),
            shows("last", "document.querySelector('[name=sort]').value",
                  exact_match="Highest price"),
            shows("last", text(".pager span"), must_include=["Page 2 of"]),
        ),
        solution=[
            f"click [link: {category}]",
            choose("Sort by", "Highest price"),
            "click [button: Apply]",
            "click [link: Next page]",
        ],
        difficulty="medium",
    )  # fmt: skip


def cheapest_of_a_kind(draw: Draw) -> Draft:
    """Search for a kind of product and sort the results."""
    kind = draw.rng.choice(draw.world.shop.products).kind
    cheapest = min((one for one in draw.world.shop.products if one.kind == kind),
                   key=lambda one: one.cents)  # fmt: skip
    return Draft(
        wordings=(
            "Search the shop for {{kind}}, sort by lowest price and open the first {{kind}}.",
            "Search the shop for {{kind}} and open the page of the cheapest {{kind}}. Sort by "
            "lowest price to find it.",
            "Which {{kind}} has the lowest price? I want to see its page: search the shop for "
            "{{kind}} and sort the results.",
        ),
        unseen_wording=(
            "I cannot spend much. Would you search the shop for {{kind}}, sort by lowest price "
            "and open the page of the first {{kind}}?"
        ),
        values={"kind": kind},
        start="__SHOPPING__",
        check=reaches(f"__SHOPPING__/product/{cheapest.number}"),
        solution=[
            f"type [textbox: Search] [{kind}] [1]",
            choose("Sort by", "Lowest price"),
            "click [button: Apply]",
            f"click [link: {cheapest.name}]",
        ],
        needs=[cheapest.name],
        difficulty="medium",
    )


TEMPLATES = (
    TaskTemplate(category_of_the_shop),
    TaskTemplate(product_page),
    TaskTemplate(category_of_a_coupon),
    TaskTemplate(order_with_a_tracking_code),
    TaskTemplate(sorted_second_page),
    TaskTemplate(cheapest_of_a_kind),
    TaskTemplate(elsewhere.birthplace_of_a_founder),
    TaskTemplate(elsewhere.top_thread_of_a_board),
    TaskTemplate(elsewhere.page_of_a_seller),
    TaskTemplate(missing.listing_that_nobody_offers),
    TaskTemplate(missing.article_about_a_seller),
    TaskTemplate(journeys.mayor_after_an_author),
    TaskTemplate(journeys.mayor_after_a_seller),
    TaskTemplate(journeys.product_of_an_order),
    TaskTemplate(journeys.founder_after_two_labels),
    TaskTemplate(journeys.architect_after_two_photos),
    TaskTemplate(journeys.organiser_after_two_posters),
    TaskTemplate(journeys.author_with_a_model_number_in_mind),
    TaskTemplate(journeys.tour_of_four_sites),
)
