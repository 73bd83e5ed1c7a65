"""The front door of the measurements that need no tasks: `agentkv bench`.

A part of the command line, like `cli.py`; imports wait until a command needs them.
"""

import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from agentkv import options

bench = typer.Typer(
    help="Measure a cache by itself, without tasks.", no_args_is_help=True, rich_markup_mode=None
)

Policies = Annotated[
    str, typer.Option(help="Cache policies by commas, also TOML files that compose them.")
]
Model = Annotated[str, typer.Option(help="nano, a folder or a hub id.")]
Shape = Annotated[
    str | None,
    typer.Option(help="Random weights instead: gpt2, qwen3-14b, gpt-oss-20b ... or tiny."),
]
Layers = Annotated[int | None, typer.Option(help="Of the shape. [default: as many as fit]")]
Against = Annotated[
    str, typer.Option(help="Beside transformers' DynamicCache: static, quantized, kvpress.")
]
Threads = Annotated[int | None, typer.Option(min=1, help="Of torch.")]
Dtype = Annotated[str, typer.Option(help="auto, float32, bfloat16, float16.")]
OutFile = Annotated[Path | None, typer.Option(help="File for the rows. [default: below runs/]")]
Overwrite = Annotated[bool, typer.Option("--fresh", help="Overwrite --out.")]


@bench.command()
def states(
    policies: Policies = "full,window,snapkv,arkv,fp8,conf-kv-int8",
    model: Model = "nano",
    budget: options.Budget = "256",
    tokens: Annotated[int, typer.Option(min=1, help="Tokens read one by one.")] = 4096,
    prompt: Annotated[int, typer.Option(min=1, help="Tokens read at once before.")] = 512,
    parts: Annotated[int, typer.Option(help="Of the stream; rows tell of each.")] = 8,
    world_seed: options.World = 75,
    text: Annotated[Path | None, typer.Option(help="A text file instead of the world.")] = None,
    out: OutFile = None,
    fresh: Overwrite = False,
    device: options.Device = "auto",
    browser_path: options.Browser = None,
) -> None:
    """Follow caches along a stream: rows kept, quantised, gone, and how far from full they speak.

    The stream is an episode of random clicks in the embedded world, or a text file. Every policy
    reads the same tokens, one by one, beside transformers' own full cache.
    """
    with options.for_people() as console:
        from agentkv.config import read_settings
        from agentkv_tasks.bench.states.measure import Bench, run_bench

        settings = read_settings(
            model=model,
            policies=tuple(options.split("--policies", policies)),
            budget=options.read_budget(budget),
            world_seed=world_seed,
            device=device,
            browser_path=browser_path,
        )
        run_bench(
            Bench(
                settings=settings,
                num_tokens=tokens,
                num_prompt=prompt,
                num_parts=parts,
                text=text,
                out=out or options.bench_out("states", world_seed, model),
                fresh=fresh,
            ),
            console,
        )


@bench.command()
def speed(
    policies: Policies = "full,window,snapkv,int8,conf-kv-int8",
    model: Model = "nano",
    shape: Shape = None,
    layers: Layers = None,
    seen: Annotated[str, typer.Option(help="Tokens read before, by commas.")] = "512,2048,8192",
    batches: Annotated[str, typer.Option(help="Sequences at once, by commas.")] = "1",
    tokens: Annotated[int, typer.Option(min=1, help="Steps that a round times.")] = 64,
    rounds: Annotated[int, typer.Option(min=1, help="In each, every cache has its turn.")] = 5,
    split_rounds: Annotated[
        int, typer.Option(min=0, help="More rounds, which ask where the time goes.")
    ] = 3,
    against: Against = "transformers",
    budget: options.Budget = options.BENCH_BUDGET,
    chunk: Annotated[int, typer.Option(min=1, help="Tokens that are read at once before.")] = 512,
    threads: Threads = None,
    dtype: Dtype = "auto",
    device: options.Device = "auto",
    out: OutFile = None,
    fresh: Annotated[
        bool, typer.Option("--fresh/--resume", help="Overwrite --out, or go on where it stands.")
    ] = False,
) -> None:
    """Time decoding under cache policies beside transformers' own cache.

    Each cache is checked first, and nothing is timed if one is wrong. Then all of them decode the
    same tokens in turns, each time from the same state; more rounds ask where the time goes.
    """
    with options.for_people() as console:
        from agentkv.config import read_settings
        from agentkv_tasks.bench.speed.measure import Bench, run_bench

        settings = read_settings(
            model=model,
            policies=tuple(options.split("--policies", policies)),
            budget=options.read_budget(budget),
            chunk=chunk,
            dtype=dtype,
            device=device,
        )
        run_bench(
            Bench(
                settings=settings,
                shape=shape,
                num_layers=layers,
                batches=options.read_numbers("--batches", batches),
                lengths=options.read_numbers("--seen", seen),
                num_tokens=tokens,
                num_rounds=rounds,
                num_split_rounds=split_rounds,
                against=tuple(options.split("--against", against)),
                threads=threads,
                command=shlex.join(["agentkv", *sys.argv[1:]]),
                out=out or Path("runs") / f"speed-{shape or Path(model).name}.jsonl",
                fresh=fresh,
            ),
            console,
        )


@bench.command()
def memory(
    policies: Policies = "full,window,conf-kv-int8",
    model: Model = "nano",
    shape: Shape = None,
    layers: Layers = None,
    seen: Annotated[str, typer.Option(help="Tokens of the prompt, by commas.")] = "2048,32768",
    tokens: Annotated[int, typer.Option(min=1, help="Decoded after it.")] = 64,
    against: Against = "transformers",
    budget: options.Budget = options.BENCH_BUDGET,
    chunk: Annotated[int, typer.Option(min=1, help="Tokens of it that are read at once.")] = 512,
    threads: Threads = None,
    dtype: Dtype = "auto",
    device: options.Device = "auto",
    out: OutFile = None,
    fresh: Overwrite = False,
) -> None:
    """Say what a whole process takes that reads a prompt and decodes under each policy.

    Each cache is checked first. Then every policy and length has a process of its own, which
    tells the most memory it had resident, beside that of one with transformers' own cache.
    """
    with options.for_people() as console:
        from agentkv.config import read_settings
        from agentkv_tasks.bench.memory.measure import Bench, run_bench

        settings = read_settings(
            model=model,
            policies=tuple(options.split("--policies", policies)),
            budget=options.read_budget(budget),
            chunk=chunk,
            dtype=dtype,
            device=device,
        )
        run_bench(
            Bench(
                settings=settings,
                shape=shape,
                num_layers=layers,
                lengths=options.read_numbers("--seen", seen),
                num_decoded=tokens,
                against=tuple(options.split("--against", against)),
                threads=threads,
                command=shlex.join(["agentkv", *sys.argv[1:]]),
                out=out or Path("runs") / f"memory-{shape or Path(model).name}.jsonl",
                fresh=fresh,
            ),
            console,
        )


@bench.command()
def needle(
    policies: Policies = "full,window,conf-kv-int8",
    model: Model = "nano",
    lengths: Annotated[
        str, typer.Option(help="Tokens of question and page, by commas.")
    ] = "1024,2048,4096,8192,16384",
    depths: Annotated[
        str, typer.Option(help="Where the line stands, % of the page, by commas.")
    ] = "0,25,50,75,100",
    needles: Annotated[int, typer.Option(min=1, help="Of each length and depth.")] = 20,
    budget: options.Budget = options.BENCH_BUDGET,
    seed: Annotated[int, typer.Option(help="Of the pages, 0 to 999999.")] = 0,
    against: Annotated[
        str | None, typer.Option(help="Compare with this one of --policies. [default: the first]")
    ] = None,
    decoding: options.Decoding = "constrained",
    chunk: Annotated[int, typer.Option(min=1, help="Tokens that are read at once.")] = 512,
    threads: Threads = None,
    dtype: Dtype = "auto",
    device: options.Device = "auto",
    out: OutFile = None,
    fresh: Annotated[
        bool, typer.Option("--fresh/--resume", help="Overwrite --out, or go on where it stands.")
    ] = False,
) -> None:
    """Count how often one fact in a long page is found, by the page's length and its depth there.

    The page is made of names and facts as on the sites. One line says the code of a name, a few
    others those of other names; the goal asks for it, and the answer must be exactly that code.
    """
    with options.for_people() as console:
        from agentkv.config import read_settings
        from agentkv_tasks.bench.needle.measure import REPLY_TOKENS, Bench, run_bench

        settings = read_settings(
            model=model,
            policies=tuple(options.split("--policies", policies)),
            budget=options.read_budget(budget),
            decoding=decoding,
            chunk=chunk,
            dtype=dtype,
            device=device,
            max_new_tokens=REPLY_TOKENS,
            observation_tokens=None,
        )
        run_bench(
            Bench(
                settings=settings,
                lengths=options.read_numbers("--lengths", lengths),
                depths=options.read_numbers("--depths", depths),
                num_needles=needles,
                seed=seed,
                against=against or settings.policies[0].row_name,
                threads=threads,
                command=shlex.join(["agentkv", *sys.argv[1:]]),
                out=out or options.bench_out("needle", seed, model),
                fresh=fresh,
            ),
            console,
        )
