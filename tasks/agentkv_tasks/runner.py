"""Runs a plan: hands episodes to worker processes and writes their rows, whatever becomes of them.

The parent owns the results file and the display; it never touches a browser or a model, so nothing
an episode does can take it down. A worker that dies or hangs costs the episode it was on, which
becomes a row like any other, and another worker takes its place.
"""

import multiprocessing
import multiprocessing.connection
import os
import signal
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

from agentkv_tasks.plan import Job, Plan
from agentkv_tasks.provenance import commit, versions
from agentkv_tasks.results import Results, Row
from agentkv_tasks.station import blank_row
from agentkv_tasks.worker import Finished, Message, Ready, Stepped, Unable, serve

GRACE_S = 90.0
"""What an episode may take beyond its own limit, for start, scoring and a slow machine."""
START_S = 600.0
"""What a worker may take to load its model."""
_LOG_TAIL = 300  # characters of a dead worker's last words that go into the row
_MAX_DEAD_STARTS = 2


class RunError(RuntimeError):
    """The run cannot go on; what was done so far is in the results."""


class CannotStart(ValueError):
    """No worker can work as was asked; the message says what to mend. Nothing was run."""


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
    process: "multiprocessing.process.BaseProcess"
    connection: "multiprocessing.connection.Connection"
    log: Path
    log_start: int
    """Bytes in the log that earlier workers wrote."""
    is_ready: bool = False
    job: Job | None = None
    started: float = field(default_factory=time.monotonic)
    """Of the job, or of the process while it is not ready; monotonic seconds."""
    heard: float = field(default_factory=time.monotonic)
    last: Stepped | None = None


def run(plan: Plan, results: Results, display: Display, *, jobs: Sequence[Job]) -> None:
    """Run `jobs`, a part of the plan, appending a row for each.

    Raises:
        CannotStart: the model, a policy, the browser or a port cannot be had as asked.
        RunError: workers die; the message says why.
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
        self._slots: dict[int, _Slot] = {}
        self._num_dead_starts = 0
        self._versions = versions()
        self._commit = commit()

    def run(self) -> None:
        num_workers = min(self._plan.settings.workers, len(self._waiting))
        try:
            for number in range(num_workers):
                self._start(number)
            while self._waiting or any(slot.job for slot in self._slots.values()):
                self._turn()
            for slot in self._slots.values():
                self._dismiss(slot)
        finally:
            for slot in self._slots.values():
                _kill(slot)

    def _turn(self) -> None:
        for slot in self._slots.values():
            if slot.is_ready and slot.job is None and self._waiting:
                self._give(slot)
        sources = [slot.connection for slot in self._slots.values()]
        ready = multiprocessing.connection.wait(sources, timeout=0.5)
        for slot in list(self._slots.values()):
            if slot.connection in ready:
                self._hear(slot)
            elif not slot.process.is_alive():
                self._bury(slot, "crash", _cause(slot))
            else:
                self._check_limits(slot)
        self._display.tick()

    def _start(self, number: int) -> None:
        ours, theirs = self._context.Pipe()
        log = self._plan.settings.out / "logs" / f"worker-{number}.log"
        log_start = log.stat().st_size if log.exists() else 0
        process = self._context.Process(target=serve, args=(theirs, self._plan, log), daemon=False)
        process.start()
        theirs.close()  # so that the worker's death closes the pipe
        self._slots[number] = _Slot(number, process, ours, log, log_start)

    def _give(self, slot: _Slot) -> None:
        job = self._waiting.popleft()
        slot.job, slot.last = job, None
        slot.started = slot.heard = time.monotonic()
        try:
            slot.connection.send(job)
        except (BrokenPipeError, ConnectionResetError):
            return  # it died between two jobs; the next turn finds it dead
        self._display.started(job)

    def _hear(self, slot: _Slot) -> None:
        try:
            message: Message = slot.connection.recv()
        except (EOFError, ConnectionResetError):
            slot.process.join(5)
            self._bury(slot, "crash", _cause(slot))
            return
        slot.heard = time.monotonic()
        match message:
            case Ready():
                slot.is_ready, self._num_dead_starts = True, 0
            case Stepped():
                slot.last = message
                if slot.job is not None:
                    self._display.stepped(slot.job, message)
            case Finished():
                self._keep(slot, message.row)
            case Unable():
                raise CannotStart(message.message)

    def _check_limits(self, slot: _Slot) -> None:
        now = time.monotonic()
        if slot.job is None:
            if not slot.is_ready and now - slot.started > START_S:
                self._bury(slot, "timeout", f"the worker did not start in {START_S:.0f} s")
            return
        limit = self._plan.settings.timeout_s + GRACE_S
        if now - slot.started > limit:
            self._bury(slot, "timeout", f"killed: the episode took longer than {limit:.0f} s")
        elif now - slot.heard > self._plan.step_timeout_s:
            wait = self._plan.step_timeout_s
            self._bury(slot, "timeout", f"killed: no step was finished in {wait:.0f} s")

    def _bury(self, slot: _Slot, status: str, cause: str) -> None:
        """End a worker for good, make a row of the episode it was on, and start another one."""
        _kill(slot)
        job = slot.job
        if job is not None:
            self._keep(slot, self._lost(job, slot, status, cause))
        elif not slot.is_ready:
            self._num_dead_starts += 1
            if self._num_dead_starts > _MAX_DEAD_STARTS:
                raise RunError(f"workers die before they can work: {cause} (see {slot.log})")
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

    def _dismiss(self, slot: _Slot) -> None:
        try:
            slot.connection.send(None)
        except (BrokenPipeError, ConnectionResetError):
            return
        slot.process.join(10)


def _kill(slot: _Slot) -> None:
    """End a worker's whole process group, its browser included, and wait for it."""
    if slot.process.is_alive() and slot.process.pid is not None:
        try:
            os.killpg(slot.process.pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            slot.process.kill()  # it had not yet come as far as its own group
        slot.process.join(10)
    slot.connection.close()


def _cause(slot: _Slot) -> str:
    """Why a process died: its signal or exit code, and the end of what it printed."""
    code = slot.process.exitcode
    if code is not None and code < 0:
        how = f"the worker was killed by {signal.Signals(-code).name}"
    else:
        how = f"the worker ended with exit code {code}"
    try:
        said = slot.log.read_bytes()[slot.log_start :].decode(errors="replace").strip()
    except OSError:
        said = ""
    last = " ".join(said[-_LOG_TAIL:].split())
    return f"{how}; it last said: {last}" if last else how
