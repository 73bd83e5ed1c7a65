"""Options of the command line: derived from settings, parsed, and refused in one line."""

import contextlib
import functools
import inspect
import os
import re
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin
from urllib.parse import urlsplit

import typer
from pydantic.fields import FieldInfo
from rich.console import Console

from agentkv.files import read_private
from agentkv.settings import Flag, Settings, is_text
from agentkv.terminal import Terminal, one_line
from agentkv_env.hosts import AllowList, is_web_address
from agentkv_env.masking import Secrets
from agentkv_env.named_secrets import Secret, is_name
from agentkv_tasks.settings import RunSettings, default_out

_OURS = ("agentkv", "agentkv_env", "agentkv_kernels", "agentkv_tasks")

NamedSecret = Annotated[
    list[str] | None,
    typer.Option(
        "--secret",
        help="Secret that the agent types as <secret:NAME> and never sees: NAME=env:VARIABLE or "
        "NAME=file:PATH; NAME@HOST=... names the only host that gets it. Repeatable.",
    ),
]
Dialogs = Annotated[
    Literal["ask", "accept", "dismiss"],
    typer.Option(
        help="What answers a page's confirm, prompt and warning before it is left: ask: the "
        "agent; accept or dismiss: always the same button."
    ),
]

Command = Callable[..., None]


def takes(schema: type[Settings], *names: str, **defaults: Any) -> Callable[[Command], Command]:
    """Give a command an option for each setting, with the name, help and limits of its declaration.

    The command's first argument receives what the user typed, and `defaults`, by the names of the
    settings. A setting that the command has a parameter for gets no option.

    Args:
        names: settings; none stands for all of `schema`.
        defaults: what the command takes instead of a setting's own default.
    """

    def decorate(command: Command) -> Command:
        _, *own = inspect.signature(command, eval_str=True).parameters.values()
        declared = {parameter.name for parameter in own}
        chosen = [name for name in names or _own_first(schema) if name not in declared]
        options = [_parameter(schema.model_fields[n], n, defaults.get(n)) for n in chosen]
        required = [each for each in own if each.default is inspect.Parameter.empty]
        parameters = [
            each.replace(kind=inspect.Parameter.KEYWORD_ONLY)
            for each in (*required, *options, *(each for each in own if each not in required))
        ]

        @functools.wraps(command)
        def call(**values: Any) -> None:
            with for_people():
                typed = {n: _parsed(schema.model_fields[n], n, values.pop(n)) for n in chosen}
            given = {name: value for name, value in typed.items() if value is not None}
            command({**defaults, **given}, **values)

        call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        call.__annotations__ = {each.name: each.annotation for each in parameters}
        del call.__wrapped__  # typer would read its signature
        return call

    return decorate


def _own_first(schema: type[Settings]) -> list[str]:
    """Return the settings of `schema`, those that it inherits last."""
    own = [name for name in schema.__annotations__ if name in schema.model_fields]
    return [*own, *(name for name in schema.model_fields if name not in own)]


def _parameter(field: FieldInfo, name: str, default: Any) -> inspect.Parameter:
    """Return the parameter of a command that stands for a setting; None: the user left it out.

    Texts go to the setting as they are, which checks them.
    """
    kinds, option = _kinds(field), f"--{name.removesuffix('_s').replace('_', '-')}"
    kind: Any = str
    metavar: str | None = (
        f"<{'|'.join(getattr(each, '__name__', 'str') for each in kinds)}>".lower()
    )
    if bool in kinds:
        flags = [each.options for each in field.metadata if isinstance(each, Flag)]
        kind, metavar = bool, None
        option = flags[0] if flags else f"{option}/--no-{option.removeprefix('--')}"
    elif _origin(kinds) is dict:
        kind, metavar, option = list[str], "<name=value>", option.removesuffix("s")
    elif _origin(kinds) is tuple:
        kind, metavar = list[str], "<str,...>"
    elif _origin(kinds) is Literal:
        metavar = f"<{'|'.join(get_args(kinds[0]))}>"
    elif kinds == (str,):
        metavar = "<text>"
    return inspect.Parameter(
        name,
        inspect.Parameter.KEYWORD_ONLY,
        default=None,
        annotation=Annotated[
            kind | None, typer.Option(option, help=_help(field, default), metavar=metavar)
        ],
    )


def _kinds(field: FieldInfo) -> tuple[Any, ...]:
    """Return the types of a setting's values, None apart."""
    if get_origin(field.annotation) in (Union, UnionType):
        return tuple(kind for kind in get_args(field.annotation) if kind is not NoneType)
    return (field.annotation,)


def _origin(kinds: tuple[Any, ...]) -> Any:
    return get_origin(kinds[0])


def _help(field: FieldInfo, default: Any) -> str:
    """Return a setting's docstring as help, with its default."""
    text = " ".join((field.description or "").split()).replace("`", "")
    if _origin(_kinds(field)) is tuple:
        text += " Separated by commas."
    if _origin(_kinds(field)) is dict:
        text += " Repeatable."
    if default is not None:
        text = re.sub(r" ?The default is .*", "", text)
    elif "The default is" not in text and field.default_factory is None:
        default = field.default
    shown = _shown(default)
    return f"{text} [default: {shown}]" if shown else text


def _shown(default: Any) -> str:
    match default:
        case None | () | {}:
            return ""
        case bool():
            return "yes" if default else "no"
        case tuple():
            return ",".join(getattr(each, "name", str(each)) for each in default)
        case float():
            return f"{default:g}"
    return str(default)


def _parsed(field: FieldInfo, name: str, value: Any) -> Any:
    """Return an option's value as the setting takes it."""
    kinds = _kinds(field)
    if value is None or value == []:
        return None
    if _origin(kinds) is dict:
        pairs = [entry.partition("=")[::2] for entry in value]
        if not all(key and text for key, text in pairs):
            raise OptionError(
                f"--{name.removesuffix('s')} {' '.join(value)!r}: expected NAME=VALUE"
            )
        return dict(pairs)
    if _origin(kinds) is tuple:
        return tuple(part for text in value for part in split(f"--{name.replace('_', '-')}", text))
    if int in kinds and isinstance(value, str) and re.fullmatch("[0-9]{1,18}", value):
        return int(value)
    return value


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


def _fail(message: str, code: int) -> None:
    print(f"agentkv: {one_line(Secrets().mask(message))}", file=sys.stderr)
    raise typer.Exit(code) from None


def require_text(arguments: Sequence[str]) -> None:
    """Refuse arguments that cannot be text: zero bytes, or bytes that are not UTF-8."""
    for argument in arguments:
        if argument.isprintable() and argument.isascii():
            continue
        if not is_text(argument):
            raise typer.BadParameter(f"{argument!r} holds a zero byte, or bytes that are not UTF-8")


def exclude(given: dict[str, bool]) -> None:
    """Refuse options of which at most one may be given, by whether each is."""
    if sum(given.values()) > 1:
        raise OptionError(f"{' and '.join(given)} exclude one another; give one of them")


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


def this_command(program: str = "agentkv") -> str:
    """Return the command that runs, as rows record it."""
    return shlex.join([*program.split(), *sys.argv[1:]])


def results_file(what: str, settings: RunSettings, seed: int | None = None) -> Path:
    """Return the file of a measurement that was given no --out."""
    number = settings.world_seed if seed is None else seed
    return Path(f"{default_out(what, number, settings.model)}.jsonl")
