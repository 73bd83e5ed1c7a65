"""Replacing tokens in the middle of a stream: what follows them is lifted out, and put back.

The new tokens attend to what precedes them, and later tokens keep the keys and values that they
have. So the cache is what a stream would leave whose later tokens had read the old text, and whose
next tokens read the new one.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

import torch
from torch import Tensor

from agentkv.cache.eviction.evictor import Evictor
from agentkv.cache.geometry import Geometry
from agentkv.cache.layer import CacheLayer
from agentkv.cache.numbering import Numbering
from agentkv.cache.recurrent import WHY_NOT_BACK, RecurrentLayer
from agentkv.cache.spans import Pins, SequenceSpans
from agentkv.cache.storage.turn_keys import turned
from agentkv.policies.policy import Policy
from agentkv_kernels.layout import KEYS, POSITION

INSTEAD = "feed the stream anew, or `drop` the tokens and feed the others at the end"


class Replaceable(Protocol):
    """The parts of a cache that decide whether its tokens can be replaced; `Cache` is one."""

    geometry: Geometry
    policy: Policy
    evictor: Evictor
    recurrent: dict[int, RecurrentLayer]
    numberings: list[Numbering]
    batch: int | None
    dtype: torch.dtype | None


def why_not_replaced(cache: Replaceable, num_more: int) -> str | None:
    """Return why tokens of a cache cannot be replaced, as the end of a sentence; None if they can.

    Args:
        num_more: new tokens beyond the number of old ones.
    """
    policy, geometry = cache.policy, cache.geometry
    if policy.gate.evicts or policy.precision.format is not None:
        return f"policy {policy.name!r} does not keep every entry as it is"
    if policy.scorer.window:
        return f"policy {policy.name!r} keeps a window of queries"
    if cache.recurrent:
        return WHY_NOT_BACK
    if geometry.sources:
        return f"layers of {geometry.family} share keys"
    if cache.batch not in (None, 1):
        return f"it has {cache.batch} sequences"
    if any(each.window is not None for each in geometry.layers):
        return f"layers of {geometry.family} attend within a window"
    if cache.numberings:
        return "rotary positions were counted anew"
    if num_more > 0 and not geometry.can_turn:
        return f"there are {num_more} more than before, and later keys cannot be turned on"
    return None


class Tail:
    """Copies of a layer's entries from a position on, of its only sequence.

    Args:
        layer: keeps its entries until it is told to forget them.
    """

    def __init__(self, layer: CacheLayer, start: int) -> None:
        storage = layer.storage
        self._layer, self._seen = layer, layer.seen
        self._fields: list[list[list[Tensor]]] = []
        """Entries (w, n, *F) by table, field and segment."""
        first = [
            int(torch.searchsorted(storage.positions(segment), start))
            for segment in range(storage.num_segments)
        ]
        for table in (storage.metadata, storage.dense):
            self._fields.append(
                [
                    [table.entries(f, s)[:, first[s] :].clone() for s in range(table.num_segments)]
                    for f in range(len(table.fields))
                ]
            )

    def move(self, num_more: int) -> None:
        """Turn the entries on by some positions."""
        metadata, dense = self._fields
        self._seen += num_more
        shape = self._layer.shape
        for positions in metadata[POSITION]:
            positions += num_more
        for keys in dense[KEYS]:
            if shape.frequencies:
                steps = torch.full((keys.shape[1],), num_more)
                keys.copy_(turned(keys, steps, shape.frequencies, shape.order))

    def put_back(self) -> None:
        """Append the entries to the layer, which has seen all tokens from now on."""
        layer, storage = self._layer, self._layer.storage
        for table, fields in zip((storage.metadata, storage.dense), self._fields, strict=True):
            counts = [entries.shape[1] for entries in fields[0]]
            table.extend(counts)
            for f, segments in enumerate(fields):
                for segment, entries in enumerate(segments):
                    if counts[segment]:
                        table.entries(f, segment)[:, -counts[segment] :] = entries
        layer.seen, layer.fed = self._seen, [self._seen]
        layer.has_gaps = layer.has_gaps or not storage.is_consecutive


def moved_spans(spans: SequenceSpans, start: int, num_more: int) -> SequenceSpans:
    """Return spans and pins with all tokens from a position on moved by some positions."""

    def moved(position: int) -> int:
        return position + num_more if position >= start else position

    def moved_stop(stop: int | None) -> int | None:
        return None if stop is None else moved(stop)

    return SequenceSpans(
        tuple(
            replace(each, start=moved(each.start), stop=moved_stop(each.stop))
            for each in spans.labelled
        ),
        Pins(tuple((moved(first), moved_stop(stop)) for first, stop in spans.pins.ranges)),
    )


def replaced_ids(ids: Tensor, old: range, new: Sequence[int], num_more: int) -> Tensor:
    """Return the ids (1, n) of a stream after a replacement; where the new tokens are fewer, the
    positions that they leave keep their old ids."""
    own = torch.tensor([list(new)], dtype=ids.dtype, device=ids.device)
    rest = old.stop if num_more > 0 else old.start + len(new)
    return torch.cat([ids[:, : old.start], own, ids[:, rest:]], dim=1)
