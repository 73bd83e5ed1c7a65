"""The content of the home site: notices, weather, roads, events and contacts.

Generated from the world's seed; no other site shows it.
"""

from dataclasses import dataclass
from datetime import date, timedelta

from agentkv_env.sites.names import Names, Person
from agentkv_env.sites.region import Region

NUM_NOTICES = 18
NUM_MONTHS = 4
NUM_FORECAST_DAYS = 4
NUM_ROADS = 5


@dataclass(frozen=True, slots=True)
class Notice:
    """A notice on the board; ids count from 1, the newest notice."""

    id: int
    subject: str
    author: Person
    posted: date
    facts: tuple[tuple[str, str], ...]
    text: str


@dataclass(frozen=True, slots=True)
class Forecast:
    """The weather of one day in one town."""

    day: date
    sky: str
    high: int
    """Degrees Celsius."""
    low: int
    wind_kmh: int


@dataclass(frozen=True, slots=True)
class Weather:
    """A town's weather; the first forecast is for today."""

    place: str
    forecasts: tuple[Forecast, ...]


@dataclass(frozen=True, slots=True)
class Road:
    """The state of a road today."""

    start: str
    end: str
    state: str
    delay_minutes: int


@dataclass(frozen=True, slots=True)
class Event:
    """An event in a town; ids count from 1 in the order of days."""

    id: int
    title: str
    day: date
    begins: str
    place: str
    hall: str
    host: Person
    seats: int
    entry: int
    """Price in dollars; only in the picture, on the poster."""


@dataclass(frozen=True, slots=True)
class Contact:
    """Contact details of a person."""

    person: Person
    phone: str
    office: str
    department: str
    hours: str


@dataclass(frozen=True, slots=True)
class HomeContent:
    """The initial content of the home site of one world."""

    notices: tuple[Notice, ...]
    weather: tuple[Weather, ...]
    roads: tuple[Road, ...]
    events: tuple[Event, ...]
    contacts: tuple[Contact, ...]
    """By name."""
    card_number: int
    """Shown when the user accepts the rules of the library."""

    def contact(self, handle: str) -> Contact | None:
        """Return the contact with this handle, or None."""
        return next((each for each in self.contacts if each.person.handle == handle), None)


_SKIES = "clear cloudy fog hail rain snow storm sun".split()
_STATES = ("clear", "closed", "road works", "slow", "fallen tree")
_THEMES = "Book Chess Dance Film Garden Music Poetry Science Story Tea".split()
_KINDS = "Afternoon Class Evening Market Meeting Night Talk Walk".split()
_HALLS = "Castle Barn|Church Hall|Grain House|Library|Old Station|Town Hall".split("|")
_DEPARTMENTS = "Buildings Forests Gardens Letters Roads Schools Taxes Water".split()
_ANIMALS = "a black cat|a brown dog|a grey goose|a green parrot|a white goat".split("|")
_FOUND = "a blue coat|a bunch of keys|a red umbrella|a silver ring|a small watch".split("|")
_DAYS = "Monday Tuesday Wednesday Thursday Friday".split()


def generate(names: Names, region: Region) -> HomeContent:
    """Generate the content of the home site."""
    contacts = _contacts(names, region)
    return HomeContent(
        notices=_notices(names, region, contacts),
        weather=tuple(_weather(names, place, region) for place in sorted(region.places)),
        roads=_roads(names, region),
        events=_events(names, region),
        contacts=contacts,
        card_number=names.rng.randint(20_000, 99_999),
    )


def month_of(content: HomeContent, year: int, month: int) -> tuple[Event, ...]:
    """Return the events of a month, in order."""
    return tuple(e for e in content.events if (e.day.year, e.day.month) == (year, month))


def _contacts(names: Names, region: Region) -> tuple[Contact, ...]:
    rng = names.rng
    lines = rng.sample(range(1000, 10_000), len(region.people))
    rooms = rng.sample(range(11, 99), len(region.people))
    return tuple(
        Contact(
            person=person,
            phone=f"555 {line}",
            office=f"Room {room}",
            department=names.pick(_DEPARTMENTS),
            hours=f"{names.pick(_DAYS)} {rng.randint(8, 11)}:00 to {rng.randint(13, 17)}:30",
        )
        for person, line, room in zip(
            sorted(region.people, key=lambda each: each.name), lines, rooms, strict=True
        )
    )


def _notices(names: Names, region: Region, contacts: tuple[Contact, ...]) -> tuple[Notice, ...]:
    """Generate notices with different subjects."""
    written: dict[str, Notice] = {}
    while len(written) < NUM_NOTICES:
        notice = _notice(names, region, contacts, len(written) + 1)
        written.setdefault(notice.subject, notice)
    return tuple(written.values())


def _notice(names: Names, region: Region, contacts: tuple[Contact, ...], id: int) -> Notice:
    rng, place = names.rng, names.pick(region.places)
    author = names.pick(contacts).person
    day = region.now.date() + timedelta(days=rng.randint(2, 20))
    when = f"{day.day} {day:%B}"
    hours = f"{rng.randint(7, 11)}:00 to {rng.randint(13, 19)}:00"
    subject, facts, text = names.pick(
        (
            (f"No water in {place}", (("Place", place), ("Day", when), ("Hours", hours)),
             "Fill a bucket the evening before."),
            (f"Paper is collected in {place}", (("Place", place), ("Day", when), ("Hours", hours)),
             "Put it at the gate, tied with string."),
            (f"Lost in {place}: {names.pick(_ANIMALS)}",
             (("Place", place), ("Reward", f"{rng.randint(12, 95)} dollars"), ("Since", when)),
             "It answers to its name when it wants to."),
            (f"Found in {place}: {names.pick(_FOUND)}",
             (("Place", place), ("Kept in", names.pick(_HALLS)), ("Until", when)),
             "Tell us what it looks like and it is yours."),
            (f"The market of {place} moves",
             (("Place", place), ("New place", names.pick(_HALLS)), ("From", when)),
             "The hours stay as they are."),
            (f"Helpers wanted in {place}",
             (("Place", place), ("Day", when), ("Helpers", str(rng.randint(3, 40)))),
             "Soup and tea for everybody who comes."),
        )
    )  # fmt: skip
    return Notice(id, subject, author, region.now.date() - timedelta(days=id - 1), facts, text)


def _weather(names: Names, place: str, region: Region) -> Weather:
    rng = names.rng
    forecasts = []
    for ahead in range(NUM_FORECAST_DAYS):
        high = rng.randint(3, 31)
        day = region.now.date() + timedelta(days=ahead)
        low = high - rng.randint(3, 11)
        forecasts.append(Forecast(day, names.pick(_SKIES), high, low, rng.randint(2, 79)))
    return Weather(place, tuple(forecasts))


def _roads(names: Names, region: Region) -> tuple[Road, ...]:
    delays = names.rng.sample(range(4, 75), NUM_ROADS)
    ends = [names.sample(region.places, 2) for _ in delays]
    return tuple(
        Road(start, end, names.pick(_STATES), delay)
        for (start, end), delay in zip(ends, delays, strict=True)
    )


def _events(names: Names, region: Region) -> tuple[Event, ...]:
    rng = names.rng
    first = region.now.date().replace(day=1)
    planned: list[tuple[date, str]] = []
    for _ in range(NUM_MONTHS):
        count = rng.randint(8, 14)
        planned += [(first.replace(day=day), names.pick(region.places))
                    for day in sorted(rng.sample(range(1, 29), count))]  # fmt: skip
        first = (first + timedelta(days=32)).replace(day=1)
    return tuple(
        Event(
            id=id,
            title=names.title(f"{place} {{theme}} {{kind}}", theme=_THEMES, kind=_KINDS),
            day=day,
            begins=f"{rng.randint(9, 20)}:{names.pick(('00', '15', '30', '45'))}",
            place=place,
            hall=names.pick(_HALLS),
            host=names.pick(region.people[1:]),
            seats=rng.randint(12, 240),
            entry=rng.randint(3, 49),
        )
        for id, (day, place) in enumerate(planned, start=1)
    )
