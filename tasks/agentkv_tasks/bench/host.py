"""The machine that is measured on: its device, threads, load, and whether memory is enough."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from agentkv.cache.hf.families import describe
from agentkv_tasks.bench.errors import BenchError
from agentkv_tasks.provenance import processor, versions
from agentkv_tasks.report.summary import human_bytes


def require_memory(model: Any, tokens: int, num_caches: int) -> None:
    """Refuse what would not fit.

    Args:
        tokens: of all sequences together.
        num_caches: that keep all of them, at the same time; those at work count twice, because
            they may be copied in being made longer.

    Raises:
        BenchError: saying how much is needed and how much there is.
    """
    full = tokens * sum(
        2 * layer.num_heads * layer.head_dim * model.dtype.itemsize
        for layer in describe(model).layers
    )
    needed, free = num_caches * full, _free_bytes(model.device)
    if free is not None and needed > free:
        raise BenchError(
            f"{num_caches} caches at once that keep all of {tokens} tokens need about "
            f"{human_bytes(needed)}; {human_bytes(free)} are free. Lower --seen, --batches or "
            "--layers, or measure fewer policies that keep all"
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
    """Over the last minute; empty where the system does not say."""
    try:
        return [round(os.getloadavg()[0], 2)]
    except OSError:
        return []


def device_of(name: str) -> torch.device:
    """What `auto`, `cpu`, `cuda` ... means here. Raises BenchError: there is no GPU."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise BenchError(f"--device {name}: torch {torch.__version__} sees no GPU; use auto or cpu")
    return torch.device(name)


@contextmanager
def threads_of_torch(count: int | None) -> Iterator[None]:
    """So many inside; None: as many as there are."""
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
