"""Numba: the small operations of a decoder on one token of each sequence: products with weights,
norms, rotation.

Weights are in the dtype of the model, a number of `layout.DTYPES`, everything else is float32. The
dtype is told apart while a step runs, so that one compilation of the step serves all of them.

Shapes: B tokens; weights (outputs, inputs); D head size.
"""

import math

import numpy as np
from numba import carray

from agentkv_kernels.decoder import GELU_TANH, RELU_SQUARED
from agentkv_kernels.layout import FLOAT16, FLOAT32
from agentkv_kernels.numba.addresses import pointer
from agentkv_kernels.numba.arithmetic import FAST, power_of_two
from agentkv_kernels.numba.compiled import compiled
from agentkv_kernels.numba.half_products import half_products
from agentkv_kernels.numba.numbers import read_numbers, size_of

f32 = np.float32
LOG2_E = f32(1.4426950408889634)


@compiled()
def weights_at(dtype, address, first, count):
    """Return weights (count,) as float32, from number `first` on; (0,) if the address is 0.

    They are the model's own memory, or a copy if that is in 16 bits.
    """
    if address == 0:
        return np.empty(0, np.float32)
    if dtype == FLOAT32:
        return carray(pointer(address + 4 * first), (count,), np.float32)
    found = np.empty(count, np.float32)
    read_numbers(dtype, address + size_of(dtype) * first, found)
    return found


@compiled()
def products(dtype, address, width, x, first, stop, out):
    """Write x (B, width) times rows first..stop - 1 of a weight to the same columns of `out`."""
    size = stop * width
    if dtype == FLOAT32:
        single_products(carray(pointer(address), (size,), np.float32), width, x, first, stop, out)
    elif dtype == FLOAT16:
        half_products(carray(pointer(address), (size,), np.int16), width, x, first, stop, out)
    else:
        half_products(carray(pointer(address), (size,), np.uint16), width, x, first, stop, out)


@compiled(fastmath=FAST)
def single_products(weight, width, x, first, stop, out):
    """Do the work of `products` for a flat float32 weight.

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
                a += own[i] * w0[i]
                b += own[i] * w1[i]
                c += own[i] * w2[i]
                d += own[i] * w3[i]
            out[token, row], out[token, row + 1] = a, b
            out[token, row + 2], out[token, row + 3] = c, d
        row += 4
    while row < stop:
        w0 = weight[row * width : (row + 1) * width]
        for token in range(x.shape[0]):
            a = f32(0.0)
            for i in range(width):
                a += x[token, i] * w0[i]
            out[token, row] = a
        row += 1


@compiled()
def add_bias(dtype, address, first, stop, out):
    """Add a bias to columns first..stop - 1 of `out` (B, outputs); nothing if its address is 0."""
    if address:
        bias = weights_at(dtype, address, first, stop - first)
        for token in range(out.shape[0]):
            for i in range(stop - first):
                out[token, first + i] += bias[i]


@compiled()
def add_scaled(x, scale, first, stop, out):
    """Add scale times columns first..stop - 1 of x (B, n) to `out` (B, n)."""
    for token in range(x.shape[0]):
        for i in range(first, stop):
            out[token, i] += x[token, i] * scale


@compiled()
def norm(x, weight, bias, offset, epsilon, is_centered, out):
    """Write the norm of x (n,) to `out`, which may be x: its share of the root mean square, times
    `weight` and `offset` together, plus a bias that may be (0,).

    Args:
        is_centered: whether the mean is subtracted first.
    """
    if is_centered:
        center(x, out)
        rms_norm(out, weight, offset, epsilon, out)
    else:
        rms_norm(x, weight, offset, epsilon, out)
    if bias.shape[0]:
        for i in range(x.shape[0]):
            out[i] += bias[i]


@compiled(fastmath=FAST)
def center(x, out):
    """Write x (n,) less its mean to `out`, which may be x."""
    total = f32(0.0)
    for i in range(x.shape[0]):
        total += x[i]
    mean = total / f32(x.shape[0])
    for i in range(x.shape[0]):
        out[i] = x[i] - mean


@compiled(fastmath=FAST)
def rms_norm(x, weight, offset, epsilon, out):
    """Write the norm of x without a mean or a bias; see `norm`."""
    total = f32(0.0)
    for i in range(x.shape[0]):
        total += x[i] * x[i]
    share = f32(1.0) / f32(math.sqrt(total / f32(x.shape[0]) + epsilon))
    for i in range(x.shape[0]):
        out[i] = x[i] * share * (weight[i] + offset)


@compiled()
def rotate(x, cosines, sines, step, distance):
    """Rotate a head (D,) in place; channels i * step and i * step + distance are a pair."""
    if step == 1:  # with a step that it knows, the compiler makes vectors of this loop
        for i in range(cosines.shape[0]):
            a, b = x[i], x[i + distance]
            x[i] = a * cosines[i] - b * sines[i]
            x[i + distance] = b * cosines[i] + a * sines[i]
        return
    for i in range(cosines.shape[0]):
        one, other = i * step, i * step + distance
        a, b = x[one], x[other]
        x[one] = a * cosines[i] - b * sines[i]
        x[other] = b * cosines[i] + a * sines[i]


@compiled(fastmath=FAST)
def gated(activation, gate, up, first, stop):
    """Replace columns first..stop - 1 of `gate` (B, m) by activation(gate) * up."""
    for token in range(gate.shape[0]):
        if activation == RELU_SQUARED:
            for i in range(first, stop):
                x = max(gate[token, i], f32(0.0))
                gate[token, i] = x * x * up[token, i]
        elif activation == GELU_TANH:
            for i in range(first, stop):
                x = gate[token, i]
                # 1 + tanh(y) is twice the logistic function of 2 y
                y = f32(1.5957691) * x * (f32(1.0) + f32(0.044715) * x * x)
                gate[token, i] = x / exp_and_one(-y) * up[token, i]
        else:
            for i in range(first, stop):
                x = gate[token, i]
                gate[token, i] = x / exp_and_one(-x) * up[token, i]


@compiled(fastmath=FAST)
def exp_and_one(x):
    """Return exp(x) + 1."""
    # beyond 80 the power would overflow, and a quotient is 0 to float32
    bounded = min(max(x, f32(-80.0)), f32(80.0))
    return f32(1.0) + power_of_two(bounded * LOG2_E)
