"""Numba: what a layer does for a token that looks back, head by head.

`scan` scores the cold entries, `choose` takes the best blocks, `attend_again` attends to them and
to the hot ones, and `settle_looked` makes them hot. Each is called for every head, and for all
heads before the next one.

Shapes as in `decoder`: H key-value heads of a sequence, of which a segment has W; G query heads of
each; D head size; T cold entries of a segment and N blocks.
"""

import numpy as np
from numba import carray

from agentkv_kernels.decoder import (
    BLOCK_SIZE,
    COLD_TIERS,
    DIGESTS,
    FETCHED,
    HOT_LOGITS,
    LEAST_SHARE,
    LOANS,
    LOOK_NUMBERS,
    MOST_COLD,
    MOST_HELD,
    MOST_HOT,
    MOST_PICKED,
    NUM_BLOCKS,
    NUM_RULES,
    OLDEST,
    OUTCOMES,
    PICK_COUNTS,
    PICKED_POSITIONS,
    PICKS,
    RULES,
    SEGMENTS,
    SHARES,
)
from agentkv_kernels.layout import (
    COUNT,
    DIGEST_BLOCK,
    DIGEST_EXPONENT,
    DIGEST_HIGH,
    DIGEST_LOW,
    HEAD_DIM,
    KEYS,
    METADATA,
    NUM_HEADS,
    POSITION,
    VALUES,
)
from agentkv_kernels.numba.addresses import extents_of, flat_entries, pointer, table_at
from agentkv_kernels.numba.append_attend import coded_in, dense_in, layer_at, write_newest
from agentkv_kernels.numba.arithmetic import FAST, logits, mix, power_of_two, scaled, softmax
from agentkv_kernels.numba.attention import (
    LOG2_E,
    LOWEST,
    attend,
    first_entry,
    mix_coded,
    mix_dense,
    runs_of,
)
from agentkv_kernels.numba.compiled import compiled
from agentkv_kernels.numba.look import (
    any_above,
    best_blocks,
    find_logits_of,
    raise_to_shares,
    raise_to_shares_of_head,
)
from agentkv_kernels.numba.read import read_rows
from agentkv_kernels.numba.settle import lent_in, num_lent_in, settle

f32, i32 = np.float32, np.int32


@compiled()
def numbers_at(look):
    """Return the numbers of a look."""
    return carray(pointer(look), (LOOK_NUMBERS,), np.int64)


@compiled()
def least_share(numbers):
    """Return the share that a block must draw to be fetched, float32."""
    return i32(numbers[LEAST_SHARE]).view(np.float32)


@compiled()
def segment_of(numbers, layer_idx, num_rows, layer, row, head):
    """Return the segment of a head."""
    at = layer_idx * num_rows + row
    return carray(pointer(numbers[SEGMENTS]), (at + 1,), np.int64)[at] + head // layer[NUM_HEADS]


@compiled()
def lent_entries(numbers, layer_idx, segment):
    """Return the numbers of a segment's lent entries in the cold tier, which are hidden."""
    loans = carray(pointer(numbers[LOANS]), (layer_idx + 1,), np.int64)[layer_idx]
    return lent_in(loans, segment)[1][: num_lent_in(loans, segment)[segment]]


@compiled()
def hot_logits_of(numbers, at, group, count):
    """Return the work space for the logits of a head's queries and hot entries, (G, count).

    Args:
        at: number of the head among those of all sequences.
    """
    address = numbers[HOT_LOGITS] + 4 * at * group * numbers[MOST_HOT]
    return carray(pointer(address), (group, count), np.float32)


@compiled()
def fetched_by(numbers, at, heads, dim):
    """Return the work space for the keys and values that some heads fetch, (heads, 2, most, D).

    Args:
        at: number of the first one among those of all sequences.
    """
    most = numbers[MOST_PICKED]
    address = numbers[FETCHED] + 8 * at * most * dim
    return carray(pointer(address), (heads, 2, most, dim), np.float32)


@compiled()
def shares_of(numbers, num_rows, heads):
    """Return the work space for shares, (B, H, most)."""
    return carray(pointer(numbers[SHARES]), (num_rows, heads, numbers[MOST_COLD]), np.float32)


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
    write_newest(hot, segment, own, 0, keys[head], values[head])
    cold_address = carray(pointer(numbers[COLD_TIERS]), (layer_idx + 1,), np.int64)[layer_idx]
    if not cold_address:
        return
    cold = layer_at(cold_address)
    digests = carray(pointer(numbers[DIGESTS]), (layer_idx + 1,), np.int64)[layer_idx]
    queries = q[first * group : (first + hot[NUM_HEADS]) * group]
    others, tops = np.empty(queries.shape[0], f32), np.empty(group, f32)
    count = extents_of(table_at(hot[METADATA]))[COUNT, segment]
    logits = hot_logits_of(numbers, row * heads + head, group, count)
    tops[:] = LOWEST
    find_logits_of(hot, segment, own, factor, queries, logits, tops)
    for j in range(group):
        others[own * group + j] = tops[j] / LOG2_E + np.log(sum_of_powers(logits, j, tops[j]))
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
        hidden, least = lent_entries(numbers, layer_idx, segment), least_share(numbers)
        raise_to_shares_of_head(cold, segment, own, factor, queries, others, hidden, least, shares)


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


@compiled(fastmath=FAST)
def sum_of_powers(s, j, top):
    """Return the sum of 2 ** (s[j] - top)."""
    total = f32(0.0)
    for t in range(s.shape[1]):
        total += power_of_two(s[j, t] - top)
    return total


@compiled()
def choose(look, layer_idx, num_rows, heads, address, row, head):
    """Choose the entries that a segment fetches; only for the segment's first head. The arguments
    are those of `scan`."""
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
    shape = (at * heads + head + 1, numbers[MOST_PICKED])
    counts = carray(pointer(numbers[PICK_COUNTS]), (shape[0],), np.int64)
    counts[at * heads + head] = 0
    least = least_share(numbers)
    if not any_above(scores, scores.shape[0], least):
        return
    found = best_blocks(
        positions,
        scores,
        lent_entries(numbers, layer_idx, segment),
        carray(pointer(numbers[OLDEST]), (at + 1,), np.int64)[at],
        numbers[NUM_BLOCKS],
        numbers[BLOCK_SIZE],
        least,
    )
    picks = carray(pointer(numbers[PICKS]), shape, np.int64)[at * heads + head]
    places = carray(pointer(numbers[PICKED_POSITIONS]), shape, np.int64)[at * heads + head]
    counts[at * heads + head] = found.shape[0]
    for k in range(found.shape[0]):
        picks[k], places[k] = found[k], positions[found[k]]


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


@compiled(fastmath=FAST)
def attend_again(look, layer_idx, num_rows, heads, address, row, head, factor, q, output):
    """Read the keys and values that a head fetches, and attend to them and to the hot entries.

    Args:
        output: (H * G, D) float32, of the sequence.

    The others are those of `scan`.
    """
    numbers, hot = numbers_at(look), layer_at(address)
    segment = segment_of(numbers, layer_idx, num_rows, hot, row, head)
    own, group, dim = head % hot[NUM_HEADS], q.shape[0] // heads, q.shape[1]
    dense, coded = dense_in(hot), coded_in(hot)
    cold_address = carray(pointer(numbers[COLD_TIERS]), (layer_idx + 1,), np.int64)[layer_idx]
    if not cold_address:
        first = (head - own) * group
        few = slice(first, first + hot[NUM_HEADS] * group)
        count = extents_of(table_at(hot[METADATA]))[COUNT, segment]
        nothing = np.empty(0, np.float32)
        unit = (segment, own, own + 1, hot[NUM_HEADS], q[few], f32(factor), nothing, count)
        attend(*unit, dense, coded, output[few], nothing)
        return
    picks = picks_of(numbers, (layer_idx * num_rows + row) * heads + head - own)[0]
    fetched = fetched_by(numbers, row * heads + head, 1, dim)[0]
    keys, values = fetched[KEYS], fetched[VALUES]
    for field, x in ((KEYS, keys), (VALUES, values)):
        read_rows(layer_at(cold_address), field, segment, own, picks, x)

    num_hot = extents_of(table_at(hot[METADATA]))[COUNT, segment]
    count = num_hot + picks.shape[0]
    known = hot_logits_of(numbers, row * heads + head, group, num_hot)
    s, query, tops = (
        np.empty((group, count), f32),
        np.empty((group, dim), f32),
        np.empty(group, f32),
    )
    out = np.zeros((group, dim), f32)
    for j in range(group):
        tops[j] = LOWEST
        for t in range(num_hot):
            s[j, t] = known[j, t]
            tops[j] = max(tops[j], known[j, t])
        for i in range(dim):
            query[j, i] = q[head * group + j, i] * f32(factor)
    logits(query, keys, 0, s, num_hot, count, tops)
    for j in range(group):
        share = f32(1.0) / softmax(s, j, count, tops[j])
        for t in range(count):
            s[j, t] *= share
    runs = np.empty((num_hot, 3), i32)
    num_coded, num_runs = runs_of(coded, segment, num_hot, runs)
    if num_coded:
        mix_coded(s, coded, segment, own, hot[NUM_HEADS], runs[:num_coded], out)
    first = first_entry(dense.extents, segment, own, hot[NUM_HEADS])
    first_dense = np.int64(coded.extents[COUNT, segment])
    mix_dense(s, first_dense, num_hot, dense, first, out)
    mix(s, num_hot, count, values, 0, out)
    output[head * group : (head + 1) * group] = out


@compiled()
def picks_of(numbers, at):
    """Return the numbers of the entries that a segment fetches, and their positions, (n,) int64.

    Args:
        at: number of the segment's first head among those of all sequences and layers.
    """
    shape = (at + 1, numbers[MOST_PICKED])
    count = carray(pointer(numbers[PICK_COUNTS]), (at + 1,), np.int64)[at]
    picks = carray(pointer(numbers[PICKS]), shape, np.int64)[at, :count]
    return picks, carray(pointer(numbers[PICKED_POSITIONS]), shape, np.int64)[at, :count]


@compiled()
def settle_looked(look, layer_idx, num_rows, heads, address, row, head):
    """Settle the segment whose first head this is, if it has a rule. The arguments are those of
    `scan`."""
    numbers, hot = numbers_at(look), layer_at(address)
    cold_address = carray(pointer(numbers[COLD_TIERS]), (layer_idx + 1,), np.int64)[layer_idx]
    at = layer_idx * num_rows + row
    rule = carray(pointer(numbers[RULES]), (at + 1, NUM_RULES), np.int64)[at]
    if not cold_address or head % hot[NUM_HEADS] or rule[MOST_HELD] < 0:
        return
    picks, places = picks_of(numbers, at * heads + head)
    fetched = fetched_by(numbers, row * heads + head, hot[NUM_HEADS], hot[HEAD_DIM])
    loans = carray(pointer(numbers[LOANS]), (layer_idx + 1,), np.int64)[layer_idx]
    segment = segment_of(numbers, layer_idx, num_rows, hot, row, head)
    outcomes = carray(pointer(numbers[OUTCOMES]), (at + 1,), np.int64)
    own = (layer_at(cold_address), loans, segment, rule, picks, places, fetched)
    outcomes[at] = settle(hot, *own)
