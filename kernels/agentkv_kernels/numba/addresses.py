"""Numba: memory and functions by address, and the tables that a `layout.TableDescriptor` describes.

Nothing is checked here: descriptors must be right, and entries must have capacity.
"""

import numpy as np
from llvmlite import ir
from numba import carray, types
from numba.core import cgutils
from numba.extending import intrinsic

from agentkv_kernels.layout import (
    ADDRESS,
    BASE,
    CAPACITY,
    COUNT,
    EXTENTS,
    HEADS,
    NUM_FIELDS,
    NUM_SEGMENTS,
    SIZE,
    START,
)
from agentkv_kernels.numba.compiled import compiled


@intrinsic
def pointer(typing_context, address):
    """Return an int64 as a pointer."""

    def generate(context, builder, signature, arguments):
        return builder.inttoptr(arguments[0], context.get_value_type(types.voidptr))

    return types.voidptr(types.int64), generate


@intrinsic
def move(typing_context, target, source, num_bytes):
    """Copy bytes from one address (int64) to another; the two ranges may overlap."""

    def generate(context, builder, signature, arguments):
        byte = ir.IntType(8).as_pointer()
        to, start = (builder.inttoptr(address, byte) for address in arguments[:2])
        cgutils.raw_memmove(builder, to, start, arguments[2], 1)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), generate


@intrinsic
def call(typing_context, function, argument):
    """Call a compiled function of one int64 that returns nothing, by what `address_of` returned.

    A caller by name has the whole function compiled into it once more.
    """
    takes = (types.int64,)

    def generate(context, builder, signature, arguments):
        convention = context.call_conv
        kind = convention.get_function_type(types.none, takes).as_pointer()
        function = builder.inttoptr(arguments[0], kind)
        status, _ = convention.call_function(builder, function, types.none, takes, arguments[1:])
        with cgutils.if_unlikely(builder, status.is_error):
            convention.return_status_propagate(builder, status)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), generate


@compiled()
def table_at(address):
    """Return the numbers of a `TableDescriptor`."""
    head = carray(pointer(address), (EXTENTS,), np.int64)
    size = EXTENTS + 4 * head[NUM_SEGMENTS] + 3 * head[NUM_FIELDS]
    return carray(pointer(address), (size,), np.int64)


@compiled()
def extents_of(table):
    """Return (4, N) int64: base, capacity, start and count of every segment."""
    num_segments = table[NUM_SEGMENTS]
    return table[EXTENTS : EXTENTS + 4 * num_segments].reshape(4, num_segments)


@compiled()
def field_of(table, field, which):
    """Return `ADDRESS`, `HEADS` or `SIZE` of a field."""
    return table[EXTENTS + 4 * table[NUM_SEGMENTS] + 3 * field + which]


@compiled()
def flat_entries(table, field, width, like):
    """Return (R, width), all flat entries of a field, in the dtype of `like`."""
    num_entries = field_of(table, field, HEADS) * extents_of(table)[CAPACITY].sum()
    return carray(pointer(field_of(table, field, ADDRESS)), (num_entries, width), like)


@compiled()
def has_capacity(table, more):
    """Return whether every segment has capacity for `more` entries."""
    extents = extents_of(table)
    for segment in range(extents.shape[1]):
        if extents[START, segment] + extents[COUNT, segment] + more > extents[CAPACITY, segment]:
            return False
    return True


@compiled()
def entry_address(table, field, segment, head, entry):
    """Return the address of an entry, counted from the first one of its segment."""
    extents, heads = extents_of(table), field_of(table, field, HEADS)
    first = heads * extents[BASE, segment] + head * extents[CAPACITY, segment]
    flat = first + extents[START, segment] + entry
    return field_of(table, field, ADDRESS) + flat * field_of(table, field, SIZE)


@compiled()
def move_entries(table, segment, source, target, count):
    """Move `count` entries of a segment to another place in it, in all fields."""
    for field in range(table[NUM_FIELDS]):
        size = field_of(table, field, SIZE)
        for head in range(field_of(table, field, HEADS) if size else 0):
            first = entry_address(table, field, segment, head, 0)
            move(first + target * size, first + source * size, count * size)
