"""What some threads have beside their text: a flair, a poll, a text that is hidden at first."""

from dataclasses import dataclass

from agentkv_env.sites.names import Names
from agentkv_env.sites.region import Region

FLAIRS = ("Advice", "Event", "News", "Question", "Story")
"""What a thread can be marked as; a poster is always an Event."""

_MONTHS = "March April May June July August September October".split()
_DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
_QUESTIONS = (
    ("Which town is best for it?", "places"),
    ("Which maker do you trust?", "brands"),
    ("Which month suits you?", "months"),
    ("Which day suits you?", "days"),
)
_SPOILERS = (
    "The winner was {brand} with {number} points.",
    "It ends in {place}, on page {code}.",
    "The answer is {code}.",
    "They paid {code} dollars in {place}.",
    "The hidden word is {brand}.",
)
_ANSWERS = 4


@dataclass(frozen=True, slots=True)
class Poll:
    """A question with answers to choose one from; `votes` are everybody else's."""

    question: str
    answers: tuple[str, ...]
    votes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Extras:
    """Beside the text of one thread."""

    flair: str
    poll: Poll | None
    spoiler: str
    """Shown after a click; empty where nothing is hidden."""


def extras(names: Names, region: Region, number: int, *, is_poster: bool) -> Extras:
    """What thread `number` has; of eight threads one has a poll, and one hides something."""
    flair = "Event" if is_poster else names.pick([each for each in FLAIRS if each != "Event"])
    poll = _poll(names, region) if number % 8 == 1 else None
    return Extras(flair, poll, _spoiler(names, region) if number % 8 == 3 else "")


def _poll(names: Names, region: Region) -> Poll:
    question, kind = names.pick(_QUESTIONS)
    choices = {"places": region.places, "brands": region.brands, "months": _MONTHS, "days": _DAYS}
    votes = names.sample(range(3, 90), _ANSWERS)
    return Poll(question, tuple(names.sample(choices[kind], _ANSWERS)), tuple(votes))


def _spoiler(names: Names, region: Region) -> str:
    return names.pick(_SPOILERS).format(
        brand=names.pick(region.brands),
        place=names.pick(region.places),
        number=names.rng.randint(12, 90),
        code=names.rng.randint(111, 989),
    )
