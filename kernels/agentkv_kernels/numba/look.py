"""Numba: looking back. Which cold entries one token wants, and its attention over the hot ones.

Shapes as in `layout`; T cold entries of a segment, D head size, G query heads per key-value head.
"""

import numpy as np

from agentkv_kernels.layout import COUNT, DTYPE, FLOAT16, FLOAT32, METADATA, NUM_HEADS
from agentkv_kernels.numba.addresses import extents_of, table_at
from agentkv_kernels.numba.append_attend import coded_in, dense_in, layer_at
from agentkv_kernels.numba.arithmetic import FAST, power_of_two, softmax
from agentkv_kernels.numba.attention import LOG2_E, LOWEST, attend, find_logits, runs_of
from agentkv_kernels.numba.compiled import compiled

f32, i32 = np.float32, np.int32


@compiled(fastmath=FAST)
def logits_of(layer, like, segment, head, factor, q, s, tops):
    """Write the binary logits of a head's queries and all entries of a segment to s (G, T), and
    raise `tops` (G,) to the largest."""
    group, dim, num_entries = s.shape[0], q.shape[1], s.shape[1]
    dense, coded = dense_in(layer, like), coded_in(layer)
    query, runs = np.empty((group, dim), f32), np.empty((num_entries, 3), i32)
    for j in range(group):
        for i in range(dim):
            query[j, i] = q[head * group + j, i] * f32(factor)
    num_coded, num_runs = runs_of(coded, segment, num_entries, runs)
    heads = layer[NUM_HEADS]
    find_logits(query, dense, coded, segment, head, heads, runs[:num_runs], num_coded, s, tops)


@compiled()
def find_logits_of(layer, segment, head, factor, q, s, tops):
    """Call `logits_of` for the dtype of a layer."""
    if layer[DTYPE] == FLOAT32:
        logits_of(layer, np.empty(1, np.float32), segment, head, factor, q, s, tops)
    elif layer[DTYPE] == FLOAT16:
        logits_of(layer, np.empty(1, np.int16), segment, head, factor, q, s, tops)
    else:
        logits_of(layer, np.empty(1, np.uint16), segment, head, factor, q, s, tops)


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


@compiled(fastmath=FAST)
def raise_to_shares_of_head(layer, segment, head, factor, q, others, hidden, shares):
    """Do the work of `raise_to_largest_shares` for the queries of one head."""
    group, count = q.shape[0] // layer[NUM_HEADS], shares.shape[0]
    s, tops = np.empty((group, count), f32), np.empty(group, f32)
    for j in range(group):
        tops[j] = others[head * group + j] * LOG2_E
    find_logits_of(layer, segment, head, factor, q, s, tops)
    for j in range(group):
        for i in range(hidden.shape[0]):
            s[j, hidden[i]] = LOWEST
        raise_to_shares(s, j, others[head * group + j], tops[j], shares)


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
        raise_to_shares_of_head(layer, segment, head, factor, q, others, hidden, shares)


@compiled(nogil=True)
def best_blocks(positions, scores, hidden, oldest, num_blocks, block):
    """Return the numbers of the entries in the best blocks; see `look.best_blocks`.

    Args:
        positions: (T,) int32.
        scores: (T,) float32, none below 0.
        hidden: numbers of entries, int64.
    """
    num_entries = positions.shape[0]
    is_free, last = np.empty(num_entries, np.bool_), i32(0)
    for t in range(num_entries):
        is_free[t] = positions[t] >= oldest
        last = max(last, positions[t])
    for i in range(hidden.shape[0]):
        is_free[hidden[i]] = False
    best = np.full(last // block + 1, f32(-1.0))
    for t in range(num_entries):
        if is_free[t]:
            best[positions[t] // block] = max(best[positions[t] // block], scores[t])
    is_chosen = np.zeros(best.shape[0], np.bool_)
    order, num_chosen = np.argsort(-best, kind="mergesort"), 0
    while num_chosen < min(num_blocks, order.shape[0]) and best[order[num_chosen]] >= f32(0.0):
        is_chosen[order[num_chosen]] = True
        num_chosen += 1
    found, count = np.empty(num_chosen * block, np.int64), 0
    for t in range(num_entries):
        if is_free[t] and is_chosen[positions[t] // block]:
            found[count] = t
            count += 1
    found = found[:count]
    return found[np.argsort(positions[found], kind="mergesort")]


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
    if layer[DTYPE] == FLOAT32:
        attend(*own, dense_in(layer, np.empty(1, np.float32)), coded, output, nothing)
    elif layer[DTYPE] == FLOAT16:
        attend(*own, dense_in(layer, np.empty(1, np.int16)), coded, output, nothing)
    else:
        attend(*own, dense_in(layer, np.empty(1, np.uint16)), coded, output, nothing)
