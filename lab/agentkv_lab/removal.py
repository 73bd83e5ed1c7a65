"""`agentkv_lab removal`: which measures find the entries whose removal moves a head's output most.

The exact change of the last token's output, if one entry is removed and the other weights grow to
the sum 1, ranks the entries of each query head. So do three measures that papers take for it.

Source: EDIE with TADA, equations 3, 4, 7 and 9, figure 3.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from torch import Tensor

from agentkv.policies.registry import parameters_of
from agentkv.policies.scorers import removal_errors
from agentkv_lab.outputs import LayerOutput, read_outputs
from agentkv_lab.texts import Sample, TextBench, TextRow, measure_texts, with_interval
from agentkv_tasks.bench.errors import BenchError
from agentkv_tasks.bench.tables import bench_table

if TYPE_CHECKING:
    from agentkv.models.local import LocalModel

_CAPTION = (
    "found: of the {most} entries of each query head whose removal changes the output of the last "
    "token most, % among the first {most} of a measure, with a 95 % interval over the samples. "
    "all: % of the heads in which every one is found. {what}"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RemovalBench(TextBench):
    """Settings of the measurement."""

    most: int
    """Entries of each head that count."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RemovalRow(TextRow):
    """One measure."""

    BENCH: ClassVar[str] = "removal"
    SUMMARY: ClassVar[tuple[str, ...]] = ("label",)

    most: int
    found: Sequence[Sequence[Sequence[int]]]
    """By sample, layer and query head: entries of the most important ones that are found."""


def removed(weights: Tensor, values: Tensor) -> Tensor:
    """Return the L1 change of each query head's output if one entry is removed, (H, G, T).

    Args:
        weights: (H, G, T) attention of one query.
        values: (H, T, D).
    """
    outputs = weights @ values  # (H, G, D)
    distances = torch.cdist(outputs.double(), values.double(), p=1)  # (H, G, T)
    return weights / (1 - weights) * distances


def measures(layer: LayerOutput) -> dict[str, Tensor]:
    """Return the measures of each entry's importance to the last token, (H, G, T)."""
    weights, values = layer.weights, layer.values
    alpha = parameters_of("edie")["alpha"]
    return {
        "attention": weights,
        "times norm": weights * values.abs().sum(dim=-1)[:, None],
        "EDIE's bound": removal_errors(layer.attention[:, :, -1:], values, alpha)[:, :, 0],
    }


def num_found(scores: Tensor, exact: Tensor, most: int) -> Tensor:
    """Return how many of the `most` largest of `exact` are among those of `scores`, along the last
    dimension."""
    marks = [
        torch.zeros_like(each, dtype=torch.bool).scatter_(-1, each.topk(most, -1).indices, True)
        for each in (scores, exact)
    ]
    return (marks[0] & marks[1]).sum(dim=-1)


def run_bench(bench: RemovalBench, console: Console) -> list[RemovalRow]:
    """Measure, write the rows, and print the table; raises as `measure_texts`."""
    if bench.most > bench.seen:
        raise BenchError(f"--most {bench.most}: expected at most --seen {bench.seen}")

    def measure(
        local: "LocalModel", samples: Sequence[Sample], about: Mapping[str, Any], progress: Progress
    ) -> Iterator[RemovalRow]:
        bar = progress.add_task("removal", total=len(samples))
        found: dict[str, list[list[list[int]]]] = {}
        for number, ids in enumerate(samples):
            for layer in read_outputs(local.model, ids, 1):
                exact = removed(layer.weights, layer.values)
                for name, scores in measures(layer).items():
                    of_samples = found.setdefault(name, [[] for _ in samples])
                    counts = num_found(scores, exact, bench.most)
                    of_samples[number].append(counts.flatten().tolist())
            progress.advance(bar)
        for name, of_samples in found.items():
            yield RemovalRow(label=name, most=bench.most, found=of_samples, **about)

    return measure_texts(bench, RemovalRow, measure, tables, console)


def share_found(row: RemovalRow) -> tuple[float, float, float]:
    """Return the share of the most important entries that a measure finds, mean of the query heads,
    and its 95 % interval over the samples."""
    shares = [fmean(x / row.most for layer in sample for x in layer) for sample in row.found]
    return with_interval(lambda drawn: fmean(shares[i] for i in drawn), row.num_samples)


def tables(rows: Sequence[RemovalRow]) -> Iterator[Table]:
    """Yield the table."""
    caption = _CAPTION.format(most=rows[-1].most, what=rows[-1].what)
    table = bench_table(caption, "found", "95 %", "all", label="measure")
    for row in rows:
        value, low, high = share_found(row)
        counts = [x for sample in row.found for layer in sample for x in layer]
        table.add_row(
            row.label,
            f"{100 * value:.1f}%",
            f"{100 * low:.1f} to {100 * high:.1f}",
            f"{100 * fmean(x == row.most for x in counts):.0f}%",
        )
    yield table
