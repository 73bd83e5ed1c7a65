#!/usr/bin/env bash
# numba 0.68.1: a compiled function that is called with constants by another one is compiled once for each constant.
#
# Release notes say that since 0.51 types without a value are preferred to literal ones, so that functions are specialized
# less. That holds for calls from Python and for overloads. Between two functions of `njit`, a constant argument (a number in
# the source, or a global such as the place of a field) still gives the callee a signature of its own, `Literal[int](0)`, with
# a compilation and a file in the cache, and so on down the chain if the callee passes it on. The number is of no use to the
# callee, whose type is the same. With a slice in place of the constant, or a constant from a loop over a tuple, one
# compilation serves all. In a decoder whose products took "which weight" as an argument, eight copies of the whole product
# were compiled, in 13 of 130 seconds.
#
# Seen with numba 0.68.1, llvmlite 0.50.0, Python 3.11, on 29 November 2026:
#   by constants: 3 signatures, [Literal[int](0), Literal[int](1), Literal[int](2)]
#   by slices: 1 signature, []
#   from a loop: 1 signature, [int64]
#   from Python, with 1 and 2: 1 signature, [int64]
# The script expects these signatures.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet --disable-pip-version-check 'numba==0.68.1' 'llvmlite==0.50.0'
cat > "$folder/try.py" <<'PY'
import numpy as np
from numba import njit

FIRST, SECOND = 0, 1


@njit
def item(x, place):
    return x[place]


@njit
def looped(x, place):
    return x[place]


@njit
def asked(x, place):
    return x[place]


@njit
def head(x):
    return x[0]


@njit
def by_constants(x):
    return item(x, FIRST) + item(x, SECOND) + item(x, 2)


@njit
def by_slices(x):
    return head(x[FIRST:]) + head(x[SECOND:]) + head(x[2:])


@njit
def from_a_loop(x):
    total = 0.0
    for place in (FIRST, SECOND, 2):
        total += looped(x, place)
    return total


x = np.arange(3.0)
assert by_constants(x) == by_slices(x) == from_a_loop(x) == 3.0
asked(x, 1), asked(x, 2)
literal = [f"Literal[int]({number})" for number in range(3)]
for how, function, expected in (
    ("by constants", item, literal),
    ("by slices", head, []),
    ("from a loop", looped, ["int64"]),
    ("from Python, with 1 and 2", asked, ["int64"]),
):
    found = [str(each[1]) for each in function.signatures if len(each) > 1]
    count = len(function.signatures)
    print(f"{how}: {count} signature{'s' * (count > 1)}, [{', '.join(found)}]")
    assert found == expected and count == max(1, len(expected)), f"{how}: expected {expected}"
PY
"$folder/env/bin/python" "$folder/try.py"
