"""The command line of the laboratory, `python -m agentkv_lab`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from agentkv.defaults import POLICY
from agentkv.settings import ModelSettings
from agentkv_lab.mechanisms import concentration, hiding, perturbation, ranking, removal
from agentkv_tasks.cli.bench.options import OF_WORLD, Out, Overwrite, TextFile, Threads
from agentkv_tasks.cli.bench.samples import samples_command
from agentkv_tasks.cli.options import (
    for_people,
    results_file,
    split,
    takes,
    this_command,
)
from agentkv_tasks.settings import RunSettings

if TYPE_CHECKING:
    from rich.console import Console

    from agentkv_tasks.bench.samples.measure import SampleBench

lab = typer.Typer(
    help="Measure what only the development of agentkv needs.",
    no_args_is_help=True,
    rich_markup_mode=None,
    add_completion=False,
)


@lab.command()
@takes(RunSettings, "world_seed")
def ocr(
    given: dict[str, Any],
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
    out: Out = None,
    fresh: Overwrite = False,
) -> None:
    """Count the words that are read in pictures, by contrast and size, and measure the time of
    pages.

    The pictures show known words in many colors, sizes and fonts, some rotated by 2 and 5 degrees.
    The OCR of this version and the baseline read the same pages in turn, without a cache.
    """
    with for_people() as console:
        from agentkv_lab.ocr.measure import OcrBench, run_bench

        settings = RunSettings.read(**given)
        run_bench(
            OcrBench(
                against=against,
                seed=seed,
                every=every or (10 if quick else 1),
                site_pages=(2 if quick else 10) if site_pages is None else site_pages,
                world_seed=settings.world_seed,
                command=this_command("python -m agentkv_lab"),
                out=out or results_file("ocr", settings),
                fresh=fresh,
            ),
            console,
        )


@lab.command()
@takes(
    RunSettings,
    *OF_WORLD,
    policies=("full", POLICY, "conf-kv-int8", "window"),
    budget=512,
)
def injection(
    given: dict[str, Any],
    unpinned: Annotated[
        str, typer.Option(help="Policies that play again and may evict the goal.")
    ] = "window",
    places: Annotated[
        str | None, typer.Option(help="Hiding places, separated by commas. [default: all]")
    ] = None,
    demands: Annotated[
        str, typer.Option(help="What the pages demand, separated by commas.")
    ] = "press,host,secret,stop",
    threads: Threads = None,
    out: Out = None,
    fresh: Overwrite = False,
) -> None:
    """Count which orders of hostile pages are read, followed, refused and carried out.

    A thread of the embedded forum orders an action: in its text, its title, an image and other
    places. A script that obeys every order and the model, with the goal of a task, play on each of
    these pages.
    """
    with for_people() as console:
        from agentkv_lab.injection.hiding import PLACES
        from agentkv_lab.injection.measure import InjectionBench, run_bench

        pinned = RunSettings.read(**given)
        free = RunSettings.read(**{**given, "policies": split("--unpinned", unpinned)})
        run_bench(
            InjectionBench(
                settings=pinned,
                policies=pinned.policies,
                unpinned=free.policies,
                places=tuple(split("--places", places)) if places else tuple(PLACES),
                demands=tuple(split("--demands", demands)),
                threads=threads,
                command=this_command("python -m agentkv_lab"),
                out=out or results_file("injection", pinned),
                fresh=fresh,
            ),
            console,
        )


@lab.command()
@takes(
    RunSettings,
    *OF_WORLD,
    policies=("full", "window", "snapkv", "arkv", "fp8", "conf-kv-int8"),
    budget=256,
)
def states(
    given: dict[str, Any],
    tokens: Annotated[int, typer.Option(min=1, help="Tokens read one by one.")] = 4096,
    prompt: Annotated[int, typer.Option(min=1, help="Tokens read at once before those.")] = 512,
    parts: Annotated[int, typer.Option(help="Parts of the stream, each with its own row.")] = 8,
    text: TextFile = None,
    out: Out = None,
    fresh: Overwrite = False,
) -> None:
    """Follow caches along a long stream: entries kept, quantized and evicted, and the distance of
    their next-token distributions from a full cache.

    The stream consists of the solutions of vwa75 in the embedded world, or of a text file. Every
    policy reads the same tokens, one by one.
    """
    with for_people() as console:
        from agentkv_lab.states.measure import StateBench, run_bench

        settings = RunSettings.read(**given)
        run_bench(
            StateBench(
                settings=settings,
                num_tokens=tokens,
                num_prompt=prompt,
                num_parts=parts,
                text=text,
                command=this_command("python -m agentkv_lab"),
                out=out or results_file("states", settings),
                fresh=fresh,
            ),
            console,
        )


def _confidence(samples: "SampleBench", console: "Console") -> None:
    """Measure what the confidence in the next token says about what was forgotten.

    Every token of the continuations is predicted with the whole past and under each policy. The
    tables relate confidence to the distance of the two predictions, and say how many of the tokens
    that a look changes an alarm catches, over its threshold. Under a policy that looks back, every
    token looks. Bytes and continuations are those of `agentkv bench ppl`.
    """
    from agentkv_lab.confidence.measure import run_bench

    run_bench(samples, console)


confidence = samples_command(
    "confidence",
    ("window", "streaming-int8", "conf-kv-int8", POLICY),
    _confidence,
    program="python -m agentkv_lab",
)
lab.command()(confidence)


for command in (hiding, ranking, perturbation, concentration, removal):
    lab.command()(command)


@lab.command()
@takes(RunSettings, *ModelSettings.model_fields, policies=("lookback-int8",))
def trigger(
    given: dict[str, Any],
    train: Annotated[Path, typer.Option(help="Text that the learned triggers are fitted to.")],
    test: Annotated[Path, typer.Option(help="Text that all signals are judged on.")],
    train_samples: Annotated[int, typer.Option(min=2, help="Continuations of --train.")] = 16,
    samples: Annotated[int, typer.Option(min=2, help="Continuations of --test.")] = 16,
    seen: Annotated[int, typer.Option(min=1, help="Tokens read before a continuation.")] = 2048,
    tokens: Annotated[int, typer.Option(min=1, help="Tokens of a continuation.")] = 96,
    entries: Annotated[
        int, typer.Option(min=1, help="Entries of the window whose bytes the cache has.")
    ] = 512,
    threads: Threads = None,
    work: Annotated[
        Path, typer.Option(help="Folder that keeps what was read, and from which it goes on.")
    ] = Path("runs/trigger"),
    reads: Annotated[bool, typer.Option("--read/--no-read", help="Read what --work lacks.")] = True,
    out: Annotated[Path, typer.Option(help="File for the rows.")] = Path("runs/trigger.jsonl"),
) -> None:
    """Find the signal that tells at which tokens a look pays.

    At every token of a continuation a look is tried and taken back. The table says which share of
    what all looks bring the tokens have that a signal ranks first: confidence, entropy, attention
    that cold entries draw, and triggers learned from them.
    """
    with for_people() as console:
        from agentkv_lab.trigger.measure import TriggerBench, run_bench

        run_bench(
            TriggerBench(
                settings=RunSettings.read(**given),
                train=train,
                test=test,
                num_train=train_samples,
                num_test=samples,
                reads=reads,
                seen=seen,
                num_tokens=tokens,
                entries=entries,
                threads=threads,
                work=work,
                out=out,
                command=this_command("python -m agentkv_lab"),
            ),
            console,
        )


@lab.command()
def picture(
    out: Annotated[Path, typer.Option(help="File of the picture.")] = Path("docs/success.svg"),
) -> None:
    """Draw tasks solved over the bytes of the cache, from committed rows."""
    from agentkv_lab.picture import picture as drawn

    out.write_text(drawn(), encoding="utf-8")


@lab.command()
def lengths(
    out: Annotated[Path, typer.Option(help="File of the picture.")] = Path("docs/lengths.svg"),
) -> None:
    """Draw the README's picture: tasks solved over the tokens seen, from committed rows."""
    from agentkv_lab.lengths import picture as drawn

    out.write_text(drawn(), encoding="utf-8")


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
