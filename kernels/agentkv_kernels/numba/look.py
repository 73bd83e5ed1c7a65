"""Numba: looking back. Which cold entries one token wants, and its attention over the hot ones.

Shapes as in `layout`; T cold entries of a segment, D head size, G query heads per key-value head.
"""

import numpy as np

from agentkv_kernels.layout import (
    CODES,
    COUNT,
    DENSE,
    FORMAT,
    INT8,
    METADATA,
    NUM_HEADS,
)
from agentkv_kernels.numba.addresses import extents_of, table_at
from agentkv_kernels.numba.append_attend import coded_in, dense_in, layer_at
from agentkv_kernels.numba.arithmetic import FAST, power_of_two, softmax
from agentkv_kernels.numba.attention import LOG2_E, LOWEST, attend, find_logits, runs_of
from agentkv_kernels.numba.compiled import compiled
from agentkv_kernels.numba.scan import CHUNK, code_logits

f32, i32 = np.float32, np.int32


@compiled(fastmath=FAST)
def find_logits_of(layer, segment, head, factor, q, s, tops):
    """Write the binary logits of a head's queries and all entries of a segment to s (G, T), and
    raise `tops` (G,) to the largest."""
    group, dim, num_entries = s.shape[0], q.shape[1], s.shape[1]
    dense, coded = dense_in(layer), coded_in(layer)
    query, runs = np.empty((group, dim), f32), np.empty((num_entries, 3), i32)
    for j in range(group):
        for i in range(dim):
            query[j, i] = q[head * group + j, i] * f32(factor)
    num_coded, num_runs = runs_of(coded, segment, num_entries, runs)
    heads = layer[NUM_HEADS]
    find_logits(query, dense, coded, segment, head, heads, runs[:num_runs], num_coded, s, tops)


@compiled(fastmath=FAST)
def log_sums_of_head(layer, segment, head, factor, q, sinks, sums):
    """Do the work of `log_sums` for the queries of one head."""
    heads, count = layer[NUM_HEADS], extents_of(table_at(layer[METADATA]))[COUNT, segment]
    group = q.shape[0] // heads
    s, tops = np.empty((group, count), f32), np.empty(group, f32)
    for j in range(group):
        tops[j] = LOWEST
        if sinks.shape[0]:
            tops[j] = sinks[head * group + j] * LOG2_E
    find_logits_of(layer, segment, head, factor, q, s, tops)
    for j in range(group):
        total = softmax(s, j, count, tops[j])
        if sinks.shape[0]:
            total += power_of_two(f32(sinks[head * group + j] * LOG2_E - tops[j]))
        sums[head * group + j] = tops[j] / LOG2_E + np.log(total)


@compiled(nogil=True)
def log_sums(address, segment, factor, q, sinks, sums):
    """Write the logarithm of the sum of exp(logit) over all entries of a segment, and the sink.

    Args:
        address: address of the numbers of a `LayerDescriptor`.
        factor: float64, scale * log2(e).
        q: (W * G, D) float32.
        sinks: (W * G,) float32; (0,) for none.
        sums: (W * G,) float32; mutated.
    """
    layer = layer_at(address)
    for head in range(layer[NUM_HEADS]):
        log_sums_of_head(layer, segment, head, factor, q, sinks, sums)


@compiled()
def is_whole_in_int8(layer, segment, dim):
    """Return whether `scan.code_logits` can serve all entries of a segment."""
    is_int8 = layer[FORMAT] == INT8 and layer[CODES] != 0 and dim % CHUNK == 0
    return is_int8 and extents_of(table_at(layer[DENSE]))[COUNT, segment] == 0


@compiled(fastmath=FAST)
def raise_to_shares_of_head(layer, segment, head, factor, q, others, hidden, least, shares):
    """Do the work of `raise_to_largest_shares` for the queries of one head.

    A query whose shares are all below `least` need not raise any.
    """
    group, count = q.shape[0] // layer[NUM_HEADS], shares.shape[0]
    s, tops = np.empty((group, count), f32), np.empty(group, f32)
    for j in range(group):
        tops[j] = others[head * group + j] * LOG2_E
    if is_whole_in_int8(layer, segment, q.shape[1]):
        query, runs = np.empty((group, q.shape[1]), f32), np.empty((count, 3), i32)
        for j in range(group):
            for i in range(q.shape[1]):
                query[j, i] = q[head * group + j, i] * f32(factor)
        coded = coded_in(layer)
        num_runs = runs_of(coded, segment, count, runs)[1]
        code_logits(query, coded, segment, head, layer[NUM_HEADS], runs[:num_runs], s, tops)
    else:
        find_logits_of(layer, segment, head, factor, q, s, tops)
    for j in range(group):
        other = others[head * group + j]
        for i in range(hidden.shape[0]):
            s[j, hidden[i]] = LOWEST
        # the other entries alone leave the share of a lower logit below `least`
        lowest = other * LOG2_E + np.log2(least) if least > f32(0.0) else LOWEST
        if any_above(s[j], count, lowest):
            raise_to_shares(s, j, other, max(tops[j], other * LOG2_E), shares)


@compiled()
def any_above(x, count, lowest):
    """Return whether one of the first `count` numbers is at least `lowest`."""
    found = i32(0)
    for t in range(count):
        found += i32(x[t] >= lowest)  # unlike the largest, a sum of whole numbers is vectorized
    return found > 0


@compiled(fastmath=FAST)
def raise_to_shares(s, j, other, top, shares):
    """Raise `shares` (T,) to the shares of binary logits s[j], which are lost.

    Args:
        other: as in `raise_to_largest_shares`, of this query.
        top: the largest of all binary logits.
    """
    count = shares.shape[0]
    total = softmax(s, j, count, top)
    total += power_of_two(f32(other * LOG2_E - top))
    share = f32(1.0) / total
    for t in range(count):
        shares[t] = max(shares[t], s[j, t] * share)


@compiled(nogil=True)
def raise_to_largest_shares(address, segment, factor, q, others, hidden, shares):
    """Raise `shares` to the largest share of attention that a query head gives each entry.

    Args:
        address, factor, q: as in `log_sums`.
        others: (W * G,) float32, the logarithm of the sum of exp(logit) over all other entries.
        hidden: numbers of entries that are not attended to, int64.
        shares: (T,) float32; mutated.
    """
    layer = layer_at(address)
    for head in range(layer[NUM_HEADS]):
        own = factor, q, others, hidden, f32(0.0), shares
        raise_to_shares_of_head(layer, segment, head, *own)


@compiled(nogil=True)
def best_blocks(positions, scores, hidden, oldest, num_blocks, block, least):
    """Return the numbers of the entries in the best blocks; see `look.best_blocks`.

    Args:
        positions: (T,) int32.
        scores: (T,) float32, none below 0.
        hidden: numbers of entries, int64.
        least: float32, at least 0.
    """
    num_entries = positions.shape[0]
    is_hidden, last = np.zeros(num_entries, np.bool_), i32(0)
    for i in range(hidden.shape[0]):
        is_hidden[hidden[i]] = True
    for t in range(num_entries):
        last = max(last, positions[t])
    best, owners = np.full(last // block + 1, f32(-1.0)), np.empty(num_entries, np.int32)
    own, first, size = np.int64(0), i32(0), i32(min(block, last + 1))
    for t in range(num_entries):
        if not 0 <= positions[t] - first < size:  # dividing takes long, and neighbors share a block
            own = positions[t] // block
            first = i32(own * block)
        owners[t] = own
        if positions[t] >= oldest and not is_hidden[t]:
            best[own] = max(best[own], scores[t])
    # the best ones in order; of equal ones the first stays before the others
    order, num_chosen = np.empty(min(num_blocks, best.shape[0]) + 1, np.int64), 0
    is_chosen = np.zeros(best.shape[0], np.bool_)
    for own in range(best.shape[0]):
        is_full = num_chosen == order.shape[0] - 1
        if best[own] < least or (is_full and best[own] <= best[order[num_chosen - 1]]):
            continue
        at = num_chosen
        while at and best[order[at - 1]] < best[own]:
            order[at] = order[at - 1]
            at -= 1
        order[at] = own
        num_chosen += not is_full
    for i in range(num_chosen):
        is_chosen[order[i]] = True
    found, count = np.empty(min(num_chosen * block, num_entries), np.int64), 0
    is_sorted = True
    for t in range(num_entries):
        if is_chosen[owners[t]] and positions[t] >= oldest and not is_hidden[t]:
            is_sorted &= count == 0 or positions[found[count - 1]] < positions[t]
            found[count] = t
            count += 1
    found = found[:count]
    return found if is_sorted else found[np.argsort(positions[found], kind="mergesort")]


@compiled(nogil=True)
def attend_hot(address, segment, factor, q, sinks, output):
    """Attend with one token over all entries of a segment, its own included; write `output`.

    Args:
        address: address of the numbers of a `LayerDescriptor`.
        factor: float64, scale * log2(e).
        q, output: (W * G, D) float32.
        sinks: (W * G,) float32; (0,) for none.
    """
    layer = layer_at(address)
    count = extents_of(table_at(layer[METADATA]))[COUNT, segment]
    heads, nothing = layer[NUM_HEADS], np.empty(0, np.float32)
    own = (segment, 0, heads, heads, q, f32(factor), sinks, count)
    coded = coded_in(layer)
    attend(*own, dense_in(layer), coded, output, nothing)
