"""Progress of a measurement: a bar on a terminal, elsewhere a line on stderr now and then."""

import sys
from collections.abc import Callable
from time import monotonic
from typing import Any

from rich.console import Console
from rich.progress import Progress, TaskID

EVERY = 15.0
"""Seconds between two lines (our choice)."""


def progress_on(console: Console) -> Progress:
    """Return the progress of a measurement whose results `console` shows.

    Without a terminal, results alone go to stdout.
    """
    if console.is_terminal:
        return Progress(console=console, transient=True)
    return Lines(lambda line: print(line, file=sys.stderr, flush=True))


class Lines(Progress):
    """Says what is done, the first time at once and then every `every` seconds at most.

    Args:
        say: called with each line.
    """

    def __init__(self, say: Callable[[str], None], *, every: float = EVERY) -> None:
        super().__init__(disable=True)
        self._say, self._every = say, every
        self._begun = monotonic()
        self._next = self._begun

    def update(self, task_id: TaskID, **fields: Any) -> None:
        super().update(task_id, **fields)
        self._tell(task_id)

    def advance(self, task_id: TaskID, advance: float = 1) -> None:
        super().advance(task_id, advance)
        self._tell(task_id)

    def _tell(self, task_id: TaskID) -> None:
        now = monotonic()
        if now < self._next:
            return
        self._next = now + self._every
        task = next(task for task in self.tasks if task.id == task_id)
        done = f"{task.completed:.0f}" + (f" of {task.total:.0f}" if task.total else "")
        self._say(f"{now - self._begun:4.0f} s: {done}, {task.description}".rstrip(", "))
