"""Triton helpers that several kernels share: extents of a segment, powers of two."""

import triton
import triton.language as tl


@triton.jit
def extent_of(extents, segment, num_segments, head, W: tl.constexpr):
    """Return the first flat entry of a segment's head and its number of entries."""
    base = tl.load(extents + segment).to(tl.int64)
    capacity = tl.load(extents + num_segments + segment).to(tl.int64)
    start = tl.load(extents + 2 * num_segments + segment)
    first = base * W + capacity * head + start
    return first, tl.load(extents + 3 * num_segments + segment)


@triton.jit
def power(exponents):
    """Return 2 ** exponents as float32 for -126..127, by its bits: exact where `exp2` need not
    be."""
    return ((exponents.to(tl.int32) + 127) << 23).to(tl.float32, bitcast=True)
