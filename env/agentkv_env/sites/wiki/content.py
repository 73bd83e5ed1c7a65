"""The wiki's facts, generated from a world seed.

Facts are plain values (`Town.mayor`, `Landmark.built`), so a task can ask for one and know the
answer; `articles.py` writes the text. A fact marked "only in the picture" is in no article.
"""

from dataclasses import dataclass

from agentkv_env.sites.names import Names
from agentkv_env.sites.region import Region
from agentkv_env.sites.wiki.public import Public
from agentkv_env.sites.wiki.public import generate as generate_public


@dataclass(frozen=True, slots=True)
class ArticleFigure:
    """A person with an article; `birthplace` and `school` are towns."""

    name: str
    born: int
    birthplace: str
    occupation: str
    school: str
    hobby: str
    portrait: int
    """Year of the portrait; only in the picture."""


@dataclass(frozen=True, slots=True)
class Town:
    """A town; `river` and `mayor` are titles of articles, `twin` is another town."""

    name: str
    founded: int
    population: int
    elevation_m: int
    river: str
    mayor: str
    market_day: str
    twin: str
    former: str
    """Its former name, which leads to its article."""
    motto: str
    """Only in the picture, on the coat of arms."""


@dataclass(frozen=True, slots=True)
class River:
    """A river from `source` to `mouth`, both towns."""

    name: str
    length_km: int
    source: str
    mouth: str
    fish: str
    depth_m: int
    """Greatest depth; only in the picture, on the map."""


@dataclass(frozen=True, slots=True)
class Maker:
    """A company of the world; `founder` is a figure, `seat` a town."""

    name: str
    founded: int
    founder: str
    seat: str
    employees: int
    first: str
    """Its first product."""
    slogan: str
    """Only in the picture, on the old advertisement."""


@dataclass(frozen=True, slots=True)
class Festival:
    """A yearly event in a town; `organiser` is a figure."""

    name: str
    town: str
    month: str
    since: int
    organiser: str
    visitors: int
    ticket: int
    """Price in dollars; only in the picture, on the poster."""
    venue: str
    """Place of the opening; only in the picture."""


@dataclass(frozen=True, slots=True)
class Dish:
    """A dish of a town, first cooked by a figure in `year`."""

    name: str
    town: str
    ingredient: str
    cook: str
    served: str
    year: int
    minutes: int
    """Cooking time; only in the picture, on the recipe card."""


@dataclass(frozen=True, slots=True)
class Landmark:
    """A building in a town; `architect` is a figure."""

    name: str
    town: str
    built: int
    architect: str
    height_m: int
    steps: int
    """Number of steps; only in the picture, on the plaque."""


@dataclass(frozen=True, slots=True)
class WikiContent:
    """All facts of one world's wiki."""

    towns: tuple[Town, ...]
    figures: tuple[ArticleFigure, ...]
    rivers: tuple[River, ...]
    makers: tuple[Maker, ...]
    festivals: tuple[Festival, ...]
    dishes: tuple[Dish, ...]
    landmarks: tuple[Landmark, ...]
    public: Public

    def figure(self, name: str) -> ArticleFigure:
        """Return the figure with this name."""
        return next(figure for figure in self.figures if figure.name == name)

    def town(self, name: str) -> Town:
        """Return the town with this name."""
        return next(town for town in self.towns if town.name == name)


_RIVER_ENDINGS = "a en er is on".split()
_VIRTUES = "COURAGE HARVEST LABOUR LIGHT MERCY PATIENCE REASON SPEECH TRUTH WATER WISDOM".split()
_HOBBIES = "bee keeping|bell ringing|chess|kite flying|pottery|rowing|singing|woodcraft".split("|")
_FISH = "bream carp perch pike salmon tench trout".split()
_DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday".split()
_MONTHS = "March April May June July August September October".split()
_INGREDIENTS = "apples barley beans chestnuts leeks mushrooms plums walnuts".split()
_MAINS = "Ferry Harvest Miller Spring Sunday Wedding Winter".split()
_FORMS = "Cake Dumplings Loaf Pie Pudding Soup Stew Tart".split()
_SERVED = "baked apples|cold cider|dark bread|mustard|sour cream|sweet tea".split("|")
_LOOKS = "Great High New North Old South".split()
_BUILDINGS = "Bridge Lighthouse Mill Museum Observatory Theatre Tower".split()
_THEMES = "Book Cheese Flower Honey Kite Lantern Music Rowing".split()
_GATHERINGS = "Fair Festival Parade Week".split()
_VENUES = "EAST GATE|GRAIN HALL|MARKET SQUARE|OLD HARBOUR|RIVER STAGE|TOWN PARK".split("|")
_FIRSTS = "bicycle bells|door locks|garden shears|kettles|oil lamps|sewing boxes|sleds".split("|")
_PRAISE = "BUILT TO LAST|KEEPS ITS WORD|MADE BY HAND|NEVER IN A HURRY|STRONG AND SIMPLE".split("|")


def generate(names: Names, region: Region) -> WikiContent:
    """Generate facts about the towns and brands of a world."""
    rng, places = names.rng, region.places
    figures: list[ArticleFigure] = []

    def somebody(occupation: str, first_born: int, last_born: int) -> str:
        birthplace, school = names.sample(places, 2)
        name = names.person(birthplace).name
        born = rng.randint(first_born, last_born)
        hobby = names.pick(_HOBBIES)
        portrait = born + rng.randint(17, 49 if born < 1900 else 19)
        figures.append(ArticleFigure(name, born, birthplace, occupation, school, hobby, portrait))
        return name

    def river() -> River:
        source, mouth = names.sample(places, 2)
        name = names.accept(lambda: f"River {names.word(_RIVER_ENDINGS)}")
        length = rng.randint(41, 389)
        return River(name, length, source, mouth, names.pick(_FISH), rng.randint(12, 69))

    rivers = tuple(river() for _ in range(4))
    towns = tuple(
        Town(
            name=place,
            founded=rng.randint(1102, 1789),
            population=rng.randint(2_100, 98_900),
            elevation_m=rng.randint(14, 940),
            river=names.pick(rivers).name,
            mayor=somebody("politician", 1951, 1989),
            market_day=names.pick(_DAYS),
            twin=names.pick([other for other in places if other != place]),
            former=names.place(),
            motto=" AND ".join(names.sample(_VIRTUES, 2)),
        )
        for place in places
    )
    makers = tuple(
        Maker(
            name=brand,
            founded=rng.randint(1871, 1899),
            founder=somebody("engineer", 1832, 1849),
            seat=names.pick(places),
            employees=rng.randint(12, 940),
            first=names.pick(_FIRSTS),
            slogan=names.pick(_PRAISE),
        )
        for brand in region.brands
    )
    festivals = tuple(
        Festival(
            name=names.title(f"{place} {{theme}} {{what}}", theme=_THEMES, what=_GATHERINGS),
            town=place,
            month=names.pick(_MONTHS),
            since=rng.randint(1902, 2011),
            organiser=somebody("musician", 1948, 1992),
            visitors=rng.randint(12, 480) * 100,
            ticket=rng.randint(12, 79),
            venue=names.pick(_VENUES),
        )
        for place in names.sample(places, 6)
    )
    dishes = tuple(
        Dish(
            name=names.title(f"{place} {{main}} {{form}}", main=_MAINS, form=_FORMS),
            town=place,
            ingredient=names.pick(_INGREDIENTS),
            cook=somebody("cook", 1805, 1840),
            served=names.pick(_SERVED),
            year=rng.randint(1861, 1899),
            minutes=rng.randint(22, 97),
        )
        for place in names.sample(places, 6)
    )
    landmarks = tuple(
        Landmark(
            name=names.title(f"{place} {{look}} {{kind}}", look=_LOOKS, kind=_BUILDINGS),
            town=place,
            built=rng.randint(1871, 1899),
            architect=somebody("architect", 1812, 1845),
            height_m=rng.randint(12, 97),
            steps=rng.randint(112, 479),
        )
        for place in names.sample(places, 6)
    )
    public = generate_public(
        names, places, [each.name for each in rivers], region.brands, region.now.year, somebody
    )
    return WikiContent(towns, tuple(figures), rivers, makers, festivals, dishes, landmarks, public)
