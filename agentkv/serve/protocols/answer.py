"""What every protocol's answer is: server-sent events or a whole body, and a form of errors."""

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from agentkv.dialog.calls import Call
from agentkv.models.model import ContextLimit
from agentkv.serve.body import RequestError
from agentkv.serve.job import (
    REFUSALS,
    MemoryLimit,
    QueueFull,
    ReplyDelta,
    ReplyEnd,
    SchemaViolated,
    Stopping,
)
from agentkv.serve.matching import SessionConflict
from agentkv.serve.named_files import FilesFull, NoSuchSession

Json = dict[str, Any]

_ERRORS: dict[type[Exception], tuple[int, str]] = {
    ContextLimit: (400, "context_length_exceeded"),
    NoSuchSession: (404, "no_such_session"),
    SessionConflict: (409, "session_conflict"),
    MemoryLimit: (400, "memory_limit_exceeded"),
    FilesFull: (400, "file_quota_exceeded"),
    SchemaViolated: (422, "schema_violated"),
    TimeoutError: (504, "timeout"),
    QueueFull: (429, "queue_full"),
    Stopping: (503, "stopping"),
}
"""HTTP status and code of errors."""


@dataclass(frozen=True, slots=True)
class Failure:
    """An error as a client is told it."""

    status: int
    """HTTP status."""
    message: str
    code: str | None = None
    param: str | None = None
    """The parameter that is wrong."""

    @classmethod
    def of(cls, error: Exception) -> "Failure":
        """Return what a client is told of an error: nothing of one that is the server's own."""
        if isinstance(error, RequestError):
            return cls(error.status, str(error), error.code, error.param)
        for kind, (status, code) in _ERRORS.items():
            if isinstance(error, kind):
                return cls(status, str(error), code)
        if isinstance(error, REFUSALS):
            return cls(400, str(error))
        return cls(500, "the server failed to answer; its log says more")


ErrorForm = Callable[[Failure], Json]
"""Returns the body of an error."""


@dataclass(slots=True)
class Answer(ABC):
    """The answer to one request; it collects what the reply is.

    Args:
        model: name of the model that answers.
    """

    model: str
    calls: list[Call] = field(default_factory=list, init=False)
    """Calls in the reply."""
    content: list[str] = field(default_factory=list, init=False)

    @property
    def text(self) -> str:
        """Text of the reply, without thoughts and calls."""
        return "".join(self.content)

    @abstractmethod
    def first_events(self) -> Iterator[bytes]:
        """Yield the events that begin a stream."""

    @abstractmethod
    def events(self, delta: ReplyDelta) -> Iterator[bytes]:
        """Take what a reply has grown by, and yield the events for it."""

    @abstractmethod
    def last_events(self, end: ReplyEnd) -> Iterator[bytes]:
        """Yield the events that say why the reply ended."""

    @abstractmethod
    def whole(self, end: ReplyEnd) -> Json:
        """Return the whole answer; `events` took all of the reply before."""

    @staticmethod
    @abstractmethod
    def error(failure: Failure) -> Json:
        """Return the body of an error."""

    def error_event(self, failure: Failure) -> bytes:
        """Return the event that ends a stream that failed."""
        return as_event(self.error(failure))


def reuse_of(end: ReplyEnd) -> Json:
    """Return what was kept of a conversation, and where the request first differed from it."""
    where = end.reuse.difference
    return {
        "how": end.reuse.how,
        "kept": end.num_cached,
        "read": end.num_prompt - end.num_cached,
        "forgotten": end.reuse.num_forgotten,
        "differs_at": where and {"message": where.message, "character": where.character},
    }


def cache_use_of(end: ReplyEnd) -> Json:
    """Return the member `agentkv` of a usage: the session, and what its cache holds."""
    use = {"session": end.session, "slot": end.slot, "reuse": reuse_of(end), **end.cache}
    if (saved := end.saved) is not None:
        use["saved"] = {
            "filename": saved.name,
            "n_saved": 0 if saved.num_bytes is None else saved.num_tokens,
            "n_written": saved.num_bytes or 0,
        }
    return use


def as_event(body: Json, name: str | None = None) -> bytes:
    """Return a body as a server-sent event, with its name if the protocol names events."""
    data = b"data: " + json.dumps(body, ensure_ascii=False).encode("utf-8", "replace") + b"\n\n"
    return data if name is None else f"event: {name}\n".encode() + data
