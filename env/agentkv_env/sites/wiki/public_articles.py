"""Articles about schools, bridges, museums, bus lines and clubs."""

from collections.abc import Iterator

from agentkv_env.sites.wiki.article import Article, Picture, Reference, Table
from agentkv_env.sites.wiki.public import Bridge, Club, Museum, Public, School, TramLine

CATEGORIES = ("Schools", "Bridges", "Museums", "Bus lines", "Sports clubs")
SEASONS_IN_AN_ARTICLE = 3


def public_articles(public: Public) -> Iterator[Article]:
    """Return one article for each institution."""
    yield from map(_school, public.schools)
    yield from map(_bridge, public.bridges)
    yield from map(_museum, public.museums)
    yield from map(_line, public.lines)
    yield from map(_club, public.clubs)


def deeds_of(name: str, public: Public) -> list[str]:
    """Return the roles of the figure `name`, as parts of a sentence."""
    return [
        *(f"head teacher of the [[{each.name}]]" for each in public.schools if each.head == name),
        *(f"builder of the [[{each.name}]]" for each in public.bridges if each.engineer == name),
        *(f"director of the [[{each.name}]]" for each in public.museums if each.director == name),
        *(f"captain of the [[{each.name}]]" for each in public.clubs if each.captain == name),
    ]


def found_in(town: str, public: Public) -> list[str]:
    """Return the titles of institutions in `town` and of bus lines that stop there."""
    standing = [
        *((each.name, each.town) for each in public.schools),
        *((each.name, each.town) for each in public.bridges),
        *((each.name, each.town) for each in public.museums),
        *((each.name, each.town) for each in public.clubs),
    ]
    return [
        *(name for name, place in standing if place == town),
        *(each.name for each in public.lines if town in each.stops),
    ]


def _school(school: School) -> Article:
    return Article(
        school.name,
        "Schools",
        f"The {school.name} is a school in [[{school.town}]] with {school.pupils} pupils.",
        (
            ("Town", f"[[{school.town}]]"),
            ("Founded", str(school.founded)),
            ("Head teacher", f"[[{school.head}]]"),
            ("Pupils", str(school.pupils)),
        ),
        (("History", f"The school opened its doors in {school.founded} with two rooms."),),
        Picture(
            "poster", ("SEE OUR SCHOOL", f"OPEN DAY {school.open_day}"), "Poster for the open day"
        ),
        (Table("School day", ("Part", "Begins"), school.hours),),
    )


def _bridge(bridge: Bridge) -> Article:
    return Article(
        bridge.name,
        "Bridges",
        f"The {bridge.name} crosses the [[{bridge.river}]] at [[{bridge.town}]].",
        (
            ("Town", f"[[{bridge.town}]]"),
            ("Crosses", f"[[{bridge.river}]]"),
            ("Opened", str(bridge.opened)),
            ("Engineer", f"[[{bridge.engineer}]]"),
            ("Length", f"{bridge.length_m} m"),
            ("Arches", str(bridge.arches)),
        ),
        (("History", f"[[{bridge.engineer}]] built it in three years. A ferry ran before."),),
        Picture(
            "label",
            ("SLOW DOWN", f"LIMIT {bridge.limit_tons} TONS"),
            "Sign with the greatest weight that may cross",
        ),
    )


def _museum(museum: Museum) -> Article:
    return Article(
        museum.name,
        "Museums",
        f"The {museum.name} is a museum in [[{museum.town}]].",
        (
            ("Town", f"[[{museum.town}]]"),
            ("Opened", str(museum.opened)),
            ("Director", f"[[{museum.director}]]"),
            ("Collection", museum.collection),
        ),
        (("Collection", f"The museum keeps {museum.collection} on two floors."),),
        Picture(
            "label", ("ADMIT ONE", f"PRICE {museum.ticket} DOLLARS"), "Ticket with the price"
        ),
        (Table("Opening hours", ("Day", "Hours"), museum.hours),),
        references=(Reference("Notices of the museums", "home", "/notices"),),
    )  # fmt: skip


def _line(line: TramLine) -> Article:
    first, last = line.stops[0], line.stops[-1]
    rows = tuple(
        (f"[[{stop}]]", times[0], times[-1])
        for stop, times in zip(line.stops, line.departures, strict=True)
    )
    count = len(line.departures[0])
    full = tuple(
        (f"[[{stop}]]", *times) for stop, times in zip(line.stops, line.departures, strict=True)
    )
    return Article(
        line.name,
        "Bus lines",
        f"{line.name} runs from [[{first}]] to [[{last}]].",
        (
            ("From", f"[[{first}]]"),
            ("To", f"[[{last}]]"),
            ("Operator", f"[[{line.operator}]]"),
            ("Buses a day", str(count)),
        ),
        (),
        Picture("label", (f"BUS LINE {line.number}", f"FARE {line.fare} DOLLARS"), "Ticket"),
        (Table("Stops", ("Stop", "First bus", "Last bus"), rows),),
        (Table("Timetable", ("Stop", *(f"Bus {number + 1}" for number in range(count))), full),),
        (Reference("Road report", "home", "/traffic"),),
    )


def _club(club: Club) -> Article:
    rows = tuple(
        (str(season.year), str(season.place), str(season.points)) for season in club.seasons
    )
    columns = ("Year", "Place", "Points")
    return Article(
        club.name,
        "Sports clubs",
        f"The {club.name} is a sports club from [[{club.town}]].",
        (
            ("Town", f"[[{club.town}]]"),
            ("Founded", str(club.founded)),
            ("Captain", f"[[{club.captain}]]"),
            ("Ground", club.ground),
        ),
        (("History", f"The club was founded in {club.founded} by seven friends."),),
        Picture(
            "poster", (club.town.upper(), f"COLOURS {club.colours}"), "Badge with the colours"
        ),
        (Table("Last seasons", columns, rows[:SEASONS_IN_AN_ARTICLE]),),
        (Table("Results by year", columns, rows),),
    )  # fmt: skip
