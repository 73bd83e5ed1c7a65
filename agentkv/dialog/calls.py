"""Calls of functions in replies: the forms in which a family of models writes them, and grammars
that make it write one."""

import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from agentkv.dialog.call_forms import harmony
from agentkv.dialog.call_forms.bare import BareForm
from agentkv.dialog.call_forms.call import Call as Call
from agentkv.dialog.call_forms.call import FunctionDeclaration as FunctionDeclaration
from agentkv.dialog.call_forms.form import Form
from agentkv.dialog.call_forms.mistral import MistralForm
from agentkv.dialog.call_forms.sections import SectionForm
from agentkv.dialog.call_forms.tags import TagForm
from agentkv.dialog.schema.prepared import rule_of


class CallFormat(Protocol):
    """How a family of models writes calls: the forms that are read, and the one that it is made to
    write."""

    @property
    def forms(self) -> Sequence[Form]:
        """The forms in which calls are read."""
        ...

    @property
    def tokens(self) -> Collection[str]:
        """Texts of the forms that may be control tokens of the model."""
        ...

    def write(self, name: str, arguments: str) -> str:
        """Return a call, given its arguments as JSON."""
        ...

    def grammar(self, functions: Sequence[FunctionDeclaration], control: Mapping[str, int]) -> str:
        """Return a Lark grammar (llguidance's dialect) of exactly one call of one of `functions`.

        Args:
            control: ids of the tokenizer's control tokens by their text.
        """
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
    forms: Sequence[Form] = (TagForm(), BareForm())
    """The forms in which calls are read."""

    @property
    def tokens(self) -> Collection[str]:
        """Texts of the forms that may be control tokens of the model."""
        return _tokens_of(self.forms)

    def write(self, name: str, arguments: str) -> str:
        """Return a call; see `CallFormat`."""
        opening, closing = ("[", "]") if self.is_list else ("", "")
        inner = f'{opening}{{"name": "{name}", "{self.key}": {arguments}}}{closing}'
        return self.space.join(part for part in (self.begin, inner, self.end) if part)

    def grammar(self, functions: Sequence[FunctionDeclaration], control: Mapping[str, int]) -> str:
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


@dataclass(frozen=True, slots=True)
class NamedCalls:
    """Calls with a function's name and its arguments in JSON between fixed texts: those of gpt-oss,
    DeepSeek and Kimi."""

    begin: str
    """Text before the name."""
    between: str
    """Text between the name and the arguments."""
    end: str = ""
    """Text after the arguments."""
    forms: Sequence[Form] = ()
    """The forms in which calls are read; none for gpt-oss, whose calls are messages
    (`agentkv.dialog.call_forms.harmony`)."""

    @property
    def tokens(self) -> Collection[str]:
        """Texts of the forms that may be control tokens of the model."""
        return _tokens_of(self.forms) or harmony.TOKENS

    def write(self, name: str, arguments: str) -> str:
        """Return a call; see `CallFormat`."""
        return f"{self.begin}{name}{self.between}{arguments}{self.end}"

    def grammar(self, functions: Sequence[FunctionDeclaration], control: Mapping[str, int]) -> str:
        """Return the grammar of one call; see `CallFormat`."""
        after = lark_literal(self.end, control)
        alternatives, rules = [], []
        for number, each in enumerate(functions):
            header = f"{self.begin}{each.name}{self.between}"
            alternatives.append(f"{lark_literal(header, control)} call{number} {after}")
            rules.append(f"call{number}: {rule_of(each.parameters)}")
        return "\n".join([f"start: {' | '.join(alternatives)}", *rules])


def _tokens_of(forms: Sequence[Form]) -> list[str]:
    return [token for form in forms for token in form.tokens]


TAGS = JsonCalls()
"""The form of Hermes and Qwen, and of every model whose template shows no other one."""
SEED = JsonCalls(
    *("<seed:tool_call>", "</seed:tool_call>"),
    forms=(TagForm("<seed:tool_call>", "</seed:tool_call>", has_lines=False), *TAGS.forms),
)
LLAMA = JsonCalls("", "", "", "parameters", forms=(BareForm("line"), TagForm()))
MISTRAL = JsonCalls("[TOOL_CALLS]", "", "", is_list=True, forms=(MistralForm(), *TAGS.forms))
HARMONY = NamedCalls("<|channel|>commentary to=functions.", " <|constrain|>json<|message|>")
_DEEPSEEK_FORM = SectionForm(
    *("<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>"),
    *("<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>"),
)
DEEPSEEK = NamedCalls(
    "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>",
    "\n```json\n",
    "\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
    (_DEEPSEEK_FORM, *TAGS.forms),
)
DEEPSEEK_V3_1 = NamedCalls(
    "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>",
    "<｜tool▁sep｜>",
    "<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
    DEEPSEEK.forms,
)
KIMI = NamedCalls(
    "<|tool_calls_section_begin|><|tool_call_begin|>functions.",
    ":0<|tool_call_argument_begin|>",
    "<|tool_call_end|><|tool_calls_section_end|>",
    (
        SectionForm(
            *("<|tool_calls_section_begin|>", "<|tool_call_begin|>"),
            *("<|tool_call_argument_begin|>", "<|tool_call_end|>", "<|tool_calls_section_end|>"),
        ),
        *TAGS.forms,
    ),
)


def find_format(rendered: str) -> CallFormat:
    """Return the format of calls, given a reply with one as a chat template renders it, or a
    template that cannot render it."""
    if "to=functions." in rendered:
        return HARMONY
    if MISTRAL.begin in rendered:
        return MISTRAL
    if "<|tool_call_argument_begin|>" in rendered:
        return KIMI
    if "<｜tool▁sep｜>" in rendered:
        return DEEPSEEK if "```json" in rendered else DEEPSEEK_V3_1
    if "<｜tool▁call▁begin｜>" in rendered:
        return replace(LLAMA, forms=DEEPSEEK.forms)
    if SEED.begin in rendered:
        return SEED
    if TAGS.begin not in rendered and re.search(r'\{\s*"name":[^{}]*"parameters":', rendered):
        return LLAMA
    return TAGS


def describe_tools(functions: Sequence[Mapping[str, Any]], format: CallFormat) -> str:
    """Return instructions for a model whose chat template does not show it functions."""
    listed = "\n".join(json.dumps(each, ensure_ascii=False) for each in functions)
    return (
        f"You can call these functions, given as JSON schemas:\n{listed}\n\n"
        f"To call one, write its name and its arguments as JSON in this form:\n"
        f"{format.write('...', '{...}')}"
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
