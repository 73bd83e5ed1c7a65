"""Contenders of other libraries that fail: a line says why, and the others are measured."""

import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from agentkv_tasks.bench.contenders.contender import BASELINE
from agentkv_tasks.bench.contenders.verify import WrongError

Say = Callable[[str], object]
"""Shows a line to the reader."""


class LeftOut:
    """The contenders that failed.

    Args:
        say: called with the line of each.
    """

    def __init__(self, say: Say) -> None:
        self._say = say
        self.labels: set[str] = set()

    @contextmanager
    def if_it_fails(self, label: str, kind: str, *, where: str = "") -> Iterator[None]:
        """Leave a contender out if the context raises.

        Errors of agentkv's caches and of the baseline are raised, because the table says nothing
        without them. So are interrupts, and the WrongError of whoever computes wrong results.

        Args:
            where: the batch and length at which it fails alone.
        """
        try:
            yield
        except Exception as error:  # other libraries raise anything
            if kind == "agentkv" or label == BASELINE or isinstance(error, WrongError):
                raise
            self.labels.add(label)
            self._say(line(label, error, where=where))


def line(label: str, error: Exception, *, where: str = "") -> str:
    """Return the line of a contender that is left out."""
    # compilers say much, and assertions nothing
    text = textwrap.shorten(str(error), 300, placeholder=" ...") or type(error).__name__
    return f"{label}: left out{where and f' {where}'}, {text}"
