"""One seed's world: who lives in it, where, and what its sites hold."""

from dataclasses import dataclass, field
from datetime import datetime, timedelta

from agentkv_env.sites.classifieds.content import Content as Classifieds
from agentkv_env.sites.classifieds.content import generate as generate_classifieds
from agentkv_env.sites.forum.content import Content as Forum
from agentkv_env.sites.forum.content import generate as generate_forum
from agentkv_env.sites.home.content import Content as Home
from agentkv_env.sites.home.content import generate as generate_home
from agentkv_env.sites.names import Names, Person
from agentkv_env.sites.shop.content import Content as Shop
from agentkv_env.sites.shop.content import generate as generate_shop
from agentkv_env.sites.town import Town
from agentkv_env.sites.wiki.content import Content as Wiki
from agentkv_env.sites.wiki.content import generate as generate_wiki

DEFAULT_SEED = 75
NUM_PEOPLE = 24
NUM_PLACES = 12
NUM_BRANDS = 12


@dataclass(frozen=True, slots=True)
class World:
    """The content of all five sites, generated from `seed` in some tens of milliseconds.

    Equal seeds give equal worlds. A seed from `names.FIRST_TRAINING_SEED` on gives a training
    world, which shares no proper name with an evaluation world.

    Raises:
        ValueError: `seed` is negative.
    """

    seed: int = DEFAULT_SEED
    town: Town = field(init=False)
    shop: Shop = field(init=False)
    classifieds: Classifieds = field(init=False)
    forum: Forum = field(init=False)
    wiki: Wiki = field(init=False)
    home: Home = field(init=False)
    names: frozenset[str] = field(init=False, repr=False)
    """Every proper name that was drawn for this world."""

    def __post_init__(self) -> None:
        if self.seed < 0:
            raise ValueError(f"world seed {self.seed} is negative; give 0 or more")
        taken: set[str] = set()

        def names(topic: str) -> Names:
            return Names(self.seed, topic, taken)

        town = _town(names("town"))
        parts: dict[str, object] = {
            "town": town,
            "shop": generate_shop(names("shop"), town),
            "classifieds": generate_classifieds(names("classifieds"), town),
            "forum": generate_forum(names("forum"), town),
            "wiki": generate_wiki(names("wiki"), town),
            "home": generate_home(names("home"), town),
            "names": frozenset(taken),
        }
        for name, part in parts.items():
            object.__setattr__(self, name, part)  # frozen from here on

    @property
    def me(self) -> Person:
        """The person whose browser this is: signed in everywhere."""
        return self.town.people[0]

    @property
    def people(self) -> tuple[Person, ...]:
        return self.town.people

    @property
    def places(self) -> tuple[str, ...]:
        return self.town.places

    @property
    def now(self) -> datetime:
        """The world's time; it stands still while the world is served."""
        return self.town.now


def _town(names: Names) -> Town:
    now = datetime(2026, 1, 5, 9, 30) + timedelta(days=names.rng.randrange(350))
    places = tuple(names.place() for _ in range(NUM_PLACES))
    people = tuple(names.person(names.pick(places)) for _ in range(NUM_PEOPLE))
    brands = tuple(names.brand() for _ in range(NUM_BRANDS))
    return Town(now, places, people, brands)
