"""Weights in 8 and 4 bits: what files hold is what llama.cpp's own package reads from them."""

import gguf
import numpy as np
import pytest
import torch

from agentkv_kernels import weights

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
