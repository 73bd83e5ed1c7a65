"""What the commands that test a paper's mechanism on a text have in common: the samples, the
provenance of the rows, and the measurement."""

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from agentkv.build import check_language_model, load_run_model
from agentkv.models.adapter import digest_of
from agentkv_tasks.bench.errors import BenchError, require_positive
from agentkv_tasks.bench.frame import ModelBenchSettings, measured
from agentkv_tasks.bench.host import dtype_name, measured_on, threads_of_torch
from agentkv_tasks.bench.rows import BenchRow
from agentkv_tasks.bench.stream import check_source, of_file
from agentkv_tasks.provenance import commit
from agentkv_tasks.report.statistics import cluster_interval

if TYPE_CHECKING:
    from agentkv.models.local import LocalModel

Sample = Sequence[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class TextBench(ModelBenchSettings):
    """Settings of a measurement. Of `settings`, only the model and the policies count."""

    text: Path
    """File that the samples are parts of."""
    seen: int
    """Tokens of a sample that are read before the first one that is measured."""
    num_tokens: int
    """Tokens of a sample that are measured."""
    num_samples: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TextRow(BenchRow):
    """The part of a row that these measurements share."""

    PROGRAM: ClassVar[str] = "python -m agentkv_lab"

    label: str
    """What the row is about: a policy, a way to rank, what is hidden."""
    model: str
    weights: str
    """Digest of the weights; see `weights_digest`."""
    source: str
    """Name of the text file."""
    stream_sha256: str
    """Digest of the tokens; rows with equal digests may be paired."""
    seen: int
    num_tokens: int
    num_samples: int
    threads: int = 1
    command: str = ""
    schema: int = 1

    @property
    def place(self) -> Hashable:
        """The key of the row."""
        return self.label

    @property
    def what(self) -> str:
        """The samples and the model, for the caption of a table."""
        return (
            f"{self.num_samples} samples of {self.source}, {self.seen} tokens seen. {self.model}, "
            f"{self.device}."
        )


RowT = TypeVar("RowT", bound=TextRow)
Measure = Callable[["LocalModel", Sequence[Sample], Mapping[str, Any], Progress], Iterable[RowT]]
"""Yields rows, given the model, the samples, the fields that all rows share, and a bar to show."""


def measure_texts(
    bench: TextBench,
    kind: type[RowT],
    measure: Measure[RowT],
    tables: Callable[[Sequence[RowT]], Iterable[Table]],
    console: Console,
) -> list[RowT]:
    """Measure on samples of a text, write each row at once, and print the tables.

    Raises:
        ValueError: an option is wrong; a text that is too short, or samples that are longer than
            the model's positions; a file that has rows already.
        KeyboardInterrupt: finished rows are written and printed.
    """
    check_language_model(bench.settings)
    check_source(bench.settings, bench.text)
    require_positive("--seen", [bench.seen])
    file = bench.new_file(kind, lambda row: row.place)
    length = bench.seen + bench.num_tokens
    with threads_of_torch(bench.threads):
        local = load_run_model(bench.settings)
        assert local is not None, "scripts are refused above"
        if local.max_positions is not None and length > local.max_positions:
            raise BenchError(
                f"--seen {bench.seen}: samples of {length} tokens are longer than the "
                f"{local.max_positions} positions of {local.name}"
            )
        stream = of_file(bench.text, local.template, bench.num_samples, length)
        samples = [stream.ids[i * length : (i + 1) * length] for i in range(bench.num_samples)]
        about = {
            "model": local.name,
            "weights": digest_of(bench.settings),
            "source": stream.source,
            "stream_sha256": stream.digest,
            "seen": bench.seen,
            "num_tokens": bench.num_tokens,
            "num_samples": bench.num_samples,
            "settings": {"dtype": dtype_name(local.model), "weights": bench.settings.weights},
            "command": bench.command,
            "commit": commit(),
            **measured_on(local.model),
        }

        def rows(progress: Progress) -> Iterator[RowT]:
            yield from measure(local, samples, about, progress)

        return measured(console, file, rows, tables=tables, resume="; --fresh begins anew")


def with_interval(
    statistic: Callable[[Sequence[int]], float], num_samples: int
) -> tuple[float, float, float]:
    """Return a statistic of the samples, and its 95 % interval by bootstrap over them.

    Args:
        statistic: of the numbers of the samples that were drawn, several times each perhaps.
    """
    low, high = cluster_interval(statistic, [[i] for i in range(num_samples)])
    return statistic(range(num_samples)), low, high


def short(values: Sequence[float]) -> list[float]:
    """Return values with six digits, as rows keep them."""
    return [float(f"{value:.6g}") for value in values]
