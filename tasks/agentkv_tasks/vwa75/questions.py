"""Tasks that ask the classifieds, the forum or the shop for something. Part of `information`."""

from agentkv_tasks.template import Draft, Draw, says
from agentkv_tasks.vwa75.steps import choose, done, find_listing, find_product, find_thread


def fact_in_a_photo(draw: Draw) -> Draft:
    """Only in the picture: what is written on a card in a listing's photo."""
    kind, words = (("serial", "serial number"), ("phone", "phone number"))[draw.instance % 2]
    listings = draw.world.classifieds.listings
    listing = draw.rng.choice([x for x in listings if x.photo.kind == kind])
    return Draft(
        intent=draw.rng.choice(
            (
                "What is the {{words}} in the photo of the {{listing}} on the classifieds?",
                "Read the {{words}} in the photo of the {{listing}}.",
            )
        ),
        values={"words": words, "listing": listing.title},
        start="__CLASSIFIEDS__",
        check=says(must_include=[listing.photo.fact]),
        solution=[*find_listing(listing.title), done(listing.photo.fact)],
        reads_image=True,
        turns_on=listing.photo.fact,
    )


def cheapest_in_a_category(draw: Draw) -> Draft:
    """Browse, sort, read the first line."""
    content = draw.world.classifieds
    category = draw.rng.choice(content.categories)
    inside = [listing for listing in content.listings if listing.category == category.slug]
    cheapest = min(inside, key=lambda listing: listing.price)
    return Draft(
        intent="How many dollars is the cheapest listing in the category {{category}} "
        "on the classifieds?",
        values={"category": category.name},
        start="__CLASSIFIEDS__",
        check=says(must_include=[str(cheapest.price)]),
        solution=[
            f"click [link: {category.name}]",
            choose("Sort by", "Price: low to high"),
            "click [button: Apply]",
            done(cheapest.price),
        ],
        difficulty="medium",
    )


def home_town_of_a_seller(draw: Draw) -> Draft:
    """From the listing to its seller, who lives elsewhere than the thing is."""
    content = draw.world.classifieds
    me = draw.world.me.handle
    listing = draw.rng.choice(
        [x for x in content.listings if x.seller != me and content.seller(x.seller).town != x.town]
    )
    town = content.seller(listing.seller).town
    return Draft(
        intent=draw.rng.choice(
            (
                "What is the home town of the seller of the {{listing}}?",
                "Where does the seller of the {{listing}} live?",
            )
        ),
        values={"listing": listing.title},
        start="__CLASSIFIEDS__",
        check=says(must_include=[town]),
        solution=[
            *find_listing(listing.title),
            f"click [link: {listing.seller}]",
            done(town),
        ],
        difficulty="medium",
    )


def code_on_a_poster(draw: Draw) -> Draft:
    """Only in the picture: the poster of a thread."""
    posters = [(t, t.poster) for t in draw.world.forum.threads if t.poster is not None]
    thread, poster = draw.rng.choice(posters)
    return Draft(
        intent=draw.rng.choice(
            (
                "Which code is on the poster in the forum thread {{thread}}?",
                "Tell me the code on the poster in the thread {{thread}}.",
            )
        ),
        values={"thread": thread.title},
        start="__REDDIT__",
        check=says(must_include=[poster.code]),
        solution=[*find_thread(thread.title), done(poster.code)],
        reads_image=True,
        turns_on=f"CODE {poster.code}",
    )


def how_long_an_author_is_a_member(draw: Draw) -> Draft:
    """From the thread to its author's page."""
    thread = draw.rng.choice(draw.world.forum.threads)
    joined = draw.world.forum.member(thread.author).joined
    return Draft(
        intent="Since which year is the author of the thread {{thread}} a member of the forum?",
        values={"thread": thread.title},
        start="__REDDIT__",
        check=says(must_include=[str(joined)]),
        solution=[*find_thread(thread.title), f"click [link: {thread.author}]", done(joined)],
    )


def warranty_of_a_product(draw: Draw) -> Draft:
    """One line of a product's table."""
    product = draw.rng.choice(draw.world.shop.products)
    years = dict(product.facts)["Warranty"]
    return Draft(
        intent=draw.rng.choice(
            (
                "How long is the warranty of the {{product}} in the shop?",
                "For how many years does the warranty of the {{product}} last?",
            )
        ),
        values={"product": product.name},
        start="__SHOPPING__",
        check=says(must_include=[years]),
        solution=[*find_product(product.name), done(years)],
    )


def listing_that_does_not_exist(draw: Draw) -> Draft:
    """Nothing of that kind is sold in that colour by anybody: the answer is N/A."""
    brand = draw.rng.choice(draw.world.town.brands)
    thing = draw.rng.choice(("canoe", "piano", "ladder", "desk", "toaster"))
    title = f"Purple {brand} {thing}"
    return Draft(
        intent="How many dollars is the {{listing}} on the classifieds? "
        "Answer N/A if there is none.",
        values={"listing": title},
        start="__CLASSIFIEDS__",
        check=says(exact_match="N/A"),
        solution=[f"type [textbox: Search listings] [{title}] [1]", done("N/A")],
    )
