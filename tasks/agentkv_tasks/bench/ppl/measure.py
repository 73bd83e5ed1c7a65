"""`agentkv bench ppl`: perplexity of continuations at matched bytes.

Every policy reads the same samples of one stream. Policies with a budget get the bytes of a window
of so many entries, so that none wins by storing more.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import fmean
from time import perf_counter
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import Progress

from agentkv.build import (
    cache_dtype_for,
    check_language_model,
    load_run_model,
    make_acting,
    make_policy,
    resolved_parameters,
)
from agentkv.config import RunSettings
from agentkv.models.find import weights_digest
from agentkv_tasks.bench.errors import BenchError
from agentkv_tasks.bench.host import dtype_name, measured_on, threads_of_torch
from agentkv_tasks.bench.matched import window_bytes
from agentkv_tasks.bench.ppl.read import Continuation, read_sample
from agentkv_tasks.bench.ppl.rows import PerplexityRow, perplexity_file
from agentkv_tasks.bench.ppl.table import FULL, WINDOW, tables
from agentkv_tasks.bench.row_file import RowFile
from agentkv_tasks.bench.stream import Stream, check_source, read_stream
from agentkv_tasks.bench.tables import print_results
from agentkv_tasks.provenance import commit

if TYPE_CHECKING:
    from agentkv.cache.cache import Cache
    from agentkv.models.local import LocalModel

SPREAD = 1024
"""Tokens of the stream per sample: about two turns, of which each has a reply."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """Settings of the measurement."""

    settings: RunSettings
    """Only the model with its dtype and device, the policies and the chunk count."""
    lengths: tuple[int, ...]
    """Tokens read before a continuation."""
    num_tokens: int
    """Most tokens of a continuation."""
    num_samples: int
    """Continuations, the same at all lengths."""
    entries: int
    """Entries of the window that sets the bytes."""
    text: Path | None = None
    """File to read instead of the world."""
    threads: int | None = None
    """Threads of torch; None: unchanged."""
    command: str = ""
    out: Path
    """File of the rows; rows in it are not measured again."""
    fresh: bool = False
    """Overwrite the file."""

    @property
    def num_needed(self) -> int:
        """Tokens of the stream."""
        return max(self.lengths) + self.num_samples * SPREAD + self.num_tokens


def check(bench: Bench) -> None:
    """Check the options without loading a model.

    Raises:
        ValueError: an option is wrong; the message names valid values.
        BrowserMissing: the stream needs a browser, and none was found.
    """
    settings = bench.settings
    check_language_model(settings)
    for policy in settings.policies:
        make_policy(policy)
    labels = [policy.row_name for policy in settings.policies]
    missing = [name for name in (FULL, WINDOW) if name not in labels]
    if missing:
        raise BenchError(
            f"--policies {','.join(labels)} lacks {' and '.join(missing)}; the shares say where a "
            "policy lies between a window and a full cache, so give both"
        )
    if not bench.lengths or min(bench.lengths) < 1:
        raise BenchError(f"--seen must be 1 or more; found {', '.join(map(str, bench.lengths))}")
    if min(bench.lengths) <= bench.entries:
        raise BenchError(
            f"--seen {min(bench.lengths)}: a window of {bench.entries} entries forgets nothing "
            "there; give a longer one, or fewer --entries"
        )
    check_source(settings, bench.text)
    perplexity_file(bench.out, fresh=bench.fresh)


def run_bench(bench: Bench, console: Console) -> list[PerplexityRow]:
    """Measure, write each row at once, and print the table and a summary in JSON.

    Raises:
        ValueError: as `check`; bytes that a policy does not fit into; a stream that is too short;
            lengths beyond the model's positions; rows of another measurement.
        KeyboardInterrupt: finished rows are written and printed.
    """
    check(bench)
    file = perplexity_file(bench.out, fresh=bench.fresh)
    with threads_of_torch(bench.threads):
        local = load_run_model(bench.settings)
        assert local is not None, "scripts are refused by `check`"
        longest, positions = max(bench.lengths) + bench.num_tokens, local.max_positions
        if positions is not None and longest > positions:
            raise BenchError(
                f"--seen {max(bench.lengths)} and --tokens {bench.num_tokens} are more than the "
                f"{positions} positions of {local.name}"
            )
        num_bytes = window_bytes(bench.entries, bench.settings, local)
        settings = bench.settings.model_copy(update={"budget": f"{num_bytes}B"})
        parameters = {
            chosen.row_name: resolved_parameters(settings, chosen) for chosen in settings.policies
        }
        # a policy that does not fit is refused here, before anything is read
        makers = {
            chosen.row_name: make_acting(settings, policy=chosen, model=local).new_cache
            for chosen in settings.policies
        }
        interrupted = False
        try:
            with Progress(console=console, transient=True) as progress:
                stream = read_stream(
                    settings, bench.text, local.template, bench.num_needed, progress
                )
                alike = _alike(bench, local, stream, num_bytes)
                file.require_same(
                    lambda row: {**alike, "parameters": parameters.get(row.label, row.parameters)}
                )
                _measure(bench, local, stream, makers, parameters, alike, file, progress)
        except KeyboardInterrupt:
            interrupted = True
    rows = _sorted(file.rows)
    print_results(
        console, PerplexityRow, rows, bench.out, tables=tables(rows), interrupted=interrupted
    )
    return rows


def _sorted(rows: Sequence[PerplexityRow]) -> list[PerplexityRow]:
    """Sort rows by length; the policies of a length keep their order."""
    return sorted(rows, key=lambda row: row.seen)


def _measure(
    bench: Bench,
    local: "LocalModel",
    stream: Stream,
    makers: Mapping[str, Callable[[], "Cache"]],
    parameters: Mapping[str, Mapping[str, Any]],
    alike: Mapping[str, Any],
    file: RowFile[PerplexityRow],
    progress: Progress,
) -> None:
    """Add the missing rows of each length and policy, shorter ones first."""
    continuations = _continuations(bench, stream)
    wanted = [(seen, label) for seen in sorted(set(bench.lengths)) for label in makers]
    left = [place for place in wanted if place not in file.keys]
    started_at = commit()
    bar = progress.add_task("", total=bench.num_samples * len(left))
    for seen, label in left:
        progress.update(bar, description=f"{label}, {seen} tokens")
        began, found = perf_counter(), []
        for each in continuations:
            ids = stream.ids[each.start - seen : each.stop]
            found.append(read_sample(local.model, makers[label](), ids, seen))
            progress.advance(bar)
        file.add(
            PerplexityRow(
                label=label,
                parameters=parameters[label],
                seen=seen,
                commit=started_at,
                command=bench.command,
                seconds=round(perf_counter() - began, 1),
                finished_at=datetime.now(UTC).isoformat(timespec="seconds"),
                **_summary(found),
                **alike,
            )
        )


def _continuations(bench: Bench, stream: Stream) -> list[range]:
    """Return the places of the continuations, spread evenly over the stream: replies where there
    are any, which are what an agent's model was made to write, else any tokens.

    Raises:
        BenchError: the stream has too few replies.
    """
    first, last = max(bench.lengths), len(stream.ids) - bench.num_tokens
    places: Sequence[int] = range(first, last + 1)
    if any(stream.of_replies):
        of_replies = stream.of_replies
        places = [i for i in places if of_replies[i] and not of_replies[i - 1]]
    if len(places) < bench.num_samples:
        raise BenchError(
            f"{stream.source} has {len(places)} replies among the tokens read; "
            f"--samples {bench.num_samples} needs as many"
        )
    starts = [places[i * len(places) // bench.num_samples] for i in range(bench.num_samples)]
    found = []
    for start in starts:
        stop = start + bench.num_tokens
        if any(stream.of_replies):
            ended = (i for i in range(start, stop) if not stream.of_replies[i])
            stop = next(ended, stop)
        found.append(range(start, stop))
    return found


def _summary(found: Sequence[Continuation]) -> dict[str, Any]:
    nll = [each for sample in found for each in sample.nll]
    return {
        "sample_nll": [fmean(sample.nll) for sample in found],
        "sample_tokens": [len(sample.nll) for sample in found],
        "nll": fmean(nll),
        "mean_bytes": fmean(sample.mean_bytes for sample in found),
        "peak_bytes": max(sample.peak_bytes for sample in found),
        "index_bytes": fmean(sample.index_bytes for sample in found),
        "cold_bytes": fmean(sample.cold_bytes for sample in found),
        "look_share": sum(sample.num_looks for sample in found) / len(nll),
        "look_bytes": sum(sample.look_bytes for sample in found) / len(nll),
    }


def _alike(bench: Bench, local: "LocalModel", stream: Stream, num_bytes: int) -> dict[str, Any]:
    """Return the fields that all rows of a file share."""
    settings = bench.settings
    return {
        "model": local.name,
        "weights": weights_digest(settings.model),
        "source": stream.source,
        "stream_sha256": stream.digest,
        "num_tokens": bench.num_tokens,
        "of_replies": any(stream.of_replies),
        "stream_tokens": len(stream.ids),
        "entries": bench.entries,
        "budget_bytes": num_bytes,
        "settings": {
            "prefill": settings.prefill,
            "chunk": settings.chunk,
            "dtype": dtype_name(local.model),
            "cache_dtype": cache_dtype_for(settings, local),
        },
        **measured_on(local.model),
    }
