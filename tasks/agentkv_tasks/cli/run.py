"""`agentkv run`."""

from pathlib import Path
from typing import Annotated, Any

import typer

from agentkv_tasks.cli.options import for_people, takes
from agentkv_tasks.settings import RunSettings


@takes(RunSettings)
def run(
    given: dict[str, Any],
    config: Annotated[
        Path | None,
        typer.Option(help="TOML file with settings; it can also give policies their parameters."),
    ] = None,
    fresh: Annotated[
        bool, typer.Option("--fresh/--resume", help="Start over, or continue the run in --out.")
    ] = False,
    retry_failures: Annotated[
        bool,
        typer.Option(
            help="Repeat episodes of --out that the harness ended, such as a crash or a timeout.",
        ),
    ] = False,
) -> None:
    """Run tasks under several cache policies, compare them, and write a report.

    The same command continues a run that was stopped.
    """
    with for_people("interrupted; run the same command again to continue") as console:
        from agentkv_tasks.run import command

        settings = RunSettings.read(config, **given)
        prepared = command.prepare(settings, fresh=fresh, retry_failures=retry_failures)
        command.run(prepared, console)
