"""Commands of the measurements on samples: continuations of equal texts under several policies."""

import inspect
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from agentkv_tasks.cli.bench.options import OF_WORLD, Out, Resumable, TextFile, Threads
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

    from agentkv_tasks.bench.samples.measure import SampleBench


def samples_command(
    name: str,
    policies: Sequence[str],
    measure: "Callable[[SampleBench, Console], object]",
    *,
    program: str = "agentkv",
) -> Command:
    """Return the command of a benchmark of samples, with the options that all of them have.

    Args:
        policies: those by default.
        measure: runs the benchmark; its docstring is the help text.
        program: how the command is started, for the rows.
    """

    @takes(
        RunSettings,
        *OF_WORLD,
        policies=tuple(policies),
        chunk=32,
    )
    def command(
        given: dict[str, Any],
        sweep: Annotated[
            list[str] | None,
            typer.Option(
                help="Parameter and values: threshold=0.5,0.9 adds a variation of each policy that "
                "has the parameter, at every value. Repeatable."
            ),
        ] = None,
        entries: Annotated[
            int, typer.Option(min=1, help="Entries of the window whose bytes all budgets have.")
        ] = 512,
        match: Annotated[
            Literal["budget", "mean"],
            typer.Option(
                help="budget: equal budgets; mean: budgets at which the caches have equal bytes on "
                "average, within 2 %."
            ),
        ] = "budget",
        seen: Annotated[
            str | None,
            typer.Option(
                help="Tokens read before, by commas. [default: 2048,8192; with --quick 1024]"
            ),
        ] = None,
        tokens: Annotated[int, typer.Option(min=1, help="Most tokens of a continuation.")] = 128,
        samples: Annotated[
            int | None, typer.Option(min=1, help="Continuations. [default: 32; with --quick 6]")
        ] = None,
        quick: Annotated[
            bool,
            typer.Option("--quick", help="Small sizes: 6 continuations after 1,024 tokens."),
        ] = False,
        text: TextFile = None,
        offset: Annotated[
            int,
            typer.Option(min=0, help="Tokens of the --text to skip, such as those used to tune."),
        ] = 0,
        threads: Threads = None,
        out: Out = None,
        fresh: Resumable = False,
    ) -> None:
        with for_people() as console:
            from agentkv_tasks.bench.samples.measure import SampleBench
            from agentkv_tasks.bench.sweep import swept

            settings = RunSettings.read(**given)
            varied = tuple(swept(settings.policies, sweep or ()))
            measure(
                SampleBench(
                    settings=settings.model_copy(update={"policies": varied}),
                    lengths=read_numbers("--seen", seen or ("1024" if quick else "2048,8192")),
                    num_tokens=tokens,
                    num_samples=samples or (6 if quick else 32),
                    entries=entries,
                    match=match,
                    text=text,
                    offset=offset,
                    threads=threads,
                    command=this_command(program),
                    out=out or results_file(name, settings),
                    fresh=fresh,
                ),
                console,
            )

    command.__name__, command.__doc__ = name, inspect.getdoc(measure)
    return command
