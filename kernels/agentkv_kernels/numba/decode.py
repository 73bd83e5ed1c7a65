"""Numba: one step of a decoder on all layers, by any number of threads at once.

A step is a row of phases, each cut into pieces. Every thread walks through all phases; in each it
takes pieces until none is left, and waits until the last one is done. So a thread that arrives
late holds nobody up, and the result does not depend on who did what.

Numbers and shapes as in `decoder`.
"""

import math

import numpy as np
from numba import carray

from agentkv_kernels.decoder import (
    ACTIVATED,
    CONSTANTS,
    COUNTER_STRIDE,
    COUNTERS,
    DECODER,
    DOWN,
    DOWN_BIAS,
    EMAS,
    EMBEDDING,
    EPSILON,
    FACTORS,
    FIRST_ROWS,
    FREQUENCIES,
    GATE,
    GATE_BIAS,
    GROUP,
    HEAD,
    HEAD_SIZE,
    HIDDEN,
    IDS,
    INNER,
    K_BIAS,
    K_NORM,
    K_WEIGHT,
    LAST_NORM,
    LAYER_DESCRIPTORS,
    LAYERS,
    LOGITS,
    MASSES,
    MIXED,
    MLP_NORM,
    NEW_KEYS,
    NEW_VALUES,
    NORM,
    NUM_CACHES,
    NUM_CONSTANTS,
    NUM_KV_HEADS,
    NUM_LAYERS,
    NUM_NUMBERS,
    NUM_ROWS,
    NUM_THREADS,
    NUM_WEIGHTS,
    O_BIAS,
    O_WEIGHT,
    PHASES_PER_LAYER,
    POSITIONS,
    Q_BIAS,
    Q_NORM,
    Q_WEIGHT,
    QUERIES,
    ROTARY_SCALE,
    STEP_NUMBERS,
    STREAM,
    UP,
    UP_BIAS,
    V_BIAS,
    V_WEIGHT,
    VOCABULARY,
)
from agentkv_kernels.layout import METADATA, NUM_HEADS, NUM_SEGMENTS, PER_SEQUENCE
from agentkv_kernels.numba import atomics
from agentkv_kernels.numba.addresses import pointer, table_at
from agentkv_kernels.numba.append_attend import begin_entry, can_append, layer_at, serve_unit
from agentkv_kernels.numba.compiled import compiled
from agentkv_kernels.numba.linear import (
    add_bias,
    gated,
    products,
    rms_norm,
    rotate,
    weights_at,
)
from agentkv_kernels.numba.numbers import widened

f32 = np.float32

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
    """Return the first row of a piece, a multiple of 4; the end for the number of pieces."""
    return rows if piece == num_pieces else rows * piece // num_pieces // 4 * 4


@compiled()
def normed_stream(step, decoder, weight, like, out):
    """Write the norm of the residual stream to `out` (B, d)."""
    hidden = decoder[HIDDEN]
    x = carray(pointer(step[STREAM]), (step[NUM_ROWS], hidden), np.float32)
    constants = carray(pointer(step[CONSTANTS]), (NUM_CONSTANTS,), np.float64)
    own = weights_at(weight, hidden, like)
    for token in range(x.shape[0]):
        rms_norm(x[token], own, f32(constants[EPSILON]), out[token])


@compiled()
def project(weight, bias, x, rows, first, stop, out, like):
    """Write columns first..stop - 1 of a linear layer with `rows` outputs to `out` (B, rows)."""
    if first < stop:
        width = x.shape[1]
        products(weights_at(weight, rows * width, like), width, x, first, stop, out)
        add_bias(weights_at(bias, rows, like), first, stop, out)


@compiled()
def project_qkv(weights, x, first, stop, q, keys, values, like):
    """Project columns first..stop - 1 of the queries, keys and values, counted through."""
    at = q.shape[1]
    project(weights[Q_WEIGHT], weights[Q_BIAS], x, at, first, min(stop, at), q, like)
    size = keys.shape[1]
    low, high = max(first - at, 0), min(stop - at, size)
    project(weights[K_WEIGHT], weights[K_BIAS], x, size, low, high, keys, like)
    low, high = max(first - at - size, 0), min(stop - at - size, size)
    project(weights[V_WEIGHT], weights[V_BIAS], x, size, low, high, values, like)


@compiled()
def add_projection(weight, bias, x, first, stop, scratch, stream, like):
    """Add columns first..stop - 1 of a linear layer to the residual stream (B, d)."""
    project(weight, bias, x, stream.shape[1], first, stop, scratch, like)
    for token in range(stream.shape[0]):
        for i in range(first, stop):
            stream[token, i] += scratch[token, i]


@compiled()
def write_rotation(decoder, position, scale, cosines, sines):
    """Write the rotary cosines and sines (D / 2,) of a position."""
    frequencies = carray(pointer(decoder[FREQUENCIES]), cosines.shape, np.float32)
    for i in range(cosines.shape[0]):
        angle = f32(position) * frequencies[i]
        cosines[i] = f32(math.cos(angle)) * scale
        sines[i] = f32(math.sin(angle)) * scale


@compiled()
def is_whole(step, at):
    """Return whether a unit must be a whole segment, because its heads share statistics."""
    masses = carray(pointer(step[MASSES]), (at + 1,), np.int64)
    emas = carray(pointer(step[EMAS]), (at + 1, 3), np.float64)
    return masses[at] != 0 or emas[at, 1] != 0.0


@compiled()
def num_units_of(step, at):
    """Return the number of units of a cache in a layer, by the number of its descriptor."""
    descriptors = carray(pointer(step[LAYER_DESCRIPTORS]), (at + 1,), np.int64)
    layer = layer_at(descriptors[at])
    segments = table_at(layer[METADATA])[NUM_SEGMENTS]
    return segments if is_whole(step, at) else segments * layer[NUM_HEADS]


@compiled()
def attend_unit(step, decoder, constants, weights, layer_idx, unit, like):
    """Norm and rotate the queries and keys of a unit of a layer, append, and attend.

    Units count through the caches.
    """
    num_caches = step[NUM_CACHES]
    cache = 0
    while True:
        at = layer_idx * num_caches + cache
        num_units = num_units_of(step, at)
        if unit < num_units:
            break
        unit -= num_units
        cache += 1
    descriptors = carray(pointer(step[LAYER_DESCRIPTORS]), (at + 1,), np.int64)
    layer = layer_at(descriptors[at])
    heads, dim, group = layer[NUM_HEADS], decoder[HEAD_SIZE], decoder[GROUP]
    segment, first_head, stop_head = unit, 0, heads
    if not is_whole(step, at):
        segment, first_head = unit // heads, unit % heads
        stop_head = first_head + 1
    first_rows = carray(pointer(step[FIRST_ROWS]), (num_caches + 1,), np.int64)
    row = first_rows[cache] + segment // layer[PER_SEQUENCE]
    own_head = segment % layer[PER_SEQUENCE] * heads
    kv_heads, num_rows = decoder[NUM_KV_HEADS], step[NUM_ROWS]
    new_shape = (decoder[NUM_LAYERS], num_rows, kv_heads, dim)
    q_shape = (num_rows, kv_heads * group, dim)
    keys = carray(pointer(step[NEW_KEYS]), new_shape, np.float32)[
        layer_idx, row, own_head : own_head + heads
    ]
    values = carray(pointer(step[NEW_VALUES]), new_shape, np.float32)[
        layer_idx, row, own_head : own_head + heads
    ]
    first_q, stop_q = own_head * group, (own_head + heads) * group
    q = carray(pointer(step[QUERIES]), q_shape, np.float32)[row, first_q:stop_q]
    mixed = carray(pointer(step[MIXED]), q_shape, np.float32)[row, first_q:stop_q]
    positions = carray(pointer(step[POSITIONS]), (num_rows,), np.int64)
    cosines, sines = np.empty(dim // 2, f32), np.empty(dim // 2, f32)
    write_rotation(decoder, positions[row], f32(constants[ROTARY_SCALE]), cosines, sines)
    epsilon = f32(constants[EPSILON])
    q_norm = weights_at(weights[Q_NORM], dim, like)
    k_norm = weights_at(weights[K_NORM], dim, like)
    for head in range(first_head, stop_head):
        if k_norm.shape[0]:
            rms_norm(keys[head], k_norm, epsilon, keys[head])
        rotate(keys[head], cosines, sines)
        for j in range(head * group, (head + 1) * group):
            if q_norm.shape[0]:
                rms_norm(q[j], q_norm, epsilon, q[j])
            rotate(q[j], cosines, sines)
    ema = carray(pointer(step[EMAS]), (at + 1, 3), np.float64)[at]
    serve_unit(
        layer,
        segment,
        first_head,
        stop_head,
        carray(pointer(step[FACTORS]), (layer_idx + 1,), np.float64)[layer_idx],
        q,
        keys,
        values,
        np.empty(0, np.float32),
        mixed,
        carray(pointer(step[MASSES]), (at + 1,), np.int64)[at],
        ema[0],
        ema[1],
        ema[2] != 0.0,
    )


@compiled(nogil=True)
def can_begin(address):
    """Return whether all tables of a step's layers have capacity for one more entry."""
    step = carray(pointer(address), (STEP_NUMBERS,), np.int64)
    decoder = carray(pointer(step[DECODER]), (NUM_NUMBERS,), np.int64)
    size = decoder[NUM_LAYERS] * step[NUM_CACHES]
    for descriptor in carray(pointer(step[LAYER_DESCRIPTORS]), (size,), np.int64):
        if not can_append(layer_at(descriptor)):
            return False
    return True


@compiled(nogil=True)
def begin(address, like):
    """Begin an entry in all layers, read the embeddings, and set the counters to 0."""
    step = carray(pointer(address), (STEP_NUMBERS,), np.int64)
    decoder = carray(pointer(step[DECODER]), (NUM_NUMBERS,), np.int64)
    num_layers, hidden, num_rows = decoder[NUM_LAYERS], decoder[HIDDEN], step[NUM_ROWS]
    size = num_layers * step[NUM_CACHES]
    for descriptor in carray(pointer(step[LAYER_DESCRIPTORS]), (size,), np.int64):
        begin_entry(layer_at(descriptor))
    ids = carray(pointer(step[IDS]), (num_rows,), np.int64)
    stream = carray(pointer(step[STREAM]), (num_rows, hidden), np.float32)
    table = weights_at(decoder[EMBEDDING], decoder[VOCABULARY] * hidden, like)
    for token in range(num_rows):
        first = ids[token] * hidden
        for i in range(hidden):
            stream[token, i] = widened(table[first + i])
    num_phases = PHASES_PER_LAYER * num_layers + 1
    carray(pointer(step[COUNTERS]), (num_phases * COUNTER_STRIDE,), np.int64)[:] = 0


@compiled(nogil=True)
def work(address, like):
    """Walk through all phases of a step that has begun; return when all of it is done."""
    step = carray(pointer(address), (STEP_NUMBERS,), np.int64)
    decoder = carray(pointer(step[DECODER]), (NUM_NUMBERS,), np.int64)
    constants = carray(pointer(step[CONSTANTS]), (NUM_CONSTANTS,), np.float64)
    num_layers, hidden, inner = decoder[NUM_LAYERS], decoder[HIDDEN], decoder[INNER]
    num_rows, threads, counters = step[NUM_ROWS], step[NUM_THREADS], step[COUNTERS]
    kv_size = decoder[NUM_KV_HEADS] * decoder[HEAD_SIZE]
    q_size = kv_size * decoder[GROUP]
    all_weights = carray(pointer(decoder[LAYERS]), (num_layers, NUM_WEIGHTS), np.int64)
    stream = carray(pointer(step[STREAM]), (num_rows, hidden), np.float32)
    q = carray(pointer(step[QUERIES]), (num_rows, q_size), np.float32)
    mixed = carray(pointer(step[MIXED]), (num_rows, q_size), np.float32)
    activated = carray(pointer(step[ACTIVATED]), (num_rows, inner), np.float32)
    keys = carray(pointer(step[NEW_KEYS]), (num_layers, num_rows, kv_size), np.float32)
    values = carray(pointer(step[NEW_VALUES]), (num_layers, num_rows, kv_size), np.float32)
    # of this thread alone
    normed = np.empty((num_rows, hidden), np.float32)
    up, scratch = np.empty((num_rows, inner), np.float32), np.empty((num_rows, hidden), np.float32)
    phase = 0
    for layer_idx in range(num_layers):
        weights = all_weights[layer_idx]

        rows = q_size + 2 * kv_size
        pieces = num_pieces_of(rows, threads)
        piece = take(counters, phase)
        if piece < pieces:
            normed_stream(step, decoder, weights[NORM], like, normed)
        while piece < pieces:
            first, stop = start_of(piece, pieces, rows), start_of(piece + 1, pieces, rows)
            project_qkv(weights, normed, first, stop, q, keys[layer_idx], values[layer_idx], like)
            done(counters, phase)
            piece = take(counters, phase)
        wait(counters, phase, pieces)
        phase += 1

        pieces = 0
        for cache in range(step[NUM_CACHES]):
            pieces += num_units_of(step, layer_idx * step[NUM_CACHES] + cache)
        piece = take(counters, phase)
        while piece < pieces:
            attend_unit(step, decoder, constants, weights, layer_idx, piece, like)
            done(counters, phase)
            piece = take(counters, phase)
        wait(counters, phase, pieces)
        phase += 1

        pieces = num_pieces_of(hidden, threads)
        piece = take(counters, phase)
        while piece < pieces:
            first, stop = start_of(piece, pieces, hidden), start_of(piece + 1, pieces, hidden)
            add_projection(
                weights[O_WEIGHT], weights[O_BIAS], mixed, first, stop, scratch, stream, like
            )
            done(counters, phase)
            piece = take(counters, phase)
        wait(counters, phase, pieces)
        phase += 1

        pieces = num_pieces_of(inner, threads)
        piece = take(counters, phase)
        if piece < pieces:
            normed_stream(step, decoder, weights[MLP_NORM], like, normed)
        while piece < pieces:
            first, stop = start_of(piece, pieces, inner), start_of(piece + 1, pieces, inner)
            project(weights[GATE], weights[GATE_BIAS], normed, inner, first, stop, activated, like)
            project(weights[UP], weights[UP_BIAS], normed, inner, first, stop, up, like)
            gated(activated, up, first, stop)
            done(counters, phase)
            piece = take(counters, phase)
        wait(counters, phase, pieces)
        phase += 1

        pieces = num_pieces_of(hidden, threads)
        piece = take(counters, phase)
        while piece < pieces:
            first, stop = start_of(piece, pieces, hidden), start_of(piece + 1, pieces, hidden)
            add_projection(
                weights[DOWN], weights[DOWN_BIAS], activated, first, stop, scratch, stream, like
            )
            done(counters, phase)
            piece = take(counters, phase)
        wait(counters, phase, pieces)
        phase += 1

    size = decoder[VOCABULARY]
    logits = carray(pointer(step[LOGITS]), (num_rows, size), np.float32)
    pieces = num_pieces_of(size, threads)
    piece = take(counters, phase)
    if piece < pieces:
        normed_stream(step, decoder, decoder[LAST_NORM], like, normed)
    while piece < pieces:
        first, stop = start_of(piece, pieces, size), start_of(piece + 1, pieces, size)
        project(decoder[HEAD], 0, normed, size, first, stop, logits, like)
        done(counters, phase)
        piece = take(counters, phase)
    wait(counters, phase, pieces)
