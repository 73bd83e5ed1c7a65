"""Runs a plan: hands episodes to worker processes and writes their rows, whatever becomes of them.

The parent owns the results file and the display; it never touches a browser or a model, so nothing
an episode does can take it down. One process holds the model for all workers. A worker that dies or
hangs costs the episode it was on, which becomes a row like any other, and another worker takes its
place. When the model's process dies, that happens to all who are at work.
"""

import multiprocessing
import multiprocessing.connection
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Protocol

from agentkv.build import SCRIPTED
from agentkv_tasks.provenance import commit, versions
from agentkv_tasks.results import Results, Row
from agentkv_tasks.run.child_process import ChildProcess
from agentkv_tasks.run.episode_runner import blank_row
from agentkv_tasks.run.model_process import CannotStart, ModelProcess
from agentkv_tasks.run.plan import Job, Plan
from agentkv_tasks.run.worker import MODEL_GONE, Finished, Message, Ready, Stepped, Unable, serve

GRACE_S = 90.0
"""What an episode may take beyond its own limit, for start, scoring and a slow machine."""
START_S = 600.0
"""What a worker may take to start once the model is loaded."""
_MAX_DEAD_STARTS = 2
_MAX_LOST_MODELS = 2  # in a row, without an episode that ended in between


class RunError(RuntimeError):
    """The run cannot go on; what was done so far is in the results."""


class Display(Protocol):
    """Shows a run while it goes on."""

    def started(self, job: Job) -> None:
        """An episode has begun."""
        ...

    def stepped(self, job: Job, step: Stepped) -> None:
        """A step of it is over."""
        ...

    def finished(self, job: Job, row: Row) -> None:
        """It is over and its row is on disk."""
        ...

    def tick(self) -> None:
        """Called at least about twice a second."""
        ...


@dataclass
class _Slot:
    """One worker process and what it is doing."""

    number: int
    child: ChildProcess
    is_ready: bool = False
    job: Job | None = None
    started: float = field(default_factory=time.monotonic)
    """Of the job; monotonic seconds."""
    last: Stepped | None = None


def run_jobs(plan: Plan, results: Results, display: Display, *, jobs: Sequence[Job]) -> None:
    """Run `jobs`, a part of the plan, appending a row for each.

    Raises:
        CannotStart: the model, a policy, the browser or a port cannot be had as asked.
        RunError: workers, or the model's process, die again and again; the message says why.
        NotWritten: a row was lost; those before it are whole.
        KeyboardInterrupt: passed on after all workers were ended; finished rows are on disk.
    """
    if jobs:
        _Pool(plan, results, display, jobs).run()


class _Pool:
    def __init__(self, plan: Plan, results: Results, display: Display, jobs: Sequence[Job]) -> None:
        self._plan = plan
        self._results = results
        self._display = display
        self._waiting = deque(jobs)
        self._context = multiprocessing.get_context("spawn")
        self._model: ModelProcess | None = None
        """None for scripts."""
        self._slots: dict[int, _Slot] = {}
        self._num_dead_starts = 0
        self._num_lost_models = 0
        self._versions = versions()
        self._commit = commit()

    def run(self) -> None:
        num_workers = min(self._plan.settings.workers, len(self._waiting))
        try:
            if self._plan.settings.model not in SCRIPTED:
                self._model = ModelProcess(self._context, self._plan)
            for number in range(num_workers):
                self._start(number)
            while self._waiting or any(slot.job for slot in self._slots.values()):
                self._turn()
            for slot in self._slots.values():
                _dismiss(slot)
        finally:
            for slot in self._slots.values():
                slot.child.kill()
            if self._model is not None:
                self._model.kill()

    def _turn(self) -> None:
        for slot in self._slots.values():
            if slot.is_ready and slot.job is None and self._waiting:
                self._give(slot)
        sources = [slot.child.connection for slot in self._slots.values()]
        if self._model is not None:
            sources.append(self._model.child.connection)
        ready = multiprocessing.connection.wait(sources, timeout=0.5)
        silent = [slot for slot in self._slots.values() if slot.child.connection in ready]
        silent = [slot for slot in silent if not self._hear(slot)]
        if self._model is not None and not self._model_is_well(ready, silent):
            return
        for slot in list(self._slots.values()):
            if slot in silent or not slot.child.is_alive:
                self._replace_worker(slot, "crash", slot.child.cause())
            else:
                self._check_limits(slot)
        self._display.tick()

    def _start(self, number: int) -> None:
        line = None if self._model is None else self._model.line()
        log = self._plan.settings.out / "logs" / f"worker-{number}.log"
        child = ChildProcess(self._context, serve, self._plan, line, what="the worker", log=log)
        if line is not None:
            line.close()  # the worker's alone now, so that its death closes the line
        self._slots[number] = _Slot(number, child)

    def _give(self, slot: _Slot) -> None:
        job = self._waiting.popleft()
        slot.job, slot.last = job, None
        slot.started = slot.child.heard = time.monotonic()
        try:
            slot.child.connection.send(job)
        except (BrokenPipeError, ConnectionResetError):
            return  # it died between two jobs; the next turn finds it dead
        self._display.started(job)

    def _hear(self, slot: _Slot) -> bool:
        """Take one message; False at the worker's end."""
        try:
            message: Message = slot.child.connection.recv()
        except (EOFError, ConnectionResetError):
            slot.child.wait(5)
            return False
        slot.child.heard = time.monotonic()
        match message:
            case Ready():
                slot.is_ready, self._num_dead_starts = True, 0
            case Stepped():
                slot.last = message
                if slot.job is not None:
                    self._display.stepped(slot.job, message)
            case Finished():
                self._num_lost_models = 0
                self._keep(slot, message.row)
            case Unable():
                raise CannotStart(message.message)
        return True

    def _model_is_well(self, ready: Sequence[object], silent: Sequence[_Slot]) -> bool:
        """Whether the model's process goes on; else it, and all that hung on it, were replaced."""
        assert self._model is not None
        if self._model.child.connection in ready:
            self._model.hear()
        if any(slot.child.exit_code == MODEL_GONE for slot in silent):
            self._model.child.wait(5)  # a worker may notice first
        trouble = self._model.trouble
        if trouble is not None:
            self._lose_model(*trouble)
        return trouble is None

    def _lose_model(self, status: str, cause: str) -> None:
        """Make rows of all episodes in progress, and start a model and its workers anew."""
        assert self._model is not None
        self._model.kill()
        slots = list(self._slots.values())
        for slot in slots:
            while slot.child.connection.poll() and self._hear(slot):
                pass  # an episode that came to its end in time
            slot.child.kill()
            if slot.job is not None:
                self._keep(slot, self._lost(slot.job, slot, status, cause))
        self._slots.clear()
        self._num_lost_models += 1
        if self._num_lost_models > _MAX_LOST_MODELS:
            raise RunError(f"no model stays up: {cause} (see {self._model.child.log})")
        if self._waiting:
            self._model = ModelProcess(self._context, self._plan)
            for slot in slots[: len(self._waiting)]:
                self._start(slot.number)

    def _check_limits(self, slot: _Slot) -> None:
        now = time.monotonic()
        if slot.job is None:
            began = slot.child.started
            if self._model is not None:
                began = max(began, self._model.loaded or now)
            if not slot.is_ready and now - began > START_S:
                self._replace_worker(
                    slot, "timeout", f"the worker did not start in {START_S:.0f} s"
                )
            return
        limit = self._plan.settings.timeout_s + GRACE_S
        if now - slot.started > limit:
            self._replace_worker(
                slot, "timeout", f"killed: the episode took longer than {limit:.0f} s"
            )
        elif now - slot.child.heard > self._plan.step_timeout_s:
            wait = self._plan.step_timeout_s
            self._replace_worker(slot, "timeout", f"killed: no step was finished in {wait:.0f} s")

    def _replace_worker(self, slot: _Slot, status: str, cause: str) -> None:
        """End a worker for good, make a row of the episode it was on, and start another one."""
        slot.child.kill()
        job = slot.job
        if job is not None:
            self._keep(slot, self._lost(job, slot, status, cause))
        elif not slot.is_ready:
            self._num_dead_starts += 1
            if self._num_dead_starts > _MAX_DEAD_STARTS:
                raise RunError(f"workers die before they can work: {cause} (see {slot.child.log})")
        del self._slots[slot.number]
        if self._waiting:
            self._start(slot.number)

    def _lost(self, job: Job, slot: _Slot, status: str, cause: str) -> Row:
        """The row of an episode whose worker cannot report any more."""
        last = slot.last
        return replace(
            blank_row(self._plan, job),
            status=status,
            error=cause,
            steps=last.num_steps if last else 0,
            kv_peak_bytes=(last.cache_peak_bytes or None) if last else None,
            seconds=round(time.monotonic() - slot.started, 3),
            finished_at=datetime.now(UTC).isoformat(timespec="seconds"),
        )

    def _keep(self, slot: _Slot, row: Row) -> None:
        job, slot.job = slot.job, None
        assert job is not None and job.key == row.key, "a row for an episode nobody asked for"
        row = replace(row, versions={**self._versions, **row.versions}, commit=self._commit)
        self._results.append(row)
        self._display.finished(job, row)


def _dismiss(slot: _Slot) -> None:
    try:
        slot.child.connection.send(None)
    except (BrokenPipeError, ConnectionResetError):
        return
    slot.child.wait(10)
