"""Every family has the right shapes, dtypes and projections; others are refused by name."""

import copy

import pytest
import torch
from torch import nn
from transformers import (
    CONFIG_MAPPING,
    AutoModelForCausalLM,
    BartConfig,
    BartForCausalLM,
    BartModel,
    BloomConfig,
    BloomForCausalLM,
    DiffLlamaConfig,
    DiffLlamaForCausalLM,
    DynamicCache,
    Gemma2Config,
    Gemma2ForCausalLM,
    Gemma3Config,
    Gemma3ForCausalLM,
    Gemma3ForConditionalGeneration,
    Gemma3TextConfig,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    RwkvConfig,
    RwkvForCausalLM,
)
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.pytorch_utils import Conv1D

import agentkv
from agentkv.cache.eviction.view import Attention
from agentkv.cache.hf.families import attentions, describe
from agentkv.cache.hf.hybrids import HYBRIDS
from agentkv.cache.hf.projection import output_projection
from tests.agentkv.cache.hybrids import HYBRIDS as MADE_HYBRIDS
from tests.agentkv.cache.policies_under_test import CASES

TINY = {
    "vocab_size": 20, "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2,
    "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8, "pad_token_id": 0,
    "bos_token_id": None, "eos_token_id": None,
}  # fmt: skip
GPT2_TINY = {"vocab_size": 20, "n_positions": 16, "n_embd": 16, "n_layer": 2, "n_head": 2}


def projection_of(model):
    """An attention module, and the module that leads from its heads back to the stream."""
    attention = attentions(model)[1]
    return attention, getattr(attention, name_of(model))


def name_of(model):
    """The name of that module."""
    return "c_proj" if model.config.model_type == "gpt2" else "o_proj"


# ---- geometry


def test_every_hybrid_family_has_a_tiny_model():
    assert set(MADE_HYBRIDS) == set(HYBRIDS)


def test_a_gemma_has_one_layer_without_a_window_in_six(model_of):
    model = model_of("gemma3")
    geometry = describe(model)
    assert [layer.window for layer in geometry.layers] == [12, 12, 12, 12, 12, None]
    assert geometry.policy_layers == (5,)
    assert geometry.layers[0].head_dim == 12 and geometry.layers[0].num_heads == 2
    assert model.config.hidden_size // model.config.num_attention_heads == 8


def test_where_the_weights_are_makes_no_difference(family, model):
    split = copy.deepcopy(model)
    layers = split.transformer.h if family == "gpt2" else split.model.layers
    layers[1].to("meta")
    assert describe(split) == describe(model)
    agentkv.attach(split)
    assert {weight.device.type for weight in layers[1].parameters()} == {"meta"}
    assert {weight.device.type for weight in layers[0].parameters()} == {"cpu"}


# ---- dtypes


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.sample("values")
def test_in_any_dtype_the_cache_is_as_close_to_the_truth_as_eager_attention(
    family, model_of, cache_for, tokens, dtype
):
    model, own = model_of(family).to(dtype), model_of(family).to(dtype)
    own.set_attn_implementation("eager")
    truth = copy.deepcopy(own).to(torch.float64)
    truth.config._experts_implementation = "eager"  # the faster one knows no float64
    ids = tokens(2, 40)
    cache = cache_for(model, policy="full")
    found, expected = [], []
    reference = DynamicCache(config=own.config)
    with torch.no_grad():
        exact = truth(ids).logits
        for piece in ids.split([31, 1, 1, 1, 4, 2], dim=1):
            found.append(model(piece, past_key_values=cache).logits)
            expected.append(own(piece, past_key_values=reference).logits)
    assert all(piece.dtype == dtype for piece in found)
    error = (torch.cat(found, dim=1) - exact).abs()
    yardstick = (torch.cat(expected, dim=1) - exact).abs()
    # both only round, but not in the same places; measured: means 0.91 to 1.14 of each other
    assert error.mean() <= 1.3 * yardstick.mean()
    assert error.max() <= 2 * yardstick.max()
    assert yardstick.mean() < 0.05 * exact.std(), "a yardstick that nothing could fail"


@pytest.mark.parametrize("is_scaled", [True, False])
def test_a_gpt2_scales_its_logits_as_it_was_told(cache_for, tokens, is_scaled):
    config = GPT2Config(
        **GPT2_TINY, scale_attn_weights=is_scaled, scale_attn_by_inverse_layer_idx=not is_scaled
    )
    model = GPT2LMHeadModel(config).eval()
    for layer in model.transformer.h:
        layer.attn.c_attn.weight.data.mul_(20)  # else attention is flat and any scale passes
    ids = tokens(1, 12) % 20
    with torch.no_grad():
        model.set_attn_implementation("eager")
        expected = model(ids).logits
        found = cache_for(model, policy="full").feed(model, ids)
    torch.testing.assert_close(found, expected[:, -1], atol=1e-5, rtol=1e-5)


def test_attention_that_is_told_to_cap_its_logits_refuses(llama):
    agentkv.attach(llama)
    attention = ALL_ATTENTION_FUNCTIONS[llama.config._attn_implementation]
    q, kv = torch.zeros(1, 4, 3, 8), torch.zeros(1, 2, 3, 8)
    with pytest.raises(ValueError, match="soft-caps"):
        attention(llama.model.layers[0].self_attn, q, kv, kv, None, softcap=50.0)


# ---- output projection


def test_heads_times_their_entries_add_up_to_what_the_block_puts_out(family, model, tokens):
    attention, projection = projection_of(model)
    seen = []
    handle = projection.register_forward_hook(
        lambda module, args, output: seen.append((args[0], output))
    )
    with torch.no_grad():
        model(tokens(1, 9))
        bias = projection(torch.zeros_like(seen[0][0]))
    handle.remove()
    joined, expected = seen[0]
    rows = output_projection(attention, name_of(model), attention.head_dim).weight
    config = model.config
    heads = config.num_attention_heads
    size = joined.shape[-1] // heads
    assert rows.shape == (heads, size, config.hidden_size) and rows.dtype == torch.float32
    total = bias.double()
    for head in range(heads):
        total = total + joined[..., head * size : (head + 1) * size].double() @ rows[head].double()
    torch.testing.assert_close(total, expected.double(), atol=1e-5, rtol=1e-5)


def test_a_projection_is_the_weights_themselves_whatever_their_dtype(family, model):
    for dtype in (torch.bfloat16, torch.float32):
        module = projection_of(model.to(dtype))[0]
        found = output_projection(module, name_of(model), module.head_dim).weight
        weights = {weight.data_ptr() for weight in module.parameters()}
        assert found.dtype == dtype and found.data_ptr() in weights


class Lora(nn.Module):
    """An adapted layer, of the shape that PEFT gives it."""

    def __init__(self, base, names=("first", "second"), active=("first",), bias=False):
        super().__init__()
        self.base_layer = base
        size = base.nx if isinstance(base, Conv1D) else base.in_features
        out = base.nf if isinstance(base, Conv1D) else base.out_features
        self.lora_A = nn.ModuleDict({name: nn.Linear(size, 3, bias=False) for name in names})
        self.lora_B = nn.ModuleDict({name: nn.Linear(3, out, bias=bias) for name in names})
        self.lora_embedding_A = nn.ParameterDict()
        self.lora_magnitude_vector = nn.ModuleDict()
        self.lora_dropout = nn.ModuleDict({name: nn.Dropout(0.5) for name in names})
        self.scaling = {name: 2.0 + number for number, name in enumerate(names)}
        self.use_dora = dict.fromkeys(names, False)
        self.active_adapters, self.merged_adapters = list(active), []
        self.disable_adapters = False

    @property
    def merged(self):
        return bool(self.merged_adapters)

    def delta(self, name, x):
        return self.lora_B[name](self.lora_A[name](x)) * self.scaling[name]

    def forward(self, x):
        out = self.base_layer(x)
        if self.disable_adapters or self.merged:
            return out
        for name in self.active_adapters:
            out = out + self.delta(name, self.lora_dropout[name](x))
        return out

    @torch.no_grad()
    def merge(self):
        for name in self.active_adapters:
            delta = self.lora_B[name].weight @ self.lora_A[name].weight * self.scaling[name]
            weight = self.base_layer.weight
            weight += delta.T if isinstance(self.base_layer, Conv1D) else delta
        self.merged_adapters = list(self.active_adapters)


def adapted(model, **more):
    """The model with an adapted output projection in every layer, and those."""
    found = []
    for attention in attentions(model):
        found.append(Lora(getattr(attention, name_of(model)), **more))
        setattr(attention, name_of(model), found[-1])
    return model.eval(), found


STATES = {
    "one adapter": lambda lora: None,
    "both": lambda lora: setattr(lora, "active_adapters", ["first", "second"]),
    "the other": lambda lora: setattr(lora, "active_adapters", ["second"]),
    "none active": lambda lora: setattr(lora, "active_adapters", []),
    "switched off": lambda lora: setattr(lora, "disable_adapters", True),
    "merged": lambda lora: lora.merge(),
}


@torch.no_grad()
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("state", STATES)
@pytest.mark.sample("values")
def test_an_adapted_projection_weighs_each_value_as_the_module_itself_does(
    family, model, state, bias
):
    model, adapters = adapted(model, bias=bias)
    attention, module = projection_of(model)
    assert module is adapters[1]
    STATES[state](module)
    heads, size = model.config.num_attention_heads, attention.head_dim
    values = torch.randn(2, heads, 5, size)
    expected = []
    for head in range(heads):  # one head at a time through the module, but for its biases
        joined = torch.zeros(2, 5, heads, size)
        joined[:, :, head] = values[:, head]
        change = module(joined.flatten(2)) - module(torch.zeros(1, 1, heads * size))
        expected.append(change.abs().sum(-1))
    found = Attention(
        1.0, None, output_projection(attention, name_of(model), attention.head_dim)
    ).value_norms(values, 1)
    torch.testing.assert_close(found[..., 0], torch.stack(expected, 1), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["critical-ada-snapkv", "critical-by-head"])
@pytest.mark.sample("values")
def test_a_policy_that_reads_an_adapted_projection_keeps_what_it_would_keep_of_merged_weights(
    family, model_of, cache_for, tokens, name
):
    case, kept = CASES[name], []
    for is_merged in (True, False):
        model = model_of(family)
        torch.manual_seed(7)  # making a family's first model sets another seed
        model, adapters = adapted(model)
        for lora in adapters if is_merged else ():
            lora.merge()
            plain = lora.base_layer
            attention = next(m for m in model.modules() if lora in m.children())
            setattr(attention, name_of(model), plain)
        cache = cache_for(model, policy=case.make(), budget=case.budget)
        cache.feed(model, tokens(2, 90))
        cache.feed(model, tokens(2, 1, seed=1))
        cache.check()
        kept.append([cache.kept(layer) for layer in range(len(cache.layers))])
    for mine, theirs in zip(*kept, strict=True):
        for row, other in zip(mine, theirs, strict=True):
            assert all(torch.equal(a, b) for a, b in zip(row, other, strict=True))


def test_a_cache_of_an_adapted_model_comes_back_from_a_file(llama, cache_for, tokens, tmp_path):
    model, _ = adapted(llama)
    cache = cache_for(model, policy=CASES["critical-ada-snapkv"].make(), budget=24)
    cache.feed(model, tokens(1, 60))
    cache.save(tmp_path / "cache")
    loaded = agentkv.Cache.load(tmp_path / "cache", model)
    assert torch.equal(loaded.feed(model, tokens(1, 5)), cache.feed(model, tokens(1, 5)))


class Eight(nn.Linear):
    """A layer of 8-bit weights, as quantising libraries make them."""

    def __init__(self):
        super().__init__(32, 32, bias=False)
        self.weight = nn.Parameter(torch.ones(32, 32, dtype=torch.int8), requires_grad=False)


class Adapted(nn.Module):
    def __init__(self, base):
        super().__init__()
        self.base = base

    @property
    def weight(self):
        return self.base.weight


def dora(plain):
    lora = Lora(plain)
    lora.use_dora["first"] = True
    return lora


@pytest.mark.parametrize(
    ("replace", "message"),
    [
        (lambda plain: Eight(), "o_proj of LlamaAttention holds Parameter of torch.int8"),
        (lambda plain: Adapted(plain), "is a Adapted; expected nn.Linear or Conv1D"),
        (lambda plain: Lora(Eight()), "o_proj of LlamaAttention holds Parameter of torch.int8"),
        (lambda plain: dora(plain), "adapter 'first' is more than two matrices.*merge it"),
        (lambda plain: Lora(plain).to("meta"), "device meta.*offloaded"),
        (lambda plain: plain.to(torch.float8_e4m3fn), "holds Parameter of torch.float8_e4m3fn"),
        (lambda plain: plain.to("meta"), "device meta.*offloaded"),
    ],
)
def test_a_projection_that_cannot_be_read_is_refused(llama, replace, message):
    attention = llama.model.layers[1].self_attn
    attention.o_proj = replace(attention.o_proj)
    with pytest.raises(ValueError, match=message):
        output_projection(attention, "o_proj", 8)
    with pytest.raises(ValueError, match="LlamaMLP has no output projection"):
        output_projection(llama.model.layers[1].mlp, "", 8)


# ---- refusals


def bart(**more):
    return BartConfig(
        vocab_size=20, d_model=16, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2,
        decoder_attention_heads=2, encoder_ffn_dim=16, decoder_ffn_dim=16,
        max_position_embeddings=16, **more,
    )  # fmt: skip


def seeing_gemma():
    vision = {
        "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1,
        "num_attention_heads": 2, "image_size": 8, "patch_size": 4,
    }  # fmt: skip
    config = Gemma3Config(
        text_config=TINY, vision_config={"model_type": "siglip_vision_model", **vision},
        mm_tokens_per_image=4, boi_token_index=17, eoi_token_index=18, image_token_index=19,
    )  # fmt: skip
    return Gemma3ForConditionalGeneration(config)


def changed(make, **more):
    model = make()
    for name, value in more.items():
        setattr(model.config, name, value)
    return model


def gemma():
    return Gemma3ForCausalLM(Gemma3TextConfig(**TINY, sliding_window=8))


def mimo():
    if "mimo_v2_flash" not in CONFIG_MAPPING:
        pytest.skip("this transformers does not have MiMo")
    return AutoModelForCausalLM.from_config(CONFIG_MAPPING["mimo_v2_flash"](**TINY, v_head_dim=4))


def llama_model():
    return LlamaForCausalLM(LlamaConfig(**TINY))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: BloomForCausalLM(BloomConfig(vocab_size=20, hidden_size=16, n_layer=1, n_head=2)),
         "this bloom model is not supported: h.0 computes its attention itself"),
        (lambda: DiffLlamaForCausalLM(DiffLlamaConfig(**TINY | {"num_key_value_heads": 2})),
         r"layers.0(.self_attn \(DiffLlamaAttention\) changes its values after they were stored"
         r"| computes its attention itself)"),  # the second in transformers 4.57
        (mimo,
         r"layers.0.self_attn \(MiMo.*\) has keys of 8 channels and values of 4"),
        (lambda: RwkvForCausalLM(RwkvConfig(vocab_size=20, hidden_size=16, num_hidden_layers=2)),
         r"blocks.0 has no attention to keys and values .* attention \(RwkvSelfAttention\)"),
        (lambda: Gemma2ForCausalLM(Gemma2Config(**TINY)),
         r"this gemma2 model is not supported: its attention soft-caps its logits"),
        (lambda: BartModel(bart()),
         "this bart model is not supported: it attends to a second input"),
        (lambda: BartForCausalLM(bart(is_decoder=True)), "this bart model is not supported"),
        (lambda: GPT2LMHeadModel(GPT2Config(**GPT2_TINY, add_cross_attention=True)),
         "this gpt2 model is not supported: it attends to a second input"),
        (lambda: changed(gemma, attn_logit_softcapping=50.0),
         r"this gemma3_text model is not supported: .* \(attn_logit_softcapping\)"),
        (lambda: changed(gemma, use_bidirectional_attention=True),
         "see what follows them"),
        (lambda: changed(llama_model, layer_types=["full_attention", "chunked_attention"]),
         "layers of the kind chunked_attention; known: full_attention, sliding_attention"),
    ],
)  # fmt: skip
def test_a_model_that_would_be_computed_wrongly_is_refused_by_name(make, message):
    model = make()
    before = model.config._attn_implementation
    with pytest.raises(ValueError, match=message):
        agentkv.Cache.for_model(model, policy="full")
    assert model.config._attn_implementation == before, "a refused model was changed"


@pytest.mark.parametrize("other", ["eager", "sdpa"])
@pytest.mark.sample("values")
def test_a_model_given_other_attention_after_attach_is_refused(
    family, model, cache_for, tokens, other
):
    if (family, other) == ("gpt_oss", "sdpa"):
        other = "eager"  # it has no other
    cache = cache_for(model, policy="full")
    cache.feed(model, tokens(1, 7))
    model.set_attn_implementation(other)
    held = cache.nbytes
    with pytest.raises(ValueError, match=f"set to '{other}' after agentkv.attach"), torch.no_grad():
        model(tokens(1, 2), past_key_values=cache)
    assert (cache.seen, cache.nbytes) == (7, held)
    cache.check()
    agentkv.attach(model)
    cache.feed(model, tokens(1, 2))
    assert cache.seen == 9
