"""Conversations of the Berkeley Function Calling Leaderboard (BFCL v4), from its package's wheel.

Those with several turns are read: a user asks, and the right answer is a list of function calls.
Nothing of the package is imported or run, so that there are no results of calls.
"""

import json
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentkv_tasks.bench.errors import BenchError

WHEEL = "pip download --no-deps bfcl-eval"
"""Command that fetches the wheel."""

_DATA = "bfcl_eval/data"
_QUESTIONS = "BFCL_v4_multi_turn_base.json"
_FUNCTIONS = {
    "GorillaFileSystem": "gorilla_file_system",
    "MathAPI": "math_api",
    "MessageAPI": "message_api",
    "TicketAPI": "ticket_api",
    "TradingBot": "trading_bot",
    "TravelAPI": "travel_booking",
    "TwitterAPI": "posting_api",
    "VehicleControlAPI": "vehicle_control",
}
"""File of the functions of each class."""
_BEFORE_DESCRIPTION = "Tool description: "


@dataclass(frozen=True, slots=True)
class Turn:
    """What a user asks, and the calls that answer it."""

    asks: str
    answer: str
    """Calls as BFCL writes them, such as `[ls(a=True), cd(folder='temp')]`."""


@dataclass(frozen=True, slots=True)
class Conversation:
    """Functions, and the turns that call them."""

    name: str
    functions: str
    """A line for each function, and one for each of its parameters."""
    turns: tuple[Turn, ...]


def read_conversations(path: Path) -> list[Conversation]:
    """Return the conversations of a wheel of `bfcl-eval`, or of the folder of its content.

    Raises:
        BenchError: the path holds no such conversations; the message says how to get them.
    """
    try:
        texts = dict(_read(path))
        questions = _lines(texts[_QUESTIONS])
        answers = {
            each["id"]: each["ground_truth"]
            for each in _lines(texts[f"possible_answer/{_QUESTIONS}"])
        }
        functions = {
            name: _lines(texts[f"multi_turn_func_doc/{file}.json"])
            for name, file in _FUNCTIONS.items()
        }
        found = [_conversation(each, answers[each["id"]], functions) for each in questions]
    except (OSError, zipfile.BadZipFile, KeyError, TypeError, ValueError) as error:
        raise BenchError(
            f"--bfcl {path} holds no conversations of BFCL v4 ({type(error).__name__}: {error}); "
            f"fetch the wheel with `{WHEEL}`"
        ) from error
    return [each for each in found if each.turns]


def _read(path: Path) -> Iterator[tuple[str, str]]:
    """Yield the files that are needed, by their names below the data."""
    names = [_QUESTIONS, f"possible_answer/{_QUESTIONS}"]
    names += [f"multi_turn_func_doc/{file}.json" for file in _FUNCTIONS.values()]
    if path.is_dir():
        for name in names:
            yield name, (path / _DATA / name).read_text(encoding="utf-8")
        return
    with zipfile.ZipFile(path) as wheel:
        for name in names:
            yield name, wheel.read(f"{_DATA}/{name}").decode("utf-8")


def _lines(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines() if line.strip()]


def _conversation(
    question: Mapping[str, Any],
    answers: Sequence[Sequence[str]],
    functions: Mapping[str, Sequence[Mapping[str, Any]]],
) -> Conversation:
    excluded = set(question.get("excluded_function", ()))
    listed = [
        each
        for name in question["involved_classes"]
        for each in functions[name]
        if each["name"] not in excluded
    ]
    turns = [
        Turn("\n".join(message["content"] for message in messages), f"[{', '.join(calls)}]")
        for messages, calls in zip(question["question"], answers, strict=True)
        if messages and calls
    ]
    return Conversation(question["id"], "\n".join(map(_described, listed)), tuple(turns))


def _described(function: Mapping[str, Any]) -> str:
    """Return a function as its signature with a description, and its parameters below."""
    parameters = function["parameters"]
    required = set(parameters.get("required", ()))
    names = [
        name if name in required else f"{name}={about.get('default')!r}"
        for name, about in parameters["properties"].items()
    ]
    what = function["description"].partition(_BEFORE_DESCRIPTION)[2] or function["description"]
    lines = [f"{function['name']}({', '.join(names)}): {what.strip()}"]
    lines += [
        f"  {name} ({about['type']}): {about.get('description', '').strip()}"
        for name, about in parameters["properties"].items()
    ]
    return "\n".join(lines)
