"""Which implementation serves a device, and why."""

from collections.abc import Iterator, Mapping
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
"""The versions that the kernels are tested with: those that torch 2.11 and torch 2.13 ask for. Both
build all of them, and interpreted by either they equal the reference."""

OLDEST_CAPABILITY = (8, 0)
"""The oldest devices that the kernels are compiled for: matrix units that know bfloat16."""

Implementation = Literal["triton", "numba", "reference"]
"""Kernels for CUDA devices, kernels for processors, plain torch."""


@dataclass(frozen=True, slots=True)
class Choice:
    """An implementation, and why it is that one."""

    implementation: Implementation
    reason: str

    def __str__(self) -> str:
        return f"{self.implementation}: {self.reason}"


_preferred: ContextVar[Implementation | None] = ContextVar("preferred", default=None)


@contextmanager
def preferring(implementation: Implementation) -> Iterator[None]:
    """Inside, this implementation serves all that it can, on every device that it runs on: so that
    one can be held against another. Caches keep what served them when they got their first token.

    On a processor Triton runs in its interpreter only (`TRITON_INTERPRET=1`, set before Triton is
    imported), which is slow beyond use and meant for tests.
    """
    before = _preferred.set(implementation)
    try:
        yield
    finally:
        _preferred.reset(before)


def choice_for(device: torch.device) -> Choice:
    """What serves tensors on a device. `str()` of it is a line for people."""
    best, preferred = _best_for(device), _preferred.get()
    if preferred is None or preferred == best.implementation:
        return best
    if preferred == "reference":
        return Choice(preferred, "asked for")
    if preferred == "triton" and device.type == "cpu" and _is_interpreted():
        return Choice(preferred, "asked for, interpreted")
    return best


def _is_interpreted() -> bool:
    """Whether Triton is there and was told to interpret its kernels."""
    return _lack_of_triton() is None and bool(import_module("triton").knobs.runtime.interpret)


@cache
def _best_for(device: torch.device) -> Choice:
    if device.type == "cpu":
        lack = _lack_of_numba()
        return Choice("reference", lack) if lack else Choice("numba", "Numba on cpu")
    if device.type != "cuda":
        return Choice("reference", f"rows on {device.type}, Triton needs CUDA, Numba cpu")
    if torch.version.hip is not None:
        return Choice("reference", "this torch is built for ROCm, the kernels for CUDA")
    name, capability = torch.cuda.get_device_name(device), torch.cuda.get_device_capability(device)
    if capability < OLDEST_CAPABILITY:
        needed, found = (".".join(map(str, pair)) for pair in (OLDEST_CAPABILITY, capability))
        return Choice("reference", f"{name} has compute capability {found}, below {needed}")
    lack = _lack_of_triton()
    if lack:
        return Choice("reference", lack)
    return Choice("triton", f"Triton {version('triton')} on {name}")


def choice_here() -> Choice:
    """What serves the best device of this machine."""
    return choice_for(torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu"))


def chosen(
    asked: Implementation | None,
    device: torch.device,
    lacks: Mapping[Implementation, str | None],
) -> Implementation:
    """The implementation to use.

    Args:
        asked: what the caller insists on; None: whatever serves best.
        lacks: of the implementations there are besides the reference, why they cannot serve these
            tensors wherever they are; None if they can.

    Raises:
        ValueError: an implementation is asked for and cannot serve.
    """
    choice = choice_for(device)
    wanted = choice.implementation if asked is None else asked
    if wanted == "reference":
        return wanted
    lack = lacks.get(wanted, "this is not among what they do")
    if wanted != choice.implementation:
        lack = str(choice)
    if lack is None:
        return wanted
    if asked is not None:
        raise ValueError(
            f"the {wanted.capitalize()} kernels cannot be used: {lack}; leave the implementation "
            "open to get the best there is"
        )
    return "reference"


def current(device: torch.device) -> AbstractContextManager[object]:
    """Triton launches on the current device, wherever its tensors are."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


def lack_of_rows(dtype: torch.dtype, head_dim: int) -> str | None:
    """Why Triton does not store such rows; None if it does."""
    if dtype not in (torch.float16, torch.bfloat16, torch.float32):
        return f"rows are {dtype}, the kernels know float16, bfloat16 and float32"
    if head_dim > 256:
        return f"heads of {head_dim} channels, at most 256 are served"
    return None


def lack_of_attention(dtype: torch.dtype, group: int, head_dim: int) -> str | None:
    """Why Triton does not attend with so many query heads per key-value head of such rows; None
    if it does. The bounds are where it compiles without spilling registers."""
    if lack := lack_of_rows(dtype, head_dim):
        return lack
    most_heads, most_channels = (8, 128) if dtype == torch.float32 else (16, 256)
    if group > most_heads:
        return f"{group} query heads per key-value head in {dtype}, at most {most_heads} are served"
    if head_dim > most_channels:
        return f"heads of {head_dim} channels in {dtype}, at most {most_channels} are served"
    return None


def _lack_of_triton() -> str | None:
    try:
        found = version("triton")
    except PackageNotFoundError:
        return f"Triton is not installed: pip install triton=={TRITONS[-1]}"
    if found not in TRITONS:
        return f"Triton {found} is installed, the kernels are tested with {' and '.join(TRITONS)}"
    try:
        import_module("triton")
    except ImportError as error:
        return f"Triton {found} is installed and does not load ({error})"
    return None


def _lack_of_numba() -> str | None:
    if find_spec("numba") is None:
        return "rows on cpu, and Numba is not installed: pip install 'agentkv[cpu]'"
    try:
        import_module("agentkv_kernels.numba.kernels")
    except RuntimeError as error:
        # where it keeps what it compiled is not to be written to
        return f"rows on cpu, and Numba has no place to keep compiled code ({error})"
    return None
