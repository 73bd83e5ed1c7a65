"""The table of `agentkv bench traces`; it fits 80 columns."""

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from rich.table import Table
from rich.text import Text

from agentkv.terminal import human_bytes
from agentkv_tasks.bench.tables import bench_table, threads_text, with_gaps
from agentkv_tasks.bench.traces.llama_server import VARIANTS
from agentkv_tasks.bench.traces.rows import TraceRow
from agentkv_tasks.bench.traces.trace import PRUNING

_CAPTION = (
    "{model}, {device}, {threads}; {source} trace, {memory} for each server's entries. What hosts "
    "do with earlier messages: plain, nothing; removed, they remove the oldest turns; noted and "
    "rolling, they put a note in place of outputs, now and then and after every turn; dated, they "
    "change a line of the instructions. pruned: removed, noted and rolling; whole: the others. "
    "asked: requests. prompt, read: tokens of all prompts, and those that were read. x: read "
    "relative to a server that goes on from the longest prompt that a new one begins with. first, "
    "p95: milliseconds to the first token, median and 95th percentile.{peer}"
)
_PEER = " peer: what stands before it, relative to {label}."


@dataclass(frozen=True, slots=True)
class Sum:
    """What one contender did with the requests of some kinds of session."""

    num_requests: int
    num_prompt: int
    num_read: int
    num_prefix_read: int
    first_token_s: float
    """Median."""
    first_token_p95_s: float

    @classmethod
    def of(cls, rows: Sequence[TraceRow]) -> "Sum":
        """Return the sum of at least one row."""
        seconds = sorted(each for row in rows for each in row.first_token_s)
        return cls(
            num_requests=len(seconds),
            num_prompt=sum(row.sum_prompt for row in rows),
            num_read=sum(row.sum_read for row in rows),
            num_prefix_read=sum(row.sum_prefix_read for row in rows),
            first_token_s=statistics.median(seconds),
            first_token_p95_s=seconds[min(len(seconds) - 1, int(0.95 * len(seconds)))],
        )


def sums(rows: Sequence[TraceRow]) -> dict[str, dict[tuple[str, str], Sum]]:
    """Return the sums of each contender, by its label and way of edits, for each kind of session,
    and for hosts that prune and hosts that do not, if there are several kinds."""
    kinds: dict[str, list[str]] = {row.kind: [row.kind] for row in rows}
    if len(kinds) > 1:
        pruning: list[str] = [kind for kind in kinds if kind in PRUNING]
        kinds |= {"pruned": pruning, "whole": [kind for kind in kinds if kind not in pruning]}
    ways = list(dict.fromkeys((row.label, row.edits) for row in rows))
    found: dict[str, dict[tuple[str, str], Sum]] = {}
    for name, members in kinds.items():
        for way in ways:
            own = [row for row in rows if (row.label, row.edits) == way and row.kind in members]
            if own:
                found.setdefault(name, {})[way] = Sum.of(own)
    return found


def peer_of(rows: Sequence[TraceRow]) -> str | None:
    """Return the contender that others are compared with: llama.cpp's server with its own defaults,
    or else another of its variants; None if there is none."""
    labels = {row.label for row in rows}
    return next((label for label in VARIANTS if label in labels), None)


def table(rows: Sequence[TraceRow]) -> Table:
    """Return tokens read and times, by kind of session."""
    first, compared = rows[0], peer_of(rows)
    has_peer = compared is not None
    caption = _CAPTION.format(
        model=first.model,
        device=first.device,
        threads=threads_text(first.threads),
        source=first.source,
        memory=human_bytes(first.memory_bytes),
        peer=_PEER.format(label=compared) if has_peer else "",
    )
    peer = ("peer",) * has_peer
    found = bench_table(
        caption,
        *("asked", "prompt", "read", "x", *peer, "first", *peer, "p95", *peer),
        length="hosts",
        label="cache",
    )
    lines = _lines(sums(rows), compared)
    for name, way, each, against in with_gaps(found, lines, key=lambda line: line[0]):
        ratios = ["", "", ""]
        if against is not None:
            ratios = [
                f"{mine / max(theirs, 1e-9):.2f}"
                for mine, theirs in (
                    (each.num_read, against.num_read),
                    (each.first_token_s, against.first_token_s),
                    (each.first_token_p95_s, against.first_token_p95_s),
                )
            ]
        read, median, p95 = ([ratio] * has_peer for ratio in ratios)
        found.add_row(
            name,
            Text(" ".join(way).strip()),
            f"{each.num_requests:,}",
            f"{each.num_prompt:,}",
            f"{each.num_read:,}",
            f"{each.num_read / max(1, each.num_prefix_read):.2f}",
            *read,
            f"{1000 * each.first_token_s:.0f}",
            *median,
            f"{1000 * each.first_token_p95_s:.0f}",
            *p95,
        )
    return found


def _lines(
    all_sums: Mapping[str, Mapping[tuple[str, str], Sum]], compared: str | None
) -> Iterator[tuple[str, tuple[str, str], Sum, Sum | None]]:
    for name, ways in all_sums.items():
        for way, each in ways.items():
            yield name, way, each, None if compared is None else ways.get((compared, ""))
