"""Triton: shares of `attention` combined to outputs and mass, in one launch; stage two of two.

With M the largest of the tops m_i of a head's shares, and of its sink,
    L = sum_i total_i * 2^(m_i - M) + 2^(sink - M)
    output = sum_i sums_i * 2^(m_i - M) / L
    mass[entry] = mean over the segment's query heads of p * 2^(m_tile - M) / L.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from agentkv_kernels.ema import Ema
from agentkv_kernels.ragged import SegmentAttention, StoredEntries

LOG2_E = tl.constexpr(1.4426950408889634)
ROWS = 128
"""Entries whose mass one program sums."""


@triton.jit
def _ends(
    tops,
    totals,
    sinks,
    slot,
    first_sink,
    num_splits,
    G: tl.constexpr,
    M: tl.constexpr,
    S: tl.constexpr,
    SINKS: tl.constexpr,
):
    """Return top and total of the softmax over all shares of a head, (M,) each."""
    heads, split = tl.arange(0, M), tl.arange(0, S)
    mask = (split < num_splits)[:, None] & (heads < G)[None, :]
    at = (slot + split)[:, None] * G + heads[None, :]
    top_each = tl.load(tops + at, mask=mask, other=-1e30)
    top = tl.max(top_each, axis=0)
    if SINKS:
        sink = tl.load(sinks + first_sink + heads, mask=heads < G, other=0.0)
        sink = sink.to(tl.float32) * LOG2_E
        top = tl.maximum(top, sink)
    total_each = tl.load(totals + at, mask=mask, other=0.0)
    total = tl.sum(total_each * tl.exp2(top_each - top[None, :]), axis=0)
    if SINKS:
        total += tl.exp2(sink - top)
    return top, total


@triton.jit(do_not_specialize=["num_segments", "num_splits", "num_tiles", "segments_per_sequence"])
def combine_kernel(
    sums,
    tops,
    totals,
    shares,
    share_tops,
    sinks,
    extents,
    code_extents,
    output,
    mass,
    tracked,
    keep,
    gain,
    num_segments,
    num_splits,
    num_tiles,
    segments_per_sequence,
    W: tl.constexpr,
    G: tl.constexpr,
    M: tl.constexpr,
    D: tl.constexpr,
    E: tl.constexpr,
    T: tl.constexpr,
    S: tl.constexpr,
    R: tl.constexpr,
    K: tl.constexpr,
    SINKS: tl.constexpr,
    CODED: tl.constexpr,
    WRITES_MASS: tl.constexpr,
    UPDATES: tl.constexpr,
    STARTS_AT_MASS: tl.constexpr,
):
    """Program (i, j) writes the output of head j of segment i where j < W, else the mass of R
    entries."""
    segment, part = tl.program_id(0), tl.program_id(1)
    heads = tl.arange(0, M)
    is_head = heads < G
    segment_sinks = (segment % segments_per_sequence) * (W * G)
    if part < W:
        segment_head = segment * W + part
        slot = segment_head.to(tl.int64) * num_splits
        top, total = _ends(
            tops, totals, sinks, slot, segment_sinks + part * G, num_splits, G, M, S, SINKS
        )
        columns = tl.arange(0, E)
        is_element = is_head[:, None] & (columns < D)[None, :]
        inner = heads[:, None] * D + columns[None, :]
        acc = tl.zeros((M, E), tl.float32)
        for split in range(num_splits):
            here = tl.load(tops + (slot + split) * G + heads, mask=is_head, other=-1e30)
            piece = tl.load(sums + (slot + split) * (G * D) + inner, mask=is_element, other=0.0)
            acc += piece * tl.exp2(here - top)[:, None]
        # an empty segment has a total of 0 and yields 0
        acc = acc / tl.where(total > 0.0, total, 1.0)[:, None]
        tl.store(
            output + segment_head.to(tl.int64) * (G * D) + inner,
            acc.to(output.dtype.element_ty),
            mask=is_element,
        )
    else:
        base = tl.load(extents + segment).to(tl.int64)
        capacity = tl.load(extents + num_segments + segment).to(tl.int64)
        start = tl.load(extents + 2 * num_segments + segment)
        count = tl.load(extents + 3 * num_segments + segment)
        entry = (part - W) * R + tl.arange(0, R)
        inside = entry < count
        tile = entry // T
        if CODED:
            num_coded = tl.load(code_extents + 3 * num_segments + segment)
            coded_tiles = (num_coded + T - 1) // T
            tile = tl.where(entry < num_coded, tile, coded_tiles + (entry - num_coded) // T)
        is_share = is_head[:, None] & inside[None, :]
        received = tl.zeros((R,), tl.float32)
        for head in range(W):
            segment_head = segment * W + head
            slot = segment_head.to(tl.int64) * num_splits
            top, total = _ends(
                tops, totals, sinks, slot, segment_sinks + head * G, num_splits, G, M, S, SINKS
            )
            at = (
                base * (W * G)
                + (head * G + heads).to(tl.int64)[:, None] * capacity
                + entry[None, :]
            )
            p = tl.load(shares + at, mask=is_share, other=0.0).to(tl.float32)
            at = (segment_head.to(tl.int64) * num_tiles + tile)[None, :] * G + heads[:, None]
            relative_to = tl.load(share_tops + at, mask=is_share, other=-1e30)
            total = tl.where(total > 0.0, total, 1.0)
            weights = p * tl.exp2(relative_to - top[:, None]) / total[:, None]
            received += tl.sum(weights, axis=0)
        received = received / (W * G)
        place = base + start + entry
        if WRITES_MASS:
            tl.store(mass + place, received, mask=inside)
        if UPDATES:
            old = tl.load(tracked + place * K, mask=inside, other=0.0)
            new = keep * old + gain * received
            if STARTS_AT_MASS:
                new = tl.where(entry == count - 1, received, new)
            tl.store(tracked + place * K, new, mask=inside)


@dataclass(frozen=True, slots=True)
class Parted:
    """Results of the programs of `attend_kernel`."""

    sums: Tensor
    tops: Tensor
    totals: Tensor
    shares: Tensor
    share_tops: Tensor
    tile: int
    """t."""


def combine(
    parted: Parted,
    q: Tensor,
    stored: StoredEntries,
    *,
    sinks: Tensor | None,
    with_mass: bool,
    ema: Ema | None,
    tracked: Tensor | None,
) -> SegmentAttention:
    """Return output (N, W * G, D) and mass, and update `tracked`; see `attend_segments`."""
    num_segments, num_q_heads, head_dim = q.shape
    heads, coded = stored.num_heads, stored.coded
    _, num_splits, group, _ = parted.sums.shape
    output = torch.empty_like(q)
    mass = None
    if with_mass:
        mass = torch.empty_like(stored.positions, dtype=torch.float32)
    num_parts = heads
    if mass is not None or ema is not None:
        num_parts += triton.cdiv(stored.layout.max_count, ROWS)
    per_sequence = 1 if sinks is None else sinks.shape[0] // num_q_heads
    extents = stored.layout.extents
    combine_kernel[(num_segments, num_parts)](
        parted.sums,
        parted.tops,
        parted.totals,
        parted.shares,
        parted.share_tops,
        parted.tops if sinks is None else sinks,
        extents,
        extents if coded is None else coded.layout.extents,
        output,
        parted.tops if mass is None else mass,
        parted.tops if tracked is None else tracked,
        0.0 if ema is None else ema.keep,
        0.0 if ema is None else ema.gain,
        num_segments,
        num_splits,
        parted.share_tops.shape[1],
        per_sequence,
        W=heads,
        G=group,
        M=triton.next_power_of_2(group),
        D=head_dim,
        E=triton.next_power_of_2(head_dim),
        T=parted.tile,
        S=triton.next_power_of_2(num_splits),
        R=ROWS,
        K=1 if tracked is None else tracked.shape[1],
        SINKS=sinks is not None,
        CODED=coded is not None,
        WRITES_MASS=mass is not None,
        UPDATES=ema is not None,
        STARTS_AT_MASS=ema is not None and ema.starts_at_mass,
    )
    return SegmentAttention(output, mass)
