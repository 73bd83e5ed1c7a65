"""The process that holds the model: it serves the episodes of all workers, each on its own line."""

import multiprocessing.connection
import time
from dataclasses import dataclass
from functools import partial
from multiprocessing import reduction
from pathlib import Path
from typing import TYPE_CHECKING

from agentkv.build import load_run_model, make_acting
from agentkv_tasks.peak_memory import peak_allocator_bytes, peak_rss_bytes, reset_peaks
from agentkv_tasks.provenance import processor
from agentkv_tasks.run.child_process import become_child
from agentkv_tasks.run.plan import Plan
from agentkv_tasks.run.remote import Ask, Begin, Connection, End, Failed, Peaks, Response, Welcome

if TYPE_CHECKING:
    from agentkv.config import RunSettings
    from agentkv.models.batch import Batch
    from agentkv.models.local import Asked, LocalConversation, LocalModel

BEAT_S = 1.0
"""Seconds between two signs of life, unless a forward takes longer."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """The model can be asked."""


@dataclass(frozen=True, slots=True)
class Alive:
    """The process still goes round."""


@dataclass(frozen=True, slots=True)
class Unloadable:
    """There is no such model or policy; the message is for the person who started the run."""

    message: str


@dataclass(frozen=True, slots=True)
class NewLine:
    """What is said to the process before it is handed a worker's line."""


Sign = Loaded | Alive | Unloadable


def serve_model(control: Connection, log: Path, plan: Plan) -> None:
    """What the model's process does, until it is killed or its parent ends."""
    become_child(log)
    try:
        model = load_run_model(plan.settings)
        assert model is not None, "a script needs no process of its own"
        import torch

        torch.set_num_threads(plan.threads)
        for policy in plan.settings.policies:  # a budget no cache can keep is an error now
            make_acting(plan.settings, policy=policy, model=model)
    except ValueError as error:
        control.send(Unloadable(str(error)))
        return
    host = Host(model, plan.settings)
    control.send(Loaded())
    said = time.monotonic()
    while True:
        sources = [control, *host.lines]
        ready = multiprocessing.connection.wait(sources, timeout=0 if host.is_busy else BEAT_S)
        for source in ready:
            if source is control:
                control.recv()
                host.welcome(Connection(reduction.recv_handle(control)))
            else:
                host.hear(source)  # type: ignore[arg-type]
        host.step()
        if time.monotonic() - said > BEAT_S:
            control.send(Alive())
            said = time.monotonic()


class _Guest:
    """A worker's line and the episode on it."""

    def __init__(self, line: Connection, batch: "Batch") -> None:
        self.line = line
        self.batch = batch
        """Writes the guest's replies; the other guests' too, unless the run is deterministic."""
        self.talk: LocalConversation | None = None
        self.asked: Asked | None = None
        self.failure: Failed | None = None
        """Why there is no episode, though one was begun."""
        self.is_alone = False
        """Whether no other episode has been here since this one began."""


class Host:
    """Lets the episodes of several workers share one model's forwards. A line that closes takes its
    episode with it, and no other's."""

    def __init__(self, model: "LocalModel", settings: "RunSettings") -> None:
        from agentkv.models.batch import Batch  # seconds of imports, which no worker needs

        self._model, self._settings = model, settings
        self._new_batch = partial(Batch, model.model)
        self._shared = self._new_batch()
        self._guests: dict[Connection, _Guest] = {}

    @property
    def lines(self) -> list[Connection]:
        return list(self._guests)

    @property
    def is_busy(self) -> bool:
        """Whether there is something to write."""
        return any(len(batch) for batch in self._batches)

    @property
    def _batches(self) -> "list[Batch]":
        """Each once, in the order of the lines."""
        return list(dict.fromkeys(guest.batch for guest in self._guests.values()))

    def welcome(self, line: Connection) -> None:
        """Serve one line more."""
        import torch

        device = torch.device(self._model.model.device)
        where = torch.cuda.get_device_name(device) if device.type == "cuda" else processor()
        batch = self._new_batch() if self._settings.deterministic else self._shared
        guest = self._guests[line] = _Guest(line, batch)
        self._say(guest, Welcome(self._model.name, where))

    def hear(self, line: Connection) -> None:
        """Take one message from a line that has one, or its end."""
        guest = self._guests.get(line)
        if guest is None:
            return  # it was dropped a moment ago
        try:
            request = line.recv()
        except (EOFError, OSError):
            self._drop(guest)
            return
        match request:
            case Begin():
                self._begin(guest, request)
            case Ask():
                self._ask(guest, request)
            case End():
                self._say(guest, self._peaks(guest))
                self._forget(guest)

    def step(self) -> None:
        """Take all replies one piece further and send those that are written."""
        if not self.is_busy:
            return
        for batch in self._batches:
            batch.step()
        for guest in list(self._guests.values()):
            asked, talk = guest.asked, guest.talk
            if asked is None or talk is None or not asked.generation.is_over:
                continue
            guest.asked = None
            try:
                response: Response = talk.answer(asked)
            except Exception as error:  # the edge of one episode
                response = _failed(error)
            self._say(guest, response)

    def _begin(self, guest: _Guest, begin: Begin) -> None:
        self._forget(guest)
        others = [other for other in self._guests.values() if other.talk is not None]
        for other in others:
            other.is_alone = False
        guest.is_alone = not others
        if guest.is_alone:
            reset_peaks(self._model.model.device)
        settings = self._settings.model_copy(update={"budget": begin.budget})
        try:
            acting = make_acting(settings, policy=begin.policy, model=self._model)
            guest.talk = acting.begin(begin.goal, seed=begin.seed)
        except Exception as error:  # the edge of one episode
            guest.failure = _failed(error)

    def _ask(self, guest: _Guest, ask: Ask) -> None:
        assert guest.asked is None, "one question at a time"
        if guest.talk is None:
            assert guest.failure is not None, "an episode begins before it asks"
            self._say(guest, guest.failure)
            return
        deadline = None if ask.seconds is None else time.monotonic() + ask.seconds
        try:
            guest.asked = guest.talk.ask(ask.page, ask.note, deadline)
        except Exception as error:  # the edge of one episode
            self._say(guest, _failed(error))
        else:
            guest.batch.add(guest.asked.generation)

    def _peaks(self, guest: _Guest) -> Peaks:
        if guest.talk is None or not guest.is_alone or self._settings.deterministic:
            return Peaks()  # what a process takes differs from run to run
        return Peaks(peak_rss_bytes(), peak_allocator_bytes(self._model.model.device))

    def _forget(self, guest: _Guest) -> None:
        """Let go of a guest's episode, its cache and what it was being told."""
        if guest.asked is not None:
            guest.batch.drop(guest.asked.generation)
        guest.talk = guest.asked = guest.failure = None

    def _drop(self, guest: _Guest) -> None:
        self._forget(guest)
        del self._guests[guest.line]
        guest.line.close()

    def _say(self, guest: _Guest, response: Response) -> None:
        try:
            guest.line.send(response)
        except OSError:
            self._drop(guest)  # the worker is gone


def _failed(error: Exception) -> Failed:
    return Failed(type(error).__name__, str(error))
