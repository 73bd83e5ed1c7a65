"""Helpers for goals, draws and checks that the long tasks share."""

from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import TypeVar

from agentkv_env.sites.classifieds.content import Listing
from agentkv_env.sites.forum.content import Thread
from agentkv_env.sites.shop.content import Product
from agentkv_tasks.template import Draw

T = TypeVar("T")

WRITE_TO_THE_SHOP = (
    "click [link: Account]",
    "click [link: Messages]",
    "click [link: Write a message]",
)
"""Steps in the shop that open the form for a message."""
MESSAGES = "__SHOPPING__/account/messages"
"""Page with the messages to the shop, newest first."""


def draw_distinct(
    draw: Draw, items: Iterable[T], by: Callable[[T], Hashable], count: int
) -> list[T]:
    """Draw `count` of `items` in random order, with different values of the key `by`."""
    shuffled = list(items)
    draw.rng.shuffle(shuffled)
    first: dict[Hashable, T] = {}
    for item in shuffled:
        first.setdefault(by(item), item)
    assert len(first) >= count, f"found {len(first)} distinct items, expected at least {count}"
    return list(first.values())[:count]


def draw_products(draw: Draw, count: int, *, but: Product | None = None) -> list[Product]:
    """Draw `count` products on sale, other than `but`."""
    return draw.rng.sample([one for one in draw.world.shop.products if one != but], count)


def draw_threads(draw: Draw, count: int, *, without: str = "") -> list[Thread]:
    """Draw `count` threads in which the member `without` has written nothing."""
    fitting = [
        thread for thread in draw.world.forum.threads
        if without not in (thread.author, *(comment.author for comment in thread.comments))
    ]  # fmt: skip
    return draw.rng.sample(fitting, count)


def draw_listings(draw: Draw, count: int, *, seller: str = "") -> list[Listing]:
    """Draw `count` unsold and unsaved listings of other people, none of them of `seller`."""
    content, me = draw.world.classifieds, draw.world.me.handle
    fitting = [
        x for x in content.listings
        if x.seller not in (me, seller) and not x.is_sold and x.id not in content.saved
    ]  # fmt: skip
    return draw.rng.sample(fitting, count)


def move_best_early(draw: Draw, items: list[T], by: Callable[[T], float]) -> T:
    """Move the largest of `items` to one of the first three places and return it."""
    best = max(items, key=by)
    items.remove(best)
    items.insert(draw.rng.randrange(3), best)
    return best


def number_placeholders(key: str, names: Sequence[str]) -> tuple[str, dict[str, str | int]]:
    """Return a list of placeholders for `names`, and the placeholders' values."""
    values: dict[str, str | int] = {f"{key}{n}": name for n, name in enumerate(names, start=1)}
    return enumeration([f"{{{{{name}}}}}" for name in values]), values


def enumeration(items: Sequence[str]) -> str:
    """Return `items` as a list in a sentence: "a, b and c"."""
    return " and ".join([", ".join(items[:-1]), items[-1]]) if len(items) > 1 else items[0]


def join_facts(facts: Iterable[object]) -> str:
    """Join facts with a comma and a space, as the goals ask."""
    return ", ".join(str(fact) for fact in facts)


def unique_facts(*facts: Iterable[object]) -> list[str]:
    """Return all facts without duplicates, in order of use."""
    return list(dict.fromkeys(str(fact) for group in facts for fact in group))
