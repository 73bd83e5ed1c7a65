"""`agentkv report`."""

from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from agentkv.terminal import plain
from agentkv_tasks.cli.options import for_people, split


def report(
    folders: Annotated[
        list[Path],
        typer.Argument(help="Folder (--out) of a run; several folders are pooled.", metavar="DIR"),
    ],
    markdown: Annotated[
        bool,
        typer.Option("--markdown", help="Print the table as Markdown instead of writing a report."),
    ] = False,
    against: Annotated[
        str | None,
        typer.Option(
            help="Baselines of the paired comparison, separated by commas. [default: full,window]"
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder for the report of several runs. [default: beside the first run]"),
    ] = None,
) -> None:
    """Print the table of a run, or of several pooled runs, and rewrite report.html."""
    with for_people() as console:
        from agentkv.advice import advice_lines
        from agentkv_tasks.report.pool import pooled, read_runs
        from agentkv_tasks.report.summary import summarize
        from agentkv_tasks.report.tables import markdown as as_markdown
        from agentkv_tasks.report.tables import policy_lines
        from agentkv_tasks.report.write import write_report
        from agentkv_tasks.results import mixed_versions
        from agentkv_tasks.run.display import failure_lines, result_table

        others = None if against is None else split("--against", against)
        rows = [row for run in pooled(read_runs(folders)).values() for row in run]
        if markdown:
            typer.echo(plain(as_markdown(policy_lines(summarize(rows), others))))
            return
        path = write_report(*folders, out=out, against=others)
        console.print(result_table(rows))
        advice = advice_lines([row.status for row in rows])
        for line in [*failure_lines(rows), *advice, *mixed_versions(rows)]:
            console.print(Text(line, style="yellow"), soft_wrap=True)
        console.print(Text(f"report: {path}"), soft_wrap=True)
