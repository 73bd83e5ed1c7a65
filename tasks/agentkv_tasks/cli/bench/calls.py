"""`agentkv bench calls`."""

from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

from agentkv.defaults import POLICY
from agentkv.settings import PoliciesSettings
from agentkv_tasks.cli.bench.options import Entries, Out, Resumable, Threads, window_entries
from agentkv_tasks.cli.options import for_people, results_file, takes, this_command
from agentkv_tasks.settings import RunSettings


class _CallsSizes(NamedTuple):
    samples: int
    tokens: int


_CALLS_SIZES = _CallsSizes(16, 4096)
_QUICK_CALLS_SIZES = _CallsSizes(3, 2560)


@takes(
    RunSettings,
    *PoliciesSettings.model_fields,
    policies=("full", "window", POLICY, "int4"),
    chunk=512,
)
def calls(
    given: dict[str, Any],
    bfcl: Annotated[
        Path,
        typer.Option(
            help="Wheel of the package bfcl-eval, or the folder of its content: `pip download "
            "--no-deps bfcl-eval` fetches it."
        ),
    ],
    samples: Annotated[
        int | None,
        typer.Option(
            min=1,
            help=f"Conversations. [default: {_CALLS_SIZES.samples}; with --quick "
            f"{_QUICK_CALLS_SIZES.samples}]",
        ),
    ] = None,
    tokens: Annotated[
        int | None,
        typer.Option(
            min=1,
            help=f"Most tokens of a conversation. [default: {_CALLS_SIZES.tokens}; with --quick "
            f"{_QUICK_CALLS_SIZES.tokens}]",
        ),
    ] = None,
    quick: Annotated[
        bool,
        typer.Option(
            "--quick",
            help="Few short conversations, where nothing else is given: with the default policies "
            "under three minutes with nano and under ten with smollm2 on two CPU cores.",
        ),
    ] = False,
    entries: Entries = None,
    threads: Threads = None,
    out: Out = None,
    fresh: Resumable = False,
) -> None:
    """Measure how well a model foresees the right function calls of conversations.

    The conversations are those of several turns of the Berkeley Function Calling Leaderboard (BFCL
    v4). The cache compresses the descriptions of the functions before the first request. The right
    calls are given, token by token after the model's guess, and none is carried out. Policies with
    a budget get the bytes of a window of --entries.
    """
    with for_people() as console:
        from agentkv_tasks.bench.calls.measure import CallsBench, run_bench

        sizes = _QUICK_CALLS_SIZES if quick else _CALLS_SIZES
        settings = RunSettings.read(**given)
        run_bench(
            CallsBench(
                settings=settings,
                source=bfcl,
                entries=window_entries(given, entries),
                num_samples=samples or sizes.samples,
                num_tokens=tokens or sizes.tokens,
                threads=threads,
                command=this_command(),
                out=out or results_file("calls", settings),
                fresh=fresh,
            ),
            console,
        )
