"""Kinds of needle: what a page hides, and the question about it.

The kinds follow RULER (arXiv 2404.06654, section 3) in the words of the sites' pages: `One` is its
single needle among distractors, `Several` its multi-key and multi-query needles, `Chain` its
variable tracking.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import ClassVar, Literal

from agentkv_env.sites.names import Names
from agentkv_env.sites.shop.stock import CATEGORIES, LINES
from agentkv_tasks.bench.errors import BenchError
from agentkv_tasks.evaluate.strings import clean

KindName = Literal["one", "several", "chain"]

FEWEST_OTHERS, MOST_OTHERS = 3, 6
"""Range of the number of lines with codes of other names, which make the name matter."""
MOST_FACTS = 24
"""Most facts of a page and most values of an answer: a constrained reply quotes at most as many
lines."""
MOST_HOPS = 16
"""Most hops of a chain (our choice)."""

_KINDS = tuple(kind for kinds in CATEGORIES.values() for kind in kinds)
_SEPARATORS = re.compile(r"[,;\s]+")


@dataclass(frozen=True, slots=True)
class Hidden:
    """Lines to hide in a page, and a question that they answer."""

    asks: str
    sought: tuple[str, ...]
    """Lines that the answer needs. The first one stands at the depth of the needle."""
    others: tuple[str, ...]
    """Lines of the same form that the answer does not need."""
    values: tuple[str, ...]
    """Values of the answer."""


@dataclass(frozen=True, slots=True)
class One:
    """The code of one name, among the codes of three to six others."""

    name: ClassVar[KindName] = "one"

    @property
    def num_sought(self) -> int:
        """Lines that an answer needs."""
        return 1

    def hide(self, names: Names) -> Hidden:
        """Draw names and codes."""
        facts = _facts(names, 1 + names.rng.randint(FEWEST_OTHERS, MOST_OTHERS))
        return _asked_for(facts, 1)


@dataclass(frozen=True, slots=True)
class Several:
    """The codes of some of many names: RULER's multi-key and multi-query needles.

    Raises:
        BenchError: the numbers are out of range.
    """

    name: ClassVar[KindName] = "several"
    facts: int = 8
    """Names with a code."""
    asked: int = 2
    """Names that the question asks for."""

    def __post_init__(self) -> None:
        if not 2 <= self.facts <= MOST_FACTS:
            raise BenchError(f"--facts {self.facts}: expected 2 to {MOST_FACTS}")
        if not 1 <= self.asked <= self.facts:
            raise BenchError(
                f"--asked {self.asked}: expected 1 to {self.facts}, the number of --facts"
            )

    @property
    def num_sought(self) -> int:
        """Lines that an answer needs."""
        return self.asked

    def hide(self, names: Names) -> Hidden:
        """Draw names and codes."""
        return _asked_for(_facts(names, self.facts), self.asked)


@dataclass(frozen=True, slots=True)
class Chain:
    """A code that other names share: RULER's variable tracking.

    The line of the first name refers to a second name, whose line refers to a third, and so on. The
    line of the last name holds the code. The page also holds a second chain of the same length and
    a few plain codes, so neither the form of a line nor a name that occurs twice gives the answer
    away.

    Raises:
        BenchError: the number is out of range.
    """

    name: ClassVar[KindName] = "chain"
    hops: int = 2
    """Lines that refer to another name."""

    def __post_init__(self) -> None:
        if not 1 <= self.hops <= MOST_HOPS:
            raise BenchError(f"--hops {self.hops}: expected 1 to {MOST_HOPS}")

    @property
    def num_sought(self) -> int:
        """Lines that an answer needs."""
        return self.hops + 1

    def hide(self, names: Names) -> Hidden:
        """Draw names and codes."""
        (first, sought, value), (_, decoys, _) = (self._draw(names) for _ in range(2))
        plain = _facts(names, names.rng.randint(FEWEST_OTHERS, MOST_OTHERS))
        others = (*decoys, *(_line(name, code) for name, code in plain))
        return Hidden(f"What is the code of {first}?", sought, others, (value,))

    def _draw(self, names: Names) -> tuple[str, tuple[str, ...], str]:
        """Return the first name of a chain, its lines and its code."""
        *linked, (last, code) = _facts(names, self.hops + 1)
        bearers = [*(name for name, _ in linked), last]
        behind = [*(f"same as {name}" for name in bearers[1:]), code]
        return bearers[0], tuple(map(_line, bearers, behind)), code


Kind = One | Several | Chain


def make_kind(
    name: KindName, *, facts: int | None = None, asked: int | None = None, hops: int | None = None
) -> Kind:
    """Return a kind with its defaults for what is None.

    Raises:
        BenchError: a number is out of range, or belongs to another kind.
    """
    numbers = {"facts": facts, "asked": asked, "hops": hops}
    given = {option: number for option, number in numbers.items() if number is not None}
    kinds: dict[KindName, type[Kind]] = {"one": One, "several": Several, "chain": Chain}
    kind = kinds[name]
    own = {each.name for each in fields(kind)}
    for option in given:
        if option not in own:
            whose = "chain" if option == "hops" else "several"
            raise BenchError(f"--{option} belongs to --kind {whose}; found --kind {name}")
    return kind(**given)


def is_right(answer: str | None, values: Sequence[str]) -> bool:
    """Return True if an answer consists of exactly the values, in any order.

    Commas, semicolons and white space separate values, and `and` may stand between them. As in
    tasks, letter case, periods at the end and one pair of quotes around the answer do not count. A
    value that is repeated counts once, and any other word makes the answer wrong.
    """
    wanted = {clean(value, "mended") for value in values}
    return answer is not None and set(_listed(answer)) == wanted


def share_right(answer: str | None, values: Sequence[str]) -> float:
    """Return the share of the values that an answer lists.

    Of the words of the answer only the first ones count, as many as there are values, so an answer
    that lists all codes of a page gains nothing.
    """
    wanted = {clean(value, "mended") for value in values}
    listed = _listed(answer or "")[: len(wanted)]
    return len(wanted.intersection(listed)) / len(wanted)


def _listed(answer: str) -> list[str]:
    """Return the different words of an answer, without separators."""
    words = [word.rstrip(".") for word in _SEPARATORS.split(clean(answer, "mended"))]
    return list(dict.fromkeys(word for word in words if word and word != "and"))


def _asked_for(facts: Sequence[tuple[str, str]], num_asked: int) -> Hidden:
    """Ask for the first facts."""
    lines = [_line(name, code) for name, code in facts]
    bearers = [name for name, _ in facts[:num_asked]]
    if num_asked == 1:
        asks = f"What is the code of {bearers[0]}?"
    else:
        listed = f"{', '.join(bearers[:-1])} and {bearers[-1]}"
        asks = f"What are the codes of {listed}? Answer with the codes, joined by commas."
    values = tuple(code for _, code in facts[:num_asked])
    return Hidden(asks, tuple(lines[:num_asked]), tuple(lines[num_asked:]), values)


def _facts(names: Names, count: int) -> list[tuple[str, str]]:
    return [(_bearer(names), names.code(2, 4)) for _ in range(count)]


def _line(name: str, value: str) -> str:
    return f"code of {name} | {value}"


def _bearer(names: Names) -> str:
    """Return a name that can have a code: a product, a person or a place."""
    roll = names.rng.random()
    if roll < 0.5:
        return names.product(names.brand(), LINES, names.pick(_KINDS).name)
    return names.person("").name if roll < 0.75 else names.place()
