"""The tables of `agentkv bench states`; all fit 80 columns."""

import math
from collections.abc import Iterator, Sequence

from rich.table import Table
from rich.text import Text

from agentkv_tasks.bench.rows import Distance, StateRow
from agentkv_tasks.report.summary import human_bytes

_STATES = (
    "orig, quant, gone: % of the tokens seen, mean over {steps} steps, layers and heads; by layer: "
    "least and most quantised. deserves: share of its rows that rank lets a layer keep original, "
    "mean (least-most). cache: mean; peak: at any moment. {source}, {model}, after a prompt of "
    "{prompt} tokens."
)
_DISTANCES = (
    "Next tokens against a full cache's. KL: full against this, in nats; logit: mean distance; "
    "top-1: % of steps with full's likeliest token; ppl: perplexity of the stream, full {full}. "
    "In replies: the {replies} tokens that a model is to write, full {full_replies}."
)
_LIVES = (
    "evictions: steps in which rows went. gone: rows evicted after they were quantised, of all "
    "layers and heads, and the tokens that they lived so; alive: quantised rows at the end, and "
    "the oldest's age."
)


def tables(rows: Sequence[StateRow]) -> Iterator[Table]:
    """What each policy kept, what that did, and how long quantised rows lived if there are any.

    Args:
        rows: of the whole stream, one for each policy.
    """
    yield _states(rows)
    yield _distances(rows)
    if any(row.quantised for row in rows):
        yield _lives([row for row in rows if row.quantised])


def _states(rows: Sequence[StateRow]) -> Table:
    first = rows[0]
    caption = _STATES.format(
        steps=first.num_steps,
        prompt=first.num_prompt,
        source=first.source,
        model=first.model,
    )
    names = ("orig", "quant", "gone", "by layer", "deserves", "cache", "peak")
    table = _table(caption, *names)
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
            human_bytes(row.mean_bytes),
            human_bytes(row.peak_bytes),
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
    table = _table(caption, *names)
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
    table = _table(_LIVES, *names)
    for row in rows:
        lives = row.lives
        assert lives is not None, "a row of the whole stream has them"
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


def _table(caption: str, *names: str) -> Table:
    table = Table(
        box=None,
        padding=(0, 1, 0, 0),
        header_style="bold",
        caption=caption,
        caption_justify="left",
    )
    table.add_column("policy", overflow="fold", max_width=16)
    for name in names:
        table.add_column(name, justify="right", no_wrap=True)
    return table
