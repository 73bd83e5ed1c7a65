"""`agentkv_lab ranking`: a policy's schedule with other ways to rank the entries.

A policy reads a text, and the confidences that set its budgets are recorded. Then the same policy
reads the text again with these confidences and another scorer: it evicts as many entries at each
step, but others. So the difference is what the ranking is worth.

Source: CONF-KV (arXiv 2605.24786), "Does confidence itself matter?": random eviction at a matched
rate, recency alone and attention alone.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from statistics import fmean
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from rich.text import Text
from torch import Tensor

from agentkv.build import make_policy
from agentkv.cache.cache import Cache
from agentkv.policies.entries import Entries
from agentkv.policies.policy import Policy
from agentkv.policies.registry import policy as named_policy
from agentkv.policies.scorers import Age, AttentionAndRecency, Function
from agentkv_lab.texts import Sample, TextBench, TextRow, measure_texts, with_interval
from agentkv_tasks.bench.errors import BenchError
from agentkv_tasks.bench.tables import bench_table

if TYPE_CHECKING:
    from agentkv.models.local import LocalModel

FULL, WINDOW = "full", "window"
OWN = "own"
_CAPTION = (
    "Perplexity of {tokens} tokens of each sample. closed: share of the gap between a window of "
    "{entries} entries and the full cache, in nats, with 95 % intervals over the samples. to own: "
    "nats per token more than with the policy's own scores. entries: kept per layer and head, "
    "mean. {what}"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RankingBench(TextBench):
    """Settings of the measurement: each of the policies brings its schedule."""

    entries: int
    """Budget of the policies and of the window."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankingRow(TextRow):
    """One schedule with one ranking."""

    BENCH: ClassVar[str] = "ranking"
    SUMMARY: ClassVar[tuple[str, ...]] = ("label", "ranking", "nll", "mean_entries")

    ranking: str
    """How the entries are ranked; `OWN` for the policy's own scores."""
    entries: int
    nll: float
    """Negative log-likelihood in nats per token, mean of the samples."""
    sample_nll: Sequence[float]
    mean_entries: float
    """Entries per layer and head that a token finds, mean."""

    @property
    def place(self) -> tuple[str, str]:
        """The key of the row."""
        return self.label, self.ranking


@dataclass(frozen=True, slots=True)
class Reading:
    """One sample under one policy."""

    nll: tuple[float, ...]
    """Negative log-likelihood of each measured token, in nats."""
    confidences: tuple[float, ...]
    """What set the budget after each forward; empty for a fixed budget."""
    entries: tuple[float, ...]
    """Entries per layer and head before each measured token, mean."""


def rankings(policy: Policy, seed: int) -> dict[str, Policy]:
    """Return the policy with other ways to rank the entries, by their names.

    "attention": the moving average of attention without recency, for a policy that blends both.
    "age": newer entries stay. "random": each eviction draws anew, as the paper's control. "random,
    once": an entry keeps the worth that its position has drawn, in all layers and heads.
    """
    found = {
        "age": replace(policy, scorer=Age()),
        "random": replace(policy, scorer=Function("random", _draws(seed))),
        "random, once": replace(policy, scorer=Function("random, once", _worths(seed))),
    }
    if isinstance(policy.scorer, AttentionAndRecency):
        alone = replace(policy.scorer, mass_weight=1.0)
        found = {"attention": replace(policy, scorer=alone), **found}
    return found


def _draws(seed: int) -> Callable[[Entries], Tensor]:
    generator = torch.Generator().manual_seed(seed)

    def scores(entries: Entries) -> Tensor:
        return torch.rand(entries.positions.shape, generator=generator)

    return scores


def _worths(seed: int) -> Callable[[Entries], Tensor]:
    worths = torch.rand(1 << 20, generator=torch.Generator().manual_seed(seed))

    def scores(entries: Entries) -> Tensor:
        return worths[entries.positions.cpu()]  # -1 at padding, which no one keeps

    return scores


@torch.inference_mode()
def read(
    model: Any, cache: Cache, ids: Sample, seen: int, confidences: Sequence[float] | None = None
) -> Reading:
    """Feed the first `seen` tokens, then the others one by one, and score these.

    Args:
        cache: an empty cache; mutated.
        confidences: what sets the budgets instead of the model's own confidence, one per forward:
            those of another reading. None: the model's own.
    """
    tokens = torch.tensor([ids], device=model.device)
    starts = [*range(0, seen, cache.tokens_at_once(seen)), *range(seen, len(ids) + 1)]
    given = None if confidences is None else iter(confidences)
    used: list[float] = []
    nll, entries = [], []
    logits = None
    for start, stop in pairwise(starts):
        if start >= seen:
            assert logits is not None
            nll.append(-float(logits[0].double().log_softmax(dim=-1)[ids[start]]))
            # heads that share their entries have one count
            entries.append(fmean(fmean(layer.storage.counts) for layer in cache.cache_layers))
        piece = tokens[:, start:stop]
        if given is None:
            logits = cache.feed(model, piece)
        else:
            with cache.attending_in_chunks():
                outputs = model(input_ids=piece, past_key_values=cache, logits_to_keep=1)
            logits = outputs.logits[:, -1]
            if cache.policy.needs_logits:
                cache.apply_gate_at([next(given)])
        if cache.policy.needs_logits:
            assert cache.confidences is not None
            used += cache.confidences
    return Reading(tuple(nll), tuple(used), tuple(entries))


def run_bench(bench: RankingBench, console: Console) -> list[RankingRow]:
    """Measure, write the rows, and print the table; raises as `measure_texts`."""
    policies = {each.row_name: make_policy(each) for each in bench.settings.policies}
    for label, policy in policies.items():
        if not policy.gate.evicts:
            raise BenchError(f"--policies {label}: it evicts nothing, so it has nothing to rank")
        if policy.precision.format is not None or policy.recall.looks_back:
            raise BenchError(
                f"--policies {label}: it quantizes entries or looks back, which no ranking "
                "decides; give policies that only evict"
            )

    def measure(
        local: "LocalModel", samples: Sequence[Sample], about: Mapping[str, Any], progress: Progress
    ) -> Iterator[RankingRow]:
        bar = progress.add_task("", total=len(samples) * (2 + 5 * len(policies)))

        def row(label: str, name: str, readings: Sequence[Reading]) -> RankingRow:
            own = [fmean(each.nll) for each in readings]
            return RankingRow(
                label=label,
                ranking=name,
                entries=bench.entries,
                nll=fmean(own),
                sample_nll=own,
                mean_entries=fmean(n for each in readings for n in each.entries),
                **about,
            )

        def readings(
            make: Callable[[int], Policy], schedules: Sequence[Sequence[float] | None], what: str
        ) -> list[Reading]:
            progress.update(bar, description=what)
            found = []
            for number, (ids, schedule) in enumerate(zip(samples, schedules, strict=True)):
                policy = make(number)
                budget = bench.entries if policy.gate.evicts else None
                cache = Cache.for_model(local.model, policy=policy, budget=budget)
                found.append(read(local.model, cache, ids, bench.seen, schedule))
                progress.advance(bar)
            return found

        free: list[Sequence[float] | None] = [None] * len(samples)
        for label, policy in {each: named_policy(each) for each in (FULL, WINDOW)}.items():
            yield row(label, OWN, readings(partial(_own, policy), free, label))
        for label, policy in policies.items():
            own = readings(partial(_own, policy), free, label)
            yield row(label, OWN, own)
            schedules = [each.confidences for each in own]
            for name in rankings(policy, 0):
                found = readings(partial(_ranked, policy, name), schedules, f"{label}, {name}")
                assert [each.entries for each in found] == [each.entries for each in own]
                yield row(label, name, found)

    return measure_texts(bench, RankingRow, measure, tables, console)


def _own(policy: Policy, seed: int) -> Policy:
    return policy


def _ranked(policy: Policy, name: str, seed: int) -> Policy:
    return rankings(policy, seed)[name]


def closed(row: RankingRow, full: RankingRow, window: RankingRow) -> tuple[float, float, float]:
    """Return the share of the gap between a window and the full cache that a row closes, and its
    95 % interval over the samples."""

    def of(drawn: Sequence[int]) -> float:
        gap = sum(window.sample_nll[i] - full.sample_nll[i] for i in drawn)
        return sum(window.sample_nll[i] - row.sample_nll[i] for i in drawn) / gap

    return with_interval(of, row.num_samples)


def behind(row: RankingRow, own: RankingRow) -> tuple[float, float, float]:
    """Return the nats per token by which a ranking is worse than the policy's own, and the 95 %
    interval over the samples."""
    more = [a - b for a, b in zip(row.sample_nll, own.sample_nll, strict=True)]
    return with_interval(lambda drawn: fmean(more[i] for i in drawn), row.num_samples)


def tables(rows: Sequence[RankingRow]) -> Iterator[Table]:
    """Yield the table."""
    last = rows[-1]
    caption = _CAPTION.format(tokens=last.num_tokens, entries=last.entries, what=last.what)
    columns = ("entries", "ppl", "closed", "95 %", "to own", "95 %")
    found = bench_table(caption, *columns, length="schedule", label="ranking")
    ends = {row.label: row for row in rows if row.ranking == OWN}
    for row in rows:
        cells = ["-"] * 4
        if row.label not in (FULL, WINDOW) and {FULL, WINDOW} <= ends.keys():
            value, low, high = closed(row, ends[FULL], ends[WINDOW])
            cells[:2] = f"{100 * value:.0f}%", f"{100 * low:.0f} to {100 * high:.0f}"
            if row.ranking != OWN:
                value, low, high = behind(row, ends[row.label])
                cells[2:] = f"{value:+.3f}", f"{low:+.3f} to {high:+.3f}"
        ppl = float(torch.tensor(row.nll).exp())
        found.add_row(
            Text(row.label), Text(row.ranking), f"{row.mean_entries:.0f}", f"{ppl:.2f}", *cells
        )
    yield found
