"""A needle: a long page of invented facts, some of which answer a question.

The page uses names and words of the sites in evaluation worlds. Every needle has its own page, so
needles are independent. Equal arguments give equal needles.
"""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Literal

from agentkv.dialog.prompt import Template
from agentkv_env.page import Box, Node, Page
from agentkv_env.serialize import serialize
from agentkv_env.sites.names import Names
from agentkv_env.sites.shop.stock import CATEGORIES, COLOURS, LINES, REVIEWS
from agentkv_tasks.bench.errors import BenchError
from agentkv_tasks.bench.needle.kinds import Kind, One

Question = Literal["before", "after"]
"""Where the question stands: in the goal before the page, or on the last line of the page."""

_NOWHERE = Box(0, 0, 0, 0)
NONCE = "0a1b2c3d"
"""A nonce with the length of an episode's."""
_KINDS = tuple(kind for kinds in CATEGORIES.values() for kind in kinds)
_REVIEWS = tuple(text for texts in REVIEWS.values() for _, text in texts)


@dataclass(frozen=True, slots=True)
class Needle:
    """A question, and the page that answers it."""

    goal: str
    """The question, or the request to answer the one at the end of the page."""
    page: Page
    lines: tuple[str, ...]
    """Lines that the answer needs; the first one stands at the depth."""
    values: tuple[str, ...]
    """Values of the answer."""
    num_tokens: int
    """Tokens of goal and page, as the model reads them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NeedleSpot:
    """What decides a needle, beside the model that reads it."""

    seed: int
    number: int
    """Number of the needle among those that are alike."""
    length: int
    """Maximum tokens of goal and page."""
    depth: int
    """Percentage of the page above the first line that the answer needs."""
    question: Question = "before"
    kind: Kind = One()


def make_needle(template: Template, spot: NeedleSpot) -> Needle:
    """Make a needle for the model of `template`.

    Goal and page take at most `length` tokens and fall short by less than a line. The first line
    that the answer needs stands where the share of tokens above it comes nearest to `depth`: first
    at 0, last at 100. Further ones follow at equal distances, about a page's n-th part for n lines,
    and go on at the top of the page (our choice), so that they are equally far apart at all depths.
    A question `after` the page stands below all lines, so a cache has to keep the lines before it
    can know that they are asked for.

    Raises:
        BenchError: the hidden lines alone are longer than `length`.
    """
    draft = _Draft(template, spot)
    draft.require_room()
    draft.fill()
    num_lines = bisect_right(range(len(draft.lines) + 1), spot.length, key=draft.num_tokens) - 1
    return Needle(
        draft.goal,
        draft.page(num_lines),
        draft.hidden.sought,
        draft.hidden.values,
        draft.num_tokens(num_lines),
    )


def require_room(template: Template, spot: NeedleSpot) -> None:
    """Check that a needle's hidden lines fit into its page, without making the page.

    Raises:
        BenchError: they do not fit.
    """
    _Draft(template, spot).require_room()


def goal_of(template: Template, spot: NeedleSpot) -> str:
    """Return the goal of a needle, without making its page."""
    return _Draft(template, spot).goal


class _Draft:
    """A page in the making: its hidden lines, and after `fill` more other lines than will fit."""

    def __init__(self, template: Template, spot: NeedleSpot) -> None:
        self._template, self._spot = template, spot
        topic = "needle" if spot.kind.name == "one" else spot.kind.name
        self._names = Names(spot.seed, f"{topic} {spot.length} {spot.depth} {spot.number}")
        self.hidden = spot.kind.hide(self._names)
        self._shares = [self._names.rng.random() for _ in self.hidden.others]
        self._sought = [_sized(template, text) for text in self.hidden.sought]
        self._others = [_sized(template, text) for text in self.hidden.others]
        self.lines: list[_Line] = []
        is_before = spot.question == "before"
        self.goal = self.hidden.asks if is_before else "Answer the question at the end of the page."

    def require_room(self) -> None:
        least = self.num_tokens(0)
        if least > self._spot.length:
            raise BenchError(
                f"--lengths {self._spot.length}: a question and "
                f"{len(self._sought) + len(self._others)} codes alone are {least} tokens for this "
                "model; give a longer one"
            )

    def fill(self) -> None:
        filler = _filler(self._names, frozenset(self._names.taken))
        size = 0
        while size < self._spot.length:
            self.lines.append(_sized(self._template, next(filler)))
            size += self.lines[-1].num_tokens

    def page(self, num_lines: int) -> Page:
        """Return the page with this many other lines."""
        chosen = self.lines[:num_lines]
        for line, share in zip(self._others, self._shares, strict=True):
            chosen.insert(_place(chosen, share), line)
        first = self._spot.depth / 100
        # from the last to the first, whose place is exact
        for number, line in reversed(list(enumerate(self._sought))):
            share = first + number / len(self._sought)
            chosen.insert(_place(chosen, share - (share > 1)), line)
        texts = [line.text for line in chosen]
        texts += [self.hidden.asks] * (self._spot.question == "after")
        nodes = tuple(Node("text", "text", text, _NOWHERE) for text in texts)
        return Page("http://wiki.localhost/facts", "Facts", nodes)

    def num_tokens(self, num_lines: int) -> int:
        observation = observe(self._template, self.page(num_lines))
        read = [
            self._template.opening(self.goal, NONCE),
            self._template.turn(observation, "", NONCE),
        ]
        return sum(map(len, read))


def observe(template: Template, page: Page) -> str:
    """Return the whole text of a page in the layout of `template`."""
    return serialize(page, layout=template.layout).text


@dataclass(frozen=True, slots=True)
class _Line:
    text: str
    num_tokens: int


def _sized(template: Template, text: str) -> _Line:
    return _Line(text, template.count(text))


def _filler(names: Names, reserved: frozenset[str]) -> Iterator[str]:
    """Yield endless lines like those of the sites, without codes.

    Args:
        reserved: names to avoid. Other names repeat, because a long page needs more than there are.
    """
    rng = names.rng
    while True:
        names.taken.clear()
        names.taken.update(reserved)
        kind = names.pick(_KINDS)
        cheap, dear = kind.dollars
        product = names.product(names.brand(), LINES, kind.name)
        yield f"{product} | ${rng.randint(cheap, dear)}.{names.pick(('00', '50', '95', '99'))}"
        place = names.place()
        yield names.pick(
            (
                f"Material | {names.pick(kind.materials)}",
                f"Weight | {rng.randint(*kind.grams)} g",
                f"Colour | {names.pick(COLOURS)}",
                f"Rating | {rng.randint(1, 5)} of 5",
                f"{place}, population | {rng.randint(800, 90_000)}",
                f"{place}, founded | {rng.randint(1100, 1990)}",
            )
        )
        person = names.person(place).name
        yield names.pick(
            (
                f"Seller | {person} from {place}",
                f"{person}: {names.pick(_REVIEWS)}",
                f"{person} | {names.street()} {rng.randint(1, 99)}",
            )
        )


def _place(lines: Sequence[_Line], share: float) -> int:
    """Return the place whose lines above come nearest to `share` of all tokens."""
    above = [0, *accumulate(line.num_tokens for line in lines)]
    return min(range(len(above)), key=lambda index: abs(above[index] - share * above[-1]))
