"""The tasks: what a context of a given size holds, and the questions about it.

`TASKS` has RULER's (arXiv 2404.06654, appendix B) and those of SCBench (arXiv 2412.10319, table 2)
that can be made anew from a seed. Equal arguments give equal cases.
"""

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from random import Random
from string import ascii_lowercase, ascii_uppercase
from typing import Literal

from agentkv.nearest import did_you_mean
from agentkv_tasks.bench.errors import BenchError
from agentkv_tasks.bench.ruler import wordings
from agentkv_tasks.bench.ruler.wordings import Wording

FEW_NEEDLES = 4
"""Keys or values of tasks with several needles, as in RULER."""
HOPS = 4
"""Variables after the first one of a chain, as in RULER."""
COMMON = 10
"""Words to find among the common ones, as in RULER."""
FREQUENT = 3
"""Coded words to find, as in RULER."""
LONG = 4096
"""Tokens from which on common words occur 30 times and others 3 times, as in RULER; in a shorter
context 10 times and once (our choice), since 30 leave no room."""
MOST_QUESTIONS = 8
"""Most questions about one context (our choice)."""

_ORDINALS = ("", "second ", "third ", "fourth ")


@dataclass(frozen=True, slots=True)
class Question:
    """A question about a context."""

    asks: str
    starts: str
    """Beginning of the reply."""
    expected: tuple[str, ...]
    """Texts that a right reply contains."""

    def score(self, reply: str) -> float:
        """Return the share of the expected texts that a reply contains, in any letter case."""
        found = reply.lower()
        return sum(each.lower() in found for each in self.expected) / len(self.expected)


@dataclass(frozen=True, slots=True)
class Case:
    """A context and the questions about it."""

    intro: str
    context: str
    questions: tuple[Question, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Draw:
    """What a case is drawn from."""

    rng: Random
    size: int
    """Sentences, words or other pieces that the context has beside those that are asked for."""
    num_questions: int
    """Questions of tasks that ask several."""
    is_long: bool
    """True from `LONG` tokens on."""
    sentences: Sequence[str] | None = None
    """Sentences of a text around the needles; None: noise."""

    @property
    def filler(self) -> list[str]:
        """`size` sentences."""
        if self.sentences is not None:
            return list(self.sentences[: self.size])
        return [wordings.NOISE[number % len(wordings.NOISE)] for number in range(self.size)]

    def scattered(self, lines: Sequence[str], shares: Sequence[float]) -> str:
        """Return the filler with lines at given shares of it."""
        placed = [(int(share * self.size), line) for share, line in zip(shares, lines, strict=True)]
        filler = self.filler
        for place, line in sorted(placed, key=lambda each: each[0])[::-1]:
            filler.insert(place, line)
        return " ".join(filler)

    def different(self, make: Callable[[], str], count: int) -> list[str]:
        """Return `count` different results of `make`."""
        found: dict[str, None] = {}
        while len(found) < count:
            found[make()] = None
        return list(found)

    def keys(self, count: int) -> list[str]:
        """Return different names such as `quiet-harbor`."""
        first, second = wordings.ADJECTIVES, wordings.NOUNS
        return self.different(lambda: f"{self.rng.choice(first)}-{self.rng.choice(second)}", count)

    def numbers(self, count: int, digits: int) -> list[str]:
        """Return different numbers."""
        low, high = 10 ** (digits - 1), 10**digits - 1
        return self.different(lambda: str(self.rng.randint(low, high)), count)

    def letters(self, count: int, length: int, alphabet: str = ascii_lowercase) -> list[str]:
        """Return different strings of letters."""
        return self.different(lambda: "".join(self.rng.choices(alphabet, k=length)), count)


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One kind of case."""

    draw: Callable[[Draw], Case]
    has_several: bool = False
    """Whether a context has several questions, one after another."""
    in_text: bool = False
    """Whether the context is a text of the user's."""
    least: int = 1
    """Smallest size."""
    most: int = 1 << 20
    """Largest size."""


def _question(wording: Wording, expected: Sequence[str], **drawn: object) -> Question:
    return Question(wording.asks.format(**drawn), wording.starts.format(**drawn), tuple(expected))


def _needles(draw: Draw, facts: Sequence[tuple[str, str]]) -> str:
    lines = [wordings.SECRET.format(key=key, value=value) for key, value in facts]
    return draw.scattered(lines, [draw.rng.random() for _ in lines])


def _multi_key(draw: Draw, *, num_keys: int | None = None) -> Case:
    """One number for each key; every question asks for one."""
    count = max(FEW_NEEDLES, draw.num_questions) if num_keys is None else num_keys
    facts = list(zip(draw.keys(count), draw.numbers(count, 7), strict=True))
    wording, asked = wordings.ONE_SECRET, facts[: draw.num_questions if num_keys is None else 1]
    questions = tuple(_question(wording, [value], key=key) for key, value in asked)
    return Case(wording.intro, _needles(draw, facts), questions)


def _multi_value(draw: Draw) -> Case:
    """Several numbers for one key; the question asks for all."""
    [key], values = draw.keys(1), draw.numbers(FEW_NEEDLES, 7)
    wording = wordings.SECRETS_OF_ONE
    question = _question(wording, values, key=key, count=len(values))
    return Case(wording.intro, _needles(draw, [(key, value) for value in values]), (question,))


def _multi_query(draw: Draw) -> Case:
    """One number for each of several keys; the question asks for all."""
    keys, values = draw.keys(FEW_NEEDLES), draw.numbers(FEW_NEEDLES, 7)
    wording = wordings.SECRETS_OF_SEVERAL
    question = _question(wording, values, keys=f"{', '.join(keys[:-1])} and {keys[-1]}")
    return Case(wording.intro, _needles(draw, list(zip(keys, values, strict=True))), (question,))


def _variables(draw: Draw, *, several: bool) -> Case:
    """Chains of variables that have the value of the one before; a question asks for one chain."""
    count, chain = draw.num_questions if several else 1, HOPS + 1
    values = draw.numbers(count, 5)
    names = draw.letters(count * chain, 5, ascii_uppercase)
    wording, lines, shares, questions = wordings.VARIABLES, list[str](), list[float](), []
    for number, value in enumerate(values):
        own = names[number * chain : (number + 1) * chain]
        lines.append(wordings.SET.format(name=own[0], value=value))
        lines += map(
            lambda name, before: wordings.COPIED.format(name=name, value=before), own[1:], own
        )
        shares += sorted(draw.rng.random() for _ in own)
        questions.append(_question(wording, own, count=chain, value=value))
    return Case(wording.intro, draw.scattered(lines, shares), tuple(questions))


def _common_words(draw: Draw) -> Case:
    """A list in which ten words occur ten times as often as the others."""
    first = wordings.NOUNS
    words = draw.different(
        lambda: draw.rng.choice(first) + draw.rng.choice(first), COMMON + draw.size
    )
    common, others = words[:COMMON], words[COMMON:]
    times = 3 if draw.is_long else 1
    listed = (common * 10 + others) * times
    draw.rng.shuffle(listed)
    context = " ".join(f"{number}. {word}" for number, word in enumerate(listed, 1))
    wording = wordings.COMMON_WORDS
    return Case(wording.intro, context, (_question(wording, common, count=COMMON),))


def _frequent_words(draw: Draw) -> Case:
    """Coded words by Zipf's law with exponent 2; dots stand for the most frequent one."""
    total = math.pi**2 / 6  # of all 1 / rank**2
    counts = [int(draw.size / rank**2 / total) for rank in range(1, draw.size + 1)]
    counts = [count for count in counts if count]
    coded = ["...", *draw.letters(len(counts) - 1, 6)]
    written = [word for word, count in zip(coded, counts, strict=True) for _ in range(count)]
    draw.rng.shuffle(written)
    wording, wanted = wordings.FREQUENT_WORDS, coded[1 : 1 + FREQUENT]
    return Case(wording.intro, " ".join(written), (_question(wording, wanted, count=FREQUENT),))


def _key_value(draw: Draw) -> Case:
    """A JSON object; a question asks for the value of one key. SCBench has 128-bit numbers in
    hexadecimal; names and seven digits leave small models a chance (our choice)."""
    count = draw.num_questions + draw.size
    pairs = list(zip(draw.keys(count), draw.numbers(count, 7), strict=True))
    wording, asked = wordings.KEY_VALUE, pairs[: draw.num_questions]
    draw.rng.shuffle(pairs)
    questions = tuple(_question(wording, [value], key=key) for key, value in asked)
    return Case(wording.intro, json.dumps(dict(pairs)), questions)


def _prefix_suffix(draw: Draw) -> Case:
    """A list of strings, of which two share each beginning and each end that is asked for."""
    ends = draw.letters(2 * draw.num_questions, 4)
    listed, questions, wording = [], [], wordings.PREFIX_SUFFIX
    for prefix, suffix in zip(ends[::2], ends[1::2], strict=True):
        middle, *others = draw.letters(3, 4)
        sought = f"{prefix}{middle}{suffix}"
        listed += [sought, f"{prefix}{''.join(others)}", f"{''.join(others)}{suffix}"]
        questions.append(_question(wording, [sought], prefix=prefix, suffix=suffix))
    listed += draw.letters(draw.size, 12)
    draw.rng.shuffle(listed)
    return Case(wording.intro, "\n".join(listed), tuple(questions))


def _find(draw: Draw) -> Case:
    """A list of numbers; a question asks for the largest, the smallest, the second largest..."""
    listed = draw.numbers(MOST_QUESTIONS + draw.size, 5)
    ordered, wording = sorted(listed), wordings.FIND
    which = [
        (f"{ordinal}{end}", ordered[-1 - place if end == "largest" else place])
        for place, ordinal in enumerate(_ORDINALS)
        for end in ("largest", "smallest")
    ]
    questions = tuple(
        _question(wording, [value], which=name) for name, value in which[: draw.num_questions]
    )
    return Case(wording.intro, ", ".join(listed), questions)


_MOST_KEYS = len(wordings.ADJECTIVES) * len(wordings.NOUNS) // 2
_MOST_WORDS = len(wordings.NOUNS) ** 2 // 2
"""Half of all there are: more would take long to draw."""

_NEEDLES = {
    "single": Task(draw=partial(_multi_key, num_keys=1)),
    "multi-key": Task(draw=_multi_key, has_several=True),
    "multi-value": Task(draw=_multi_value),
    "multi-query": Task(draw=_multi_query),
}
TASKS: dict[str, Task] = {
    **_NEEDLES,
    **{
        f"{name}-text": Task(draw=task.draw, has_several=task.has_several, in_text=True)
        for name, task in _NEEDLES.items()
    },
    "variables": Task(draw=partial(_variables, several=False)),
    "common-words": Task(draw=_common_words, most=_MOST_WORDS),
    "frequent-words": Task(draw=_frequent_words, least=80),  # below, ranks share a count
    "key-value": Task(draw=_key_value, has_several=True, most=_MOST_KEYS),
    "prefix-suffix": Task(draw=_prefix_suffix, has_several=True),
    "multi-hop": Task(draw=partial(_variables, several=True), has_several=True),
    "find": Task(draw=_find, has_several=True, most=20_000),
}
"""All tasks by name; RULER's first."""

Mode = Literal["one", "requests", "turns"]
"""How questions are asked: one alone; several, each after the bare context; several, each after the
questions and replies before it."""


def chosen_tasks(names: Sequence[str] | None, *, has_text: bool) -> tuple[str, ...]:
    """Return the names of tasks.

    Args:
        names: as given; None stands for all, those over text only if there is one.

    Raises:
        BenchError: an unknown task, or one that needs a text.
    """
    if names is None:
        return tuple(name for name, task in TASKS.items() if has_text or not task.in_text)
    for name in names:
        if name not in TASKS:
            hint = did_you_mean(name, tuple(TASKS))
            raise BenchError(f"--tasks {name}: no such task; {hint}known: {', '.join(TASKS)}")
        if TASKS[name].in_text and not has_text:
            raise BenchError(f"--tasks {name} hides needles in a --text; give one")
    return tuple(dict.fromkeys(names))
