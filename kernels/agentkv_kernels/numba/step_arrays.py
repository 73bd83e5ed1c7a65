"""Numba: the arrays and constants of a step, by their addresses.

Shapes as in `decoder`.
"""

import numpy as np
from numba import carray

from agentkv_kernels.decoder import CONSTANTS, NUM_CONSTANTS, NUM_ROWS
from agentkv_kernels.numba.addresses import pointer
from agentkv_kernels.numba.compiled import compiled

f32 = np.float32


@compiled()
def rows_at(step, which, size):
    """Return an array (B, size) of a step, float32."""
    return carray(pointer(step[which]), (step[NUM_ROWS], size), np.float32)


@compiled()
def constant(step, which):
    """Return a constant of a decoder."""
    return f32(carray(pointer(step[CONSTANTS]), (NUM_CONSTANTS,), np.float64)[which])
