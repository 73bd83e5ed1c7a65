"""`agentkv bench ruler`."""

from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import typer

from agentkv.defaults import POLICY
from agentkv.settings import PoliciesSettings
from agentkv_tasks.cli.bench.options import Entries, Out, Resumable, Threads, window_entries
from agentkv_tasks.cli.options import (
    for_people,
    read_numbers,
    results_file,
    split,
    takes,
    this_command,
)
from agentkv_tasks.settings import RunSettings


class _RulerSizes(NamedTuple):
    lengths: str
    samples: int
    questions: int


_RULER_SIZES = _RulerSizes("2048,4096,8192", 10, 4)
_QUICK_RULER_SIZES = _RulerSizes("1280", 2, 2)


@takes(
    RunSettings,
    *PoliciesSettings.model_fields,
    policies=("full", "window", POLICY, "int4"),
    chunk=512,
)
def ruler(
    given: dict[str, Any],
    tasks: Annotated[
        str | None,
        typer.Option(
            help="Names separated by commas: single, multi-key, multi-value and multi-query "
            "(needles among repeated sentences; with -text, such as single-text, in a --text), "
            "variables, common-words, frequent-words, key-value, prefix-suffix, multi-hop, find. "
            "[default: all, those over text if a --text is given]"
        ),
    ] = None,
    mode: Annotated[
        Literal["requests", "turns", "both"],
        typer.Option(
            help="Several questions about one context: requests: each after the bare context; "
            "turns: each after those before it and their replies."
        ),
    ] = "both",
    lengths: Annotated[
        str | None,
        typer.Option(
            help="Tokens of a context with its questions and replies, separated by commas. "
            f"[default: {_RULER_SIZES.lengths}; with --quick {_QUICK_RULER_SIZES.lengths}]"
        ),
    ] = None,
    samples: Annotated[
        int | None,
        typer.Option(
            min=1,
            help=f"Contexts of each task and length. [default: {_RULER_SIZES.samples}; with "
            f"--quick {_QUICK_RULER_SIZES.samples}]",
        ),
    ] = None,
    questions: Annotated[
        int | None,
        typer.Option(
            min=2,
            help="Questions about a context, of tasks that have several. [default: "
            f"{_RULER_SIZES.questions}; with --quick {_QUICK_RULER_SIZES.questions}]",
        ),
    ] = None,
    text: Annotated[
        Path | None, typer.Option(help="Text file, such as WikiText's, to hide needles in.")
    ] = None,
    quick: Annotated[
        bool,
        typer.Option(
            "--quick",
            help="Small sizes, where none are given: with the default policies under three "
            "minutes with nano and under ten with smollm2 on two CPU cores.",
        ),
    ] = False,
    entries: Entries = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the contexts.")] = 0,
    threads: Threads = None,
    out: Out = None,
    fresh: Resumable = False,
) -> None:
    """Ask a model about long synthetic contexts, which its cache compresses before the question.

    The tasks are those of RULER, and those of SCBench that can be made from a seed, in our own
    words. A score is the share of the expected texts that the greedy reply contains. A task that
    the full cache solves to less than 60 % is shown and decides nothing. Policies with a budget get
    the bytes of a window of --entries.
    """
    with for_people() as console:
        from agentkv_tasks.bench.ruler.measure import RulerBench, run_bench
        from agentkv_tasks.bench.ruler.tasks import chosen_tasks

        sizes = _QUICK_RULER_SIZES if quick else _RULER_SIZES
        settings = RunSettings.read(**given)
        names = None if tasks is None else split("--tasks", tasks)
        run_bench(
            RulerBench(
                settings=settings,
                entries=window_entries(given, entries),
                tasks=chosen_tasks(names, has_text=text is not None),
                modes=mode,
                lengths=read_numbers("--lengths", sizes.lengths if lengths is None else lengths),
                num_samples=samples or sizes.samples,
                num_questions=questions or sizes.questions,
                text=text,
                seed=seed,
                threads=threads,
                command=this_command(),
                out=out or results_file("ruler", settings, seed),
                fresh=fresh,
            ),
            console,
        )
