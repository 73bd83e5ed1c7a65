"""Agents and models tell a listener which work they do; by default there is none."""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Literal

Phase = Literal["converting", "loading", "compiling", "looking", "reading", "writing", "acting"]
"""The kind of work.

* `converting`: a GGUF file, once.
* `loading`: the model.
* `compiling`: kernels, once on a machine and after each update.
* `looking`: the browser reads the page.
* `reading`, `writing`: the model reads its prompt, or writes its reply.
* `acting`: the browser carries out the action.
"""


@dataclass(frozen=True, slots=True)
class Progress:
    """The work that an agent does now, and how much of it is done."""

    phase: Phase
    done: int = 0
    """Tokens read or written so far, functions compiled, or weights converted."""
    total: int | None = None
    """Tokens to be read, or weights; None where nobody knows the end."""
    name: str = ""
    """Name of the model that is loaded, or of the file that is converted."""


COMPILING = "compiling kernels, once on this machine (1 to 4 minutes)"
"""The phase `compiling` in words."""

Listener = Callable[[Progress], None]
"""Called often, between the parts of the work, in the thread that works: it should be quick."""


@contextlib.contextmanager
def telling_of_compilation(listener: Listener | None) -> Iterator[None]:
    """Tell `listener` while kernels are compiled that this machine has not compiled yet.

    Triton's kernels, for CUDA devices, are not announced.
    """
    if listener is None or find_spec("numba") is None:
        yield
        return
    from agentkv_kernels.numba import compiled  # imports Numba, which takes a second

    num_done = 0

    def tell(is_over: bool) -> None:
        nonlocal num_done
        num_done += is_over
        listener(Progress("compiling", num_done))

    with compiled.telling_of_compilation(tell):
        yield
