"""The initial ratings, offers and alerts of the classifieds."""

from dataclasses import dataclass

from agentkv_env.sites.names import Names

_PRAISE = {
    5: ("Friendly and quick.", "Better than in the photo.", "I would buy again."),
    4: ("Good, but {number} minutes late.", "As described.", "All fine after {number} days."),
    3: ("It was okay.", "I had to ask {number} times.", "A little dirty."),
    2: ("I waited {number} days.", "Not as described.", "Hard to reach."),
}
_NOTES = (
    "I can come on {day}.",
    "I pay cash on {day}.",
    "It is for my school.",
    "Can you hold it until {day}?",
)
_DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()


@dataclass(frozen=True, slots=True)
class SellerRating:
    """A buyer's rating of a seller, with 1 to 5 `stars`."""

    author: str
    stars: int
    body: str


@dataclass(frozen=True, slots=True)
class Offer:
    """An offer in dollars for a listing of the signed-in user."""

    listing: int
    buyer: str
    dollars: int
    note: str


@dataclass(frozen=True, slots=True)
class Alert:
    """A saved search of the signed-in user."""

    category: str
    town: str
    most: int


def ratings(names: Names, buyers: list[str]) -> tuple[SellerRating, ...]:
    """Generate two to eight ratings by different `buyers`."""
    result = []
    for author in names.sample(buyers, names.rng.randint(2, 8)):
        stars = names.pick((5, 5, 4, 4, 4, 3, 2))
        body = names.pick(_PRAISE[stars]).format(number=names.rng.randint(2, 19))
        result.append(SellerRating(author, stars, body))
    return tuple(result)


def offers(names: Names, mine: list[tuple[int, int]], buyers: list[str]) -> tuple[Offer, ...]:
    """Generate one or two offers for each listing in `mine` (id and price), by different buyers."""
    left = names.sample(buyers, len(buyers))
    result = []
    for listing, price in mine:
        for dollars in names.sample(range(max(1, price * 6 // 10), price), names.rng.randint(1, 2)):
            note = names.pick(_NOTES).format(day=names.pick(_DAYS))
            result.append(Offer(listing, left.pop(), dollars, note))
    return tuple(result)


def pick_up(names: Names) -> str:
    """Return pickup hours such as "Tuesday to Friday, 15 to 18"."""
    first = names.rng.randint(0, 3)
    last = names.rng.randint(first + 1, 6)
    hour = names.rng.randint(8, 16)
    return f"{_DAYS[first]} to {_DAYS[last]}, {hour} to {hour + names.rng.randint(2, 5)}"
