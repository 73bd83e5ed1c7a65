"""`agentkv tasks`."""

import json
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.text import Text
from typer.core import TyperGroup

from agentkv_env.sites.names import FIRST_TRAINING_SEED
from agentkv_tasks.cli.options import exclude, for_people, takes
from agentkv_tasks.settings import RunSettings


class _TaskCommands(TyperGroup):
    """`agentkv tasks SUITE` stands for `agentkv tasks list SUITE`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if not args or args[0] not in (*self.commands, *self.get_help_option_names(ctx)):
            args = ["list", *args]
        return super().parse_args(ctx, args)


tasks = typer.Typer(
    cls=_TaskCommands,
    help="List the tasks of a suite: `agentkv tasks SUITE` stands for `agentkv tasks list SUITE`. "
    "Write and check a file of sites and tasks of your own.",
    rich_markup_mode=None,
)


@tasks.command("list")
@takes(RunSettings, "world_seed")
def list_tasks(
    given: dict[str, Any],
    suite: Annotated[
        str,
        typer.Argument(
            help="Suite, JSON file or folder, TOML file of sites, or official tasks "
            "(visualwebarena:FILE, vwa541:FILE, vwa75-live:FILE)."
        ),
    ] = "vwa75",
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON in VisualWebArena's schema.")
    ] = False,
) -> None:
    """List the tasks of a suite."""
    with for_people() as console:
        from agentkv_tasks.run.display import task_table
        from agentkv_tasks.suites import SUITES, load_tasks

        world_seed = RunSettings.read(**given).world_seed
        found, name = load_tasks(suite, world_seed=world_seed)
        if as_json:
            typer.echo(json.dumps([task.model_dump(mode="json") for task in found], indent=2))
            return
        console.print(task_table(found))
        about = SUITES[suite].about if suite in SUITES else f"{len(found)} tasks"
        where = f" in world {world_seed}" if suite in SUITES else ""
        console.print(Text(f"{name}{where}: {about}"), soft_wrap=True)


@tasks.command()
@takes(RunSettings, "browser_path")
def check(
    given: dict[str, Any],
    file: Annotated[Path, typer.Argument(help="TOML file of sites.", metavar="FILE")],
) -> None:
    """Try the sites, log-ins and tasks of a file, and print a line for each check.

    The sites are started and reset. Every solution is played and must pass; an agent that stops at
    once must not, before the solution and after it and a reset. The exit code is 1 if a check
    failed.
    """
    with for_people() as console:
        from agentkv_tasks.own_sites.site_file import read_site_file
        from agentkv_tasks.run.check import examine
        from agentkv_tasks.run.preflight import find_browser

        browser_path = RunSettings.read(**given).browser_path
        sites_of_file = read_site_file(file)
        find_browser(browser_path)
        colors = {"ok": "green", "failed": "red", "skipped": "yellow"}
        has_failed = False
        for finding in examine(sites_of_file, browser_path=browser_path):
            has_failed |= finding.verdict == "failed"
            line = Text(f"{finding.verdict:<8}", style=colors[finding.verdict])
            console.print(line + Text(f"{finding.name:<24} {finding.detail}"), soft_wrap=True)
        raise typer.Exit(1 if has_failed else 0)


@tasks.command()
@takes(RunSettings, "tasks", "limit", "browser_path")
def record(
    given: dict[str, Any],
    file: Annotated[
        Path, typer.Argument(help="File of recordings, which is continued.", metavar="FILE")
    ],
    world_seed: Annotated[
        int,
        typer.Option(
            help="Seed of the first embedded world. Worlds below "
            f"{FIRST_TRAINING_SEED} evaluate models and are refused."
        ),
    ] = FIRST_TRAINING_SEED,
    worlds: Annotated[int, typer.Option(min=1, help="Number of worlds, with seeds in a row.")] = 1,
    run: Annotated[
        Path | None,
        typer.Option(
            "--from",
            help="Folder (--out) of a run, whose episodes are recorded instead of solutions. If it "
            "was played on sites of a file, give that with --tasks.",
            metavar="DIR",
        ),
    ] = None,
    only: Annotated[
        Literal["successes"], typer.Option(help="Episodes of --from that are recorded.")
    ] = "successes",
) -> None:
    """Record episodes to train on, which `agentkv train` reads: solutions, or those of a run.

    Each is played in a browser and kept if it scores 1. What the file holds is not played again,
    so that the same command continues.
    """
    with for_people("interrupted; run the same command again to continue") as console:
        from agentkv.files import require_file
        from agentkv_tasks.progress import progress_on
        from agentkv_tasks.record.play import Outcome
        from agentkv_tasks.record.play import record as record_episodes
        from agentkv_tasks.record.sources import has_own_sites, solutions, successes
        from agentkv_tasks.run.preflight import find_browser

        settings = RunSettings.read(**given)
        sites_file = settings.tasks if has_own_sites(settings.tasks) else None
        exclude({"--from": run is not None, "--tasks": "tasks" in given and sites_file is None})
        if run is None:
            sources = solutions(
                settings.tasks, first=world_seed, worlds=worlds, limit=settings.limit
            )
        else:
            sources = successes(run, sites_file=sites_file, limit=settings.limit)
        require_file(file, "FILE")
        find_browser(settings.browser_path)
        total = sum(len(source.episodes) for source in sources)
        dropped: list[Outcome] = []
        with progress_on(console) as progress:
            bar = progress.add_task("episodes", total=total)

            def tell(outcome: Outcome) -> None:
                if outcome.dropped:
                    dropped.append(outcome)
                progress.advance(bar)

            record_episodes(sources, file, browser_path=settings.browser_path, on_episode=tell)
        for outcome in dropped:
            line = f"dropped {outcome.key}: {outcome.dropped}"
            console.print(Text(line, style="yellow"), soft_wrap=True)
        console.print(Text(f"{file}: {total - len(dropped)} of {total} episodes"), soft_wrap=True)


@tasks.command()
def new(
    folder: Annotated[Path, typer.Argument(help="Folder of the files.", metavar="DIR")],
) -> None:
    """Write a first file of sites with tasks, which `agentkv tasks check` passes.

    Its site comes with agentkv. Nothing is overwritten.
    """
    with for_people() as console:
        from agentkv_tasks.own_sites.first_files import SITES, write_first

        for path in write_first(folder):
            console.print(Text(str(path)), soft_wrap=True)
        console.print(Text(f"check them: agentkv tasks check {folder / SITES}"), soft_wrap=True)
