"""Numba: numbers that several threads change, by address. All accesses are in one order for all."""

import os

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

_NUMBER = ir.IntType(64)


@intrinsic
def add(typing_context, address, number):
    """Add to an int64 and return what it was."""

    def generate(context, builder, signature, arguments):
        place = builder.inttoptr(arguments[0], _NUMBER.as_pointer())
        return builder.atomic_rmw("add", place, arguments[1], "seq_cst")

    return types.int64(types.int64, types.int64), generate


@intrinsic
def load(typing_context, address):
    """Return an int64."""

    def generate(context, builder, signature, arguments):
        place = builder.inttoptr(arguments[0], _NUMBER.as_pointer())
        return builder.load_atomic(place, "seq_cst", 8)

    return types.int64(types.int64), generate


@intrinsic
def store(typing_context, address, number):
    """Write an int64."""

    def generate(context, builder, signature, arguments):
        place = builder.inttoptr(arguments[0], _NUMBER.as_pointer())
        builder.store_atomic(arguments[1], place, "seq_cst", 8)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), generate


@intrinsic
def give_way(typing_context):
    """Let the system run another thread on this core, where there is a call for it."""

    def generate(context, builder, signature, arguments):
        if os.name == "posix":
            kind = ir.FunctionType(ir.IntType(32), ())
            builder.call(cgutils.get_or_insert_function(builder.module, kind, "sched_yield"), ())
        return context.get_dummy_value()

    return types.void(), generate
