"""Models with weights in 8 and 4 bits: compiled steps and pages compute what transformers' code
computes with the same layers."""

import copy

import pytest
import torch
from torch import nn

import agentkv
from agentkv.cache.hf import known_code
from agentkv.cache.hf.forward import COMPILED, decoding
from agentkv.weights.linear import QuantizedEmbedding, QuantizedLinear
from agentkv.weights.replace import quantize_linear
from agentkv_kernels import weights
from tests.agentkv.cache.every_family import changed, tiny

FAR = {torch.float32: 1e-2, torch.bfloat16: 0.12, torch.float16: 4e-2}
"""Largest distance of logits, relative to the largest: an activation that is rounded to another
number of 8 bits moves them further than a sum in another order."""


def quantized(model, form):
    quantize_linear(model, form)
    return model.eval()


def of_blocks(name):
    """A model whose linear layers hold a format that only files have."""
    model = changed("llama", hidden_size=256, intermediate_size=512)
    form = weights.FORMATS[name]
    for path, module in list(model.named_modules()):
        if type(module) is not nn.Linear or module.in_features % 256:
            continue
        generator = torch.Generator().manual_seed(len(path))
        shape = module.out_features, module.in_features // 256, form.file_bytes
        raw = torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator)
        raw[..., -1 if name == "q6_k" else 1] = 4  # float16 of about 6e-5
        raw[..., 3] = raw[..., 3] if name == "q6_k" else 4
        model.set_submodule(path, QuantizedLinear(weights.pack(name, raw.flatten(1))))
    return model.eval()


MODELS = {
    "llama int8": lambda: quantized(tiny("llama"), "int8"),
    "llama int4": lambda: quantized(tiny("llama"), "int4"),
    "tied": lambda: quantized(changed("qwen3", tie_word_embeddings=True), "int4"),
    "biases": lambda: quantized(changed("llama", attention_bias=True, mlp_bias=True), "int4"),
    "fused rows": lambda: quantized(changed("phi3", intermediate_size=72), "int4"),
    "scaled embedding": lambda: quantized(tiny("gemma3_text"), "int8"),
    "parallel": lambda: quantized(tiny("cohere"), "int8"),
}
IN_ANY_DTYPE = [(name, dtype) for name in MODELS for dtype in FAR]
MODELS |= {name: lambda name=name: of_blocks(name) for name in ("q4_k", "q6_k")}
# their random weights make much of what 16 bits round
CASES = IN_ANY_DTYPE + [(name, torch.float32) for name in ("q4_k", "q6_k")]


def close(found, expected, dtype):
    assert found.dtype == expected.dtype == dtype and found.shape == expected.shape
    apart = float((found - expected).abs().max() / expected.abs().max())
    assert apart <= FAR[dtype], f"{apart:.2g} apart"


@torch.no_grad()
@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize(("name", "dtype"), CASES, ids=str)
@pytest.mark.sample("values")
def test_pages_and_steps_have_the_logits_of_transformers_forward(name, dtype, batch):
    model = MODELS[name]().to(dtype)
    assert any(isinstance(each, QuantizedLinear) for each in model.modules())
    own = copy.deepcopy(model)
    agentkv.attach(model)
    assert decoding(model) == COMPILED
    torch.manual_seed(0)
    ids = torch.randint(0, model.config.vocab_size, (batch, 40))
    expected = own(ids).logits
    cache, found = agentkv.Cache.for_model(model, policy="full"), []
    for start, stop in ((0, 25), (25, 30), *((i, i + 1) for i in range(30, 40))):
        found.append(model(ids[:, start:stop], past_key_values=cache).logits)
        cache.check()
    close(torch.cat(found, dim=1), expected, dtype)


@torch.no_grad()
def test_a_scaled_embedding_keeps_its_factor():
    model = tiny("gemma3_text").eval()
    ids = torch.arange(12)[None]
    expected = model.model.embed_tokens(ids)
    quantize_linear(model, "int8")
    assert isinstance(model.model.embed_tokens, QuantizedEmbedding)
    torch.testing.assert_close(model.model.embed_tokens(ids), expected, rtol=0.02, atol=0.02)


@torch.no_grad()
def test_a_layer_that_is_quantized_between_two_steps_is_noticed():
    model = tiny("llama").eval()
    agentkv.attach(model)
    cache, ids = agentkv.Cache.for_model(model, policy="full"), torch.arange(9)[None]
    model(ids[:, :8], past_key_values=cache)
    model(ids[:, 8:], past_key_values=cache)
    quantize_linear(model, "int4")
    found = model(ids[:, 8:], past_key_values=cache).logits
    expected = copy.deepcopy(model)
    expected.forward = type(model).forward.__get__(expected)
    whole = expected(torch.cat([ids, ids[:, 8:]], dim=1), use_cache=False).logits[:, -1:]
    assert (found - whole).norm() <= 0.2 * whole.norm()


def test_a_step_that_computes_something_else_is_found_although_activations_are_rounded(monkeypatch):
    wrong = known_code.NormCode("variance_epsilon", offset=1.0)
    monkeypatch.setitem(known_code.NORMS, "llama.LlamaRMSNorm", wrong)
    model = MODELS["llama int8"]()
    agentkv.attach(model)
    assert "its compiled step differs from transformers' forward by" in decoding(model)
