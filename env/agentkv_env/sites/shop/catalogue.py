"""Find products: filters, sort orders and ranked search."""

import re
import sqlite3
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from agentkv_env.sites.shop.content import Product, ShopContent
from agentkv_env.sites.site import whole_number

_Key = Callable[[Product], tuple[float, ...] | tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class Rating:
    """Average of 1 to 5 stars over `count` reviews; 0 without reviews."""

    stars: float
    count: int


NO_RATING = Rating(0.0, 0)
ORDERS = ("Featured", "Lowest price", "Highest price", "Best rated", "Name")


def ratings(db: sqlite3.Connection) -> dict[int, Rating]:
    """Return the ratings of all products with reviews."""
    rows = db.execute("SELECT product, avg(stars), count(*) FROM shop_review GROUP BY product")
    return {number: Rating(stars, count) for number, stars, count in rows}


def ordered(products: Iterable[Product], order: str, rated: Mapping[int, Rating]) -> list[Product]:
    """Sort `products` by one of `ORDERS`; an unknown order, like "Featured", does not sort."""

    def by_rating(product: Product) -> tuple[float, ...]:
        rating = rated.get(product.number, NO_RATING)
        return (-rating.stars, -rating.count)

    keys: dict[str, _Key] = {
        "Lowest price": lambda product: (product.cents,),
        "Highest price": lambda product: (-product.cents,),
        "Best rated": by_rating,
        "Name": lambda product: (product.name,),
    }
    return sorted(products, key=keys[order]) if order in keys else list(products)


def filtered(
    products: Iterable[Product], query: Mapping[str, str], rated: Mapping[int, Rating]
) -> list[Product]:
    """Filter products by the query's `brand`, `min` and `max` dollars, and minimum `stars`.

    Absent parameters filter nothing.
    """
    brand = query.get("brand", "")
    least = whole_number(query.get("min"), 0) * 100
    most = whole_number(query.get("max"), 10**9) * 100
    stars = whole_number(query.get("stars", "")[:1], 0)
    return [
        product
        for product in products
        if (not brand or product.brand == brand)
        and least <= product.cents <= most
        and rated.get(product.number, NO_RATING).stars >= stars
    ]


def search(content: ShopContent, words: str) -> list[Product]:
    """Return the products that contain the most of `words`, best match first.

    A word in the name counts more than one in the category or the facts, a whole word more than a
    beginning. A word found nowhere is ignored unless all are.
    """
    terms = re.findall(r"[\w.-]+", words.lower())
    scored = [(_score(product, terms), product) for product in content.catalogue]
    most = max((found for (found, _), _ in scored), default=0)
    if most == 0:
        return []
    hits = [(weight, product) for (found, weight), product in scored if found == most]
    return [product for _, product in sorted(hits, key=lambda hit: (-hit[0], hit[1].number))]


def _score(product: Product, terms: Sequence[str]) -> tuple[int, int]:
    """Return how many of `terms` occur, and how well they match."""
    name = product.name.lower().split()
    rest = f"{product.category} {' '.join(value for _, value in product.facts)}".lower().split()
    found = weight = 0
    for term in terms:
        worth = 0
        if term in name or term.removesuffix("s") in name:
            worth = 6
        elif any(word.startswith(term) for word in name):
            worth = 4
        elif term in rest:
            worth = 2
        found += worth > 0
        weight += worth
    return found, weight
