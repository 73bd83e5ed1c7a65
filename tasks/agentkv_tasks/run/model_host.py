"""The process that holds the model and serves the episodes of all workers."""

import multiprocessing.connection
import time
from dataclasses import dataclass
from functools import partial
from multiprocessing import reduction
from pathlib import Path
from typing import TYPE_CHECKING

from agentkv.build import load_run_model, make_acting
from agentkv.models.model import OutOfMemory
from agentkv.progress import Progress, telling_of_compilation
from agentkv_env.timing import Stopwatch
from agentkv_tasks.peak_memory import peak_allocator_bytes, peak_rss_bytes, reset_peaks
from agentkv_tasks.provenance import processor
from agentkv_tasks.run.child_process import become_child
from agentkv_tasks.run.plan import Plan
from agentkv_tasks.run.remote import (
    Ask,
    Begin,
    Connected,
    Connection,
    End,
    Failed,
    Load,
    Loaded,
    Peaks,
    Response,
    Save,
    Saved,
)

if TYPE_CHECKING:
    from agentkv.models.batch import Batch
    from agentkv.models.local import ActingModel, LocalConversation, LocalModel, PendingReply
    from agentkv_tasks.settings import RunSettings

BEAT_S = 1.0
"""Seconds between two `Alive` messages, unless a forward takes longer."""


@dataclass(frozen=True, slots=True)
class ModelLoaded:
    """The model is loaded."""


@dataclass(frozen=True, slots=True)
class Alive:
    """The process is responsive."""


@dataclass(frozen=True, slots=True)
class Compiling:
    """Kernels are compiled that this machine has not compiled yet; sent once."""


@dataclass(frozen=True, slots=True)
class LoadFailed:
    """The model or a policy does not exist; the message is for the user."""

    message: str


@dataclass(frozen=True, slots=True)
class NewConnection:
    """Announces the handle of a worker's connection."""


Status = ModelLoaded | Alive | Compiling | LoadFailed


def serve_model(control: Connection, log: Path, plan: Plan) -> None:
    """Serve episodes until the process is killed or its parent ends.

    The main function of the process that holds the model.
    """
    become_child(log)
    try:
        model = load_run_model(plan.settings)
        assert model is not None, "scripts run in the worker"
        import torch

        torch.set_num_threads(plan.threads)
        longest = max((task.intent for task in plan.suite.tasks), key=model.template.count)
        has_told = False

        def tell(progress: Progress) -> None:
            nonlocal has_told
            if not has_told:
                has_told = True
                control.send(Compiling())

        with telling_of_compilation(tell):
            policies = [
                make_acting(plan.settings, policy=policy, model=model)
                for policy in plan.settings.policies
            ]
            for acting in policies:  # an impossible budget fails before anything is compiled
                acting.begin(longest)
            for acting in policies:
                model.warm_up(acting.new_cache())  # here, no episode's time passes
    except ValueError as error:
        control.send(LoadFailed(str(error)))
        return
    host = Host(model, plan.settings)
    control.send(ModelLoaded())
    last_alive = time.monotonic()
    while True:
        sources = [control, *host.connections]
        ready = multiprocessing.connection.wait(sources, timeout=0 if host.is_busy else BEAT_S)
        for source in ready:
            if source is control:
                control.recv()
                host.connect(Connection(reduction.recv_handle(control)))
            else:
                host.receive(source)  # type: ignore[arg-type]
        host.step()
        if time.monotonic() - last_alive > BEAT_S:
            control.send(Alive())
            last_alive = time.monotonic()


class _Client:
    """A worker's connection and its current episode."""

    def __init__(self, connection: Connection, batch: "Batch") -> None:
        self.connection = connection
        self.batch = batch
        """Batch that decodes the client's replies; shared by all clients unless the run is
        deterministic."""
        self.conversation: LocalConversation | None = None
        self.pending: PendingReply | None = None
        self.failure: Failed | None = None
        """Error that the beginning of the episode raised."""
        self.is_alone = False
        """True if no other episode has run since this one began."""


class Host:
    """Decodes the episodes of several workers in shared forwards.

    A closed connection ends only its own episode.
    """

    def __init__(self, model: "LocalModel", settings: "RunSettings") -> None:
        from agentkv.models.batch import Batch  # imports torch, which workers must not load

        self._model, self._settings = model, settings
        self._new_batch = partial(Batch, model.model)
        self._shared = self._new_batch()
        self._clients: dict[Connection, _Client] = {}

    @property
    def connections(self) -> list[Connection]:
        """Connections of all clients."""
        return list(self._clients)

    @property
    def is_busy(self) -> bool:
        """True if a reply is being decoded."""
        return any(len(batch) for batch in self._batches)

    @property
    def _batches(self) -> "list[Batch]":
        """The distinct batches, in the order of the connections."""
        return list(dict.fromkeys(client.batch for client in self._clients.values()))

    def connect(self, connection: Connection) -> None:
        """Serve one more connection."""
        import torch

        device = torch.device(self._model.model.device)
        name = torch.cuda.get_device_name(device) if device.type == "cuda" else processor()
        batch = self._new_batch() if self._settings.deterministic else self._shared
        client = self._clients[connection] = _Client(connection, batch)
        self._send(client, Connected(self._model.name, name))

    def receive(self, connection: Connection) -> None:
        """Handle one message of a connection, or its end."""
        client = self._clients.get(connection)
        if client is None:
            return  # an earlier message of this round closed it
        try:
            request = connection.recv()
        except (EOFError, OSError):
            self._disconnect(client)
            return
        match request:
            case Begin():
                self._begin(client, request)
            case Load():
                self._load(client, request)
            case Save():
                self._save(client, request.folder)
            case Ask():
                self._ask(client, request)
            case End():
                self._send(client, self._peaks(client))
                self._end_episode(client)

    def step(self) -> None:
        """Advance all replies by one piece and send the finished ones."""
        if not self.is_busy:
            return
        for batch in self._batches:
            batch.step()
        for client in list(self._clients.values()):
            pending, conversation = client.pending, client.conversation
            if pending is None or conversation is None or not pending.generation.is_over:
                continue
            client.pending = None
            try:
                response: Response = conversation.finish_reply(pending)
            except Exception as error:  # one failed episode must not end the others
                response = _failed(error)
            del pending, conversation  # they hold the cache
            self._free_after(client, response)
            self._send(client, response)

    def _begin(self, client: _Client, begin: Begin) -> None:
        self._end_episode(client)
        others = [other for other in self._clients.values() if other.conversation is not None]
        for other in others:
            other.is_alone = False
        client.is_alone = not others
        if client.is_alone:
            reset_peaks(self._model.model.device)
        try:
            client.conversation = self._acting(begin).begin(begin.goal, seed=begin.seed)
        except Exception as error:  # one failed episode must not end the others
            client.failure = _failed(error)

    def _acting(self, asked: Begin | Load) -> "ActingModel":
        settings = self._settings.model_copy(update={"budget": asked.budget})
        return make_acting(settings, policy=asked.policy, model=self._model)

    def _load(self, client: _Client, load: Load) -> None:
        self._end_episode(client)
        client.is_alone = False  # its peak may lie in an earlier process
        for other in self._clients.values():
            other.is_alone = False
        try:
            client.conversation = self._acting(load).load(load.folder)
            response: Response = Loaded(client.conversation.num_turns)
        except Exception as error:  # one failed episode must not end the others
            response = _failed(error)
        self._send(client, response)

    def _save(self, client: _Client, folder: Path) -> None:
        assert client.conversation is not None, "an episode begins before it is saved"
        try:
            client.conversation.save(folder)
            response: Response = Saved()
        except Exception as error:  # one failed episode must not end the others
            response = _failed(error)
        self._send(client, response)

    def _ask(self, client: _Client, ask: Ask) -> None:
        assert client.pending is None, "one request at a time"
        if client.conversation is None:
            assert client.failure is not None, "an episode begins before it asks"
            self._send(client, client.failure)
            return
        deadline = None if ask.seconds is None else time.monotonic() + ask.seconds
        stopwatch = Stopwatch() if self._settings.profile else None
        failure: Failed | None = None
        try:
            client.pending = client.conversation.start_reply(
                ask.page, ask.note, deadline, stopwatch=stopwatch
            )
        except Exception as error:  # one failed episode must not end the others
            failure = _failed(error)
        if failure is not None:
            self._free_after(client, failure)
            self._send(client, failure)
        elif client.pending is not None:
            client.batch.add(client.pending.generation)

    def _peaks(self, client: _Client) -> Peaks:
        if client.conversation is None or not client.is_alone or self._settings.deterministic:
            return Peaks()  # the memory of a process differs between equal runs
        return Peaks(peak_rss_bytes(), peak_allocator_bytes(self._model.model.device))

    def _end_episode(self, client: _Client) -> None:
        """Free a client's episode, its cache and its unfinished reply."""
        if client.pending is not None:
            client.batch.remove(client.pending.generation)
        client.conversation = client.pending = client.failure = None

    def _free_after(self, client: _Client, response: Response) -> None:
        """End a client's episode if no memory was left for it, so that the others have more."""
        if not isinstance(response, Failed) or response.kind != OutOfMemory.__name__:
            return
        from agentkv.models.memory import release_memory  # imports torch

        self._end_episode(client)
        client.failure = response
        release_memory()

    def _disconnect(self, client: _Client) -> None:
        self._end_episode(client)
        del self._clients[client.connection]
        client.connection.close()

    def _send(self, client: _Client, response: Response) -> None:
        try:
            client.connection.send(response)
        except OSError:
            self._disconnect(client)  # the worker is gone


def _failed(error: Exception) -> Failed:
    from agentkv.models.memory import as_out_of_memory  # imports torch

    error = as_out_of_memory(error)
    return Failed(type(error).__name__, str(error))
