"""The tables of `agentkv bench speed`; all fit 80 columns."""

from collections.abc import Iterator, Sequence
from itertools import groupby

from rich.table import Table
from rich.text import Text

from agentkv_tasks.bench.speed.contenders import BASELINE
from agentkv_tasks.bench.speed.rows import SpeedRow
from agentkv_tasks.bench.speed.split import PARTS
from agentkv_tasks.report.summary import human_bytes

_TIMES = (
    "{model}, batch {batch}, {device}, {dtype}, {threads}. p20, p50, p80: ms of a step, {tokens} "
    "steps in each of {rounds} interleaved rounds, each from the same state. tok/s: of the batch. "
    "x: p50 by that of {baseline} (DynamicCache, {attention}) in the same round, median, range. "
    "rows: of a layer and head. {paths}Load of the machine {load}."
)
_SPLITS = (
    "ms of a step, mean, in {rounds} of their own, the cost of asking taken off. attention: "
    "with what the same compiled call does. books: appending, "
    "statistics, gate, scores. compact: dropping, keeping, quantising. keep: both, as a share of "
    "the step. model: the rest. cache: before the first step; peak: at any moment (transformers' "
    "caches do not say)."
)
_BATCHES = "Tokens a second, of all sequences of a batch together, by batch."


def tables(rows: Sequence[SpeedRow]) -> Iterator[Table]:
    """Times, and where they go, for every batch; and of several batches the tokens a second."""
    by_batch = sorted(rows, key=lambda row: row.batch)
    for _, group in groupby(by_batch, key=lambda row: row.batch):
        of_batch = list(group)
        yield _times(of_batch)
        yield _splits(of_batch)
    if len({row.batch for row in rows}) > 1:
        yield _batches(rows)


def _times(rows: Sequence[SpeedRow]) -> Table:
    first = rows[0]
    loads = [load for row in rows for load in row.load_average]
    named = f"{first.model} ({first.weights} weights" + ("; " + first.scaled) * bool(first.scaled)
    caption = _TIMES.format(
        model=named + ")",
        batch=first.batch,
        device=first.device,
        dtype=first.settings.get("dtype", ""),
        threads=f"{first.threads} thread" + "s" * (first.threads != 1),
        tokens=first.num_tokens,
        rounds=" or ".join(str(n) for n in sorted({row.num_rounds for row in rows})),
        baseline=BASELINE,
        attention=next(row.attention for row in rows if row.label == BASELINE),
        paths=_paths(rows),
        load=f"{min(loads):.1f}-{max(loads):.1f}" if loads else "unknown",
    )
    table = _table(caption, "p20", "p50", "p80", "tok/s", "x", "", "rows")
    for row in _by_length(rows, table):
        table.add_row(
            *_head(row),
            _ms(row.p20_ms),
            _ms(row.p50_ms),
            _ms(row.p80_ms),
            _rate(row.tokens_per_second),
            f"{row.ratio:.2f}",
            f"{row.ratio_least:.2f}-{row.ratio_most:.2f}",
            f"{row.kept_rows:.0f}",
        )
    return table


def _splits(rows: Sequence[SpeedRow]) -> Table:
    rounds = " or ".join(str(n) for n in sorted({row.settings["num_split_rounds"] for row in rows}))
    caption = _SPLITS.format(rounds=f"{rounds} round" + "s" * (rounds != "1"))
    table = _table(caption, "attention", "books", "compact", "keep", "model", "cache", "peak")
    for row in _by_length(rows, table):
        split = {name: _ms(row.split_ms[name]) if row.split_ms else "-" for name in PARTS}
        share = row.keeping_share
        table.add_row(
            *_head(row),
            split["attention"],
            split["bookkeeping"],
            split["compaction"],
            "-" if share is None else f"{100 * share:.1f}%",
            split["model"],
            human_bytes(row.live_bytes),
            human_bytes(row.peak_bytes),
        )
    return table


def _batches(rows: Sequence[SpeedRow]) -> Table:
    batches = sorted({row.batch for row in rows})
    table = _table(_BATCHES, *(str(batch) for batch in batches))
    found = {(row.seen, row.label, row.batch): row for row in rows}
    heads = {(row.seen, row.label): row for row in rows}
    for row in _by_length(list(heads.values()), table):
        each = (found.get((row.seen, row.label, batch)) for batch in batches)
        table.add_row(
            *_head(row), *("-" if at is None else _rate(at.tokens_per_second) for at in each)
        )
    return table


def _paths(rows: Sequence[SpeedRow]) -> str:
    """Which attention was used by ours, where that is known: at any length."""
    by_label: dict[str, set[str]] = {}
    for row in rows:
        if row.kind == "agentkv" and row.attention:
            by_label.setdefault(row.label, set()).update(row.attention.split("+"))
    by_path: dict[str, list[str]] = {}
    for label, paths in by_label.items():
        by_path.setdefault("+".join(sorted(paths)), []).append(label)
    if not by_path:
        return ""
    if len(by_path) == 1:
        return f"Our attention: {next(iter(by_path))}. "
    each = "; ".join(f"{path}: {', '.join(labels)}" for path, labels in by_path.items())
    return f"Our attention: {each}. "


def _by_length(rows: Sequence[SpeedRow], table: Table) -> Iterator[SpeedRow]:
    """The rows, with a gap in the table where the length changes."""
    before = None
    for row in sorted(rows, key=lambda row: row.seen):
        if before not in (None, row.seen):
            table.add_row()
        before = row.seen
        yield row


def _head(row: SpeedRow) -> tuple[str, Text]:
    return str(row.seen), Text(row.label)


def _ms(value: float) -> str:
    return f"{value:.2f}" if value < 100 else f"{value:.0f}"


def _rate(value: float) -> str:
    return f"{value:.1f}" if value < 100 else f"{value:.0f}"


def _table(caption: str, *names: str) -> Table:
    table = Table(
        box=None,
        padding=(0, 1, 0, 0),
        header_style="bold",
        caption=caption,
        caption_justify="left",
    )
    table.add_column("seen", justify="right", no_wrap=True)
    table.add_column("cache", overflow="fold", max_width=16)
    for name in names:
        table.add_column(name, justify="right", no_wrap=True)
    return table
