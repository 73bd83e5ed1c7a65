"""The cheapest listing in a category of the classifieds, and the way to its seller."""

from agentkv_env.sites.classifieds.content import Listing
from agentkv_tasks.template import Draw
from agentkv_tasks.vwa75.steps import choose


def draw_cheapest(draw: Draw) -> tuple[str, Listing]:
    """Draw a category whose cheapest listing is alone at its price and somebody else's.

    Returns:
        The name of the category, and the listing.
    """
    content, me = draw.world.classifieds, draw.world.me.handle
    found = []
    for category in content.categories:
        inside = [listing for listing in content.listings if listing.category == category.slug]
        cheapest, next_one = sorted(inside, key=lambda listing: listing.price)[:2]
        if cheapest.price < next_one.price and cheapest.seller != me:
            found.append((category.name, cheapest))
    return draw.rng.choice(found)


def find_cheapest(category: str, listing: Listing) -> list[str]:
    """Return the steps that open the page of the seller of `listing`, the cheapest one."""
    return [
        f"click [link: {category}]",
        choose("Sort by", "Price: low to high"),
        "click [button: Apply]",
        f"click [link: {listing.title}]",
        f"click [link: {listing.seller}]",
    ]
