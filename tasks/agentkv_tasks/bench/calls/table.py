"""The table of `agentkv bench calls`, which fits 80 columns."""

from collections.abc import Iterator, Sequence

from rich.table import Table
from rich.text import Text

from agentkv_tasks.bench.calls.rows import CallsRow
from agentkv_tasks.bench.tables import (
    BYTES,
    FULL,
    GATE,
    bench_table,
    bytes_cells,
    threads_text,
)
from agentkv_tasks.report.statistics import bootstrap_interval

_CAPTION = (
    "tokens: % of the tokens of the answers that were the likeliest ones, each given those before "
    "it. exact: % of the answers of which all tokens were. to full: points of tokens, with a "
    "percentile interval over bootstrap draws of conversations. {bytes}means over the tokens of "
    "the answers; cold tier with its index; both. looks: % of the tokens of requests and answers. "
    "{count} conversations of {source}, {least:,} to {most:,} tokens. {model}, {device}, {threads}."
)
_UNDECIDED = " full is under {gate:.0f} %, so this decides nothing."


def tables(rows: Sequence[CallsRow]) -> Iterator[Table]:
    """Yield the table of at least one row."""
    first, full = rows[0], next((row for row in rows if row.label == FULL), None)
    caption = _CAPTION.format(
        bytes=BYTES,
        count=len(first.names),
        source=first.source,
        least=min(first.num_tokens),
        most=max(first.num_tokens),
        model=first.model,
        device=first.device,
        threads=threads_text(first.threads),
    )
    if full is not None and full.hit_share < GATE:
        caption += _UNDECIDED.format(gate=100 * GATE)
    columns = ("tokens", "to full", "95 %", "exact", "hot", "cold", "all", "looks")
    table = bench_table(caption, *columns, label="policy")
    for row in rows:
        table.add_row(
            Text(row.label),
            f"{100 * row.hit_share:.1f}",
            *(("-", "-") if full is None or row is full else _to_full(row, full)),
            f"{100 * row.exact_share:.0f}",
            *bytes_cells(row.mean_bytes, row.cold_bytes),
            f"{100 * row.look_share:.1f}" if row.look_share else "-",
        )
    yield table


def _to_full(row: CallsRow, full: CallsRow) -> tuple[str, str]:
    """Return the difference in points, and its interval over conversations."""
    counts = row.num_answer_tokens
    differences = [
        (hits - of_full) / count
        for hits, of_full, count in zip(row.hits, full.hits, counts, strict=True)
    ]
    low, high = bootstrap_interval(differences, weights=counts)
    return (
        f"{100 * (row.hit_share - full.hit_share):+.1f}",
        f"{100 * low:+.1f} to {100 * high:+.1f}",
    )
