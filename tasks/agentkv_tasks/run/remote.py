"""The worker's side of its connection to the process that holds the model.

Every message is a frozen value. The worker sends a request and waits for the response; it needs
neither torch nor weights.
"""

import contextlib
import multiprocessing.connection
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from agentkv.models.model import ContextLimit, OutOfMemory, Reply
from agentkv.settings import PolicySettings
from agentkv_env.page import Page
from agentkv_env.timing import Stopwatch

Connection = multiprocessing.connection.Connection


class ModelGone(RuntimeError):
    """The process that held the model has ended; no episode can continue."""


class NotSaved(RuntimeError):
    """An episode could not be saved, or not be loaded; the message says why."""


class ReplyFailed(RuntimeError):
    """The model could not reply; the message names the error in its process."""


@dataclass(frozen=True, slots=True)
class Begin:
    """Begin a new episode; the previous one on this connection ends."""

    policy: PolicySettings
    budget: int | str | None
    goal: str
    seed: int


@dataclass(frozen=True, slots=True)
class Load:
    """Resume a saved episode; the previous one on this connection ends. The response is
    `Loaded`."""

    policy: PolicySettings
    budget: int | str | None
    folder: Path


@dataclass(frozen=True, slots=True)
class Save:
    """Save the episode to a folder, between two replies. The response is `Saved`."""

    folder: Path


@dataclass(frozen=True, slots=True)
class Ask:
    """Request the reply to a page."""

    page: Page
    note: str
    seconds: float | None
    """Time limit for the reply. It is relative, because the clocks of two processes may differ."""


@dataclass(frozen=True, slots=True)
class End:
    """End the episode and free its cache. The response is `Peaks`."""


@dataclass(frozen=True, slots=True)
class Connected:
    """First message on a connection: the model is loaded."""

    name: str
    device: str


@dataclass(frozen=True, slots=True)
class Loaded:
    """The saved episode is loaded."""

    num_turns: int
    """Replies that it has so far."""


@dataclass(frozen=True, slots=True)
class Saved:
    """The episode is saved."""


@dataclass(frozen=True, slots=True)
class Failed:
    """The request raised an error."""

    kind: str
    message: str


@dataclass(frozen=True, slots=True)
class Peaks:
    """Peak memory of the model's process during an episode; None if others shared it, or if the
    episode began in an earlier process."""

    rss_bytes: int | None = None
    allocator_bytes: int | None = None


Request = Begin | Load | Save | Ask | End
Response = Connected | Loaded | Saved | Reply | Failed | Peaks


class RemoteModel:
    """The model at the other end of `connection`. The constructor waits until it is loaded.

    Raises:
        ModelGone: the process that holds the model has ended. Every method raises it too.
    """

    def __init__(self, connection: Connection) -> None:
        self._channel = _Channel(connection)
        greeting = self._channel.receive()
        assert isinstance(greeting, Connected)
        self.name, self.device = greeting.name, greeting.device

    def with_cache(
        self,
        policy: PolicySettings,
        budget: int | str | None,
        *,
        stopwatch: Stopwatch | None = None,
    ) -> "RemoteActing":
        """Return a `Model` whose caches use `policy`.

        Args:
            stopwatch: charged with the parts that the model's process measures.
        """
        return RemoteActing(self.name, self._channel, policy, budget, stopwatch)

    def end(self) -> Peaks:
        """End the current episode and return its peak memory."""
        self._channel.send(End())
        while not isinstance(peaks := self._channel.receive(), Peaks):
            pass  # a reply that an episode without a browser did not wait for
        return peaks


@dataclass(frozen=True, slots=True)
class RemoteActing:
    """A `Model` with one episode at a time: a new episode ends the previous one."""

    name: str
    channel: "_Channel"
    policy: PolicySettings
    budget: int | str | None
    stopwatch: Stopwatch | None

    def begin(self, goal: str, *, seed: int = 0) -> "RemoteConversation":
        self.channel.send(Begin(self.policy, self.budget, goal, seed))
        return RemoteConversation(self.channel, self.stopwatch)

    def load(self, folder: Path) -> "RemoteConversation":
        """Return the episode that `RemoteConversation.save` wrote.

        Raises:
            NotSaved: the folder holds no episode with this model, policy and settings.
        """
        self.channel.send(Load(self.policy, self.budget, folder))
        match answer := self.channel.receive():
            case Loaded():
                return RemoteConversation(self.channel, self.stopwatch, answer.num_turns)
            case Failed():
                raise NotSaved(answer.message)
        raise AssertionError(f"{answer} is not the answer to Load")


@dataclass(frozen=True, slots=True)
class RemoteConversation:
    """An episode with the remote model."""

    channel: "_Channel"
    stopwatch: Stopwatch | None
    num_turns: int = 0
    """Replies that it had when it was loaded; 0 for a new one."""

    def save(self, folder: Path) -> None:
        """Write the episode to a folder, which replaces the one saved there before.

        Raises:
            NotSaved: it could not be written, or its cache cannot be saved.
        """
        self.channel.send(Save(folder))
        match answer := self.channel.receive():
            case Saved():
                return
            case Failed():
                raise NotSaved(answer.message)
        raise AssertionError(f"{answer} is not the answer to Save")

    def reply(self, page: Page, note: str = "", deadline: float | None = None) -> Reply:
        """Return the reply to a page, as `Conversation.reply` does.

        Raises:
            ContextLimit: the conversation exceeds the context of the model.
            TimeoutError: the deadline passed.
            ReplyFailed: any other error in the model's process.
        """
        return self.ask(page, note, deadline)()

    def ask(self, page: Page, note: str = "", deadline: float | None = None) -> Callable[[], Reply]:
        """Send the page, and return a function that waits for the reply, as `Asking.ask` does."""
        seconds = None if deadline is None else deadline - time.monotonic()
        asked = {} if self.stopwatch is None else self.stopwatch.read()
        self.channel.send(Ask(page, note, seconds))
        return partial(self._wait, asked)

    def _wait(self, asked: Mapping[str, float]) -> Reply:
        answer = self.channel.receive()
        match answer:
            case Reply():
                if self.stopwatch is not None:
                    self.stopwatch.attribute(asked, answer.parts or {})
                return answer
            case Failed(kind="TimeoutError"):
                raise TimeoutError(answer.message)
            case Failed(kind="ContextLimit"):
                raise ContextLimit(answer.message)
            case Failed(kind="OutOfMemory"):
                raise OutOfMemory(answer.message)
            case Failed():
                raise ReplyFailed(f"{answer.kind}: {answer.message}")
        raise AssertionError(f"{answer} is not a reply")


class _Channel:
    """A connection that raises `ModelGone` once it is lost."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def send(self, request: Request) -> None:
        with _detecting_loss():
            self._connection.send(request)

    def receive(self) -> Response:
        with _detecting_loss():
            response: Response = self._connection.recv()
        return response


@contextlib.contextmanager
def _detecting_loss() -> Iterator[None]:
    try:
        yield
    except (EOFError, OSError) as error:
        raise ModelGone("the process that holds the model has ended") from error
