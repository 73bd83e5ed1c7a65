"""Jobs of the engine, and the events that answer them."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from agentkv.cache.checkpoint.file import CacheFileError
from agentkv.dialog.calls import Call, FunctionDeclaration
from agentkv.dialog.grammar import GrammarError
from agentkv.dialog.messages import Chat
from agentkv.dialog.rendering import TemplateError
from agentkv.dialog.reply_parts import TextPart
from agentkv.models.model import ContextLimit
from agentkv.models.sampling import LogProbability
from agentkv.models.saved import ConversationFileError
from agentkv.policies.entries import PolicyError
from agentkv.serve.constraints import LateCheck
from agentkv.serve.matching import SessionConflict, SessionQuery
from agentkv.serve.named_files import FilesFull, NoSuchSession
from agentkv.serve.reuse import Reuse

REFUSALS = (
    CacheFileError,
    ContextLimit,
    ConversationFileError,
    FilesFull,
    GrammarError,
    NoSuchSession,
    PolicyError,
    SessionConflict,
    TemplateError,
)
"""Errors of a request that the client can correct."""


class QueueFull(RuntimeError):
    """As many requests wait as the server lets wait."""


class Stopping(RuntimeError):
    """The server is about to stop."""


class SchemaViolated(ValueError):
    """A complete reply does not follow its schema."""


class MemoryLimit(ValueError):
    """The cache of a request would take more memory than all sessions have."""


@dataclass(frozen=True, slots=True)
class ReplyToken:
    """A token of a reply, for log-probabilities."""

    id: int
    start: int
    """Where its text begins in the decoded reply."""
    data: bytes | None
    """Its bytes, which may be a part of a character; None for a control token without text."""
    text: str
    logprob: LogProbability | None
    """None for a token that the grammar forced."""
    top: tuple["TopToken", ...] = ()
    """The likeliest tokens in its place, likeliest first."""


@dataclass(frozen=True, slots=True)
class TopToken:
    """A token that is likely in a place of a reply."""

    data: bytes | None
    text: str
    logprob: float


@dataclass(frozen=True, slots=True)
class ReplyDelta:
    """A reply has grown."""

    parts: tuple[TextPart | Call, ...]
    tokens: tuple[ReplyToken, ...] = ()
    num_prompt: int = 0
    """As in `ReplyEnd`, and so is the next one."""
    num_cached: int = 0


@dataclass(frozen=True, slots=True)
class SavedFile:
    """A session that was saved by name after a reply."""

    name: str
    num_tokens: int
    num_bytes: int | None
    """None if it could not be written."""


@dataclass(frozen=True, slots=True)
class ReplyEnd:
    """A reply is complete."""

    reason: Literal["stop", "length", "tool_calls"]
    num_prompt: int
    """Tokens before the reply, those of earlier requests included."""
    num_cached: int
    """Prompt tokens that were in the cache already."""
    num_written: int
    num_thought: int
    """Tokens of the reply that belong to a thought."""
    session: str
    slot: int
    cache: Mapping[str, Any]
    """What the cache holds; see `agentkv.serve.session.usage`."""
    reuse: Reuse
    """What the request kept of its session."""
    read_s: float = 0.0
    """Seconds from the request until its prompt was read."""
    write_s: float = 0.0
    """Seconds in which the reply was written after that."""
    stop: str | None = None
    """The stop text that ended it."""
    saved: SavedFile | None = None
    """The file to which the session was saved; None if the request named none."""


@dataclass(frozen=True, slots=True)
class ReplyFailure:
    """A reply failed."""

    error: Exception


Event = ReplyDelta | ReplyEnd | ReplyFailure


@dataclass(slots=True, eq=False)
class EngineJob:
    """A request as the engine is asked it."""

    session: SessionQuery
    prompt: Chat | str
    """Messages, or a raw prompt."""
    send: Callable[[Event], None]
    """Receives what answers the job, in the engine's thread."""
    deadline: float
    """`time.monotonic()` at which it ends unanswered."""
    prompt_ids: tuple[int, ...] | None = None
    """Ids of a raw prompt that was given as such; they are read where its text is new."""
    functions: tuple[FunctionDeclaration, ...] = ()
    """Functions whose calls are taken out of the text."""
    max_tokens: int | None = None
    """Maximum number of tokens in the reply; None: as many as the server allows."""
    temperature: float = 0.0
    top_p: float = 1.0
    seed: int | None = None
    stops: tuple[str, ...] = ()
    min_tokens: int = 0
    """Tokens before which no id ends the reply."""
    ignores_end: bool = False
    """True if the ids that end the model's replies do not end this one."""
    grammar: str | None = None
    """Lark grammar of the reply; None for free text."""
    check: LateCheck = LateCheck()
    """What is checked of a complete reply."""
    num_logprobs: int | None = None
    """Likeliest ids noted per token; None notes no log-probabilities."""
    asked_at: float = field(default_factory=time.monotonic)
    is_cancelled: bool = False
    """Set it to end the reply at the next token."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What the server grants to requests."""

    max_tokens: int = 4096
    """Maximum number of tokens in a reply."""
    max_running: int = 16
    """Maximum number of replies in the batch."""
    max_waiting: int = 64
    """Maximum number of requests that wait for a place."""
