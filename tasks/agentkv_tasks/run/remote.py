"""A worker's end of its line to the process that holds the model.

Every message is a frozen value. The worker asks and waits; it needs neither torch nor weights.
"""

import contextlib
import multiprocessing.connection
import time
from collections.abc import Iterator
from dataclasses import dataclass

from agentkv.config import PolicySettings
from agentkv.models.model import ContextLimit, Reply
from agentkv_env.page import Page

Connection = multiprocessing.connection.Connection


class ModelGone(RuntimeError):
    """The process that held the model has ended: no episode can go on."""


class ReplyFailed(RuntimeError):
    """The model could not reply; the message names what went wrong in its process."""


@dataclass(frozen=True, slots=True)
class Begin:
    """A new episode; the one before it on this line is forgotten."""

    policy: PolicySettings
    budget: int | str | None
    goal: str
    seed: int


@dataclass(frozen=True, slots=True)
class Ask:
    """A page to reply to."""

    page: Page
    note: str
    seconds: float | None
    """Until the reply is no longer waited for: clocks of two processes need not agree."""


@dataclass(frozen=True, slots=True)
class End:
    """The episode is over; its cache can go. Answered by `Peaks`."""


@dataclass(frozen=True, slots=True)
class Welcome:
    """The first thing said on a line: the model is loaded."""

    name: str
    device: str


@dataclass(frozen=True, slots=True)
class Failed:
    """There is no reply."""

    kind: str
    message: str


@dataclass(frozen=True, slots=True)
class Peaks:
    """Most memory of the model's process during an episode; None where others shared it."""

    rss_bytes: int | None = None
    allocator_bytes: int | None = None


Request = Begin | Ask | End
Response = Welcome | Reply | Failed | Peaks


class RemoteModel:
    """The model at the other end of `connection`; waits until it is loaded.

    Raises:
        ModelGone: here and in everything it does, once the process there has ended.
    """

    def __init__(self, connection: Connection) -> None:
        self._line = _Line(connection)
        welcome = self._line.hear()
        assert isinstance(welcome, Welcome)
        self.name, self.device = welcome.name, welcome.device

    def with_cache(self, policy: PolicySettings, budget: int | str | None) -> "RemoteActing":
        """A `Model` whose caches are kept by `policy`."""
        return RemoteActing(self.name, self._line, policy, budget)

    def end(self) -> Peaks:
        """End the episode in progress."""
        self._line.say(End())
        peaks = self._line.hear()
        assert isinstance(peaks, Peaks)
        return peaks


@dataclass(frozen=True, slots=True)
class RemoteActing:
    """A `Model`. One episode at a time: a new one ends the one before."""

    name: str
    line: "_Line"
    policy: PolicySettings
    budget: int | str | None

    def begin(self, goal: str, *, seed: int = 0) -> "RemoteConversation":
        self.line.say(Begin(self.policy, self.budget, goal, seed))
        return RemoteConversation(self.line)


@dataclass(frozen=True, slots=True)
class RemoteConversation:
    """One episode."""

    line: "_Line"

    def reply(self, page: Page, note: str = "", deadline: float | None = None) -> Reply:
        """As `Conversation.reply`.

        Raises:
            ContextLimit, TimeoutError: as a model here would.
            ReplyFailed: anything else that went wrong there.
        """
        seconds = None if deadline is None else deadline - time.monotonic()
        self.line.say(Ask(page, note, seconds))
        answer = self.line.hear()
        match answer:
            case Reply():
                return answer
            case Failed(kind="TimeoutError"):
                raise TimeoutError(answer.message)
            case Failed(kind="ContextLimit"):
                raise ContextLimit(answer.message)
            case Failed():
                raise ReplyFailed(f"{answer.kind}: {answer.message}")
        raise AssertionError(f"{answer} is no reply")


class _Line:
    """One question at a time, each with its answer."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def say(self, request: Request) -> None:
        with _both_there():
            self._connection.send(request)

    def hear(self) -> Response:
        with _both_there():
            response: Response = self._connection.recv()
        return response


@contextlib.contextmanager
def _both_there() -> Iterator[None]:
    try:
        yield
    except (EOFError, OSError) as error:
        raise ModelGone("the process that holds the model has ended") from error
