"""Numba: one step of a decoder on all layers, by any number of threads at once.

It takes one token of each sequence, or several of one: `decoder.NUM_TOKENS`.

A step is a row of phases, each cut into pieces. Every thread walks through all phases; in each it
takes pieces until none is left, and waits until the last one is done. So a thread that arrives
late holds nobody up, and the result does not depend on who did what.

Numbers and shapes as in `decoder`.
"""

import numpy as np
from numba import carray

from agentkv_kernels.decoder import (
    ACTIVATED,
    ACTIVATION,
    ADDED,
    ALL_HEADS,
    APPENDS,
    ATTENDED_NORM,
    COUNTER_STRIDE,
    COUNTERS,
    DECODER,
    DOWN,
    EMAS,
    EMBEDDING,
    EMBEDDING_SCALE,
    EPSILON,
    FACTORS,
    FIRST_ROWS,
    GATE,
    GROUP,
    HEAD,
    HEAD_NORM,
    HEAD_SIZE,
    HIDDEN,
    IDS,
    INNER,
    IS_CENTERED,
    IS_PARALLEL,
    K_NORM,
    K_WEIGHT,
    LAST_MLP_NORM,
    LAST_NORM,
    LAYER_DESCRIPTORS,
    LAYERS,
    LOGITS,
    LOOK,
    LOOK_PHASES,
    MASSES,
    MIXED,
    MLP_NORM,
    NEW_KEYS,
    NEW_VALUES,
    NORM,
    NORM_OFFSET,
    NORMS_EMBEDDING,
    NUM_CACHES,
    NUM_KV_HEADS,
    NUM_LAYER_NUMBERS,
    NUM_LAYERS,
    NUM_LOGITS,
    NUM_NUMBERS,
    NUM_ROWS,
    NUM_THREADS,
    NUM_TOKENS,
    O_WEIGHT,
    PHASES_PER_LAYER,
    Q_NORM,
    Q_WEIGHT,
    QKV_LIMIT,
    QUERIES,
    RESIDUAL_SCALE,
    STEP_NUMBERS,
    STREAM,
    UP,
    V_WEIGHT,
    VOCABULARY,
    WEIGHT_DTYPE,
)
from agentkv_kernels.layout import COUNT, METADATA, NUM_HEADS, NUM_SEGMENTS, PER_SEQUENCE
from agentkv_kernels.numba.addresses import extents_of, pointer, table_at
from agentkv_kernels.numba.append_attend import (
    begin_entries,
    begin_entry,
    can_append,
    coded_in,
    dense_in,
    layer_at,
    serve_unit,
    write_newest,
)
from agentkv_kernels.numba.attention import attend
from agentkv_kernels.numba.block_product import multiply, read_row, round_activations, rounded
from agentkv_kernels.numba.compiled import compiled
from agentkv_kernels.numba.linear import (
    add_bias,
    add_scaled,
    gated,
    norm,
    products,
    weights_at,
)
from agentkv_kernels.numba.pieces import done, num_pieces_of, start_of, take, wait
from agentkv_kernels.numba.second_pass import (
    attend_again,
    choose,
    numbers_at,
    scan,
    settle_looked,
)
from agentkv_kernels.numba.step_arrays import constant, rows_at
from agentkv_kernels.numba.turning import turn_heads

f32 = np.float32

TOKENS_AT_ONCE = 4
"""Tokens of a sequence in a piece of attention (our choice)."""


@compiled()
def norm_rows(step, decoder, own, x, out):
    """Write the norm of each row of x (B, n) to `out`, which may be x.

    Args:
        own: numbers that begin with the addresses of its weight and its bias.
    """
    size = x.shape[1]
    weight = weights_at(decoder[WEIGHT_DTYPE], own[0], 0, size)
    bias = weights_at(decoder[WEIGHT_DTYPE], own[1], 0, size)
    offset, epsilon = constant(step, NORM_OFFSET), constant(step, EPSILON)
    for token in range(x.shape[0]):
        norm(x[token], weight, bias, offset, epsilon, decoder[IS_CENTERED], out[token])


@compiled()
def read_stream(step, decoder, own, out):
    """Write the last rows of the residual stream to `out` (n, d), normed if the layer has this
    norm; see `norm_rows`."""
    stream = rows_at(step, STREAM, decoder[HIDDEN])[step[NUM_ROWS] - out.shape[0] :]
    if own[0]:
        norm_rows(step, decoder, own, stream, out)
    else:
        out[:] = stream


@compiled()
def round_for(linear, x, x_rounded):
    """Round activations if a linear layer has its weight in a block format; see `project`."""
    if linear[0] < 0:
        round_activations(x, x_rounded)


@compiled()
def project(decoder, linear, x, x_rounded, first, stop, out):
    """Write columns first..stop - 1 of what a linear layer returns to `out` (B, outputs).

    Args:
        linear: numbers that begin with those of its weight and its bias. With their place in the
            layer instead, this would be compiled for each place.
        x_rounded: x as `round_for` left it.
    """
    if first < stop:
        if linear[0] < 0:
            multiply(-linear[0], x_rounded, x.shape[0], first, stop, out)
        else:
            products(decoder[WEIGHT_DTYPE], linear[0], x.shape[1], x, first, stop, out)
        add_bias(decoder[WEIGHT_DTYPE], linear[1], first, stop, out)


@compiled()
def project_qkv(decoder, weights, x, x_rounded, first, stop, q, keys, values):
    """Project columns first..stop - 1 of the queries, keys and values, counted through."""
    at = q.shape[1]
    project(decoder, weights[Q_WEIGHT:], x, x_rounded, first, min(stop, at), q)
    size = keys.shape[1]
    low, high = max(first - at, 0), min(stop - at, size)
    project(decoder, weights[K_WEIGHT:], x, x_rounded, low, high, keys)
    low, high = max(first - at - size, 0), min(stop - at - size, size)
    project(decoder, weights[V_WEIGHT:], x, x_rounded, low, high, values)


@compiled()
def bound_qkv(limit, first, stop, q, keys, values):
    """Bound the size of what `project_qkv` has written, in place."""
    start = 0
    for x in (q, keys, values):
        for token in range(x.shape[0]):
            for i in range(max(first - start, 0), min(stop - start, x.shape[1])):
                x[token, i] = min(max(x[token, i], -limit), limit)
        start += x.shape[1]


@compiled()
def norm_all_heads(step, decoder, weights, q, keys, phase):
    """Norm queries (B, H * G * D) and keys (B, H * D) over all heads, in place."""
    piece = take(step[COUNTERS], phase)
    while piece < q.shape[0]:
        for place, x in ((Q_NORM, q), (K_NORM, keys)):
            row = x[piece : piece + 1]
            norm_rows(step, decoder, weights[place:], row, row)
        done(step[COUNTERS], phase)
        piece = take(step[COUNTERS], phase)
    wait(step[COUNTERS], phase, q.shape[0])


@compiled()
def activate(step, decoder, weights, normed, up, x_rounded, phase):
    """Write the activations of the MLP, up to its last linear layer.

    Args:
        normed, up: work space (B, d) and (B, m) of this thread; `up` holds ones for an MLP without
            a gate.
        x_rounded: its space for rounded activations.
    """
    counters, inner = step[COUNTERS], decoder[INNER]
    activated = rows_at(step, ACTIVATED, inner)
    pieces = num_pieces_of(inner, step[NUM_THREADS])
    piece = take(counters, phase)
    if piece < pieces:
        read_stream(step, decoder, weights[MLP_NORM:], normed)
        round_for(weights[GATE:], normed, x_rounded)
    while piece < pieces:
        first, stop = start_of(piece, pieces, inner), start_of(piece + 1, pieces, inner)
        project(decoder, weights[GATE:], normed, x_rounded, first, stop, activated)
        if weights[UP]:
            project(decoder, weights[UP:], normed, x_rounded, first, stop, up)
        gated(weights[ACTIVATION], activated, up, first, stop)
        done(counters, phase)
        piece = take(counters, phase)
    wait(counters, phase, pieces)


@compiled()
def add_projection(step, decoder, linear, last_norm, x, x_rounded, phase):
    """Add a linear layer of x to the residual stream, normed if the layer has a norm for it.

    Args:
        linear, last_norm: of the linear layer and the norm, as in `project`.
        x_rounded: space of this thread.

    Returns:
        The next phase.
    """
    counters, hidden, num_rows = step[COUNTERS], decoder[HIDDEN], step[NUM_ROWS]
    stream, added = rows_at(step, STREAM, hidden), rows_at(step, ADDED, hidden)
    scale = constant(step, RESIDUAL_SCALE)
    pieces = num_pieces_of(hidden, step[NUM_THREADS])
    piece = take(counters, phase)
    if piece < pieces:
        round_for(linear, x, x_rounded)
    while piece < pieces:
        first, stop = start_of(piece, pieces, hidden), start_of(piece + 1, pieces, hidden)
        project(decoder, linear, x, x_rounded, first, stop, added)
        if not last_norm[0]:
            add_scaled(added, scale, first, stop, stream)
        done(counters, phase)
        piece = take(counters, phase)
    wait(counters, phase, pieces)
    if not last_norm[0]:
        return phase + 1
    phase += 1
    piece = take(counters, phase)
    while piece < num_rows:
        row = added[piece : piece + 1]
        norm_rows(step, decoder, last_norm, row, row)
        add_scaled(row, scale, 0, hidden, stream[piece : piece + 1])
        done(counters, phase)
        piece = take(counters, phase)
    wait(counters, phase, num_rows)
    return phase + 1


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
def attend_unit(step, decoder, weights, layer_idx, unit):
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
    turn_heads(step, decoder, weights, row, own_head, first_head, stop_head, q, keys)
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


@compiled()
def attend_phase(step, decoder, weights, layer_idx, phase):
    """Append the new entries of a layer and attend; return the next phase."""
    pieces = 0
    for cache in range(step[NUM_CACHES]):
        pieces += num_units_of(step, layer_idx * step[NUM_CACHES] + cache)
    piece = take(step[COUNTERS], phase)
    while piece < pieces:
        attend_unit(step, decoder, weights, layer_idx, piece)
        done(step[COUNTERS], phase)
        piece = take(step[COUNTERS], phase)
    wait(step[COUNTERS], phase, pieces)
    return phase + 1


@compiled()
def read_phases(step, decoder, weights, layer_idx, phase):
    """Append new tokens of one sequence in a layer and attend; return the next phase.

    One phase writes the entries, and one attends, each token with the entries up to its own.
    """
    counters, heads, dim = step[COUNTERS], decoder[NUM_KV_HEADS], decoder[HEAD_SIZE]
    num_rows, group = step[NUM_ROWS], decoder[GROUP]
    new_shape = (decoder[NUM_LAYERS], num_rows, heads, dim)
    q_shape = (num_rows, heads * group, dim)
    keys = carray(pointer(step[NEW_KEYS]), new_shape, np.float32)[layer_idx]
    values = carray(pointer(step[NEW_VALUES]), new_shape, np.float32)[layer_idx]
    q = carray(pointer(step[QUERIES]), q_shape, np.float32)
    mixed = carray(pointer(step[MIXED]), q_shape, np.float32)
    factor = f32(carray(pointer(step[FACTORS]), (layer_idx + 1,), np.float64)[layer_idx])
    descriptors = carray(pointer(step[LAYER_DESCRIPTORS]), (layer_idx + 1,), np.int64)
    layer = layer_at(descriptors[layer_idx])
    own_heads = layer[NUM_HEADS]

    piece = take(counters, phase)
    while piece < num_rows:
        turn_heads(step, decoder, weights, piece, 0, 0, heads, q[piece], keys[piece])
        later = num_rows - 1 - piece
        for head in range(heads):
            segment, own = head // own_heads, head % own_heads
            write_newest(layer, segment, own, later, keys[piece, head], values[piece, head])
        done(counters, phase)
        piece = take(counters, phase)
    wait(counters, phase, num_rows)
    phase += 1

    dense, coded, nothing = dense_in(layer), coded_in(layer), np.empty(0, np.float32)
    counts = extents_of(table_at(layer[METADATA]))[COUNT]
    pieces = (num_rows + TOKENS_AT_ONCE - 1) // TOKENS_AT_ONCE * heads
    piece = take(counters, phase)
    while piece < pieces:
        first, head = piece // heads * TOKENS_AT_ONCE, piece % heads
        segment, own = head // own_heads, head % own_heads
        first_q, stop_q = segment * own_heads * group, (segment + 1) * own_heads * group
        for row in range(first, min(first + TOKENS_AT_ONCE, num_rows)):
            attend(
                segment,
                own,
                own + 1,
                own_heads,
                q[row, first_q:stop_q],
                factor,
                nothing,
                counts[segment] - num_rows + row + 1,
                dense,
                coded,
                mixed[row, first_q:stop_q],
                nothing,
            )
        done(counters, phase)
        piece = take(counters, phase)
    wait(counters, phase, pieces)
    return phase + 1


@compiled()
def look_phases(step, decoder, weights, layer_idx, phase):
    """Attend in a layer with hot entries and the best cold ones; return the next phase.

    One phase scores the entries, one chooses, one attends and one settles: heads of a segment share
    a choice.
    """
    counters, heads, dim = step[COUNTERS], decoder[NUM_KV_HEADS], decoder[HEAD_SIZE]
    num_rows, q_heads = step[NUM_ROWS], heads * decoder[GROUP]
    new_shape = (decoder[NUM_LAYERS], num_rows, heads, dim)
    keys = carray(pointer(step[NEW_KEYS]), new_shape, np.float32)[layer_idx]
    values = carray(pointer(step[NEW_VALUES]), new_shape, np.float32)[layer_idx]
    q = carray(pointer(step[QUERIES]), (num_rows, q_heads, dim), np.float32)
    mixed = carray(pointer(step[MIXED]), (num_rows, q_heads, dim), np.float32)
    factor = carray(pointer(step[FACTORS]), (layer_idx + 1,), np.float64)[layer_idx]
    hot = carray(pointer(step[LAYER_DESCRIPTORS]), (layer_idx + 1,), np.int64)[layer_idx]
    own = (step[LOOK], layer_idx, num_rows, heads, hot)
    pieces = num_rows * heads
    for part in range(LOOK_PHASES):
        piece = take(counters, phase)
        while piece < pieces:
            row, head = piece // heads, piece % heads
            if part == 0:
                turn_heads(step, decoder, weights, row, 0, head, head + 1, q[row], keys[row])
                scan(*own, row, head, factor, q[row], keys[row], values[row])
            elif part == 1:
                choose(*own, row, head)
            elif part == 2:
                attend_again(*own, row, head, factor, q[row], mixed[row])
            else:
                settle_looked(*own, row, head)
            done(counters, phase)
            piece = take(counters, phase)
        wait(counters, phase, pieces)
        phase += 1
    return phase


@compiled(nogil=True)
def can_begin(address):
    """Return whether all tables of a step's layers have capacity for its entries."""
    step = carray(pointer(address), (STEP_NUMBERS,), np.int64)
    decoder = carray(pointer(step[DECODER]), (NUM_NUMBERS,), np.int64)
    size = decoder[NUM_LAYERS] * step[NUM_CACHES]
    for descriptor in carray(pointer(step[LAYER_DESCRIPTORS]), (size,), np.int64):
        if not can_append(layer_at(descriptor), step[NUM_TOKENS]):
            return False
    return True


@compiled()
def read_embedding(decoder, token, out):
    """Write the embedding of a token to `out` (d,)."""
    if decoder[EMBEDDING] < 0:
        read_row(-decoder[EMBEDDING], token, out)
        return
    hidden = decoder[HIDDEN]
    out[:] = weights_at(decoder[WEIGHT_DTYPE], decoder[EMBEDDING], token * hidden, hidden)


@compiled(nogil=True)
def begin(address):
    """Begin the entries in all layers unless tokens are computed again, read the embeddings, and
    set the counters to 0."""
    step = carray(pointer(address), (STEP_NUMBERS,), np.int64)
    decoder = carray(pointer(step[DECODER]), (NUM_NUMBERS,), np.int64)
    num_layers, hidden, num_rows = decoder[NUM_LAYERS], decoder[HIDDEN], step[NUM_ROWS]
    size = num_layers * step[NUM_CACHES]
    if step[LOOK] and not numbers_at(step[LOOK])[APPENDS]:
        size = 0
    for descriptor in carray(pointer(step[LAYER_DESCRIPTORS]), (size,), np.int64):
        if step[NUM_TOKENS] > 1:
            begin_entries(layer_at(descriptor), step[NUM_TOKENS])
        else:
            begin_entry(layer_at(descriptor))
    ids = carray(pointer(step[IDS]), (num_rows,), np.int64)
    stream, scale = rows_at(step, STREAM, hidden), constant(step, EMBEDDING_SCALE)
    for token in range(num_rows):
        read_embedding(decoder, ids[token], stream[token])
        for i in range(hidden):
            stream[token, i] *= scale
    if decoder[NORMS_EMBEDDING]:
        norm_rows(step, decoder, decoder[LAST_NORM:], stream, stream)
    num_phases = PHASES_PER_LAYER * num_layers + 1
    carray(pointer(step[COUNTERS]), (num_phases * COUNTER_STRIDE,), np.int64)[:] = 0


@compiled(nogil=True)
def work(address):
    """Walk through all phases of a step that has begun; return when all of it is done."""
    step = carray(pointer(address), (STEP_NUMBERS,), np.int64)
    decoder = carray(pointer(step[DECODER]), (NUM_NUMBERS,), np.int64)
    num_layers, hidden, inner = decoder[NUM_LAYERS], decoder[HIDDEN], decoder[INNER]
    num_rows, threads, counters = step[NUM_ROWS], step[NUM_THREADS], step[COUNTERS]
    kv_size = decoder[NUM_KV_HEADS] * decoder[HEAD_SIZE]
    q_size = kv_size * decoder[GROUP]
    layers = carray(pointer(decoder[LAYERS]), (num_layers, NUM_LAYER_NUMBERS), np.int64)
    q, mixed = rows_at(step, QUERIES, q_size), rows_at(step, MIXED, q_size)
    activated = rows_at(step, ACTIVATED, inner)
    keys = carray(pointer(step[NEW_KEYS]), (num_layers, num_rows, kv_size), np.float32)
    values = carray(pointer(step[NEW_VALUES]), (num_layers, num_rows, kv_size), np.float32)
    limit = constant(step, QKV_LIMIT)
    # of this thread alone
    normed, up = np.empty((num_rows, hidden), np.float32), np.ones((num_rows, inner), np.float32)
    x_rounded = rounded(num_rows, max(hidden, q_size, inner))
    phase = 0
    for layer_idx in range(num_layers):
        weights = layers[layer_idx]

        rows = q_size + 2 * kv_size
        pieces = num_pieces_of(rows, threads)
        piece = take(counters, phase)
        if piece < pieces:
            read_stream(step, decoder, weights[NORM:], normed)
            round_for(weights[Q_WEIGHT:], normed, x_rounded)
        while piece < pieces:
            first, stop = start_of(piece, pieces, rows), start_of(piece + 1, pieces, rows)
            own = q, keys[layer_idx], values[layer_idx]
            project_qkv(decoder, weights, normed, x_rounded, first, stop, *own)
            if limit:
                bound_qkv(limit, first, stop, *own)
            done(counters, phase)
            piece = take(counters, phase)
        wait(counters, phase, pieces)
        phase += 1

        if weights[HEAD_NORM] == ALL_HEADS:
            norm_all_heads(step, decoder, weights, q, keys[layer_idx], phase)
            phase += 1

        if step[LOOK]:
            phase = look_phases(step, decoder, weights, layer_idx, phase)
        elif step[NUM_TOKENS] > 1:
            phase = read_phases(step, decoder, weights, layer_idx, phase)
        else:
            phase = attend_phase(step, decoder, weights, layer_idx, phase)

        if weights[IS_PARALLEL]:  # before attention changes the stream
            activate(step, decoder, weights, normed, up, x_rounded, phase)
            phase += 1
        linear, last_norm = weights[O_WEIGHT:], weights[ATTENDED_NORM:]
        phase = add_projection(step, decoder, linear, last_norm, mixed, x_rounded, phase)
        if not weights[IS_PARALLEL]:
            activate(step, decoder, weights, normed, up, x_rounded, phase)
            phase += 1
        linear, last_norm = weights[DOWN:], weights[LAST_MLP_NORM:]
        phase = add_projection(step, decoder, linear, last_norm, activated, x_rounded, phase)

    if not step[NUM_LOGITS]:
        return
    size, last = decoder[VOCABULARY], normed[: step[NUM_LOGITS]]
    logits = carray(pointer(step[LOGITS]), (step[NUM_LOGITS], size), np.float32)
    pieces = num_pieces_of(size, threads)
    piece = take(counters, phase)
    if piece < pieces:
        read_stream(step, decoder, decoder[LAST_NORM:], last)
        round_for(decoder[HEAD:], last, x_rounded)
    while piece < pieces:
        first, stop = start_of(piece, pieces, size), start_of(piece + 1, pieces, size)
        project(decoder, decoder[HEAD:], last, x_rounded, first, stop, logits)
        done(counters, phase)
        piece = take(counters, phase)
    wait(counters, phase, pieces)
