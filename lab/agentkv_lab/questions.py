"""Pairs policies by the contexts of `agentkv bench ruler`, and draws their answers over bytes.

    python -m agentkv_lab.questions ruler.jsonl --policy repair --length 2048
    python -m agentkv_lab.questions ruler.jsonl --length 2048 --draw docs/answers.svg
    python -m agentkv_lab.questions calls.jsonl --calls --policy lookback-int8

Files of several seeds are taken together; a policy without all of them is left out.

Only tasks that the full cache solves to 60 % count. The score of a context is the mean over its
questions and modes; contexts are the clusters of the sign-flip test, and Holm's method corrects its
p-values over all policies of a length. With `--calls`, the rows are those of `agentkv bench calls`,
whose conversations are paired by their nats.
"""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import fsum
from pathlib import Path
from statistics import fmean

from rich.console import Console
from rich.table import Table

from agentkv_lab.picture import Axes, Mark, chart
from agentkv_tasks.bench.calls.rows import CallsRow
from agentkv_tasks.bench.row_file import RowFile
from agentkv_tasks.bench.ruler.rows import RulerRow
from agentkv_tasks.bench.ruler.table import deciding, mean_scores
from agentkv_tasks.report.statistics import bootstrap_interval, holm, sign_flip_exact

_PARTS = 2**10 * 3**3 * 5 * 7
"""Scores are multiples of one part of it, so that the exact test can add them as integers."""

LABELS = {
    "lookback-int4": (2, -12, "start"),
    "int4": (-2, -12, "end"),
    "louiskv": (12, 5, "start"),
    "infllm": (12, 5, "start"),
}
"""Where names stand in the committed picture if not above."""


@dataclass(frozen=True, slots=True)
class Pair:
    """A policy beside the one that all are compared with, at one length."""

    label: str
    score: float
    difference: float
    """Score of the chosen policy minus that of this one, mean over contexts."""
    interval: tuple[float, float]
    num_contexts: int
    won: int
    """Contexts in which the chosen policy scores more."""
    lost: int
    p_value: float
    """Of the sign-flip test, corrected."""


def read(paths: Sequence[Path]) -> list[RulerRow]:
    """Return the rows of files, those of several seeds joined; a policy that lacks a seed of others
    has none at that length.

    Raises:
        BenchError: a file holds something else.
        ValueError: rows of one task, length and seed have other contexts or another model.
    """
    files = [RowFile(path, RulerRow, lambda row: row.place, fresh=False) for path in paths]
    rows = [row for file in files for row in file.rows]
    known: dict[tuple[int, str, int], tuple[str, ...]] = {}
    for row in rows:
        own = (row.prompts_sha256, row.model, row.weights)
        if known.setdefault((row.length, row.task, row.seed), own) != own:
            raise ValueError(
                f"rows of {row.task} at {row.length} tokens have other contexts or another model, "
                "so that they cannot be paired"
            )
    return _joined(rows)


def _joined(rows: Sequence[RulerRow]) -> list[RulerRow]:
    """Join the rows of a policy that differ in their seeds alone."""
    by_place: dict[tuple[int, str, str, str], dict[int, RulerRow]] = {}
    seeds: dict[tuple[int, str, str], set[int]] = {}
    for row in rows:
        by_seed = by_place.setdefault((row.length, row.task, row.mode, row.label), {})
        if by_seed.setdefault(row.seed, row).scores != row.scores:
            raise ValueError(
                f"{row.label!r} has two rows of {row.task} at {row.length} tokens with seed "
                f"{row.seed}, whose scores differ; give the file of one of them"
            )
        seeds.setdefault((row.length, row.task, row.mode), set()).add(row.seed)
    lacking = {
        (length, label)
        for (length, task, mode, label), by_seed in by_place.items()
        if seeds[length, task, mode] - by_seed.keys()
    }
    return [
        _join([each for _, each in sorted(by_seed.items())])
        for (length, _, _, label), by_seed in by_place.items()
        if (length, label) not in lacking
    ]


def _join(rows: Sequence[RulerRow]) -> RulerRow:
    scores = [own for row in rows for own in row.scores]

    def mean(values: Sequence[float]) -> float:
        counts = [row.num_samples for row in rows]
        weighed = [value * count for value, count in zip(values, counts, strict=True)]
        return fsum(weighed) / sum(counts)

    return replace(
        rows[0],
        num_samples=len(scores),
        scores=scores,
        score=mean([row.score for row in rows]),
        mean_bytes=mean([row.mean_bytes for row in rows]),
        cold_bytes=mean([row.cold_bytes for row in rows]),
        all_bytes=mean([row.all_bytes for row in rows]),
        look_share=mean([row.look_share for row in rows]),
    )


def pairs(rows: Sequence[RulerRow], policy: str, length: int) -> list[Pair]:
    """Compare a policy with every other one on the tasks that decide.

    Raises:
        ValueError: no task decides, the rows lack the policy, or another one lacks contexts.
    """
    labels = list(dict.fromkeys(row.label for row in rows if row.length == length))
    if not any(place[0] == length for place in deciding(rows)):
        raise ValueError(f"at {length} tokens the full cache solves no task to 60 %")
    if policy not in labels:
        raise ValueError(f"{policy!r} has no rows at {length} tokens; those are {labels}")
    own, found = mean_scores(rows, policy, length), []
    for label in labels:
        other = mean_scores(rows, label, length)
        if label == policy:
            continue
        if other.keys() != own.keys():
            raise ValueError(f"{label!r} lacks tasks or contexts of {policy!r}; measure them first")
        found.append(_pair(label, fmean(other.values()), [own[at] - other[at] for at in own]))
    return _corrected(found)


def call_pairs(rows: Sequence[CallsRow], policy: str) -> list[Pair]:
    """Compare a policy with every other one by the nats of each conversation's answers, per token.

    A score and a difference are negative nats, so that more is better.

    Raises:
        ValueError: the rows lack the policy, or have other conversations or another model.
    """
    if len({(row.prompts_sha256, row.model, row.weights) for row in rows}) > 1:
        raise ValueError("rows of other conversations or another model cannot be paired")
    means = {
        row.label: [-nll / n for nll, n in zip(row.sum_nll, row.num_answer_tokens, strict=True)]
        for row in rows
    }
    if policy not in means:
        raise ValueError(f"{policy!r} has no rows; those are {list(means)}")
    own = means.pop(policy)
    return _corrected(
        [
            _pair(label, fmean(other), [a - b for a, b in zip(own, other, strict=True)])
            for label, other in means.items()
        ]
    )


def _pair(label: str, score: float, differences: Sequence[float]) -> Pair:
    parts = [round(each * _PARTS) for each in differences]
    return Pair(
        label=label,
        score=score,
        difference=fmean(differences),
        interval=bootstrap_interval(differences),
        num_contexts=len(differences),
        won=sum(each > 0 for each in parts),
        lost=sum(each < 0 for each in parts),
        p_value=sign_flip_exact(parts),
    )


def _corrected(found: Sequence[Pair]) -> list[Pair]:
    corrected = holm([pair.p_value for pair in found])
    return [replace(pair, p_value=p) for pair, p in zip(found, corrected, strict=True)]


def table(found: Sequence[Pair], title: str) -> Table:
    """Return the comparisons as a table of 80 columns, in hundredths."""
    shown = Table(
        *("policy", "score", "points", "95 %", "contexts", "won/lost", "p"),
        title=title,
        caption="points: of the first policy more than this one. p: sign-flip test, Holm.",
        box=None,
    )
    for pair in found:
        low, high = (100 * end for end in pair.interval)
        shown.add_row(
            pair.label,
            f"{100 * pair.score:.0f}",
            f"{100 * pair.difference:+.1f}",
            f"{low:+.1f} to {high:+.1f}",
            str(pair.num_contexts),
            f"{pair.won}/{pair.lost}",
            f"{pair.p_value:.3f}",
        )
    return shown


def marks(rows: Sequence[RulerRow], length: int) -> list[Mark]:
    """Return the mark of every policy that answered at a length."""
    found = []
    for label in dict.fromkeys(row.label for row in rows if row.length == length):
        own = [row for row in rows if (row.length, row.label) == (length, label)]
        found.append(
            Mark(
                name=label,
                value=100 * fmean(mean_scores(rows, label, length).values()),
                hot_bytes=fmean(row.mean_bytes for row in own),
                all_bytes=fmean(row.all_bytes for row in own),
                is_ours=any(row.cold_bytes for row in own),
            )
        )
    return found


def axes_of(shown: Sequence[Mark], length: int) -> Axes:
    """Return axes that hold some marks."""
    most = max(mark.all_bytes for mark in shown) / 2**20
    return Axes(
        what=f"answers found, %, after contexts of {length:,} tokens",
        bytes_of="mean over the tokens of replies",
        most_value=100,
        value_step=20,
        most_mib=1.1 * most,
        mib_step=10 if most > 25 else 5,
        labels=LABELS,
    )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m agentkv_lab.questions")
    parser.add_argument("files", type=Path, nargs="+", metavar="FILE")
    parser.add_argument("--policy", help="compare all others with it")
    parser.add_argument("--length", type=int, default=2048)
    parser.add_argument("--draw", type=Path, metavar="FILE.svg")
    parser.add_argument("--calls", action="store_true", help="rows of `agentkv bench calls`")
    options = parser.parse_args()
    if options.calls:
        files = [
            RowFile(path, CallsRow, lambda row: row.label, fresh=False) for path in options.files
        ]
        compared = call_pairs([row for file in files for row in file.rows], options.policy)
        title = f"{options.policy} against each policy, negative nats per token in hundredths"
        Console(width=80).print(table(compared, title))
        return
    rows = read(options.files)
    if options.policy:
        found = pairs(rows, options.policy, options.length)
        title = f"{options.policy} against each policy, {options.length} tokens"
        Console(width=80).print(table(found, title))
    if options.draw:
        shown = marks(rows, options.length)
        drawn = chart(shown, axes_of(shown, options.length))
        options.draw.write_text(drawn, encoding="utf-8")


if __name__ == "__main__":
    main()
