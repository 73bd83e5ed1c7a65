"""What the sites of one world share: the people, the places, the makers of things, the date."""

from dataclasses import dataclass
from datetime import datetime

from agentkv_env.sites.names import Person


@dataclass(frozen=True, slots=True)
class Town:
    """Common to all sites, so that they can speak of the same things."""

    now: datetime
    places: tuple[str, ...]
    people: tuple[Person, ...]
    """The first one is the signed-in user."""
    brands: tuple[str, ...]
