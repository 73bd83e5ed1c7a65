"""Options of the command line: their help texts, and how their values are parsed and refused."""

import contextlib
import os
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import urlsplit

import typer
from rich.console import Console

from agentkv.defaults import POLICY
from agentkv.files import read_private
from agentkv.terminal import Terminal, plain
from agentkv_env.hosts import AllowList, is_web_address
from agentkv_env.masking import Secrets
from agentkv_env.named_secrets import Secret, is_name

if TYPE_CHECKING:
    from agentkv_env import page_dialogs

_OURS = ("agentkv", "agentkv_env", "agentkv_kernels", "agentkv_tasks")

BENCH_BUDGET = "512"

_LONGEST_S = 366 * 24 * 3600.0

Suite = Annotated[
    str,
    typer.Option(
        help="Suite (see `agentkv tasks`), JSON file in VisualWebArena's schema, TOML file of "
        "sites and tasks of your own (see `agentkv tasks new`), or VisualWebArena's own tasks "
        "(`vwa75-live:FILE`)."
    ),
]
Policies = Annotated[
    str | None,
    typer.Option(
        help=f"Cache policies, separated by commas. [default: full, int4 and {POLICY}; for "
        "scripts full]"
    ),
]
Model = Annotated[
    str, typer.Option(help="nano, a folder, a hub id, or a script: solution, stop or random.")
]
Seeds = Annotated[
    str, typer.Option(help="Seeds, separated by commas; each task runs once per seed.")
]
World = Annotated[int, typer.Option(min=0, help="Seed of the embedded world.")]
Budget = Annotated[
    str,
    typer.Option(
        help="Budget of policies without their own: tokens per layer and KV head, a share of the "
        "tokens seen (25%), or bytes (64MiB)."
    ),
]
RunBudget = Annotated[
    str | None,
    typer.Option(
        help="Budget of policies without their own: tokens per layer and KV head, a share of the "
        "tokens seen (25%), or bytes (64MiB). [default: '25%, at least 1024'; for nano 3.1MiB]"
    ),
]
Chunk = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Tokens of a page read at once. The cache's peak is this many entries above the "
        "budget. [default: 512; for nano 32]",
    ),
]
Limit = Annotated[int | None, typer.Option(min=1, help="Number of tasks to run, from the first.")]
Workers = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Episodes at a time, each with its own browser. One process holds the model and "
        "decodes all of them in one batch. With --executor ray, every node of the cluster plays "
        "this many, or every GPU of a node. [default: 2; on a single core 1]",
    ),
]
Executor = Annotated[
    str,
    typer.Option(
        help="local: this machine plays all episodes; ray: the nodes of a Ray cluster share them. "
        "Rows, traces and report stay here."
    ),
]
RayAddress = Annotated[
    str | None,
    typer.Option(
        help="Ray cluster for --executor ray, as host:port; auto: the one that runs on this "
        "machine. [default: the variable RAY_ADDRESS, or auto]"
    ),
]
Out = Annotated[
    Path | None, typer.Option(help="Folder for rows, traces and report. [default: below runs/]")
]
Fresh = Annotated[
    bool, typer.Option("--fresh/--resume", help="Start over, or continue the run in --out.")
]
Retry = Annotated[
    bool,
    typer.Option(
        help="Repeat episodes of --out that the harness ended, such as a crash or a timeout."
    ),
]
Retries = Annotated[
    int,
    typer.Option(
        min=0,
        help="How often an episode is played again that ended in a crash or a lost "
        "browser, page or site.",
    ),
]
PlaywrightTraces = Annotated[
    bool,
    typer.Option(
        "--playwright-traces",
        help="Keep Playwright's own trace of every episode, for `playwright show-trace`. It holds "
        "whatever was loaded and typed, so a run with accounts or secrets refuses it.",
    ),
]
Checkpoint = Annotated[
    float,
    typer.Option(
        "--checkpoint",
        min=0,
        metavar="SECONDS",
        help="Save the cache of each episode on embedded sites this often, so that an interrupted "
        "episode resumes where it stopped. 0: after every step.",
    ),
]
AllowUnreset = Annotated[
    bool,
    typer.Option(
        "--allow-unreset",
        help="Play each task several times although nothing resets a site in between, so that "
        "later policies find what earlier ones left. Every table then carries a warning.",
    ),
]
Decoding = Annotated[
    str, typer.Option(help="constrained: only actions that the page allows; free: any text.")
]
Deterministic = Annotated[
    bool,
    typer.Option(
        "--deterministic/--shared",
        help="Decode every reply in its own forwards, so that equal runs write equal rows; without "
        "it, equal seeds may give other episodes. Slower.",
    ),
]
Temperature = Annotated[
    float, typer.Option(min=0.0, help="0 takes the most probable token; 0.001 or more samples.")
]
Steps = Annotated[
    int | None,
    typer.Option(min=1, help="Maximum actions per episode. [default: the task's limit, 30 or 100]"),
]
ReplyTokens = Annotated[int, typer.Option(min=8, help="Maximum tokens per reply.")]
Thinking = Annotated[
    int,
    typer.Option(
        min=0, help="Maximum tokens of a thought before each reply, for models that think."
    ),
]
PageTokens = Annotated[
    int, typer.Option(min=64, help="Maximum tokens of a page that the model reads.")
]
Observations = Annotated[
    str,
    typer.Option(
        help="whole: every page in full; changes: only what changed since the last visit."
    ),
]
Pins = Annotated[
    bool,
    typer.Option(
        "--pins/--no-pins",
        help="Keep the goal in the cache under every policy, or let the policy decide.",
    ),
]
Timeout = Annotated[float, typer.Option(min=1, help="Maximum seconds per episode.")]
StepTimeout = Annotated[
    float, typer.Option(min=1, help="Seconds without a step after which the worker is killed.")
]
Scoring = Annotated[
    str, typer.Option(help="compat: as VisualWebArena scores; mended: with its known flaws fixed.")
]
Judge = Annotated[
    str | None,
    typer.Option(
        help="Address of a chat model that scores what texts cannot decide, such as "
        "http://127.0.0.1:8000/v1. Its key, if it has one, is in AGENTKV_JUDGE_KEY."
    ),
]
JudgeModel = Annotated[str | None, typer.Option(help="Name of the model at --judge.")]
Strict = Annotated[
    bool,
    typer.Option(
        "--strict/--lenient", help="Parse actions exactly as VisualWebArena does, or tolerantly."
    ),
]
Ocr = Annotated[bool, typer.Option(help="Read text in images.")]
Screenshots = Annotated[bool, typer.Option(help="Keep a screenshot of every page.")]
Profile = Annotated[
    bool,
    typer.Option("--profile", help="Measure where the time of episodes goes, part by part."),
]
Sites = Annotated[
    list[str] | None,
    typer.Option(
        help="Address of a site that runs elsewhere: SHOPPING=http://host:7770. Repeatable."
    ),
]
Config = Annotated[
    Path | None,
    typer.Option(help="TOML file with settings; it can also give policies their parameters."),
]
Runs = Annotated[
    list[Path],
    typer.Argument(help="Folder (--out) of a run; several folders are pooled.", metavar="DIR"),
]
Markdown = Annotated[
    bool,
    typer.Option("--markdown", help="Print the table as Markdown instead of writing a report."),
]
Against = Annotated[
    str | None,
    typer.Option(
        help="Baselines of the paired comparison, separated by commas. [default: full,window]"
    ),
]
ReportOut = Annotated[
    Path | None,
    typer.Option(help="Folder for the report of several runs. [default: beside the first run]"),
]
NamedSecret = Annotated[
    list[str] | None,
    typer.Option(
        "--secret",
        help="Secret that the agent types as <secret:NAME> and never sees: NAME=env:VARIABLE or "
        "NAME=file:PATH; NAME@HOST=... names the only host that gets it. Repeatable.",
    ),
]
Dialogs = Annotated[
    str,
    typer.Option(
        help="What answers a page's confirm, prompt and warning before it is left: ask: the "
        "agent; accept or dismiss: always the same button."
    ),
]
Device = Annotated[str, typer.Option(help="auto, cpu, mps, cuda or cuda:1.")]
Browser = Annotated[
    Path | None,
    typer.Option(help="Chromium executable. [default: the one that `agentkv doctor` finds]"),
]


class OptionError(ValueError):
    """An unusable option value; the message names usable ones."""


@contextlib.contextmanager
def for_people(interrupted: str = "interrupted") -> Iterator[Console]:
    """Turn agentkv's own errors into one line on stderr and an exit code, without a traceback.

    `interrupted` is printed after Ctrl-C, unless the interrupted work says something itself.

    Exit codes: 2 for a mistake that the user can correct (an option, a file, a missing browser or
    package), 1 for a run that broke off, 130 for an interrupt. Any other exception is a bug and
    keeps its traceback.
    """
    try:
        yield Terminal()
    except BrokenPipeError:
        raise  # the reader of our output has closed it; click exits quietly
    except OSError as error:
        # The system refused a path that the user gave: no permission, no folder, too long.
        if error.filename is None or error.strerror is None:
            raise
        _fail(f"{error.strerror}: {str(error.filename)[:300]}", 2)
    except (ValueError, RuntimeError, ImportError) as error:
        if type(error).__module__.partition(".")[0] not in _OURS:
            raise
        is_to_mend = not isinstance(error, RuntimeError) or type(error).__name__ == "BrowserMissing"
        _fail(str(error), 2 if is_to_mend else 1)
    except KeyboardInterrupt as error:
        _fail(str(error) or interrupted, 130)


_LONGEST = 1500
"""Characters of an error message that are printed."""


def _fail(message: str, code: int) -> None:
    print(f"agentkv: {_one_line(Secrets().mask(message))}", file=sys.stderr)
    raise typer.Exit(code) from None


def _one_line(message: str) -> str:
    """Return the message on one line, without control characters that a quoted file or page may
    hold."""
    line = plain(" ".join(message.split()))
    return line if len(line) <= _LONGEST else f"{line[:_LONGEST]} ..."


def require_text(arguments: Sequence[str]) -> None:
    """Refuse arguments that cannot be text: zero bytes, or bytes that are not UTF-8."""
    for argument in arguments:
        if argument.isprintable() and argument.isascii():
            continue
        from agentkv.config import is_text  # takes 0.2 s, which help need not wait for

        if not is_text(argument):
            raise typer.BadParameter(f"{argument!r} holds a zero byte, or bytes that are not UTF-8")


def note(line: str) -> None:
    """Print a line on stderr that a user should know before work starts; nothing if it is empty."""
    if line:
        print(f"agentkv: note: {_one_line(line)}", file=sys.stderr)


def exclude(given: dict[str, bool]) -> None:
    """Refuse options of which at most one may be given, by whether each is."""
    if sum(given.values()) > 1:
        raise OptionError(f"{' and '.join(given)} exclude one another; give one of them")


def require(option: str, value: str, known: tuple[str, ...]) -> None:
    """Refuse a value that is not one of `known`."""
    if value not in known:
        raise OptionError(f"{option} {value!r} is unknown; known: {', '.join(known)}")


def require_seconds(option: str, value: float) -> None:
    """Refuse a duration that is not positive or exceeds a year."""
    if not 0 < value <= _LONGEST_S:  # typer's own `min` lets "nan" pass
        raise OptionError(
            f"{option} {value:g}: expected a positive number of seconds, at most a year"
        )


def split(option: str, text: str) -> list[str]:
    """Split names separated by commas."""
    names = [name.strip() for name in text.split(",")]
    if not all(names):
        raise OptionError(f"{option} {text!r} holds an empty name; separate names by single commas")
    return names


def read_hosts(option: str, text: str) -> list[str]:
    """Parse hosts separated by commas."""
    try:
        return list(AllowList(split(option, text)).hosts)
    except OptionError:
        raise
    except ValueError as error:
        raise OptionError(f"{option}: {error}") from error


def read_dialogs(text: str) -> "page_dialogs.Dialogs":
    """Parse --dialogs."""
    from agentkv_env.page_dialogs import DIALOGS  # imports Playwright, which help need not wait for

    require("--dialogs", text, DIALOGS)
    return next(each for each in DIALOGS if each == text)


def read_secrets(given: Sequence[str], hosts: Sequence[str]) -> dict[str, Secret]:
    """Parse --secret values: NAME=env:VARIABLE or NAME@HOST=file:PATH; no value stands in them.

    Args:
        hosts: if it has one, it is the host of each secret that names none.

    Raises:
        OptionError: an entry has another form, a variable is not set, or a value is blank.
        PrivateFileError: a ValueError; a file cannot be read, or others may read it.
    """
    found = {}
    for entry in given:
        parts = re.fullmatch(r"([^@=]+)(?:@([^@=]+))?=(env|file):(.+)", entry)
        if parts is None or not is_name(parts[1]):
            # what was typed may be a secret
            raise OptionError(
                "--secret: expected NAME=env:VARIABLE or NAME=file:PATH, such as "
                "--secret shop=env:SHOP_PASSWORD"
            )
        name, host, kind, place = parts.groups()
        if host is None and len(hosts) != 1:
            raise OptionError(
                f"--secret {name}: say on which host it may be typed, as in "
                f"{name}@shop.example={kind}:..."
            )
        if kind == "env":
            value = os.environ.get(place, "")
        else:
            value = read_private(Path(place), most_bytes=_MAX_SECRET_BYTES).rstrip("\r\n")
        if not value.strip():
            source = f"the environment variable {place}" if kind == "env" else place
            raise OptionError(f"--secret {name}: {source} is not set or empty")
        try:
            found[name] = Secret(value, [host or hosts[0]])
        except ValueError as error:
            raise OptionError(f"--secret {name}: {error}") from None
    return found


_MAX_SECRET_BYTES = 4096


def host_of_page(url: str) -> list[str]:
    """Return the host of a web page with its port; none of another address."""
    return [urlsplit(url).netloc.rpartition("@")[2]] if is_web_address(url) else []


def read_numbers(option: str, text: str) -> tuple[int, ...]:
    """Parse whole numbers separated by commas; repeated numbers count once."""
    numbers = [part.strip() for part in text.split(",")]
    if not all(re.fullmatch(r"[+-]?[0-9]{1,18}", number) for number in numbers):
        raise OptionError(f"{option} {text[:80]!r}: expected whole numbers, separated by commas")
    return tuple(dict.fromkeys(int(number) for number in numbers))


def read_budget(text: str | None) -> int | str | None:
    """Return digits as a number of tokens and any other text as it is."""
    if text is None:
        return None
    return int(text) if re.fullmatch("[0-9]{1,18}", text) else text


def sites_elsewhere(given: list[str]) -> dict[str, str]:
    """Parse --site values: placeholder to origin."""
    sites = {}
    for entry in given:
        name, _, url = entry.partition("=")
        is_plain = re.fullmatch(r"[^\s\"\\<>]+", url)
        if not re.fullmatch("[A-Za-z]+", name) or not is_plain or not is_web_address(url):
            raise OptionError(f"--site {entry!r}: expected NAME=http://host, such as SHOPPING=...")
        sites[f"__{name.upper()}__"] = url.rstrip("/")
    return sites


def typed_only(given: dict[str, Any], context: typer.Context) -> dict[str, Any]:
    """Return the options that the user typed. Defaults of options must not override a settings
    file."""
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
    """Return the folder of a run that was given no --out."""
    suffix = "" if model == "nano" else "-" + Path(model).name
    return Path("runs") / f"{Path(tasks).stem}-{world_seed}{suffix}"


def bench_out(what: str, world_seed: int, model: str) -> Path:
    """Return the file of a measurement that was given no --out."""
    suffix = "" if model == "nano" else "-" + Path(model).name
    return Path("runs") / f"{what}-{world_seed}{suffix}.jsonl"
