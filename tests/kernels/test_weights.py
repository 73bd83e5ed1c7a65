"""Weights in 8 and 4 bits: what files hold is what llama.cpp's own package reads from them."""

import gguf
import numpy as np
import pytest
import torch
from numba import njit

from agentkv_kernels import weights
from agentkv_kernels.numba.block_product import multiply, read_row, round_activations
from agentkv_kernels.numba.block_product import rounded as space_for
from agentkv_kernels.numba.block_sums import TILE, block_sums, intrinsic_of, plain_dot

QUANTIZED = ("q8_0", "q4_0", "q4_1")


def kind(name):
    return gguf.GGMLQuantizationType[name.upper()]


def rows_of(name, rows=21, width=512, seed=0):
    """Rows as a file holds them: any codes, scales and minima of moderate size."""
    rng = np.random.default_rng(seed)
    form = weights.FORMATS[name]
    raw = rng.integers(0, 256, (rows, width // form.file_inputs, form.file_bytes), np.uint8)
    numbers = rng.normal(size=(*raw.shape[:2], 2)).astype(np.float16).view(np.uint8)
    if name == "q6_k":
        raw[..., -2:] = numbers[..., :2]
    else:
        size = 4 if form.has_minimum else 2
        raw[..., :size] = numbers[..., :size]
    return torch.from_numpy(raw.reshape(rows, -1))


@pytest.mark.parametrize("name", weights.FORMATS)
def test_rows_of_a_file_are_dequantized_as_its_package_does(name):
    raw = rows_of(name)
    expected = gguf.dequantize(raw.numpy(), kind(name))
    packed = weights.pack(name, raw)
    assert (packed.rows, packed.width) == (21, 512)
    np.testing.assert_array_equal(weights.dequantize(packed).numpy(), expected)
    some = weights.dequantize_rows(packed, torch.tensor([17, 0, 17]))
    np.testing.assert_array_equal(some.numpy(), expected[[17, 0, 17]])


@pytest.mark.parametrize("name", QUANTIZED)
def test_weights_are_quantized_by_the_rule_of_the_package(name):
    torch.manual_seed(0)
    weight = torch.randn(5, 96)
    weight[1, :32] = 0
    raw = torch.from_numpy(gguf.quantize(weight.numpy(), kind(name)))
    expected, found = weights.pack(name, raw), weights.quantize(weight, name)
    for field in ("codes", "scales"):
        assert torch.equal(getattr(found, field), getattr(expected, field))


@pytest.mark.parametrize("name", weights.FORMATS)
def test_a_block_takes_the_size_that_the_package_says(name):
    form = weights.FORMATS[name]
    assert (form.file_inputs, form.file_bytes) == gguf.GGML_QUANT_SIZES[kind(name)]


@pytest.mark.parametrize("name", weights.FORMATS)
def test_a_product_is_that_of_the_rounded_activations(name):
    packed = weights.pack(name, rows_of(name))
    x = torch.randn(3, packed.width)
    codes, scales = weights.quantize_activations(x)
    rounded = (codes * scales[..., None]).flatten(1)
    assert (rounded - x).abs().max() <= x.abs().max() / 254 * 1.001
    expected = rounded.double() @ weights.dequantize(packed).double().T
    torch.testing.assert_close(
        weights.product(packed, x).double(), expected, rtol=1e-4, atol=1e-5 * expected.abs().max()
    )


def compiled_product(packed, x, first_row=0):
    numbers = weights.numbers_of(packed, first_row)
    out, space = torch.full((len(x), packed.rows - first_row), torch.nan), space_for(*x.shape)
    round_activations(x.numpy(), space)
    multiply(numbers.data_ptr(), space, len(x), 0, out.shape[1], out.numpy())
    return out


@pytest.mark.parametrize("num_tokens", [1, 2, 4, 11])
@pytest.mark.parametrize("name", weights.FORMATS)
def test_the_compiled_product_is_the_reference(name, num_tokens):
    packed = weights.pack(name, rows_of(name))
    x = torch.randn(num_tokens, packed.width)
    expected = weights.product(packed, x)
    close = {"rtol": 1e-5, "atol": 2e-6 * float(expected.abs().max())}
    torch.testing.assert_close(compiled_product(packed, x), expected, **close)
    torch.testing.assert_close(compiled_product(packed, x, 5), expected[:, 5:], **close)


@pytest.mark.parametrize("name", weights.FORMATS)
def test_compiled_code_reads_the_rows_that_the_reference_reads(name):
    packed, out = weights.pack(name, rows_of(name)), torch.zeros(512)
    numbers = weights.numbers_of(packed, 3)
    read_row(numbers.data_ptr(), 15, out.numpy())
    assert torch.equal(out, weights.dequantize(packed)[18])


def test_pieces_of_a_product_write_their_columns_only():
    packed, x = weights.pack("q4_1", rows_of("q4_1", rows=50)), torch.randn(6, 512)
    expected = compiled_product(packed, x)
    space = space_for(6, 512)
    round_activations(x.numpy(), space)
    numbers = weights.numbers_of(packed)
    for first, stop in ((0, 16), (4, 37), (33, 34), (48, 50)):
        out = np.full((6, 50), np.nan, np.float32)
        multiply(numbers.data_ptr(), space, 6, first, stop, out)
        np.testing.assert_array_equal(out[:, first:stop], expected[:, first:stop])
        assert np.isnan(out).sum() == 6 * (50 - stop + first)


def test_tokens_that_exceed_the_second_cache_are_taken_in_turns():
    packed, x = weights.pack("q8_0", rows_of("q8_0", width=8192)), torch.randn(70, 8192)
    expected = weights.product(packed, x)
    torch.testing.assert_close(compiled_product(packed, x), expected, rtol=1e-4, atol=1e-2)


def test_compiled_code_rounds_activations_as_the_reference_does():
    x = torch.randn(5, 64) * torch.tensor([1.0, 1e-38, 1e30, 0.0, 1.0])[:, None]
    x[4, 3], x[4, 40] = torch.inf, torch.nan
    codes, scales, minima, sums = space_for(5, 64)
    round_activations(x.numpy(), (codes, scales, minima, sums))
    tiles = (len(scales) // 2 // TILE, 2, TILE)
    found = codes.reshape(*tiles, 32).swapaxes(1, 2).reshape(-1, 2, 32)[:5]
    found_scales = scales.reshape(tiles).swapaxes(1, 2).reshape(-1, 2)[:5]
    expected, expected_scales = weights.quantize_activations(x)
    np.testing.assert_array_equal(found, expected.numpy())
    np.testing.assert_array_equal(found_scales, expected_scales.numpy())


@pytest.mark.parametrize("name", ["q8_0", "q4_k", "q6_k"])
def test_processors_without_the_instruction_get_the_same_sums(name):
    plain = intrinsic_of(lambda features: plain_dot)
    packed, x = weights.pack(name, rows_of(name, rows=16)), torch.randn(TILE, 512)
    kind, offset, _, _, *addresses = weights.numbers_of(packed).tolist()
    codes, scales, minima, sums = space_for(TILE, 512)
    round_activations(x.numpy(), (codes, scales, minima, sums))
    parts = packed.format.parts
    starts = (-offset * sums.reshape(-1, parts, 2 // parts).sum(axis=2)).astype(np.int32)
    activations = [each.ctypes.data for each in (codes, scales, minima, starts)]

    @njit
    def run(kind, a, b, c, d, e, f, g, blocks, own, other):
        block_sums(kind, True, a, b, c, d, e, f, g, blocks, own, 64)
        plain(kind, True, a, b, c, d, e, f, g, blocks, other, 64)

    own, other = np.zeros((2, TILE, 16), np.float32)
    run(kind, *addresses, *activations, 16, own.ctypes.data, other.ctypes.data)
    np.testing.assert_array_equal(own, other)
    assert own.any()


def test_activations_of_zero_and_tiny_ones_are_zeros():
    codes, scales = weights.quantize_activations(torch.tensor([[0.0] * 32 + [1e-38] * 32]))
    assert not codes.any() and scales.isfinite().all()


@pytest.mark.parametrize("number", [torch.inf, -torch.inf, torch.nan])
def test_what_is_not_finite_leaves_no_finite_product(number):
    x = torch.zeros(2, 64)
    x[1, 40] = number
    out = weights.product(weights.quantize(torch.randn(4, 64), "q8_0"), x)
    assert out[0].isfinite().all() and not out[1].isfinite().any()


def test_what_cannot_be_packed_is_refused():
    with pytest.raises(ValueError, match="no such format of weights: 'q3_k'; known: q8_0"):
        weights.pack("q3_k", torch.zeros(1, 110, dtype=torch.uint8))
    with pytest.raises(ValueError, match="multiple of 34 bytes"):
        weights.pack("q8_0", torch.zeros(1, 33, dtype=torch.uint8))
    with pytest.raises(ValueError, match="cannot quantize to 'q6_k'; expected one of q8_0, q4_0"):
        weights.quantize(torch.zeros(1, 256), "q6_k")
    with pytest.raises(ValueError, match="48 inputs are no multiple of 32"):
        weights.quantize(torch.zeros(1, 48), "q8_0")
