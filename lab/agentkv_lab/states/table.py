"""The tables of `agentkv_lab states`; all fit 80 columns."""

import math
from collections.abc import Iterator, Sequence

from rich.table import Table
from rich.text import Text

from agentkv_lab.states.rows import Distance, StateRow
from agentkv_tasks.bench.tables import BYTES, bench_table, bytes_cells
from agentkv_tasks.report.plot import Figure, Plot, Series, from_zero, line_plot, spanning

_STATES = (
    "dense, quant, evict: % of the tokens seen, mean over {steps} steps, layers and heads. "
    "by layer: least and most quantized. entitled: share of its entries that rank lets a layer "
    "keep dense, mean (least-most). mean: mean storage. {bytes}storage at "
    "any moment; cold tier at the end; both. {source}, {model}, after a prompt of {prompt} tokens."
)
_DISTANCES = (
    "Next-token distributions compared with a full cache. KL: KL(full || policy) in nats. logit: "
    "mean distance. top-1: percentage of steps with full's most probable token. ppl: perplexity of "
    "the stream, {full} for full. In replies: over the {replies} tokens of replies, "
    "{full_replies} for full."
)
_LIVES = (
    "evictions: steps with an eviction. gone: quantized entries that were evicted, over all layers "
    "and heads, and their age in tokens. alive: quantized entries at the end, and the age of the "
    "oldest."
)


def tables(rows: Sequence[StateRow]) -> Iterator[Table]:
    """Yield the states, the distances and, if entries were quantized, their lifetimes.

    Args:
        rows: row of the whole stream for each policy.
    """
    yield _states(rows)
    yield _distances(rows)
    if any(row.quantised for row in rows):
        yield _lives([row for row in rows if row.quantised])


def figures(rows: Sequence[StateRow]) -> Iterator[Figure]:
    """Yield the entries over the tokens read, and the distance from a full cache by parts.

    Args:
        rows: rows of the whole stream and of its parts.
    """
    whole = [row for row in rows if row.is_whole]
    first, last = whole[0].first + 1, whole[0].first + whole[0].num_steps
    held = [
        Series(
            row.label,
            tuple(enumerate(row.entries, start=first)),
            number,
            f"{row.entries[-1]:,.0f} entries",
        )
        for number, row in enumerate(whole)
    ]
    plots = [_over_tokens("entries", held, first, last)]
    bounded = [each for each in held if each.points[-1][1] < last - 1]
    if bounded and len(bounded) < len(held):
        plots.append(_over_tokens("entries, of caches that evict", bounded, first, last))
    yield Figure("Entries after each token, mean over layers and heads.", tuple(plots))
    divergences = []
    for number, row in enumerate(whole):
        parts = [each for each in rows if each.label == row.label and not each.is_whole]
        points = tuple((each.first + each.num_steps, each.distance.divergence) for each in parts)
        divergences.append(
            Series(row.label, points, number, f"{row.distance.divergence:.4f} nats on average")
        )
    yield Figure(
        "Mean KL(full || policy) of each part of the stream.",
        (_over_tokens("KL, nats", divergences, first, last),),
    )


def _over_tokens(title: str, series: Sequence[Series], first: int, last: int) -> Plot:
    most = max(value for each in series for _, value in each.points)
    return line_plot(
        title, series, x=spanning(first, last), y=from_zero(most), x_title="tokens read"
    )


def _states(rows: Sequence[StateRow]) -> Table:
    first = rows[0]
    caption = _STATES.format(
        steps=first.num_steps,
        prompt=first.num_prompt,
        source=first.source,
        model=first.model,
        bytes=BYTES,
    )
    names = ("dense", "quant", "evict", "by layer", "entitled", "mean", "hot", "cold", "all")
    table = _empty_table(caption, *names)
    for row in rows:
        quantised = [layer.quantised for layer in row.layers]
        deserved = [layer.deserved for layer in row.layers if layer.deserved is not None]
        spread = "-"
        if deserved:
            mean = sum(deserved) / len(deserved)
            spread = f"{mean:.2f} ({min(deserved):.2f}-{max(deserved):.2f})"
        table.add_row(
            Text(row.label),
            _percent(row.original),
            _percent(row.quantised),
            _percent(row.evicted),
            f"{_percent(min(quantised))}-{_percent(max(quantised))}" if row.quantised else "-",
            spread,
            bytes_cells(row.mean_bytes, None)[0],
            *bytes_cells(row.peak_bytes, row.cold_bytes),
        )
    return table


def _distances(rows: Sequence[StateRow]) -> Table:
    full, full_replies = rows[0].distance, rows[0].reply_distance
    caption = _DISTANCES.format(
        full=_perplexity(full.full_nll),
        replies=0 if full_replies is None else full_replies.num_steps,
        full_replies="-" if full_replies is None else _perplexity(full_replies.full_nll),
    )
    names = ("KL", "logit", "top-1", "ppl", "in replies: KL", "logit", "top-1", "ppl")
    table = _empty_table(caption, *names)
    for row in rows:
        table.add_row(Text(row.label), *_cells(row.distance), *_cells(row.reply_distance))
    return table


def _cells(distance: Distance | None) -> tuple[str, str, str, str]:
    if distance is None:
        return "-", "-", "-", "-"
    return (
        f"{distance.divergence:.4f}",
        f"{distance.logit_distance:.3f}",
        _percent(distance.agreement),
        _perplexity(distance.nll),
    )


def _lives(rows: Sequence[StateRow]) -> Table:
    names = ("evictions", "gone", "after: least", "median", "alive", "oldest")
    table = _empty_table(_LIVES, *names)
    for row in rows:
        lives = row.lives
        assert lives is not None, "only rows of parts have none"
        cells: list[float | None] = [
            row.evictions,
            lives.gone,
            lives.shortest_age,
            lives.median_age,
        ]
        cells += [lives.alive, lives.longest_alive]
        table.add_row(Text(row.label), *("-" if x is None else f"{x:.0f}" for x in cells))
    return table


def _percent(share: float) -> str:
    return f"{100 * share:.1f}"


def _perplexity(nll: float) -> str:
    value = math.exp(nll)
    return f"{value:.3f}" if value < 100 else f"{value:.0f}"


def _empty_table(caption: str, *columns: str) -> Table:
    return bench_table(caption, *columns, label="policy")
