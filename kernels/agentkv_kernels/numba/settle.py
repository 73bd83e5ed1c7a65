"""Numba: a segment settled after a look, in place: fetched entries become hot, the oldest hot ones
turn cold, and old dense ones are quantized.

It does what promoting, evicting and quantizing do one after another in `agentkv.cache`, for
segments that evict by age, whose cold tier is in int8.

Shapes as in `layout`; n entries, D head size.
"""

import numpy as np
from numba import carray

from agentkv_kernels.decoder import (
    COLD_BOUND,
    FIRST_TO_GO,
    HAS_EVICTED,
    IS_LOOSE,
    MOST_HELD,
    RECENT,
    SETTLED,
    TARGET,
)
from agentkv_kernels.formats import BLOCK, MIN_EXPONENT
from agentkv_kernels.layout import (
    BLOCK_IDS,
    CAPACITY,
    CODES,
    COUNT,
    DENSE,
    DTYPE,
    HEAD_DIM,
    IDLE,
    KEYS,
    LOAN_COUNTS,
    LOAN_ENTRIES,
    LOAN_ROOM,
    METADATA,
    NUM_FIELDS,
    NUM_HEADS,
    POSITION,
    SCALES,
    SIZE,
    START,
    TOLERATED_BLOCKS,
    VALUES,
)
from agentkv_kernels.layout import HEADS as FIELD_HEADS
from agentkv_kernels.numba.addresses import (
    entry_address,
    extents_of,
    field_of,
    move,
    move_entries,
    pointer,
    table_at,
)
from agentkv_kernels.numba.append_attend import layer_at
from agentkv_kernels.numba.arithmetic import MAGIC, power_of_two
from agentkv_kernels.numba.compiled import compiled
from agentkv_kernels.numba.drop import has_excess_capacity
from agentkv_kernels.numba.encode import append_blocks, copy_over_of, write_block_ids
from agentkv_kernels.numba.numbers import write_numbers
from agentkv_kernels.numba.read import read_dense, read_rows

f32, i32 = np.float32, np.int32


@compiled()
def lent_in(address, segment):
    """Return positions and numbers of a segment's lent entries, (2, room) int64, of which the first
    are in use."""
    loans = carray(pointer(address), (LOAN_ROOM + 1,), np.int64)
    shape = (segment + 1, 2, loans[LOAN_ROOM])
    return carray(pointer(loans[LOAN_ENTRIES]), shape, np.int64)[segment]


@compiled()
def num_lent_in(address, segment):
    """Return how many entries of the segments up to this one are lent, int64."""
    loans = carray(pointer(address), (LOAN_ROOM + 1,), np.int64)
    return carray(pointer(loans[LOAN_COUNTS]), (segment + 1,), np.int64)


@compiled()
def counts_after(hot, segment, rule, num_fetched):
    """Return what settling a segment does to it.

    Returns:
        Entries that it evicts, of all tables and of the codes; dense ones that it quantizes, of the
        hot ones and of the fetched ones; then its entries, its dense ones, its codes and its blocks
        of scales, before blocks are merged.
    """
    held = extents_of(table_at(hot[METADATA]))[COUNT, segment]
    num_coded, num_blocks = np.int64(0), np.int64(0)
    if hot[CODES]:
        num_coded = extents_of(table_at(hot[CODES]))[COUNT, segment]
        num_blocks = extents_of(table_at(hot[SCALES]))[COUNT, segment]
    num_dense, num_gone = held - num_coded, np.int64(0)
    if held + num_fetched > rule[MOST_HELD]:
        num_gone = held + num_fetched - rule[TARGET]
    first = rule[FIRST_TO_GO]
    gone_coded = min(first + num_gone, num_coded) - min(first, num_coded)
    num_dense -= num_gone - gone_coded
    quantized = np.int64(0)
    if rule[RECENT] >= 0:
        quantized = max(num_dense + num_fetched - rule[RECENT], 0) // BLOCK * BLOCK
    from_dense = min(quantized, num_dense)
    return (
        num_gone,
        gone_coded,
        from_dense,
        quantized - from_dense,
        held - num_gone + num_fetched,
        num_dense + num_fetched - quantized,
        num_coded - gone_coded + quantized,
        num_blocks + quantized // BLOCK,
    )


@compiled()
def has_room(table, segment, count):
    """Return whether a segment has capacity for `count` entries."""
    return count <= extents_of(table)[CAPACITY, segment]


@compiled()
def extend(table, segment, count):
    """Count `count` further entries of a segment with capacity for them, which are to be written;
    those that it holds move to its front if need be."""
    extents = extents_of(table)
    start, held = extents[START, segment], extents[COUNT, segment]
    if start + held + count > extents[CAPACITY, segment]:
        extents[START, segment] = 0
        move_entries(table, segment, start, 0, held)
    extents[COUNT, segment] += count


@compiled()
def drop_run(table, segment, first, last):
    """Drop entries first..last - 1 of a segment; the fewer ones before or after them move."""
    extents, count = extents_of(table), last - first
    held = extents[COUNT, segment]
    if count <= 0:
        return
    if first <= held - last:
        move_entries(table, segment, 0, count, first)
        extents[START, segment] += count
    else:
        move_entries(table, segment, last, first, held - last)
    extents[COUNT, segment] -= count


@compiled()
def merge_blocks_of(layer, segment):
    """Merge the int8 blocks of a segment as `formats.merge` does; their scales come first."""
    codes, scales, dim = table_at(layer[CODES]), table_at(layer[SCALES]), layer[HEAD_DIM]
    count = extents_of(codes)[COUNT, segment]
    num_old, num_new = extents_of(scales)[COUNT, segment], (count + BLOCK - 1) // BLOCK
    ids = carray(pointer(entry_address(codes, BLOCK_IDS, segment, 0, 0)), (count,), np.int32)
    merged, power = np.empty((num_new, dim), np.int8), np.empty(dim, f32)
    for field in (KEYS, VALUES):
        for head in range(layer[NUM_HEADS]):
            address = entry_address(scales, field, segment, head, 0)
            exponents = carray(pointer(address), (num_old, dim), np.int8)
            address = entry_address(codes, field, segment, head, 0)
            numbers = carray(pointer(address), (count, dim), np.int8)
            for block in range(num_new):
                merged[block] = MIN_EXPONENT
                first, stop = block * BLOCK, min((block + 1) * BLOCK, count)
                last_id = i32(-1)
                for t in range(first, stop):
                    if ids[t] != last_id:
                        last_id = ids[t]
                        for i in range(dim):
                            merged[block, i] = max(merged[block, i], exponents[last_id, i])
                last_id = i32(-1)
                for t in range(first, stop):
                    if ids[t] != last_id:
                        last_id = ids[t]
                        for i in range(dim):
                            # a shift of 8 or more leaves at most a rounding of 127 / 256, which is
                            # 0
                            shift = i32(exponents[last_id, i]) - i32(merged[block, i])
                            power[i] = power_of_two(f32(max(shift, i32(-9))))
                    for i in range(dim):
                        numbers[t, i] = f32(numbers[t, i]) * power[i] + f32(MAGIC) - f32(MAGIC)
            for block in range(num_new):
                exponents[block] = merged[block]
    for t in range(count):
        ids[t] = t // BLOCK
    extents_of(scales)[COUNT, segment] = num_new


@compiled()
def merge_if_sparse(layer, segment):
    """Merge the blocks of a segment with more than twice those that its codes fill; return whether
    it had."""
    count = extents_of(table_at(layer[CODES]))[COUNT, segment]
    blocks = extents_of(table_at(layer[SCALES]))[COUNT, segment]
    is_sparse = blocks > 2 * ((count + BLOCK - 1) // BLOCK)
    if is_sparse:
        merge_blocks_of(layer, segment)
    return is_sparse


@compiled()
def find_unknown(metadata, segment, first, places, numbers, picks):
    """Write which of the entries from `first` on are not lent to the front of `picks`, which is as
    long as the entries are many; return their number.

    Lent ones get the number -1 in `numbers` (n,), which belong to the positions `places` (n,).
    """
    address = entry_address(metadata, POSITION, segment, 0, first)
    positions = carray(pointer(address), (picks.shape[0],), np.int32)
    num_unknown = 0
    for k in range(picks.shape[0]):
        at = np.int64(-1)
        for i in range(places.shape[0]):
            at = max(at, i if places[i] == positions[k] else -1)
        if at < 0:
            picks[num_unknown] = first + k
            num_unknown += 1
        else:
            numbers[at] = -1
    return num_unknown


@compiled()
def quantize(layer, segment, from_dense, from_fetched, fetched):
    """Encode the oldest dense entries and then fetched ones as the last codes, which have capacity.

    Args:
        from_dense, from_fetched: how many of both.
        fetched: as in `settle`.
    """
    count = from_dense + from_fetched
    first_block = extents_of(table_at(layer[SCALES]))[COUNT, segment]
    extend(table_at(layer[CODES]), segment, count)
    extend(table_at(layer[SCALES]), segment, count // BLOCK)
    x = np.empty((count, layer[HEAD_DIM]), f32)
    for head in range(layer[NUM_HEADS]):
        for field in (KEYS, VALUES):
            for t in range(from_dense):
                read_dense(layer, field, segment, head, t, x[t])
            for t in range(from_dense, count):
                x[t] = fetched[head, field, t - from_dense]
            append_blocks(layer, field, segment, head, x, first_block)
    write_block_ids(layer, segment, count, first_block)


@compiled(nogil=True)
def counts_to_settle(address, cold_address, loans, segment, rule, num_fetched, needed):
    """Write what the tables must have capacity for before a segment can be settled, (6,) int64: the
    hot entries, dense ones, codes and blocks of scales, and the cold codes and blocks.

    Args:
        address, cold_address: of the numbers of the hot and the cold `LayerDescriptor`.

    The others are those of `settle`.
    """
    hot, cold = layer_at(address), layer_at(cold_address)
    counts = counts_after(hot, segment, rule, num_fetched)
    num_gone = counts[0]
    num_lent, lent = num_lent_in(loans, segment)[segment], lent_in(loans, segment)
    numbers, gone = lent[1][:num_lent].copy(), np.empty(num_gone, np.int64)
    metadata = table_at(hot[METADATA])
    own = lent[0][:num_lent], numbers, gone
    num_unknown = find_unknown(metadata, segment, rule[FIRST_TO_GO], *own)
    needed[0], needed[1], needed[2], needed[3] = counts[4], counts[5], counts[6], counts[7]
    needed[4] = extents_of(table_at(cold[METADATA]))[COUNT, segment] + num_unknown
    new_blocks = (num_unknown + BLOCK - 1) // BLOCK
    needed[5] = extents_of(table_at(cold[SCALES]))[COUNT, segment] + new_blocks


@compiled(nogil=True)
def settle_later(address, cold_address, loans, segment, rule, picks, places):
    """Do the work of `settle` once tables that lacked capacity have it; read what was fetched
    again.

    Args:
        address, cold_address: of the numbers of the hot and the cold `LayerDescriptor`.
    """
    hot, cold = layer_at(address), layer_at(cold_address)
    shape = (hot[NUM_HEADS], 2, picks.shape[0], hot[HEAD_DIM])
    fetched = np.empty(shape, f32)
    for head in range(shape[0]):
        for field in (KEYS, VALUES):
            read_rows(cold, field, segment, head, picks, fetched[head, field])
    return settle(hot, cold, loans, segment, rule, picks, places, fetched)


@compiled()
def settle(hot, cold, loans, segment, rule, picks, places, fetched):
    """Settle a segment whose token has looked.

    Args:
        hot, cold: numbers of layer descriptors, the hot layer with int8 codes or none.
        loans: address of the numbers of the cold tier's loans.
        rule: (`NUM_RULES`,) int64; the fetched entries are at most its target less its first entry
            to go.
        picks, places: (n,) int64, numbers of the fetched entries in the cold tier, and their
            positions.
        fetched: (W, 2, most, D) float32, their keys and values, rounded to the dtype of hot ones.

    Returns:
        The outcome; 0 if nothing has changed, because some table lacks capacity or the cold entries
        would be more than the rule allows.
    """
    num_fetched, outcome = picks.shape[0], SETTLED
    (num_gone, gone_coded, from_dense, from_fetched, count, num_dense, num_coded, num_blocks) = (
        counts_after(hot, segment, rule, num_fetched)
    )
    metadata, dense = table_at(hot[METADATA]), table_at(hot[DENSE])
    cold_metadata, first = table_at(cold[METADATA]), rule[FIRST_TO_GO]
    num_lent, lent = num_lent_in(loans, segment), lent_in(loans, segment)
    lent_places, numbers = lent[0], lent[1]
    count_lent = num_lent[segment]
    before, gone = numbers[:count_lent].copy(), np.empty(num_gone, np.int64)
    num_unknown = find_unknown(
        metadata, segment, first, lent_places[:count_lent], numbers[:count_lent], gone
    )
    gone = gone[:num_unknown]
    cold_codes, cold_scales = table_at(cold[CODES]), table_at(cold[SCALES])
    first_block = extents_of(cold_scales)[COUNT, segment]
    new_blocks = (gone.shape[0] + BLOCK - 1) // BLOCK
    fits = has_room(metadata, segment, count) and has_room(dense, segment, num_dense)
    if hot[CODES]:
        fits = fits and has_room(table_at(hot[CODES]), segment, num_coded)
        fits = fits and has_room(table_at(hot[SCALES]), segment, num_blocks)
    num_cold = extents_of(cold_metadata)[COUNT, segment] + gone.shape[0]
    fits = fits and num_cold <= rule[COLD_BOUND]
    fits = fits and has_room(cold_metadata, segment, num_cold)
    fits = fits and has_room(cold_codes, segment, num_cold)
    fits = fits and has_room(cold_scales, segment, first_block + new_blocks)
    if not fits or count_lent + num_fetched > numbers.shape[0]:
        numbers[:count_lent] = before
        return 0

    if gone.shape[0]:
        extend(cold_metadata, segment, gone.shape[0])
        extend(cold_codes, segment, gone.shape[0])
        extend(cold_scales, segment, new_blocks)
        copy_over_of(hot, cold, segment, gone, first_block)
        if merge_if_sparse(cold, segment):
            outcome |= IS_LOOSE
    if num_gone:
        outcome |= HAS_EVICTED
    gone_dense = num_gone - gone_coded
    if hot[CODES]:
        held_codes = extents_of(table_at(hot[CODES]))[COUNT, segment]
        start = min(first, held_codes)
        drop_run(table_at(hot[CODES]), segment, start, start + gone_coded)
        merge_if_sparse(hot, segment)
        start = max(first - held_codes, 0)
        drop_run(dense, segment, start, start + gone_dense)
        if from_dense + from_fetched:
            quantize(hot, segment, from_dense, from_fetched, fetched)
            merge_if_sparse(hot, segment)
            drop_run(dense, segment, 0, from_dense)
    else:
        drop_run(dense, segment, first, first + gone_dense)
    drop_run(metadata, segment, first, first + num_gone)

    end, size = extents_of(dense)[COUNT, segment], num_fetched - from_fetched
    extend(dense, segment, size)
    for head in range(hot[NUM_HEADS]):
        for field in (KEYS, VALUES):
            for k in range(size):
                address = entry_address(dense, field, segment, head, end + k)
                write_numbers(hot[DTYPE], address, fetched[head, field, from_fetched + k])
    end = extents_of(metadata)[COUNT, segment]
    extend(metadata, segment, num_fetched)
    for field in range(cold_metadata[NUM_FIELDS]):
        size = field_of(cold_metadata, field, SIZE)
        for head in range(field_of(cold_metadata, field, FIELD_HEADS) if size else 0):
            for k in range(num_fetched):
                source = entry_address(cold_metadata, field, segment, head, picks[k])
                move(entry_address(metadata, field, segment, head, end + k), source, size)

    num_stay = 0
    for i in range(count_lent):
        if numbers[i] >= 0:
            lent_places[num_stay], numbers[num_stay] = lent_places[i], numbers[i]
            num_stay += 1
    for k in range(num_fetched):
        lent_places[num_stay + k], numbers[num_stay + k] = places[k], picks[k]
    num_lent[segment] = num_stay + num_fetched

    spare = BLOCK + IDLE
    is_loose = has_excess_capacity(extents_of(metadata), segment, spare)
    is_loose |= has_excess_capacity(extents_of(dense), segment, spare)
    if hot[CODES]:
        is_loose |= has_excess_capacity(extents_of(table_at(hot[CODES])), segment, spare)
        scales = extents_of(table_at(hot[SCALES]))
        spare = 1 + TOLERATED_BLOCKS * scales[COUNT, segment]
        is_loose |= has_excess_capacity(scales, segment, spare)
    return outcome | IS_LOOSE if is_loose else outcome
