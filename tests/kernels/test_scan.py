"""Logits in whole numbers are those of float64 within the rounding of float32."""

import numpy as np
import pytest

from agentkv_kernels.layout import INT8
from agentkv_kernels.numba.attention import Coded
from agentkv_kernels.numba.scan import code_logits


@pytest.mark.parametrize(
    ("count", "dim", "group"), [(300, 64, 3), (16, 16, 1), (37, 32, 4), (70, 128, 7), (5, 80, 2)]
)
def test_logits_of_codes_are_those_of_float64(count, dim, group):
    random, heads, head = np.random.default_rng(count), 3, 1
    ids = np.sort(random.integers(0, 4, count)).astype(np.int32)  # blocks of any length
    codes = random.integers(-127, 128, (heads * count, dim)).astype(np.int8)
    exponents = random.integers(-30, 3, (heads * 4, dim)).astype(np.int8)
    extents, of_scales = (np.array([[0], [size], [0], [size]], np.int64) for size in (count, 4))
    coded = Coded(np.int64(INT8), codes, codes, ids, extents, exponents, exponents, of_scales)
    starts = [0, *(np.flatnonzero(np.diff(ids)) + 1).tolist()]
    runs = np.array(
        [(a, b, ids[a]) for a, b in zip(starts, [*starts[1:], count], strict=True)], np.int32
    )
    query = random.standard_normal((group, dim)).astype(np.float32)
    query[-1] = 0.0
    logits, tops = np.empty((group, count), np.float32), np.full(group, -1e30, np.float32)
    code_logits(query, coded, 0, head, heads, runs, logits, tops)
    keys = (
        codes.reshape(heads, count, dim)[head] * 2.0 ** exponents.reshape(heads, 4, dim)[head][ids]
    )
    expected = query.astype(np.float64) @ keys.T
    # a query is rounded by its largest channel, so a sum is as near as that
    near = 2e-6 * np.abs(query[:, None] * keys).max(axis=(1, 2), keepdims=True)[:, 0] + 1e-30
    assert (np.abs(logits - expected) <= near * np.sqrt(dim)).all()
    np.testing.assert_allclose(tops, logits.max(axis=1))
    assert not logits[-1].any()
