"""Numba: the small operations of a decoder on one token of each sequence: products with weights,
norms, rotation.

Weights are in the dtype of the model, everything else is float32.

Shapes: B tokens; weights (outputs, inputs); D head size.
"""

import math

import numpy as np
from numba import carray

from agentkv_kernels.numba.addresses import pointer
from agentkv_kernels.numba.arithmetic import FAST, power_of_two
from agentkv_kernels.numba.compiled import compiled
from agentkv_kernels.numba.numbers import widened

f32 = np.float32
LOG2_E = f32(1.4426950408889634)


@compiled()
def weights_at(address, size, like):
    """Return weights (size,) in the dtype of `like`; (0,) if the address is 0."""
    return carray(pointer(address), (size if address else 0,), like.dtype)


@compiled(fastmath=FAST)
def products(weight, width, x, first, stop, out):
    """Write x (B, width) times rows first..stop - 1 of a flat weight to the same columns of `out`.

    For several tokens four rows at a time, so that each number of `x` is used four times. For one
    token row by row: weights that are in no cache then arrive twice as fast, because the processor
    fetches one sequence of addresses further ahead than four.
    """
    row = first
    while x.shape[0] > 1 and row + 4 <= stop:
        w0 = weight[row * width : (row + 1) * width]
        w1 = weight[(row + 1) * width : (row + 2) * width]
        w2 = weight[(row + 2) * width : (row + 3) * width]
        w3 = weight[(row + 3) * width : (row + 4) * width]
        for token in range(x.shape[0]):
            own = x[token]
            a = b = c = d = f32(0.0)
            for i in range(width):
                a += own[i] * widened(w0[i])
                b += own[i] * widened(w1[i])
                c += own[i] * widened(w2[i])
                d += own[i] * widened(w3[i])
            out[token, row], out[token, row + 1] = a, b
            out[token, row + 2], out[token, row + 3] = c, d
        row += 4
    while row < stop:
        w0 = weight[row * width : (row + 1) * width]
        for token in range(x.shape[0]):
            a = f32(0.0)
            for i in range(width):
                a += x[token, i] * widened(w0[i])
            out[token, row] = a
        row += 1


@compiled()
def add_bias(bias, first, stop, out):
    """Add a bias to columns first..stop - 1 of `out` (B, outputs); nothing if it is (0,)."""
    if bias.shape[0]:
        for token in range(out.shape[0]):
            for row in range(first, stop):
                out[token, row] += widened(bias[row])


@compiled(fastmath=FAST)
def rms_norm(x, weight, epsilon, out):
    """Write the RMS norm of x (n,) to `out`, which may be x."""
    total = f32(0.0)
    for i in range(x.shape[0]):
        total += x[i] * x[i]
    share = f32(1.0) / f32(math.sqrt(total / f32(x.shape[0]) + epsilon))
    for i in range(x.shape[0]):
        out[i] = x[i] * share * widened(weight[i])


@compiled()
def rotate(x, cosines, sines):
    """Rotate a head (D,) in place; channel i and channel i + D / 2 are a pair."""
    half = cosines.shape[0]
    for i in range(half):
        a, b = x[i], x[i + half]
        x[i] = a * cosines[i] - b * sines[i]
        x[i + half] = b * cosines[i] + a * sines[i]


@compiled(fastmath=FAST)
def gated(gate, up, first, stop):
    """Replace columns first..stop - 1 of `gate` (B, m) by SiLU(gate) * up."""
    for token in range(gate.shape[0]):
        for i in range(first, stop):
            x = gate[token, i]
            # beyond 80 the power would overflow, and the result is 0 to float32
            below = min(max(-x, f32(-80.0)), f32(80.0))
            gate[token, i] = x / (f32(1.0) + power_of_two(below * LOG2_E)) * up[token, i]
