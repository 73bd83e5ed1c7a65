"""What a policy's verdict on a sequence means for one of its lanes."""

import torch
from torch import Tensor

from agentkv.policies.rows import Drop, DropOne, Verdict

Run = tuple[int, int]
"""Rows first..last - 1."""


def rows_gone(verdict: Verdict | None, lane: int, count: int) -> Run | Tensor:
    """The rows of a lane that go: one run of them where they are one, else their numbers (n,).

    Args:
        verdict: in storage order, a mask being filled up at its front; None: all rows stay.
        lane: which of the sequence's lanes.  count: its rows.
    """
    if verdict is None:
        return 0, 0
    if isinstance(verdict, Drop):
        return verdict.start, verdict.stop
    assert not isinstance(verdict, DropOne), "carried out by itself"
    keep = verdict[lane, verdict.shape[1] - count :]
    gone = keep.logical_not().nonzero().squeeze(1)
    if not gone.shape[0]:
        return 0, 0
    start, stop = int(gone[0]), int(gone[-1]) + 1
    return (start, stop) if stop - start == gone.shape[0] else gone


def rows_left(gone: Run | Tensor, count: int, device: torch.device) -> Tensor | None:
    """The numbers of a lane's other rows, ascending; None: all."""
    if isinstance(gone, tuple) and gone[0] == gone[1]:
        return None
    keep = torch.ones(count, dtype=torch.bool, device=device)
    keep[slice(*gone) if isinstance(gone, tuple) else gone] = False
    return keep.nonzero().squeeze(1)
