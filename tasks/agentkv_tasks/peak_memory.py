"""Peak memory of this process and of the CUDA allocator, per episode."""

import resource
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

_CLEAR = Path("/proc/self/clear_refs")
_STATUS = Path("/proc/self/status")


def reset_peaks(device: "torch.device | None" = None) -> None:
    """Reset the peaks.

    Where the system cannot reset the peak of a process (other than Linux, or without permission),
    later figures are peaks since the start of the process.

    Args:
        device: CUDA device whose allocator is reset; other devices and None have none.
    """
    try:
        _CLEAR.write_text("5")  # proc(5): 5 resets the peak resident set size
    except OSError:
        pass
    if device is not None and device.type == "cuda":
        sys.modules["torch"].cuda.reset_peak_memory_stats(device)


def peak_rss_bytes() -> int:
    """Return the peak resident memory of this process since the last reset."""
    try:
        for line in _STATUS.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def rss_bytes() -> int | None:
    """Return the resident memory of this process now; None on systems without /proc."""
    try:
        for line in _STATUS.read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return None


def peak_allocator_bytes(device: "torch.device | None") -> int | None:
    """Return the peak memory of tensors on a CUDA device since the last reset; None for others."""
    if device is None or device.type != "cuda":
        return None
    return int(sys.modules["torch"].cuda.max_memory_allocated(device))
