"""The host of a benchmark: device, threads, load and memory."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from agentkv.cache.hf.families import describe
from agentkv.terminal import human_bytes
from agentkv_tasks.bench.errors import BenchError
from agentkv_tasks.provenance import processor, versions


def require_memory(model: Any, tokens: int, num_caches: int) -> None:
    """Refuse a measurement that does not fit into memory.

    Args:
        tokens: tokens of all sequences together.
        num_caches: full caches at the same time. A working cache counts twice, because growing may
            copy it.

    Raises:
        BenchError: the memory is too small; the message names the need and the free memory.
    """
    full = tokens * sum(
        2 * layer.num_heads * layer.head_dim * model.dtype.itemsize
        for layer in describe(model).layers
    )
    needed, free = num_caches * full, _free_bytes(model.device)
    if free is not None and needed > free:
        raise BenchError(
            f"{num_caches} simultaneous full caches of {tokens} tokens need about "
            f"{human_bytes(needed)}; {human_bytes(free)} are free. Lower --seen, --batches or "
            "--layers, or measure fewer policies that keep everything"
        )


def _free_bytes(device: torch.device) -> int | None:
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return None


def load_average() -> list[float]:
    """Return the load over the last minute; empty if the system does not report it."""
    try:
        return [round(os.getloadavg()[0], 2)]
    except OSError:
        return []


def device_of(name: str) -> torch.device:
    """Return the device that `auto`, `cpu` or `cuda` means. Raises BenchError without a GPU."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise BenchError(f"--device {name}: torch {torch.__version__} sees no GPU; use auto or cpu")
    return torch.device(name)


@contextmanager
def threads_of_torch(count: int | None) -> Iterator[None]:
    """Set the number of torch threads inside the context; None: leave it."""
    before = torch.get_num_threads()
    if count is not None:
        torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def measured_on(model: Any) -> dict[str, Any]:
    """Return the fields of a row that describe the machine: versions, device and threads."""
    device = model.device
    return {
        "versions": versions(),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else processor(),
        "threads": torch.get_num_threads(),
    }


def dtype_name(model: Any) -> str:
    """Return the dtype of a model, such as `float32`."""
    return str(model.dtype).removeprefix("torch.")
