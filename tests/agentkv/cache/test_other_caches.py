"""An attached model with the caches of transformers, and compiled: it is the model it was."""

import pytest
import torch
from transformers import DynamicCache, QuantizedCache, StaticCache, cache_utils

import agentkv
from tests.agentkv.cache.conftest import FAMILIES

CLOSE = {"atol": 1e-4, "rtol": 1e-4}
PIECES = [17, 1, 1, 6, 1]
TOTAL = sum(PIECES)

CACHES = {
    "static": lambda config: StaticCache(config=config, max_cache_len=40),
    "static-full": lambda config: StaticCache(config=config, max_cache_len=TOTAL),
    "dynamic": lambda config: DynamicCache(config=config),
    "dynamic-without-windows": lambda config: DynamicCache(),
    "quantized": lambda config: QuantizedCache("fp8", config),
}


FULL = ("llama", "qwen2", "qwen3", "mistral", "gpt2")
HAS_FP8 = hasattr(cache_utils, "Fp8QuantizedLayer")


OFFERED = [
    (family, name)
    for family in FAMILIES
    for name in CACHES
    if name != "quantized" or (family in FULL and HAS_FP8)
]


def pair(model_of, family):
    """The same model attached, and with the attention it had."""
    model, own = model_of(family), model_of(family)
    agentkv.attach(model)
    return model, own


@torch.no_grad()
@pytest.mark.parametrize("padding", [0, 5])
@pytest.mark.parametrize("family, name", OFFERED, ids=map("-".join, OFFERED))
@pytest.mark.sample("values")
def test_every_cache_of_transformers_gives_the_logits_it_gave_before(
    model_of, tokens, family, name, padding
):
    model, own = pair(model_of, family)
    ids = tokens(2, TOTAL)
    mask = torch.ones_like(ids)
    mask[1, :padding] = 0
    places = (mask.cumsum(-1) - 1).clamp_min(0)
    caches = CACHES[name](model.config), CACHES[name](own.config)
    start = 0
    for count in PIECES:
        stop = start + count
        found, expected = (
            each(
                ids[:, start:stop],
                attention_mask=mask[:, :stop] if padding else None,
                position_ids=places[:, start:stop],
                past_key_values=cache,
            ).logits
            for each, cache in zip((model, own), caches, strict=True)
        )
        real = mask[:, start:stop].bool()
        torch.testing.assert_close(found[real], expected[real], **CLOSE)
        start = stop


@torch.no_grad()
def test_so_does_a_model_without_a_cache(family, model_of, tokens):
    model, own = pair(model_of, family)
    ids = tokens(2, 30)
    mask = torch.ones_like(ids)
    mask[0, :9] = 0
    for more in ({}, {"attention_mask": mask}):
        found, expected = (
            each(ids, use_cache=False, **more).logits[:, 9:] for each in (model, own)
        )
        torch.testing.assert_close(found, expected, **CLOSE)


@pytest.mark.parametrize("implementation", ["static", "dynamic"])
@pytest.mark.sample("values")
def test_generate_makes_the_same_tokens_with_its_own_caches(
    family, model_of, tokens, implementation
):
    model, own = pair(model_of, family)
    ids = tokens(3, 18)
    ids[0, :7], ids[2, :3] = 0, 0
    settings = {
        "attention_mask": (ids != 0).long(), "max_new_tokens": 8, "do_sample": False,
        "cache_implementation": implementation,
    }  # fmt: skip
    assert torch.equal(model.generate(ids, **settings), own.generate(ids, **settings))


@torch.no_grad()
def test_a_mask_of_ones_own_is_used_without_our_cache_and_refused_with_it(llama, model_of, tokens):
    own, ids = model_of("llama"), tokens(1, 6)
    agentkv.attach(llama)
    sees = torch.ones(6, 6, dtype=torch.bool).tril()
    sees[4, 1:3] = False
    found, expected = (each(ids, attention_mask=sees[None, None]).logits for each in (llama, own))
    torch.testing.assert_close(found, expected, **CLOSE)
    assert (found - llama(ids).logits).abs().max() > 1e-2, "a mask that hides nothing"
    cache = agentkv.Cache.for_model(llama, policy="full")
    with pytest.raises(ValueError, match="a padding mask has 2 dimensions, this one 4"):
        llama(ids, attention_mask=sees[None, None], past_key_values=cache)


@torch.no_grad()
def test_gradients_still_flow_through_an_attached_model(family, model_of, tokens):
    model, own = pair(model_of, family)
    found = []
    for each in (model, own):
        with torch.enable_grad():
            each(tokens(1, 9), use_cache=False).logits.sum().backward()
        found.append([p.grad for p in each.parameters() if p.grad is not None])
    assert len(found[0]) == len(found[1]) > 0
    for mine, theirs in zip(*found, strict=True):
        torch.testing.assert_close(mine, theirs, atol=1e-3, rtol=1e-3)


# ---- compiled


@pytest.mark.slow
@torch.no_grad()
def test_a_compiled_model_feeds_a_cache_as_the_plain_one_does(llama, tokens):
    llama.model.layers, llama.config.num_hidden_layers = llama.model.layers[:1], 1
    cache, twin = (
        agentkv.Cache.for_model(llama, policy="conf-kv-int8", budget=80) for _ in range(2)
    )
    for each in (cache, twin):
        each.feed(llama, tokens(1, 90))
    # one forward only: tracing, in which nothing of ours has a part, takes seconds
    compiled, new = torch.compile(llama, backend="eager"), tokens(1, 1, seed=1)
    found = compiled(new, past_key_values=cache).logits
    torch.testing.assert_close(found, llama(new, past_key_values=twin).logits, **CLOSE)
    cache.check()
    assert (cache.seen, cache.nbytes) == (91, twin.nbytes)
    agentkv.Cache.for_model(compiled, policy="full").feed(llama, new)  # the same model
