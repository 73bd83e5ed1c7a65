"""Play episodes on one node: the scheduler of a local run, in a thread of an actor.

The actor imports nothing of Ray. Its methods are called from several threads.
"""

import contextlib
import fcntl
import math
import os
import queue
import shutil
import tempfile
import threading
import traceback
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from agentkv.files import WriteError, make_folder
from agentkv.settings import SCRIPTED
from agentkv_tasks.provenance import commit, versions
from agentkv_tasks.results import Attempt, Row
from agentkv_tasks.run.attempts import remove_attempts, remove_traces, traces_of
from agentkv_tasks.run.cluster.events import (
    Event,
    Facts,
    NodeFailed,
    NodeFinished,
    NodeStepped,
    Retried,
    Started,
)
from agentkv_tasks.run.job_queue import JobQueue
from agentkv_tasks.run.plan import Job, Plan, default_threads
from agentkv_tasks.run.preflight import tesseract_version
from agentkv_tasks.run.scheduler import run_queue
from agentkv_tasks.run.worker import Stepped

POLL_S = 1.0
"""Seconds that `NodeRunner.events` waits for the first event."""
_END_S = 20.0
_PREFIX = "agentkv-node-"


class NodeRunner:
    """Plays episodes on the node where it lives, in a temporary folder.

    Args:
        label: name of the node in messages and in the folder of logs.
        num_runners: runners that share the processors of the node.
    """

    def __init__(self, label: str, num_runners: int) -> None:
        self._label, self._num_runners = label, num_runners
        self._queue = JobQueue(is_open=True)
        self._events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._folder: _Folder | None = None
        self._thread: threading.Thread | None = None
        self._is_ending = threading.Event()

    @property
    def folder(self) -> Path | None:
        """Its temporary folder; None before `begin`."""
        return None if self._folder is None else self._folder.path

    def check(self, plan: Plan) -> Facts:
        """Return the versions of the node, and whether it can play the plan."""
        return Facts(versions(), commit(), _problem(plan))

    def begin(self, plan: Plan) -> None:
        """Start the workers, and the model's process."""
        self._folder = _Folder()
        out = self._folder.path
        for name in ("traces", "logs"):
            make_folder(out / name)
        threads = default_threads(
            plan.settings.workers, (os.cpu_count() or 1) // self._num_runners or 1
        )
        # nobody goes on from a checkpoint of this folder
        settings = plan.settings.model_copy(update={"out": out, "checkpoint_s": math.inf})
        self._thread = threading.Thread(
            target=self._run, args=(replace(plan, settings=settings, threads=threads),), daemon=True
        )
        self._thread.start()

    def add(self, jobs: Sequence[tuple[Job, tuple[Attempt, ...]]]) -> None:
        """Give the node more jobs, each with the failed attempts at its episode."""
        for job, attempts in jobs:
            self._queue.add(job, attempts)

    def events(self) -> list[Event]:
        """Return what has happened since the last call; waits a moment for the first event."""
        found: list[Event] = []
        try:
            found.append(self._events.get(timeout=POLL_S))
            while True:
                found.append(self._events.get_nowait())
        except queue.Empty:
            return found

    def end(self, *, at_once: bool) -> dict[str, bytes]:
        """End all processes, remove the folder, and return the logs by their file name.

        Args:
            at_once: kill them, whatever is being played; otherwise jobs are finished first.
        """
        self._queue.close()
        if at_once:
            self._is_ending.set()
        if self._thread is not None:
            self._thread.join(_END_S)
        if self._folder is None:
            return {}
        logs = {path.name: path.read_bytes() for path in self._folder.path.glob("logs/*.log")}
        self._folder.remove()
        return logs

    def _run(self, plan: Plan) -> None:
        reporter = _Reporter(plan.settings.out, self._events, self._is_ending)
        try:
            run_queue(plan, reporter, reporter, self._queue)
        except _Ended:
            pass
        except (ValueError, RuntimeError) as error:
            logs = f"{plan.settings.out}/logs"
            message = str(error).replace(logs, f"logs/{self._label}")
            self._events.put(NodeFailed(type(error).__name__, message))
        except BaseException:  # whoever started the run must hear of it
            self._events.put(NodeFailed("error", traceback.format_exc()))


class _Ended(Exception):
    """The run was told to end at once."""


class _Reporter:
    """Turns rows and progress into events, and ends the scheduler when it has to."""

    def __init__(
        self, out: Path, events: "queue.SimpleQueue[Event]", is_ending: threading.Event
    ) -> None:
        self._out, self._events, self._is_ending = out, events, is_ending

    def append(self, row: Row) -> None:
        """Report a row with its files, and remove them here."""
        stem = Path(row.trace).stem
        paths = traces_of(self._out, stem)
        files = {}
        try:
            for path in paths:
                files[str(path.relative_to(self._out))] = path.read_bytes()
        except OSError as error:
            raise WriteError(
                f"{error.filename}: the trace cannot be read: {error.strerror}"
            ) from error
        remove_attempts(self._out, stem)
        with contextlib.suppress(OSError):  # the next runner removes the folder
            remove_traces(self._out, stem)
        self._events.put(NodeFinished(row, files))

    def preparing(self, what: str) -> None:
        """Do nothing: each node would say it."""

    def started(self, job: Job) -> None:
        self._events.put(Started(job.key))

    def stepped(self, job: Job, step: Stepped) -> None:
        self._events.put(NodeStepped(job.key, step))

    def retried(self, job: Job, row: Row) -> None:
        self._events.put(Retried(job.key, row))

    def finished(self, job: Job, row: Row) -> None:
        """Do nothing: `append` has reported it."""

    def tick(self) -> None:
        """End the run if it has to.

        Raises:
            _Ended: it has to.
        """
        if self._is_ending.is_set():
            raise _Ended


class _Folder:
    """A locked temporary folder. Those that killed runners have left are removed first."""

    def __init__(self) -> None:
        parent = Path(tempfile.gettempdir())
        for left in parent.glob(f"{_PREFIX}*/lock"):
            try:
                with left.open("rb") as file:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                continue  # in use, or another user's
            shutil.rmtree(left.parent, ignore_errors=True)
        self.path = Path(tempfile.mkdtemp(prefix=_PREFIX))
        part = self.path / "lock.part"
        self._lock = part.open("xb")
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        part.rename(self.path / "lock")  # locked from the moment that others see it

    def remove(self) -> None:
        """Remove the folder."""
        shutil.rmtree(self.path, ignore_errors=True)
        self._lock.close()


def _problem(plan: Plan) -> str:
    """Return why the node cannot play the plan; empty if nothing is known."""
    settings, own = plan.settings, plan.suite.sites
    if settings.ocr and tesseract_version() is None:
        return "Tesseract is missing there: install tesseract-ocr, or run with --no-ocr"
    try:
        if own is not None:
            if not own.path.is_file():
                return f"{own.path} is missing there: copy the folder of the sites to the same path"
            own.passwords()
        if settings.model not in SCRIPTED:
            from agentkv.models.adapter import digest_of

            if digest_of(settings) != plan.weights:
                return f"the model {settings.model} has other weights there; copy them anew"
    except ValueError as error:
        return str(error)
    return ""
