"""Answers in OpenAI's form: whole, in chunks, and errors."""

import json
import secrets
import string
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from agentkv.dialog.calls import Call
from agentkv.dialog.reply_parts import Part
from agentkv.models.model import ContextLimit
from agentkv.serve.body import RequestError
from agentkv.serve.job import (
    REFUSALS,
    Finished,
    MemoryLimit,
    QueueFull,
    SchemaViolated,
    Stopping,
    Token,
    TopToken,
    Wrote,
)
from agentkv.serve.sessions import NoSuchSession, SessionConflict

Json = dict[str, Any]


def usage_of(finished: Finished) -> Json:
    """Return OpenAI's usage of a request, with what the cache holds in `agentkv`."""
    return {
        "prompt_tokens": finished.num_prompt,
        "completion_tokens": finished.num_written,
        "total_tokens": finished.num_prompt + finished.num_written,
        "prompt_tokens_details": {"cached_tokens": finished.num_cached},
        "completion_tokens_details": {"reasoning_tokens": finished.num_thought},
        "agentkv": {"session": finished.session, "slot": finished.slot, **finished.cache},
    }


def error_of(error: Exception) -> tuple[int, Json]:
    """Return the HTTP status and the body for an error."""
    param = code = None
    match error:
        case RequestError():
            status, param, code = error.status, error.param, error.code
        case ContextLimit():
            status, code = 400, "context_length_exceeded"
        case NoSuchSession():
            status, code = 404, "no_such_session"
        case SessionConflict():
            status, code = 409, "session_conflict"
        case MemoryLimit():
            status, code = 400, "memory_limit_exceeded"
        case SchemaViolated():
            status, code = 422, "schema_violated"
        case TimeoutError():
            status, code = 504, "timeout"
        case QueueFull():
            status, code = 429, "queue_full"
        case Stopping():
            status, code = 503, "stopping"
        case _ if isinstance(error, REFUSALS):
            status = 400
        case _:
            status = 500
            error = RuntimeError("the server failed to answer; its log says more")
    kind = "invalid_request_error" if status < 500 and status != 429 else "server_error"
    if status == 429:
        kind = "rate_limit_error"
    if status == 401:
        kind = "authentication_error"
    if status == 422:
        kind = "reply_error"
    body = {"message": str(error), "type": kind, "param": param, "code": code}
    return status, {"error": body}


class Answer(Protocol):
    """The form of one endpoint's answers; it collects what a reply is."""

    @property
    def text(self) -> str:
        """Text of the reply, without thoughts and calls."""
        ...

    @property
    def calls(self) -> list[Call]:
        """Calls in the reply."""
        ...

    def chunk(self, wrote: Wrote) -> Json | None:
        """Take what a reply has grown by, and return the chunk for it; None if it shows nothing."""
        ...

    def first_chunk(self) -> Json | None:
        """Return the chunk that begins a stream."""
        ...

    def last_chunk(self, finished: Finished) -> Json:
        """Return the chunk that says why the reply ended."""
        ...

    def whole(self, finished: Finished) -> Json:
        """Return the whole answer."""
        ...

    def usage_chunk(self, finished: Finished) -> Json:
        """Return the chunk with the usage."""
        ...


@dataclass(slots=True)
class ChatAnswer:
    """Answers of `/v1/chat/completions`."""

    model: str
    id: str = field(default_factory=lambda: f"chatcmpl-{secrets.token_hex(12)}")
    created: int = field(default_factory=lambda: int(time.time()))
    calls: list[Call] = field(default_factory=list)
    _content: list[str] = field(default_factory=list)
    _reasoning: list[str] = field(default_factory=list)
    _calls: list[Json] = field(default_factory=list)
    _logprobs: list[Json] | None = None

    @property
    def text(self) -> str:
        """Text of the reply; see `Answer`."""
        return "".join(self._content)

    def first_chunk(self) -> Json:
        """Return the chunk that names the role."""
        return self._chunk({"role": "assistant", "content": ""})

    def chunk(self, wrote: Wrote) -> Json | None:
        """Return a chunk of text, thought and calls; see `Answer`."""
        delta: Json = {}
        for part in wrote.parts:
            match part:
                case Part(kind="content"):
                    self._content.append(part.text)
                    delta["content"] = delta.get("content", "") + part.text
                case Part():
                    self._reasoning.append(part.text)
                    delta["reasoning_content"] = delta.get("reasoning_content", "") + part.text
                case Call():
                    call = _call(part)
                    delta.setdefault("tool_calls", []).append({"index": len(self._calls), **call})
                    self._calls.append(call)
                    self.calls.append(part)
        logprobs = None
        if wrote.tokens:
            noted = [_chat_logprob(token) for token in wrote.tokens]
            self._logprobs = [*(self._logprobs or ()), *noted]
            logprobs = {"content": noted, "refusal": None}
        if not delta and logprobs is None:
            return None
        return self._chunk(delta, logprobs=logprobs)

    def last_chunk(self, finished: Finished) -> Json:
        """Return the chunk with the reason of the end."""
        return self._chunk({}, finished.reason)

    def usage_chunk(self, finished: Finished) -> Json:
        """Return the chunk with the usage."""
        return {**self._chunk({}), "choices": [], "usage": usage_of(finished)}

    def whole(self, finished: Finished) -> Json:
        """Return the whole answer."""
        content = self.text
        has_content = bool(content) or not self._calls
        message: Json = {"role": "assistant", "content": content if has_content else None}
        message["refusal"] = None
        if self._reasoning:
            message["reasoning_content"] = "".join(self._reasoning)
        if self._calls:
            message["tool_calls"] = self._calls
        logprobs = None if self._logprobs is None else {"content": self._logprobs, "refusal": None}
        choice = {"message": message, "finish_reason": finished.reason, "logprobs": logprobs}
        return {**_envelope(self, "chat.completion", choice), "usage": usage_of(finished)}

    def _chunk(self, delta: Json, reason: str | None = None, logprobs: Json | None = None) -> Json:
        choice = {"delta": delta, "finish_reason": reason, "logprobs": logprobs}
        return _envelope(self, "chat.completion.chunk", choice)


@dataclass(slots=True)
class CompletionAnswer:
    """Answers of `/v1/completions`."""

    model: str
    id: str = field(default_factory=lambda: f"cmpl-{secrets.token_hex(12)}")
    created: int = field(default_factory=lambda: int(time.time()))
    calls: list[Call] = field(default_factory=list)
    _text: list[str] = field(default_factory=list)
    _tokens: list[Token] = field(default_factory=list)

    @property
    def text(self) -> str:
        """Text of the reply; see `Answer`."""
        return "".join(self._text)

    def first_chunk(self) -> None:
        """Return None: a stream begins with its text."""

    def chunk(self, wrote: Wrote) -> Json | None:
        """Return a chunk of text; see `Answer`."""
        text = "".join(part.text for part in wrote.parts if isinstance(part, Part))
        self._text.append(text)
        self._tokens += wrote.tokens
        if not text and not wrote.tokens:
            return None
        return self._answer(text, None, wrote.tokens)

    def last_chunk(self, finished: Finished) -> Json:
        """Return the chunk with the reason of the end."""
        return self._answer("", finished.reason, ())

    def usage_chunk(self, finished: Finished) -> Json:
        """Return the chunk with the usage."""
        return {**self._answer("", None, ()), "choices": [], "usage": usage_of(finished)}

    def whole(self, finished: Finished) -> Json:
        """Return the whole answer."""
        answer = self._answer(self.text, finished.reason, self._tokens)
        return {**answer, "usage": usage_of(finished)}

    def _answer(self, text: str, reason: str | None, tokens: Sequence[Token]) -> Json:
        logprobs = _completion_logprobs(tokens) if tokens else None
        choice = {"text": text, "finish_reason": reason, "logprobs": logprobs}
        return _envelope(self, "text_completion", choice)


def _envelope(answer: ChatAnswer | CompletionAnswer, kind: str, choice: Json) -> Json:
    """Return a body with one choice."""
    return {
        "id": answer.id,
        "object": kind,
        "created": answer.created,
        "model": answer.model,
        "choices": [{"index": 0, **choice}],
    }


def _call(call: Call) -> Json:
    # nine letters and digits: the only form that Mistral's templates accept
    alphabet = string.ascii_letters + string.digits
    id = "".join(secrets.choice(alphabet) for _ in range(9))
    function = {"name": call.name, "arguments": call.arguments}
    return {"id": id, "type": "function", "function": function}


def _logprob(token: Token) -> float:
    """Return a token's log-probability; 0 for one that the grammar forced."""
    return 0.0 if token.logprob is None else token.logprob.value


def _chat_logprob(token: Token) -> Json:
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


def _completion_logprobs(tokens: Sequence[Token]) -> Json:
    return {
        "tokens": [_name(token) for token in tokens],
        "token_logprobs": [_logprob(token) for token in tokens],
        "top_logprobs": [{_name(each): each.logprob for each in token.top} for token in tokens],
        "text_offset": [token.start for token in tokens],
    }


def _name(token: Token | TopToken) -> str:
    """Return a token's name where nothing else shows its bytes."""
    is_text = token.data is None or token.data == token.text.encode()
    return token.text if is_text else f"bytes:{token.text}"


def as_event(body: Json) -> bytes:
    """Return a body as a server-sent event."""
    return b"data: " + json.dumps(body, ensure_ascii=False).encode("utf-8", "replace") + b"\n\n"


LAST_EVENT = b"data: [DONE]\n\n"
