"""`agentkv_lab concentration`: how many entries hold most of a head's attention, and what heads
that compete for their entries hold more than heads with equal shares.

It averages the attention of the last queries of a text. Ada-KV bounds the loss of a layer by
2 C times the attention that its heads do not hold together (C is one constant of the layer), so
that the share of the bound that adaptive budgets save does not depend on C.

Sources: Ada-KV (arXiv 2407.11550), theorems 2 and 4, figures 2 and 3; CriticalKV (arXiv
2502.03805), assumption 1.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from torch import Tensor

from agentkv.policies.allocators import Adaptive, Uniform
from agentkv_lab.outputs import read_outputs
from agentkv_lab.texts import Sample, TextBench, TextRow, measure_texts, short, with_interval
from agentkv_tasks.bench.errors import BenchError
from agentkv_tasks.bench.tables import bench_table

if TYPE_CHECKING:
    from agentkv.models.local import LocalModel

SHARES = (0.5, 0.9, 0.95, 0.99)
FIRST_STAGE = 0.25
"""Part of the budget that CriticalKV's first stage spends."""
FLOOR = 0.5
"""Ada-KV's floor in its experiments."""
_QUERY = "query heads, "
_NEEDED = (
    "Entries that hold a share of the attention of the last {window} queries, as % of {seen}: over "
    "the {heads} query heads of all layers and samples; and, of the layers, the most disparate "
    "head over the least, median. {what}"
)
_HELD = (
    "budget: entries per key-value head. Attention that the heads of a layer do not hold, %: with "
    "equal budgets, adaptive ones, and adaptive ones with a floor of {floor}. saved: part of "
    "Ada-KV's bound that adaptive budgets save, with a 95 % interval over the samples; by query: "
    "if each query head kept its own entries. never above: % of the layers. half: % of the query "
    "heads of which the best quarter of the budget holds more than half."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConcentrationBench(TextBench):
    """Settings of the measurement."""

    budgets: tuple[int, ...]
    """Entries per key-value head."""
    window: int
    """Last queries whose attention counts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConcentrationRow(TextRow):
    """All samples. Lists are by sample, then by layer."""

    BENCH: ClassVar[str] = "concentration"
    SUMMARY: ClassVar[tuple[str, ...]] = ("label",)

    window: int
    needed: Mapping[str, Sequence[Sequence[Sequence[int]]]]
    """By share of the attention: the fewest entries of each query head that hold it."""
    lost: Mapping[str, Mapping[str, Sequence[Sequence[float]]]]
    """By budget, then by allocation: attention that the key-value heads of a layer do not hold,
    mean of the heads; and the same if each query head kept its own entries."""
    first_stage: Mapping[str, Sequence[Sequence[Sequence[float]]]]
    """By budget: attention that the best quarter of the budget holds of each query head."""


def needed(weights: Tensor, share: float) -> Tensor:
    """Return the fewest entries that hold a share of the attention, (n,) int64.

    Args:
        weights: (n, T), each row with the sum 1.
    """
    held = weights.double().sort(dim=-1, descending=True).values.cumsum(dim=-1)
    # rounding must not ask for an entry more
    return (held < share - 1e-9).sum(dim=-1) + 1


def lost(weights: Tensor, counts: Tensor) -> Tensor:
    """Return the attention that each head's best entries do not hold, (n,).

    Args:
        weights: (n, T), each row with the sum 1.
        counts: (n,): entries that each head keeps.
    """
    best = weights.double().sort(dim=-1, descending=True).values
    is_kept = torch.arange(weights.shape[1]) < counts[:, None]
    return 1 - (best * is_kept).sum(dim=-1)


def allocations(weights: Tensor, budget: int) -> dict[str, Tensor]:
    """Return the entries that each head gets, (n,): equal budgets, and budgets by attention without
    and with a floor."""
    return {
        "equal": Uniform().heads(weights, budget),
        "adaptive": Adaptive(0.0).heads(weights, budget),
        "floor": Adaptive(FLOOR).heads(weights, budget),
    }


def run_bench(bench: ConcentrationBench, console: Console) -> list[ConcentrationRow]:
    """Measure, write the row, and print the tables; raises as `measure_texts`."""
    if max(bench.budgets) >= bench.seen:
        raise BenchError(f"--budgets {max(bench.budgets)}: expected less than --seen {bench.seen}")

    def measure(
        local: "LocalModel", samples: Sequence[Sample], about: Mapping[str, Any], progress: Progress
    ) -> Iterator[ConcentrationRow]:
        bar = progress.add_task("concentration", total=len(samples))
        counts: dict[str, list[list[list[int]]]] = {str(share): [] for share in SHARES}
        gone: dict[str, dict[str, list[list[float]]]] = {str(b): {} for b in bench.budgets}
        first: dict[str, list[list[list[float]]]] = {str(b): [] for b in bench.budgets}
        for ids in samples:
            drawn = [
                each.attention.mean(dim=2) for each in read_outputs(local.model, ids, bench.window)
            ]  # (H, G, T)
            by_head = [each.flatten(0, 1) for each in drawn]
            for share in SHARES:
                counts[str(share)].append([needed(each, share).tolist() for each in by_head])
            for budget in map(str, bench.budgets):
                stage = math.floor(int(budget) * FIRST_STAGE)
                first[budget].append(
                    [
                        short(each.topk(stage, dim=-1).values.sum(dim=-1).tolist())
                        for each in by_head
                    ]
                )
                for name, each in _lost_of(drawn, int(budget)).items():
                    gone[budget].setdefault(name, []).append(each)
            progress.advance(bar)
        yield ConcentrationRow(
            label="attention",
            window=bench.window,
            needed=counts,
            lost=gone,
            first_stage=first,
            **about,
        )

    return measure_texts(bench, ConcentrationRow, measure, tables, console)


def _lost_of(drawn: Sequence[Tensor], budget: int) -> dict[str, list[float]]:
    """Return what the heads of each layer do not hold, mean of the heads, by allocation.

    Args:
        drawn: (H, G, T) of each layer.
    """
    found: dict[str, list[float]] = {}
    for each in drawn:
        for kind, weights in (("", each.mean(dim=1)), (_QUERY, each.flatten(0, 1))):
            for name, counts in allocations(weights, budget).items():
                found.setdefault(kind + name, []).append(float(lost(weights, counts).mean()))
    return {name: short(values) for name, values in found.items()}


def saved(row: ConcentrationRow, budget: str, name: str) -> tuple[float, float, float]:
    """Return the part of Ada-KV's bound that an allocation saves over equal budgets, mean of the
    layers, and its 95 % interval over the samples."""
    kind = _QUERY if name.startswith(_QUERY) else ""
    equal, other = row.lost[budget][f"{kind}equal"], row.lost[budget][name]

    def of(drawn: Sequence[int]) -> float:
        parts = [1 - b / a for i in drawn for a, b in zip(equal[i], other[i], strict=True) if a > 0]
        return fmean(parts)

    return with_interval(of, row.num_samples)


def tables(rows: Sequence[ConcentrationRow]) -> Iterator[Table]:
    """Yield the entries that hold a share, and what budgets lose."""
    row = rows[-1]
    num_entries = row.seen + row.num_tokens
    num_heads = sum(len(layer) for layer in row.needed[str(SHARES[0])][0])
    found = bench_table(
        _NEEDED.format(window=row.window, seen=num_entries, heads=num_heads, what=row.what),
        *("least", "quarter", "median", "3rd", "most", "disparity"),
        label="share",
    )
    for share, samples in row.needed.items():
        layers = [layer for sample in samples for layer in sample]
        parts = torch.tensor([each for layer in layers for each in layer]).double() / num_entries
        ratios = torch.tensor([max(layer) / min(layer) for layer in layers])
        quantiles = parts.quantile(torch.tensor([0, 0.25, 0.5, 0.75, 1], dtype=torch.float64))
        cells = (f"{100 * each:.1f}" for each in quantiles.tolist())
        found.add_row(f"{100 * float(share):.0f}%", *cells, f"{float(ratios.median()):.1f}")
    yield found
    budgets = bench_table(
        _HELD.format(floor=FLOOR),
        *("equal", "adaptive", "floor", "saved", "95 %", "by query", "never above", "half"),
        label="budget",
    )
    for budget, by_name in row.lost.items():
        means = {name: fmean(x for each in found for x in each) for name, found in by_name.items()}
        value, low, high = saved(row, budget, "adaptive")
        pairs = [
            pair
            for equal, other in zip(by_name["equal"], by_name["adaptive"], strict=True)
            for pair in zip(equal, other, strict=True)
        ]
        halves = [x for sample in row.first_stage[budget] for layer in sample for x in layer]
        budgets.add_row(
            budget,
            *(f"{100 * means[name]:.2f}" for name in ("equal", "adaptive", "floor")),
            f"{100 * value:.0f}%",
            f"{100 * low:.0f} to {100 * high:.0f}",
            f"{100 * saved(row, budget, f'{_QUERY}adaptive')[0]:.0f}%",
            f"{100 * fmean(b <= a + 1e-9 for a, b in pairs):.0f}%",
            f"{100 * fmean(x > 0.5 for x in halves):.0f}%",
        )
    yield budgets
