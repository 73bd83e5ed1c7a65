"""`agentkv`: its commands, a file each.

Commands import what they need when they run, so that help and mistakes in options answer at once.
"""

from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from agentkv_tasks.cli.act import act
from agentkv_tasks.cli.bench.app import bench
from agentkv_tasks.cli.calibrate import calibrate
from agentkv_tasks.cli.doctor import doctor
from agentkv_tasks.cli.mcp import mcp
from agentkv_tasks.cli.options import require_text
from agentkv_tasks.cli.plan import plan
from agentkv_tasks.cli.policies import policies
from agentkv_tasks.cli.record import record
from agentkv_tasks.cli.replay import replay
from agentkv_tasks.cli.report import report
from agentkv_tasks.cli.run import run
from agentkv_tasks.cli.serve import serve
from agentkv_tasks.cli.show import show
from agentkv_tasks.cli.sites import sites
from agentkv_tasks.cli.tasks import tasks
from agentkv_tasks.cli.train import train


class _Commands(TyperGroup):
    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        require_text(args)
        return super().parse_args(ctx, args)


cli = typer.Typer(
    name="agentkv",
    cls=_Commands,
    help="Web agents on local models whose key-value cache stays small.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


@cli.callback(invoke_without_command=True)
def _main(
    version: Annotated[bool, typer.Option("--version", help="Print the version and stop.")] = False,
) -> None:
    if version:
        import importlib.metadata

        typer.echo(importlib.metadata.version("agentkv-web"))
        raise typer.Exit


for command in (
    run,
    report,
    policies,
    sites,
    act,
    serve,
    mcp,
    record,
    train,
    calibrate,
    show,
    replay,
    plan,
    doctor,
):
    cli.command()(command)
cli.add_typer(bench, name="bench")
cli.add_typer(tasks, name="tasks")
