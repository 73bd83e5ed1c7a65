"""Numba: threads that help with a step.

The thread that wants a step done leads: it opens the step, works on it like everyone else, closes
it and waits for those who are inside. Helpers stay awake for a moment after a step, because the
next one mostly follows at once, and then sleep. A helper that sleeps, or comes too late, is not
missed. Helpers never compile, and end before the interpreter does: it would destroy what they use.
"""

import atexit
import os
import threading
from queue import SimpleQueue

import numpy as np

from agentkv_kernels.numba import atomics
from agentkv_kernels.numba.addresses import call
from agentkv_kernels.numba.compiled import address_of, compiled
from agentkv_kernels.numba.decode import work

OPEN, SERIAL, SIZE, INSIDE = 0, 1, 2, 8
"""Numbers of the control block: address of the open step, 0 for none; its serial number; how many
threads may work; how many helpers are inside, in a cache line of its own."""

PATIENCE = 300_000
"""Looks at the control block before a helper sleeps: most of a millisecond (our choice)."""


@compiled(nogil=True)
def lead(control, step, size, work):
    """Do a step that has begun, with helpers.

    Args:
        control: address of the control block.
        step: address of the step.
        size: threads that may work.
        work: address of `decode.work`.
    """
    atomics.store(control + 8 * SIZE, size)
    atomics.add(control + 8 * SERIAL, 1)
    atomics.store(control + 8 * OPEN, step)
    call(work, step)
    atomics.store(control + 8 * OPEN, 0)
    while atomics.load(control + 8 * INSIDE) > 0:
        pass


@compiled(nogil=True)
def help(control, number, patience, work):
    """Help with every step, until none was open for a while.

    Args:
        number: of this helper, from 1.
        patience: looks without finding a step.
        work: as in `lead`.
    """
    looks, latest = 0, -1
    while looks < patience:
        looks += 1
        if atomics.load(control + 8 * OPEN) == 0 or atomics.load(control + 8 * SERIAL) == latest:
            continue
        # who is inside is waited for, so the step that is open now stays
        atomics.add(control + 8 * INSIDE, 1)
        step = atomics.load(control + 8 * OPEN)
        is_wanted = step != 0 and number < atomics.load(control + 8 * SIZE)
        latest = atomics.load(control + 8 * SERIAL)
        if is_wanted:
            call(work, step)
            looks = 0
        atomics.add(control + 8 * INSIDE, -1)


class Team:
    """Helpers of one process. One thread leads at a time."""

    def __init__(self) -> None:
        self._begin_anew()
        atexit.register(self.end)
        if hasattr(os, "register_at_fork"):
            # threads do not survive a fork
            os.register_at_fork(after_in_child=self._begin_anew)

    def _begin_anew(self) -> None:
        self._busy = threading.Lock()
        self._control = np.zeros(16, np.int64)
        self._helpers: list[_Helper] = []
        """Threads; they have begun once `_work` is known."""
        self._work = 0
        self._has_ended = False

    def lead(self, step: int, size: int) -> None:
        """Do a step that has begun with up to `size` threads; alone if another thread leads, or
        after `end`.

        Args:
            step: address of the step.
        """
        if size == 1 or self._has_ended or not self._busy.acquire(blocking=False):
            work(step)
            return
        try:
            control = self._control.ctypes.data
            if not self._work:
                self._work = address_of(work)
                help(control, 0, 0, self._work)  # compiles, and looks at nothing
            while len(self._helpers) < size - 1:
                self._helpers.append(_Helper(self, len(self._helpers) + 1))
            for helper in self._helpers[: size - 1]:
                helper.wake()
            lead(control, step, size, self._work)
        finally:
            self._busy.release()

    def help(self, number: int) -> None:
        """Help until no step was open for a while; for a helper's thread."""
        help(self._control.ctypes.data, number, PATIENCE, self._work)

    def end(self) -> None:
        """End all helpers, and return when their threads have ended. Threads lead alone then."""
        self._has_ended = True
        for helper in self._helpers:
            helper.end()


class _Helper:
    """A thread that helps whenever it is woken."""

    def __init__(self, team: Team, number: int) -> None:
        self._team, self._number = team, number
        self._bell: SimpleQueue[bool] = SimpleQueue()
        """True wakes the helper, and False ends it."""
        self._is_asleep = True
        # a daemon, because the interpreter would wait for others before it ends the team
        self._thread = threading.Thread(
            target=self._run, name=f"agentkv helper {number}", daemon=True
        )
        self._thread.start()

    def wake(self) -> None:
        if self._is_asleep:
            self._is_asleep = False
            self._bell.put(True)

    def end(self) -> None:
        self._bell.put(False)
        self._thread.join()

    def _run(self) -> None:
        while self._bell.get():
            self._team.help(self._number)
            self._is_asleep = True
