"""Choice of an implementation for a device, with the reason for it."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import Literal

import torch

TRITONS = ("3.6.0", "3.7.1")
"""Triton versions that the kernels are tested with: those that torch 2.11 and torch 2.13 require.
Both build every kernel, and interpreted by either one the kernels equal their reference."""

OLDEST_CAPABILITY = (8, 0)
"""Least compute capability: the kernels need matrix units for bfloat16."""

Implementation = Literal["triton", "numba", "torch"]
"""Kernels for CUDA devices, kernels for CPUs, plain torch."""


@dataclass(frozen=True, slots=True)
class Choice:
    """An implementation and the reason for choosing it."""

    implementation: Implementation
    reason: str

    def __str__(self) -> str:
        return f"{self.implementation}: {self.reason}"


_preferred: ContextVar[Implementation | None] = ContextVar("preferred", default=None)


@contextmanager
def preferring(implementation: Implementation) -> Iterator[None]:
    """Prefer this implementation inside the context, wherever it runs, to compare implementations.

    A cache keeps the backend that it chose at its first token. On a CPU, Triton runs only in its
    interpreter (`TRITON_INTERPRET=1`, set before Triton is imported), which is meant for tests.
    """
    before = _preferred.set(implementation)
    try:
        yield
    finally:
        _preferred.reset(before)


def choice_for(device: torch.device) -> Choice:
    """Return the implementation for tensors on a device; `str()` of the result reads as a line."""
    best, preferred = _best_for(device), _preferred.get()
    if preferred is None or preferred == best.implementation:
        return best
    if preferred == "torch":
        return Choice(preferred, "preferred")
    if preferred == "triton" and device.type == "cpu" and _is_interpreted():
        return Choice(preferred, "preferred, interpreted")
    return best


def _is_interpreted() -> bool:
    """Return whether Triton is installed and interprets its kernels."""
    return _lack_of_triton() is None and bool(import_module("triton").knobs.runtime.interpret)


@cache
def _best_for(device: torch.device) -> Choice:
    if device.type == "cpu":
        lack = _lack_of_numba()
        return Choice("torch", lack) if lack else Choice("numba", "Numba on cpu")
    if device.type != "cuda":
        return Choice("torch", f"tensors on {device.type}; Triton needs CUDA, Numba a CPU")
    if torch.version.hip is not None:
        return Choice("torch", "torch is built for ROCm, the kernels for CUDA")
    name, capability = torch.cuda.get_device_name(device), torch.cuda.get_device_capability(device)
    if capability < OLDEST_CAPABILITY:
        needed, found = (".".join(map(str, pair)) for pair in (OLDEST_CAPABILITY, capability))
        return Choice("torch", f"{name} has compute capability {found}, below {needed}")
    lack = _lack_of_triton()
    if lack:
        return Choice("torch", lack)
    return Choice("triton", f"Triton {version('triton')} on {name}")


def choice_here() -> Choice:
    """Return the choice for the best device of this machine."""
    return choice_for(torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu"))


def current(device: torch.device) -> AbstractContextManager[object]:
    """Make a device current: Triton launches there, wherever its tensors are."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


def unsupported_by_triton(dtype: torch.dtype, group: int, head_dim: int) -> str | None:
    """Return why the Triton kernels cannot serve these shapes; None if they can.

    The bounds are where the kernels compile without spilling registers.

    Args:
        dtype: of dense entries and queries.
        group: query heads per key-value head.
        head_dim: channels per head.
    """
    if dtype not in (torch.float16, torch.bfloat16, torch.float32):
        return f"entries in {dtype}; the kernels support float16, bfloat16 and float32"
    max_group, max_dim = (8, 128) if dtype == torch.float32 else (16, 256)
    if group > max_group:
        return f"{group} query heads per key-value head in {dtype}; the kernels support {max_group}"
    if head_dim > max_dim:
        return f"heads of {head_dim} channels in {dtype}; the kernels support {max_dim}"
    return None


def _lack_of_triton() -> str | None:
    try:
        found = version("triton")
    except PackageNotFoundError:
        return f"Triton is not installed: pip install triton=={TRITONS[-1]}"
    if found not in TRITONS:
        return f"Triton {found} is installed; the kernels are tested with {' and '.join(TRITONS)}"
    try:
        import_module("triton")
    except ImportError as error:
        return f"Triton {found} is installed but does not load ({error})"
    return None


def _lack_of_numba() -> str | None:
    if find_spec("numba") is None:
        return "Numba is not installed: pip install 'agentkv-web[cpu]'"
    try:
        import_module("agentkv_kernels.numba.attention")
    except RuntimeError as error:
        # Numba cannot write to its cache folder
        return f"Numba has no folder to cache compiled code in ({error})"
    return None
