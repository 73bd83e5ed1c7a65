"""The tables of `agentkv bench speed`; all fit 80 columns."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby

from rich.table import Table
from rich.text import Text

from agentkv.terminal import human_bytes
from agentkv_tasks.bench.contenders.contender import BASELINE
from agentkv_tasks.bench.speed.rows import SpeedRow
from agentkv_tasks.bench.speed.split import (
    ATTENTION,
    BOOKKEEPING,
    COMPACTION,
    MODEL,
    PYTHON,
    STEP,
)
from agentkv_tasks.bench.tables import (
    BYTES,
    bench_table,
    bytes_cells,
    model_text,
    threads_text,
    with_gaps,
)
from agentkv_tasks.report.plot import Figure, over_lengths

_TIMES = (
    "{model}, batch {batch}, {device}, {dtype}, {threads}. p50, p80, p99: latency of a step in ms "
    "over {tokens} steps in each of {rounds} interleaved rounds from the same state. tok/s: tokens "
    "of the batch per second. x: p50 relative to {baseline} (DynamicCache, {attention}) in the "
    "same round, median and range. tokens: kept per layer and head. {paths}{ways}Load of the "
    "machine: {load}."
)
_SPLITS = (
    "Mean ms of a step in {rounds} of separate measurement; the cost of instrumentation is "
    "subtracted. Compiled steps: step: the compiled call, with all layers in it; python: "
    "everything around it. Other steps: attn: attention with everything in the same call; books: "
    "appending, statistics, gate, scores; model: the rest. compact: dropping, keeping, quantizing. "
    "keep: books and compact as a share of the step."
)
_STORAGE = (
    f"{BYTES}storage before the first step; of the cold tier; both. peak: storage at any moment "
    "(unknown for other libraries' caches)."
)
_PAGES = (
    " page: ms to read {tokens} tokens after those seen, median over the rounds. x: relative to "
    "{baseline} in the same round, median."
)
_LOOKS = (
    " looks: share of the timed tokens that looked back; they are "
    "random, and a model is unsure of them, so an alarm goes off more often than in text."
)
_BATCHES = "Tokens per second of all sequences of a batch, by batch."


def tables(rows: Sequence[SpeedRow]) -> Iterator[Table]:
    """Yield latencies and their parts for every batch, and the throughput of several batches."""
    by_batch = sorted(rows, key=lambda row: row.batch)
    for _, group in groupby(by_batch, key=lambda row: row.batch):
        of_batch = list(group)
        yield _times(of_batch)
        if any(row.split_ms for row in of_batch):
            yield _splits(of_batch)
        yield _storage(of_batch)
    if len({row.batch for row in rows}) > 1:
        yield _batches(rows)


def figures(rows: Sequence[SpeedRow]) -> Iterator[Figure]:
    """Yield the latency of a step and of a page over the tokens seen, by batch."""
    by_batch = sorted(rows, key=lambda row: row.batch)
    for batch, group in groupby(by_batch, key=lambda row: row.batch):
        of_batch = list(group)
        plots = [
            over_lengths("token", "ms", [(row.label, row.seen, row.p50_ms) for row in of_batch])
        ]
        pages = [(row.label, row.seen, row.page_ms) for row in of_batch]
        if any(milliseconds is not None for _, _, milliseconds in pages):
            plots.append(over_lengths("page", "ms", pages))
        yield Figure(
            f"Median latency after the tokens seen, batch {batch}. Random tokens: the latency of a "
            "policy that looks back depends on how many of them look.",
            tuple(plots),
        )


def _times(rows: Sequence[SpeedRow]) -> Table:
    first = rows[0]
    loads = [load for row in rows for load in row.load_average]
    caption = _TIMES.format(
        model=model_text(first.model, first.weights, first.scaled),
        batch=first.batch,
        device=first.device,
        dtype=first.settings.get("dtype", ""),
        threads=threads_text(first.threads),
        tokens=first.num_tokens,
        rounds=" or ".join(str(n) for n in sorted({row.num_rounds for row in rows})),
        baseline=BASELINE,
        attention=next(row.attention for row in rows if row.label == BASELINE),
        paths=_named("Attention of agentkv", rows, lambda row: row.attention.split("+")),
        ways=_named("Steps of agentkv", rows, lambda row: [row.decoding]),
        load=f"{min(loads):.1f}-{max(loads):.1f}" if loads else "unknown",
    )
    table = _empty_table(caption, "p50", "p80", "p99", "tok/s", "x", "", "tokens")
    for row in _by_length(rows, table):
        table.add_row(
            *_head(row),
            _ms(row.p50_ms),
            _ms(row.p80_ms),
            _ms(row.p99_ms),
            _rate(row.tokens_per_second),
            f"{row.ratio:.2f}",
            f"{row.ratio_least:.2f}-{row.ratio_most:.2f}",
            f"{row.kept_rows:.0f}",
        )
    return table


def _splits(rows: Sequence[SpeedRow]) -> Table:
    rounds = " or ".join(str(n) for n in sorted({row.settings["num_split_rounds"] for row in rows}))
    caption = _SPLITS.format(rounds=f"{rounds} round" + "s" * (rounds != "1"))
    columns = {
        "step": STEP,
        "python": PYTHON,
        "attn": ATTENTION,
        "books": BOOKKEEPING,
        "model": MODEL,
        "compact": COMPACTION,
    }
    table = _empty_table(caption, *columns, "keep")
    for row in _by_length(rows, table):
        split, share = row.split_ms, row.keeping_share
        table.add_row(
            *_head(row),
            *(_ms(split[name]) if name in split else "-" for name in columns.values()),
            "-" if share is None else f"{100 * share:.1f}%",
        )
    return table


def _storage(rows: Sequence[SpeedRow]) -> Table:
    """Return storage, looks if any cache looks back, and the time of pages if any were read."""
    num_page = rows[0].num_page
    pages = _PAGES.format(tokens=num_page, baseline=BASELINE) if num_page else ""
    looks_back = any(row.look_share is not None for row in rows)
    table = _empty_table(
        _STORAGE + _LOOKS * looks_back + pages,
        "hot",
        "cold",
        "all",
        "peak",
        *(["looks"] if looks_back else []),
        *(["page", "x"] if num_page else []),
    )
    for row in _by_length(rows, table):
        times = [_ms(row.page_ms)] if row.page_ms is not None else ["-"]
        times += [f"{row.page_ratio:.2f}"] if row.page_ratio is not None else ["-"]
        table.add_row(
            *_head(row),
            *bytes_cells(row.live_bytes, row.cold_bytes),
            human_bytes(row.peak_bytes),
            *([_looks(row)] if looks_back else []),
            *(times if num_page else []),
        )
    return table


def _looks(row: SpeedRow) -> str:
    return "-" if row.look_share is None else f"{100 * row.look_share:.0f}%"


def _batches(rows: Sequence[SpeedRow]) -> Table:
    batches = sorted({row.batch for row in rows})
    table = _empty_table(_BATCHES, *(str(batch) for batch in batches))
    found = {(row.seen, row.label, row.batch): row for row in rows}
    heads = {(row.seen, row.label): row for row in rows}
    for row in _by_length(list(heads.values()), table):
        each = (found.get((row.seen, row.label, batch)) for batch in batches)
        table.add_row(
            *_head(row), *("-" if at is None else _rate(at.tokens_per_second) for at in each)
        )
    return table


def _named(what: str, rows: Sequence[SpeedRow], of: Callable[[SpeedRow], Iterable[str]]) -> str:
    """Return a sentence that names something of agentkv's caches, over all lengths; empty without
    any."""
    by_label: dict[str, set[str]] = {}
    for row in rows:
        if row.kind == "agentkv" and row.attention:
            by_label.setdefault(row.label, set()).update(of(row))
    by_path: dict[str, list[str]] = {}
    for label, paths in by_label.items():
        by_path.setdefault("+".join(sorted(paths)), []).append(label)
    if not by_path:
        return ""
    if len(by_path) == 1:
        return f"{what}: {next(iter(by_path))}. "
    each = "; ".join(f"{path}: {', '.join(labels)}" for path, labels in by_path.items())
    return f"{what}: {each}. "


def _by_length(rows: Sequence[SpeedRow], table: Table) -> Iterator[SpeedRow]:
    ascending = sorted(rows, key=lambda row: row.seen)
    return with_gaps(table, ascending, key=lambda row: row.seen)


def _head(row: SpeedRow) -> tuple[str, Text]:
    return str(row.seen), Text(row.label)


def _ms(value: float) -> str:
    return f"{value:.2f}" if value < 100 else f"{value:.0f}"


def _rate(value: float) -> str:
    return f"{value:.1f}" if value < 100 else f"{value:.0f}"


def _empty_table(caption: str, *columns: str) -> Table:
    return bench_table(caption, *columns, length="seen", label="cache")
