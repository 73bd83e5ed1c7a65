"""Answers in OpenAI's form: whole, in chunks, and errors."""

import secrets
import string
import time
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from agentkv.dialog.calls import Call
from agentkv.dialog.reply_parts import TextPart
from agentkv.serve.job import ReplyDelta, ReplyEnd, ReplyToken, TopToken
from agentkv.serve.protocols.answer import Answer, Failure, Json, as_event, cache_use_of

_KINDS = {401: "authentication_error", 422: "reply_error", 429: "rate_limit_error"}


def openai_error(failure: Failure) -> Json:
    """Return the body of an error in OpenAI's form."""
    kind = "invalid_request_error" if failure.status < 500 else "server_error"
    return {
        "error": {
            "message": failure.message,
            "type": _KINDS.get(failure.status, kind),
            "param": failure.param,
            "code": failure.code,
        }
    }


@dataclass(slots=True)
class OpenAIAnswer(Answer):
    """The answer of one endpoint."""

    _PREFIX: ClassVar[str]
    _CHUNK: ClassVar[str]
    """Name of the object that a chunk is."""

    includes_usage: bool = False
    """True ends a stream with a chunk that has the usage."""
    _id: str = field(init=False)
    _created: int = field(init=False)

    def __post_init__(self) -> None:
        self._id = f"{self._PREFIX}-{secrets.token_hex(12)}"
        self._created = int(time.time())

    error = staticmethod(openai_error)

    def first_events(self) -> Iterator[bytes]:
        yield from ()

    def events(self, delta: ReplyDelta) -> Iterator[bytes]:
        chunk = self._grow(delta)
        if chunk is not None:
            yield as_event(chunk)

    def last_events(self, end: ReplyEnd) -> Iterator[bytes]:
        yield as_event(self._last_chunk(end))
        if self.includes_usage:
            yield as_event({**self._body(self._CHUNK, {}, end), "choices": []})
        yield _LAST_EVENT

    @abstractmethod
    def _grow(self, delta: ReplyDelta) -> Json | None:
        """Take what a reply has grown by, and return the chunk for it; None if it shows nothing."""

    @abstractmethod
    def _last_chunk(self, end: ReplyEnd) -> Json:
        """Return the chunk that says why the reply ended."""

    def _body(self, kind: str, choice: Json, end: ReplyEnd | None = None) -> Json:
        """Return a body with one choice; with the usage if the reply has ended."""
        body: Json = {"id": self._id, "object": kind, "created": self._created}
        body |= {"model": self.model, "choices": [{"index": 0, **choice}]}
        return body if end is None else {**body, "usage": _usage_of(end)}


def _usage_of(end: ReplyEnd) -> Json:
    """Return OpenAI's usage of a request, with what the cache holds in `agentkv`."""
    return {
        "prompt_tokens": end.num_prompt,
        "completion_tokens": end.num_written,
        "total_tokens": end.num_prompt + end.num_written,
        "prompt_tokens_details": {"cached_tokens": end.num_cached},
        "completion_tokens_details": {"reasoning_tokens": end.num_thought},
        "agentkv": cache_use_of(end),
    }


@dataclass(slots=True)
class ChatAnswer(OpenAIAnswer):
    """The answer of `/v1/chat/completions`."""

    _PREFIX = "chatcmpl"
    _CHUNK = "chat.completion.chunk"

    _reasoning: list[str] = field(default_factory=list)
    _calls: list[Json] = field(default_factory=list)
    _logprobs: list[Json] | None = None

    def first_events(self) -> Iterator[bytes]:
        yield as_event(self._delta({"role": "assistant", "content": ""}))

    def _grow(self, delta: ReplyDelta) -> Json | None:
        """Return a chunk of text, thought and calls."""
        grown: Json = {}
        for part in delta.parts:
            if isinstance(part, Call):
                call = _call(part)
                grown.setdefault("tool_calls", []).append({"index": len(self._calls), **call})
                self._calls.append(call)
                self.calls.append(part)
                continue
            is_content = part.kind == "content"
            (self.content if is_content else self._reasoning).append(part.text)
            name = "content" if is_content else "reasoning_content"
            grown[name] = grown.get(name, "") + part.text
        if not delta.tokens:
            return self._delta(grown) if grown else None
        noted = [_chat_logprob(token) for token in delta.tokens]
        self._logprobs = [*(self._logprobs or ()), *noted]
        return self._delta(grown, logprobs={"content": noted, "refusal": None})

    def _last_chunk(self, end: ReplyEnd) -> Json:
        return self._delta({}, end.reason)

    def whole(self, end: ReplyEnd) -> Json:
        content = self.text
        has_content = bool(content) or not self._calls
        message: Json = {"role": "assistant", "content": content if has_content else None}
        message["refusal"] = None
        if self._reasoning:
            message["reasoning_content"] = "".join(self._reasoning)
        if self._calls:
            message["tool_calls"] = self._calls
        logprobs = None if self._logprobs is None else {"content": self._logprobs, "refusal": None}
        choice = {"message": message, "finish_reason": end.reason, "logprobs": logprobs}
        return self._body("chat.completion", choice, end)

    def _delta(self, delta: Json, reason: str | None = None, logprobs: Json | None = None) -> Json:
        choice = {"delta": delta, "finish_reason": reason, "logprobs": logprobs}
        return self._body(self._CHUNK, choice)


@dataclass(slots=True)
class CompletionAnswer(OpenAIAnswer):
    """The answer of `/v1/completions`."""

    _PREFIX = "cmpl"
    _CHUNK = "text_completion"

    _tokens: list[ReplyToken] = field(default_factory=list)

    def _grow(self, delta: ReplyDelta) -> Json | None:
        """Return a chunk of text."""
        text = "".join(part.text for part in delta.parts if isinstance(part, TextPart))
        self.content.append(text)
        self._tokens += delta.tokens
        return self._choice(text, None, delta.tokens) if text or delta.tokens else None

    def _last_chunk(self, end: ReplyEnd) -> Json:
        return self._choice("", end.reason, ())

    def whole(self, end: ReplyEnd) -> Json:
        return self._choice(self.text, end.reason, self._tokens, end)

    def _choice(
        self,
        text: str,
        reason: str | None,
        tokens: Sequence[ReplyToken],
        end: ReplyEnd | None = None,
    ) -> Json:
        logprobs = _completion_logprobs(tokens) if tokens else None
        choice = {"text": text, "finish_reason": reason, "logprobs": logprobs}
        return self._body(self._CHUNK, choice, end)


def new_call_id() -> str:
    """Return a new id for a call, in the only form that Mistral's templates accept: nine letters
    and digits."""
    alphabet = string.ascii_letters + string.digits
    return "".join(secrets.choice(alphabet) for _ in range(9))


def _call(call: Call) -> Json:
    function = {"name": call.name, "arguments": call.arguments}
    return {"id": new_call_id(), "type": "function", "function": function}


def _logprob(token: ReplyToken) -> float:
    """Return a token's log-probability; 0 for one that the grammar forced."""
    return 0.0 if token.logprob is None else token.logprob.value


def _chat_logprob(token: ReplyToken) -> Json:
    return {
        "token": token.text,
        "logprob": _logprob(token),
        "bytes": _numbers(token.data),
        "top_logprobs": [
            {"token": each.text, "logprob": each.logprob, "bytes": _numbers(each.data)}
            for each in token.top
        ],
    }


def _numbers(data: bytes | None) -> list[int] | None:
    return None if data is None else list(data)


def _completion_logprobs(tokens: Sequence[ReplyToken]) -> Json:
    return {
        "tokens": [_name(token) for token in tokens],
        "token_logprobs": [_logprob(token) for token in tokens],
        "top_logprobs": [{_name(each): each.logprob for each in token.top} for token in tokens],
        "text_offset": [token.start for token in tokens],
    }


def _name(token: ReplyToken | TopToken) -> str:
    """Return a token's name where nothing else shows its bytes."""
    is_text = token.data is None or token.data == token.text.encode()
    return token.text if is_text else f"bytes:{token.text}"


_LAST_EVENT = b"data: [DONE]\n\n"
