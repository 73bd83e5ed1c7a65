"""A needle: a long page of invented facts, one of which answers a question.

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

FEWEST_OTHERS, MOST_OTHERS = 3, 6
"""Range of the number of lines with codes of other names, which make the name matter."""

Question = Literal["before", "after"]
"""Where the question stands: in the goal before the page, or on the last line of the page."""

_NOWHERE = Box(0, 0, 0, 0)
_NONCE = "0a1b2c3d"
"""A nonce with the length of an episode's."""
_KINDS = tuple(kind for kinds in CATEGORIES.values() for kind in kinds)
_REVIEWS = tuple(text for texts in REVIEWS.values() for _, text in texts)


@dataclass(frozen=True, slots=True)
class Needle:
    """A question, and the page that answers it in one line."""

    goal: str
    """The question, or the request to answer the one at the end of the page."""
    page: Page
    line: str
    """Line with the answer."""
    value: str
    """The answer."""
    num_tokens: int
    """Tokens of goal and page, as the model reads them."""


def make_needle(
    template: Template,
    *,
    seed: int,
    number: int,
    length: int,
    depth: int,
    question: Question = "before",
) -> Needle:
    """Make the `number`-th needle of `length` tokens, `depth` percent down its page.

    Goal and page take at most `length` tokens and fall short by less than a line. The line stands
    where the share of tokens above it comes nearest to `depth`: first at 0, last at 100. A question
    `after` the page stands below all lines, so a cache has to keep the line before it can know that
    it is asked for.

    Raises:
        BenchError: the codes alone are longer than `length`.
    """
    names = Names(seed, f"needle {length} {depth} {number}")
    rng = names.rng
    num_facts = 1 + rng.randint(FEWEST_OTHERS, MOST_OTHERS)
    facts = [(_bearer(names), names.code(2, 4)) for _ in range(num_facts)]
    asked, value = facts[0]
    asks = f"What is the code of {asked}?"
    goal = asks if question == "before" else "Answer the question at the end of the page."
    sought, *others = (_sized(template, f"code of {name} | {code}") for name, code in facts)
    shares = [rng.random() for _ in others]
    filler = _filler(names, frozenset(names.taken))
    lines: list[_Line] = []
    size = 0
    while size < length:  # more than will fit
        lines.append(_sized(template, next(filler)))
        size += lines[-1].num_tokens

    def page(num_lines: int) -> Page:
        chosen = lines[:num_lines]
        for line, share in zip(others, shares, strict=True):
            chosen.insert(_place(chosen, share), line)
        chosen.insert(_place(chosen, depth / 100), sought)
        texts = [line.text for line in chosen] + [asks] * (question == "after")
        nodes = tuple(Node("text", "text", text, _NOWHERE) for text in texts)
        return Page("http://wiki.localhost/facts", "Facts", nodes)

    def num_tokens(num_lines: int) -> int:
        observation = observe(template, page(num_lines))
        read = [template.opening(goal, _NONCE), template.turn(observation, "", _NONCE)]
        return sum(map(len, read))

    num_lines = bisect_right(range(len(lines) + 1), length, key=num_tokens) - 1
    if num_lines < 0:
        raise BenchError(
            f"--lengths {length}: a question and {num_facts} codes alone are {num_tokens(0)} "
            "tokens for this model; give a longer one"
        )
    return Needle(goal, page(num_lines), sought.text, value, num_tokens(num_lines))


def observe(template: Template, page: Page) -> str:
    """Return the whole text of a page in the layout of `template`."""
    return serialize(page, layout=template.layout, boxes=template.boxes).text


@dataclass(frozen=True, slots=True)
class _Line:
    text: str
    num_tokens: int


def _sized(template: Template, text: str) -> _Line:
    return _Line(text, template.count(text))


def _bearer(names: Names) -> str:
    """Return a name that can have a code: a product, a person or a place."""
    roll = names.rng.random()
    if roll < 0.5:
        return names.product(names.brand(), LINES, names.pick(_KINDS).name)
    return names.person("").name if roll < 0.75 else names.place()


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
