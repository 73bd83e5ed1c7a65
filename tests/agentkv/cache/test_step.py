"""The compiled step: what it computes is what transformers' forward computes, whatever it serves;
what it does not know goes through transformers."""

import copy
import io

import pytest
import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM
from transformers.modeling_outputs import CausalLMOutputWithPast

import agentkv
from agentkv.cache.hf import forward, known_code
from agentkv.cache.hf.decoder import read_decoder
from agentkv.cache.hf.forward import COMPILED, decoding
from agentkv.cache.packed import PackedForward
from tests.agentkv.cache.caches_in_use import kept
from tests.agentkv.cache.conftest import SIZES, make
from tests.agentkv.cache.every_family import changed, tiny
from tests.agentkv.cache.policies_under_test import CASES
from tests.sampling import sampled

LONG = {"rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 32}


def llama(**settings):
    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(**SIZES | settings)).eval()


def qwen3(**settings):
    torch.manual_seed(0)
    return Qwen3ForCausalLM(Qwen3Config(**SIZES | settings)).eval()


MODELS = {
    **{name: lambda name=name: make(name) for name in ("llama", "qwen2", "qwen3", "mistral")},
    "mistral-window": lambda: make("mistral-window"),
    "biases": lambda: llama(attention_bias=True, mlp_bias=True),
    "odd-sizes": lambda: llama(vocab_size=93, hidden_size=36, intermediate_size=41),
    "many-heads": lambda: qwen3(num_attention_heads=9, num_key_value_heads=3, head_dim=16),
    "one-head-each": lambda: llama(num_key_value_heads=4),
    "tied": lambda: qwen3(tie_word_embeddings=True),
    "yarn": lambda: llama(rope_parameters=LONG | {"rope_type": "yarn"}),
    "linear": lambda: llama(rope_parameters=LONG | {"rope_type": "linear"}),
    "llama3": lambda: llama(
        rope_parameters=LONG
        | {"rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    ),
}
COMPILED_FAMILIES = (
    *("arcee", "cohere", "cohere2", "ernie4_5", "exaone4", "gemma", "gemma3_text", "glm", "glm4"),
    *("granite", "helium", "hyperclovax", "internlm3", "jais2", "ministral", "ministral3"),
    *("nanochat", "nemotron", "olmo", "olmo2", "olmo3", "phi", "phi3", "seed_oss", "smollm3"),
    *("stablelm", "starcoder2"),
)
"""Besides those of `MODELS`."""

GROWING = {"rope_theta": 10000.0, "rope_type": "yarn", "factor": 4.0, "llama_4_scaling_beta": 0.3}
MODELS |= {
    "growing-queries": lambda: changed(
        "ministral3", rope_parameters=GROWING | {"original_max_position_embeddings": 16}
    ),
    "capped-logits": lambda: changed("gemma3_text", final_logit_softcapping=0.7),
    "norm-of-each-head": lambda: changed("cohere", use_qk_norm=True),
    "post-norms": lambda: changed("hyperclovax", use_post_norm=True),
    "parallel": lambda: changed("stablelm", use_parallel_residual=True),
    "partly-turned": lambda: changed("phi3", partial_rotary_factor=0.5),
}
MODELS |= {name: lambda name=name: tiny(name) for name in COMPILED_FAMILIES}

FAR = {torch.float32: 2e-5, torch.bfloat16: 6e-2, torch.float16: 6e-3}
"""Largest distance of logits, relative to the largest, that rounding explains."""


def ordinary(model):
    """A copy of a model that always runs transformers' forward."""
    own = copy.deepcopy(model)
    own.forward = type(own).forward.__get__(own)
    return own


@pytest.fixture
def only_compiled(monkeypatch):
    """Makes an ordinary forward of a model fail, so that a passing test has seen a compiled one."""

    def forbid(model):
        def fail(*args, **kwargs):
            raise AssertionError("went the ordinary way")

        monkeypatch.setattr(type(model.model), "forward", fail)

    return forbid


def close(found, expected, dtype=torch.float32):
    assert found.dtype == expected.dtype and found.shape == expected.shape
    apart = (found - expected).abs().max() / expected.abs().max()
    assert apart <= FAR[dtype], f"{apart:.2g} apart"


@torch.no_grad()
def steps(model, cache, ids, start, count):
    """The logits of `count` tokens that are fed one by one, gate after each."""
    gate, found = cache.gate(), []
    for i in range(start, start + count):
        logits = model(ids[:, i : i + 1], past_key_values=cache).logits
        gate(None, logits[:, -1])
        cache.check()
        found.append(logits)
    return torch.cat(found, dim=1)


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("dtype", FAR, ids=str)
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.sample("values")
def test_logits_are_those_of_transformers_forward(name, dtype, batch, tokens):
    model = MODELS[name]().to(dtype)
    agentkv.attach(model)
    own = ordinary(model)
    ids = tokens(batch, 60).clamp_max(model.config.vocab_size - 1)
    cache, reference = (agentkv.Cache.for_model(each, policy="full") for each in (model, own))
    for each, its in ((model, cache), (own, reference)):
        its.feed(each, ids[:, :50])
    close(steps(model, cache, ids, 50, 10), steps(own, reference, ids, 50, 10), dtype)
    assert decoding(model) == COMPILED


@torch.no_grad()
@pytest.mark.parametrize("padded", [0, 7])
@pytest.mark.parametrize("dtype", FAR, ids=str)
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.sample("values")
def test_a_page_has_the_logits_of_transformers_forward(name, dtype, padded, tokens):
    """Beside the steps: several tokens in a forward, few and many, run in plain torch."""
    model = MODELS[name]().to(dtype)
    agentkv.attach(model)
    own = ordinary(model)
    ids = tokens(2, 70).clamp_max(model.config.vocab_size - 1)
    mask = torch.ones_like(ids)
    mask[1, :padded] = 0
    found: list[list[torch.Tensor]] = [[], []]
    for each, logits in zip((model, own), found, strict=True):
        cache = agentkv.Cache.for_model(each, policy="full")
        for begin, end in ((0, 55), (55, 60), (60, 61), (61, 70)):
            seen = mask[:, :end] if padded else None
            output = each(ids[:, begin:end], attention_mask=seen, past_key_values=cache)
            logits.append(output.logits)
        cache.check()
    own, expected = (torch.cat(logits, dim=1) for logits in found)
    shown = mask.bool()
    close(own[shown], expected[shown], dtype)


@pytest.mark.sample("values")
@pytest.mark.parametrize("stored", [None, "float32", "bfloat16", "float16"])
@pytest.mark.parametrize("name", sampled(CASES, every=5))
def test_so_they_are_under_every_policy_in_every_dtype_of_entries(name, stored, tokens):
    case, model = CASES[name], make("llama")
    own = ordinary(model)
    caches = [
        agentkv.Cache.for_model(each, policy=case.make(), budget=case.budget, dtype=stored)
        for each in (model, own)
    ]
    ids = tokens(2, 150)
    for each, cache in zip((model, own), caches, strict=True):
        cache.feed(each, ids[:, :110])
    found, expected = (
        steps(each, cache, ids, 110, 40) for each, cache in zip((model, own), caches, strict=True)
    )
    # a key that rounds to another number of 16 bits moves logits further than the sum did
    far = torch.float32 if stored in (None, "float32") else torch.float16
    close(found, expected, far)
    assert kept(caches[0]) == kept(caches[1])
    assert caches[0].nbytes == caches[1].nbytes


def test_steps_and_pages_run_no_code_of_transformers(only_compiled, tokens):
    model = make("llama")
    cache = agentkv.Cache.for_model(model, policy="conf-kv-int8", budget=96)
    ids = tokens(1, 80)
    cache.feed(model, ids[:, :50])
    only_compiled(model)
    steps(model, cache, ids, 50, 10)
    cache.feed(model, ids[:, 60:])


def test_threads_change_no_bit(tokens):
    model = llama(hidden_size=64, intermediate_size=300, vocab_size=700)
    ids, before, found = tokens(1, 60), torch.get_num_threads(), []
    try:
        for num_threads in (1, 2, 5):
            cache = agentkv.Cache.for_model(model, policy="full")
            torch.set_num_threads(1)
            cache.feed(model, ids[:, :50])
            torch.set_num_threads(num_threads)
            found.append(steps(model, cache, ids, 50, 10))
    finally:
        torch.set_num_threads(before)
    assert torch.equal(found[0], found[1]) and torch.equal(found[0], found[2])


def test_caches_in_one_forward_take_one_step(only_compiled, tokens):
    model = make("llama")
    own, ids = ordinary(model), tokens(1, 200)
    names = ("full", "conf-kv-int8", "snapkv", "critical-ada-snapkv", "scissorhands")
    lengths = (50, 61, 72, 83, 94)

    def fed(model):
        caches = [
            agentkv.Cache.for_model(model, policy=CASES[name].make(), budget=CASES[name].budget)
            for name in names
        ]
        for cache, length in zip(caches, lengths, strict=True):
            cache.feed(model, ids[:, :length])
        return caches

    together, alone = fed(model), fed(own)
    own.forward = type(own).forward.__get__(own)
    for i in range(6):
        news = [ids[:, length + i : length + i + 1] for length in lengths]
        expected = [cache.feed(own, new) for cache, new in zip(alone, news, strict=True)]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(type(model.model), "forward", None)
            packed = PackedForward(model, together, news)
            logits = packed.read()
            packed.apply_gate(logits)
        close(logits, torch.cat(expected))
    assert [kept(cache) for cache in together] == [kept(cache) for cache in alone]


# ---- what goes the ordinary way


def hooked(model):
    model.model.layers[2].mlp.register_forward_hook(lambda module, args, output: output * 1.01)


def replaced_module(model):
    model.model.layers[1].mlp.act_fn = nn.GELU()


def replaced_forward(model):
    layer = model.model.layers[1]
    plain = layer.mlp.forward
    layer.mlp.forward = lambda x: plain(x) * 1.01


def quantized_dtype(model):
    layer = model.model.layers[1].mlp
    layer.up_proj.weight = nn.Parameter(layer.up_proj.weight.double())
    plain = layer.up_proj.forward
    layer.up_proj.forward = lambda x: plain(x.double()).float()


def globally_hooked(model):
    handle = torch.nn.modules.module.register_module_forward_hook(
        lambda module, args, output: output * 1.01 if type(module) is nn.Linear else output
    )
    model.undo = handle.remove


CHANGES = {
    hooked: "its model.layers.2.mlp has a hook",
    replaced_module: "its model.layers.1.mlp.act_fn is a GELU",
    replaced_forward: "the forward of its model.layers.1.mlp was replaced",
    quantized_dtype: "the forward of its model.layers.1.mlp.up_proj was replaced",
    globally_hooked: "torch has hooks for all modules",
}


@pytest.mark.parametrize("is_late", [False, True])
@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_a_changed_model_goes_the_ordinary_way_and_says_why(change, is_late, tokens):
    model = make("llama")
    own = copy.deepcopy(model)
    cache, reference = (agentkv.Cache.for_model(each, policy="full") for each in (model, own))
    own.forward = type(own).forward.__get__(own)
    ids = tokens(1, 60)
    cache.feed(model, ids[:, :50])
    reference.feed(own, ids[:, :50])
    if is_late:
        close(steps(model, cache, ids, 50, 3), steps(own, reference, ids, 50, 3))
    start = 53 if is_late else 50
    try:
        change(model)
        if change is not globally_hooked:
            change(own)
        plain = steps(own, reference, ids, start, 5)
        close(
            steps(model, cache, ids, start, 5), plain
        )  # a change moves logits a hundred times as far
        assert decoding(model) == f"transformers: {CHANGES[change]}"
    finally:
        getattr(model, "undo", lambda: None)()


def test_a_model_that_goes_the_ordinary_way_is_read_again_only_once_it_has_changed(
    tokens, monkeypatch
):
    readings = []

    def counted(model):
        readings.append(1)
        return read_decoder(model)

    monkeypatch.setattr(forward, "read_decoder", counted)
    model, ids = make("llama"), tokens(1, 60)
    handle = model.model.layers[0].mlp.register_forward_hook(lambda module, args, output: output)
    cache = agentkv.Cache.for_model(model, policy="full")
    cache.feed(model, ids[:, :50])
    steps(model, cache, ids, 50, 5)
    assert len(readings) == 1 and "has a hook" in decoding(model)
    handle.remove()
    steps(model, cache, ids, 55, 2)
    assert len(readings) == 2 and decoding(model) == COMPILED


def test_a_tensor_without_memory_of_its_own_keeps_no_model_from_compiled_steps(tokens):
    model, ids = make("llama"), tokens(1, 60)
    model.model.register_buffer("sparse", torch.eye(3).to_sparse(), persistent=False)
    cache = agentkv.Cache.for_model(model, policy="full")
    cache.feed(model, ids[:, :50])
    steps(model, cache, ids, 50, 2)
    assert decoding(model) == COMPILED


def test_weights_that_change_are_read_as_they_are(tokens):
    model, ids = make("llama"), tokens(1, 60)
    cache = agentkv.Cache.for_model(model, policy="full")
    cache.feed(model, ids[:, :50])
    steps(model, cache, ids, 50, 2)
    with torch.no_grad():
        model.lm_head.weight.mul_(2)  # in place
        model.model.norm.weight = nn.Parameter(model.model.norm.weight * 3)  # another tensor
    own = ordinary(model)
    snapshot = cache.snapshot()
    found = steps(model, cache, ids, 52, 1)
    other = agentkv.Cache.for_model(own, policy="full")
    own.forward = type(own).forward.__get__(own)
    other.feed(own, ids[:, :52])
    close(found, steps(own, other, ids, 52, 1))
    assert snapshot.seen == 52


@pytest.mark.parametrize(
    "asked",
    [
        {"output_hidden_states": True},
        {"return_dict": False},
        {"labels": torch.tensor([[3]])},
        {"attention_mask": torch.tensor([[1] * 50 + [0]])},
    ],
    ids=lambda asked: next(iter(asked)),
)
def test_what_a_step_does_not_answer_is_asked_of_transformers(asked, tokens):
    model, ids = make("llama"), tokens(1, 60)
    cache = agentkv.Cache.for_model(model, policy="full")
    cache.feed(model, ids[:, :50])
    with torch.no_grad():
        found = model(ids[:, 50:51], past_key_values=cache, **asked)
    if "output_hidden_states" in asked:
        assert len(found.hidden_states) == 5
    elif "labels" in asked:
        assert found.loss is not None
    elif "return_dict" in asked:
        assert isinstance(found, tuple)
    else:
        assert len(kept(cache)[0][0]) == 50, "padding was stored"


def test_embeddings_and_gradients_go_the_ordinary_way(tokens):
    model, ids = make("llama"), tokens(1, 60)
    cache = agentkv.Cache.for_model(model, policy="full")
    cache.feed(model, ids[:, :50])
    with torch.no_grad():
        embeds = model.get_input_embeddings()(ids[:, 50:51])
        model(inputs_embeds=embeds, past_key_values=cache)
    logits = model(ids[:, 51:52], past_key_values=cache).logits
    with pytest.raises(ValueError, match="a cache is for inference"):
        logits.sum().backward()


def test_given_positions_rotate_and_do_not_count(tokens):
    model, ids = make("llama"), tokens(2, 60)
    own = ordinary(model)
    cache, reference = (agentkv.Cache.for_model(each, policy="full") for each in (model, own))
    own.forward = type(own).forward.__get__(own)
    places = torch.tensor([[70], [91]])
    found = []
    for each, its in ((model, cache), (own, reference)):
        its.feed(each, ids[:, :50])
        with torch.no_grad():
            more = {"past_key_values": its, "position_ids": places}
            found.append(each(ids[:, 50:51], **more).logits)
    close(*found)
    assert kept(cache) == kept(reference)


def test_other_families_say_which_part_is_not_compiled(tokens):
    model = make("gpt2")
    agentkv.attach(model)
    assert decoding(model) == "transformers: its whole is a GPT2LMHeadModel"


def test_a_model_with_a_part_that_no_step_computes_says_which():
    model = changed("stablelm", qk_layernorm=True)
    agentkv.attach(model)
    assert decoding(model) == "transformers: its model.layers.0.self_attn has qk_layernorm"


def test_a_model_whose_step_computes_something_else_goes_the_ordinary_way(monkeypatch, tokens):
    wrong = known_code.NormCode("variance_epsilon", offset=1.0)
    monkeypatch.setitem(known_code.NORMS, "llama.LlamaRMSNorm", wrong)
    model, ids = make("llama").train(), tokens(1, 60)
    agentkv.attach(model)
    assert decoding(model) == COMPILED, "nothing is compared in training"
    before = torch.get_rng_state()
    assert decoding(model.eval()).startswith(
        "transformers: its compiled step differs from transformers' forward by "
    )
    assert torch.equal(torch.get_rng_state(), before)
    own = ordinary(model)
    found = []
    for each in (model, own):
        cache = agentkv.Cache.for_model(each, policy="full")
        cache.feed(each, ids[:, :50])
        found.append(steps(each, cache, ids, 50, 10))
    assert torch.equal(*found)


@pytest.mark.parametrize("name", ["forward", "_norm"])
def test_a_class_that_overrides_what_a_known_forward_calls_is_not_known(name):
    model = tiny("gemma3_text")
    norm = model.model.layers[1].input_layernorm
    kind = type(norm)
    other = type(kind.__name__, (kind,), {name: lambda self, x: x, "__module__": kind.__module__})
    norm.__class__ = other
    agentkv.attach(model)
    assert decoding(model) == "transformers: its model.layers.1.input_layernorm is a Gemma3RMSNorm"


def test_a_copied_model_steps_with_its_own_weights(tokens):
    model, ids = make("llama"), tokens(1, 60)
    agentkv.attach(model)
    twin = copy.deepcopy(model)
    with torch.no_grad():
        twin.lm_head.weight.mul_(-1)
    caches = [agentkv.Cache.for_model(each, policy="full") for each in (model, twin)]
    found = []
    for each, cache in zip((model, twin), caches, strict=True):
        cache.feed(each, ids[:, :50])
        found.append(steps(each, cache, ids, 50, 3))
    close(found[0], -found[1])


def test_an_attached_model_is_pickled_and_still_steps(only_compiled, tokens):
    model, ids = make("llama"), tokens(1, 60)
    agentkv.attach(model)
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    again = torch.load(file, weights_only=False)
    cache = agentkv.Cache.for_model(again, policy="full")
    cache.feed(again, ids[:, :50])
    only_compiled(again)
    assert isinstance(steps(again, cache, ids, 50, 3), torch.Tensor)


def test_a_step_returns_what_a_forward_returns(tokens):
    model, ids = make("llama"), tokens(1, 60)
    cache = agentkv.Cache.for_model(model, policy="full")
    cache.feed(model, ids[:, :50])
    with torch.no_grad():
        found = model(ids[:, 50:51], past_key_values=cache)
    assert isinstance(found, CausalLMOutputWithPast) and found.past_key_values is cache
    assert found.loss is None and found.hidden_states is None
