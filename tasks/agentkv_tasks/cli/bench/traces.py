"""`agentkv bench traces`."""

from pathlib import Path
from typing import Annotated, Any, get_args

import typer

from agentkv.serve.settings import EditMode
from agentkv.settings import PoliciesSettings
from agentkv_tasks.cli.bench.options import Out, Resumable, Threads
from agentkv_tasks.cli.options import for_people, results_file, split, takes, this_command
from agentkv_tasks.settings import RunSettings


@takes(RunSettings, *PoliciesSettings.model_fields, policies=("full",), budget=1024)
def traces(
    given: dict[str, Any],
    edits: Annotated[
        str, typer.Option(help="What becomes of edited messages, separated by commas.")
    ] = ",".join(get_args(EditMode)),
    sessions: Annotated[int, typer.Option(min=1, help="Sessions that are made.")] = 10,
    turns: Annotated[int, typer.Option(min=2, help="Median turns of a made session.")] = 43,
    words: Annotated[int, typer.Option(min=1, help="Median words of an output.")] = 30,
    reply: Annotated[int, typer.Option(min=1, help="Maximum tokens of a reply.")] = 8,
    seed: Annotated[int, typer.Option(help="Seed of made sessions.")] = 0,
    trace: Annotated[
        Path | None,
        typer.Option(
            help="JSON Lines file of requests, with session, messages and reply in each line. "
            "[default: sessions are made]"
        ),
    ] = None,
    against: Annotated[
        str | None,
        typer.Option(
            help="Further contenders: llama.cpp, its own server with the same GGUF file; or "
            "single ones, 'llama.cpp prefix' (its defaults) and 'llama.cpp shift' (--cache-reuse, "
            "and idle slots stay)."
        ),
    ] = None,
    memory: Annotated[
        str,
        typer.Option(help="Bytes of all entries that each server may have in memory."),
    ] = "4GiB",
    context: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Tokens for whose entries llama.cpp's server reserves memory; a longer prompt "
            "ends the run. [default: the model's positions]",
        ),
    ] = None,
    threads: Threads = None,
    out: Out = None,
    fresh: Resumable = False,
) -> None:
    """Replay the requests of agents whose hosts prune, and count the tokens that the server reads.

    Made sessions have the shape that public figures of coding agents give, in five kinds: hosts
    do nothing, remove the oldest turns, put a note in place of outputs now and then or after every
    turn, or change a line of the instructions. The tokens that a prefix cache would read stand
    beside.

    All contenders answer a request before the next one is sent. llama.cpp's server needs pip
    install 'agentkv-web[llama-server]'; its slots and earlier prompts have the same memory.
    """
    with for_people() as console:
        from agentkv_tasks.bench.errors import BenchError
        from agentkv_tasks.bench.traces.measure import TraceBench, run_bench

        settings, known = RunSettings.read(**given), get_args(EditMode)
        chosen = split("--edits", edits)
        if unknown := [each for each in chosen if each not in known]:
            raise BenchError(f"found --edits {unknown[0]}, expected some of {', '.join(known)}")
        run_bench(
            TraceBench(
                settings=settings,
                edits=chosen,
                num_sessions=sessions,
                num_turns=turns,
                num_words=words,
                num_reply=reply,
                seed=seed,
                trace=trace,
                against=() if against is None else split("--against", against),
                memory=memory,
                context=context,
                threads=threads,
                command=this_command(),
                out=out or results_file("traces", settings),
                fresh=fresh,
            ),
            console,
        )
