#!/usr/bin/env bash
# numba 0.68.1: `fastmath` of a function also changes the instructions that an `@intrinsic` writes itself.
#
# An intrinsic writes LLVM instructions with its own builder, and says for each whether it may be rounded otherwise. Inside a
# function with `fastmath={"arcp"}`, a division that was written without flags is compiled as a product with the reciprocal:
# the flags of the caller are put on every instruction of its module. So an intrinsic that must round as IEEE 754 says cannot
# divide, whatever flags it gives; here 3 / 7 and 6 / 7 come out one unit in the last place too large. A product followed by
# two calls of `llvm.fma`, which correct it, came out right.
#
# Seen with numba 0.68.1, llvmlite 0.50.0, Python 3.11, on 29 November 2026:
#   plain: 3 / 7 = 0x1.b6db6e0000000p-2, rounded otherwise: [], fdiv float: True
#   arcp: 3 / 7 = 0x1.b6db700000000p-2, rounded otherwise: [3, 6], fmul arcp float: True
# The script expects the instruction and the numbers of both.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet --disable-pip-version-check 'numba==0.68.1' 'llvmlite==0.50.0'
cat > "$folder/try.py" <<'PY'
import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic


@intrinsic
def seventh(typing_context, x):
    """Divide by 7, with an instruction that has no flags."""

    def generate(context, builder, signature, arguments):
        return builder.fdiv(arguments[0], ir.Constant(ir.FloatType(), 7.0))

    return types.float32(types.float32), generate


def divide(x):
    return seventh(x)


def exactly(x):
    """The quotient of a whole number and 7, rounded once."""
    return np.float32(x) / np.float32(7)


plain, flagged = njit(divide), njit(fastmath={"arcp"})(divide)
for name, function, instruction in (("plain", plain, "fdiv float"), ("arcp", flagged, "fmul arcp float")):
    apart = [k for k in range(1, 9) if np.float32(function(np.float32(k))) != exactly(k)]
    [text] = function.inspect_llvm().values()
    found = float(function(np.float32(3))).hex()
    print(f"{name}: 3 / 7 = {found}, rounded otherwise: {apart}, {instruction}: {instruction in text}")
    assert instruction in text, f"{name}: another instruction"
    assert bool(apart) == (name == "arcp"), f"{name}: expected otherwise"
PY
"$folder/env/bin/python" "$folder/try.py"
