"""Measure policies on the samples of one stream at matched bytes.

Every policy reads the same samples. Policies with a budget get the bytes of a window of a
given number of entries, so that none wins by storing more.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import fmean
from time import perf_counter
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar

import torch
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from agentkv.build import (
    check_language_model,
    load_run_model,
    make_acting,
    make_policy,
    resolved_parameters,
)
from agentkv.policies.entries import PolicyError
from agentkv.settings import PolicySettings
from agentkv_tasks.bench.errors import BenchError, require_positive
from agentkv_tasks.bench.frame import ModelBenchSettings, measured
from agentkv_tasks.bench.host import threads_of_torch
from agentkv_tasks.bench.matched import fields_of, window_bytes
from agentkv_tasks.bench.row_file import RowFile
from agentkv_tasks.bench.samples.match import matched_budget
from agentkv_tasks.bench.samples.rows import SampleRow
from agentkv_tasks.bench.stream import Stream, check_source, of_file, read_world
from agentkv_tasks.provenance import commit
from agentkv_tasks.report.plot import Figure
from agentkv_tasks.settings import RunSettings

if TYPE_CHECKING:
    from agentkv.cache.cache import Cache
    from agentkv.models.local import LocalModel

SPREAD = 1024
"""Tokens of the stream per sample: about two turns, of which each has a reply."""

NUM_MATCHED = 4
"""Samples on which mean bytes are matched."""
Match = Literal["budget", "mean"]

RowT = TypeVar("RowT", bound=SampleRow)
SampleT = TypeVar("SampleT")


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleBench(ModelBenchSettings):
    """Settings of the measurement. Rows of the file are not measured again.

    Of `settings`, only the model with its dtype and device, the policies and the chunk count.
    """

    lengths: tuple[int, ...]
    """Tokens read before a continuation."""
    num_tokens: int
    """Most tokens of a continuation."""
    num_samples: int
    """Continuations, the same at all lengths."""
    entries: int
    """Entries of the window that sets the bytes."""
    match: Match = "budget"
    """What is equal: the bytes of the budgets, or of the caches averaged over the tokens of the
    continuations."""
    text: Path | None = None
    """File to read instead of the world."""
    offset: int = 0
    """Tokens of the file that are skipped."""

    @property
    def longest(self) -> int:
        """Tokens of a sample, with the longest past."""
        return max(self.lengths) + self.num_tokens

    @property
    def num_needed(self) -> int:
        """Tokens of the world's stream."""
        return max(self.lengths) + self.num_samples * SPREAD + self.num_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement(Generic[RowT, SampleT]):
    """What a benchmark makes of the samples."""

    kind: type[RowT]
    """Class of the rows."""
    read: Callable[[Any, "Cache", Sequence[int], int], SampleT]
    """Reads one sample: called with the model, an empty cache, the tokens of context and
    continuation, and the number of the former."""
    summarize: Callable[[Sequence[SampleT]], Mapping[str, Any]]
    """Returns the fields of a row that come from its samples."""
    tables: Callable[[Sequence[RowT]], Iterable[Table]]
    """Makes the tables of at least one row, sorted by length."""
    figures: Callable[[Sequence[RowT]], Iterable[Figure]]
    """Makes the figures of at least one row, sorted by length."""


def check_samples(bench: SampleBench, kind: type[RowT]) -> None:
    """Check the options without loading a model.

    Raises:
        ValueError: an option is wrong; the message names valid values.
        BrowserMissing: the stream needs a browser, and none was found.
    """
    settings = bench.settings
    check_language_model(settings)
    for policy in settings.policies:
        make_policy(policy)
    require_positive("--seen", bench.lengths)
    if min(bench.lengths) <= bench.entries:
        raise BenchError(
            f"--seen {min(bench.lengths)}: a window of {bench.entries} entries forgets nothing "
            "there; give a longer one, or fewer --entries"
        )
    if bench.offset and bench.text is None:
        raise BenchError(f"--offset {bench.offset} skips tokens of a --text; give one")
    check_source(settings, bench.text)
    _file(bench, kind)


def measure_samples(
    bench: SampleBench, measurement: Measurement[RowT, SampleT], console: Console
) -> list[RowT]:
    """Measure, write each row at once, and print the tables and a summary in JSON.

    Raises:
        ValueError: as `check_samples`; bytes that a policy does not fit into or cannot be matched
            with; a stream that is too short; lengths beyond the model's positions; rows of another
            measurement.
        KeyboardInterrupt: finished rows are written and printed.
    """
    file = _file(bench, measurement.kind)
    with threads_of_torch(bench.threads):
        local = load_run_model(bench.settings)
        assert local is not None, "scripts are refused by `check_samples`"
        positions = local.max_positions
        if positions is not None and bench.longest > positions:
            raise BenchError(
                f"--seen {max(bench.lengths)} and --tokens {bench.num_tokens} are more than the "
                f"{positions} positions of {local.name}"
            )
        caches = _Caches(bench.settings, local, window_bytes(bench.entries, bench.settings, local))
        return measured(
            console,
            file,
            partial(_measure, bench, measurement, caches, file),
            tables=measurement.tables,
            figures=measurement.figures,
            order=lambda rows: sorted(rows, key=lambda row: row.seen),
        )


def _stream(bench: SampleBench, local: "LocalModel", progress: Progress) -> Stream:
    if bench.text is None:
        return read_world(bench.settings, local.template, bench.num_needed, progress)
    return of_file(
        bench.text, local.template, bench.num_samples, bench.longest, offset=bench.offset
    )


class _Caches:
    """Makes the caches of the policies.

    Args:
        num_bytes: bytes of the budgets.

    Raises:
        ValueError: a policy does not fit into these bytes.
    """

    def __init__(self, settings: RunSettings, local: "LocalModel", num_bytes: int) -> None:
        self.local, self.num_bytes, self._settings = local, num_bytes, settings
        self.policies = {chosen.row_name: chosen for chosen in settings.policies}
        nominal = settings.model_copy(update={"budget": f"{num_bytes}B"})
        self.parameters = {
            label: resolved_parameters(nominal, chosen) for label, chosen in self.policies.items()
        }
        for label, chosen in self.policies.items():
            try:
                self.maker(chosen, num_bytes)
            except PolicyError as error:
                raise PolicyError(f"{label}: {error}") from error

    def maker(self, chosen: PolicySettings, num_bytes: int) -> "Callable[[], Cache]":
        """Return a function that makes empty caches with a budget."""
        settings = self._settings.model_copy(update={"budget": f"{num_bytes}B"})
        return make_acting(settings, policy=chosen, model=self.local).new_cache

    def matched(self, label: str, samples: Sequence[Sequence[int]], seen: int) -> int:
        """Return the budget at which a policy has the bytes of the window on average.

        Raises:
            BenchError: none was found.
        """

        def mean_bytes(num_bytes: int, chosen: PolicySettings) -> float:
            return _mean_bytes(self.local.model, self.maker(chosen, num_bytes), samples, seen)

        target = mean_bytes(self.num_bytes, PolicySettings(name="window"))
        chosen = self.policies[label]
        return matched_budget(lambda num_bytes: mean_bytes(num_bytes, chosen), target, label)


def _measure(
    bench: SampleBench,
    measurement: Measurement[RowT, SampleT],
    caches: _Caches,
    file: RowFile[RowT],
    progress: Progress,
) -> Iterator[RowT]:
    """Yield the missing rows of each length and policy, shorter ones first."""
    local, parameters = caches.local, caches.parameters
    stream = _stream(bench, local, progress)
    alike = _alike(bench, local, stream, caches.num_bytes)
    file.require_same(lambda row: {**alike, "parameters": _expected(row, parameters)})
    about = {**alike, "command": bench.command, "commit": commit()}
    continuations = _continuations(bench, stream)
    wanted = [(seen, label) for seen in sorted(set(bench.lengths)) for label in caches.policies]
    left = [place for place in wanted if place not in file.keys]
    bar = progress.add_task("", total=bench.num_samples * len(left))
    for seen, label in left:
        progress.update(bar, description=f"{label}, {seen} tokens")
        samples = [stream.ids[each.start - seen : each.stop] for each in continuations]
        own, budget = dict(parameters[label]), caches.num_bytes
        if bench.match == "mean" and own["budget"] is not None:
            budget = caches.matched(label, samples[:NUM_MATCHED], seen)
            own["budget"] = f"{budget}B"
        new_cache = caches.maker(caches.policies[label], budget)
        began, found = perf_counter(), []
        for ids in samples:
            found.append(measurement.read(local.model, new_cache(), ids, seen))
            progress.advance(bar)
        yield measurement.kind(
            label=label,
            parameters=own,
            seen=seen,
            sample_tokens=[len(each) for each in continuations],
            seconds=round(perf_counter() - began, 1),
            **measurement.summarize(found),
            **about,
        )


@torch.inference_mode()
def _mean_bytes(
    model: Any, new_cache: "Callable[[], Cache]", samples: Sequence[Sequence[int]], seen: int
) -> float:
    """Return the bytes of caches, mean over the tokens of the continuations."""
    sizes = []
    for ids in samples:
        cache, tokens = new_cache(), torch.tensor([ids], device=model.device)
        cache.feed(model, tokens[:, :seen])
        sizes.append(cache.nbytes)
        for place in range(seen, len(ids) - 1):
            cache.feed(model, tokens[:, place : place + 1])
            sizes.append(cache.nbytes)
    return fmean(sizes)


def _expected(row: SampleRow, parameters: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return the parameters that a row must have; matched budgets are found anew."""
    return {**parameters.get(row.label, row.parameters), "budget": row.parameters["budget"]}


def _file(bench: SampleBench, kind: type[RowT]) -> RowFile[RowT]:
    return RowFile(bench.out, kind, lambda row: row.place, fresh=bench.fresh)


def _continuations(bench: SampleBench, stream: Stream) -> list[range]:
    """Return the places of the continuations: the ends of a text's parts, or, in a world, replies
    spread evenly over the stream, which are what an agent's model was made to write. Tokens before
    two replies may overlap, and those before the ends of parts do not.

    Raises:
        BenchError: the stream has too few replies.
    """
    if bench.text is not None:
        ends = range(bench.longest, len(stream.ids) + 1, bench.longest)
        return [range(end - bench.num_tokens, end) for end in ends]
    of_replies = stream.of_replies
    last = len(stream.ids) - bench.num_tokens
    places = [
        i for i in range(max(bench.lengths), last + 1) if of_replies[i] and not of_replies[i - 1]
    ]
    if len(places) < bench.num_samples:
        raise BenchError(
            f"{stream.source} has {len(places)} replies among the tokens read; "
            f"--samples {bench.num_samples} needs as many"
        )
    found = []
    for i in range(bench.num_samples):
        start = places[i * len(places) // bench.num_samples]
        ended = (j for j in range(start, start + bench.num_tokens) if not of_replies[j])
        found.append(range(start, next(ended, start + bench.num_tokens)))
    return found


def _alike(
    bench: SampleBench, local: "LocalModel", stream: Stream, num_bytes: int
) -> dict[str, Any]:
    """Return the fields that all rows of a file share."""
    more = {} if bench.text is None else {"offset": bench.offset, "overlap": False}
    return {
        "source": stream.source,
        "stream_sha256": stream.digest,
        "num_tokens": bench.num_tokens,
        "of_replies": any(stream.of_replies),
        "stream_tokens": len(stream.ids),
        "entries": bench.entries,
        "budget_bytes": num_bytes,
        **fields_of(bench.settings, local, match=bench.match, **more),
    }
