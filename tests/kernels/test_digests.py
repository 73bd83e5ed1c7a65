"""Digests bound the keys that they stand for, and every query's products with them."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from agentkv_kernels.digests import decode, encode, upper_bounds

SEEDS = st.integers(0, 2**32 - 1)
SIZES = st.sampled_from([0.0, 1e-30, 1e-3, 1.0, 127.0, 128.0, 1e4, 1e30])


@given(SEEDS, SIZES, st.integers(1, 20))
def test_bounds_hold_all_keys_and_are_at_most_a_step_wider(seed, size, num_keys):
    torch.manual_seed(seed)
    keys = size * torch.randn(2, 3, num_keys, 8)  # heads, blocks, keys, channels
    low, high, exponent = encode(keys.amin(2), keys.amax(2))
    assert low.dtype == high.dtype == exponent.dtype == torch.int8
    least, most = decode(low, high, exponent)
    assert bool((least[:, :, None] <= keys).all()) and bool((keys <= most[:, :, None]).all())
    step = torch.exp2(exponent)[:, :, None]
    assert bool((most - keys.amax(2) <= step).all()) and bool((keys.amin(2) - least <= step).all())
    largest = keys.abs().amax(dim=(2, 3))
    assert bool((largest <= 127 * step[:, :, 0]).all())
    if size > 1e-20:
        assert bool((largest > 63 * step[:, :, 0]).all()), "an exponent larger than needed"


@given(SEEDS, SIZES)
def test_bounds_that_are_encoded_again_stay_the_same(seed, size):
    torch.manual_seed(seed)
    keys = size * torch.randn(2, 5, 4, 8)
    codes = encode(keys.amin(2), keys.amax(2))
    for once, again in zip(codes, encode(*decode(*codes)), strict=True):
        assert torch.equal(once, again)


@given(SEEDS)
def test_no_product_with_a_key_exceeds_its_upper_bound(seed):
    torch.manual_seed(seed)
    keys, q = torch.randn(2, 5, 16, 8), torch.randn(2, 3, 8)
    bounds = upper_bounds(q, *encode(keys.amin(2), keys.amax(2)))
    products = torch.einsum("hgd,hnkd->hgnk", q, keys).amax(3)
    assert bounds.shape == products.shape == (2, 3, 5)
    assert bool((products <= bounds + 1e-4).all())
    # one key per block leaves only the rounding of its bounds
    low, high, exponents = encode(keys[:, :, 0], keys[:, :, 0])
    alone = upper_bounds(q, low, high, exponents)
    exact = torch.einsum("hgd,hnd->hgn", q, keys[:, :, 0])
    steps = torch.exp2(exponents)[:, None]
    assert bool((alone - exact <= q.abs().sum(2, keepdim=True) * steps + 1e-4).all())
