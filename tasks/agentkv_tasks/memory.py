"""Peak memory of this process and of the CUDA allocator, per episode."""

import resource
import sys
from pathlib import Path

_CLEAR = Path("/proc/self/clear_refs")
_STATUS = Path("/proc/self/status")


def reset_peaks() -> None:
    """Begin to measure anew.

    On Linux the kernel forgets the process's peak; elsewhere, or where that is not allowed, later
    figures are peaks since the process began.
    """
    try:
        _CLEAR.write_text("5")  # proc(5): 5 resets the peak resident set size
    except OSError:
        pass
    torch = sys.modules.get("torch")  # not worth an import: without torch there is no allocator
    if torch is not None and torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()


def peak_rss_bytes() -> int:
    """Most resident memory of this process since the last reset."""
    try:
        for line in _STATUS.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def peak_allocator_bytes() -> int | None:
    """Most memory that CUDA tensors took since the last reset; None without CUDA."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available():
        return None
    return int(torch.cuda.max_memory_allocated())
