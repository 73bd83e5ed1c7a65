"""What several kernels need: where a lane's rows are, powers of two, rounding."""

import triton
import triton.language as tl


@triton.jit
def box_of(table, lane, num_lanes, head, W: tl.constexpr):
    """The first flat row of a lane's head, and how many rows it has."""
    base = tl.load(table + lane).to(tl.int64)
    room = tl.load(table + num_lanes + lane).to(tl.int64)
    start = tl.load(table + 2 * num_lanes + lane)
    return base * W + room * head + start, tl.load(table + 3 * num_lanes + lane)


@triton.jit
def power(exponents):
    """2 ** exponents as float32 for -126..127, by its bits: exact where `exp2` need not be."""
    return ((exponents.to(tl.int32) + 127) << 23).to(tl.float32, bitcast=True)


@triton.jit
def to_even(x):
    """The nearest integer, of two as near the even one, as torch rounds; |x| < 2**22."""
    below = tl.floor(x)
    # exact but for x just below 0; x + 0.5 would round
    over = x - below
    is_odd = below - 2.0 * tl.floor(below * 0.5) == 1.0
    return tl.where((over > 0.5) | ((over == 0.5) & is_odd), below + 1.0, below)
