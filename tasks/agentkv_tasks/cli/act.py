"""`agentkv act`."""

from pathlib import Path
from typing import Annotated, Any

import typer

from agentkv.defaults import POLICY
from agentkv.settings import ActingSettings
from agentkv.terminal import Terminal, note
from agentkv_tasks.cli.options import (
    Dialogs,
    NamedSecret,
    OptionError,
    exclude,
    for_people,
    host_of_page,
    read_secrets,
    takes,
)
from agentkv_tasks.settings import RunSettings


@takes(RunSettings, *ActingSettings.model_fields, "browser_path")
def act(
    given: dict[str, Any],
    goal: Annotated[str, typer.Option(help="Task in plain words.")],
    url: Annotated[
        str | None,
        typer.Option(
            help="Start page; the agent stays on its host. With --connect it may be left out: then "
            "the agent works in the only tab that shows a web page."
        ),
    ] = None,
    policy: Annotated[str, typer.Option(help="Cache policy, see `agentkv policies`.")] = POLICY,
    max_steps: Annotated[int, typer.Option(min=1, help="Maximum number of actions.")] = 30,
    confirm: Annotated[
        bool,
        typer.Option(
            "--confirm",
            help="Ask before each action that may change something: y, n, a (all) or q (quit). The "
            "agent is told of a no and goes on.",
        ),
    ] = False,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run",
            help="Look around only: end before the first action that may change something, and "
            "print it.",
        ),
    ] = False,
    visible: Annotated[
        bool, typer.Option("--show", help="Show the browser's window, which needs a display.")
    ] = False,
    connect: Annotated[
        str | None,
        typer.Option(
            help="Work in a running Chrome, at its debugging port on this machine: "
            "http://localhost:9222. Its tabs stay open."
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print a line of JSON for each step and for the end.")
    ] = False,
    out: Annotated[
        Path | None, typer.Option(help="Folder for the trace and a screenshot of each page.")
    ] = None,
    secret: NamedSecret = None,
    dialogs: Dialogs = "ask",
) -> None:
    """Run the agent on one page with one goal, and print its actions.

    What it is doing is on stderr. The exit code is 0 if the agent stopped by itself, or a dry run
    came to an action, and 1 if the episode ended otherwise. Nothing checks whether the goal was
    reached.
    """
    with for_people() as console:
        from agentkv.advice import advice_on_model
        from agentkv.build import ignored_budget
        from agentkv.status_line import StatusLine
        from agentkv_tasks.run.act import ActPlace, run_goal
        from agentkv_tasks.run.act_terminal import ActTerminal

        exclude({"--confirm": confirm, "--dry-run": dry_run})
        exclude({"--show": visible, "--connect": connect is not None})
        if url is None and connect is None:
            raise OptionError("give the start page with --url, or a Chrome with --connect")
        settings = RunSettings.read(**given, policies=(policy,))
        place = ActPlace(
            url,
            connect,
            visible,
            read_secrets(secret or (), host_of_page(url or "")),
            dialogs,
        )
        errors = Terminal(stderr=True)
        with StatusLine(errors) as status:
            terminal = ActTerminal(
                console,
                errors,
                status,
                brake="confirm" if confirm else "dry-run" if dry_run else "none",
                as_json=as_json,
            )
            note(ignored_budget(settings))
            note(advice_on_model(settings.model, url or ""))
            episode = run_goal(
                settings,
                place,
                goal,
                max_steps=max_steps,
                on_step=terminal.step,
                out=out,
                judge=terminal.judge if confirm or dry_run else None,
                on_progress=status,
            )
        terminal.end(episode)
        if not terminal.succeeded(episode):
            raise typer.Exit(1)
