"""The command line of `agentkv bench`; commands import what they need when they run."""

import inspect
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple

import typer

from agentkv import options

if TYPE_CHECKING:
    from rich.console import Console

    from agentkv_tasks.bench.samples.measure import SampleBench

bench = typer.Typer(
    help="Measure a cache by itself, without tasks.", no_args_is_help=True, rich_markup_mode=None
)

Policies = Annotated[
    str,
    typer.Option(help="Cache policies, or TOML files that compose them, separated by commas."),
]
Model = Annotated[str, typer.Option(help="nano, a folder or a hub id.")]
Shape = Annotated[
    str | None,
    typer.Option(help="Random weights instead: tiny, gpt2, qwen3-14b, gpt-oss-20b and others."),
]
Layers = Annotated[int | None, typer.Option(help="Layers of the shape. [default: as many as fit]")]
Against = Annotated[
    str,
    typer.Option(
        help="Further contenders: static, quantized (fp8, and quanto and HQQ in 4 and 8 bits), "
        "kvpress, llama.cpp; or single ones of these by their labels, such as 'hqq int4'."
    ),
]
Threads = Annotated[int | None, typer.Option(min=1, help="Threads of torch.")]
Dtype = Annotated[str, typer.Option(help="auto, float32, bfloat16 or float16.")]
CacheDtype = Annotated[
    str,
    typer.Option(
        help="How agentkv stores entries that are not quantized: model (as it computes), auto (16 "
        "bits), float32, bfloat16 or float16."
    ),
]
Sweep = Annotated[
    list[str] | None,
    typer.Option(
        help="Parameter and values: threshold=0.5,0.9 adds a variation of each policy that has "
        "the parameter, at every value. Repeatable."
    ),
]
Entries = Annotated[
    int, typer.Option(min=1, help="Entries of the window whose bytes all budgets have.")
]
MatchedBytes = Annotated[
    Literal["budget", "mean"],
    typer.Option(
        help="budget: equal budgets; mean: budgets at which the caches have equal bytes in the "
        "mean, within 2 %."
    ),
]
SeenBefore = Annotated[
    str | None,
    typer.Option(help="Tokens read before, by commas. [default: 2048,8192; with --quick 1024]"),
]
ContinuationTokens = Annotated[int, typer.Option(min=1, help="Most tokens of a continuation.")]
Samples = Annotated[
    int | None, typer.Option(min=1, help="Continuations. [default: 32; with --quick 6]")
]
SamplesQuick = Annotated[
    bool,
    typer.Option("--quick", help="Small sizes: 6 continuations after 1,024 tokens."),
]
TextFile = Annotated[Path | None, typer.Option(help="Text file instead of the world.")]
Offset = Annotated[
    int, typer.Option(min=0, help="Tokens of the --text to skip, such as those used to tune.")
]
ReadAtOnce = Annotated[int, typer.Option(min=1, help="Tokens read at once.")]
FreshOrResume = Annotated[
    bool, typer.Option("--fresh/--resume", help="Overwrite --out, or continue it.")
]
OutFile = Annotated[Path | None, typer.Option(help="File for the rows. [default: below runs/]")]
Overwrite = Annotated[bool, typer.Option("--fresh", help="Overwrite --out.")]


class _NeedleSizes(NamedTuple):
    lengths: str
    depths: str
    needles: int


_NEEDLE_SIZES = _NeedleSizes("1024,2048,4096,8192,16384", "0,25,50,75,100", 20)
_QUICK_NEEDLE_SIZES = _NeedleSizes("1024,4096", "0,50,100", 3)


@bench.command()
def serve(
    policies: Policies = "full,int8,streaming-int8,lookback-int8",
    model: Model = "nano",
    budget: options.Budget = "1024",
    chunk: options.Chunk = None,
    turns: Annotated[int, typer.Option(min=1, help="Turns of the conversation.")] = 40,
    tokens: Annotated[int, typer.Option(min=1, help="Tokens of a message.")] = 256,
    reply: Annotated[int, typer.Option(min=1, help="Maximum tokens of a reply.")] = 16,
    rounds: Annotated[int, typer.Option(min=1, help="Conversations with each contender.")] = 3,
    threads: Threads = None,
    world_seed: options.World = 75,
    text: TextFile = None,
    out: OutFile = None,
    fresh: Overwrite = False,
    device: options.Device = "auto",
    browser_path: options.Browser = None,
) -> None:
    """Measure the server over the turns of a conversation: time to the first token and bytes of the
    cache, against the same model with a prompt that is read again in each turn.
    """
    with options.for_people() as console:
        from agentkv.config import read_settings
        from agentkv_tasks.bench.serve.measure import ServeBench, run_bench

        given = {
            "model": model,
            "policies": tuple(options.split("--policies", policies)),
            "budget": options.read_budget(budget),
            "chunk": chunk,
            "world_seed": world_seed,
            "device": device,
            "browser_path": browser_path,
        }
        run_bench(
            ServeBench(
                settings=read_settings(**options.without_none(given)),
                num_turns=turns,
                num_new=tokens,
                num_reply=reply,
                num_rounds=rounds,
                threads=threads,
                text=text,
                command=shlex.join(["agentkv", *sys.argv[1:]]),
                out=out or options.bench_out("serve", world_seed, model),
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
    budget: options.Budget = options.BENCH_BUDGET,
    chunk: Annotated[int, typer.Option(min=1, help="Tokens of the prompt read at once.")] = 512,
    threads: Threads = None,
    dtype: Dtype = "auto",
    cache_dtype: CacheDtype = "model",
    device: options.Device = "auto",
    out: OutFile = None,
    fresh: FreshOrResume = False,
) -> None:
    """Measure decode latency under cache policies, relative to transformers' DynamicCache.

    Each cache is checked first, and nothing is timed if one is wrong. Then all caches decode the
    same tokens in interleaved rounds from the same state, and read a page from it with --page.
    Further rounds measure the parts of a step.

    llama.cpp reads the same weights and needs pip install 'agentkv-web[llama-cpp]'; quanto and HQQ
    need pip install optimum-quanto hqq. One line says why a contender is left out.

    The tokens are random, and a model is unsure of them. A policy that looks back on an alarm
    therefore looks at nearly every token; --policies lookback-int8,FILE.toml compares it with looks
    at another share (see "With looks" in docs/benchmarks.md).
    """
    with options.for_people() as console:
        from agentkv.config import read_settings
        from agentkv_tasks.bench.speed.measure import SpeedBench, run_bench

        settings = read_settings(
            model=model,
            policies=tuple(options.split("--policies", policies)),
            budget=options.read_budget(budget),
            chunk=chunk,
            dtype=dtype,
            cache_dtype=cache_dtype,
            device=device,
        )
        run_bench(
            SpeedBench(
                settings=settings,
                shape=shape,
                num_layers=layers,
                batches=options.read_numbers("--batches", batches),
                lengths=options.read_numbers(
                    "--seen", seen or ("512,2048" if quick else "512,2048,8192")
                ),
                num_tokens=tokens or (32 if quick else 64),
                num_rounds=rounds or (3 if quick else 5),
                num_page=page,
                num_split_rounds=(1 if quick else 3) if split_rounds is None else split_rounds,
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
    budget: options.Budget = options.BENCH_BUDGET,
    chunk: Annotated[int, typer.Option(min=1, help="Tokens of the prompt read at once.")] = 512,
    threads: Threads = None,
    dtype: Dtype = "auto",
    device: options.Device = "auto",
    out: OutFile = None,
    fresh: Overwrite = False,
) -> None:
    """Measure the peak memory of a whole process under each policy.

    Each cache is checked first. Then every policy and length, and transformers' DynamicCache, gets
    its own process, which reads a prompt, decodes and reports its peak resident memory.

    A process of llama.cpp reads the same weights from a file and imports neither torch nor
    transformers. What the other libraries need is in the help of bench speed.
    """
    with options.for_people() as console:
        from agentkv.config import read_settings
        from agentkv_tasks.bench.memory.measure import MemoryBench, run_bench

        settings = read_settings(
            model=model,
            policies=tuple(options.split("--policies", policies)),
            budget=options.read_budget(budget),
            chunk=chunk,
            dtype=dtype,
            cache_dtype="model",  # as the caches of other libraries
            device=device,
        )
        run_bench(
            MemoryBench(
                settings=settings,
                shape=shape,
                num_layers=layers,
                lengths=options.read_numbers(
                    "--seen", seen or ("512,4096" if quick else "2048,32768")
                ),
                num_decoded=tokens or (8 if quick else 64),
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
    policies: Policies = "full,window,conf-kv-int8,lookback-int8",
    model: Model = "nano",
    kind: Annotated[
        Literal["one", "several", "chain"],
        typer.Option(
            help="one: the code of a name; several: the codes of --asked of --facts names; chain: "
            "a code behind --hops names that refer to each other."
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
    entries: Annotated[
        int | None,
        typer.Option(
            min=1, help="Entries of the window whose bytes all budgets have. [default: 512]"
        ),
    ] = None,
    budget: Annotated[
        str | None,
        typer.Option(
            help="Budget instead of --entries: tokens per layer and KV head, a share of the tokens "
            "seen (25%), or bytes (64MiB)."
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the pages, 0 to 999999.")] = 0,
    against: Annotated[
        str | None,
        typer.Option(help="Policy to compare with. [default: the first of --policies]"),
    ] = None,
    decoding: options.Decoding = "constrained",
    pins: options.Pins = True,
    chunk: Annotated[int, typer.Option(min=1, help="Tokens of the page read at once.")] = 512,
    threads: Threads = None,
    dtype: Dtype = "auto",
    device: options.Device = "auto",
    out: OutFile = None,
    fresh: FreshOrResume = False,
) -> None:
    """Count how often a model finds facts in a long page, by length and depth.

    The page consists of names and facts like those of the sites. One line holds the code of a name,
    and a few lines hold codes of other names. The goal, or the page's last line, asks for the code,
    and the answer must be exactly that code, or with --kind several exactly those codes, in any
    order. A model with a chat template of its own answers in words, and exactly these codes must be
    in them. Policies with a budget get the bytes of a window of --entries.
    """
    with options.for_people() as console:
        from agentkv.config import read_settings
        from agentkv_tasks.bench.needle.kinds import make_kind
        from agentkv_tasks.bench.needle.measure import NeedleBench, reply_tokens, run_bench

        if entries is not None and budget is not None:
            raise options.OptionError("give --entries or --budget; both set the budget")
        sizes = _QUICK_NEEDLE_SIZES if quick else _NEEDLE_SIZES
        hidden = make_kind(kind, facts=facts, asked=asked, hops=hops)
        settings = read_settings(
            model=model,
            policies=tuple(options.split("--policies", policies)),
            budget=options.read_budget(budget),
            decoding=decoding,
            pins=pins,
            chunk=chunk,
            dtype=dtype,
            device=device,
            max_new_tokens=reply_tokens(hidden),
            observation_tokens=None,
        )
        name = "needle" if kind == "one" else f"needle-{kind}"
        run_bench(
            NeedleBench(
                settings=settings,
                entries=entries or (512 if budget is None else None),
                kind=hidden,
                lengths=options.read_numbers(
                    "--lengths", sizes.lengths if lengths is None else lengths
                ),
                depths=options.read_numbers("--depths", sizes.depths if depths is None else depths),
                questions=("before", "after") if question == "both" else (question,),
                num_needles=needles or sizes.needles,
                seed=seed,
                against=against or settings.policies[0].row_name,
                threads=threads,
                command=shlex.join(["agentkv", *sys.argv[1:]]),
                out=out or options.bench_out(name, seed, model),
                fresh=fresh,
            ),
            console,
        )


def _samples_command(
    name: str, policies_by_default: str, measure: "Callable[[SampleBench, Console], object]"
) -> None:
    """Add a benchmark of samples, with the options that all of them have.

    Args:
        measure: runs the benchmark; its docstring is the help text.
    """

    @bench.command(name, help=inspect.getdoc(measure))
    def command(
        policies: Policies = policies_by_default,
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
        with options.for_people() as console:
            from agentkv.config import read_settings
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
            measure(
                SampleBench(
                    settings=settings.model_copy(update={"policies": varied}),
                    lengths=options.read_numbers(
                        "--seen", seen or ("1024" if quick else "2048,8192")
                    ),
                    num_tokens=tokens,
                    num_samples=samples or (6 if quick else 32),
                    entries=entries,
                    match=match,
                    text=text,
                    offset=offset,
                    threads=threads,
                    command=shlex.join(["agentkv", *sys.argv[1:]]),
                    out=out or options.bench_out(name, world_seed, model),
                    fresh=fresh,
                ),
                console,
            )


def _ppl(samples: "SampleBench", console: "Console") -> None:
    """Measure the perplexity of continuations at equal bytes.

    Policies with a budget get the bytes of a window of --entries. The table says which share of the
    gap between that window and a full cache each of them closes. The continuations are replies of
    the solutions of vwa75 in the embedded world, or the ends of parts of a text file, which are
    spread over all of it and do not overlap. They are the same at all lengths.
    """
    from agentkv_tasks.bench.ppl.measure import run_bench

    run_bench(samples, console)


_samples_command("ppl", "full,window,streaming-int8,conf-kv-int8,lookback-int8,int4", _ppl)
