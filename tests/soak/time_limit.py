"""A time limit on a block of code in the main thread."""

import contextlib
import signal
from collections.abc import Iterator


@contextlib.contextmanager
def time_limit(seconds: float, *, processor_time: bool = False) -> Iterator[None]:
    """Raise TimeoutError in the block after `seconds` of wall time, or of processor time."""
    timer, number = (
        (signal.ITIMER_VIRTUAL, signal.SIGVTALRM)
        if processor_time
        else (signal.ITIMER_REAL, signal.SIGALRM)
    )

    def stop(*_: object) -> None:
        kind = "processor time" if processor_time else "wall time"
        raise TimeoutError(f"the block took more than {seconds:g} s of {kind}")

    before = signal.signal(number, stop)
    signal.setitimer(timer, seconds)
    try:
        yield
    finally:
        signal.setitimer(timer, 0)
        signal.signal(number, before)
