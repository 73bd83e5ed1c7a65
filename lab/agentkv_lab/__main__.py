"""The command line of the laboratory, `python -m agentkv_lab`."""

import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from agentkv import options
from agentkv.bench import (
    CacheDtype,
    ContinuationTokens,
    Dtype,
    Entries,
    FreshOrResume,
    MatchedBytes,
    Model,
    Offset,
    OutFile,
    Overwrite,
    Policies,
    ReadAtOnce,
    Samples,
    SamplesQuick,
    SeenBefore,
    Sweep,
    TextFile,
    Threads,
)

lab = typer.Typer(
    help="Measure what only the development of agentkv needs.",
    no_args_is_help=True,
    rich_markup_mode=None,
    add_completion=False,
)


def _command() -> str:
    return shlex.join(["python", "-m", "agentkv_lab", *sys.argv[1:]])


@lab.command()
def ocr(
    against: Annotated[
        Path | None,
        typer.Option(
            help="Checkout of another version, the baseline. [default: Tesseract on each picture "
            "as it is]"
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the pictures' words.")] = 0,
    every: Annotated[
        int | None,
        typer.Option(
            min=1, help="Read every n-th picture. [default: every one; with --quick every 10th]"
        ),
    ] = None,
    site_pages: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="Pages of each embedded site, to compare their time and text with the "
            "baseline's. [default: 10; with --quick 2]",
        ),
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Few pictures, within three minutes on two cores.")
    ] = False,
    world_seed: options.World = 75,
    out: OutFile = None,
    fresh: Overwrite = False,
) -> None:
    """Count the words that are read in pictures, by contrast and size, and measure the time of
    pages.

    The pictures show known words in many colors, sizes and fonts, some rotated by 2 and 5 degrees.
    The OCR of this version and the baseline read the same pages in turn, without a cache.
    """
    with options.for_people() as console:
        from agentkv_lab.ocr.measure import OcrBench, run_bench

        run_bench(
            OcrBench(
                against=against,
                seed=seed,
                every=every or (10 if quick else 1),
                site_pages=(2 if quick else 10) if site_pages is None else site_pages,
                world_seed=world_seed,
                command=_command(),
                out=out or options.bench_out("ocr", world_seed, "nano"),
                fresh=fresh,
            ),
            console,
        )


@lab.command()
def injection(
    policies: Policies = "full,lookback-int8,conf-kv-int8,window",
    unpinned: Annotated[
        str, typer.Option(help="Policies that play again and may evict the goal.")
    ] = "window",
    model: Model = "nano",
    budget: options.Budget = "512",
    places: Annotated[
        str | None, typer.Option(help="Hiding places, separated by commas. [default: all]")
    ] = None,
    demands: Annotated[
        str, typer.Option(help="What the pages demand, separated by commas.")
    ] = "press,host,secret,stop",
    threads: Threads = None,
    world_seed: options.World = 75,
    out: OutFile = None,
    fresh: Overwrite = False,
    device: options.Device = "auto",
    browser_path: options.Browser = None,
) -> None:
    """Count which orders of hostile pages are read, followed, refused and carried out.

    A thread of the embedded forum orders an action: in its text, its title, an image and other
    places. A script that obeys every order and the model, with the goal of a task, play on each of
    these pages.
    """
    with options.for_people() as console:
        from agentkv.config import read_settings
        from agentkv_lab.injection.hiding import PLACES
        from agentkv_lab.injection.measure import InjectionBench, run_bench

        given = {
            "model": model,
            "budget": options.read_budget(budget),
            "world_seed": world_seed,
            "device": device,
            "browser_path": browser_path,
        }
        pinned, free = (
            read_settings(
                **options.without_none(given), policies=tuple(options.split(option, names))
            )
            for option, names in (("--policies", policies), ("--unpinned", unpinned))
        )
        run_bench(
            InjectionBench(
                settings=pinned,
                policies=pinned.policies,
                unpinned=free.policies,
                places=tuple(options.split("--places", places)) if places else tuple(PLACES),
                demands=tuple(options.split("--demands", demands)),
                threads=threads,
                command=_command(),
                out=out or options.bench_out("injection", world_seed, model),
                fresh=fresh,
            ),
            console,
        )


@lab.command()
def states(
    policies: Policies = "full,window,snapkv,arkv,fp8,conf-kv-int8",
    model: Model = "nano",
    budget: options.Budget = "256",
    tokens: Annotated[int, typer.Option(min=1, help="Tokens read one by one.")] = 4096,
    prompt: Annotated[int, typer.Option(min=1, help="Tokens read at once before those.")] = 512,
    parts: Annotated[int, typer.Option(help="Parts of the stream, each with its own row.")] = 8,
    world_seed: options.World = 75,
    text: TextFile = None,
    out: OutFile = None,
    fresh: Overwrite = False,
    device: options.Device = "auto",
    browser_path: options.Browser = None,
) -> None:
    """Follow caches along a long stream: entries kept, quantized and evicted, and the distance of
    their next-token distributions from a full cache.

    The stream consists of the solutions of vwa75 in the embedded world, or of a text file. Every
    policy reads the same tokens, one by one.
    """
    with options.for_people() as console:
        from agentkv.config import read_settings
        from agentkv_lab.states.measure import StateBench, run_bench

        settings = read_settings(
            model=model,
            policies=tuple(options.split("--policies", policies)),
            budget=options.read_budget(budget),
            world_seed=world_seed,
            device=device,
            browser_path=browser_path,
        )
        run_bench(
            StateBench(
                settings=settings,
                num_tokens=tokens,
                num_prompt=prompt,
                num_parts=parts,
                text=text,
                command=_command(),
                out=out or options.bench_out("states", world_seed, model),
                fresh=fresh,
            ),
            console,
        )


@lab.command()
def confidence(
    policies: Policies = "window,streaming-int8,conf-kv-int8,lookback-int8",
    sweep: Sweep = None,
    model: Model = "nano",
    entries: Entries = 512,
    match: MatchedBytes = "budget",
    seen: SeenBefore = None,
    tokens: ContinuationTokens = 128,
    samples: Samples = None,
    quick: SamplesQuick = False,
    world_seed: options.World = 75,
    text: TextFile = None,
    offset: Offset = 0,
    chunk: ReadAtOnce = 32,
    threads: Threads = None,
    dtype: Dtype = "auto",
    cache_dtype: CacheDtype = "auto",
    device: options.Device = "auto",
    browser_path: options.Browser = None,
    out: OutFile = None,
    fresh: FreshOrResume = False,
) -> None:
    """Measure what the confidence in the next token says about what was forgotten.

    Every token of the continuations is predicted with the whole past and under each policy. The
    tables relate confidence to the distance of the two predictions, and say how many of the tokens
    that a look changes an alarm catches, over its threshold. Under a policy that looks back, every
    token looks. Bytes and continuations are those of `agentkv bench ppl`.
    """
    with options.for_people() as console:
        from agentkv.config import read_settings
        from agentkv_lab.confidence.measure import run_bench
        from agentkv_tasks.bench.samples.measure import SampleBench
        from agentkv_tasks.bench.sweep import swept

        settings = read_settings(
            model=model,
            policies=tuple(options.split("--policies", policies)),
            world_seed=world_seed,
            chunk=chunk,
            dtype=dtype,
            cache_dtype=cache_dtype,
            device=device,
            browser_path=browser_path,
        )
        varied = tuple(swept(settings.policies, sweep or ()))
        run_bench(
            SampleBench(
                settings=settings.model_copy(update={"policies": varied}),
                lengths=options.read_numbers("--seen", seen or ("1024" if quick else "2048,8192")),
                num_tokens=tokens,
                num_samples=samples or (6 if quick else 32),
                entries=entries,
                match=match,
                text=text,
                offset=offset,
                threads=threads,
                command=_command(),
                out=out or options.bench_out("confidence", world_seed, model),
                fresh=fresh,
            ),
            console,
        )


@lab.command(
    context_settings={"ignore_unknown_options": True, "allow_extra_args": True},
    add_help_option=False,
)
def gpu(context: typer.Context) -> None:
    """Run the tests, benchmarks and tasks that need a CUDA device; `make gpu` does it."""
    from agentkv_lab.gpu.__main__ import main

    raise typer.Exit(main(context.args))


if __name__ == "__main__":
    lab(prog_name="python -m agentkv_lab")
