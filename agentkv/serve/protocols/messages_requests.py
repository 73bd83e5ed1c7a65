"""Requests in Anthropic's form, validated, and translated into those of chats."""

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from itertools import groupby
from typing import Annotated, Any, Literal, TypeVar, get_args

from pydantic import (
    BeforeValidator,
    ConfigDict,
    Field,
    JsonValue,
    PlainValidator,
    ValidationError,
    model_validator,
)
from pydantic_core import PydanticCustomError

from agentkv.dialog.messages import MessageTemplate
from agentkv.dialog.rendering import TemplateError
from agentkv.serve.body import Body, RequestError
from agentkv.serve.constraints import exclusive
from agentkv.serve.job import EngineJob, Event, ReplyEnd, ReplyFailure
from agentkv.serve.matching import SessionQuery
from agentkv.serve.protocols.messages_answers import CALL_ID, CALL_PREFIX, MessagesAnswer
from agentkv.serve.protocols.openai_requests import (
    ChatRequest,
    FunctionName,
    Name,
    Send,
    StopText,
    refusal,
)
from agentkv.serve.protocols.unsupported import MESSAGES_ONLY, find_unsupported
from agentkv.serve.reuse import Difference, Reuse
from agentkv.serve.session import CacheSettings

E = TypeVar("E", bound=Exception)


def _one_of(tag: str, *kinds: type[Body]) -> PlainValidator:
    """Return a validator of objects whose member `tag` says which of `kinds` they are."""
    by_name = {name: kind for kind in kinds for name in get_args(kind.model_fields[tag].annotation)}
    *most, last = map(repr, by_name)
    known = f"{', '.join(most)} or {last}" if most else last

    def read(given: Any) -> Body:
        if not isinstance(given, dict):
            raise PydanticCustomError("object", "this must be an object")
        name = given.get(tag)
        if not isinstance(name, str) or name not in by_name:
            raise PydanticCustomError(
                "kind",
                "the {tag} {name} is not supported here; it must be {known}",
                {"tag": tag, "name": repr(name)[:100], "known": known},
            )
        return by_name[name].model_validate(given)

    return PlainValidator(read)


def _listed(content: Any) -> Any:
    """Return a text as a list with one block."""
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


_IsList = (Field(fail_fast=True, max_length=4096), BeforeValidator(_listed))


class _Text(Body):
    type: Literal["text"]
    text: str


_Texts = Annotated[list[Annotated[_Text, _one_of("type", _Text)]], *_IsList]


class _Thought(Body):
    """A thought of an earlier reply, which is not read again."""

    type: Literal["thinking", "redacted_thinking"]


class _ToolUse(Body):
    type: Literal["tool_use"]
    id: str
    name: Name
    input: dict[str, JsonValue]

    def plain(self) -> dict[str, Any]:
        """Return the call in OpenAI's form."""
        function = {"name": self.name, "arguments": json.dumps(self.input)}
        return {"id": _call_id(self.id), "type": "function", "function": function}


class _ToolResult(Body):
    type: Literal["tool_result"]
    tool_use_id: str
    content: _Texts = []
    is_error: bool = False

    def plain(self) -> dict[str, Any]:
        """Return the result as a message in OpenAI's form, which has no member for errors."""
        text = "\n".join(each.text for each in self.content)
        return {
            "role": "tool",
            "content": f"Error: {text}" if self.is_error else text,
            "tool_call_id": _call_id(self.tool_use_id),
        }


def _call_id(id: str) -> str:
    """Return an id of a call that every chat template takes."""
    own = id.removeprefix(CALL_PREFIX)
    return own if CALL_ID.fullmatch(own) else hashlib.sha256(id.encode()).hexdigest()[:9]


class _UserMessage(Body):
    role: Literal["user"]
    content: Annotated[
        list[Annotated[_Text | _ToolResult, _one_of("type", _Text, _ToolResult)]], *_IsList
    ]


class _Reply(Body):
    role: Literal["assistant"]
    content: Annotated[
        list[Annotated[_Text | _ToolUse | _Thought, _one_of("type", _Text, _ToolUse, _Thought)]],
        *_IsList,
    ]


class _SystemMessage(Body):
    role: Literal["system"]
    content: _Texts


_Message = Annotated[
    _UserMessage | _Reply | _SystemMessage,
    _one_of("role", _UserMessage, _Reply, _SystemMessage),
]


class _Tool(Body):
    name: FunctionName
    description: str = ""
    input_schema: dict[str, JsonValue]

    @model_validator(mode="before")
    @classmethod
    def _require_custom(cls, given: Any) -> Any:
        kind = given.get("type") if isinstance(given, dict) else None
        if kind not in (None, "custom"):
            raise PydanticCustomError(
                "tool",
                "tools of the type {kind} are not supported; describe a tool with name, "
                "description and input_schema",
                {"kind": repr(kind)[:100]},
            )
        return given

    def plain(self) -> dict[str, Any]:
        """Return the tool in OpenAI's form."""
        function = {"name": self.name, "description": self.description}
        return {"type": "function", "function": {**function, "parameters": self.input_schema}}


class _ToolChoice(Body):
    type: Literal["auto", "any", "tool", "none"]
    name: FunctionName | None = None
    disable_parallel_tool_use: bool = False

    @model_validator(mode="after")
    def _require_name(self) -> "_ToolChoice":
        if self.type == "tool" and self.name is None:
            raise PydanticCustomError("tool_choice", "a choice of the type 'tool' needs a name")
        return self

    def plain(self) -> Any:
        """Return the choice in OpenAI's form."""
        if self.type == "tool":
            return {"type": "function", "function": {"name": self.name}}
        return "required" if self.type == "any" else self.type


class _Thinking(Body):
    type: Literal["enabled", "adaptive", "disabled"]


class _Format(Body):
    type: Literal["json_schema"]
    schema_: dict[str, JsonValue] = Field(alias="schema")


class _OutputConfig(Body):
    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    format: _Format | None = None


class _Edit(Body):
    type: Annotated[str, Field(pattern="^clear_thinking_")]
    """The only edits that change nothing: earlier thoughts are not read again."""


class _ContextManagement(Body):
    edits: Annotated[list[_Edit], Field(fail_fast=True, max_length=64)] = []


class CountRequest(Body):
    """The body of `/v1/messages/count_tokens`."""

    model_config = ConfigDict(extra="allow")

    model: str | None = None
    messages: Annotated[list[_Message], Field(fail_fast=True, min_length=1, max_length=20_000)]
    system: _Texts = []
    tools: Annotated[list[_Tool], Field(fail_fast=True, max_length=128)] = []
    tool_choice: _ToolChoice | None = None
    thinking: _Thinking | None = None
    output_config: _OutputConfig = _OutputConfig()
    output_format: _Format | None = None
    """Where earlier clients have the format."""
    context_management: _ContextManagement | None = None
    agentkv: JsonValue = None

    def query(
        self, owner: str, header: str | None, allowed: Sequence[CacheSettings]
    ) -> SessionQuery:
        """Return the session that the request asks for; see `ChatRequest`."""
        return self.chat.query(owner, header, allowed)

    def job(
        self, template: MessageTemplate, session: SessionQuery, send: Send, deadline: float
    ) -> EngineJob:
        """Return the job of the engine; see `ChatRequest`."""
        if found := find_unsupported(self.model_extra or {}, MESSAGES_ONLY):
            name, _ = found
            instead = f"write {_INSTEAD[name]}" if name in _INSTEAD else "leave it out"
            raise RequestError(f"{name} is not supported; {instead}", param=name)

        def tell(event: Event) -> None:
            send(self._told(event))

        try:
            return self.chat.job(template, session, tell, deadline)
        except RequestError as error:
            raise self.own(error) from None

    @cached_property
    def chat(self) -> ChatRequest:
        """The request in OpenAI's form.

        Raises:
            RequestError: parameters that contradict each other.
        """
        try:
            return ChatRequest.model_validate(self.plain())
        except ValidationError as error:
            raise self.own(refusal(error)) from None

    def plain(self) -> dict[str, Any]:
        """Return the members of the request in OpenAI's form; those that are null are left out."""
        choice, config = self.tool_choice, self.output_config
        if config.format is not None and self.output_format is not None:
            raise exclusive("output_config.format", "output_format")
        format = config.format or self.output_format
        schema = format and {"type": "json_schema", "json_schema": {"schema": format.schema_}}
        thinks = None if self.thinking is None else self.thinking.type != "disabled"
        return {
            "messages": [message for message, _ in self.translated],
            "continue_final_message": self.messages[-1].role == "assistant",
            "tools": [tool.plain() for tool in self.tools],
            "tool_choice": choice and choice.plain(),
            "parallel_tool_calls": choice and not choice.disable_parallel_tool_use,
            "chat_template_kwargs": {"enable_thinking": thinks},
            "reasoning_effort": config.effort and _EFFORTS.get(config.effort, config.effort),
            "response_format": schema,
            "agentkv": self.agentkv,
        }

    @cached_property
    def translated(self) -> list[tuple[dict[str, Any], int | None]]:
        """The messages in OpenAI's form, each with its number in the request; None for `system`.

        Raises:
            RequestError: the last one is a reply that cannot be continued.
        """
        texts = [
            _VOLATILE.sub("", each.text)
            for each in self.system
            if not _VOLATILE.fullmatch(each.text)
        ]
        made: list[tuple[dict[str, Any], int | None]] = []
        if any(texts):
            made.append(({"role": "system", "content": "\n".join(texts)}, None))
        for _, group in groupby(enumerate(self.messages), lambda each: each[1].role):
            made += _merged(list(group))
        last, _ = made[-1]
        if last["role"] == "assistant" and (last["tool_calls"] or not last["content"]):
            raise RequestError(
                "messages ends with a reply that cannot be continued: it has no text, or calls "
                "whose results are missing",
                param="messages",
            )
        return made

    def own(self, error: E) -> E:
        """Return an error with the request's own names and numbers in place of OpenAI's."""
        if not isinstance(error, RequestError):
            return type(error)(self._renamed(str(error)))
        param = error.param and self._renamed(error.param)
        message = self._renamed(str(error))
        return type(error)(message, param=param, code=error.code, status=error.status)

    def _renamed(self, text: str) -> str:
        for name, own in _NAMES.items():
            text = re.sub(name, own, text)
        return re.sub(
            r"(?<![\w/])messages(?:\[([0-9]{1,5})\]|\.([0-9]{1,5})\b)",
            lambda found: self._place(int(found[1] or found[2])),
            text,
        )

    def _place(self, number: int) -> str:
        own = self._number(number)
        return "system" if own is None else f"messages.{own}"

    def _number(self, number: int) -> int | None:
        """Return the number in the request of a message in OpenAI's form."""
        known = self.translated
        return known[number][1] if number < len(known) else len(self.messages)

    def _told(self, event: Event) -> Event:
        """Return an event with the request's own names and numbers."""
        match event:
            case ReplyFailure(TemplateError() as error):
                return ReplyFailure(self.own(error))
            case ReplyEnd(reuse=Reuse(difference=Difference(message=int(number)) as where)):
                own = replace(where, message=self._number(number))
                return replace(event, reuse=replace(event.reuse, difference=own))
            case _:
                return event


class MessagesRequest(CountRequest):
    """The body of `/v1/messages`."""

    max_tokens: Annotated[int, Field(ge=0)]
    stream: bool = False
    temperature: Annotated[float, Field(ge=0, le=1)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    stop_sequences: Annotated[list[StopText], Field(fail_fast=True, max_length=16)] = []
    seed: int | None = None
    """Ours: clients send it as a further member."""

    def answer(self, model: str) -> MessagesAnswer:
        """Return the answer, which the reply has yet to fill."""
        return MessagesAnswer(model)

    def plain(self) -> dict[str, Any]:
        """Return the members of the request in OpenAI's form."""
        return {
            **super().plain(),
            "max_tokens": self.max_tokens,
            "temperature": self.temperature,
            "top_p": self.top_p,
            "stop": self.stop_sequences,
            "seed": self.seed,
        }


def _merged(
    group: Sequence[tuple[int, _UserMessage | _Reply | _SystemMessage]],
) -> list[tuple[dict[str, Any], int | None]]:
    """Return messages of one role as one, after the results of functions among them.

    Each comes with the number of the message where it begins.
    """
    blocks = [(block, number) for number, message in group for block in message.content]
    texts = [(block.text, number) for block, number in blocks if isinstance(block, _Text)]
    made: list[tuple[dict[str, Any], int | None]] = [
        (block.plain(), number) for block, number in blocks if isinstance(block, _ToolResult)
    ]
    if made and not texts:
        return made
    first, message = group[0]
    begin = texts[0][1] if texts else first
    if message.role != "assistant":
        text = "\n".join(text for text, _ in texts)
        return [*made, ({"role": message.role, "content": text}, begin)]
    # a reply's blocks are pieces of one text
    reply: dict[str, Any] = {"role": "assistant", "content": "".join(text for text, _ in texts)}
    calls = [block.plain() for block, _ in blocks if isinstance(block, _ToolUse)]
    return [({**reply, "tool_calls": calls}, first)]


_VOLATILE = re.compile(r"\Ax-anthropic-billing-header:[^\n]*(?:\n|\Z)")
"""A line that Claude Code writes before its instructions and changes from one request to the next;
with it, everything would be read again."""
_EFFORTS = {"xhigh": "high", "max": "high"}
"""Efforts that templates do not know, and the nearest one that they do."""
_INSTEAD = {
    "stop": "stop_sequences",
    "max_completion_tokens": "max_tokens",
    "reasoning_effort": "output_config with an effort",
    "response_format": "output_config with a format",
    "chat_template_kwargs": "thinking",
    "parallel_tool_calls": "tool_choice with disable_parallel_tool_use",
}
_NAMES = {
    r"(?<![\w/])tools\.(\d+)\.function\.parameters": r"tools.\1.input_schema",
    r"(?<![\w/])response_format\.json_schema\.schema": "output_config.format.schema",
    r"(?<![\w/])parallel_tool_calls": "tool_choice.disable_parallel_tool_use",
    r"(?<![\w/])tool_choice is 'required'": "tool_choice is 'any'",
    r"(?<![\w/])leave continue_final_message out": "let a user have the last message",
    r"(?<![\w/])continue_final_message": "messages",
}
"""Names of OpenAI's in errors, and Anthropic's; those in JSON pointers are the client's own."""
