"""`agentkv bench speed`."""

from pathlib import Path
from typing import Annotated, Any

import typer

from agentkv.settings import PoliciesSettings
from agentkv_tasks.cli.bench.options import Against, Layers, Out, Resumable, Shape, Threads
from agentkv_tasks.cli.options import for_people, read_numbers, split, takes, this_command
from agentkv_tasks.settings import RunSettings


@takes(
    RunSettings,
    *PoliciesSettings.model_fields,
    policies=("full", "window", "snapkv", "int8", "conf-kv-int8"),
    budget=512,
    chunk=512,
    cache_dtype="model",
)
def speed(
    given: dict[str, Any],
    shape: Shape = None,
    layers: Layers = None,
    seen: Annotated[
        str | None,
        typer.Option(
            help="Tokens read before, by commas. [default: 512,2048,8192; with --quick 512,2048]"
        ),
    ] = None,
    batches: Annotated[str, typer.Option(help="Batch sizes, separated by commas.")] = "1",
    tokens: Annotated[
        int | None,
        typer.Option(min=1, help="Timed steps per round. [default: 64; with --quick 32]"),
    ] = None,
    rounds: Annotated[
        int | None, typer.Option(min=1, help="Interleaved rounds. [default: 5; with --quick 3]")
    ] = None,
    split_rounds: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="Further rounds that measure the parts of a step. [default: 3; with --quick 1]",
        ),
    ] = None,
    quick: Annotated[
        bool,
        typer.Option(
            "--quick",
            help="Small sizes, within three minutes on two cores: 3 rounds of 32 steps after 512 "
            "and 2,048 tokens.",
        ),
    ] = False,
    page: Annotated[
        int, typer.Option(min=0, help="Tokens of a page that every round reads too; 0: none.")
    ] = 0,
    against: Against = "transformers",
    threads: Threads = None,
    out: Out = None,
    fresh: Resumable = False,
) -> None:
    """Measure decode latency under cache policies, relative to transformers' DynamicCache.

    Each cache is checked first, and nothing is timed if one is wrong. Then all caches decode the
    same tokens in interleaved rounds from the same state, and read a page from it with --page.
    Further rounds measure the parts of a step.

    llama.cpp reads the same weights and needs pip install 'agentkv-web[llama-cpp]'; quanto and HQQ
    need pip install optimum-quanto hqq. One line says why a contender is left out.

    The tokens are random, and a model is unsure of them. Under a policy that looks back on an alarm
    nearly every token therefore looks; --policies lookback-int8,FILE.toml compares it with looks of
    another share (see "With looks" in docs/benchmarks.md).
    """
    with for_people() as console:
        from agentkv_tasks.bench.speed.measure import SpeedBench, run_bench

        settings = RunSettings.read(**given)
        run_bench(
            SpeedBench(
                settings=settings,
                shape=shape,
                num_layers=layers,
                batches=read_numbers("--batches", batches),
                lengths=read_numbers("--seen", seen or ("512,2048" if quick else "512,2048,8192")),
                num_tokens=tokens or (32 if quick else 64),
                num_rounds=rounds or (3 if quick else 5),
                num_page=page,
                num_split_rounds=(1 if quick else 3) if split_rounds is None else split_rounds,
                against=tuple(split("--against", against)),
                threads=threads,
                command=this_command(),
                out=out or Path("runs") / f"speed-{shape or Path(settings.model).name}.jsonl",
                fresh=fresh,
            ),
            console,
        )
