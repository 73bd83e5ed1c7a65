"""The services of the shop: stores, gift cards and a club."""

from dataclasses import dataclass

from agentkv_env.sites.names import Names, Person
from agentkv_env.sites.region import Region

WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday")
MONTHS = ("January February March April May June July August September October November"
          " December").split()  # fmt: skip
NUM_STORES = 5
NUM_GIFT_CARDS = 3


@dataclass(frozen=True, slots=True)
class Store:
    """A store; its opening and closing times are full hours."""

    place: str
    street: str
    manager: str
    phone: str
    parking: int
    hours: tuple[int, int]
    late_day: str
    """The weekday on which it closes two hours later."""
    saturday: tuple[int, int]
    sunday: tuple[int, int]
    """Only in the picture, on the sign at the door."""
    closed_on: str
    """A day such as "24 MAY"; only in the picture."""

    @property
    def week(self) -> tuple[tuple[str, str], ...]:
        """Opening hours by day, without the days that only the sign shows."""
        opens, closes = self.hours
        days = [(day, (opens, closes + 2 * (day == self.late_day))) for day in WEEKDAYS]
        return tuple((day, _span(hours)) for day, hours in [*days, ("Saturday", self.saturday)])


@dataclass(frozen=True, slots=True)
class GiftCard:
    """A gift card of the customer."""

    code: str
    """Only in the picture."""
    giver: str
    cents: int


@dataclass(frozen=True, slots=True)
class ShopClub:
    """Price of the membership."""

    yearly_cents: int
    monthly_cents: int
    members: int
    since: int
    host: str
    """The head of the club."""


def _span(hours: tuple[int, int]) -> str:
    return f"{hours[0]} to {hours[1]}"


def generate_stores(names: Names, region: Region) -> tuple[Store, ...]:
    """Generate one store in each of a few towns, in the order of their names."""
    rng = names.rng
    managers = rng.sample(region.people[1:], NUM_STORES)
    return tuple(
        _store(names, place, manager)
        for place, manager in zip(
            sorted(rng.sample(region.places, NUM_STORES)), managers, strict=True
        )
    )


def _store(names: Names, place: str, manager: Person) -> Store:
    rng = names.rng
    opens = rng.randint(7, 10)
    return Store(
        place=place,
        street=f"{rng.randint(2, 97)} {names.street()}",
        manager=manager.name,
        phone=f"555 {rng.randint(1000, 9999)}",
        parking=rng.randint(4, 90),
        hours=(opens, opens + rng.randint(8, 9)),
        late_day=rng.choice(WEEKDAYS),
        saturday=(rng.randint(9, 10), rng.randint(13, 17)),
        sunday=(rng.randint(11, 12), rng.randint(14, 18)),
        closed_on=f"{rng.randint(2, 28)} {rng.choice(MONTHS).upper()}",
    )


def generate_gift_cards(names: Names, region: Region) -> tuple[GiftCard, ...]:
    """Generate gift cards from different people, with different amounts."""
    sums = names.sample(range(15, 150, 5), NUM_GIFT_CARDS)
    givers = names.sample(region.people[1:], NUM_GIFT_CARDS)
    return tuple(
        GiftCard(names.code(3, 4), giver.name, 100 * dollars)
        for giver, dollars in zip(givers, sums, strict=True)
    )


def generate_club(names: Names, region: Region) -> ShopClub:
    """Generate the club of the shop."""
    rng = names.rng
    monthly_cents = 10 * rng.randint(15, 80)
    return ShopClub(
        yearly_cents=10 * monthly_cents,
        monthly_cents=monthly_cents,
        members=rng.randint(200, 9000),
        since=rng.randint(1990, 2023),
        host=rng.choice(region.people[1:]).name,
    )
