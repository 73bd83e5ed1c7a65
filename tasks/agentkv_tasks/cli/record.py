"""`agentkv record`."""

from pathlib import Path
from typing import Annotated, Any

import typer

from agentkv_env.sites.names import FIRST_TRAINING_SEED
from agentkv_tasks.cli.options import (
    NamedSecret,
    for_people,
    host_of_page,
    read_hosts,
    read_secrets,
    takes,
)
from agentkv_tasks.settings import RunSettings


@takes(RunSettings, "world_seed", "browser_path", world_seed=FIRST_TRAINING_SEED)
def record(
    given: dict[str, Any],
    url: Annotated[str, typer.Argument(help="Start page.", metavar="URL")],
    goal: Annotated[str, typer.Option(help="Task in plain words.")],
    to: Annotated[
        Path, typer.Option(help="File of recordings, which is continued.", metavar="FILE")
    ],
    hosts: Annotated[
        str | None,
        typer.Option(
            help="The only hosts that pages may reach, separated by commas. The default is the "
            "host of the start page."
        ),
    ] = None,
    answer: Annotated[
        str | None, typer.Option(help="Answer to the goal; without it you are asked.")
    ] = None,
    yes: Annotated[
        bool, typer.Option("--yes", help="Ask nothing: keep the episode if it is complete.")
    ] = False,
    incomplete: Annotated[
        bool,
        typer.Option(
            "--incomplete", help="With --yes: keep it even if something could not be recorded."
        ),
    ] = False,
    connect: Annotated[
        str | None,
        typer.Option(
            help="Record in a running Chrome, at its debugging port on this machine: "
            "http://localhost:9222. Its tabs stay open."
        ),
    ] = None,
    secret: NamedSecret = None,
) -> None:
    """Record what you do in a browser, as an episode to train on.

    A window opens on the start page. Each action is recorded with the page as an agent reads it,
    and printed. The recording ends when you close the window, or press Enter (not with --yes) or
    Ctrl-C here. Then you are asked for the answer, and whether to keep the episode. Nothing is
    written before.
    """
    with for_people("interrupted; nothing was kept") as console:
        from agentkv_tasks.record.demonstrate import DemonstrationTerminal, demonstrate
        from agentkv_tasks.run.act import ActPlace

        names = host_of_page(url) if hosts is None else read_hosts("--hosts", hosts)
        place = ActPlace(
            url,
            connect,
            is_visible=True,
            secrets=read_secrets(secret or (), names),
            hosts=() if hosts is None else tuple(names),
        )
        terminal = DemonstrationTerminal(
            console, answer=answer, asks=not yes, keeps_incomplete=incomplete
        )
        if not demonstrate(RunSettings.read(**given), place, goal, to, terminal):
            raise typer.Exit(1)
