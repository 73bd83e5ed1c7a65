"""One world: the shared facts and the content of every site, generated from one seed."""

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, TypeVar

from agentkv_env.sites.classifieds import SITE as CLASSIFIEDS
from agentkv_env.sites.classifieds.content import ClassifiedsContent
from agentkv_env.sites.forum import SITE as FORUM
from agentkv_env.sites.forum.content import ForumContent
from agentkv_env.sites.home import SITE as HOME
from agentkv_env.sites.home.content import HomeContent
from agentkv_env.sites.names import Names, Person
from agentkv_env.sites.region import Region
from agentkv_env.sites.region import generate as generate_region
from agentkv_env.sites.registry import SITES
from agentkv_env.sites.shop import SITE as SHOP
from agentkv_env.sites.shop.content import ShopContent
from agentkv_env.sites.site import Site
from agentkv_env.sites.wiki import SITE as WIKI
from agentkv_env.sites.wiki.content import WikiContent

DEFAULT_SEED = 75

C = TypeVar("C")


@dataclass(frozen=True, slots=True)
class World:
    """The content of all sites, generated from `seed` in some tens of milliseconds.

    Equal seeds give equal worlds. A seed of `names.FIRST_TRAINING_SEED` or more gives a training
    world, which shares no proper name with an evaluation world.

    `content_of(SITE)` returns the content of any site. The properties `home`, `shop`,
    `classifieds`, `forum` and `wiki` are shortcuts to the embedded sites.

    Raises:
        ValueError: `seed` is negative, or two sites have the same name.
    """

    seed: int = DEFAULT_SEED
    sites: tuple[Site[Any], ...] = field(default=SITES, repr=False, hash=False)
    """The sites of this world, in the order in which their hosts are listed."""
    region: Region = field(init=False)
    contents: tuple[object, ...] = field(init=False)
    """The content of each site, in the order of `sites`."""
    names: frozenset[str] = field(init=False, repr=False)
    """Every proper name drawn for this world."""

    def __post_init__(self) -> None:
        if self.seed < 0:
            raise ValueError(f"world seed {self.seed} is negative; give 0 or more")
        site_names = [site.name for site in self.sites]
        if len(set(site_names)) < len(site_names):
            raise ValueError(f"two sites have the same name; found {', '.join(site_names)}")
        taken: set[str] = set()
        region = generate_region(Names(self.seed, "town", taken))
        contents = tuple(
            site.generate(Names(self.seed, site.name, taken), region) for site in self.sites
        )
        # The dataclass is frozen; these are its derived fields.
        object.__setattr__(self, "region", region)
        object.__setattr__(self, "contents", contents)
        object.__setattr__(self, "names", frozenset(taken))

    def content_of(self, site: Site[C]) -> C:
        """Return the content of `site`.

        Raises:
            KeyError: this world has no such site.
        """
        for known, content in zip(self.sites, self.contents, strict=True):
            if known is site:
                found: C = content  # type: ignore[assignment]
                return found
        raise KeyError(f"no site {site.name!r} in this world")

    @property
    def home(self) -> HomeContent:
        """The content of the home page."""
        return self.content_of(HOME)

    @property
    def shop(self) -> ShopContent:
        """The content of the shop."""
        return self.content_of(SHOP)

    @property
    def classifieds(self) -> ClassifiedsContent:
        """The content of the classifieds."""
        return self.content_of(CLASSIFIEDS)

    @property
    def forum(self) -> ForumContent:
        """The content of the forum."""
        return self.content_of(FORUM)

    @property
    def wiki(self) -> WikiContent:
        """The content of the wiki."""
        return self.content_of(WIKI)

    @property
    def me(self) -> Person:
        """The owner of the browser, signed in on every site."""
        return self.region.me

    @property
    def people(self) -> tuple[Person, ...]:
        """Everybody in the world; the first person is the signed-in user."""
        return self.region.people

    @property
    def places(self) -> tuple[str, ...]:
        """Names of towns."""
        return self.region.places

    @property
    def now(self) -> datetime:
        """The time in the world; it stands still while the world is served."""
        return self.region.now
