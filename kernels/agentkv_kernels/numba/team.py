"""Numba: threads that help with a step.

The thread that wants a step done leads: it opens the step, works on it like everyone else, closes
it and waits for those who are inside. Helpers stay awake for a moment after a step, because the
next one mostly follows at once, and then sleep. A helper that sleeps, or comes too late, is not
missed.
"""

import os
import threading
from typing import Any

import numpy as np

from agentkv_kernels.numba import atomics
from agentkv_kernels.numba.compiled import compiled
from agentkv_kernels.numba.decode import work

OPEN, SERIAL, KIND, SIZE, INSIDE = 0, 1, 2, 3, 8
"""Numbers of the control block: address of the open step, 0 for none; its serial number; the dtype
of its weights; how many threads may work; how many helpers are inside, in a cache line of its
own."""

PATIENCE = 300_000
"""Looks at the control block before a helper sleeps: most of a millisecond (our choice)."""


@compiled(nogil=True)
def lead(control, step, kind, size, like):
    """Do a step that has begun, with helpers.

    Args:
        control: address of the control block.
        step: address of the step.
        kind: number of the dtype that `like` stands for.
        size: threads that may work.
    """
    atomics.store(control + 8 * KIND, kind)
    atomics.store(control + 8 * SIZE, size)
    atomics.add(control + 8 * SERIAL, 1)
    atomics.store(control + 8 * OPEN, step)
    work(step, like)
    atomics.store(control + 8 * OPEN, 0)
    while atomics.load(control + 8 * INSIDE) > 0:
        pass


@compiled(nogil=True)
def help(control, number, kind, like, patience):
    """Help with every step of one dtype, until none was open for a while or another dtype is.

    Args:
        number: of this helper, from 1.
        kind, like: as in `lead`.
        patience: looks without finding a step.
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
        is_known = atomics.load(control + 8 * KIND) == kind
        latest = atomics.load(control + 8 * SERIAL)
        if is_wanted and is_known:
            work(step, like)
            looks = 0
        atomics.add(control + 8 * INSIDE, -1)
        if is_wanted and not is_known:
            return


class Team:
    """Helpers of one process. One thread leads at a time.

    Args:
        likes: per dtype number, an array that stands for the dtype.
    """

    def __init__(self, likes: dict[int, Any]) -> None:
        self._likes = likes
        self._busy = threading.Lock()
        self._begin_anew()
        if hasattr(os, "register_at_fork"):
            # threads do not survive a fork
            os.register_at_fork(after_in_child=self._begin_anew)

    def _begin_anew(self) -> None:
        self._busy = threading.Lock()
        self._control = np.zeros(16, np.int64)
        self._bells: list[threading.Lock] = []
        """Per helper, a lock that is held while it has nothing to do."""
        self._asleep: list[bool] = []
        self._kind = 0

    def lead(self, step: int, kind: int, size: int) -> None:
        """Do a step that has begun with up to `size` threads; alone if another thread leads.

        Args:
            step: address of the step.
            kind: number of the dtype of its weights.
        """
        if size == 1 or not self._busy.acquire(blocking=False):
            work(step, self._likes[kind])
            return
        try:
            self._kind = kind
            while len(self._bells) < size - 1:
                self._engage()
            for i in range(size - 1):
                if self._asleep[i]:
                    self._asleep[i] = False
                    self._bells[i].release()
            lead(self._control.ctypes.data, step, kind, size, self._likes[kind])
        finally:
            self._busy.release()

    def _engage(self) -> None:
        bell = threading.Lock()
        bell.acquire()
        self._bells.append(bell)
        self._asleep.append(True)
        number = len(self._bells)
        name = f"agentkv helper {number}"
        threading.Thread(target=self._help, args=(number, bell), name=name, daemon=True).start()

    def _help(self, number: int, bell: threading.Lock) -> None:
        control, asleep = self._control, self._asleep
        while True:
            bell.acquire()
            kind = -1
            while kind != self._kind:
                kind = self._kind
                help(control.ctypes.data, number, kind, self._likes[kind], PATIENCE)
            asleep[number - 1] = True
