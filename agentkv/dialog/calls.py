"""Calls of functions in replies: how a model writes them, and grammars that make it write one."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from agentkv.dialog.schema.prepared import rule_of


@dataclass(frozen=True, slots=True)
class Call:
    """A call that a model wrote."""

    name: str
    """Name of the function."""
    arguments: str
    """Arguments as JSON."""


@dataclass(frozen=True, slots=True)
class Function:
    """A function that a model may call."""

    name: str
    parameters: Mapping[str, Any]
    """JSON schema of the arguments, as a grammar can enforce it (`PreparedSchema.grammar`)."""


class CallFormat(Protocol):
    """The form in which a family of models writes calls."""

    @property
    def begin(self) -> str:
        """Text that begins a call; empty if a call is the whole reply."""
        ...

    @property
    def end(self) -> str:
        """Text that ends a call; empty if only the end of the reply does."""
        ...

    def grammar(self, functions: Sequence[Function], control: Mapping[str, int]) -> str:
        """Return a Lark grammar (llguidance's dialect) of exactly one call of one of `functions`.

        Args:
            control: ids of the tokenizer's control tokens by their text.
        """
        ...

    def parse(self, text: str) -> list[Call] | None:
        """Return the calls in the text between `begin` and `end`; None if it holds none."""
        ...


@dataclass(frozen=True, slots=True)
class JsonCalls:
    """Calls as JSON objects with a name and arguments: Qwen's and Hermes' tags, Mistral's list,
    Llama's bare object."""

    begin: str = "<tool_call>"
    """Text that begins a call."""
    end: str = "</tool_call>"
    """Text that ends a call."""
    space: str = "\n"
    """White space between the delimiters and the JSON."""
    key: str = "arguments"
    """Name of the object's second member."""
    is_list: bool = False
    """True if the objects stand in a list."""

    def grammar(self, functions: Sequence[Function], control: Mapping[str, int]) -> str:
        """Return the grammar of one call; see `CallFormat`."""
        opening, closing = ("[", "]") if self.is_list else ("", "")
        before = lark_literal(f"{self.begin}{self.space if self.begin else ''}{opening}", control)
        after = lark_literal(f"{closing}{self.space if self.end else ''}{self.end}", control)
        alternatives, rules = [], []
        for number, each in enumerate(functions):
            head = json.dumps(f'{{"name": {json.dumps(each.name)}, "{self.key}": ')
            alternatives.append(f'{head} arguments{number} "}}"')
            rules.append(f"arguments{number}: {rule_of(each.parameters)}")
        call = f"call: {' | '.join(alternatives)}"
        return "\n".join([f"start: {before} call {after}", call, *rules])

    def parse(self, text: str) -> list[Call] | None:
        """Return the calls in JSON, also in Mistral's newer form `name[ARGS]{...}` and, between
        tags, in the forms of GLM and Qwen3-Coder."""
        if (call := _tagged_call(text)) is not None:
            return [call]
        if self.is_list and (found := re.match(r"\s*([\w.-]+)(?:\[ARGS\]|\s*(?={))", text)):
            text = json.dumps([{"name": found[1], self.key: _loaded(text[found.end() :])}])
        value = _loaded(text)
        values = value if isinstance(value, list) else [value]
        calls = []
        for each in values:
            if not isinstance(each, dict) or not isinstance(each.get("name"), str):
                return None
            arguments: Any = next((each[key] for key in (self.key, *_KEYS) if key in each), None)
            if isinstance(arguments, str):
                arguments = _loaded(arguments)
            if not isinstance(arguments, dict):
                return None
            calls.append(Call(each["name"], json.dumps(arguments)))
        return calls or None


@dataclass(frozen=True, slots=True)
class HarmonyCalls:
    """Calls of gpt-oss: a message in the channel `commentary` to a function."""

    begin: str = "<|channel|>commentary to=functions."
    """Text that begins a call."""
    end: str = "<|call|>"
    """Text that ends a call."""

    def grammar(self, functions: Sequence[Function], control: Mapping[str, int]) -> str:
        """Return the grammar of one call; see `CallFormat`."""
        alternatives, rules = [], []
        for number, each in enumerate(functions):
            header = f"{self.begin}{each.name} <|constrain|>json<|message|>"
            alternatives.append(f"{lark_literal(header, control)} call{number}")
            rules.append(f"call{number}: {rule_of(each.parameters)}")
        return "\n".join([f"start: {' | '.join(alternatives)}", *rules])

    def parse(self, text: str) -> list[Call] | None:
        """Return the call in `name ...<|message|>arguments`."""
        header, _, body = text.partition("<|message|>")
        name = re.match(r"[\w.-]+", header)
        arguments = _loaded(body)
        if name is None or not isinstance(arguments, dict):
            return None
        return [Call(name[0], json.dumps(arguments))]


TAGS = JsonCalls()
"""The form of Hermes and Qwen, and of every model whose template shows no other one."""
LLAMA = JsonCalls("", "", "", "parameters")
MISTRAL = JsonCalls("[TOOL_CALLS]", "", "", is_list=True)
HARMONY = HarmonyCalls()
_KEYS = ("arguments", "parameters")


def find_format(rendered: str) -> CallFormat:
    """Return the format of calls, given a reply with one as a chat template renders it."""
    if HARMONY.begin.removeprefix("<|channel|>commentary ") in rendered:
        return HARMONY
    if MISTRAL.begin in rendered:
        return MISTRAL
    if TAGS.begin not in rendered and re.search(r'\{\s*"name":[^{}]*"parameters":', rendered):
        return LLAMA
    return TAGS


def describe_tools(functions: Sequence[Mapping[str, Any]]) -> str:
    """Return instructions for a model whose chat template ignores functions; it writes `TAGS`."""
    listed = "\n".join(json.dumps(each, ensure_ascii=False) for each in functions)
    return (
        f"You can call these functions, given as JSON schemas:\n{listed}\n\n"
        f"To call one, write one JSON object between {TAGS.begin} and {TAGS.end}:\n"
        f'{TAGS.begin}\n{{"name": "...", "arguments": {{...}}}}\n{TAGS.end}'
    )


def lark_literal(text: str, control: Mapping[str, int]) -> str:
    """Return `text` in a Lark grammar, as string literals and control tokens."""
    longest_first = sorted(control, key=len, reverse=True)
    pattern = "|".join(map(re.escape, longest_first)) or r"(?!)"
    parts, start = [], 0
    for found in re.finditer(pattern, text):
        parts += [json.dumps(text[start : found.start()]), f"<[{control[found[0]]}]>"]
        start = found.end()
    parts.append(json.dumps(text[start:]))
    return " ".join(part for part in parts if part != '""')


def _tagged_call(text: str) -> Call | None:
    """Return a call in the form of GLM or Qwen3-Coder, with a tag for each argument."""
    for name, argument in _TAGGED:
        if found := name.match(text):
            pairs = argument.findall(text, found.end())
            values = {key: _value(value) for key, value in pairs}
            return Call(found[1], json.dumps(values))
    return None


_TAGGED = (
    (
        re.compile(r"\s*<function=([\w.-]+)>"),
        re.compile(r"<parameter=([^>]+)>\n?(.*?)\n?</parameter>", re.DOTALL),
    ),
    (
        re.compile(r"\s*([\w.-]+)\s*(?=<arg_key>)"),
        re.compile(r"<arg_key>(.*?)</arg_key>\s*<arg_value>(.*?)</arg_value>", re.DOTALL),
    ),
)
"""Patterns of a call's name and of its arguments: Qwen3-Coder, GLM."""


def _value(text: str) -> Any:
    """Return the value that an argument's text means: JSON if it is JSON, else the text."""
    value = _loaded(text)
    return text if value is None and text.strip() != "null" else value


def _loaded(text: str) -> Any:
    """Return the value of JSON; None if `text` is not JSON."""
    try:
        return json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return None


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")
