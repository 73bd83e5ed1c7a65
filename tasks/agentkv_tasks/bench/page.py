"""The page of a benchmark: one self-contained HTML file with its plots and its tables."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from rich.table import Table
from rich.text import Text

from agentkv.files import write_atomic
from agentkv_tasks.bench.rows import BenchRow
from agentkv_tasks.report.heat import Maps
from agentkv_tasks.report.html import template_environment
from agentkv_tasks.report.plot import Figure

_FACTS = ("model", "source", "device", "threads", "commit")
"""Fields that a page shows at the top, of rows that have them."""


@dataclass(frozen=True, slots=True)
class _Shown:
    """A table of the terminal as text."""

    names: tuple[str, ...]
    lines: tuple[tuple[str, ...], ...]
    caption: str


def page_of(rows_file: Path) -> Path:
    """Return the path of the page that belongs to a file of rows: `x.html` for `x.jsonl`."""
    name = rows_file.stem if rows_file.suffix == ".jsonl" else rows_file.name
    return rows_file.with_name(f"{name}.html")


def write_page(
    rows_file: Path,
    rows: Sequence[BenchRow],
    *,
    tables: Iterable[Table],
    figures: Iterable[Figure | Maps] = (),
) -> Path:
    """Write the page beside the file of rows, and return its path.

    Args:
        rows: at least one row.

    Raises:
        WriteError: the page could not be written.
    """
    page = page_of(rows_file)
    latest = rows[-1]
    text = (
        template_environment()
        .get_template("bench.html")
        .render(
            title=f"{latest.PROGRAM} {latest.BENCH}",
            num_rows=len(rows),
            source=rows_file.name,
            written=datetime.now(UTC).strftime("%Y-%m-%d %H:%M"),
            command=getattr(latest, "command", ""),
            facts=_facts(rows),
            settings=[
                *(
                    (name.replace("_", " "), _text(value))
                    for name, value in latest.settings.items()
                ),
                *latest.versions.items(),
            ],
            figures=list(figures),
            tables=[_shown(table) for table in tables],
        )
    )
    write_atomic(page, text)
    return page


def _facts(rows: Sequence[BenchRow]) -> list[tuple[str, str]]:
    """Return the facts of all rows; several values stand side by side."""
    found = []
    for name in _FACTS:
        values = dict.fromkeys(_text(getattr(row, name)) for row in rows if hasattr(row, name))
        shown = ", ".join(value for value in values if value)
        if shown:
            found.append((name, shown))
    return found


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _shown(table: Table) -> _Shown:
    columns = [[_plain(cell) for cell in column.cells] for column in table.columns]
    return _Shown(
        names=tuple(_plain(column.header) for column in table.columns),
        lines=tuple(line for line in zip(*columns, strict=True) if any(line)),
        caption=_plain(table.caption or ""),
    )


def _plain(cell: object) -> str:
    return cell.plain if isinstance(cell, Text) else Text.from_markup(str(cell)).plain
