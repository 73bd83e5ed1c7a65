"""Numba: how threads share a step: phases, cut into pieces that each thread takes one by one.

A phase has two counters, of the pieces that are taken and of those that are done. The addresses are
those of all counters; see `decoder.COUNTERS`.
"""

from agentkv_kernels.decoder import COUNTER_STRIDE
from agentkv_kernels.numba import atomics
from agentkv_kernels.numba.compiled import compiled

LEAST_ROWS = 32
"""Rows of a weight in a piece at least: fewer cost more to hand out than to multiply."""

LOOKS = 2000
"""Looks at a counter between two offers to give way: some microseconds (our choice)."""

PIECES_PER_THREAD = 4
"""Pieces of a product per thread, so that threads end together even if one is interrupted."""


@compiled()
def take(counters, phase):
    """Return the number of the next piece of a phase."""
    return atomics.add(counters + 8 * COUNTER_STRIDE * phase, 1)


@compiled()
def done(counters, phase):
    """Count a piece of a phase as done."""
    atomics.add(counters + 8 * (COUNTER_STRIDE * phase + COUNTER_STRIDE // 2), 1)


@compiled()
def wait(counters, phase, num_pieces):
    """Wait until all pieces of a phase are done."""
    place = counters + 8 * (COUNTER_STRIDE * phase + COUNTER_STRIDE // 2)
    looks = 0
    while atomics.load(place) < num_pieces:
        looks += 1
        if looks % LOOKS == 0:
            # the thread that works on the last piece may need this core
            atomics.give_way()


@compiled()
def num_pieces_of(rows, threads):
    """Return into how many pieces a product with `rows` rows is cut."""
    if threads == 1:
        return 1
    return max(1, min(rows // LEAST_ROWS, PIECES_PER_THREAD * threads))


@compiled()
def start_of(piece, num_pieces, rows):
    """Return the first row of a piece, a multiple of 16; the end for the number of pieces."""
    return rows if piece == num_pieces else rows * piece // num_pieces // 16 * 16
