"""Training curriculum: the stages, their mixture of data kinds and their difficulty.

The names of stages and kinds are keys of the log and the checkpoint. An `errand` is a lookup
episode (`lookups.py`), a `stroll` a random walk (`random_walk.py`) and a `task` a recorded
solution.
"""

import math
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from tokenizers import Tokenizer

from agentkv.dialog.prompt import PlainTemplate
from train_nano.annotate import annotate
from train_nano.associative_recall import LEVELS as PAIR_LEVELS
from train_nano.associative_recall import pair_row
from train_nano.copying import copy_row
from train_nano.data import Recordings
from train_nano.drills import Drills
from train_nano.episode import TrainingRow, encode, stretch
from train_nano.lookups import gathering_episode, lookup_episode
from train_nano.page_recall import needle_row, recall_row
from train_nano.quoting import quote_row


@dataclass(frozen=True, slots=True)
class Stage:
    """A stage of the curriculum."""

    shares: Mapping[str, float]
    """Share of the tokens by kind of row. Shares of the row count would leave short rows with few
    tokens."""
    judged: frozenset[str]
    """Kinds whose accuracy decides when a level ends."""
    levels: tuple[int, ...]
    mastered: float
    """Accuracy that ends a level."""
    most_tokens: int
    """Number of tokens that ends a level at any accuracy."""
    step_tokens: int = 4096
    """Approximate number of tokens in one optimizer step."""
    by_reply: bool = False
    """Whether accuracy counts whole replies instead of tokens."""


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
            "task": 0.72, "stroll": 0.01, "quote": 0.02, "errand": 0.05, "gathering": 0.08,
            "drill": 0.01, "recall": 0.02, "needle": 0.06, "copy": 0.03,
        },
        frozenset(),
        (0,),
        1.0,
        1 << 60,
        step_tokens=8192,
        by_reply=True,
    ),
}  # fmt: skip
ORDER = tuple(STAGES)
SYNTHETIC_FALLBACK = {"task": "errand", "stroll": "drill"}
"""Synthetic kinds that replace missing recordings."""
STRETCHED = ("task", "errand", "gathering", "needle")
"""Kinds with position gaps between pages in some rows, so that short rows train long distances."""
MOST_ELEMENTS = 36
LONG_ROWS = 0.6
"""Final share of a run with long recorded rows and needles. They come late because attention makes
them expensive."""
HORIZON = 0.15
"""Final share of a run in which some recorded rows keep all of their pages, and needles are as far
away as nano has positions. A token of a row of 16,384 takes four times as long as one of 4,096."""
WHOLE = 0.15
"""Share of the recorded rows of that part that keep all of their pages."""
LONGEST_ROW = 32_768
"""Maximum tokens of such a row, and nano's number of positions."""
LONGEST_NEEDLE = 30_000
"""Maximum tokens of a needle's page in that part; 8,192 and 1,024 before."""


@dataclass(frozen=True, slots=True)
class MixturePlan:
    """Everything that the rows of one step depend on, besides their `Source`."""

    seed: int
    step: int
    stage: str
    level: int
    """Difficulty, one of the levels of `stage`."""
    left: float
    """Remaining share of the run."""
    factor: int
    """Multiple of the stage's `step_tokens`."""
    spent: Mapping[str, int]
    """Tokens used before, by kind of row."""
    wrong: Mapping[str, float]
    """Share of wrong replies by recorded task."""


@dataclass(frozen=True, slots=True)
class Source:
    """Generator of training rows of all kinds."""

    template: PlainTemplate
    recordings: Recordings
    plain_tokens: Sequence[int]
    """Ids of all tokens without a special meaning, for random rows."""
    max_tokens: int
    """Maximum tokens of a recorded row in the last part of a run, two fifths of it before. Longer
    episodes lose pages that no later reply needs."""

    def shares(self, stage: str) -> dict[str, float]:
        """Return the share of tokens by kind, with synthetic kinds instead of missing recordings.

        Shares are merged before rows are drawn. A kind without rows would otherwise come first in
        every step and displace kinds with smaller shares.
        """
        merged: dict[str, float] = {}
        for kind, share in STAGES[stage].shares.items():
            if kind in SYNTHETIC_FALLBACK and not self.recordings.has(kind):
                kind = SYNTHETIC_FALLBACK[kind]
            merged[kind] = merged.get(kind, 0.0) + share
        return merged

    def rows(self, plan: MixturePlan) -> list[TrainingRow]:
        """Draw the rows of a step, about `step_tokens` tokens. Equal plans give equal rows."""
        rng = random.Random(f"{plan.seed}/{plan.step}")
        shares = self.shares(plan.stage)
        spent = Counter(plan.spent)
        most = self.step_tokens(plan.stage, plan.left, plan.factor)
        rows: list[TrainingRow] = []
        total = 0
        while total < most:
            kind = next_kind(shares, spent)
            row = self.row(kind, plan.stage, plan.level, rng, left=plan.left, wrong=plan.wrong)
            rows.append(row)
            spent[kind] += len(row.ids)
            total += len(row.ids)
        return rows

    def row(
        self,
        kind: str,
        stage: str,
        level: int,
        rng: random.Random,
        *,
        left: float,
        wrong: Mapping[str, float],
    ) -> TrainingRow:
        """Draw a row of this kind.

        Args:
            level: difficulty, one of the levels of `stage`.
            left: remaining share of the run.
            wrong: share of wrong replies by recorded task.
        """
        row = self._base_row(kind, stage, level, rng, left, wrong)
        if stage == "episodes" and kind in STRETCHED and rng.random() < 0.12:
            most = rng.choice((64, 512, 2000))
            page_id = self.template.turn("")[0]
            row = stretch(row, page_id, [rng.randint(0, most) for _ in range(12)])
        return replace(row, kind=kind)

    def step_tokens(self, stage: str, left: float, factor: int = 1) -> int:
        """Return about how many tokens a step has: `factor` times those of its stage; with whole
        rows at least four times as many, so that every worker has one."""
        return STAGES[stage].step_tokens * max(factor, 4 if left < HORIZON else 1)

    def longest_row(self, left: float, rng: random.Random) -> int:
        """Draw the maximum tokens of a recorded row."""
        if left < HORIZON and rng.random() < WHOLE:
            return LONGEST_ROW
        return self.max_tokens if left < LONG_ROWS else self.max_tokens * 2 // 5

    def _base_row(
        self,
        kind: str,
        stage: str,
        level: int,
        rng: random.Random,
        left: float,
        wrong: Mapping[str, float],
    ) -> TrainingRow:
        if kind == "copy":
            if stage == "copy":
                return copy_row(rng, self.plain_tokens, level)
            few = rng.choice((len(self.plain_tokens), 200, 50, 12))
            return copy_row(
                rng, rng.sample(self.plain_tokens, few), rng.choice((64, 128, 256, 512))
            )
        if kind == "pair":
            return pair_row(
                rng,
                self.plain_tokens,
                level if stage == "pair" else rng.randrange(len(PAIR_LEVELS)),
            )
        if kind in ("task", "stroll"):
            thinned = max(0.15, min(0.75, 2.0 * left))
            most = self.longest_row(left, rng)
            return self.recordings.row(
                kind, rng, self.template, max_tokens=most, thinned=thinned, wrong=wrong
            )
        drills = Drills(rng.randrange(1 << 30))
        elements = level if stage == "drill" else rng.randint(4, MOST_ELEMENTS)
        if kind == "quote":
            if self.recordings and rng.random() < 0.8:
                goal, page = self.recordings.page(rng)
            else:
                drawn = lookup_episode(drills, elements)
                goal, page = drawn.goal, rng.choice(drawn.turns).page
            return quote_row(rng, self.template, goal, page, count=12, weight=0.5)
        if kind == "recall":
            return recall_row(drills, rng.randint(2, 2 * elements), self.template)
        if kind == "needle":
            longest = 1024 if left >= LONG_ROWS else 8192 if left >= HORIZON else LONGEST_NEEDLE
            tokens = int(2 ** rng.uniform(6, math.log2(longest)))
            return needle_row(drills, tokens, self.template)
        if rng.random() < 0.3:
            elements = rng.randint(1, elements)
        if kind in ("errand", "gathering"):
            generate = gathering_episode if kind == "gathering" else lookup_episode
            return encode(self.template, annotate(generate(drills, elements)))
        return encode(self.template, annotate(drills.walk(elements)))


def make_source(tokenizer: Tokenizer, recordings: Recordings, max_tokens: int) -> Source:
    """Create a source of rows in the tokens of `tokenizer`."""
    special = set(tokenizer.get_added_tokens_decoder())
    plain_tokens = [i for i in range(tokenizer.get_vocab_size()) if i not in special]
    return Source(PlainTemplate(tokenizer), recordings, plain_tokens, max_tokens)


def next_kind(shares: Mapping[str, float], spent: Mapping[str, int]) -> str:
    """Return the kind with the largest deficit between its share and the tokens spent on it."""
    total = sum(spent.get(kind, 0) for kind in shares)
    return max(shares, key=lambda kind: (shares[kind] * (total + 1) - spent.get(kind, 0), kind))
