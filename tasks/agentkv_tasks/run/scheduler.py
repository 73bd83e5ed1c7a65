"""Assign the episodes of a plan to worker processes and write their rows.

The parent owns the results file and the display. It never touches a browser or a model, so no
episode can crash it. One process holds the model for all workers. A worker that dies or hangs costs
its current episode, and a new worker replaces it. When the model's process dies, all current
episodes are lost in the same way. A lost episode is played again, a limited number of times. Each
episode gets one row, which names the earlier attempts.
"""

import multiprocessing
import multiprocessing.connection
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Protocol

from agentkv.files import WriteError
from agentkv.progress import COMPILING
from agentkv.settings import SCRIPTED
from agentkv_tasks.provenance import commit, versions
from agentkv_tasks.results import RETRIED, Attempt, Row
from agentkv_tasks.run.attempts import remove_attempts, set_aside
from agentkv_tasks.run.checkpoints import remove_checkpoint
from agentkv_tasks.run.child_process import ChildProcess
from agentkv_tasks.run.episode_runner import blank_row
from agentkv_tasks.run.job_queue import JobQueue
from agentkv_tasks.run.model_process import CannotStart, ModelProcess
from agentkv_tasks.run.plan import Job, Plan
from agentkv_tasks.run.played_task import JUDGED_S
from agentkv_tasks.run.worker import (
    MODEL_GONE,
    CannotWrite,
    Finished,
    Message,
    Ready,
    StartFailed,
    Stepped,
    serve,
)

GRACE_S = 180.0
"""Seconds beyond an episode's own limit, for its start and its scoring on a slow machine."""
START_S = 600.0
"""Seconds that a worker may take to start once the model is loaded."""
_MAX_DEAD_STARTS = 2
_MAX_LOST_MODELS = 2
"""Deaths of the model's process in a row, without a finished episode in between; as many again are
allowed for each time that an episode is played again."""


class RunError(RuntimeError):
    """The run cannot continue; all finished rows are in the results."""


class Rows(Protocol):
    """Takes the rows of a run; `Results` is one."""

    def append(self, row: Row) -> None:
        """Take the row of an episode that is over.

        Raises:
            WriteError: the row was lost; earlier rows are complete.
        """
        ...


class Display(Protocol):
    """Shows the progress of a run."""

    def preparing(self, what: str) -> None:
        """What the run does before its first episode."""
        ...

    def started(self, job: Job) -> None:
        """An episode has begun."""
        ...

    def stepped(self, job: Job, step: Stepped) -> None:
        """A step of an episode is over."""
        ...

    def retried(self, job: Job, row: Row) -> None:
        """An attempt at an episode has failed, and the episode is about to be played again."""
        ...

    def finished(self, job: Job, row: Row) -> None:
        """An episode is over and its row is on disk."""
        ...

    def tick(self) -> None:
        """Refresh; called about twice a second."""
        ...


@dataclass
class _Slot:
    """A worker process and its current job."""

    number: int
    child: ChildProcess
    is_ready: bool = False
    job: Job | None = None
    started: float = field(default_factory=time.monotonic)
    """Start of the job, in monotonic seconds."""
    last: Stepped | None = None
    failure: str = ""
    """Why the worker could not start; empty if it said nothing."""


def run_jobs(plan: Plan, results: Rows, display: Display, *, jobs: Sequence[Job]) -> None:
    """Run `jobs`, a part of the plan, and append a row for each.

    Raises: as `run_queue`.
    """
    own = plan.suite.sites
    needs = {} if own is None else {job.key: own.reserved_by(job.task) for job in jobs}
    run_queue(plan, results, display, JobQueue(jobs, needs=needs))


def run_queue(plan: Plan, results: Rows, display: Display, queue: JobQueue) -> None:
    """Run the jobs of `queue` until it is over, and append a row for each.

    Raises:
        CannotStart: the model, a policy, the browser or a port is unavailable.
        RunError: workers or the model's process die repeatedly; the message names the cause.
        WriteError: a row, a trace or a screenshot could not be written; all rows before are
            complete, and the episode has none.
        KeyboardInterrupt: passed on after all workers have ended; finished rows are on disk.
    """
    if not queue.is_over:
        _Scheduler(plan, results, display, queue).run()


class _Scheduler:
    def __init__(self, plan: Plan, results: Rows, display: Display, queue: JobQueue) -> None:
        self._plan = plan
        self._results = results
        self._display = display
        self._waiting = queue
        self._context = multiprocessing.get_context("spawn")
        self._model: ModelProcess | None = None
        """None for scripts."""
        self._slots: dict[int, _Slot] = {}
        self._has_started = False
        """True once a worker was ready, so that the settings are right."""
        self._num_dead_starts = 0
        self._num_lost_models = 0
        self._versions = versions()
        self._commit = commit()

    def run(self) -> None:
        num_workers = self._waiting.num_workers(self._plan.settings.workers)
        try:
            if self._plan.settings.model not in SCRIPTED:
                self._display.preparing(f"loading {self._plan.settings.model}")
                self._model = ModelProcess(self._context, self._plan)
            else:
                self._display.preparing(_starting(num_workers))
            for number in range(num_workers):
                self._start(number)
            while not self._waiting.is_over or any(slot.job for slot in self._slots.values()):
                self._handle_events()
            for slot in self._slots.values():
                _shut_down(slot)
        finally:
            for slot in self._slots.values():
                slot.child.kill()
            if self._model is not None:
                self._model.kill()

    def _handle_events(self) -> None:
        for slot in self._slots.values():
            if slot.is_ready and slot.job is None and (job := self._waiting.take()) is not None:
                self._assign(slot, job)
        sources = [slot.child.connection for slot in self._slots.values()]
        if self._model is not None:
            sources.append(self._model.child.connection)
        ready = multiprocessing.connection.wait(sources, timeout=0.5)
        silent = [slot for slot in self._slots.values() if slot.child.connection in ready]
        silent = [slot for slot in silent if not self._receive(slot)]
        if self._model is not None and not self._check_model(ready, silent):
            return
        for slot in list(self._slots.values()):
            if slot in silent or not slot.child.is_alive:
                self._replace_worker(slot, "crash", slot.failure or slot.child.cause())
            else:
                self._check_limits(slot)
        self._display.tick()

    def _start(self, number: int) -> None:
        connection = None if self._model is None else self._model.open_connection()
        log = self._plan.settings.out / "logs" / f"worker-{number}.log"
        child = ChildProcess(
            self._context, serve, self._plan, connection, what="the worker", log=log
        )
        if connection is not None:
            connection.close()  # only the worker holds it now, so its death closes it
        self._slots[number] = _Slot(number, child)

    def _assign(self, slot: _Slot, job: Job) -> None:
        slot.job, slot.last = job, None
        if not self._waiting.attempts_at(job):  # a killed run may have left some
            remove_attempts(self._plan.settings.out, job.stem)
        slot.started = slot.child.last_message = time.monotonic()
        try:
            slot.child.connection.send(job)
        except (BrokenPipeError, ConnectionResetError):
            return  # it died between two jobs, which the next round detects
        self._display.started(job)

    def _receive(self, slot: _Slot) -> bool:
        """Handle one message; return False if the worker has closed its connection."""
        try:
            message: Message = slot.child.connection.recv()
        except (EOFError, ConnectionResetError):
            slot.child.wait(5)
            return False
        slot.child.last_message = time.monotonic()
        match message:
            case Ready():
                slot.is_ready, self._num_dead_starts = True, 0
                self._has_started = True
            case Stepped():
                slot.last = message
                if slot.job is not None:
                    self._display.stepped(slot.job, message)
            case Finished():
                self._num_lost_models = 0
                self._record(slot, message.row)
            case StartFailed() if self._has_started:
                slot.failure = message.message  # the sites or the browser of the next may start
            case StartFailed():
                raise CannotStart(message.message)
            case CannotWrite():
                raise WriteError(message.message)
        return True

    def _check_model(self, ready: Sequence[object], silent: Sequence[_Slot]) -> bool:
        """Return True if the model's process works; otherwise replace it and all workers."""
        assert self._model is not None
        if self._model.child.connection in ready:
            self._hear_model(self._model)
        if any(slot.child.exit_code == MODEL_GONE for slot in silent):
            self._model.child.wait(5)  # a worker may detect the death first
        failure = self._model.failure
        if failure is not None:
            self._replace_model(*failure)
        return failure is None

    def _hear_model(self, model: ModelProcess) -> None:
        """Handle a message of the model's process, and say what it has come to."""
        was_loaded, compiled_before = model.loaded, model.compiles
        model.receive()
        if was_loaded is None and model.loaded is not None:
            self._display.preparing(_starting(len(self._slots)))
        elif model.compiles and not compiled_before:
            self._display.preparing(COMPILING)

    def _replace_model(self, status: str, cause: str) -> None:
        """Record all current episodes as failed, and start a new model and new workers."""
        assert self._model is not None
        self._model.kill()
        slots = list(self._slots.values())
        for slot in slots:
            while slot.child.connection.poll() and self._receive(slot):
                pass  # an episode may have finished in time
            slot.child.kill()
            if slot.job is not None:
                self._record(slot, self._failed_row(slot.job, slot, status, cause))
        self._slots.clear()
        self._num_lost_models += 1
        if self._num_lost_models > _MAX_LOST_MODELS * (1 + self._plan.settings.retries):
            raise RunError(
                f"the model's process died repeatedly: {cause} (see {self._model.child.log})"
            )
        if not self._waiting.is_over:
            self._model = ModelProcess(self._context, self._plan)
            for slot in slots[: self._waiting.num_workers(len(slots))]:
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
        if self._plan.judge is not None:
            limit += JUDGED_S
        if now - slot.started > limit:
            self._replace_worker(
                slot, "timeout", f"killed: the episode took longer than {limit:.0f} s"
            )
        elif now - slot.child.last_message > self._plan.settings.step_timeout_s:
            wait = self._plan.settings.step_timeout_s
            self._replace_worker(slot, "timeout", f"killed: no step was finished in {wait:.0f} s")

    def _replace_worker(self, slot: _Slot, status: str, cause: str) -> None:
        """Kill a worker, record its current episode as failed, and start another worker."""
        slot.child.kill()
        job = slot.job
        if job is not None:
            self._record(slot, self._failed_row(job, slot, status, cause))
        elif not slot.is_ready:
            self._num_dead_starts += 1
            if self._num_dead_starts > _MAX_DEAD_STARTS:
                raise RunError(
                    f"workers died repeatedly at their start: {cause} (see {slot.child.log})"
                )
        del self._slots[slot.number]
        if not self._waiting.is_over:
            self._start(slot.number)

    def _failed_row(self, job: Job, slot: _Slot, status: str, cause: str) -> Row:
        """Return the row of an episode whose worker can no longer report."""
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

    def _record(self, slot: _Slot, row: Row) -> None:
        job, slot.job = slot.job, None
        assert job is not None and job.key == row.key, "a row of another episode"
        earlier = self._waiting.attempts_at(job)
        remove_checkpoint(self._plan.settings.out, job.stem)
        # on a site that nothing resets, another attempt would find what this one left
        is_site_as_before = not self._plan.unreset or (row.status == "env_error" and not row.steps)
        retries = self._plan.settings.retries if is_site_as_before else 0
        if row.status in RETRIED and len(earlier) < retries:
            trace = set_aside(self._plan.settings.out, job.stem, number=len(earlier) + 1)
            attempt = Attempt(
                status=row.status,
                error=row.error,
                steps=row.steps,
                seconds=row.seconds,
                trace=trace,
            )
            self._waiting.add(job, (*earlier, attempt))  # apart from those that were lost with it
            self._display.retried(job, row)
            return
        self._waiting.end(job)
        row = replace(row, attempts=earlier)
        row = replace(row, versions={**self._versions, **row.versions}, commit=self._commit)
        self._results.append(row)
        self._display.finished(job, row)


def _starting(num_workers: int) -> str:
    browsers = "a browser" if num_workers == 1 else f"{num_workers} browsers"
    return f"starting {browsers} and the sites"


def _shut_down(slot: _Slot) -> None:
    try:
        slot.child.connection.send(None)
    except (BrokenPipeError, ConnectionResetError):
        return
    slot.child.wait(10)
