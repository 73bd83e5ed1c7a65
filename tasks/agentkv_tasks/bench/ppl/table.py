"""The table of `agentkv bench ppl`; it fits 80 columns."""

import math
from collections.abc import Iterator, Sequence

import torch
from rich.table import Table
from rich.text import Text

from agentkv_tasks.bench.ppl.rows import PerplexityRow
from agentkv_tasks.bench.tables import bench_table, threads_text, with_gaps
from agentkv_tasks.report.summary import human_bytes

FULL, WINDOW = "full", "window"
"""The policies between which the others lie."""
_RESAMPLES = 2_000
_CAPTION = (
    "Perplexity of the {tokens} tokens of {samples} {what} of {source}. closed: share of the gap "
    "between window and full that a policy closes, in nats, with a 95 % interval over the samples. "
    "bytes: mean; policies with a budget have the {budget} of a window of {entries} entries. "
    "looks: % of the tokens. {model}, {device}, {threads}."
)


def table(rows: Sequence[PerplexityRow]) -> Table:
    """Return the table of all rows, which are sorted by length."""
    longest = rows[-1]
    caption = _CAPTION.format(
        tokens=sum(longest.sample_tokens),
        samples=len(longest.sample_nll),
        what="replies" if longest.of_replies else "continuations",
        source=longest.source,
        budget=human_bytes(longest.budget_bytes),
        entries=longest.entries,
        model=longest.model,
        device=longest.device,
        threads=threads_text(longest.threads),
    )
    columns = ("ppl", "closed", "95 %", "bytes", "looks")
    found = bench_table(caption, *columns, length="seen", label="policy")
    ends = {(row.seen, row.label): row for row in rows if row.label in (FULL, WINDOW)}
    for row in with_gaps(found, rows, key=lambda row: row.seen):
        full, window = ends.get((row.seen, FULL)), ends.get((row.seen, WINDOW))
        cells = ("-", "-")
        if full is not None and window is not None and row.label not in (FULL, WINDOW):
            cells = _percentages(closed_share(row, full=full, window=window))
        found.add_row(
            str(row.seen),
            Text(row.label),
            perplexity(row.nll),
            *cells,
            human_bytes(row.mean_bytes),
            f"{100 * row.look_share:.1f}" if row.look_share else "-",
        )
    return found


def tables(rows: Sequence[PerplexityRow]) -> Iterator[Table]:
    """Yield the table, if there are rows."""
    if rows:
        yield table(rows)


def closed_share(
    row: PerplexityRow, *, full: PerplexityRow, window: PerplexityRow
) -> tuple[float, float, float]:
    """Return which share of the gap between `window` and `full` a policy closes, and its 95 %
    percentile interval over resampled samples; NaN where full is no better than the window.

    Equal rows give equal intervals.
    """
    nll = torch.tensor([row.sample_nll, full.sample_nll, window.sample_nll], dtype=torch.float64)
    sizes = torch.tensor(row.sample_tokens, dtype=torch.float64)
    each = nll * sizes  # sums of nats, whose ratios are those of the means
    generator = torch.Generator().manual_seed(0)
    picks = torch.randint(len(sizes), (_RESAMPLES, len(sizes)), generator=generator)
    drawn = _closed(*each[:, picks].sum(dim=-1)).sort().values
    low, high = drawn[math.floor(0.025 * _RESAMPLES)], drawn[math.ceil(0.975 * _RESAMPLES) - 1]
    return float(_closed(*each.sum(dim=-1))), float(low), float(high)


def _closed(own: torch.Tensor, full: torch.Tensor, window: torch.Tensor) -> torch.Tensor:
    gap = window - full
    return torch.where(gap > 0, (window - own) / gap, torch.nan)


def _percentages(found: tuple[float, float, float]) -> tuple[str, str]:
    share, low, high = found
    if math.isnan(share):
        return "-", "-"
    interval = (
        "-" if math.isnan(low) or math.isnan(high) else f"{100 * low:.0f} to {100 * high:.0f}"
    )
    return f"{100 * share:.0f}%", interval


def perplexity(nll: float) -> str:
    """Return a perplexity from nats per token."""
    value = math.exp(nll)
    return f"{value:.3f}" if value < 100 else f"{value:.0f}"
