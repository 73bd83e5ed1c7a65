"""Impossible tasks, solved by answering N/A on the page that shows they are impossible.

The check includes the page, so giving up elsewhere scores nothing.
"""

from agentkv_tasks.task import Evaluation
from agentkv_tasks.template import Draft, Draw, all_of, reaches, says, shows
from agentkv_tasks.vwa75.routes import (
    article_url,
    draw_authors,
    draw_listings,
    find_author,
    find_seller,
    switch_site,
)
from agentkv_tasks.vwa75.steps import done, find_article, find_product

_NOTHING = says(exact_match="N/A")


def _shows_search(words: str) -> Evaluation:
    """Require the final page to show the search results for these words."""
    return shows("last", "document.querySelector('[name=q]').value", exact_match=words)


def listing_that_nobody_offers(draw: Draw) -> Draft:
    """Look for a listing in a color that nobody offers."""
    brand = draw.rng.choice(draw.world.region.brands)
    title = f"Purple {brand} {draw.rng.choice(('canoe', 'piano', 'ladder', 'desk', 'toaster'))}"
    return Draft(
        wordings=(
            "Search the classifieds for the {{listing}} and open its page. Answer N/A if nothing "
            "is found.",
            "Find the {{listing}} on the classifieds and open it. Answer N/A if your search finds "
            "none.",
            "I want to see the page of the {{listing}} on the classifieds. Search for it, and "
            "answer N/A if there is none.",
        ),
        unseen_wording=(
            "A friend told me about a {{listing}} on the classifieds. Could you search for it and "
            "open its page? Please answer N/A if nothing is found."
        ),
        values={"listing": title},
        start="__CLASSIFIEDS__",
        check=all_of(_NOTHING, _shows_search(title)),
        solution=[f"type [textbox: Search listings] [{title}] [1]", done("N/A")],
    )


def article_about_a_seller(draw: Draw) -> Draft:
    """Look for a wiki article about a seller, who has none."""
    (listing,) = draw_listings(draw, "price", 1)
    seller = draw.world.classifieds.seller(listing.seller)
    return Draft(
        wordings=(
            "Look on the classifieds for the name of the seller of the {{listing}}. Then go to "
            "the wiki, search for this name and open the article. Answer N/A if nothing is found.",
            "What is the name of the seller of the {{listing}} on the classifieds? Open the "
            "article about this person in the wiki. Answer N/A if your search finds none.",
            "I want to read the wiki article about the person who sells the {{listing}} on the "
            "classifieds. The page of the seller has the name to search for. Answer N/A if the "
            "wiki has no such article.",
        ),
        unseen_wording=(
            "The seller of the {{listing}} on the classifieds may be famous. Can you look up the "
            "seller's name there, search the wiki for it and open the article? Please answer N/A "
            "if nothing is found."
        ),
        values={"listing": listing.title},
        start="__HOMEPAGE__",
        check=all_of(_NOTHING, _shows_search(seller.name)),
        solution=[
            "click [link: Classifieds]",
            *find_seller(listing),
            *switch_site("Wiki"),
            find_article(seller.name),
            done("N/A"),
        ],
        needs=[listing.seller, seller.name],
        difficulty="medium",
        memory_distance_pages=2,
    )


def fact_the_wiki_does_not_have(draw: Draw) -> Draft:
    """Ask for a fact that an existing wiki article lacks."""
    figure = draw.rng.choice(draw.world.wiki.figures)
    fact = draw.rng.choice(("shoe size", "phone number"))
    return Draft(
        wordings=(
            "What is the {{fact}} of {{figure}}? Answer N/A if the wiki does not say.",
            "Look up the {{fact}} of {{figure}} in the wiki. Answer N/A if there is none.",
            "The wiki has an article about {{figure}}. I want to know one thing, the {{fact}}. "
            "Answer N/A if it is not there.",
        ),
        unseen_wording=(
            "I am curious about {{figure}}. Could you look up the {{fact}} in the wiki? Please "
            "answer N/A if the article does not say."
        ),
        values={"fact": fact, "figure": figure.name},
        start="__WIKIPEDIA__",
        check=all_of(_NOTHING, reaches(article_url(figure.name))),
        solution=[find_article(figure.name), done("N/A")],
    )


def fact_the_shop_does_not_have(draw: Draw) -> Draft:
    """Ask for a fact that an existing product page lacks."""
    product = draw.rng.choice(draw.world.shop.products)
    fact = draw.rng.choice(("inventor", "year of the invention"))
    return Draft(
        wordings=(
            "What is the {{fact}} of the {{product}} in the shop? Answer N/A if its page does not "
            "say.",
            "Open the page of the {{product}} in the shop and answer with the {{fact}}. Answer "
            "N/A if there is none.",
            "I want to know the {{fact}} of a product in the shop, the {{product}}. Answer N/A if "
            "its page does not say.",
        ),
        unseen_wording=(
            "I have a question about the {{product}} in the shop. Would you look for the {{fact}} "
            "on its page? Please answer N/A if the page does not say."
        ),
        values={"fact": fact, "product": product.name},
        start="__SHOPPING__",
        check=all_of(_NOTHING, reaches(f"__SHOPPING__/product/{product.number}")),
        solution=[*find_product(product.name), done("N/A")],
    )


def fact_an_author_does_not_tell(draw: Draw) -> Draft:
    """Ask for a fact that an existing user page lacks."""
    ((thread, _),) = draw_authors(draw, 1)
    fact = draw.rng.choice(("email address", "phone number"))
    return Draft(
        wordings=(
            "What is the {{fact}} of the author of the forum thread {{thread}}? Answer N/A if the "
            "page of the author does not say.",
            "Open the page of the author of the thread {{thread}} and answer with the {{fact}}. "
            "Answer N/A if the page does not say.",
            "I want to know the {{fact}} of the person who wrote the forum thread {{thread}}. The "
            "page of the author may have it. Answer N/A if it does not.",
        ),
        unseen_wording=(
            "I have to reach the author of the forum thread {{thread}}. Can you find the {{fact}} "
            "on the page of the author? Please answer N/A if the page does not say."
        ),
        values={"fact": fact, "thread": thread.title},
        start="__REDDIT__",
        check=all_of(_NOTHING, reaches(f"__REDDIT__/user/{thread.author}")),
        solution=[*find_author(thread), done("N/A")],
        needs=[thread.author],
        difficulty="medium",
    )
