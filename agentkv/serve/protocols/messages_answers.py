"""Answers in Anthropic's form: whole, in events, and errors."""

import json
import re
import secrets
import string
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from agentkv.dialog.calls import Call
from agentkv.dialog.reply_parts import TextPart
from agentkv.serve.job import ReplyDelta, ReplyEnd
from agentkv.serve.protocols.answer import Answer, Failure, Json, as_event, cache_use_of

CALL_PREFIX = "toolu_"
"""What ids of calls begin with for clients; chat templates do not see it."""
CALL_ID = re.compile(r"[A-Za-z0-9]{9}")
"""The only form of ids that Mistral's templates accept."""
_ERRORS = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}
"""Types of errors by their status; others are `invalid_request_error` or `api_error`."""


def messages_error(failure: Failure) -> Json:
    """Return the body of an error in Anthropic's form."""
    kind = "invalid_request_error" if failure.status < 500 else "api_error"
    message = failure.message
    if failure.code == "context_length_exceeded":
        # by these words hosts know that they have to shorten the conversation
        message = f"prompt is too long: {message}"
    return {
        "type": "error",
        "error": {"type": _ERRORS.get(failure.status, kind), "message": message},
    }


@dataclass(slots=True)
class MessagesAnswer(Answer):
    """The answer of `/v1/messages`."""

    _id: str = field(init=False)
    _blocks: list[Json] = field(default_factory=list, init=False)
    """The blocks of the reply; of an open one, the text is in `_texts`."""
    _texts: list[str] = field(default_factory=list, init=False)
    _is_open: bool = field(default=False, init=False)
    _has_begun: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        self._id = f"msg_{secrets.token_hex(12)}"

    error = staticmethod(messages_error)

    @classmethod
    def error_event(cls, failure: Failure) -> bytes:
        return as_event(cls.error(failure), "error")

    def first_events(self) -> Iterator[bytes]:
        # the first event has the usage, which the first delta knows
        yield from ()

    def events(self, delta: ReplyDelta) -> Iterator[bytes]:
        yield from self._begin(delta)
        for part in delta.parts:
            if isinstance(part, Call):
                self.calls.append(part)
                yield from self._call(part)
            elif part.text:
                yield from self._text(part)

    def last_events(self, end: ReplyEnd) -> Iterator[bytes]:
        yield from self._begin(end)
        yield from self._close()
        yield _event("message_delta", delta=_stop_of(end), usage=_usage_of(end))
        yield _event("message_stop")

    def whole(self, end: ReplyEnd) -> Json:
        for _ in self._close():
            pass
        return {
            **self._message(),
            "content": self._blocks,
            **_stop_of(end),
            "usage": _usage_of(end),
        }

    def _begin(self, known: ReplyDelta | ReplyEnd) -> Iterator[bytes]:
        """Yield the first event of a stream, once."""
        if self._has_begun:
            return
        self._has_begun = True
        usage = {**_read_of(known), "output_tokens": 0}
        stop = {"stop_reason": None, "stop_sequence": None}
        yield _event("message_start", message={**self._message(), **stop, "usage": usage})

    def _message(self) -> Json:
        message = {"id": self._id, "type": "message", "role": "assistant", "model": self.model}
        return {**message, "content": []}

    def _text(self, part: TextPart) -> Iterator[bytes]:
        """Yield the events of text or thought, which may go on with the latest block."""
        kind, name = "text", "text"
        if part.kind == "reasoning":
            kind = name = "thinking"
        else:
            self.content.append(part.text)
        if not self._is_open or self._blocks[-1]["type"] != kind:
            yield from self._close()
            block = {"type": kind, name: ""}
            yield self._open(block if kind == "text" else {**block, "signature": ""})
        self._texts.append(part.text)
        yield self._delta({"type": f"{kind}_delta", name: part.text})

    def _call(self, call: Call) -> Iterator[bytes]:
        """Yield the events of a call, which is complete."""
        yield from self._close()
        id = CALL_PREFIX + "".join(secrets.choice(_ALPHABET) for _ in range(9))
        block: Json = {"type": "tool_use", "id": id, "name": call.name, "input": {}}
        yield self._open(block)
        yield self._delta({"type": "input_json_delta", "partial_json": call.arguments})
        yield from self._close()
        self._blocks[-1] = {**block, "input": json.loads(call.arguments)}

    def _open(self, block: Json) -> bytes:
        self._blocks.append(block)
        self._is_open = True
        return _event("content_block_start", index=len(self._blocks) - 1, content_block=block)

    def _delta(self, delta: Json) -> bytes:
        return _event("content_block_delta", index=len(self._blocks) - 1, delta=delta)

    def _close(self) -> Iterator[bytes]:
        """End the latest block if it is open."""
        if not self._is_open:
            return
        self._is_open = False
        block = self._blocks[-1]
        if self._texts:
            block[block["type"]] = "".join(self._texts)
            self._texts.clear()
        yield _event("content_block_stop", index=len(self._blocks) - 1)


def _event(name: str, **members: Any) -> bytes:
    return as_event({"type": name, **members}, name)


def _stop_of(end: ReplyEnd) -> Json:
    """Return why a reply ended."""
    reasons = {"tool_calls": "tool_use", "length": "max_tokens", "stop": "end_turn"}
    has_stopped = end.reason == "stop" and end.stop is not None
    return {
        "stop_reason": "stop_sequence" if has_stopped else reasons[end.reason],
        "stop_sequence": end.stop if has_stopped else None,
    }


def _read_of(known: ReplyDelta | ReplyEnd) -> Json:
    """Return the tokens before a reply; as Anthropic counts them, cached ones are no input."""
    return {
        "input_tokens": known.num_prompt - known.num_cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": known.num_cached,
    }


def _usage_of(end: ReplyEnd) -> Json:
    """Return Anthropic's usage of a request, with what the cache holds in `agentkv`."""
    return {
        **_read_of(end),
        "output_tokens": end.num_written,
        "output_tokens_details": {"thinking_tokens": end.num_thought},
        "agentkv": cache_use_of(end),
    }


_ALPHABET = string.ascii_letters + string.digits
