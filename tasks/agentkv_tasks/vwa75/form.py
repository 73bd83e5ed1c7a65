"""Tasks that change something through forms: threads, listings, messages, profiles."""

from agentkv_tasks.template import Draft, Draw, Template, all_of, shows
from agentkv_tasks.vwa75.adverts import (
    listing_with_my_phone,
    old_listing_for_a_new_one,
    serial_and_phone_of_two_photos,
)
from agentkv_tasks.vwa75.carried import (
    address_of_a_seller,
    codes_of_two_posters,
    motto_as_bio,
    prices_in_a_thread,
    thread_from_three_articles,
    tracking_code_for_the_shop,
)
from agentkv_tasks.vwa75.forum import (
    change_the_bio,
    comment_on_a_thread,
    subscribe_to_a_board,
    text,
    vote_for_a_comment,
)
from agentkv_tasks.vwa75.listings import (
    ask_a_seller,
    change_the_price_of_my_listing,
    comment_on_five_listings,
    price_of_a_listing_i_do_not_have,
)
from agentkv_tasks.vwa75.steps import choose, done, find_product, write


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
                  write("Review", words), "click [button: Send review]", done()],
        difficulty="medium",
    )  # fmt: skip


TEMPLATES: tuple[Template, ...] = (
    Template(vote_for_a_comment),
    Template(price_of_a_listing_i_do_not_have),
    Template(subscribe_to_a_board),
    Template(change_the_bio),
    Template(comment_on_a_thread),
    Template(change_the_price_of_my_listing),
    Template(ask_a_seller),
    Template(review_a_product),
    Template(motto_as_bio),
    Template(serial_and_phone_of_two_photos),
    Template(listing_with_my_phone),
    Template(codes_of_two_posters),
    Template(address_of_a_seller),
    Template(tracking_code_for_the_shop),
    Template(thread_from_three_articles),
    Template(prices_in_a_thread),
    Template(old_listing_for_a_new_one),
    Template(comment_on_five_listings),
)
