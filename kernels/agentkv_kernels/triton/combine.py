"""Triton: the shares of `attend` put together, and the mass, in one launch.

With M the largest of the tops m_i of a head's shares, and of its sink,
    L = sum_i total_i * 2^(m_i - M) + 2^(sink - M)
    output = sum_i sums_i * 2^(m_i - M) / L
    mass[row] = mean over the lane's query heads of p * 2^(m_tile - M) / L.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from agentkv_kernels.boxes import Average, Drawn, Stored

LOG2_E = tl.constexpr(1.4426950408889634)
ROWS = 128
"""Rows whose mass one program adds up."""


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
    """The top and the total of a head's whole softmax, (M,) each."""
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


@triton.jit(do_not_specialize=["num_lanes", "num_splits", "num_tiles", "lanes_per_sequence"])
def combine_kernel(
    sums,
    tops,
    totals,
    shares,
    share_tops,
    sinks,
    boxes,
    code_boxes,
    output,
    mass,
    numbers,
    keep,
    gain,
    num_lanes,
    num_splits,
    num_tiles,
    lanes_per_sequence,
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
    MOVES: tl.constexpr,
    STARTS_AT_MASS: tl.constexpr,
):
    """Program (i, j) of lane i: the output of its head j where j < W, else the mass of R rows."""
    lane, part = tl.program_id(0), tl.program_id(1)
    heads = tl.arange(0, M)
    is_head = heads < G
    sinks_of_lane = (lane % lanes_per_sequence) * (W * G)
    if part < W:
        lane_head = lane * W + part
        slot = lane_head.to(tl.int64) * num_splits
        top, total = _ends(
            tops, totals, sinks, slot, sinks_of_lane + part * G, num_splits, G, M, S, SINKS
        )
        columns = tl.arange(0, E)
        mask = is_head[:, None] & (columns < D)[None, :]
        inner = heads[:, None] * D + columns[None, :]
        acc = tl.zeros((M, E), tl.float32)
        for split in range(num_splits):
            here = tl.load(tops + (slot + split) * G + heads, mask=is_head, other=-1e30)
            piece = tl.load(sums + (slot + split) * (G * D) + inner, mask=mask, other=0.0)
            acc += piece * tl.exp2(here - top)[:, None]
        # a lane that holds nothing has a total of 0, and 0 as its output
        acc = acc / tl.where(total > 0.0, total, 1.0)[:, None]
        tl.store(
            output + lane_head.to(tl.int64) * (G * D) + inner,
            acc.to(output.dtype.element_ty),
            mask=mask,
        )
    else:
        base = tl.load(boxes + lane).to(tl.int64)
        room = tl.load(boxes + num_lanes + lane).to(tl.int64)
        start = tl.load(boxes + 2 * num_lanes + lane)
        count = tl.load(boxes + 3 * num_lanes + lane)
        row = (part - W) * R + tl.arange(0, R)
        inside = row < count
        tile = row // T
        if CODED:
            num_coded = tl.load(code_boxes + 3 * num_lanes + lane)
            coded_tiles = (num_coded + T - 1) // T
            tile = tl.where(row < num_coded, tile, coded_tiles + (row - num_coded) // T)
        mask = is_head[:, None] & inside[None, :]
        drawn = tl.zeros((R,), tl.float32)
        for head in range(W):
            lane_head = lane * W + head
            slot = lane_head.to(tl.int64) * num_splits
            top, total = _ends(
                tops, totals, sinks, slot, sinks_of_lane + head * G, num_splits, G, M, S, SINKS
            )
            at = base * (W * G) + (head * G + heads).to(tl.int64)[:, None] * room + row[None, :]
            p = tl.load(shares + at, mask=mask, other=0.0).to(tl.float32)
            at = (lane_head.to(tl.int64) * num_tiles + tile)[None, :] * G + heads[:, None]
            relative_to = tl.load(share_tops + at, mask=mask, other=-1e30)
            total = tl.where(total > 0.0, total, 1.0)
            weights = p * tl.exp2(relative_to - top[:, None]) / total[:, None]
            drawn += tl.sum(weights, axis=0)
        drawn = drawn / (W * G)
        place = base + start + row
        if WRITES_MASS:
            tl.store(mass + place, drawn, mask=inside)
        if MOVES:
            old = tl.load(numbers + place * K, mask=inside, other=0.0)
            new = keep * old + gain * drawn
            if STARTS_AT_MASS:
                new = tl.where(row == count - 1, drawn, new)
            tl.store(numbers + place * K, new, mask=inside)


@dataclass(frozen=True, slots=True)
class Parted:
    """What the programs of `attend_kernel` leave; see there."""

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
    stored: Stored,
    *,
    sinks: Tensor | None,
    with_mass: bool,
    average: Average | None,
) -> Drawn:
    """Output (N, W * G, D) and mass; the average is moved. As `lanes.attend_lanes` says."""
    num_lanes, num_q_heads, head_dim = q.shape
    heads, coded = stored.num_heads, stored.coded
    _, num_splits, group, _ = parted.sums.shape
    output = torch.empty_like(q)
    mass = None
    if with_mass:
        mass = torch.empty_like(stored.positions, dtype=torch.float32)
    numbers = None if average is None else average.numbers
    num_parts = heads
    if mass is not None or numbers is not None:
        num_parts += triton.cdiv(stored.boxes.most, ROWS)
    per_sequence = 1 if sinks is None else sinks.shape[0] // num_q_heads
    boxes = stored.boxes.table
    combine_kernel[(num_lanes, num_parts)](
        parted.sums,
        parted.tops,
        parted.totals,
        parted.shares,
        parted.share_tops,
        parted.tops if sinks is None else sinks,
        boxes,
        boxes if coded is None else coded.boxes.table,
        output,
        parted.tops if mass is None else mass,
        parted.tops if numbers is None else numbers,
        0.0 if average is None else average.keep,
        0.0 if average is None else average.gain,
        num_lanes,
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
        K=1 if numbers is None else numbers.shape[1],
        SINKS=sinks is not None,
        CODED=coded is not None,
        WRITES_MASS=mass is not None,
        MOVES=numbers is not None,
        STARTS_AT_MASS=average is not None and average.starts_at_mass,
    )
    return Drawn(output, mass)
