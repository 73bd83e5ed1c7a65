"""Numba: attention of one new token per lane over rows of mixed precision, for processors.

Compiled when first called and kept on disk beside these files, or where `NUMBA_CACHE_DIR` says.
What is kept of a function is told to be stale by the date of its own file alone: whoever changes
one that others call touches their files too.

Shapes as in `boxes`. A run is rows of a lane that lie together in memory and have one scale.
"""

import numpy as np
from numba import njit

from agentkv_kernels.index import BASE, COUNT, ROOM, START
from agentkv_kernels.numba.arithmetic import FAST, logits, mix, power_of_two, scaled, softmax

f32, i32 = np.float32, np.int32

LOG2_E = f32(1.4426950408889634)
FLOOR = f32(-1e30)
"""The logit of a row that is not there, and what a maximum starts at."""

LONGEST = 128
"""Rows of a run at most: what all query heads read before the next run stays in a fast cache."""

FIRST, STOP, BLOCK = range(3)
"""Of a run: its rows in the lane, and the block whose scales they have; -1: not quantised."""


@njit(error_model="numpy", cache=True)
def find_runs(positions, is_padded, block_ids, num_coded, num_rows, runs):
    """Write the runs of a lane into `runs` (num_rows, 3); gives how many they are.

    A row that is not there is in no run.
    """
    num_runs, t = 0, 0
    while t < num_rows:
        if is_padded and positions[t] < 0:
            t += 1
            continue
        block = block_ids[t] if t < num_coded else i32(-1)
        stop = t + 1
        end = min(num_coded if t < num_coded else num_rows, t + LONGEST)
        while (
            stop < end
            and (t >= num_coded or block_ids[stop] == block)
            and not (is_padded and positions[stop] < 0)
        ):
            stop += 1
        runs[num_runs, FIRST], runs[num_runs, STOP], runs[num_runs, BLOCK] = t, stop, block
        num_runs += 1
        t = stop
    return num_runs


@njit(error_model="numpy", cache=True)
def first_row(table, lane, head, heads):
    """The flat row at which a head's rows of a lane begin."""
    base, room = np.int64(table[BASE, lane]), np.int64(table[ROOM, lane])
    return heads * base + head * room + table[START, lane]


@njit(error_model="numpy", fastmath=FAST, cache=True, nogil=True)
def attend(
    heads,
    q,
    factor,
    sinks,
    positions,
    boxes,
    is_padded,
    keys,
    values,
    dense_boxes,
    code_keys,
    code_values,
    block_ids,
    code_boxes,
    key_exponents,
    value_exponents,
    block_boxes,
    output,
    mass,
):
    """Attend in all lanes; writes `output` and, unless it is empty, `mass`.

    Args:
        heads: W.
        q, output: (N, W * G, D) float32.
        factor: scale * log2(e).
        sinks: (S, W * G) float32; S = 0 for none.
        mass: float32, (W, R) for the mean over each group, (1, R) for that over all query heads of
            a lane, or (0, 0) to leave it out.
        others: arrays of the fields of `boxes.Stored`; without quantised rows, of no rows and a
            table of zeros.
    """
    head_dim, num_lanes = q.shape[2], boxes.shape[1]
    group, most = q.shape[1] // heads, np.int64(boxes[COUNT].max())
    s, runs = np.empty((group, most), f32), np.empty((most, 3), i32)
    query, moved = np.empty((group, head_dim), f32), np.empty((group, head_dim), f32)
    out, tops = np.empty((group, head_dim), f32), np.empty(group, f32)
    for lane in range(num_lanes):
        num_coded, num_rows = np.int64(code_boxes[COUNT, lane]), np.int64(boxes[COUNT, lane])
        place = first_row(boxes, lane, 0, 1)
        ids = block_ids[first_row(code_boxes, lane, 0, 1) :]
        num_runs = find_runs(positions[place:], is_padded, ids, num_coded, num_rows, runs)
        if not num_runs:
            output[lane] = f32(0.0)
        if mass.shape[0]:
            mass[:, place : place + num_rows] = f32(0.0)
        for head in range(heads if num_runs else 0):
            first_code = first_row(code_boxes, lane, head, heads)
            first_dense = first_row(dense_boxes, lane, head, heads) - num_coded
            first_block = first_row(block_boxes, lane, head, heads)
            first_q, of_head = head * group, min(head, mass.shape[0] - 1)
            for j in range(group):
                tops[j] = FLOOR
                if sinks.shape[0]:
                    tops[j] = sinks[lane % sinks.shape[0], first_q + j] * LOG2_E
                for i in range(head_dim):
                    query[j, i] = q[lane, first_q + j, i] * factor
                    out[j, i] = f32(0.0)
                if is_padded:
                    s[j, :num_rows] = FLOOR
            for r in range(num_runs):
                t, stop, block = np.int64(runs[r, FIRST]), np.int64(runs[r, STOP]), runs[r, BLOCK]
                if block < 0:
                    logits(query, keys, first_dense + t, s, t, stop, tops)
                else:
                    for j in range(group):
                        scaled(query, j, key_exponents, first_block + block, moved)
                    logits(moved, code_keys, first_code + t, s, t, stop, tops)
            for j in range(group):
                total = softmax(s, j, num_rows, tops[j])
                if sinks.shape[0]:
                    sink = sinks[lane % sinks.shape[0], first_q + j] * LOG2_E
                    total += power_of_two(f32(sink - tops[j]))
                share = f32(1.0) / total
                for row in range(num_rows):
                    s[j, row] *= share
                if mass.shape[0]:
                    share = f32(mass.shape[0]) / f32(q.shape[1])
                    for row in range(num_rows):
                        mass[of_head, place + row] += s[j, row] * share
            for r in range(num_runs):
                t, stop, block = np.int64(runs[r, FIRST]), np.int64(runs[r, STOP]), runs[r, BLOCK]
                if block < 0:
                    mix(s, t, stop, values, first_dense + t, out)
                    continue
                moved[:] = f32(0.0)
                mix(s, t, stop, code_values, first_code + t, moved)
                for j in range(group):
                    scaled(moved, j, value_exponents, first_block + block, moved)
                    for i in range(head_dim):
                        out[j, i] += moved[j, i]
            output[lane, first_q : first_q + group] = out
