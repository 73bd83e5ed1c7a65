"""A process of its own for an episode, and the memory that it takes. Imports neither torch nor
transformers, so that a process holds only what its episode imports.
"""

import multiprocessing
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from typing import Literal, Protocol, TypeVar


class EpisodeError(RuntimeError):
    """A process was killed before it could report."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryUse:
    """Memory of an episode, with the field names of `MemoryRow`."""

    measured: Literal["process", "device"]
    loaded_bytes: int
    peak_bytes: int
    live_bytes: int
    cold_bytes: int
    cache_peak_bytes: int | None
    resident_bytes: int
    kept_rows: float
    end_bytes: int | None
    load_bytes: int
    file_bytes: int | None


class ProcessTask(Protocol):
    """The task of a process."""

    @property
    def label(self) -> str:
        """Name of the cache in rows."""
        ...

    @property
    def seen(self) -> int:
        """Tokens of the prompt."""
        ...


_Task = TypeVar("_Task", bound=ProcessTask)


def in_a_process(measured: Callable[[_Task], MemoryUse], task: _Task) -> MemoryUse:
    """Call a function of a module in a new process that does nothing else.

    Raises:
        EpisodeError: the process was killed, for example because memory ran out.
    """
    spawn = multiprocessing.get_context("spawn")  # a fork would inherit memory
    with ProcessPoolExecutor(max_workers=1, mp_context=spawn) as pool:
        try:
            return pool.submit(measured, task).result()
        except BrokenProcessPool:
            raise EpisodeError(
                f"{task.label}, {task.seen} tokens: the process was killed, probably because "
                "memory ran out; lower --seen or --layers"
            ) from None
