"""The 8-bit format: bounds, idempotence, and what gathering and merging may change."""

import math

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from agentkv_kernels.quantize import BLOCK, MIN_EXPONENT, dequantize, merge, quantize, scales

magnitudes = st.floats(min_value=-30, max_value=30)


@st.composite
def rows(draw, max_rows=200):
    """Rows (T, C) whose channels differ in size by many orders of magnitude."""
    num_rows = draw(st.integers(1, max_rows))
    num_channels = draw(st.integers(1, 4))
    seed = draw(st.integers(0, 2**31))
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(num_rows, num_channels, generator=generator)
    sizes = [2.0 ** draw(magnitudes) for _ in range(num_channels)]
    x = x * torch.tensor(sizes)
    if draw(st.booleans()):
        x[:, 0] = 0
    return x


def ids_of(x):
    return (torch.arange(x.shape[0]) // BLOCK).int()


def test_scales_are_exact_powers_of_two_for_every_exponent():
    exponents = torch.arange(MIN_EXPONENT, 128, dtype=torch.int8)
    for copies in (1, 7):  # vector and scalar paths
        found = scales(exponents.repeat(copies))
        assert found.tolist() == [math.ldexp(1.0, int(e)) for e in exponents] * copies


@settings(deadline=None, max_examples=60)
@given(rows())
def test_an_element_is_off_by_half_a_scale_at_most_and_the_scale_is_the_smallest(x):
    codes, exponents = quantize(x)
    ids = ids_of(x)
    scale = scales(exponents)[ids]
    error = (dequantize(codes, exponents, ids).double() - x.double()).abs()
    assert (error <= scale.double() / 2).all()
    assert codes.abs().max() <= 127
    for block in range(exponents.shape[0]):
        top = x[ids == block].abs().amax(dim=0).double()
        half = scales(exponents[block]).double() / 2
        is_smallest = (127 * half < top) | (exponents[block] == MIN_EXPONENT)
        assert is_smallest.all()


@settings(deadline=None, max_examples=40)
@given(rows())
def test_quantising_what_was_dequantised_changes_nothing(x):
    codes, exponents = quantize(x)
    again, exponents_again = quantize(dequantize(codes, exponents, ids_of(x)))
    assert torch.equal(again, codes)
    assert torch.equal(exponents_again, exponents)


@settings(deadline=None, max_examples=40)
@given(rows(), st.data())
def test_gathering_after_quantising_is_quantising_after_gathering(x, data):
    codes, exponents = quantize(x)
    ids = ids_of(x)
    kept = data.draw(st.lists(st.integers(0, len(x) - 1), min_size=1, unique=True).map(sorted))
    index = torch.tensor(kept)
    gathered = dequantize(codes[index], exponents, ids[index])
    assert torch.equal(gathered, dequantize(codes, exponents, ids)[index])


@settings(deadline=None, max_examples=60)
@given(rows(max_rows=400), st.data())
def test_merging_keeps_the_integers_of_rows_whose_scale_stays_and_shifts_others_once(x, data):
    codes, exponents = quantize(x)
    ids = ids_of(x)
    share = data.draw(st.floats(0.05, 1.0))
    seed = data.draw(st.integers(0, 1000))
    kept = torch.rand(len(x), generator=torch.Generator().manual_seed(seed)) < share
    kept[0] = True
    codes, ids = codes[kept], ids[kept]
    merged, new_exponents, new_ids = merge(codes, exponents, ids)
    assert new_exponents.shape[0] == math.ceil(len(codes) / BLOCK)
    before, after = exponents[ids].int(), new_exponents[new_ids].int()
    assert (after >= before).all()
    same = after == before
    assert torch.equal(merged[same], codes[same])
    moved = codes.double() * 2.0 ** (before - after).double()
    assert torch.equal(merged.double(), moved.round())
    for block in range(new_exponents.shape[0]):
        assert torch.equal(after[new_ids == block][0], before[new_ids == block].amax(dim=0))


def test_merging_forty_times_drifts_less_than_one_scale():
    torch.manual_seed(0)
    x = torch.randn(4096, 16)
    codes, exponents = quantize(x)
    ids = ids_of(x)
    for _ in range(40):
        kept = torch.rand(len(x)) < 0.95
        x, codes, ids = x[kept], codes[kept], ids[kept]
        codes, exponents, ids = merge(codes, exponents, ids)
    error = (dequantize(codes, exponents, ids) - x).abs()
    assert (error <= scales(exponents)[ids]).all()
    # fresh it is 0.009; at worst nearly every channel ends one power of two up
    assert error.norm() / x.norm() < 0.018


def test_a_channel_of_zeros_stays_zero_beside_others():
    x = torch.zeros(70, 2)
    x[:, 1] = 1e6
    codes, exponents = quantize(x)
    assert (dequantize(codes, exponents, ids_of(x))[:, 0] == 0).all()
