"""Tasks that change something through forms: threads, listings, messages, profiles."""

from agentkv_tasks.template import Draft, Draw, TaskTemplate, all_of, shows, text
from agentkv_tasks.vwa75 import adverts, carried, forum, listings
from agentkv_tasks.vwa75.steps import choose, find_product, write


def review_a_product(draw: Draw) -> Draft:
    """Review a product with stars, a title and a text."""
    product = draw.rng.choice(draw.world.shop.products)
    stars = draw.rng.choice((2, 3, 4, 5))
    title, words = draw.rng.choice(
        (("As described", "Nothing to add."), ("A gift", "My sister liked it."),
         ("For the price", "It does what it should."))
    )  # fmt: skip
    return Draft(
        wordings=(
            "Review the {{product}} in the shop with {{stars}} stars, the title {{title}} and the "
            "text {{words}}",
            "Write a review of the {{product}} in the shop: rating {{stars}} stars, title "
            "{{title}}, review {{words}}",
            "The {{product}} in the shop should have a review from me. I give {{stars}} stars. "
            "The title is {{title}} and the review is {{words}}",
        ),
        unseen_wording=(
            "I promised the shop to write about the {{product}}. Could you send the review for "
            "me? It has {{stars}} stars, the title {{title}} and the text {{words}}"
        ),
        values={"product": product.name, "stars": stars, "title": f'"{title}"',
                "words": f'"{words}"'},
        start="__SHOPPING__",
        check=all_of(
            *(
                shows(f"__SHOPPING__/product/{product.number}", text(f".review-{part}"),
                      exact_match=value)
                for part, value in (("stars", str(stars)), ("title", title), ("text", words))
            )
        ),
        solution=[*find_product(product.name), "click [link: Write a review]",
                  choose("Rating", f"{stars} stars"), write("Title", title),
                  write("Review", words), "click [button: Send review]"],
        difficulty="medium",
    )  # fmt: skip


TEMPLATES: tuple[TaskTemplate, ...] = (
    TaskTemplate(forum.vote_for_a_comment),
    TaskTemplate(listings.price_of_a_listing_i_do_not_have),
    TaskTemplate(forum.subscribe_to_a_board),
    TaskTemplate(forum.change_the_bio),
    TaskTemplate(forum.comment_on_a_thread),
    TaskTemplate(listings.change_the_price_of_my_listing),
    TaskTemplate(listings.ask_a_seller),
    TaskTemplate(review_a_product),
    TaskTemplate(carried.motto_as_bio),
    TaskTemplate(adverts.serial_and_phone_of_two_photos),
    TaskTemplate(adverts.listing_with_my_phone),
    TaskTemplate(carried.codes_of_two_posters),
    TaskTemplate(carried.address_of_a_seller),
    TaskTemplate(carried.tracking_code_for_the_shop),
    TaskTemplate(carried.thread_from_three_articles),
    TaskTemplate(carried.prices_in_a_thread),
    TaskTemplate(adverts.old_listing_for_a_new_one),
    TaskTemplate(listings.comment_on_five_listings),
)
