"""What people may type after `agentkv`: options with their help; read, and refused in words."""

import contextlib
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from agentkv.masking import Secrets
from agentkv.terminal import Terminal, plain
from agentkv_env.hosts import is_web_address

_OURS = ("agentkv", "agentkv_env", "agentkv_kernels", "agentkv_tasks")

BENCH_BUDGET = "512"

_LONGEST_S = 366 * 24 * 3600.0

Suite = Annotated[
    str, typer.Option(help="A suite (see `agentkv tasks`), or JSON in VisualWebArena's schema.")
]
Policies = Annotated[
    str | None,
    typer.Option(
        help="Cache policies, by commas. [default: full, window and, for nano, conf-kv-l with the "
        "parameters of its profile, for other models conf-kv-int8; full alone for scripts]"
    ),
]
Model = Annotated[
    str, typer.Option(help="nano, a folder, a hub id, or a script: solution, stop, random.")
]
Seeds = Annotated[str, typer.Option(help="Seeds, by commas; each task once per seed.")]
World = Annotated[int, typer.Option(min=0, help="Which embedded world to use.")]
Budget = Annotated[
    str,
    typer.Option(
        help="What a cache may keep if its policy does not say: tokens per layer and KV head, a "
        "share of those seen (25%), or bytes (64MiB)."
    ),
]
RunBudget = Annotated[
    str | None,
    typer.Option(
        help="What a cache may keep if its policy does not say: tokens per layer and KV head, a "
        "share of those seen (25%), or bytes (64MiB). [default: 704 for nano; else '25%, at least "
        "1024']"
    ),
]
Chunk = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Tokens of a page that are read at once; the cache's peak is this many above the "
        "budget. [default: 32 for nano, else 512]",
    ),
]
Limit = Annotated[int | None, typer.Option(min=1, help="Only the first so many tasks.")]
Workers = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Episodes at a time, each with its browser; one process holds the model for all and "
        "decodes them in one batch. [default: 2, or 1 on a single core]",
    ),
]
Out = Annotated[
    Path | None, typer.Option(help="Folder for rows, traces, report. [default: below runs/]")
]
Fresh = Annotated[
    bool, typer.Option("--fresh/--resume", help="Begin anew, or go on where --out stands.")
]
Retry = Annotated[
    bool, typer.Option(help="Run crashes, timeouts and browser errors of --out again.")
]
Decoding = Annotated[
    str, typer.Option(help="constrained: only actions the page allows; free: whatever is written.")
]
Deterministic = Annotated[
    bool,
    typer.Option(
        "--deterministic/--shared",
        help="Decode every reply in separate forwards: equal runs write equal rows. Slower.",
    ),
]
Temperature = Annotated[
    float, typer.Option(min=0.0, help="0 takes the likeliest token; else 0.001 or more.")
]
Steps = Annotated[
    int | None,
    typer.Option(min=1, help="Actions per episode. [default: what its task allows: 30, or 100]"),
]
ReplyTokens = Annotated[int, typer.Option(min=8, help="Tokens per reply.")]
PageTokens = Annotated[int, typer.Option(min=64, help="Tokens of a page that are shown.")]
Observations = Annotated[
    str,
    typer.Option(
        help="whole: each page in full; changes: of a page that is looked at again, the lines that "
        "are new or changed."
    ),
]
Timeout = Annotated[float, typer.Option(min=1, help="Seconds an episode may take.")]
StepTimeout = Annotated[
    float, typer.Option(min=1, help="Seconds without a step until the worker is killed.")
]
Scoring = Annotated[
    str, typer.Option(help="compat: as VisualWebArena does; mended: its traps repaired.")
]
Strict = Annotated[
    bool, typer.Option("--strict/--lenient", help="Read actions as VisualWebArena, or kindly.")
]
Ocr = Annotated[bool, typer.Option(help="Read text inside images.")]
Screenshots = Annotated[bool, typer.Option(help="Keep a picture of every page.")]
Sites = Annotated[
    list[str] | None,
    typer.Option(help="A site that stands elsewhere: SHOPPING=http://host:7770. Repeatable."),
]
Config = Annotated[
    Path | None, typer.Option(help="TOML with the settings, also policies with parameters.")
]
Runs = Annotated[
    list[Path], typer.Argument(help="The --out of a run; several are pooled.", metavar="DIR")
]
Markdown = Annotated[
    bool, typer.Option("--markdown", help="Print the table as Markdown and write nothing.")
]
Against = Annotated[
    str | None,
    typer.Option(help="Policies to compare with in pairs, by commas. [default: full,window]"),
]
ReportOut = Annotated[
    Path | None,
    typer.Option(help="Folder for the report of several runs. [default: beside the first]"),
]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1 ...")]
Browser = Annotated[Path | None, typer.Option(help="A Chromium to use instead of the one found.")]


class OptionError(ValueError):
    """An option's value that cannot be used; the message says what can."""


@contextlib.contextmanager
def for_people() -> Iterator[Console]:
    """Our own errors become one line on stderr and an exit code, without a traceback.

    2: something to mend before the next try (an option, a file, a missing browser); 1: a run that
    broke off; 130: interrupted. Errors that are not ours are mistakes of ours and stay as they are.
    """
    try:
        yield Terminal()
    except BrokenPipeError:
        raise  # who reads our output has gone; click ends quietly
    except OSError as error:
        # A path that was given, and that the system refuses: missing rights, no folder, too long.
        if error.filename is None or error.strerror is None:
            raise
        _fail(f"{error.strerror}: {str(error.filename)[:300]}", 2)
    except (ValueError, RuntimeError) as error:
        if type(error).__module__.partition(".")[0] not in _OURS:
            raise
        is_to_mend = isinstance(error, ValueError) or type(error).__name__ == "BrowserMissing"
        _fail(str(error), 2 if is_to_mend else 1)
    except KeyboardInterrupt as error:
        _fail(str(error) or "interrupted; start the same command again to go on", 130)


_LONGEST = 1500
"""Characters of an error that somebody still reads."""


def _fail(message: str, code: int) -> None:
    print(f"agentkv: {_one_line(Secrets().mask(message))}", file=sys.stderr)
    raise typer.Exit(code) from None


def _one_line(message: str) -> str:
    """On one line, and without what would steer a terminal: it may quote a file or a page."""
    line = plain(" ".join(message.split()))
    return line if len(line) <= _LONGEST else f"{line[:_LONGEST]} ..."


def require_text(arguments: Sequence[str]) -> None:
    """Refuse what is typed and is no text: no name, no goal and no path of ours can be that."""
    for argument in arguments:
        if argument.isprintable() and argument.isascii():
            continue
        from agentkv.config import is_text  # a fifth of a second, which help need not wait for

        if not is_text(argument):
            raise typer.BadParameter(f"{argument!r} holds a zero byte, or bytes that are no UTF-8")


def require(option: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise OptionError(f"{option} {value!r} is unknown; known: {', '.join(known)}")


def require_seconds(option: str, value: float) -> None:
    if not 0 < value <= _LONGEST_S:  # typer's own `min` lets "nan" pass
        raise OptionError(f"{option} {value:g}: expected seconds, at most a year of them")


def split(option: str, text: str) -> list[str]:
    names = [name.strip() for name in text.split(",")]
    if not all(names):
        raise OptionError(f"{option} {text!r} has an empty name; give names by commas")
    return names


def read_numbers(option: str, text: str) -> tuple[int, ...]:
    numbers = [part.strip() for part in text.split(",")]
    if not all(re.fullmatch(r"[+-]?[0-9]{1,18}", number) for number in numbers):
        raise OptionError(f"{option} {text[:80]!r}: expected whole numbers by commas")
    return tuple(dict.fromkeys(int(number) for number in numbers))


def read_budget(text: str | None) -> int | str | None:
    """Return digits as a number of tokens and any other text as it is."""
    if text is None:
        return None
    return int(text) if re.fullmatch("[0-9]{1,18}", text) else text


def sites_elsewhere(given: list[str]) -> dict[str, str]:
    sites = {}
    for entry in given:
        name, _, url = entry.partition("=")
        is_plain = re.fullmatch(r"[^\s\"\\<>]+", url)
        if not re.fullmatch("[A-Za-z]+", name) or not is_plain or not is_web_address(url):
            raise OptionError(f"--site {entry!r}: expected NAME=http://host, such as SHOPPING=...")
        sites[f"__{name.upper()}__"] = url.rstrip("/")
    return sites


def typed_only(given: dict[str, Any], context: typer.Context) -> dict[str, Any]:
    """What was typed: beside a settings file, defaults of options must not override it."""
    options = {"timeout_s": "timeout"}
    sources = {name: context.get_parameter_source(options.get(name, name)) for name in given}
    return {
        name: value
        for name, value in given.items()
        if (source := sources[name]) is not None and source.name != "DEFAULT"
    }


def without_none(given: dict[str, Any]) -> dict[str, Any]:
    """Return the options that have a value; the settings' own defaults stand for the others."""
    return {name: value for name, value in given.items() if value is not None}


def default_out(tasks: str, world_seed: int, model: str) -> Path:
    suffix = "" if model == "nano" else "-" + Path(model).name
    return Path("runs") / f"{Path(tasks).stem}-{world_seed}{suffix}"


def bench_out(what: str, world_seed: int, model: str) -> Path:
    suffix = "" if model == "nano" else "-" + Path(model).name
    return Path("runs") / f"{what}-{world_seed}{suffix}.jsonl"
