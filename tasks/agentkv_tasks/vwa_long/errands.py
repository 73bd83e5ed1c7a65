"""Rounds of errands: one small job for each of several threads, listings, products or articles.

A round begins on any page of its site and ends on a page with the site's search box.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from agentkv_env.sites.classifieds.content import Listing
from agentkv_env.sites.forum.content import Thread
from agentkv_env.sites.shop.content import Product
from agentkv_tasks.task import Evaluation
from agentkv_tasks.template import Draw, all_of, shows, text, texts
from agentkv_tasks.vwa75.forum import comment_posted, thread_upvoted
from agentkv_tasks.vwa75.routes import article_url
from agentkv_tasks.vwa75.shop import buy, cart_holds
from agentkv_tasks.vwa75.steps import (
    choose,
    find_article,
    find_listing,
    find_product,
    find_thread,
    write,
)
from agentkv_tasks.vwa_long.rounds import enumeration, number_placeholders

_MESSAGES = "__CLASSIFIEDS__/messages"
_OFFERS = "__CLASSIFIEDS__/offers"
_SAVED = "__CLASSIFIEDS__/saved"
_WISHLIST = "__SHOPPING__/wishlist"


@dataclass(frozen=True, slots=True)
class Round:
    """A round of errands."""

    names: str
    """Placeholders of the things that the errands are about, as a list for the goal."""
    values: Mapping[str, str | int]
    """Values of these placeholders."""
    steps: Sequence[str]
    check: Evaluation
    """Requires every errand."""


# ---- on the forum ---------------------------------------------------------------------------


def upvote(threads: Sequence[Thread]) -> Round:
    """Upvote each thread, in three steps."""
    names, values = number_placeholders("thread", [thread.title for thread in threads])
    steps: list[str] = []
    for thread in threads:
        steps += [*find_thread(thread.title), "click [button: Upvote thread]"]
    return Round(names, values, steps, all_of(*(thread_upvoted(thread.id) for thread in threads)))


def comment(threads: Sequence[Thread], remark: str) -> Round:
    """Write the same comment in each thread, in five steps; the goal names the remark itself."""
    names, values = number_placeholders("thread", [thread.title for thread in threads])
    steps: list[str] = []
    for thread in threads:
        # Posting scrolls to the new comment, far below the search box.
        steps += [*find_thread(thread.title), write("Comment", remark),
                  "click [button: Post comment]", "goto [__REDDIT__]"]  # fmt: skip
    check = all_of(*(comment_posted(thread.id, remark) for thread in threads))
    return Round(names, values, steps, check)


# ---- on the classifieds ---------------------------------------------------------------------


def save(draw: Draw, listings: Sequence[Listing]) -> Round:
    """Save each listing, in three steps."""
    names, values = number_placeholders("listing", [x.title for x in listings])
    steps: list[str] = []
    for x in listings:
        steps += [*find_listing(x.title), "click [button: Save listing]"]
    return Round(names, values, steps, saved_are(draw, listings))


def contact(listings: Sequence[Listing], message: str) -> Round:
    """Write the same message about each listing, in five steps; the goal names the message."""
    names, values = number_placeholders("listing", [x.title for x in listings])
    steps: list[str] = []
    for x in listings:
        steps += [*find_listing(x.title), "click [link: Contact seller]",
                  write("Message", message), "click [button: Send message]"]  # fmt: skip
    check = messages_are([(x, message) for x in listings])
    return Round(names, values, steps, check)


def offer(listings: Sequence[Listing], dollars: Sequence[int]) -> Round:
    """Offer `dollars` for the listings, in five steps each; the list names each sum as well."""
    values: dict[str, str | int] = {}
    steps: list[str] = []
    for number, (x, sum_) in enumerate(zip(listings, dollars, strict=True), start=1):
        values |= {f"sum{number}": sum_, f"listing{number}": x.title}
        steps += [*find_listing(x.title), "click [button: Make an offer]",
                  write("Your offer in dollars", sum_), "click [button: Send offer]"]  # fmt: skip
    names = enumeration(
        [
            f"{{{{sum{number}}}}} dollars for the {{{{listing{number}}}}}"
            for number in range(1, len(listings) + 1)
        ]
    )
    check = all_of(
        shows(_OFFERS, texts(".made a"), exact_match=" | ".join(x.title for x in listings)),
        shows(_OFFERS, texts(".made .offer-dollars"),
              exact_match=" | ".join(f"${sum_}" for sum_ in dollars)),
    )  # fmt: skip
    return Round(names, values, steps, check)


def rate(draw: Draw, listings: Sequence[Listing], stars: int, words: str) -> Round:
    """Rate the seller of each listing alike, in seven steps; the goal names stars and words."""
    names, values = number_placeholders("listing", [x.title for x in listings])
    steps: list[str] = []
    for x in listings:
        steps += [*find_listing(x.title), f"click [link: {x.seller}]", *rating(stars, words)]
    me = draw.world.me.handle
    check = all_of(
        *(
            shows(f"__CLASSIFIEDS__/seller/{x.seller}/ratings", text(".ratings tr:first-child"),
                  must_include=[me, f"{stars} stars", words])
            for x in listings
        )
    )  # fmt: skip
    return Round(names, values, steps, check)


def rating(stars: int, words: str) -> list[str]:
    """Return the steps that rate the seller whose page is open."""
    return ["click [link: Ratings]", choose("Stars", f"{stars} stars"), write("Rating", words),
            "click [button: Send rating]"]  # fmt: skip


def saved_are(draw: Draw, listings: Sequence[Listing]) -> Evaluation:
    """Require these listings, and those that were saved from the start, to be the saved ones."""
    content = draw.world.classifieds
    ids = sorted({*content.saved, *(x.id for x in listings)})
    titles = {x.id: x.title for x in content.listings}
    return shows(_SAVED, texts(".rows .title"), exact_match=" | ".join(titles[id] for id in ids))


def messages_are(sent: Sequence[tuple[Listing, str]]) -> Evaluation:
    """Require exactly these messages about listings, sent in this order."""
    newest_first = sent[::-1]
    return all_of(
        shows(_MESSAGES, texts(".message-body"),
              exact_match=" | ".join(message for _, message in newest_first)),
        shows(_MESSAGES, texts(".about"), exact_match=" | ".join(x.title for x, _ in newest_first)),
    )  # fmt: skip


# ---- in the shop ----------------------------------------------------------------------------


def put_into_cart(products: Sequence[Product]) -> Round:
    """Put one of each product into the cart, in three steps."""
    names, values = number_placeholders("product", [product.name for product in products])
    steps = [step for product in products for step in buy(product)]
    return Round(names, values, steps, cart_holds(*products))


def keep(products: Sequence[Product], key: str = "product") -> Round:
    """Add each product to the wishlist, in three steps; `key` begins the placeholders' names."""
    names, values = number_placeholders(key, [product.name for product in products])
    steps = [step for product in products for step in keep_one(product)]
    return Round(names, values, steps, wishlist_holds(products))


def keep_one(product: Product) -> list[str]:
    """Return the steps that add `product` to the wishlist."""
    return [*find_product(product.name), "click [button: Add to wishlist]"]


def wishlist_holds(products: Sequence[Product]) -> Evaluation:
    """Require the wishlist to hold exactly these products, in this order."""
    names = " | ".join(product.name for product in products)
    return shows(_WISHLIST, texts("#wishlist a"), exact_match=names)


def review(products: Sequence[Product], stars: int, title: str) -> Round:
    """Review each product alike, in six steps; the goal names stars and title."""
    names, values = number_placeholders("reviewed", [product.name for product in products])
    steps, checks = list[str](), list[Evaluation]()
    for product in products:
        steps += [*find_product(product.name), "click [link: Write a review]",
                  choose("Rating", star_words(stars)), write("Title", title),
                  "click [button: Send review]"]  # fmt: skip
        page = f"__SHOPPING__/product/{product.number}"
        checks += [shows(page, text(".review-title"), exact_match=title),
                   shows(page, text(".review-stars"), exact_match=str(stars))]  # fmt: skip
    return Round(names, values, steps, all_of(*checks))


def star_words(stars: int) -> str:
    """Return a number of stars as the shop's review form names it."""
    return f"{stars} star" if stars == 1 else f"{stars} stars"


def ask(products: Sequence[Product], question: str) -> Round:
    """Ask the same question about each product, in five steps; the goal names the question."""
    names, values = number_placeholders("product", [product.name for product in products])
    steps: list[str] = []
    for product in products:
        steps += [*find_product(product.name), "click [link: Questions]",
                  write("Your question", question), "click [button: Send question]"]  # fmt: skip
    check = all_of(
        *(
            shows(f"__SHOPPING__/product/{product.number}/questions", texts(".asked"),
                  exact_match=question)
            for product in products
        )
    )  # fmt: skip
    return Round(names, values, steps, check)


# ---- in the wiki ----------------------------------------------------------------------------


def talk(titles: Sequence[str], remark: str) -> Round:
    """Comment on the talk page of each article, in four steps; the goal names the remark."""
    names, values = number_placeholders("article", titles)
    steps: list[str] = []
    for title in titles:
        steps += [find_article(title), "click [link: Talk]", write("Comment", remark),
                  "click [button: Add comment]"]  # fmt: skip
    check = all_of(
        *(
            shows(
                article_url(title).replace("/wiki/", "/talk/"),
                texts("main p"),
                must_include=[f"(you) {remark}"],
            )
            for title in titles
        )
    )
    return Round(names, values, steps, check)
