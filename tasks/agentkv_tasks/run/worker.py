"""One worker process: it takes one job at a time and tells its parent how each goes."""

import contextlib
import os
import sys
from dataclasses import dataclass
from pathlib import Path

from agentkv.trace import Step
from agentkv_env.errors import BrowserGone, BrowserMissing
from agentkv_tasks.results import Row
from agentkv_tasks.run.child_process import become_child
from agentkv_tasks.run.episode_runner import EpisodeRunner
from agentkv_tasks.run.plan import Plan
from agentkv_tasks.run.remote import Connection, ModelGone


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


MODEL_GONE = 3
"""Exit code of a worker whose model's process has ended."""


def serve(connection: Connection, log: Path, plan: Plan, line: Connection | None) -> None:
    """What a worker process does: take jobs from `connection` until it is given None.

    Args:
        line: to the process that holds the model; None for scripts.
    """

    def tell(step: Step) -> None:
        connection.send(Stepped(step.index + 1, step.cache_bytes, step.cache_peak_bytes))

    become_child(log)
    try:
        with contextlib.ExitStack() as stack:
            try:
                runner = stack.enter_context(EpisodeRunner(plan, line))
            except (ValueError, BrowserMissing) as error:
                connection.send(Unable(str(error)))
                return
            except BrowserGone as error:  # the next worker's may start
                print(error, file=sys.stderr, flush=True)
                os._exit(1)
            connection.send(Ready())
            while (job := connection.recv()) is not None:
                connection.send(Finished(runner.run(job, tell)))
    except ModelGone:
        os._exit(MODEL_GONE)  # the parent ends everyone who was on the line
    except (EOFError, BrokenPipeError):
        os._exit(1)  # the parent is gone; nothing is left to tidy for
