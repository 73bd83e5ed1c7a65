"""The formats: error bounds, idempotence, and what gathering and merging may change."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from agentkv_kernels.formats import FORMATS, INT4, NF4, format_of, merge, powers

INT8, INT8_MAX, FP8 = FORMATS["int8"], FORMATS["int8-max"], FORMATS["fp8"]
FOUR_BITS = [FORMATS["int4"], FORMATS["nf4"]]
every_format = pytest.mark.parametrize("format", FORMATS.values(), ids=FORMATS)
by_row = pytest.mark.parametrize("format", [FP8, *FOUR_BITS], ids=lambda f: f.name)
four_bits = pytest.mark.parametrize("format", FOUR_BITS, ids=lambda f: f.name)

magnitudes = st.one_of(st.floats(-30, 30), st.floats(-150, 110))


@st.composite
def rows(draw, min_rows=0, max_rows=150, is_even=True):
    """Entries (H, T, D) whose channels and blocks differ much in size, denormals included."""
    num_heads, num_rows = draw(st.integers(1, 3)), draw(st.integers(min_rows, max_rows))
    head_dim = draw(st.sampled_from([2, 6, 32, 40]) if is_even else st.sampled_from([1, 5, 8]))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    x = torch.randn(num_heads, num_rows, head_dim, generator=generator).clamp(-4, 4)
    sizes = draw(st.lists(magnitudes, min_size=1, max_size=3))
    x = x * torch.tensor([2.0 ** sizes[c % len(sizes)] for c in range(head_dim)])
    powers_of_blocks = draw(st.lists(st.integers(0, 14), min_size=7, max_size=7))
    x = x * 2.0 ** torch.tensor(powers_of_blocks)[ids_of(x)][:, None]
    if draw(st.booleans()):
        x[:, :, 0] = 0
    if draw(st.booleans()):
        x[:, ::3] = 0
    return x


def ids_of(x):
    return (torch.arange(x.shape[1]) // 64).int()


def stored(format, x):
    return format.decode(*format.encode(x), ids_of(x))


def test_powers_are_exact_for_every_exponent():
    exponents = torch.arange(-126, 128, dtype=torch.int8)
    for copies in (1, 7):  # vector and scalar paths
        found = powers(exponents.repeat(copies))
        assert found.tolist() == [math.ldexp(1.0, int(e)) for e in exponents] * copies


@given(rows(is_even=False))
def test_an_int8_number_is_off_by_half_a_scale_at_most_and_the_scale_is_the_smallest(x):
    codes, exponents = INT8.encode(x)
    ids = ids_of(x)
    scale = powers(exponents).double()
    error = (INT8.decode(codes, exponents, ids).double() - x.double()).abs()
    assert (error <= scale[:, ids] / 2).all()
    assert (codes != -128).all()
    for block in range(exponents.shape[1]):
        top = x[:, ids == block].abs().amax(dim=1).double()
        half = scale[:, block] / 2
        assert ((127 * half < top) | (exponents[:, block] == -126)).all()


@given(rows(is_even=False))
def test_a_number_with_the_scale_of_the_largest_is_off_by_half_a_scale_at_most(x):
    codes, scales = INT8_MAX.encode(x)
    ids = ids_of(x)
    error = (INT8_MAX.decode(codes, scales, ids).double() - x.double()).abs()
    assert (error <= scales[:, ids].double() / 2).all()
    assert (codes != -128).all()
    for block in range(scales.shape[1]):
        top = x[:, ids == block].abs().amax(dim=1).double()
        scale = scales[:, block].double()
        # bfloat16 keeps 8 bits; what is smaller than its normal numbers has the smallest of these
        assert (((scale * 127 - top).abs() <= top / 256) | (scale == 2.0**-126)).all()


def test_scales_of_the_largest_number_have_two_thirds_of_the_error_of_powers_of_two():
    x = torch.randn(1, 6400, 32, generator=torch.Generator().manual_seed(0))
    error = {form.name: float((stored(form, x) - x).norm() / x.norm()) for form in (INT8, INT8_MAX)}
    assert error == pytest.approx({"int8": 0.0089, "int8-max": 0.0059}, rel=0.03)


@given(rows(is_even=False))
def test_an_fp8_number_is_off_by_a_sixteenth_at_most(x):
    codes, exponents = FP8.encode(x)
    scale = powers(exponents).double()
    exact = x.double()
    error = (FP8.decode(codes, exponents, None).double() - exact).abs()
    is_normal = exact.abs() >= scale * 2.0**-6
    assert (error <= torch.where(is_normal, exact.abs() / 16, scale * 2.0**-10)).all()
    # the largest number of a row is in the top half of what can be stored, whatever its size
    top = exact.abs().amax(dim=-1, keepdim=True)
    assert ((top > 224 * scale) | (exponents == -126)).all()


def test_an_fp8_code_is_read_as_the_standard_says():
    codes = torch.tensor([c for c in range(256) if c & 127 != 127], dtype=torch.uint8)
    expected = []
    for code in codes.tolist():
        exponent, fraction = code >> 3 & 15, code & 7
        size = (1 + fraction / 8) * 2.0 ** (exponent - 7) if exponent else fraction / 8 * 2.0**-6
        expected.append(-size if code & 128 else size)
    for exponent in (-126, -3, 0, 119):
        scales = torch.full((1, len(codes), 1), exponent, dtype=torch.int8)
        found = FP8.decode(codes.view(1, -1, 1), scales, None).flatten()
        assert found.double().tolist() == [math.ldexp(x, exponent) for x in expected]


@four_bits
@given(x=rows(max_rows=20))
def test_a_4_bit_number_goes_to_the_nearest_level_of_its_group(format, x):
    _, scales = format.encode(x)
    decoded = stored(format, x).double()
    levels = torch.tensor([v for v in format.levels if v <= 1], dtype=torch.float64)
    for group in range(format.scale_size(x.shape[-1])):
        cut = slice(group * 32, (group + 1) * 32)
        exact, scale = x[:, :, cut].double(), scales[:, :, group, None].double()
        top = exact.abs().amax(dim=-1, keepdim=True)
        is_normal = top >= 2.0**-126
        # bfloat16 keeps 8 bits
        assert torch.where(is_normal, (scale - top).abs() <= top / 256, scale == 2.0**-126).all()
        nearest = (exact[..., None] - levels * scale[..., None]).abs().amin(dim=-1)
        error = (decoded[:, :, cut] - exact).abs()
        assert (error <= nearest + 1e-6 * scale).all()


def test_the_4_bit_levels_are_those_of_their_definitions():
    assert INT4[:15] == tuple(n / 7 for n in range(-7, 8))
    # quantiles of a normal distribution, 8 at or below 0 and 9 at or above, cut off at this offset
    normal = torch.distributions.Normal(0.0, 1.0)
    offset = 0.9677083
    above = normal.icdf(torch.linspace(offset, 0.5, 9)[:-1])
    below = -normal.icdf(torch.linspace(offset, 0.5, 8)[:-1])
    made = torch.cat([above, torch.zeros(1), below]).sort().values
    torch.testing.assert_close(torch.tensor(NF4), made / made.max(), atol=1e-4, rtol=0)


@every_format
@given(x=rows())
def test_encoding_what_was_decoded_changes_nothing(format, x):
    codes, scales = format.encode(x)
    decoded = format.decode(codes, scales, ids_of(x))
    assert decoded.dtype == torch.float32 and decoded.shape == x.shape and decoded.isfinite().all()
    codes_again, scales_again = format.encode(decoded)
    assert torch.equal(codes_again, codes)
    assert torch.equal(scales_again, scales)


@by_row
@given(x=rows(min_rows=1, max_rows=40), data=st.data())
def test_gathering_entries_and_encoding_go_in_either_order(format, x, data):
    kept = data.draw(st.lists(st.integers(0, x.shape[1] - 1), unique=True))
    index = torch.tensor(kept, dtype=torch.int64)
    codes, scales = format.encode(x)
    first_gathered = format.encode(x[:, index])
    assert torch.equal(first_gathered[0], codes[:, index])
    assert torch.equal(first_gathered[1], scales[:, index])
    decoded = format.decode(codes[:, index], scales[:, index], None)
    assert torch.equal(decoded, format.decode(codes, scales, None)[:, index])


@given(rows(min_rows=1), st.data())
def test_int8_entries_take_their_block_id_along_when_gathered(x, data):
    codes, exponents = INT8.encode(x)
    ids = ids_of(x)
    kept = data.draw(st.lists(st.integers(0, x.shape[1] - 1), min_size=1, unique=True).map(sorted))
    index = torch.tensor(kept)
    gathered = INT8.decode(codes[:, index], exponents, ids[index])
    assert torch.equal(gathered, INT8.decode(codes, exponents, ids)[:, index])


def some_of(form, x, share, seed):
    """Codes, scales and block ids of a share of the rows."""
    codes, scales = form.encode(x)
    kept = torch.rand(x.shape[1], generator=torch.Generator().manual_seed(seed)) < share
    kept[0] = True
    return codes[:, kept], scales, ids_of(x)[kept]


@given(rows(min_rows=1, max_rows=400), st.floats(0.05, 1.0), st.integers(0, 1000))
def test_merging_keeps_the_integers_of_entries_whose_scale_stays_and_shifts_others_once(
    x, share, seed
):
    codes, exponents, ids = some_of(INT8, x, share, seed)
    merged, new_exponents, new_ids = merge(codes, exponents, ids)
    assert new_exponents.shape[1] == math.ceil(codes.shape[1] / 64)
    before, after = exponents[:, ids].int(), new_exponents[:, new_ids].int()
    assert (after >= before).all()
    same = after == before
    assert torch.equal(merged[same], codes[same])
    moved = codes.double() * 2.0 ** (before - after).double()
    assert torch.equal(merged.double(), moved.round())
    for block in range(new_exponents.shape[1]):
        of_block = new_ids == block
        assert torch.equal(after[:, of_block][:, 0], before[:, of_block].amax(dim=1))


@given(rows(min_rows=1, max_rows=400), st.floats(0.05, 1.0), st.integers(0, 1000))
def test_merging_scales_of_any_size_rounds_what_gets_a_larger_one(x, share, seed):
    codes, scales, ids = some_of(INT8_MAX, x, share, seed)
    merged, new_scales, new_ids = merge(codes, scales, ids)
    assert new_scales.shape[1] == math.ceil(codes.shape[1] / 64)
    before, after = scales[:, ids].double(), new_scales[:, new_ids].double()
    assert (after >= before).all()
    same = after == before
    assert torch.equal(merged[same], codes[same])
    assert torch.equal(merged.double(), (codes.double() * before / after).round())


def test_merging_forty_times_drifts_less_than_one_scale():
    torch.manual_seed(0)
    x = torch.randn(2, 4096, 8)
    codes, exponents = INT8.encode(x)
    ids = ids_of(x)
    for _ in range(40):
        kept = torch.rand(x.shape[1]) < 0.95
        x, codes, ids = x[:, kept], codes[:, kept], ids[kept]
        codes, exponents, ids = merge(codes, exponents, ids)
    error = (INT8.decode(codes, exponents, ids) - x).abs()
    assert (error <= powers(exponents)[:, ids]).all()
    # fresh it is 0.009; at worst nearly every channel ends one power of two up
    assert error.norm() / x.norm() < 0.018


@every_format
def test_zeros_stay_zero_and_nothing_overflows(format):
    huge = 2.0**127
    x = torch.zeros(1, 70, 64)
    x[0, 0] = huge
    x[0, 1, :32] = -huge
    x[0, 2] = 1e-45  # the smallest number there is
    x[0, 66, 3] = 3e-39
    decoded = stored(format, x)
    assert decoded.isfinite().all()
    assert (decoded[x == 0] == 0).all()
    torch.testing.assert_close(decoded[0, 0], x[0, 0], rtol=0.13, atol=0)


@every_format
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_entries_of_another_dtype_are_encoded_as_their_float32(format, dtype):
    x = torch.randn(2, 70, 36, generator=torch.Generator().manual_seed(0)).to(dtype)
    for found, expected in zip(format.encode(x), format.encode(x.float()), strict=True):
        assert torch.equal(found, expected)


@every_format
def test_entries_encode_and_decode_where_they_lie(format):
    """Views with holes between rows and heads, as a store with room to grow hands them out."""
    x = torch.randn(2, 130, 72, generator=torch.Generator().manual_seed(1))
    roomy = x.new_full((2, 200, 80), math.nan)[:, 30:160, 4:76].copy_(x)
    codes, scales = format.encode(roomy)
    for found, expected in zip((codes, scales), format.encode(x), strict=True):
        assert torch.equal(found, expected)
    wide_codes = codes.new_zeros(2, 200, codes.shape[2])[:, 7 : 7 + 130].copy_(codes)
    length = scales.shape[1]
    wide_scales = scales.new_zeros(2, 200, scales.shape[2])[:, 9 : 9 + length].copy_(scales)
    ids = torch.zeros(130, 2, dtype=torch.int32)[:, 0].copy_(ids_of(x))
    expected = format.decode(codes, scales, ids_of(x))
    assert torch.equal(format.decode(wide_codes, wide_scales, ids), expected)


@every_format
@pytest.mark.parametrize("leading", [(1,), (3,), (2, 3)])
def test_sequences_are_decoded_together_as_each_by_itself(format, leading):
    torch.manual_seed(0)
    count = math.prod(leading)
    each = [format.encode(torch.randn(2, 150, 10) * 10.0**i) for i in range(count)]
    # every sequence has other rows left
    picks = [torch.randperm(150)[:90].sort().values for _ in range(count)]
    ids = [(pick // 64).int() for pick in picks]
    alone = []
    for i, (codes, scales) in enumerate(each):
        each[i] = (codes[:, picks[i]], scales if format.by_block else scales[:, picks[i]])
        alone.append(format.decode(*each[i], ids[i]))
    codes, scales = (torch.stack(x).unflatten(0, leading) for x in zip(*each, strict=True))
    together = format.decode(codes, scales, torch.stack(ids).unflatten(0, leading))
    assert torch.equal(together, torch.stack(alone).unflatten(0, leading))


@every_format
@pytest.mark.parametrize("num_rows", [0, 1, 63, 64, 65])
@pytest.mark.parametrize("head_dim", [2, 64, 80])
def test_codes_and_scales_have_the_sizes_they_say(format, num_rows, head_dim):
    codes, scales = format.encode(torch.randn(3, num_rows, head_dim))
    num_scales = math.ceil(num_rows / 64) if format.by_block else num_rows
    assert codes.shape == (3, num_rows, format.code_size(head_dim))
    assert scales.shape == (3, num_scales, format.scale_size(head_dim))
    assert codes.dtype == format.code_dtype and scales.dtype == format.scale_dtype
    ids = (torch.arange(num_rows) // 64).int()
    assert format.decode(codes, scales, ids).shape == (3, num_rows, head_dim)


@pytest.mark.parametrize(
    ("name", "nbytes"), [("int8", 64 + 1), ("fp8", 64 + 1), ("int4", 32 + 4), ("nf4", 32 + 4)]
)
def test_an_entry_of_64_channels_takes_this_many_bytes(name, nbytes):
    parts = format_of(name).encode(torch.randn(1, 640, 64))
    assert sum(part.nbytes for part in parts) == 640 * nbytes


@pytest.mark.parametrize(
    ("name", "error"), [("int8", 0.0089), ("fp8", 0.0265), ("int4", 0.097), ("nf4", 0.0873)]
)
def test_gaussian_entries_lose_what_the_docstrings_say(name, error):
    x = torch.randn(4, 2048, 64, generator=torch.Generator().manual_seed(0))
    found = (stored(format_of(name), x) - x).norm() / x.norm()
    assert float(found) == pytest.approx(error, rel=0.02)


@four_bits
def test_a_4_bit_format_says_that_an_odd_head_size_does_not_fit(format):
    with pytest.raises(ValueError, match=f"{format.name}.*even head size.*5.*int8 or fp8"):
        format.encode(torch.zeros(1, 3, 5))


def test_an_unknown_format_names_those_there_are():
    with pytest.raises(ValueError, match="unknown format 'int3'; known: int8, fp8, int4, nf4"):
        format_of("int3")
