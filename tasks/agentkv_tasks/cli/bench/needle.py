"""`agentkv bench needle`."""

from typing import Annotated, Any, Literal, NamedTuple

import typer

from agentkv.defaults import POLICY
from agentkv.settings import PoliciesSettings
from agentkv_tasks.cli.bench.options import Entries, Out, Resumable, Threads, window_entries
from agentkv_tasks.cli.options import (
    for_people,
    read_numbers,
    results_file,
    takes,
    this_command,
)
from agentkv_tasks.settings import RunSettings


class _NeedleSizes(NamedTuple):
    lengths: str
    depths: str
    needles: int


_NEEDLE_SIZES = _NeedleSizes("1024,2048,4096,8192,16384", "0,25,50,75,100", 20)
_QUICK_NEEDLE_SIZES = _NeedleSizes("1024,2048", "0,50,100", 3)


@takes(
    RunSettings,
    *PoliciesSettings.model_fields,
    "decoding",
    "pins",
    policies=("full", "window", "conf-kv-int8", POLICY),
    chunk=512,
)
def needle(
    given: dict[str, Any],
    kind: Annotated[
        Literal["one", "several", "chain"],
        typer.Option(
            help="one: the code of a name; several: the codes of --asked of --facts names; chain: "
            "the code to which --hops lines lead, each of which refers to another name."
        ),
    ] = "one",
    facts: Annotated[
        int | None, typer.Option(help="Names with a code on the page, for several. [default: 8]")
    ] = None,
    asked: Annotated[
        int | None, typer.Option(help="Names that are asked for, for several. [default: 2]")
    ] = None,
    hops: Annotated[
        int | None,
        typer.Option(help="Lines that refer to another name, for chain. [default: 2]"),
    ] = None,
    question: Annotated[
        Literal["before", "after", "both"],
        typer.Option(help="before: in the goal; after: on the last line of the page."),
    ] = "before",
    lengths: Annotated[
        str | None,
        typer.Option(
            help="Tokens of goal and page, separated by commas. [default: "
            f"{_NEEDLE_SIZES.lengths}; with --quick {_QUICK_NEEDLE_SIZES.lengths}]"
        ),
    ] = None,
    depths: Annotated[
        str | None,
        typer.Option(
            help="Positions of the line in % of the page, separated by commas; of several lines, "
            f"the first one. [default: {_NEEDLE_SIZES.depths}; with --quick "
            f"{_QUICK_NEEDLE_SIZES.depths}]"
        ),
    ] = None,
    needles: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Needles of each question, length and depth. [default: "
            f"{_NEEDLE_SIZES.needles}; with --quick {_QUICK_NEEDLE_SIZES.needles}]",
        ),
    ] = None,
    quick: Annotated[
        bool,
        typer.Option(
            "--quick",
            help="Fewer lengths, depths and needles, where none are given: under three minutes "
            "with the default policies and nano on two CPU cores.",
        ),
    ] = False,
    entries: Entries = None,
    seed: Annotated[int, typer.Option(help="Seed of the pages, 0 to 999999.")] = 0,
    against: Annotated[
        str | None,
        typer.Option(help="Policy to compare with. [default: the first of --policies]"),
    ] = None,
    threads: Threads = None,
    out: Out = None,
    fresh: Resumable = False,
) -> None:
    """Count how often a model finds facts in a long page, by length and depth.

    The page consists of names and facts like those of the sites. One line holds the code of a name,
    and a few lines hold codes of other names. The goal, or the page's last line, asks for the code,
    and the answer must be exactly that code, or with --kind several exactly those codes, in any
    order. A model with a chat template of its own answers in words, and exactly these codes must be
    in them. Policies with a budget get the bytes of a window of --entries.
    """
    with for_people() as console:
        from agentkv_tasks.bench.needle.kinds import make_kind
        from agentkv_tasks.bench.needle.measure import NeedleBench, reply_tokens, run_bench

        sizes = _QUICK_NEEDLE_SIZES if quick else _NEEDLE_SIZES
        hidden = make_kind(kind, facts=facts, asked=asked, hops=hops)
        settings = RunSettings.read(
            **given, max_new_tokens=reply_tokens(hidden), observation_tokens=None
        )
        name = "needle" if kind == "one" else f"needle-{kind}"
        run_bench(
            NeedleBench(
                settings=settings,
                entries=window_entries(given, entries),
                kind=hidden,
                lengths=read_numbers("--lengths", sizes.lengths if lengths is None else lengths),
                depths=read_numbers("--depths", sizes.depths if depths is None else depths),
                questions=("before", "after") if question == "both" else (question,),
                num_needles=needles or sizes.needles,
                seed=seed,
                against=against or settings.policies[0].row_name,
                threads=threads,
                command=this_command(),
                out=out or results_file(name, settings, seed),
                fresh=fresh,
            ),
            console,
        )
