"""Numba: products of queries with entries and of weights with entries, and powers of two.

Two query heads and four entries are computed at once, so that each load is used eight times and the
sums fit into registers. `kernels/README.md` defines logits and scales.

Shapes: entries (R, D); q and out (G, D), one query head each; s and p (G, T), a number per entry.
"""

import numpy as np

from agentkv_kernels.numba.compiled import compiled
from agentkv_kernels.numba.numbers import widened

f32, i32 = np.float32, np.int32

MAGIC = 12582912.0
"""1.5 * 2**23: adding it to a float32 rounds to an integer, half to even."""

# reordering sums lets loops over channels become vector instructions; infinities and NaN keep their
# meaning
FAST = {"reassoc", "contract", "nsz", "arcp"}


@compiled(fastmath={"contract"})
def power_of_two(y):
    """Return 2 ** y of a float32 y <= 126, with a relative error up to 2.3e-7; 0 below -126."""
    magic = f32(MAGIC)
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


@compiled(fastmath=FAST)
def logits_of_one(q, j, keys, entry, s, t, stop, tops):
    """Write products of query j with entries from `entry` on to s[j, t:stop]; update tops[j]."""
    top = tops[j]
    while t + 4 <= stop:
        a = b = c = d = f32(0.0)
        for i in range(q.shape[1]):
            x = q[j, i]
            a += x * widened(keys[entry, i])
            b += x * widened(keys[entry + 1, i])
            c += x * widened(keys[entry + 2, i])
            d += x * widened(keys[entry + 3, i])
        s[j, t], s[j, t + 1], s[j, t + 2], s[j, t + 3] = a, b, c, d
        top = max(top, max(max(a, b), max(c, d)))
        t += 4
        entry += 4
    while t < stop:
        a = f32(0.0)
        for i in range(q.shape[1]):
            a += q[j, i] * widened(keys[entry, i])
        s[j, t] = a
        top = max(top, a)
        t += 1
        entry += 1
    tops[j] = top


@compiled(fastmath=FAST)
def logits(q, keys, first, s, start, stop, tops):
    """Compute `logits_of_one` for all queries, two at a time."""
    group = q.shape[0]
    for j in range(0, group - 1, 2):
        k, entry, t, top0, top1 = j + 1, first, start, tops[j], tops[j + 1]
        while t + 4 <= stop:
            a = b = c = d = f32(0.0)
            e = f = g = h = f32(0.0)
            for i in range(q.shape[1]):
                x, y = q[j, i], q[k, i]
                w0, w1 = widened(keys[entry, i]), widened(keys[entry + 1, i])
                w2, w3 = widened(keys[entry + 2, i]), widened(keys[entry + 3, i])
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
            entry += 4
        tops[j], tops[k] = top0, top1
        if t < stop:
            logits_of_one(q, j, keys, entry, s, t, stop, tops)
            logits_of_one(q, k, keys, entry, s, t, stop, tops)
    if group % 2:
        logits_of_one(q, group - 1, keys, first, s, start, stop, tops)


@compiled(fastmath=FAST)
def softmax(s, j, count, top):
    """Replace the first `count` of s[j] by 2 ** (s - top) and return their sum."""
    total = f32(0.0)
    for t in range(count):
        p = power_of_two(s[j, t] - top)
        s[j, t] = p
        total += p
    return total


@compiled(fastmath=FAST)
def mix_into_one(p, j, t, stop, values, entry, out):
    """Add p[j, t:stop] times the entries from `entry` on to out[j]."""
    while t + 4 <= stop:
        a, b, c, d = p[j, t], p[j, t + 1], p[j, t + 2], p[j, t + 3]
        for i in range(out.shape[1]):
            w0, w1 = widened(values[entry, i]), widened(values[entry + 1, i])
            w2, w3 = widened(values[entry + 2, i]), widened(values[entry + 3, i])
            out[j, i] += a * w0 + b * w1 + c * w2 + d * w3
        t += 4
        entry += 4
    while t < stop:
        a = p[j, t]
        for i in range(out.shape[1]):
            out[j, i] += a * widened(values[entry, i])
        t += 1
        entry += 1


@compiled(fastmath=FAST)
def mix(p, start, stop, values, first, out):
    """Compute `mix_into_one` for all queries, two at a time."""
    group = out.shape[0]
    for j in range(0, group - 1, 2):
        k, entry, t = j + 1, first, start
        while t + 4 <= stop:
            a, b, c, d = p[j, t], p[j, t + 1], p[j, t + 2], p[j, t + 3]
            e, f, g, h = p[k, t], p[k, t + 1], p[k, t + 2], p[k, t + 3]
            for i in range(out.shape[1]):
                w0, w1 = widened(values[entry, i]), widened(values[entry + 1, i])
                w2, w3 = widened(values[entry + 2, i]), widened(values[entry + 3, i])
                out[j, i] += a * w0 + b * w1 + c * w2 + d * w3
                out[k, i] += e * w0 + f * w1 + g * w2 + h * w3
            t += 4
            entry += 4
        if t < stop:
            mix_into_one(p, j, t, stop, values, entry, out)
            mix_into_one(p, k, t, stop, values, entry, out)
    if group % 2:
        mix_into_one(p, group - 1, start, stop, values, first, out)


@compiled(fastmath=FAST)
def scaled(x, j, exponents, entry, out):
    """Write x[j] * 2 ** exponents[entry] to out[j], by the bits of a float32, for -126..127."""
    for i in range(x.shape[1]):
        bits = i32((i32(exponents[entry, i]) + i32(127)) << i32(23))
        out[j, i] = x[j, i] * bits.view(np.float32)
