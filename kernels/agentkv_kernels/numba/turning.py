"""Numba: the heads of a layer's new queries and keys, normed and rotated.

Shapes as in `decoder`; a segment has W of the H key-value heads.
"""

import math

import numpy as np
from numba import carray

from agentkv_kernels.decoder import (
    EACH_HEAD,
    EPSILON,
    FREQUENCIES,
    GROUP,
    HEAD_NORM,
    HEAD_NORM_STEP,
    IS_CENTERED,
    K_NORM,
    NORM_OFFSET,
    NUM_PAIRS,
    NUM_ROWS,
    PAIR_DISTANCE,
    PAIR_STEP,
    POSITIONS,
    Q_NORM,
    QUERY_SCALES,
    TURNED_HEADS,
    WEIGHT_DTYPE,
)
from agentkv_kernels.numba.addresses import pointer
from agentkv_kernels.numba.compiled import compiled
from agentkv_kernels.numba.linear import norm, rotate, weights_at
from agentkv_kernels.numba.step_arrays import constant

f32 = np.float32


@compiled()
def write_rotation(address, position, cosines, sines):
    """Write the rotary cosines and sines (P,) of a position.

    Args:
        address: of the frequencies and their factor.
    """
    num_pairs = cosines.shape[0]
    frequencies = carray(pointer(address), (num_pairs + 1,), np.float32)
    scale = frequencies[num_pairs]
    for i in range(num_pairs):
        angle = f32(position) * frequencies[i]
        cosines[i] = f32(math.cos(angle)) * scale
        sines[i] = f32(math.sin(angle)) * scale


@compiled()
def turn_head(step, decoder, weights, place, head, x, cosines, sines):
    """Norm and rotate one head (D,) of the queries or the keys, in place.

    Args:
        place: where the weight of the norm stands.
        head: number of the head among the queries or the keys of a token.
    """
    where, first = weights[HEAD_NORM], head * weights[HEAD_NORM_STEP]
    is_normed = where == EACH_HEAD or where == TURNED_HEADS
    if where == TURNED_HEADS:
        rotate(x, cosines, sines, weights[PAIR_STEP], weights[PAIR_DISTANCE])
    if is_normed:
        norm(
            x,
            weights_at(decoder[WEIGHT_DTYPE], weights[place], first, x.shape[0]),
            weights_at(decoder[WEIGHT_DTYPE], weights[place + 1], first, x.shape[0]),
            constant(step, NORM_OFFSET),
            constant(step, EPSILON),
            decoder[IS_CENTERED],
            x,
        )
    if where != TURNED_HEADS:
        rotate(x, cosines, sines, weights[PAIR_STEP], weights[PAIR_DISTANCE])


@compiled()
def turn_heads(step, decoder, weights, row, own_head, first, stop, q, keys):
    """Norm and rotate some keys of a sequence and their queries, in place.

    Args:
        row: of the sequence.
        own_head: number among the sequence's key-value heads of the first one in `keys`.
        first, stop: which of `keys`.
        q, keys: (W * G, D) and (W, D).
    """
    num_pairs, group, num_rows = weights[NUM_PAIRS], decoder[GROUP], step[NUM_ROWS]
    positions = carray(pointer(step[POSITIONS]), (num_rows,), np.int64)
    cosines, sines = np.empty(num_pairs, f32), np.empty(num_pairs, f32)
    write_rotation(weights[FREQUENCIES], positions[row], cosines, sines)
    for head in range(first, stop):
        own, first_q = own_head + head, own_head * group
        turn_head(step, decoder, weights, K_NORM, own, keys[head], cosines, sines)
        for j in range(head * group, (head + 1) * group):
            turn_head(step, decoder, weights, Q_NORM, first_q + j, q[j], cosines, sines)
            if step[QUERY_SCALES]:
                q[j] *= carray(pointer(step[QUERY_SCALES]), (num_rows,), np.float32)[row]
