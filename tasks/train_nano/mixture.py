"""What is trained on, stage by stage: which kinds of rows, and how hard they are."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from agentkv.dialog.prompt import PlainTemplate
from train_nano.annotate import annotated
from train_nano.copying import copying
from train_nano.data import Recordings
from train_nano.drills import Drills
from train_nano.episode import Row, encode, stretch
from train_nano.errands import errand, gathering
from train_nano.pairs import LEVELS as PAIR_LEVELS
from train_nano.pairs import pairing
from train_nano.quoting import quoting
from train_nano.recall import needle, recalling


@dataclass(frozen=True, slots=True)
class Stage:
    """A part of the curriculum."""

    shares: Mapping[str, float]
    """Of the tokens, by kind of row; counted in rows, drills would get next to nothing."""
    judged: frozenset[str]
    """The kinds whose right answers say whether a level is mastered."""
    levels: tuple[int, ...]
    mastered: float
    """The share of right answers that ends a level."""
    most_tokens: int
    """After so many at one level the next begins anyway."""
    step_tokens: int = 4096
    by_reply: bool = False
    """Whether whole replies are judged instead of tokens."""


STAGES: dict[str, Stage] = {
    "copy": Stage({"copy": 1.0}, frozenset({"copy"}), (16, 32, 64, 128, 256, 512), 0.9, 3_000_000),
    "pair": Stage(
        {"pair": 0.9, "copy": 0.1},
        frozenset({"pair"}),
        (0, 1),
        0.8,
        1_000_000,
    ),
    "drill": Stage(
        {
            "drill": 0.3, "errand": 0.17, "gathering": 0.16, "quote": 0.1, "recall": 0.15,
            "pair": 0.06, "copy": 0.06,
        },
        frozenset({"drill", "errand", "gathering"}),
        (3, 5, 8, 12, 18, 26, 36),
        0.85,
        600_000,
        step_tokens=6144,
        by_reply=True,
    ),
    "episodes": Stage(
        {
            "task": 0.6, "stroll": 0.01, "quote": 0.03, "errand": 0.07, "gathering": 0.13,
            "drill": 0.01, "recall": 0.04, "needle": 0.06, "copy": 0.05,
        },
        frozenset(),
        (0,),
        1.0,
        1 << 60,
        step_tokens=8192,
    ),
}  # fmt: skip
ORDER = tuple(STAGES)
MADE_UP = {"task": "errand", "stroll": "drill"}
"""What stands in for recordings that are not there."""
STRETCHED = ("task", "errand", "gathering", "needle")
"""Kinds of which some rows have gaps between pages, so that short ones teach long distances."""
MOST_ELEMENTS = 36
LONGEST_NEEDLE = 8192
LONG_ROWS = 0.6
"""The last part of a run, in which recorded rows and needles are long: attention to them is most of
their cost."""


@dataclass(frozen=True, slots=True)
class Source:
    """Where rows come from."""

    template: PlainTemplate
    recordings: Recordings
    plain_tokens: Sequence[int]
    max_tokens: int
    """Of a recorded episode's row in the last part of a run; longer ones lose pages that nothing
    later needs. Earlier rows are shorter, for attention to long ones is most of their cost."""

    def shares(self, stage: str) -> dict[str, float]:
        """Of the tokens of `stage`, by kind of row; what is made up stands in for what is missing.

        Kinds are merged here, not row by row: a kind that never gets its share would be drawn first
        in every step, and starve those with smaller shares.
        """
        merged: dict[str, float] = {}
        for kind, share in STAGES[stage].shares.items():
            if kind in MADE_UP and not self.recordings.has(kind):
                kind = MADE_UP[kind]
            merged[kind] = merged.get(kind, 0.0) + share
        return merged

    def row(
        self,
        kind: str,
        stage: str,
        level: int,
        rng: random.Random,
        *,
        left: float,
        wrong: Mapping[str, float],
    ) -> Row:
        """A row of this kind, as hard as `level` of `stage` has it.

        Args:
            left: the share of the run that is still to come.
            wrong: by recorded task, the share of its replies that came out wrong lately.
        """
        row = self._made(kind, stage, level, rng, left, wrong)
        if stage == "episodes" and kind in STRETCHED and rng.random() < 0.12:
            most = rng.choice((64, 512, 2000))
            page_id = self.template.turn("")[0]
            row = stretch(row, page_id, [rng.randint(0, most) for _ in range(12)])
        return replace(row, kind=kind)

    def _made(
        self,
        kind: str,
        stage: str,
        level: int,
        rng: random.Random,
        left: float,
        wrong: Mapping[str, float],
    ) -> Row:
        if kind == "copy":
            if stage == "copy":
                return copying(rng, self.plain_tokens, level)
            few = rng.choice((len(self.plain_tokens), 200, 50, 12))
            return copying(rng, rng.sample(self.plain_tokens, few), rng.choice((64, 128, 256, 512)))
        if kind == "pair":
            return pairing(
                rng,
                self.plain_tokens,
                level if stage == "pair" else rng.randrange(len(PAIR_LEVELS)),
            )
        if kind in ("task", "stroll"):
            thinned = max(0.15, min(0.75, 2.0 * left))
            most = self.max_tokens if left < LONG_ROWS else self.max_tokens * 2 // 5
            return self.recordings.row(
                kind, rng, self.template, max_tokens=most, thinned=thinned, wrong=wrong
            )
        drills = Drills(rng.randrange(1 << 30))
        elements = level if stage == "drill" else rng.randint(4, MOST_ELEMENTS)
        if kind == "quote":
            if self.recordings and rng.random() < 0.8:
                goal, page = self.recordings.page(rng)
            else:
                drawn = errand(drills, elements)
                goal, page = drawn.goal, rng.choice(drawn.turns).page
            return quoting(rng, self.template, goal, page, count=12, weight=0.5)
        if kind == "recall":
            return recalling(drills, rng.randint(2, 2 * elements), self.template)
        if kind == "needle":
            longest = LONGEST_NEEDLE if left < LONG_ROWS else LONGEST_NEEDLE // 8
            tokens = int(2 ** rng.uniform(6, longest.bit_length() - 1))
            return needle(drills, tokens, self.template)
        if rng.random() < 0.3:
            elements = rng.randint(1, elements)
        if kind in ("errand", "gathering"):
            make = gathering if kind == "gathering" else errand
            return encode(self.template, annotated(make(drills, elements)))
        return encode(self.template, annotated(drills.walk(elements)))


def next_kind(shares: Mapping[str, float], spent: Mapping[str, int]) -> str:
    """The kind that has had least of what it is to have."""
    total = sum(spent.get(kind, 0) for kind in shares)
    return max(shares, key=lambda kind: (shares[kind] * (total + 1) - spent.get(kind, 0), kind))
