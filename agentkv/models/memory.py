"""Errors that say that no memory was left, and giving back what an episode held."""

import gc

import torch

from agentkv.models.model import OutOfMemory

_TEXTS = ("out of memory", "can't allocate memory", "not enough memory")
"""Texts of errors without a class of their own: CUDA's libraries, MPS, and torch on a CPU."""
_SHOWN_CHARACTERS = 200


def as_out_of_memory(error: Exception) -> Exception:
    """Return an `OutOfMemory` if `error` says that no memory was left, and otherwise `error`.

    The new error has no traceback, because its frames would keep tensors alive.
    """
    if isinstance(error, OutOfMemory) or not _says_so(error):
        return error
    cause = str(error).strip().partition("\n")[0][:_SHOWN_CHARACTERS] or type(error).__name__
    return OutOfMemory(
        f"no memory was left for the reply: {cause}; a smaller budget, a smaller chunk or fewer "
        "workers need less"
    )


def _says_so(error: Exception) -> bool:
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and any(text in str(error).lower() for text in _TEXTS)


def release_memory() -> None:
    """Return the memory of objects that nobody uses to the device."""
    gc.collect()  # an error's frames refer to each other
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
