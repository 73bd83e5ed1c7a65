"""Numba: attention of one new token per lane over rows of mixed precision, for processors.

Compiled when first called and kept on disk beside this file, or where `NUMBA_CACHE_DIR` says. All
of it is in one file: what is kept is told to be stale by this file's date alone. Logits and scales
as in `kernels/README.md`. Two query heads are worked on at once, four rows at a time: what is
loaded is used eight times, and sums still fit the registers.

Shapes as in `boxes`. A run is rows of a lane that lie together in memory and have one scale.
"""

import numpy as np
from numba import njit

f32, i32 = np.float32, np.int32

# sums may be reordered, or loops over channels would not become vector instructions; infinities and
# NaN keep their meaning
FAST = {"reassoc", "contract", "nsz", "arcp"}
LOG2_E = f32(1.4426950408889634)
FLOOR = f32(-1e30)
"""The logit of a row that is not there, and what a maximum starts at."""

LONGEST = 128
"""Rows of a run at most: what all query heads read before the next run stays in a fast cache."""

BASE, ROOM, START, COUNT = range(4)
FIRST, STOP, BLOCK = range(3)
"""Of a run: its rows in the lane, and the block whose scales they have; -1: not quantised."""


@njit(error_model="numpy", fastmath={"contract"}, cache=True)
def power_of_two(y):
    """2 ** y of a float32 y <= 126, off by 2.3e-7 of it at most; 0 below -126."""
    magic = f32(12582912.0)  # 1.5 * 2**23: adding it rounds to an integer
    shifted = f32(y + magic)
    whole = shifted.view(np.int32) - i32(0x4B400000)
    f = y - (shifted - magic)
    # the Taylor series of exp(f * ln 2), over -0.5..0.5
    p = f32(1.5403530e-4)
    p = p * f + f32(1.3333558e-3)
    p = p * f + f32(9.6181291e-3)
    p = p * f + f32(5.5504109e-2)
    p = p * f + f32(2.4022651e-1)
    p = p * f + f32(6.9314718e-1)
    p = p * f + f32(1.0)
    size = i32((whole + i32(127)) << i32(23)).view(np.float32)
    return f32(0.0) if y < f32(-126.0) else p * size


@njit(error_model="numpy", fastmath=FAST, cache=True)
def logits_of_one(q, j, keys, row, s, t, stop, tops):
    """Write query j's products with the rows from `row` on into s[j, t:stop]; raise tops[j]."""
    top = tops[j]
    while t + 4 <= stop:
        a = b = c = d = f32(0.0)
        for i in range(q.shape[1]):
            x = q[j, i]
            a += x * f32(keys[row, i])
            b += x * f32(keys[row + 1, i])
            c += x * f32(keys[row + 2, i])
            d += x * f32(keys[row + 3, i])
        s[j, t], s[j, t + 1], s[j, t + 2], s[j, t + 3] = a, b, c, d
        top = max(top, max(max(a, b), max(c, d)))
        t += 4
        row += 4
    while t < stop:
        a = f32(0.0)
        for i in range(q.shape[1]):
            a += q[j, i] * f32(keys[row, i])
        s[j, t] = a
        top = max(top, a)
        t += 1
        row += 1
    tops[j] = top


@njit(error_model="numpy", fastmath=FAST, cache=True)
def logits(q, keys, first, s, start, stop, tops):
    """`logits_of_one` of all queries, two by two."""
    group = q.shape[0]
    for j in range(0, group - 1, 2):
        k, row, t, top0, top1 = j + 1, first, start, tops[j], tops[j + 1]
        while t + 4 <= stop:
            a = b = c = d = f32(0.0)
            e = f = g = h = f32(0.0)
            for i in range(q.shape[1]):
                x, y = q[j, i], q[k, i]
                w0, w1 = f32(keys[row, i]), f32(keys[row + 1, i])
                w2, w3 = f32(keys[row + 2, i]), f32(keys[row + 3, i])
                a += x * w0
                b += x * w1
                c += x * w2
                d += x * w3
                e += y * w0
                f += y * w1
                g += y * w2
                h += y * w3
            s[j, t], s[j, t + 1], s[j, t + 2], s[j, t + 3] = a, b, c, d
            s[k, t], s[k, t + 1], s[k, t + 2], s[k, t + 3] = e, f, g, h
            top0 = max(top0, max(max(a, b), max(c, d)))
            top1 = max(top1, max(max(e, f), max(g, h)))
            t += 4
            row += 4
        tops[j], tops[k] = top0, top1
        if t < stop:
            logits_of_one(q, j, keys, row, s, t, stop, tops)
            logits_of_one(q, k, keys, row, s, t, stop, tops)
    if group % 2:
        logits_of_one(q, group - 1, keys, first, s, start, stop, tops)


@njit(error_model="numpy", fastmath=FAST, cache=True)
def softmax(s, j, count, top):
    """2 ** (s - top) in place of the first `count` of s[j]; gives the sum."""
    total = f32(0.0)
    for t in range(count):
        p = power_of_two(s[j, t] - top)
        s[j, t] = p
        total += p
    return total


@njit(error_model="numpy", fastmath=FAST, cache=True)
def mix_into_one(p, j, t, stop, values, row, out):
    """Add p[j, t:stop] times the rows from `row` on to out[j]."""
    while t + 4 <= stop:
        a, b, c, d = p[j, t], p[j, t + 1], p[j, t + 2], p[j, t + 3]
        for i in range(out.shape[1]):
            w0, w1 = f32(values[row, i]), f32(values[row + 1, i])
            w2, w3 = f32(values[row + 2, i]), f32(values[row + 3, i])
            out[j, i] += a * w0 + b * w1 + c * w2 + d * w3
        t += 4
        row += 4
    while t < stop:
        a = p[j, t]
        for i in range(out.shape[1]):
            out[j, i] += a * f32(values[row, i])
        t += 1
        row += 1


@njit(error_model="numpy", fastmath=FAST, cache=True)
def mix(p, start, stop, values, first, out):
    """`mix_into_one` of all queries, two by two."""
    group = out.shape[0]
    for j in range(0, group - 1, 2):
        k, row, t = j + 1, first, start
        while t + 4 <= stop:
            a, b, c, d = p[j, t], p[j, t + 1], p[j, t + 2], p[j, t + 3]
            e, f, g, h = p[k, t], p[k, t + 1], p[k, t + 2], p[k, t + 3]
            for i in range(out.shape[1]):
                w0, w1 = f32(values[row, i]), f32(values[row + 1, i])
                w2, w3 = f32(values[row + 2, i]), f32(values[row + 3, i])
                out[j, i] += a * w0 + b * w1 + c * w2 + d * w3
                out[k, i] += e * w0 + f * w1 + g * w2 + h * w3
            t += 4
            row += 4
        if t < stop:
            mix_into_one(p, j, t, stop, values, row, out)
            mix_into_one(p, k, t, stop, values, row, out)
    if group % 2:
        mix_into_one(p, group - 1, start, stop, values, first, out)


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


@njit(error_model="numpy", fastmath=FAST, cache=True)
def scaled(x, j, exponents, row, out):
    """Write x[j] * 2 ** exponents[row] into out[j]: by the bits of a float32, for -126..127."""
    for i in range(x.shape[1]):
        bits = i32((i32(exponents[row, i]) + i32(127)) << i32(23))
        out[j, i] = x[j, i] * bits.view(np.float32)


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
