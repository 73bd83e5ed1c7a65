"""One worker process: it takes one job at a time and tells its parent how each goes."""

import contextlib
import multiprocessing
import multiprocessing.connection
import os
import signal
import sys
import threading
from dataclasses import dataclass
from pathlib import Path

from agentkv.trace import Step
from agentkv_env.errors import BrowserGone, BrowserMissing
from agentkv_tasks.plan import Plan
from agentkv_tasks.results import Row
from agentkv_tasks.station import Station


@dataclass(frozen=True, slots=True)
class Ready:
    """The worker can take an episode."""


@dataclass(frozen=True, slots=True)
class Stepped:
    """A step of the episode in progress is over."""

    num_steps: int
    cache_bytes: int
    cache_peak_bytes: int


@dataclass(frozen=True, slots=True)
class Finished:
    """The episode is over; `row` is complete but for versions and commit."""

    row: Row


@dataclass(frozen=True, slots=True)
class Unable:
    """The worker cannot work at all; the message is for the person who started the run."""

    message: str


Message = Ready | Stepped | Finished | Unable


def serve(connection: "multiprocessing.connection.Connection", plan: Plan, log: Path) -> None:
    """What a worker process does: take jobs from `connection` until it is given None.

    The process leads a group of its own, so that Ctrl-C reaches only its parent and the parent can
    kill it together with its browser; and it ends as soon as its parent does.
    """

    def tell(step: Step) -> None:
        connection.send(Stepped(step.index + 1, step.cache_bytes, step.cache_peak_bytes))

    os.setsid()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    _write_to(log)
    try:
        with contextlib.ExitStack() as stack:
            try:
                station = stack.enter_context(Station(plan))
            except (ValueError, BrowserMissing, BrowserGone) as error:
                connection.send(Unable(str(error)))
                return
            connection.send(Ready())
            while (job := connection.recv()) is not None:
                connection.send(Finished(station.run(job, tell)))
    except (EOFError, BrokenPipeError):
        os._exit(1)  # the parent is gone; nothing is left to tidy for


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None, "a worker has a parent"
    multiprocessing.connection.wait([parent.sentinel])
    os.killpg(0, signal.SIGKILL)  # the browser's driver is in this group and ends its browser


def _write_to(log: Path) -> None:
    """Send what is printed here to a file: the terminal belongs to the parent."""
    log.parent.mkdir(parents=True, exist_ok=True)
    sys.stdout.flush()
    sys.stderr.flush()
    target = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(target, 1)
    os.dup2(target, 2)
    os.close(target)
