"""Weights in huge pages of memory, where Linux has them for programs that ask.

A decoded token reads every weight once. In pages of 4 KiB the processor's prefetching stops at each
page's end, and it looks up many more addresses: measured on one core, 32 GB/s in huge pages and
21 GB/s without.
"""

import mmap
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

SIZE = 2 << 20
"""Bytes of a huge page."""

ALIGNMENT = 64
"""Bytes that the start of a tensor is a multiple of: a cache line."""

RELEASED = 16 << 20
"""Bytes that move before those that they left are released (our choice)."""

SETTING = Path("/sys/kernel/mm/transparent_hugepage/enabled")
"""What Linux does for programs that ask: nothing with `[never]`."""


@torch.no_grad()
def move_weights(model: nn.Module, release: Callable[[], None]) -> bool:
    """Move a model's parameters and buffers on the CPU to huge pages, one after the other.

    Tensors that share memory, such as tied ones, still do. Views that were taken of them keep the
    old memory. It takes the time of a copy, and little more memory than one tensor at a time.

    Args:
        release: gives memory that was freed back to the system.

    Returns:
        Whether they moved: the system has huge pages, and the weights fill one.
    """
    found: dict[int, list[Tensor]] = {}
    for tensor in (*model.parameters(), *model.buffers()):
        if tensor.device.type == "cpu" and tensor.is_contiguous() and tensor.numel():
            found.setdefault(tensor.data_ptr(), []).append(tensor)
    total = sum(_room(each[0]) for each in found.values())
    if total < SIZE or not _has_huge_pages() or _share_partly(found):
        return False
    memory = mmap.mmap(-1, total + SIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(mmap.MADV_HUGEPAGE)
    offset = -torch.frombuffer(memory, dtype=torch.uint8).data_ptr() % SIZE
    waiting = 0
    for same in found.values():
        first = same[0]
        # a storage of its own, so that saving one tensor does not save all
        moved = torch.frombuffer(memory, dtype=first.dtype, count=first.numel(), offset=offset)
        moved = moved.view(first.shape).copy_(first)
        for tensor in same:
            tensor.data = moved.view(tensor.dtype).view(tensor.shape)
        offset += _room(first)
        waiting += _room(first)
        if waiting >= RELEASED:
            release()
            waiting = 0
    release()
    return True


def _room(tensor: Tensor) -> int:
    return -(-tensor.nbytes // ALIGNMENT) * ALIGNMENT


def _share_partly(found: dict[int, list[Tensor]]) -> bool:
    """Return whether tensors overlap that do not begin and end together."""
    stop = 0
    for start, same in sorted(found.items()):
        if start < stop or len({each.nbytes for each in same}) > 1:
            return True
        stop = start + same[0].nbytes
    return False


def _has_huge_pages() -> bool:
    if not hasattr(mmap, "MADV_HUGEPAGE"):
        return False
    try:
        return "[never]" not in SETTING.read_text()
    except OSError:
        return False
