"""The table of `agentkv bench traces`; it fits 80 columns."""

from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from agentkv_tasks.bench.tables import bench_table, threads_text, with_gaps
from agentkv_tasks.bench.traces.rows import TraceRow

_CAPTION = (
    "{model}, {device}, {threads}; {source} trace. What hosts do with earlier messages: plain, "
    "nothing; removed, they remove the oldest turns; noted and rolling, they put a note in place "
    "of outputs, now and then and after every turn; dated, they change a line of the "
    "instructions. prompt, read: tokens of all prompts, and those that were read. prefix: tokens "
    "that a server reads that goes on from the longest prompt that a new one begins with. x: read "
    "relative to prefix. first, p95: milliseconds to the first token, median and 95th percentile."
)


def table(rows: Sequence[TraceRow]) -> Table:
    """Return tokens read and times, by kind of session."""
    first = rows[0]
    caption = _CAPTION.format(
        model=first.model,
        device=first.device,
        threads=threads_text(first.threads),
        source=first.source,
    )
    columns = ("edits", "prompts", "prompt", "read", "prefix", "x", "first", "p95")
    found = bench_table(caption, *columns, length="hosts", label="cache")
    kinds = list(dict.fromkeys(row.kind for row in rows))
    ordered = sorted(rows, key=lambda row: kinds.index(row.kind))
    for row in with_gaps(found, ordered, key=lambda row: row.kind):
        found.add_row(
            row.kind,
            Text(row.policy),
            row.edits,
            f"{row.num_requests:,}",
            f"{row.num_prompt:,}",
            f"{row.num_read:,}",
            f"{row.num_prefix_read:,}",
            f"{row.num_read / max(1, row.num_prefix_read):.2f}",
            f"{1000 * row.first_token_s:.0f}",
            f"{1000 * row.first_token_p95_s:.0f}",
        )
    return found
