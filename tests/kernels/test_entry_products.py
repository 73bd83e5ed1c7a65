"""Products of queries with entries, and weighted sums of entries, beside numpy's."""

import os
import subprocess
import sys

import numpy as np
import pytest
from numpy.testing import assert_allclose

from agentkv_kernels.numba.arithmetic import logits, mix


def stored(numbers, kind):
    """Return numbers as compiled code takes them, and their values."""
    if kind == "int8":
        codes = np.clip(numbers * 30, -127, 127).astype(np.int8)
        return codes, codes.astype(np.float32)
    if kind == "float16":
        halves = numbers.astype(np.float16)
        return halves.view(np.int16), halves.astype(np.float32)
    if kind == "bfloat16":
        halves = (numbers.view(np.uint32) >> 16).astype(np.uint16)
        return halves, (halves.astype(np.uint32) << 16).view(np.float32)
    return numbers, numbers


def check(num_queries, dim, kind, start, stop):
    """Compare products and sums over entries 5 to 5 + stop - start, and what stands around them."""
    random = np.random.default_rng(dim)
    q = random.standard_normal((num_queries, dim)).astype(np.float32)
    entries, values = stored(random.standard_normal((60, dim)).astype(np.float32), kind)
    own = values[5 : 5 + stop - start]
    s = np.full((num_queries, 50), 7.0, np.float32)
    tops = np.full(num_queries, -1e30, np.float32)
    tops[0] = 1e6
    logits(q, entries, 5, s, start, stop, tops)
    expected = q @ own.T
    assert_allclose(s[:, start:stop], expected, rtol=1e-4, atol=1e-3)
    assert (s[:, :start] == 7).all() and (s[:, stop:] == 7).all()
    assert tops[0] == 1e6
    largest = expected.max(axis=1, initial=-1e30)
    assert_allclose(tops[1:], largest[1:], rtol=1e-4, atol=1e-3)
    weights = random.random((num_queries, 50)).astype(np.float32)
    out = np.ones((num_queries, dim), np.float32)
    mix(weights, start, stop, entries, 5, out)
    assert_allclose(out, 1 + weights[:, start:stop] @ own, rtol=1e-4, atol=1e-3)


CASES = [
    (1, 64, 0, 50),
    (2, 16, 3, 50),
    (3, 80, 1, 38),
    (4, 24, 2, 3),
    (7, 64, 4, 45),
    (8, 5, 0, 9),
]
KINDS = ("float32", "float16", "bfloat16", "int8")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("num_queries", "dim", "start", "stop"), [*CASES, (3, 64, 6, 6)])
def test_products_and_sums_equal_numpy(num_queries, dim, start, stop, kind):
    check(num_queries, dim, kind, start, stop)


@pytest.mark.slow
def test_products_and_sums_equal_numpy_on_processors_with_short_vectors():
    code = (
        "from tests.kernels.test_entry_products import CASES, KINDS, check\n"
        "from numba import njit\n"
        "from agentkv_kernels.numba.entry_products import num_lanes\n"
        "lanes = njit(lambda: num_lanes())\n"
        "assert lanes() == 8\n"
        "for queries, dim, start, stop in CASES:\n"
        "    for kind in KINDS: check(queries, dim, kind, start, stop)\n"
    )
    features = "+sse4.2,+avx,+avx2,+fma,+f16c"
    environment = {**os.environ, "NUMBA_CPU_FEATURES": features}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
    )
    assert not done.returncode, done.stderr


def test_a_product_that_is_no_number_stays_one():
    q, entries = np.ones((3, 64), np.float32), np.ones((16, 64), np.float32)
    entries[3, 5], entries[9] = np.nan, 2.0
    s, tops = np.empty((3, 16), np.float32), np.full(3, -1e30, np.float32)
    logits(q, entries, 0, s, 0, 16, tops)
    assert np.isnan(s[:, 3]).all() and (tops == 128).all()
