"""Reference of the Triton kernels in plain torch: one new entry per segment, appended and attended.

Shapes as in `ragged`.
"""

import torch
from torch import Tensor

from agentkv_kernels.attention import attend_in_blocks
from agentkv_kernels.ema import Ema
from agentkv_kernels.entries import DensePart, Part, Quantized
from agentkv_kernels.formats import FORMATS
from agentkv_kernels.ragged import RaggedLayout, SegmentAttention, StoredEntries


def attend_segments(
    q: Tensor,
    stored: StoredEntries,
    *,
    scale: float,
    sinks: Tensor | None = None,
    with_mass: bool = False,
    ema: Ema | None = None,
    tracked: Tensor | None = None,
) -> SegmentAttention:
    """Compute `triton.attention.attend_segments`, segment by segment."""
    output = torch.zeros_like(q)
    needs_mass = with_mass or ema is not None
    mass = torch.zeros_like(stored.positions, dtype=torch.float32) if needs_mass else None
    for segment in range(stored.num_segments):
        parts = entries_of(stored, segment)
        if not parts:
            continue
        own = None if sinks is None else sinks.view(-1, q.shape[1])
        done = attend_in_blocks(
            q[segment, None, :, None],
            parts,
            scale=scale,
            sinks=None if own is None else own[segment % own.shape[0]],
            num_mass_queries=int(needs_mass),
        )
        output[segment] = done.output[0, :, 0]
        if mass is not None and done.mass is not None:
            stored.layout.entries(mass, segment, 1)[0] = done.mass[0].mean(dim=0)
            if ema is not None and tracked is not None:
                _update(ema, stored.layout, tracked, mass, segment)
    return SegmentAttention(output, mass if with_mass else None)


def _update(ema: Ema, layout: RaggedLayout, tracked: Tensor, mass: Tensor, segment: int) -> None:
    numbers = layout.entries(tracked, segment, 1)[0, :, 0]
    received = layout.entries(mass, segment, 1)[0]
    updated = ema.keep * numbers + ema.gain * received
    if ema.starts_at_mass:
        updated[-1:] = received[-1:]
    numbers.copy_(updated)


def entries_of(stored: StoredEntries, segment: int) -> list[Part]:
    """Return views of one segment's entries for attention; none for an empty segment."""
    positions, heads = stored.layout.entries(stored.positions, segment, 1), stored.num_heads
    parts: list[Part] = []
    coded = stored.coded
    split = 0 if coded is None else coded.layout.counts[segment]
    if coded is not None and split:
        parts.append(
            Quantized(
                FORMATS["int8"],
                coded.layout.entries(coded.keys, segment, heads)[None],
                coded.layout.entries(coded.values, segment, heads)[None],
                coded.blocks.entries(coded.key_exponents, segment, heads)[None],
                coded.blocks.entries(coded.value_exponents, segment, heads)[None],
                coded.layout.entries(coded.block_ids, segment, 1),
                positions[:, :split],
            )
        )
    if positions.shape[1] > split:
        dense = stored.dense
        keys = dense.layout.entries(dense.keys, segment, heads)[None]
        values = dense.layout.entries(dense.values, segment, heads)[None]
        parts.append(DensePart(keys, values, positions[:, split:]))
    return parts


def append_entry(
    stored: StoredEntries,
    keys: Tensor,
    values: Tensor,
    *,
    positions: Tensor,
    plus: int = 0,
    tracked: Tensor | None = None,
) -> StoredEntries:
    """Compute `triton.append.append_entry`, segment by segment."""
    after = stored.grown()
    for segment in range(stored.num_segments):
        after.layout.entries(stored.positions, segment, 1)[0, -1] = positions[segment] + plus
        if tracked is not None:
            after.layout.entries(tracked, segment, 1)[0, -1] = 0
        for new, flat in ((keys, stored.dense.keys), (values, stored.dense.values)):
            after.dense.layout.entries(flat, segment, stored.num_heads)[:, -1] = new[segment]
    return after
