"""`agentkv bench memory`."""

from pathlib import Path
from typing import Annotated, Any

import typer

from agentkv.settings import PoliciesSettings
from agentkv_tasks.cli.bench.options import Against, Layers, Out, Overwrite, Shape, Threads
from agentkv_tasks.cli.options import for_people, read_numbers, split, takes, this_command
from agentkv_tasks.settings import RunSettings


@takes(
    RunSettings,
    *PoliciesSettings.model_fields,
    policies=("full", "window", "conf-kv-int8"),
    budget=512,
    chunk=512,
    cache_dtype="model",  # as the caches of other libraries
)
def memory(
    given: dict[str, Any],
    shape: Shape = None,
    layers: Layers = None,
    seen: Annotated[
        str | None,
        typer.Option(help="Prompt tokens, by commas. [default: 2048,32768; with --quick 512,4096]"),
    ] = None,
    tokens: Annotated[
        int | None,
        typer.Option(min=1, help="Tokens decoded after the prompt. [default: 64; with --quick 8]"),
    ] = None,
    quick: Annotated[
        bool,
        typer.Option(
            "--quick",
            help="Small sizes, within three minutes on two cores: 8 tokens after 512 and 4,096.",
        ),
    ] = False,
    against: Against = "transformers",
    threads: Threads = None,
    out: Out = None,
    fresh: Overwrite = False,
) -> None:
    """Measure the peak memory of a whole process under each policy.

    Each cache is checked first. Then every policy and length, and transformers' DynamicCache, gets
    its own process, which reads a prompt, decodes and reports its peak resident memory.

    With a GGUF file, a second table compares the peak while loading with the size of the file,
    and the whole process with that of llama.cpp.

    A process of llama.cpp reads the same weights from a file and imports neither torch nor
    transformers. What the other libraries need is in the help of bench speed.
    """
    with for_people() as console:
        from agentkv_tasks.bench.memory.measure import MemoryBench, run_bench

        settings = RunSettings.read(**given)
        run_bench(
            MemoryBench(
                settings=settings,
                shape=shape,
                num_layers=layers,
                lengths=read_numbers("--seen", seen or ("512,4096" if quick else "2048,32768")),
                num_decoded=tokens or (8 if quick else 64),
                against=tuple(split("--against", against)),
                threads=threads,
                command=this_command(),
                out=out or Path("runs") / f"memory-{shape or Path(settings.model).name}.jsonl",
                fresh=fresh,
            ),
            console,
        )
