"""What several kernels need: where a lane's rows are, and powers of two."""

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
    """2 ** exponents as float32, by its bits: exact where `exp2` need not be."""
    return ((exponents.to(tl.int32) + 127) << 23).to(tl.float32, bitcast=True)
