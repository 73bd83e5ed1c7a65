"""A worker process: it runs one job at a time and reports to its parent."""

import contextlib
import os
import sys
from dataclasses import dataclass
from pathlib import Path

from agentkv.files import WriteError
from agentkv.trace import Step
from agentkv_env.errors import BrowserGone, BrowserMissing
from agentkv_tasks.results import Row
from agentkv_tasks.run.child_process import become_child
from agentkv_tasks.run.episode_runner import EpisodeRunner
from agentkv_tasks.run.plan import Plan
from agentkv_tasks.run.remote import Connection, ModelGone


@dataclass(frozen=True, slots=True)
class Ready:
    """The worker is ready for an episode."""


@dataclass(frozen=True, slots=True)
class Stepped:
    """A step of the current episode is over."""

    num_steps: int
    cache_bytes: int
    cache_peak_bytes: int


@dataclass(frozen=True, slots=True)
class Finished:
    """The episode is over; `row` is complete except for versions and commit."""

    row: Row


@dataclass(frozen=True, slots=True)
class StartFailed:
    """The worker cannot start; the message is for the user."""

    message: str


@dataclass(frozen=True, slots=True)
class CannotWrite:
    """A trace or a screenshot could not be written; the message is for the user."""

    message: str


Message = Ready | Stepped | Finished | StartFailed | CannotWrite


MODEL_GONE = 3
"""Exit code of a worker that lost the model's process."""


def serve(
    connection: Connection, log: Path, plan: Plan, model_connection: Connection | None
) -> None:
    """Run jobs from `connection` until it receives None.

    The main function of a worker process.

    Args:
        model_connection: connection to the process that holds the model; None for scripts.
    """

    def report_step(step: Step) -> None:
        connection.send(Stepped(step.index + 1, step.cache_bytes, step.cache_peak_bytes))

    become_child(log)
    try:
        with contextlib.ExitStack() as stack:
            try:
                runner = stack.enter_context(EpisodeRunner(plan, model_connection))
            except (ValueError, BrowserMissing) as error:
                connection.send(StartFailed(str(error)))
                return
            except BrowserGone as error:  # the browser of the next worker may start
                print(error, file=sys.stderr, flush=True)
                os._exit(1)
            connection.send(Ready())
            while (job := connection.recv()) is not None:
                connection.send(Finished(runner.run(job, report_step)))
    except WriteError as error:  # a full disk would take no other trace either
        connection.send(CannotWrite(str(error)))
    except ModelGone:
        os._exit(MODEL_GONE)  # the parent replaces all workers
    except (EOFError, BrokenPipeError):
        os._exit(1)  # the parent is gone
