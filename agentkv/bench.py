"""The front door of the measurements that need no tasks: `agentkv bench`.

A part of the command line, like `cli.py`; imports wait until a command needs them.
"""

from pathlib import Path
from typing import Annotated

import typer

from agentkv import options

bench = typer.Typer(
    help="Measure a cache by itself, without tasks.", no_args_is_help=True, rich_markup_mode=None
)


@bench.callback()
def _main() -> None:
    # with a callback the only command is asked for by its name
    pass


@bench.command()
def states(
    policies: Annotated[
        str, typer.Option(help="Cache policies by commas, also TOML files that compose them.")
    ] = "full,window,snapkv,arkv,fp8,conf-kv-int8",
    model: Annotated[str, typer.Option(help="nano, a folder or a hub id.")] = "nano",
    budget: options.Budget = "256",
    tokens: Annotated[int, typer.Option(min=1, help="Tokens read one by one.")] = 4096,
    prompt: Annotated[int, typer.Option(min=1, help="Tokens read at once before.")] = 512,
    parts: Annotated[int, typer.Option(help="Of the stream; rows tell of each.")] = 8,
    world_seed: options.World = 75,
    text: Annotated[Path | None, typer.Option(help="A text file instead of the world.")] = None,
    out: Annotated[
        Path | None, typer.Option(help="File for the rows. [default: below runs/]")
    ] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Overwrite --out.")] = False,
    device: options.Device = "auto",
    browser_path: options.Browser = None,
) -> None:
    """Follow caches along a stream: rows kept, quantised, gone, and how far from full they speak.

    The stream is an episode of random clicks in the embedded world, or a text file. Every policy
    reads the same tokens, one by one, beside transformers' own full cache.
    """
    with options.for_people() as console:
        from agentkv.config import read_settings
        from agentkv_tasks.bench.states import Bench, conduct

        settings = read_settings(
            model=model,
            policies=tuple(options.split("--policies", policies)),
            budget=options.read_budget(budget),
            world_seed=world_seed,
            device=device,
            browser_path=browser_path,
        )
        conduct(
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
