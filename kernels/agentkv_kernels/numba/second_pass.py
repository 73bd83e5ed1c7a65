"""Numba: what a layer does for a token that looks back, head by head.

`scan` scores the cold entries, `choose` takes the best blocks, and `attend_again` attends to them
and to the hot ones. Each is called for every head, and for all heads before the next one.

Shapes as in `decoder`: H key-value heads of a sequence, of which a segment has W; G query heads of
each; D head size; T cold entries of a segment and N blocks.
"""

import numpy as np
from numba import carray

from agentkv_kernels.decoder import (
    BLOCK_SIZE,
    COLD_TIERS,
    DIGESTS,
    LENT,
    LENT_STARTS,
    LOOK_NUMBERS,
    MOST_COLD,
    MOST_PICKED,
    NUM_BLOCKS,
    OLDEST,
    PICK_COUNTS,
    PICKED_POSITIONS,
    PICKS,
    SEGMENTS,
    SHARES,
)
from agentkv_kernels.layout import (
    COUNT,
    DENSE,
    DIGEST_BLOCK,
    DIGEST_EXPONENT,
    DIGEST_HIGH,
    DIGEST_LOW,
    DTYPE,
    FLOAT16,
    FLOAT32,
    HEAD_DIM,
    KEYS,
    METADATA,
    NUM_FIELDS,
    NUM_HEADS,
    POSITION,
    SIZE,
    VALUES,
)
from agentkv_kernels.layout import HEADS as FIELD_HEADS
from agentkv_kernels.numba.addresses import (
    entry_address,
    extents_of,
    field_of,
    flat_entries,
    move,
    pointer,
    table_at,
)
from agentkv_kernels.numba.append_attend import (
    coded_in,
    dense_in,
    layer_at,
    write_entry,
    write_last,
)
from agentkv_kernels.numba.arithmetic import FAST, scaled
from agentkv_kernels.numba.attention import LOG2_E, attend, first_entry
from agentkv_kernels.numba.compiled import compiled
from agentkv_kernels.numba.look import (
    best_blocks,
    log_sums_of_head,
    raise_to_shares,
    raise_to_shares_of_head,
)
from agentkv_kernels.numba.read import read_rows

f32, i32 = np.float32, np.int32


@compiled()
def numbers_at(look):
    """Return the numbers of a look."""
    return carray(pointer(look), (LOOK_NUMBERS,), np.int64)


@compiled()
def segment_of(numbers, layer_idx, num_rows, layer, row, head):
    """Return the segment of a head."""
    at = layer_idx * num_rows + row
    return carray(pointer(numbers[SEGMENTS]), (at + 1,), np.int64)[at] + head // layer[NUM_HEADS]


@compiled()
def lent_entries(numbers, at):
    """Return the hidden entries of the segment whose first head is number `at` of all."""
    starts = carray(pointer(numbers[LENT_STARTS]), (at + 2,), np.int64)
    return carray(pointer(numbers[LENT]), (starts[at + 1],), np.int64)[starts[at] :]


@compiled()
def shares_of(numbers, num_rows, heads):
    """Return the work space for shares, (B, H, most)."""
    return carray(pointer(numbers[SHARES]), (num_rows, heads, numbers[MOST_COLD]), np.float32)


@compiled()
def write_newest(layer, like, segment, head, key, value):
    """Overwrite the newest entry of a head by float32 numbers (D,)."""
    dense = table_at(layer[DENSE])
    write_last(dense, KEYS, segment, head, key, like)
    write_last(dense, VALUES, segment, head, value, like)


@compiled()
def scan(look, layer_idx, num_rows, heads, address, row, head, factor, q, keys, values):
    """Write the newest entry of a head again, and the shares of attention that its queries would
    give the cold entries, or their blocks.

    Args:
        look: address of the numbers of the look.
        heads: H.
        address: of the layer's hot descriptor.
        factor: float64, scale * log2(e).
        q, keys, values: (H * G, D), (H, D) and (H, D) float32, of the sequence, rotated.
    """
    numbers, hot = numbers_at(look), layer_at(address)
    segment = segment_of(numbers, layer_idx, num_rows, hot, row, head)
    own = head % hot[NUM_HEADS]
    first, group = head - own, q.shape[0] // heads
    if hot[DTYPE] == FLOAT32:
        write_newest(hot, np.empty(1, np.float32), segment, own, keys[head], values[head])
    elif hot[DTYPE] == FLOAT16:
        write_newest(hot, np.empty(1, np.int16), segment, own, keys[head], values[head])
    else:
        write_newest(hot, np.empty(1, np.uint16), segment, own, keys[head], values[head])
    cold_address = carray(pointer(numbers[COLD_TIERS]), (layer_idx + 1,), np.int64)[layer_idx]
    if not cold_address:
        return
    cold = layer_at(cold_address)
    digests = carray(pointer(numbers[DIGESTS]), (layer_idx + 1,), np.int64)[layer_idx]
    queries = q[first * group : (first + hot[NUM_HEADS]) * group]
    others = np.empty(queries.shape[0], f32)
    log_sums_of_head(hot, segment, own, factor, queries, np.empty(0, np.float32), others)
    shares = shares_of(numbers, num_rows, heads)[row, head]
    if digests:
        table = table_at(digests)
        shares = shares[: extents_of(table)[COUNT, segment]]
        shares[:] = f32(0.0)
        raise_to_shares_of_blocks(
            table, segment, own, hot[NUM_HEADS], factor, queries, others, shares
        )
    else:
        shares = shares[: extents_of(table_at(cold[METADATA]))[COUNT, segment]]
        shares[:] = f32(0.0)
        hidden = lent_entries(numbers, (layer_idx * num_rows + row) * heads + first)
        raise_to_shares_of_head(cold, segment, own, factor, queries, others, hidden, shares)


@compiled(fastmath=FAST)
def raise_to_shares_of_blocks(table, segment, head, heads, factor, q, others, shares):
    """Raise `shares` (N,) to the shares that blocks would have if each had one entry, whose logit
    is the block's upper bound; see `digests`.

    Args:
        table: of the digests.
        factor: float64, scale * log2(e).
        q: (W * G, D) float32.
        others: as in `look.raise_to_largest_shares`.
    """
    group, dim, count = q.shape[0] // heads, q.shape[1], shares.shape[0]
    low = flat_entries(table, DIGEST_LOW, dim, np.int8)
    high = flat_entries(table, DIGEST_HIGH, dim, np.int8)
    exponents = flat_entries(table, DIGEST_EXPONENT, 1, np.int8)
    first = first_entry(extents_of(table), segment, head, heads)
    bounds, ones, power = np.empty((1, count), f32), np.ones((1, 1), f32), np.empty((1, 1), f32)
    most, least = np.empty(dim, f32), np.empty(dim, f32)
    for j in range(head * group, (head + 1) * group):
        for i in range(dim):
            x = q[j, i] * f32(factor)
            most[i], least[i] = max(x, f32(0.0)), min(x, f32(0.0))
        top = others[j] * LOG2_E
        for n in range(count):
            total = f32(0.0)
            for i in range(dim):
                total += most[i] * f32(high[first + n, i]) + least[i] * f32(low[first + n, i])
            scaled(ones, 0, exponents, first + n, power)
            bounds[0, n] = total * power[0, 0]
            top = max(top, bounds[0, n])
        raise_to_shares(bounds, 0, others[j], top, shares)


@compiled()
def choose(look, layer_idx, num_rows, heads, address, row, head):
    """Choose the entries that a segment fetches, and count them among the hot ones; only for the
    segment's first head. The arguments are those of `scan`."""
    numbers, hot = numbers_at(look), layer_at(address)
    cold_address = carray(pointer(numbers[COLD_TIERS]), (layer_idx + 1,), np.int64)[layer_idx]
    if not cold_address or head % hot[NUM_HEADS]:
        return
    cold, at = layer_at(cold_address), layer_idx * num_rows + row
    segment = segment_of(numbers, layer_idx, num_rows, hot, row, head)
    metadata = table_at(cold[METADATA])
    extents = extents_of(metadata)
    start = first_entry(extents, segment, 0, 1)
    positions = flat_entries(metadata, POSITION, 1, np.int32).reshape(-1)
    positions = positions[start : start + extents[COUNT, segment]]
    shares = shares_of(numbers, num_rows, heads)[row, head : head + hot[NUM_HEADS]]
    digests = carray(pointer(numbers[DIGESTS]), (layer_idx + 1,), np.int64)[layer_idx]
    if digests:
        scores = shares_by_entry(table_at(digests), segment, positions, numbers[BLOCK_SIZE], shares)
    else:
        scores = shares[0, : positions.shape[0]]
        for i in range(1, shares.shape[0]):
            for t in range(positions.shape[0]):
                scores[t] = max(scores[t], shares[i, t])
    found = best_blocks(
        positions,
        scores,
        lent_entries(numbers, at * heads + head),
        carray(pointer(numbers[OLDEST]), (at + 1,), np.int64)[at],
        numbers[NUM_BLOCKS],
        numbers[BLOCK_SIZE],
    )
    shape = (at * heads + head + 1, numbers[MOST_PICKED])
    picks = carray(pointer(numbers[PICKS]), shape, np.int64)[at * heads + head]
    places = carray(pointer(numbers[PICKED_POSITIONS]), shape, np.int64)[at * heads + head]
    counts = carray(pointer(numbers[PICK_COUNTS]), (shape[0],), np.int64)
    counts[at * heads + head] = found.shape[0]
    hot_metadata = table_at(hot[METADATA])
    count = extents_of(hot_metadata)[COUNT, segment]
    for k in range(found.shape[0]):
        picks[k], places[k] = found[k], positions[found[k]]
        for field in range(metadata[NUM_FIELDS]):
            size = field_of(metadata, field, SIZE)
            for each in range(field_of(metadata, field, FIELD_HEADS) if size else 0):
                target = entry_address(hot_metadata, field, segment, each, count + k)
                move(target, entry_address(metadata, field, segment, each, found[k]), size)
    extents_of(hot_metadata)[COUNT, segment] += found.shape[0]
    extents_of(table_at(hot[DENSE]))[COUNT, segment] += found.shape[0]


@compiled()
def shares_by_entry(table, segment, positions, block, shares):
    """Return the largest share (T,) of each entry's block, given those of blocks (W, N)."""
    extents = extents_of(table)
    first, count = first_entry(extents, segment, 0, 1), extents[COUNT, segment]
    blocks = flat_entries(table, DIGEST_BLOCK, 1, np.int32)
    last = i32(0)
    for n in range(count):
        last = max(last, blocks[first + n, 0])
    best = np.zeros(last + 1, f32)
    for i in range(shares.shape[0]):
        for n in range(count):
            number = blocks[first + n, 0]
            best[number] = max(best[number], shares[i, n])
    scores = np.empty(positions.shape[0], f32)
    for t in range(positions.shape[0]):
        scores[t] = best[positions[t] // block]
    return scores


@compiled()
def attend_again(look, layer_idx, num_rows, heads, address, row, head, factor, q, output):
    """Write the keys and values that a head has fetched, and attend with all its hot entries.

    Args:
        output: (H * G, D) float32, of the sequence.

    The others are those of `scan`.
    """
    hot = layer_at(address)
    own = (look, layer_idx, num_rows, heads, hot, row, head, factor, q, output)
    if hot[DTYPE] == FLOAT32:
        attend_to_fetched(np.empty(1, np.float32), *own)
    elif hot[DTYPE] == FLOAT16:
        attend_to_fetched(np.empty(1, np.int16), *own)
    else:
        attend_to_fetched(np.empty(1, np.uint16), *own)


@compiled()
def attend_to_fetched(like, look, layer_idx, num_rows, heads, hot, row, head, factor, q, output):
    """Do the work of `attend_again` for hot entries of the dtype of `like`."""
    numbers = numbers_at(look)
    segment = segment_of(numbers, layer_idx, num_rows, hot, row, head)
    own = head % hot[NUM_HEADS]
    first, group = head - own, q.shape[0] // heads
    cold_address = carray(pointer(numbers[COLD_TIERS]), (layer_idx + 1,), np.int64)[layer_idx]
    at = (layer_idx * num_rows + row) * heads + first
    if cold_address:
        shape = (at + 1, numbers[MOST_PICKED])
        count = carray(pointer(numbers[PICK_COUNTS]), (at + 1,), np.int64)[at]
        picks = carray(pointer(numbers[PICKS]), shape, np.int64)[at, :count]
        cold = layer_at(cold_address)
        for field in (KEYS, VALUES):
            fetch(cold, hot, like, field, segment, own, picks)
    few = slice(first * group, (first + hot[NUM_HEADS]) * group)
    attend(
        segment,
        own,
        own + 1,
        hot[NUM_HEADS],
        q[few],
        f32(factor),
        np.empty(0, np.float32),
        extents_of(table_at(hot[METADATA]))[COUNT, segment],
        dense_in(hot, like),
        coded_in(hot),
        output[few],
        np.empty(0, np.float32),
    )


@compiled()
def fetch(cold, hot, like, field, segment, head, picks):
    """Write the keys or values of some cold entries of a head to the last hot ones.

    Args:
        cold, hot: numbers of layer descriptors.
        like: array of the type that stands for the dtype of dense entries.
        field: `KEYS` or `VALUES`.
        picks: (n,) int64.
    """
    x, target = np.empty((picks.shape[0], hot[HEAD_DIM]), f32), table_at(hot[DENSE])
    read_rows(cold, like, field, segment, head, picks, x)
    end = extents_of(target)[COUNT, segment] - picks.shape[0]
    for k in range(picks.shape[0]):
        write_entry(target, field, segment, head, end + k, x[k], like)
