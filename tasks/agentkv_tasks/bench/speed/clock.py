"""Measure the seconds of a step on its device, and percentiles."""

import gc
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch


class Clock:
    """Times work on one device, with CUDA events on a GPU."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._events: tuple[torch.cuda.Event, torch.cuda.Event] | None = None
        if device.type == "cuda":
            self._events = (
                torch.cuda.Event(enable_timing=True),  # type: ignore[no-untyped-call]
                torch.cuda.Event(enable_timing=True),  # type: ignore[no-untyped-call]
            )

    def seconds(self, work: Callable[[], object]) -> float:
        """Run `work` to its end and return its time."""
        if self._events is None:
            began = time.perf_counter()
            work()
            return time.perf_counter() - began
        begin, end = self._events
        self.wait()
        # the timed device need not be the current one
        stream = torch.cuda.current_stream(self._device)
        begin.record(stream)
        work()
        end.record(stream)
        end.synchronize()
        return float(begin.elapsed_time(end)) / 1e3

    def wait(self) -> None:
        """Wait until the device is idle."""
        if self._events is not None:
            torch.cuda.synchronize(self._device)


def percentile(values: Sequence[float], share: float) -> float:
    """Return the percentile of the values, interpolated linearly between neighbors."""
    assert values and 0 <= share <= 1
    ascending = sorted(values)
    place = share * (len(ascending) - 1)
    below = math.floor(place)
    above = min(below + 1, len(ascending) - 1)
    return ascending[below] + (place - below) * (ascending[above] - ascending[below])


@contextmanager
def undisturbed() -> Iterator[None]:
    """Disable garbage collection inside the context."""
    gc.collect()
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
