"""Evictions: verdicts of a policy, and the entries of each segment that they drop.

Shapes: S segments of a sequence, T entries of a segment.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from agentkv.cache.storage.layer_storage import LayerStorage
from agentkv.cache.storage.table import Run
from agentkv.policies.entries import Drop, DropOne, Selection


@dataclass(frozen=True, slots=True)
class Eviction:
    """A verdict on one sequence in some layers of equal shape."""

    storages: Sequence[LayerStorage]
    sequence: int
    verdict: Selection
    """Verdict in storage order, over the segments of the first storage, then of the next."""


def single_entries(verdict: Selection, num_segments: int) -> list[int] | None:
    """Return the entry to drop per segment if the verdict drops exactly one of each; else None."""
    if isinstance(verdict, DropOne):
        entries: list[int] = verdict.entries.tolist()
        return entries
    if isinstance(verdict, Drop) and verdict.stop - verdict.start == 1:
        return [verdict.start] * num_segments
    return None


def by_storage(eviction: Eviction) -> Iterator[tuple[LayerStorage, Selection]]:
    """Yield each storage of an eviction with its own part of the verdict."""
    verdict, per = eviction.verdict, eviction.storages[0].layout.segments_per_sequence
    for i, storage in enumerate(eviction.storages):
        own = slice(i * per, (i + 1) * per)
        if isinstance(verdict, Tensor):
            yield storage, verdict[own]
        elif isinstance(verdict, DropOne):
            yield storage, DropOne(verdict.entries[own])
        else:
            yield storage, verdict


def dropped_entries(verdict: Selection | None, segment: int, count: int) -> Run | Tensor:
    """Return the entries that a segment drops, as one run if they are one, else as numbers (n,).

    Args:
        verdict: in storage order, a mask being padded at its front; None: all entries stay.
        segment: which of the sequence's segments.
        count: its entries.
    """
    if verdict is None:
        return 0, 0
    if isinstance(verdict, Drop):
        return verdict.start, verdict.stop
    if isinstance(verdict, DropOne):
        entry = int(verdict.entries[segment])
        return entry, entry + 1
    keep = verdict[segment, verdict.shape[1] - count :]
    gone = keep.logical_not().nonzero().squeeze(1)
    if not gone.shape[0]:
        return 0, 0
    start, stop = int(gone[0]), int(gone[-1]) + 1
    return (start, stop) if stop - start == gone.shape[0] else gone


def kept_entries(dropped: Run | Tensor, count: int, device: torch.device) -> Tensor | None:
    """Return the numbers of a segment's other entries, ascending; None: all."""
    if isinstance(dropped, tuple) and dropped[0] == dropped[1]:
        return None
    keep = torch.ones(count, dtype=torch.bool, device=device)
    keep[slice(*dropped) if isinstance(dropped, tuple) else dropped] = False
    return keep.nonzero().squeeze(1)


def evicted_entries(evictions: Sequence[Eviction]) -> dict[LayerStorage, list[Tensor]]:
    """Return which entries some evictions drop: per storage and segment their numbers (n,)."""
    found: dict[LayerStorage, list[Tensor]] = {}
    for eviction in evictions:
        for storage, verdict in by_storage(eviction):
            nothing = torch.arange(0, device=storage.device)
            picks = found.setdefault(storage, [nothing] * storage.num_segments)
            for j, segment in enumerate(storage.segments(eviction.sequence)):
                gone = dropped_entries(verdict, j, storage.counts[segment])
                if isinstance(gone, tuple):
                    gone = torch.arange(*gone, device=storage.device)
                picks[segment] = gone
    return found
