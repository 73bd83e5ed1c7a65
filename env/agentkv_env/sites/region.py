"""Facts that all sites of one world share: seed, date, places, people and brands."""

from dataclasses import dataclass
from datetime import datetime, timedelta

from agentkv_env.sites.names import Names, Person

NUM_PEOPLE = 24
NUM_PLACES = 12
NUM_BRANDS = 12


@dataclass(frozen=True, slots=True)
class Region:
    """The shared facts of one world; every site builds its content on them."""

    seed: int
    """The seed of the world."""
    now: datetime
    """The time in the world; it stands still while the world is served."""
    places: tuple[str, ...]
    """Names of towns."""
    people: tuple[Person, ...]
    """The first person is the signed-in user."""
    brands: tuple[str, ...]

    @property
    def me(self) -> Person:
        """The owner of the browser, signed in on every site."""
        return self.people[0]


def generate(names: Names) -> Region:
    """Draw the shared facts of one world."""
    now = datetime(2026, 1, 5, 9, 30) + timedelta(days=names.rng.randrange(350))
    places = tuple(names.place() for _ in range(NUM_PLACES))
    people = tuple(names.person(names.pick(places)) for _ in range(NUM_PEOPLE))
    brands = tuple(names.brand() for _ in range(NUM_BRANDS))
    return Region(names.seed, now, places, people, brands)
