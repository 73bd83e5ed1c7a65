"""Short questions about the classifieds, part of the category `information`."""

from agentkv_tasks.template import Draft, Draw, says
from agentkv_tasks.vwa75.routes import draw_listings, find_seller, join_facts, says_all
from agentkv_tasks.vwa75.steps import choose, done, find_article, find_listing


def serial_number_in_a_photo(draw: Draw) -> Draft:
    """Answer with a serial number that appears only in a listing's photo."""
    (listing,) = draw_listings(draw, "serial", 1)
    serial = listing.photo.fact
    return Draft(
        wordings=(
            "What is the serial number in the photo of the {{listing}} on the classifieds?",
            "Read the serial number in the photo of the {{listing}}.",
            "I need the serial number of the {{listing}}. Only the photo of the listing shows it.",
        ),
        unseen_wording=(
            "I want to be sure that the {{listing}} on the classifieds was not stolen. Can you "
            "tell me the serial number in its photo?"
        ),
        values={"listing": listing.title},
        start="__CLASSIFIEDS__",
        check=says(must_include=[serial]),
        solution=[*find_listing(listing.title), done(serial)],
        needs=[serial],
        reads_image=True,
        turns_on=serial,
    )


def cheapest_in_a_category(draw: Draw) -> Draft:
    """Sort a category and answer with its first entry."""
    content = draw.world.classifieds
    category = draw.rng.choice(content.categories)
    inside = [listing for listing in content.listings if listing.category == category.slug]
    cheapest = min(inside, key=lambda listing: listing.price)
    return Draft(
        wordings=(
            "What is the title of the cheapest listing in the category {{category}} on the "
            "classifieds? Sort by price, low to high, to find it.",
            "Open the category {{category}} of the classifieds and sort it by price, low to high. "
            "What is the title of the first listing?",
            "I want the title of a listing from the category {{category}} on the classifieds: the "
            "first one, sorted by price, low to high.",
        ),
        unseen_wording=(
            "I do not want to spend much in the category {{category}} on the classifieds. Could "
            "you sort it by price, low to high, and tell me the title of the first listing?"
        ),
        values={"category": category.name},
        start="__CLASSIFIEDS__",
        check=says(must_include=[cheapest.title]),
        solution=[
            f"click [link: {category.name}]",
            choose("Sort by", "Price: low to high"),
            "click [button: Apply]",
            done(cheapest.title),
        ],
        needs=[cheapest.title],
        difficulty="medium",
    )


def twin_of_the_town_of_a_seller(draw: Draw) -> Draft:
    """Follow a listing to its seller's town, then the wiki to the mayor of its twin town."""
    wiki = draw.world.wiki
    me = draw.world.me.handle
    listing = draw.rng.choice([x for x in draw.world.classifieds.listings if x.seller != me])
    town = draw.world.classifieds.seller(listing.seller).town
    twin = wiki.town(wiki.town(town).twin)
    facts = (twin.mayor, wiki.figure(twin.mayor).born)
    return Draft(
        wordings=(
            "Open the page of the seller of the {{listing}} and read the home town. Then open "
            "this town in the wiki in the second tab, then its twin town, then the mayor of the "
            "twin town. Answer with the name of the mayor and the year in which the mayor was "
            "born, joined by a comma.",
            "What is the home town of the seller of the {{listing}}? Who is the mayor of its twin "
            "town, and when was this mayor born? The wiki in the second tab knows. Answer with "
            "the name and the year, joined by a comma.",
            "I want the name and the birth year of a mayor, joined by a comma. The page of the "
            "seller of the {{listing}} has a home town. The wiki in the second tab has an article "
            "about this home town, which names its twin town, and I mean the mayor of the twin "
            "town.",
        ),
        unseen_wording=(
            "I am curious about the seller of the {{listing}}. Would you read the seller's home "
            "town, and then find out in the wiki in the second tab who is the mayor of its twin "
            "town and when this mayor was born? I need the name and the year, joined by a comma."
        ),
        values={"listing": listing.title},
        start="__CLASSIFIEDS__ |AND| __WIKIPEDIA__",
        check=says_all(*facts),
        solution=[
            *find_seller(listing),
            "tab_focus [1]",
            find_article(town),
            f"click [link: {twin.name}]",
            f"click [link: {twin.mayor}]",
            done(join_facts(*facts)),
        ],
        needs=[listing.seller, town, twin.name, *map(str, facts)],
        difficulty="medium",
        memory_distance_pages=1,
    )
