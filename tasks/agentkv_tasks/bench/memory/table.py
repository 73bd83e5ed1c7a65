"""The table of `agentkv bench memory`; it fits 80 columns."""

from collections.abc import Sequence
from itertools import groupby

from rich.table import Table
from rich.text import Text

from agentkv_tasks.bench.memory.rows import MemoryRow
from agentkv_tasks.report.summary import human_bytes

_CAPTION = (
    "{model}, {device}, {dtype}, {threads}. peak: {measured} while a process read so many "
    "tokens in chunks of {chunk} and decoded {decoded}; each cell a process of its own. "
    "growth: beyond the {loaded} of the loaded model. x: by the same cache's at {shortest} tokens. "
    "cache: its storage at the end, and at any moment (transformers' caches do not say)."
)

_MEASURED = {
    "process": "the most that was resident",
    "device": "the most that CUDA's allocator gave out",
}


def table(rows: Sequence[MemoryRow]) -> Table:
    """What each cache takes at each length, and by how much that grows."""
    first = rows[0]
    named = f"{first.model} ({first.weights} weights" + ("; " + first.scaled) * bool(first.scaled)
    loaded = sorted(row.loaded_bytes for row in rows)
    found = Table(
        box=None,
        padding=(0, 1, 0, 0),
        header_style="bold",
        caption=_CAPTION.format(
            model=named + ")",
            device=first.device,
            dtype=first.settings["dtype"],
            measured=_MEASURED[first.measured],
            threads=f"{first.threads} thread" + "s" * (first.threads != 1),
            chunk=first.settings["chunk"],
            decoded=first.num_decoded,
            loaded=f"{human_bytes(loaded[0])} to {human_bytes(loaded[-1])}",
            shortest=min(row.seen for row in rows),
        ),
        caption_justify="left",
    )
    found.add_column("seen", justify="right", no_wrap=True)
    found.add_column("cache", overflow="fold", max_width=16)
    for name in ("peak", "x", "growth", "x", "cache", "at most", "rows"):
        found.add_column(name, justify="right", no_wrap=True)
    for number, (_, group) in enumerate(groupby(rows, key=lambda row: row.seen)):
        if number:
            found.add_row()
        for row in group:
            found.add_row(
                str(row.seen),
                Text(row.label),
                human_bytes(row.peak_bytes),
                f"{row.ratio:.2f}",
                human_bytes(row.growth_bytes),
                f"{row.growth_ratio:.2f}",
                human_bytes(row.live_bytes),
                human_bytes(row.cache_peak_bytes),
                f"{row.kept_rows:.0f}",
            )
    return found
