"""`agentkv show`."""

from pathlib import Path
from typing import Annotated

import typer

from agentkv_tasks.cli.options import for_people


def show(
    place: Annotated[
        Path, typer.Argument(help="Folder (--out) of a run, or a trace.", metavar="DIR")
    ],
    task: Annotated[
        str | None,
        typer.Argument(
            help="Task id, or beginning of the trace's name, such as 012-full-0. Without it, all "
            "episodes are listed."
        ),
    ] = None,
    policy: Annotated[
        str | None, typer.Option(help="Policy of the episode, if several have the task.")
    ] = None,
    step: Annotated[
        int | None,
        typer.Option(min=1, help="Show this step whole: its page with what was forgotten of it."),
    ] = None,
    against: Annotated[
        str | None,
        typer.Option(
            help="Compare with the task's episode under this policy, or with this trace's name."
        ),
    ] = None,
    web: Annotated[
        Path | None,
        typer.Option(
            help="Write the episode to this HTML file instead: after each step, what the cache "
            "held of every page and reply.",
            metavar="FILE",
        ),
    ] = None,
) -> None:
    """Show recorded episodes: what they read, did and forgot, step by step."""
    with for_people() as console:
        from agentkv_tasks import show as shown

        episodes = shown.find_episodes(place)
        if web is not None and (step is not None or against is not None):
            raise shown.ShowError("--web shows all steps of one episode; leave the others out")
        if task is None and len(episodes) > 1:
            if step is not None or against is not None or web is not None:
                raise shown.ShowError(
                    "--step, --against and --web are about one task; give its number"
                )
            shown.print_episodes(console, shown.of_policy(episodes, policy))
            return
        episode = episodes[0] if task is None else shown.find_episode(episodes, task, policy)
        if web is not None:
            shown.write_page(console, episode, web)
        elif against is not None:
            shown.print_against(console, episode, shown.find_other(episodes, episode, against))
        elif step is not None:
            shown.print_step(console, episode, step)
        else:
            shown.print_episode(console, episode)
