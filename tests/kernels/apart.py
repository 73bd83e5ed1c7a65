"""Find mistakes that only a device would show: operations on tensors of two devices, and waits for
the device.

A tensor counts as the device's if it was made or moved with a device named, or comes out of an
operation on one that is.
"""

import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch.overrides import TorchFunctionMode

ROOT = str(Path(__file__).parents[2])

WAITS = {
    *("item", "tolist", "cpu", "numpy", "nonzero", "equal", "allclose", "masked_select", "unique"),
    *("__bool__", "__int__", "__float__", "__index__", "__contains__", "__repr__"),
}
"""Operations whose answer the host has to wait for."""

CROSSING = {"copy_", "to", "type", "__getitem__", "__setitem__", "__get__"}
"""Operations that may take tensors of both."""


def on_device(*tensors: torch.Tensor) -> None:
    """Let these count as the device's, such as the weights of a model."""
    for x in tensors:
        x._is_on_device = True


def is_on_device(x: torch.Tensor) -> bool:
    return getattr(x, "_is_on_device", False)


class Apart(TorchFunctionMode):
    """While it is entered, notes waits and mixtures; each as what was called, and from where."""

    def __init__(self) -> None:
        super().__init__()
        self.waits: list[str] = []
        self.mixed: list[str] = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        name = getattr(func, "__name__", str(func))
        there = [is_on_device(x) for x in _tensors((args, kwargs))]
        rest = [x for x in _tensors((args, kwargs)) if not is_on_device(x) and x.dim()]
        if any(there):
            if name in WAITS:
                self.waits.append(f"{name}: {_place()}")
            if name in ("__getitem__", "__setitem__") and is_on_device(args[0]):
                picks = list(_tensors(args[1]))
                if any(pick.dtype == torch.bool for pick in picks):
                    self.waits.append(f"picked by a mask: {_place()}")
                rest = [x for x in _tensors(args[2:]) if not is_on_device(x) and x.dim()]
                rest += [pick for pick in picks if not is_on_device(pick) and pick.dim()]
            elif name in CROSSING:
                rest = []
            if rest:
                self.mixed.append(f"{name}: {_place()}")
        done = func(*args, **kwargs)
        names_device = kwargs.get("device") is not None or (
            name == "to" and any(isinstance(x, torch.device) for x in args)
        )
        if any(there) and name != "cpu" or names_device:
            on_device(*_tensors(done))
        return done


@contextmanager
def kernels_watched(apart: Apart) -> Iterator[None]:
    """While this is open, what kernels are handed in the interpreter has to be the device's; what
    the interpreter does with it is its own business."""
    from triton.runtime.interpreter import InterpretedFunction

    inner = InterpretedFunction.run

    def run(self, *args, **kwargs):
        if not all(is_on_device(x) for x in _tensors((args, kwargs))):
            apart.mixed.append(f"{self.fn.__name__}: {_place()}")
        with torch._C.DisableTorchFunction():
            return inner(self, *args, **kwargs)

    InterpretedFunction.run = run
    try:
        yield
    finally:
        InterpretedFunction.run = inner


def _tensors(x):
    if isinstance(x, torch.Tensor):
        yield x
    elif isinstance(x, list | tuple):
        for each in x:
            yield from _tensors(each)
    elif isinstance(x, dict):
        yield from _tensors(list(x.values()))


def _place() -> str:
    found = [x for x in traceback.extract_stack() if x.filename.startswith(ROOT)]
    here = [x for x in found if "/tests/" not in x.filename]
    return " < ".join(f"{Path(x.filename).name}:{x.lineno} {x.line}" for x in reversed(here[-3:]))
