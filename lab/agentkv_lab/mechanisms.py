"""The commands that test a paper's mechanism on a text, with the options that all of them have."""

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from agentkv_tasks.cli.bench.options import Out, Overwrite, Threads
from agentkv_tasks.cli.options import (
    Command,
    for_people,
    read_numbers,
    results_file,
    takes,
    this_command,
)
from agentkv_tasks.settings import RunSettings

if TYPE_CHECKING:
    from rich.console import Console

_OF_MODEL = ("model", "device", "dtype", "weights")
Seen = Annotated[int, typer.Option(min=1, help="Tokens that are read before those measured.")]
Budgets = Annotated[
    str, typer.Option(help="Entries per layer and head that stay, separated by commas.")
]


def on_text(*names: str, **defaults: Any) -> Callable[[Callable[..., None]], Command]:
    """Make a command of a measurement on a text.

    The measurement receives the console, the fields of a `TextBench` that every command gives
    alike, and what its own options say.

    Args:
        names: settings beside those of the model.
        defaults: as in `takes`.
    """

    def decorate(measurement: Callable[..., None]) -> Command:
        def command(
            given: dict[str, Any],
            text: Annotated[Path, typer.Option(help="Text file; the samples are spread over it.")],
            samples: Annotated[
                int | None,
                typer.Option(min=1, help="Parts of the text. [default: 6; with --quick 2]"),
            ] = None,
            quick: Annotated[bool, typer.Option("--quick", help="Two samples.")] = False,
            threads: Threads = None,
            out: Out = None,
            fresh: Overwrite = False,
            **own: Any,
        ) -> None:
            with for_people() as console:
                settings = RunSettings.read(**given)
                common = {
                    "settings": settings,
                    "text": text,
                    "num_samples": samples or (2 if quick else 6),
                    "threads": threads,
                    "command": this_command("python -m agentkv_lab"),
                    "out": out or results_file(measurement.__name__, settings),
                    "fresh": fresh,
                }
                measurement(console, common, **own)

        before, text, *after, _ = inspect.signature(command, eval_str=True).parameters.values()
        _, _, *own = inspect.signature(measurement).parameters.values()
        command.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
            [before, text, *own, *after]
        )
        command.__name__, command.__doc__ = measurement.__name__, measurement.__doc__
        return takes(RunSettings, *_OF_MODEL, *names, **defaults)(command)

    return decorate


@on_text()
def hiding(
    console: "Console",
    common: dict[str, Any],
    recent: Annotated[int, typer.Option(min=0, help="Tokens that the first row hides.")] = 256,
    kept: Annotated[
        int, typer.Option(min=0, help="Newest tokens that the second row leaves.")
    ] = 512,
    seen: Seen = 1024,
    tokens: Annotated[int, typer.Option(min=1, help="Tokens of a sample that are read.")] = 48,
) -> None:
    """Measure what hiding the recent past, and the far past, does to the next prediction, and
    whether confidence knows of it.

    The former is CONF-KV's own test of its premise; the latter is what a cache that evicts forgets.
    """
    from agentkv_lab.confidence.hiding import HidingBench, run_bench

    run_bench(
        HidingBench(seen=seen, num_tokens=tokens, recent=recent, kept=kept, **common), console
    )


@on_text("policies", policies=("conf-kv", "snapkv"))
def ranking(
    console: "Console",
    common: dict[str, Any],
    entries: Annotated[int, typer.Option(min=1, help="Budget, and entries of the window.")] = 256,
    seen: Seen = 768,
    tokens: Annotated[int, typer.Option(min=1, help="Tokens of a sample to predict.")] = 96,
) -> None:
    """Measure what a policy's scores are worth: other rankings evict as many entries at each step.

    The other rankings are age, attention alone where the policy blends it with age, and two random
    ones.
    """
    from agentkv_lab.ranking import RankingBench, run_bench

    run_bench(RankingBench(seen=seen, num_tokens=tokens, entries=entries, **common), console)


@on_text(
    "policies",
    policies=(
        "paper:snapkv",
        "paper:critical-snapkv",
        "critical-snapkv",
        "paper:ada-snapkv",
        "paper:critical-ada-snapkv",
        "paper:edie",
        "paper:paasvn",
        "window",
    ),
)
def perturbation(
    console: "Console", common: dict[str, Any], budgets: Budgets = "128", seen: Seen = 512
) -> None:
    """Measure how far the attention output of the token after a prompt moves if a policy has
    compressed the prompt, head by head, and whether bounds of papers hold."""
    from agentkv_lab.perturbation import PerturbationBench, run_bench

    kept = read_numbers("--budgets", budgets)
    run_bench(PerturbationBench(seen=seen, num_tokens=1, budgets=kept, **common), console)


@on_text()
def concentration(
    console: "Console",
    common: dict[str, Any],
    budgets: Budgets = "64,128,256",
    window: Annotated[int, typer.Option(min=1, help="Last queries whose attention counts.")] = 32,
    seen: Seen = 1024,
) -> None:
    """Count the entries that hold most of each head's attention, and measure what budgets that
    follow it save of Ada-KV's bound."""
    from agentkv_lab.concentration import ConcentrationBench, run_bench

    kept = read_numbers("--budgets", budgets)
    bench = ConcentrationBench(seen=seen, num_tokens=0, budgets=kept, window=window, **common)
    run_bench(bench, console)


@on_text()
def removal(
    console: "Console",
    common: dict[str, Any],
    most: Annotated[int, typer.Option(min=1, help="Most important entries of each head.")] = 16,
    seen: Seen = 1024,
) -> None:
    """Count how many of the entries whose removal moves a head's output most are found by
    attention, by attention times the norm of the value, and by EDIE's bound."""
    from agentkv_lab.removal import RemovalBench, run_bench

    run_bench(RemovalBench(seen=seen, num_tokens=0, most=most, **common), console)
