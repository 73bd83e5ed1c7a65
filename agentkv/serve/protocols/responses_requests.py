"""Requests in the form of OpenAI's Responses, turned into requests of chats."""

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Any, Literal

from pydantic import (
    BeforeValidator,
    ConfigDict,
    Field,
    JsonValue,
    ValidationError,
    field_validator,
    model_validator,
)
from pydantic_core import PydanticCustomError

from agentkv.serve.body import Body, RequestError
from agentkv.serve.protocols.answer import Json
from agentkv.serve.protocols.openai_requests import ChatRequest, FunctionName, Name, parse, refusal
from agentkv.serve.protocols.responses_answers import ResponsesAnswer
from agentkv.serve.protocols.responses_items import ITEM_TYPES, Item, message, messages_of
from agentkv.serve.protocols.unsupported import CHAT_ONLY, find_unsupported

_MOST_ITEMS = 20_000


def _items_of(given: Any) -> Any:
    return [{"role": "user", "content": given}] if isinstance(given, str) else given


class _Function(Body):
    type: Literal["function"]
    name: FunctionName
    description: str | None = None
    parameters: dict[str, JsonValue] | None = None
    strict: bool | None = None

    @field_validator("type", mode="before")
    @classmethod
    def _require_function(cls, given: Any) -> Any:
        if given != "function":
            raise PydanticCustomError(
                "tool",
                "the type {kind} is not supported; the server runs no tools of its own, so every "
                "tool has the type 'function'",
                {"kind": repr(given)[:100]},
            )
        return given

    def plain(self) -> Json:
        """Return the function as chats have it."""
        return {"type": "function", "function": self.model_dump(exclude={"type"})}


class _Choice(Body):
    type: Literal["none", "auto", "required", "function"]
    name: FunctionName | None = None

    @field_validator("type", mode="before")
    @classmethod
    def _require_known(cls, given: Any) -> Any:
        if given not in ("none", "auto", "required", "function"):
            raise PydanticCustomError(
                "choice",
                "the type {kind} is not supported; send 'none', 'auto', 'required' or a function",
                {"kind": repr(given)[:100]},
            )
        return given

    @model_validator(mode="after")
    def _require_name(self) -> "_Choice":
        if self.type == "function" and self.name is None:
            raise PydanticCustomError("choice", "a function has a name")
        return self

    def shown(self) -> Json | str:
        """Return the choice as it was sent."""
        return self.model_dump() if self.name else self.type

    def plain(self) -> Json | str:
        """Return the choice as chats have it."""
        function = {"type": "function", "function": {"name": self.name}}
        return function if self.type == "function" else self.type


def _choice_of(given: Any) -> Any:
    return {"type": given} if isinstance(given, str) else given


class _Format(Body):
    type: Literal["text", "json_object", "json_schema"] = "text"
    name: str | None = None
    description: str | None = None
    schema_: dict[str, JsonValue] | None = Field(default=None, alias="schema")
    strict: bool | None = None

    def plain(self) -> Json:
        """Return the format as chats have it."""
        if self.type == "json_schema":
            return {"type": self.type, "json_schema": {"schema": self.schema_}}
        return {"type": self.type}


class _TextSettings(Body):
    format: _Format = _Format()
    verbosity: Literal["medium"] | None = None


class _Reasoning(Body):
    effort: str | None = None
    mode: Literal["standard"] | None = None


class ResponsesRequest(Body):
    """The body of `/v1/responses`.

    Parameters that are not here have the meaning that they have in a chat.
    """

    model_config = ConfigDict(extra="allow")

    model: str | None = None
    stream: bool = False
    input: Annotated[
        Annotated[list[Item], Field(fail_fast=True, min_length=1, max_length=_MOST_ITEMS)],
        BeforeValidator(_items_of),
    ]
    instructions: str | None = None
    previous_response_id: Name | None = None
    store: bool = True
    metadata: Annotated[
        dict[Annotated[str, Field(max_length=64)], Annotated[str, Field(max_length=512)]],
        Field(max_length=16),
    ] = {}
    max_output_tokens: Annotated[int, Field(ge=1)] | None = None
    max_tool_calls: Annotated[int, Field(ge=1)] | None = None
    """Counts calls of tools that the server runs, of which there are none."""
    text: _TextSettings = _TextSettings()
    reasoning: _Reasoning = _Reasoning()
    tools: Annotated[list[_Function], Field(fail_fast=True, max_length=128)] = []
    tool_choice: Annotated[_Choice, BeforeValidator(_choice_of)] = _Choice(type="auto")
    include: list[str] = []
    service_tier: Name | None = None
    safety_identifier: Name | None = None
    user: Name | None = None

    def items(self) -> list[Json]:
        """Return the items of the request, each with an id."""
        return [item.plain() for item in self.input]

    def chat(self, items: Iterable[Json]) -> ChatRequest:
        """Return the request as one of chats.

        Args:
            items: the whole conversation, the items of this request included.

        Raises:
            RequestError: a parameter is wrong or not supported.
        """
        extra = self.model_extra or {}
        self._require_supported(extra)
        given = {
            **extra,
            "model": self.model,
            "stream": self.stream,
            "messages": [*self._instructions(), *messages_of(items)],
            "max_completion_tokens": self.max_output_tokens,
            "reasoning_effort": self.reasoning.effort,
            "response_format": self.text.format.plain(),
            "tools": [tool.plain() for tool in self.tools] or None,
            "tool_choice": self.tool_choice.plain(),
        }
        try:
            return ChatRequest.model_validate(given)
        except ValidationError as error:
            raise renamed(refusal(error)) from None

    def _require_supported(self, extra: Json) -> None:
        if found := find_unsupported(extra, _UNSUPPORTED):
            name, instead = found
            raise _unsupported(name, _INSTEAD.get(name, instead))
        if _LOGPROBS in self.include:
            raise _unsupported(_LOGPROBS, "leave it out", param="include")
        format = self.text.format
        if format.type == "json_schema" and format.schema_ is None:
            param = "text.format.schema"
            raise RequestError(f"{param}: a format of type json_schema needs it", param=param)

    def _instructions(self) -> list[Json]:
        return [] if self.instructions is None else [message("system", self.instructions)]

    def answer(
        self, model: str, chat: ChatRequest, keep: Callable[[Json], None]
    ) -> ResponsesAnswer:
        """Return the answer, which the reply has yet to fill.

        Args:
            model: name of the model that answers.
            chat: the request as one of chats.
            keep: see `ResponsesAnswer`.
        """
        parallel = chat.parallel_tool_calls
        told = {
            **self.model_dump(include=_TOLD),
            "background": False,
            "parallel_tool_calls": True if parallel is None else parallel,
            "prompt_cache_key": chat.prompt_cache_key,
            "service_tier": "default",
            "temperature": 1.0 if chat.temperature is None else chat.temperature,
            "text": {"format": self.text.format.model_dump(by_alias=True, exclude_none=True)},
            "tool_choice": self.tool_choice.shown(),
            "top_logprobs": 0,
            "top_p": 1.0 if chat.top_p is None else chat.top_p,
            "truncation": "disabled",
        }
        return ResponsesAnswer(model, told, keep)


def read(body: bytes) -> ResponsesRequest:
    """Validate the body of a request; raises as `parse` does."""
    try:
        return parse(ResponsesRequest, body)
    except RequestError as error:
        raise renamed(error, _ITEM_NAMES) from None


def renamed(error: RequestError, names: Mapping[str, str] | None = None) -> RequestError:
    """Return an error about a chat's parameter as one about the parameter of Responses.

    Args:
        names: what to write for names that match a pattern; None: Responses' names for chats'.
    """
    message, param = str(error), error.param or ""
    for pattern, name in (_NAMES if names is None else names).items():
        message, param = re.sub(pattern, name, message), re.sub(pattern, name, param)
    return RequestError(message, param=param or None, code=error.code, status=error.status)


_ITEM_NAMES = {rf"\binput\.(\d+)\.({'|'.join(ITEM_TYPES)})\b": r"input.\1"}
"""Names of items, which pydantic tells together with their types."""
_NAMES = {
    r"(?<![\w/])messages(\.\d+\.\w+(\.\d+)?)*": "input",
    r"(?<![\w/])tools\.(\d+)\.function\.": r"tools.\1.",
    r"(?<![\w/])response_format(\.json_schema)?\b": "text.format",
    r"(?<![\w/])reasoning_effort\b": "reasoning.effort",
    r"(?<![\w/])max_(completion_)?tokens\b": "max_output_tokens",
}
"""Names of chats in errors, and those of Responses; names in JSON pointers are the client's own."""


def _unsupported(name: str, instead: str, *, param: str | None = None) -> RequestError:
    return RequestError(
        f"{name} is not supported; {instead}", param=param or name, code="unsupported_value"
    )


_TOLD = {
    *("instructions", "max_output_tokens", "max_tool_calls", "metadata", "previous_response_id"),
    *("reasoning", "safety_identifier", "store", "tools", "user"),
}
"""Parameters that the answer repeats as they are."""
_LOGPROBS = "message.output_text.logprobs"
_UNSUPPORTED: dict[str, tuple[Any, ...]] = {
    **CHAT_ONLY,
    **dict.fromkeys(("background", "logprobs", "continue_final_message"), (False,)),
    **dict.fromkeys(("conversation", "prompt", "moderation"), ()),
    **dict.fromkeys(("messages", "max_tokens", "max_completion_tokens", "response_format"), ()),
    "add_generation_prompt": (True,),
    "context_management": ([],),
    "reasoning_effort": (),
    "top_logprobs": (0,),
    "truncation": ("disabled",),
}
"""Further parameters that are not supported here, and the values that change nothing."""
_INSTEAD = {
    "background": "send a request that waits for its answer",
    "conversation": "write previous_response_id",
    "messages": "write input",
    **dict.fromkeys(("max_tokens", "max_completion_tokens"), "write max_output_tokens"),
    "response_format": "write text.format",
    "reasoning_effort": "write reasoning.effort",
    "truncation": "send a shorter conversation",
}
