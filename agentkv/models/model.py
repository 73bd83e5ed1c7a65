"""The interface between the agent loop and a model, which may be a language model or a script.

The loop passes pages and receives text. Tokens, forwards and the cache are internal to the model,
so a scripted model needs none of them.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from agentkv.progress import Listener
from agentkv.settings import ActingSettings
from agentkv.trace import CacheStatistics
from agentkv_env.page import Page

if TYPE_CHECKING:
    from agentkv.dialog.schema.prepared import PreparedSchema


class ContextLimit(RuntimeError):
    """The episode needs more positions than the model has."""


class OutOfMemory(RuntimeError):
    """The device or the host had no memory left for a reply; the conversation cannot go on."""


class BrokenConversation(RuntimeError):
    """An error ended a reply in its middle, and the conversation cannot go on."""


class Cancelled(RuntimeError):
    """Somebody cancelled the reply while the model was writing it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheUse(CacheStatistics):
    """Sizes and counts of a conversation's caches after a turn."""

    live_bytes: int = 0
    """Bytes of the stored keys and values."""
    peak_bytes: int = 0
    """Largest `live_bytes` since the cache was begun."""


@dataclass(frozen=True, slots=True)
class Reply:
    """A model's reply in one turn, with its measurements."""

    text: str
    """The text that the model wrote, fences included, without its end token."""
    observation: str = ""
    """The page text that the model was shown; empty for models that read the `Page` itself."""
    num_tokens_in: int = 0
    """Tokens of this turn's prompt."""
    num_tokens_out: int = 0
    """Tokens of the reply and of the thought before it."""
    thinking: str = ""
    """Text of the thought before the reply; empty if there is none."""
    prefill_s: float = 0.0
    """Seconds spent on reading the prompt."""
    decode_s: float = 0.0
    """Seconds spent on writing the reply."""
    cache: CacheUse | None = None
    """None for models without a cache."""
    turn: int = 0
    """Number of the turn in the conversation, from 0, as in the labels of the cache's spans."""
    token_ends: tuple[int, ...] = ()
    """Per token of the reply, the number of characters of `text` up to its end."""
    confidences: tuple[float | None, ...] = ()
    """Per token of the reply, the probability that the model gave it before the grammar and the
    temperature changed anything, from the logits that the gate reads; None if the grammar forced
    the token."""
    token_looks: tuple[int, ...] = ()
    """Per token of the reply, the entries that were fetched by the look after which it was sampled,
    over all layers and heads; 0 for no look. Empty if no token looked back."""
    piece_ends: tuple[int, ...] = ()
    """Per piece of `observation`, the number of characters up to its end; see `models.held`."""
    held: Mapping[str, str] = field(default_factory=dict)
    """Levels of the spans that lost or regained entries in this turn, by label. A page has a digit
    from 0 to 4 for each piece, any other span has one digit; see `models.held`."""
    parts: Mapping[str, float] | None = None
    """Seconds of the reply by part, such as `reading` and `decoding`; None if they were not
    measured."""


class Conversation(Protocol):
    """One episode with a model: append-only, with one reply per turn."""

    def reply(self, page: Page, note: str = "", deadline: float | None = None) -> Reply:
        """Show `page` to the model and return its reply.

        Args:
            note: the harness's message about the last action, such as its error; it precedes the
                page.
            deadline: a `time.monotonic()` value, checked between tokens; None for no deadline.

        Raises:
            TimeoutError: the deadline passed. The conversation cannot continue.
            ContextLimit: the turn does not fit the model's positions.
            OutOfMemory: no memory was left. The conversation cannot continue.
        """
        ...


@runtime_checkable
class LastingConversation(Conversation, Protocol):
    """A conversation that goes on after its first goal is reached or given up, and after a
    `TimeoutError`."""

    is_cancelled: Callable[[], bool]
    """Asked before each token; True ends the reply with `Cancelled`."""

    def pursue(self, goal: str) -> None:
        """Replace the goal from the next reply on; what was read before stays in the cache."""
        ...

    def answer(
        self,
        question: str,
        page: Page | None,
        deadline: float | None = None,
        *,
        schema: "PreparedSchema | None" = None,
    ) -> Reply:
        """Return the model's answer in words.

        Args:
            question: the question.
            page: the current page, which the model is shown with the question; None: nothing.
            deadline: as in `Conversation.reply`.
            schema: the answer is JSON of this schema; None: any text. Only for models with
                `AnswersInJson`.

        Raises:
            TimeoutError: the deadline passed. The conversation can continue.
            Cancelled: `is_cancelled` returned True. The conversation can continue.
            ContextLimit: the turn does not fit the model's positions.
        """
        ...

    def save(self, folder: Path) -> None:
        """Write the conversation to a folder, from which its model makes it again."""
        ...


@runtime_checkable
class Reporting(Protocol):
    """A conversation that says how far its reply is."""

    on_progress: Listener | None
    """Told after each forward; None: nobody is."""


@runtime_checkable
class Asking(Protocol):
    """A conversation whose replies are written elsewhere, so that other work can go on."""

    def ask(self, page: Page, note: str = "", deadline: float | None = None) -> Callable[[], Reply]:
        """Show `page` to the model, and return a function that waits for its reply.

        The arguments, and what the function raises, are those of `Conversation.reply`.
        """
        ...


class Model(Protocol):
    """A model that acts on pages."""

    @property
    def name(self) -> str:
        """The model's name in result rows."""
        ...

    def begin(self, goal: str, *, seed: int = 0) -> Conversation:
        """Begin an episode with this goal. Equal seeds give equal replies to equal pages."""
        ...


@runtime_checkable
class LastingModel(Protocol):
    """A model whose conversations can be saved."""

    def load(self, folder: Path) -> LastingConversation:
        """Return the conversation that `LastingConversation.save` wrote to a folder."""
        ...


@runtime_checkable
class AnswersInJson(Protocol):
    """A model that may be able to answer in JSON."""

    @property
    def answers_in_json(self) -> bool:
        """True if it is."""
        ...


@runtime_checkable
class CachedModel(Protocol):
    """A model that needs a cache policy before it can act."""

    def with_cache(
        self, policy: Any, settings: ActingSettings | None = None, **options: Any
    ) -> Model:
        """Return this model with a cache under `policy`; see `LocalModel.with_cache`."""
        ...
