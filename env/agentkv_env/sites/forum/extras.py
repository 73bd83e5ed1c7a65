"""Extras of threads: flairs, polls and spoilers."""

from dataclasses import dataclass

from agentkv_env.sites.names import Names
from agentkv_env.sites.region import Region

FLAIRS = ("Advice", "Event", "News", "Question", "Story")
"""Flairs of threads; a thread with a poster is always an Event."""

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
    """A poll with one vote per user; `votes` excludes the signed-in user."""

    question: str
    answers: tuple[str, ...]
    votes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Extras:
    """The extras of one thread."""

    flair: str
    poll: Poll | None
    spoiler: str
    """A text that is shown after a click; empty if there is none."""


def extras(names: Names, region: Region, number: int, *, is_poster: bool) -> Extras:
    """Generate extras of thread `number`; of eight threads, one has a poll and one a spoiler."""
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
