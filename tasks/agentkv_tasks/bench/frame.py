"""The frame of a benchmark: its settings, the measurement, and the end of its output."""

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from rich.text import Text

from agentkv_tasks.bench.errors import BenchError
from agentkv_tasks.bench.page import write_page
from agentkv_tasks.bench.row_file import RowFile, RowT
from agentkv_tasks.bench.rows import BenchRow, summary
from agentkv_tasks.progress import progress_on
from agentkv_tasks.report.heat import Maps
from agentkv_tasks.report.plot import Figure
from agentkv_tasks.settings import RunSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchSettings:
    """Settings that every benchmark has."""

    command: str = ""
    """Command line, for the rows."""
    out: Path
    """File of the rows."""
    fresh: bool = False
    """Overwrite the file."""

    def new_file(self, kind: type[RowT], key: Callable[[RowT], Hashable]) -> RowFile[RowT]:
        """Return the file of a benchmark that cannot be continued.

        Raises:
            BenchError: the file has rows, or holds something else.
        """
        file = RowFile(self.out, kind, key, fresh=self.fresh)
        if file.rows:
            raise BenchError(f"{self.out} has rows; give another --out, or --fresh to overwrite it")
        return file


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelBenchSettings(BenchSettings):
    """Settings that every benchmark of a model has."""

    settings: RunSettings
    """The model with its dtype and device, and what else the benchmark reads of them."""
    threads: int | None = None
    """Threads of torch; None: unchanged."""


def measured(
    console: Console,
    file: RowFile[RowT],
    measure: Callable[[Progress], Iterable[RowT]],
    *,
    tables: Callable[[Sequence[RowT]], Iterable[Table]],
    figures: Callable[[Sequence[RowT]], Iterable[Figure | Maps]] = lambda rows: (),
    order: Callable[[Sequence[RowT]], list[RowT]] = list,
    resume: str = "; run the same command again to continue",
) -> list[RowT]:
    """Measure with a progress bar, print the results, and return the rows.

    Args:
        measure: yields new rows, which are added to `file` at once.
        tables: called with the ordered rows, if there are any, as is `figures`.
        order: selects and sorts the rows of the file.
        resume: how an interrupted benchmark continues.

    Raises:
        KeyboardInterrupt: as `print_results`, after an interrupt.
        WriteError: the page could not be written.
    """
    interrupted = False
    try:
        with progress_on(console) as progress:
            for row in measure(progress):
                file.add(row)
    except KeyboardInterrupt:
        interrupted = True
    rows = order(file.rows)
    print_results(
        console,
        file.kind,
        rows,
        file.path,
        tables=tables(rows) if rows else (),
        figures=figures(rows) if rows else (),
        interrupted=interrupted,
        resume=resume,
    )
    return rows


def print_results(
    console: Console,
    kind: type[BenchRow],
    rows: Sequence[BenchRow],
    out: Path,
    *,
    tables: Iterable[Table],
    figures: Iterable[Figure | Maps] = (),
    interrupted: bool,
    resume: str,
) -> None:
    """Print the tables, the paths of the rows and of their page, and the summary of the rows.

    The page, which also shows the figures, is written beside the rows if there are any.

    Args:
        interrupted: raise KeyboardInterrupt after the tables.
        resume: how an interrupted benchmark continues.

    Raises:
        KeyboardInterrupt: the benchmark was interrupted; the message says what was kept.
        WriteError: the page could not be written.
    """
    shown = list(tables)
    for table in shown:
        console.print(table)
        console.print()
    page = write_page(out, rows, tables=shown, figures=figures) if rows else None
    if interrupted:
        kept = f"{len(rows)} rows measured so far: {out}" if rows else "no rows yet"
        raise KeyboardInterrupt(f"interrupted; {kept}{resume}")
    console.print(Text(f"rows: {out}"), soft_wrap=True)
    if page is not None:
        console.print(Text(f"page: {page}"), soft_wrap=True)
    console.print(Text(summary(kind, rows, str(out))), soft_wrap=True)
