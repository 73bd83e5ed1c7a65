"""The seam between the agent loop and whatever answers it: a language model, or a script.

The loop hands over pages and gets text back. How a page becomes tokens, how they reach the model
and what its cache keeps of them is the model's own business, so a scripted model needs none of it.
"""

from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from agentkv_env.page import Page


class ContextLimit(RuntimeError):
    """The episode has outgrown the model's positions."""


@dataclass(frozen=True, slots=True)
class CacheUse:
    """Bytes of keys and values after a turn; `peak_bytes` is the most since the episode began."""

    seen_tokens: int
    live_bytes: int
    peak_bytes: int


@dataclass(frozen=True, slots=True)
class Reply:
    """One turn of a model."""

    text: str
    """What the model wrote, fences included, without its end token."""
    observation: str = ""
    """The text the model was shown this turn; empty for models that read the page itself."""
    num_tokens_in: int = 0
    num_tokens_out: int = 0
    prefill_s: float = 0.0
    decode_s: float = 0.0
    cache: CacheUse | None = None
    """None for models without a cache."""


class Conversation(Protocol):
    """One episode with a model: append-only, one reply a turn."""

    def reply(self, page: Page, note: str = "", deadline: float | None = None) -> Reply:
        """Show `page` and return what the model answers.

        `note` is the harness's own word on the last action (its error, say), put before the page.
        `deadline` is a `time.monotonic()` value; decoding past it raises `TimeoutError`.
        A turn that no longer fits the model raises `ContextLimit`.
        """
        ...


class Model(Protocol):
    """Something that can act on pages."""

    @property
    def name(self) -> str:
        """What result rows call it."""
        ...

    def begin(self, goal: str, *, seed: int = 0) -> Conversation:
        """A fresh episode. Equal seeds give equal replies to equal pages."""
        ...


@runtime_checkable
class CachedModel(Protocol):
    """A model that acts only once it is said how its cache is kept."""

    def with_cache(self, policy: Any, **options: Any) -> Model:
        """This model with its cache kept by `policy`; `agentkv.models.local` has the options."""
        ...
