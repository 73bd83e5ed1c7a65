"""The boards of the forum, and the facts on a board's page."""

from dataclasses import dataclass

from agentkv_env.sites.names import Names


@dataclass(frozen=True, slots=True)
class Board:
    """A board for threads on one subject; `name` is its part of the address."""

    name: str
    about: str


@dataclass(frozen=True, slots=True)
class Charter:
    """The moderators and rules of a board."""

    board: str
    moderators: tuple[str, ...]
    founded: int
    """Year."""
    readers: int
    rules: tuple[str, ...]


BOARDS = (
    Board("books", "What we read and what we think of it"),
    Board("cooking", "Recipes, kitchens and mishaps"),
    Board("cycling", "Bicycles, routes and repairs"),
    Board("gardening", "Beds, trees, bees and weather"),
    Board("localnews", "What happens in our towns"),
    Board("music", "Playing, listening, swapping"),
    Board("repairs", "Do not throw it away yet"),
    Board("travel", "Days out and long ways round"),
)
_RULES = (
    "Be kind.",
    "No adverts before {day}.",
    "At most {number} threads a week.",
    "Titles have at least {number} letters.",
    "Photos only on {day}.",
    "New members wait {number} days.",
    "Ask {moderator} before you sell something.",
    "Meetings are on {day}.",
)
_DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
_RULES_OF_A_BOARD = 4


def charters(names: Names, handles: list[str]) -> tuple[Charter, ...]:
    """Generate a charter for each board, with two of `handles` as moderators."""
    result = []
    for board in BOARDS:
        moderators = tuple(names.sample(handles, 2))
        rules = tuple(
            rule.format(
                day=names.pick(_DAYS), number=names.rng.randint(2, 19), moderator=moderators[0]
            )
            for rule in names.sample(_RULES, _RULES_OF_A_BOARD)
        )
        founded, readers = names.rng.randint(2004, 2019), names.rng.randint(60, 9800)
        result.append(Charter(board.name, moderators, founded, readers, rules))
    return tuple(result)
