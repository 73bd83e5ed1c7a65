"""Facts about public institutions: schools, bridges, museums, bus lines and clubs."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from agentkv_env.sites.names import Names

NUM_OF_A_KIND = 5
NUM_LINES = 4
NUM_STOPS = 5
NUM_DEPARTURES = 4
NUM_SEASONS = 18


@dataclass(frozen=True, slots=True)
class School:
    """A school in a town; `head` is a figure."""

    name: str
    town: str
    founded: int
    head: str
    pupils: int
    hours: tuple[tuple[str, str], ...]
    """Pairs of an event of the school day and its time."""
    open_day: str
    """Only in the picture, on the poster."""


@dataclass(frozen=True, slots=True)
class Bridge:
    """A bridge in a town over a river; `engineer` is a figure."""

    name: str
    town: str
    river: str
    opened: int
    engineer: str
    length_m: int
    arches: int
    limit_tons: int
    """Only in the picture, on the sign."""


@dataclass(frozen=True, slots=True)
class Museum:
    """A museum in a town; `director` is a figure."""

    name: str
    town: str
    opened: int
    director: str
    collection: str
    hours: tuple[tuple[str, str], ...]
    """Days with opening hours or "closed"."""
    ticket: int
    """Price in dollars; only in the picture, on the ticket."""


@dataclass(frozen=True, slots=True)
class TramLine:
    """A bus line through towns, run by a company."""

    name: str
    number: int
    operator: str
    stops: tuple[str, ...]
    departures: tuple[tuple[str, ...], ...]
    """Departure times by stop."""
    fare: int
    """Price in dollars; only in the picture, on the ticket."""


@dataclass(frozen=True, slots=True)
class Season:
    """The result of a club in one year."""

    year: int
    place: int
    points: int


@dataclass(frozen=True, slots=True)
class Club:
    """A sports club of a town; `captain` is a figure, and the last season comes first."""

    name: str
    town: str
    founded: int
    captain: str
    ground: str
    seasons: tuple[Season, ...]
    colours: str
    """Only in the picture, on the badge."""


@dataclass(frozen=True, slots=True)
class Public:
    """The public institutions of one world."""

    schools: tuple[School, ...]
    bridges: tuple[Bridge, ...]
    museums: tuple[Museum, ...]
    lines: tuple[TramLine, ...]
    clubs: tuple[Club, ...]


_MONTHS = "JANUARY FEBRUARY MARCH APRIL MAY JUNE SEPTEMBER OCTOBER NOVEMBER".split()
_SCHOOLS = "East Garden Hill Lower North River South Upper West".split()
_BRIDGES = "Iron Rope Stone Wooden".split()
"""Fewer names than bridges, so that bridges of different towns share a name."""
_COLLECTIONS = "Boat Clock Farm Glass Lamp Paper Stamp Toy".split()
_SPORTS = "Boxing Cricket Football Hockey Rowing Running Tennis".split()
_GROUNDS = "Castle Field|Hill Park|Mill Ground|Old Meadow|River Bank|Station Park".split("|")
_COLOURS = "BLACK BLUE BROWN GREEN ORANGE PINK RED WHITE YELLOW".split()
_CLOSED = "Monday Tuesday Wednesday".split()
_WEEK = "Monday Tuesday Wednesday Thursday Friday".split()

Somebody = Callable[[str, int, int], str]
"""Adds a figure with an occupation, born between two years, and returns the name."""


def generate(
    names: Names, places: Sequence[str], rivers: Sequence[str], makers: Sequence[str],
    year: int, somebody: Somebody,
) -> Public:  # fmt: skip
    """Generate the public institutions of one world; `year` is the current year."""
    rng = names.rng

    # Not drawn with `title`: the town's name already belongs to one side of the worlds.
    def titled(place: str, of: Sequence[str], kind: str) -> str:
        return f"{place} {names.pick(of)} {kind}"

    schools = tuple(
        School(
            name=titled(place, _SCHOOLS, "School"),
            town=place,
            founded=rng.randint(1851, 1979),
            head=somebody("teacher", 1956, 1988),
            pupils=rng.randint(81, 980),
            hours=_school_day(names),
            open_day=f"{rng.randint(2, 28)} {names.pick(_MONTHS)}",
        )
        for place in names.sample(places, NUM_OF_A_KIND)
    )
    bridges = tuple(
        Bridge(
            name=titled(place, _BRIDGES, "Bridge"),
            town=place,
            river=names.pick(rivers),
            opened=rng.randint(1871, 1899),
            engineer=somebody("engineer", 1815, 1845),
            length_m=rng.randint(32, 480),
            arches=rng.randint(3, 17),
            limit_tons=rng.randint(12, 47),
        )
        for place in names.sample(places, NUM_OF_A_KIND)
    )
    museums = tuple(
        Museum(
            name=titled(place, _COLLECTIONS, "Museum"),
            town=place,
            opened=rng.randint(1902, 1989),
            director=somebody("historian", 1954, 1986),
            collection=f"{rng.randint(12, 89) * 100:,} objects",
            hours=_museum_hours(names),
            ticket=rng.randint(12, 39),
        )
        for place in names.sample(places, NUM_OF_A_KIND)
    )
    numbers = names.sample(range(11, 99), NUM_LINES)
    lines = tuple(_line(names, number, places, makers) for number in sorted(numbers))
    clubs = tuple(
        Club(
            name=titled(place, _SPORTS, "Club"),
            town=place,
            founded=rng.randint(1881, year - NUM_SEASONS - 2),
            captain=somebody("athlete", year - 38, year - 19),
            ground=names.pick(_GROUNDS),
            seasons=_seasons(names, year),
            colours=" AND ".join(names.sample(_COLOURS, 2)),
        )
        for place in names.sample(places, NUM_OF_A_KIND)
    )
    return Public(schools, bridges, museums, lines, clubs)


def _school_day(names: Names) -> tuple[tuple[str, str], ...]:
    first, lunch, last = (names.rng.randrange(0, 60, 5) for _ in range(3))
    return (
        ("First lesson", _clock(7 * 60 + 30 + first // 2 * 2)),
        ("Lunch", _clock(12 * 60 + lunch)),
        ("Last lesson", _clock(14 * 60 + last)),
    )


def _museum_hours(names: Names) -> tuple[tuple[str, str], ...]:
    closed = names.pick(_CLOSED)
    early, late = names.rng.randint(8, 10), names.rng.randint(16, 19)
    others = [day for day in _WEEK if day != closed]
    week = [(day, "closed" if day == closed else f"{early}:00 to {late}:00") for day in _WEEK]
    short = names.pick(others)
    hours = [(day, f"{early}:00 to 12:30" if day == short else text) for day, text in week]
    return (*hours, ("Saturday and Sunday", f"{early + 2}:30 to {late - 1}:30"))


def _line(names: Names, number: int, places: Sequence[str], makers: Sequence[str]) -> TramLine:
    rng = names.rng
    stops = tuple(names.sample(places, NUM_STOPS))
    legs = [0]
    for _ in stops[1:]:
        legs.append(legs[-1] + rng.randint(9, 34))
    starts = [rng.randint(6, 7) * 60 + rng.randrange(60)]
    while len(starts) < NUM_DEPARTURES:
        starts.append(starts[-1] + rng.randint(150, 260))
    departures = tuple(tuple(_clock(start + leg) for start in starts) for leg in legs)
    fare = rng.randint(3, 19)
    return TramLine(f"Bus Line {number}", number, names.pick(makers), stops, departures, fare)


def _seasons(names: Names, year: int) -> tuple[Season, ...]:
    rng = names.rng
    places = [rng.randint(1, 12) for _ in range(NUM_SEASONS)]
    return tuple(
        Season(year - 1 - back, place, 70 - 4 * place + rng.randint(0, 3))
        for back, place in enumerate(places)
    )


def _clock(minutes: int) -> str:
    return f"{minutes // 60}:{minutes % 60:02d}"
