"""`agentkv bench serve`."""

from typing import Annotated, Any

import typer

from agentkv.defaults import POLICY
from agentkv_tasks.cli.bench.options import OF_WORLD, Out, Overwrite, TextFile, Threads
from agentkv_tasks.cli.options import for_people, results_file, takes, this_command
from agentkv_tasks.settings import RunSettings


@takes(
    RunSettings,
    *OF_WORLD,
    policies=("full", "int8", "streaming-int8", POLICY),
    budget=1024,
)
def serve(
    given: dict[str, Any],
    turns: Annotated[int, typer.Option(min=1, help="Turns of the conversation.")] = 40,
    tokens: Annotated[int, typer.Option(min=1, help="Tokens of a message.")] = 256,
    reply: Annotated[int, typer.Option(min=1, help="Maximum tokens of a reply.")] = 16,
    rounds: Annotated[int, typer.Option(min=1, help="Conversations with each contender.")] = 3,
    threads: Threads = None,
    text: TextFile = None,
    out: Out = None,
    fresh: Overwrite = False,
) -> None:
    """Measure the server over the turns of a conversation: time to the first token and bytes of the
    cache, against the same model with a prompt that is read again in each turn.
    """
    with for_people() as console:
        from agentkv_tasks.bench.serve.measure import ServeBench, run_bench

        settings = RunSettings.read(**given)
        run_bench(
            ServeBench(
                settings=settings,
                num_turns=turns,
                num_new=tokens,
                num_reply=reply,
                num_rounds=rounds,
                threads=threads,
                text=text,
                command=this_command(),
                out=out or results_file("serve", settings),
                fresh=fresh,
            ),
            console,
        )
