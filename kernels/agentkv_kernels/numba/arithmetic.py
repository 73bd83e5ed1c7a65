"""Numba: products of queries with rows, weights with rows, and powers of two.

Two query heads are worked on at once, four rows at a time: what is loaded is used eight times, and
sums still fit the registers. Logits and scales as in `kernels/README.md`.

Shapes: rows (R, D); q and out (G, D), a query head each; s and p (G, T), a number for each row.
"""

import numpy as np
from numba import njit

f32, i32 = np.float32, np.int32

# sums may be reordered, or loops over channels would not become vector instructions; infinities and
# NaN keep their meaning
FAST = {"reassoc", "contract", "nsz", "arcp"}


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


@njit(error_model="numpy", fastmath=FAST, cache=True)
def scaled(x, j, exponents, row, out):
    """Write x[j] * 2 ** exponents[row] into out[j]: by the bits of a float32, for -126..127."""
    for i in range(x.shape[1]):
        bits = i32((i32(exponents[row, i]) + i32(127)) << i32(23))
        out[j, i] = x[j, i] * bits.view(np.float32)
