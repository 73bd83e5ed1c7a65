"""`agentkv bench`: a file for each measurement."""

import typer

from agentkv_tasks.cli.bench.calls import calls
from agentkv_tasks.cli.bench.memory import memory
from agentkv_tasks.cli.bench.needle import needle
from agentkv_tasks.cli.bench.ppl import ppl
from agentkv_tasks.cli.bench.ruler import ruler
from agentkv_tasks.cli.bench.serve import serve
from agentkv_tasks.cli.bench.speed import speed
from agentkv_tasks.cli.bench.traces import traces

bench = typer.Typer(
    help="Measure a cache by itself, without tasks.", no_args_is_help=True, rich_markup_mode=None
)
for command in (speed, memory, ppl, needle, ruler, calls, serve, traces):
    bench.command()(command)
