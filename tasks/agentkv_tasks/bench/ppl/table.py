"""The table of `agentkv bench ppl`; it fits 80 columns."""

import math
from collections.abc import Iterable, Iterator, Sequence

import torch
from rich.table import Table
from rich.text import Text

from agentkv.terminal import human_bytes
from agentkv_tasks.bench.ppl.rows import PerplexityRow
from agentkv_tasks.bench.sweep import variation_of
from agentkv_tasks.bench.tables import (
    BYTES,
    FULL,
    bench_table,
    bytes_cells,
    threads_text,
    with_gaps,
)
from agentkv_tasks.report.plot import Axis, Figure, Plot, Series, line_plot, naming, spanning

WINDOW = "window"
"""The policies between which the others lie."""
_RESAMPLES = 2_000
_FEW = 10
_CAPTION = (
    "Perplexity of the {tokens} tokens of {samples} {what} of {source}.{closed} 95 %: percentile "
    "intervals over {resamples:,} bootstrap draws of the {samples} {what}, as whole samples.{few} "
    "{bytes}means; policies with a budget have hot the {budget} of a window of {entries} entries; "
    "cold tier with its index at the end; both. looks: % of the tokens. {model}, {device}, "
    "{threads}."
)
_CLOSED = " closed: share of the gap between window and full that a policy closes, in nats."
_TOO_FEW = " So few samples make the intervals too narrow."


def table(rows: Sequence[PerplexityRow]) -> Table:
    """Return the table of all rows, which are sorted by length."""
    longest = rows[-1]
    has_shares = not {row.label for row in rows} <= {FULL, WINDOW}
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
        resamples=_RESAMPLES,
        bytes=BYTES,
        closed=_CLOSED * has_shares,
        few=_TOO_FEW * (len(longest.sample_nll) < _FEW),
    )
    shares = ("closed", "95 %") if has_shares else ()
    columns = ("ppl", "95 %", *shares, "hot", "cold", "all", "looks")
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
            "-".join(_shortly(each) for each in nll_interval(row)),
            *(cells if has_shares else ()),
            *bytes_cells(row.mean_bytes, row.cold_bytes + row.index_bytes),
            f"{100 * row.look_share:.1f}" if row.look_share else "-",
        )
    return found


def tables(rows: Sequence[PerplexityRow]) -> Iterator[Table]:
    """Yield the table."""
    yield table(rows)


def figures(rows: Sequence[PerplexityRow]) -> Iterator[Figure]:
    """Yield the nats over the bytes, by length, and the nats over the values of each sweep."""
    lengths = list(dict.fromkeys(row.seen for row in rows))
    yield Figure(
        "Negative log-likelihood over the mean bytes of the cache. Lower and further left is "
        "better.",
        tuple(_over_bytes(seen, [row for row in rows if row.seen == seen]) for seen in lengths),
    )
    sweeps: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        if (variation := variation_of(row.label)) is not None:
            policy, name, value = variation
            values = sweeps.setdefault((policy, name), [])
            values += [value] * (value not in values)
    for (policy, name), values in sweeps.items():
        own = next((_own(row, name) for row in rows if row.label == policy), None)
        plot = _over_values(rows, policy, name, [*([] if own is None else [own]), *values])
        yield Figure(
            f"Negative log-likelihood of {policy} by {name}, at equal bytes; the first value is "
            "its own.",
            (plot,),
        )


def _over_bytes(seen: int, rows: Sequence[PerplexityRow]) -> Plot:
    points = [(row.mean_bytes / 2**20, row.nll) for row in rows]
    series = [
        Series(row.label, (point,), number, f"{point[1]:.3f} nats, {human_bytes(row.mean_bytes)}")
        for number, (row, point) in enumerate(zip(rows, points, strict=True))
    ]
    return line_plot(
        f"nats per token after {seen:,}",
        series,
        x=spanning(0.0, max(size for size, _ in points)),
        y=_around(nats for _, nats in points),
        x_title="MiB",
    )


def _over_values(
    rows: Sequence[PerplexityRow], policy: str, name: str, values: Sequence[str]
) -> Plot:
    series, found = [], {(row.seen, row.label): row.nll for row in rows}
    for number, seen in enumerate(dict.fromkeys(row.seen for row in rows)):
        points = []
        for place, value in enumerate(values):
            label = f"{policy} {name}={value}"
            nll = found.get((seen, label), found.get((seen, policy)) if place == 0 else None)
            points.append((place, math.nan if nll is None else nll))
        series.append(Series(f"after {seen:,} tokens", tuple(points), number))
    every = [y for each in series for _, y in each.points if not math.isnan(y)]
    return line_plot("nats per token", series, x=naming(values), y=_around(every), x_title=name)


def _around(values: Iterable[float]) -> Axis:
    found = list(values)
    return spanning(min(found), max(found))


def _own(row: PerplexityRow, name: str) -> str:
    return str(row.parameters.get(name))


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
    low, high = _middle(_closed(*each[:, _draws(len(sizes))].sum(dim=-1)))
    return float(_closed(*each.sum(dim=-1))), low, high


def nll_interval(row: PerplexityRow) -> tuple[float, float]:
    """Return the 95 % percentile interval of a row's nats per token over resampled samples."""
    sizes = torch.tensor(row.sample_tokens, dtype=torch.float64)
    each, picks = torch.tensor(row.sample_nll, dtype=torch.float64) * sizes, _draws(len(sizes))
    return _middle(each[picks].sum(dim=-1) / sizes[picks].sum(dim=-1))


def _draws(num_samples: int) -> torch.Tensor:
    """Return the samples of each draw, (draws, samples); the same on every call."""
    generator = torch.Generator().manual_seed(0)
    return torch.randint(num_samples, (_RESAMPLES, num_samples), generator=generator)


def _middle(drawn: torch.Tensor) -> tuple[float, float]:
    drawn = drawn.sort().values
    low, high = drawn[math.floor(0.025 * _RESAMPLES)], drawn[math.ceil(0.975 * _RESAMPLES) - 1]
    return float(low), float(high)


def _shortly(nll: float) -> str:
    """Return a perplexity in at most four characters below 10,000."""
    value = math.exp(nll)
    return f"{value:.2f}" if value < 10 else f"{value:.1f}" if value < 100 else f"{value:.0f}"


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
