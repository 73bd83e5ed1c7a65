"""`agentkv_lab hiding`: what hiding a part of the past from one token does to its prediction, and
whether confidence knows of it.

A full cache reads a text token by token. Before each token that is measured, a fork of the cache
drops a part of the past and reads the token too. Nothing else differs between the two predictions:
the entries that the fork keeps were made with the whole past, unlike those of a cache that evicts.

Source: CONF-KV (arXiv 2605.24786), "Does confidence itself matter?", hides the 256 tokens before
the one that is read; hiding the far past is our choice.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from rich.text import Text

from agentkv.cache.cache import Cache
from agentkv_lab.confidence.read import ComparedToken, compared
from agentkv_lab.confidence.table import correlation, signed
from agentkv_lab.texts import Sample, TextBench, TextRow, measure_texts
from agentkv_tasks.bench.errors import BenchError
from agentkv_tasks.bench.tables import bench_table

if TYPE_CHECKING:
    from agentkv.models.local import LocalModel

_DIGITS = 7
_CAPTION = (
    "KL: KL(full || without) in nats, mean of {tokens} tokens. changed: % of them whose likeliest "
    "successor differs. before, after: rank correlation of KL and the probability of the likeliest "
    "successor, with the whole past and without the hidden part; 95 % intervals over the samples. "
    "{what}"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class HidingBench(TextBench):
    """Settings of the measurement."""

    recent: int
    """Tokens before the one that is read, which the first row hides."""
    kept: int
    """Newest tokens before it that the second row keeps, while it hides all others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HidingRow(TextRow):
    """One part of the past, hidden from each token of all samples."""

    BENCH: ClassVar[str] = "hiding"
    SUMMARY: ClassVar[tuple[str, ...]] = ("label", "mean_divergence", "changed_share")

    features: Sequence[Sequence[float]]
    """The features of confidence without the hidden part: see `ConfidenceRow`."""
    full_features: Sequence[Sequence[float]]
    """The same with the whole past."""
    divergence: Sequence[float]
    """KL(full || without) in nats of each token."""
    mean_divergence: float
    changed_share: float
    """Share of the tokens whose likeliest successor is another one without the hidden part."""

    @property
    def samples(self) -> list[range]:
        """Numbers of the tokens of each sample."""
        return [
            range(i * self.num_tokens, (i + 1) * self.num_tokens) for i in range(self.num_samples)
        ]


def run_bench(bench: HidingBench, console: Console) -> list[HidingRow]:
    """Measure, write the rows, and print the table; raises as `measure_texts`."""
    for option, count in (("--recent", bench.recent), ("--kept", bench.kept)):
        if not 0 <= count < bench.seen:
            raise BenchError(f"{option} {count}: expected 0 to {bench.seen - 1}, less than --seen")

    def measure(
        local: "LocalModel", samples: Sequence[Sample], about: Mapping[str, Any], progress: Progress
    ) -> Iterator[HidingRow]:
        bar = progress.add_task("hiding", total=len(samples))
        found: list[list[Sequence[ComparedToken]]] = [[], []]
        for ids in samples:
            for each, tokens in zip(
                found,
                hidden(local.model, ids, bench.seen, recent=bench.recent, kept=bench.kept),
                strict=True,
            ):
                each.append(tokens)
            progress.advance(bar)
        labels = (f"recent {bench.recent}", f"all but {bench.kept}")
        for label, each in zip(labels, found, strict=True):
            yield _row(label, [token for sample in each for token in sample], about)

    return measure_texts(bench, HidingRow, measure, tables, console)


@torch.inference_mode()
def hidden(
    model: Any, ids: Sample, seen: int, *, recent: int, kept: int
) -> tuple[list[ComparedToken], list[ComparedToken]]:
    """Compare the predictions of the tokens from `seen` on with those without a part of the past.

    Args:
        recent: tokens before the token that is read, which the first list hides.
        kept: newest tokens before it that the second list keeps, while it hides all others.
    """
    tokens = torch.tensor([ids], device=model.device)
    full = Cache.for_model(model, policy="full")
    full.feed(model, tokens[:, :seen])
    without_recent, without_past = [], []
    for place in range(seen, len(ids)):
        token = tokens[:, place : place + 1]
        given = [
            _without(model, full, part, token)
            for part in (range(place - recent, place), range(place - kept))
        ]
        wanted = full.feed(model, token)
        without_recent.append(compared(wanted, given[0], None))
        without_past.append(compared(wanted, given[1], None))
    return without_recent, without_past


def _without(model: Any, full: Cache, part: range, token: torch.Tensor) -> torch.Tensor:
    """Return the logits (1, V) after `token` if the cache had not held a part of the past."""
    twin = full.fork()
    if part:
        twin.drop(part)
    return twin.feed(model, token)


def _row(label: str, tokens: Sequence[ComparedToken], about: Mapping[str, Any]) -> HidingRow:
    return HidingRow(
        label=label,
        features=[[round(each, _DIGITS) for each in token.features] for token in tokens],
        full_features=[[round(each, _DIGITS) for each in token.full_features] for token in tokens],
        divergence=[round(token.divergence, _DIGITS) for token in tokens],
        mean_divergence=fmean(token.divergence for token in tokens),
        changed_share=fmean(token.is_changed for token in tokens),
        **about,
    )


def tables(rows: Sequence[HidingRow]) -> Iterator[Table]:
    """Yield the table."""
    caption = _CAPTION.format(tokens=len(rows[-1].divergence), what=rows[-1].what)
    columns = ("KL", "changed", "before", "95 %", "after", "95 %")
    found = bench_table(caption, *columns, label="hidden")
    for row in rows:
        found.add_row(
            Text(row.label),
            f"{row.mean_divergence:.3f}",
            f"{100 * row.changed_share:.1f}",
            *signed(correlation(row, of_full=True)),
            *signed(correlation(row, of_full=False)),
        )
    yield found
