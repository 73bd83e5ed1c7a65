"""Items of OpenAI's Responses: of requests, as they are stored, and as messages of a chat."""

import re
import secrets
from collections.abc import Iterable
from functools import partial
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Discriminator, Tag
from pydantic_core import PydanticCustomError

from agentkv.serve.body import Body
from agentkv.serve.protocols.answer import Json
from agentkv.serve.protocols.openai_requests import Name, text_of

CALL_PREFIX = "call_"
"""Begins the ids of calls, before the id that chat templates get."""
ITEM_TYPES = ("message", "function_call", "function_call_output", "reasoning")
"""Types of the items that a request may have."""
_Text = Annotated[
    str, BeforeValidator(partial(text_of, kinds=("input_text", "output_text", "text")))
]


class _AnyItem(Body):
    id: Name | None = None

    def plain(self) -> Json:
        """Return the item as it is stored and shown, with an id of its own if it had none."""
        raise NotImplementedError


class _MessageItem(_AnyItem):
    type: Literal["message"] = "message"
    role: Literal["user", "system", "developer", "assistant"]
    content: _Text

    def plain(self) -> Json:
        kind = "output_text" if self.role == "assistant" else "input_text"
        part: Json = {"type": kind, "text": self.content}
        if self.role == "assistant":
            part["annotations"] = []
        made = {"id": self.id or new_id("msg"), "type": self.type, "role": self.role}
        return {**made, "content": [part], "status": "completed"}


class _CallItem(_AnyItem):
    type: Literal["function_call"]
    call_id: Name
    name: Name
    arguments: str = "{}"

    def plain(self) -> Json:
        made = {**self.model_dump(), "status": "completed"}
        return {**made, "id": self.id or new_id("fc")}


class _ResultItem(_AnyItem):
    type: Literal["function_call_output"]
    call_id: Name
    output: _Text

    def plain(self) -> Json:
        made = {**self.model_dump(), "status": "completed"}
        return {**made, "id": self.id or new_id("fco")}


class _ReasoningItem(_AnyItem):
    """A thought. What it says is not read: the session has its tokens."""

    type: Literal["reasoning"]

    def plain(self) -> Json:
        return {"id": self.id or new_id("rs"), "type": self.type, "summary": []}


def _kind_of(item: Any) -> str:
    """Return the type of an item; of messages and references it may be left out."""
    given: dict[str, Any] = item if isinstance(item, dict) else {}
    kind = given.get("type")
    if kind is None:
        return "item_reference" if "id" in given and "role" not in given else "message"
    return kind if isinstance(kind, str) else repr(kind)[:100]


def _known(item: Any) -> Any:
    """Refuse an item of a type that is not supported, by its type."""
    kind = _kind_of(item)
    if kind in ITEM_TYPES:
        return item
    instead = f"the types of items are {', '.join(ITEM_TYPES)}"
    if kind == "item_reference":
        instead = "send the item itself, or previous_response_id"
    raise PydanticCustomError(
        "item",
        "the type '{kind}' is not supported; {instead}",
        {"kind": kind[:100], "instead": instead},
    )


Item = Annotated[
    Annotated[_MessageItem, Tag("message")]
    | Annotated[_CallItem, Tag("function_call")]
    | Annotated[_ResultItem, Tag("function_call_output")]
    | Annotated[_ReasoningItem, Tag("reasoning")],
    Discriminator(_kind_of),
    BeforeValidator(_known),
]
"""An item of a request."""


def messages_of(items: Iterable[Json]) -> list[Json]:
    """Return the messages of a chat with these items.

    A thought, a text and calls that follow one another are one reply. A text that follows a text
    begins another one.
    """
    messages: list[Json] = []
    reply: Json | None = None
    takes_text = False
    for item in items:
        kind = item["type"]
        if kind == "reasoning":
            takes_text = True
            continue
        is_text = kind == "message" and item["role"] == "assistant"
        if not is_text and kind != "function_call":
            reply = None
            messages.append(_other_message(item))
            continue
        if reply is None or (is_text and not takes_text):
            reply = message("assistant", "")
            messages.append(reply)
        if is_text:
            reply["content"] += _text(item)
        else:
            reply.setdefault("tool_calls", []).append(_call(item))
        takes_text = not is_text
    return messages


def _other_message(item: Json) -> Json:
    """Return the message for a result, or for a message that is not the assistant's."""
    if item["type"] == "function_call_output":
        id = _template_id(item["call_id"])
        return {**message("tool", item["output"]), "tool_call_id": id}
    return message(item["role"], _text(item))


def _call(item: Json) -> Json:
    function = {"name": item["name"], "arguments": item["arguments"]}
    return {"id": _template_id(item["call_id"]), "type": "function", "function": function}


def _template_id(call_id: str) -> str:
    """Return the id of a call for chat templates, some of which take only ids as ours are without
    their prefix."""
    bare = call_id.removeprefix(CALL_PREFIX)
    return bare if re.fullmatch("[A-Za-z0-9]{9}", bare) else call_id


def _text(item: Json) -> str:
    return "".join(part["text"] for part in item["content"])


def message(role: str, content: str) -> Json:
    """Return a message of a chat."""
    return {"role": role, "content": content}


def new_id(prefix: str) -> str:
    """Return an id for an item or a response."""
    return f"{prefix}_{secrets.token_hex(16)}"
