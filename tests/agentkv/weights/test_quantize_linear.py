"""Models whose linear layers hold 8 or 4 bits compute what the rounded weights say."""

import copy

import pytest
import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

from agentkv.cache.hf.projection import output_projection
from agentkv.weights.linear import QuantizedEmbedding, QuantizedLinear
from agentkv.weights.replace import quantize_linear
from agentkv_kernels import weights
from tests.agentkv.cache.every_family import tiny

IDS = torch.arange(24).view(2, 12)


def llama(**settings):
    torch.manual_seed(0)
    sizes = {
        "vocab_size": 50, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "attention_bias": True,
    }  # fmt: skip
    return LlamaForCausalLM(LlamaConfig(**sizes | settings)).eval()


def rounded(model):
    """A float copy of a quantized model."""
    own = copy.deepcopy(model)
    for name, module in list(own.named_modules()):
        if isinstance(module, QuantizedLinear):
            linear = nn.Linear(module.in_features, module.out_features, module.bias is not None)
            linear.weight.data = module.weight
            linear.bias = module.bias
            own.set_submodule(name, linear)
        elif isinstance(module, QuantizedEmbedding):
            own.set_submodule(name, nn.Embedding.from_pretrained(module.weight))
    return own


@torch.no_grad()
@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
@pytest.mark.parametrize("form", ["int8", "int4"])
def test_a_quantized_model_computes_what_its_rounded_weights_say(form, tied):
    model = llama(tie_word_embeddings=tied)
    exact = model(IDS).logits
    quantize_linear(model, form)
    found, expected = model(IDS).logits, rounded(model)(IDS).logits
    assert (found - expected).norm() <= 0.02 * expected.norm()
    assert (found - exact).norm() <= {"int8": 0.03, "int4": 0.2}[form] * exact.norm()
    kinds = {each.format for each in model.modules() if isinstance(each, QuantizedLinear)}
    assert kinds == {"q8_0", {"int8": "q8_0", "int4": "q4_1"}[form]}


def test_a_tied_projection_shares_the_table_of_the_embedding():
    model = llama(tie_word_embeddings=True)
    quantize_linear(model, "int4")
    table, head = model.model.embed_tokens, model.lm_head
    assert table.format == head.format == "q8_0"
    assert table.codes.data_ptr() == head.codes.data_ptr()
    both = copy.deepcopy(model)
    assert both.model.embed_tokens.codes.data_ptr() == both.lm_head.codes.data_ptr()


@torch.no_grad()
def test_weights_stay_when_a_model_changes_its_dtype():
    model = llama()
    quantize_linear(model, "int8")
    expected = model.lm_head.weight
    model.to(torch.bfloat16)
    assert torch.equal(model.lm_head.weight, expected)
    assert model(IDS).logits.dtype == torch.bfloat16


def test_layers_that_choose_experts_stay_as_they_are():
    model = tiny("qwen2_moe")
    before = {
        name: each for name, each in model.named_modules() if name.endswith("shared_expert_gate")
    }
    assert before
    quantize_linear(model, "int8")
    assert {name: model.get_submodule(name) for name in before} == before
    assert isinstance(model.get_submodule("model.layers.0.self_attn.q_proj"), QuantizedLinear)


def test_layers_whose_inputs_are_no_whole_blocks_stay_as_they_are():
    model = llama(intermediate_size=72)
    quantize_linear(model, "int8")
    mlp = model.model.layers[0].mlp
    assert type(mlp.down_proj) is nn.Linear and isinstance(mlp.up_proj, QuantizedLinear)


@torch.no_grad()
def test_several_threads_compute_what_one_does():
    linear = QuantizedLinear(weights.quantize(torch.randn(1500, 512), "q4_1"), torch.randn(1500))
    x, before = torch.randn(40, 512), torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        expected = linear(x)
        torch.set_num_threads(3)
        assert torch.equal(linear(x), expected)
    finally:
        torch.set_num_threads(before)


@torch.no_grad()
def test_a_policy_reads_the_weights_of_a_quantized_projection():
    linear = QuantizedLinear(weights.quantize(torch.randn(24, 64), "q8_0"))
    module = nn.Module()
    module.o_proj = linear
    found = output_projection(module, "o_proj", 16).weight
    torch.testing.assert_close(found, linear.weight.T.unflatten(0, (-1, 16)))
    assert output_projection(module, "o_proj", 16).weight.data_ptr() == found.data_ptr()


@torch.no_grad()
def test_a_linear_layer_serves_any_leading_shape():
    linear = QuantizedLinear(weights.quantize(torch.randn(20, 64), "q8_0"), torch.randn(20))
    x = torch.randn(2, 3, 64)
    torch.testing.assert_close(linear(x)[1, 2], linear(x[1, 2]))
    assert linear(x[:, :0]).shape == (2, 0, 20)
    assert linear(x.half()).dtype == torch.float16
