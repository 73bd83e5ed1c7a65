"""The cache against transformers' own: exact where nothing went, exact where something did."""

import pytest
import torch
from transformers import DynamicCache

import agentkv
from tests.agentkv.cache.conftest import families

CLOSE = {"atol": 1e-4, "rtol": 1e-4}
POLICIES = [
    ("window", {}, 20),
    ("streaming", {"sinks": 3}, 20),
    ("conf-kv", {"threshold": 0.5, "protected": 4}, 24),
    ("conf-kv", {"threshold": 0.5, "protected": 4, "slack": 5}, 24),
]
CHUNKS = [37, 1, 1, 1, 1, 1, 19, 1, 1, 1, 30, 1, 1, 7, 1]  # prompt, reply, page, reply, ...


@pytest.fixture(params=families("llama", "gpt2", "gemma3"))
def family(request):
    return request.param


@torch.no_grad()
def feed(model, cache, ids, chunks, **more):
    """Logits of each chunk, gate after each, the store audited after each."""
    gate, start = cache.gate(), 0
    for num_tokens in chunks:
        stop = start + num_tokens
        logits = model(
            ids[:, start:stop], past_key_values=cache, use_cache=True, **_upto(more, start, stop)
        ).logits
        yield start, stop, logits
        gate(ids[:, :stop], logits[:, -1])
        cache.check()
        start = stop


def _upto(more, start, stop):
    cut = {}
    if "attention_mask" in more:
        cut["attention_mask"] = more["attention_mask"][:, :stop]
    if "position_ids" in more:
        cut["position_ids"] = more["position_ids"][:, start:stop]
    return cut


@pytest.mark.parametrize("name", ["full", "window", "streaming", "conf-kv", "conf-kv-int8"])
@pytest.mark.sample("values")
def test_generate_is_that_of_transformers_own_cache_when_nothing_is_evicted(
    family, model_of, cache_for, tokens, name
):
    model, own = model_of(family), model_of(family)
    own.set_attn_implementation("eager")
    ids = tokens(1, 21)
    settings = {
        "max_new_tokens": 16, "do_sample": False, "output_logits": True,
        "return_dict_in_generate": True,
    }  # fmt: skip
    expected = own.generate(ids, past_key_values=DynamicCache(config=own.config), **settings)
    cache = cache_for(model, policy=name, budget=None if name == "full" else 128)
    found = model.generate(ids, past_key_values=cache, logits_processor=[cache.gate()], **settings)
    assert torch.equal(found.sequences, expected.sequences)
    torch.testing.assert_close(torch.stack(found.logits), torch.stack(expected.logits), **CLOSE)
    cache.check()
    assert cache.seen == 21 + 16 - 1  # the last sampled token is not fed


@pytest.mark.parametrize("policy", POLICIES, ids=lambda p: f"{p[0]}-{len(p[1])}")
@pytest.mark.sample("values")
def test_after_eviction_logits_are_those_of_a_full_cache_with_the_evicted_masked(
    family, model, judge, kept_of, cache_for, tokens, policy
):
    name, parameters, budget = policy
    ids = tokens(2, sum(CHUNKS))
    cache = cache_for(model, policy=agentkv.policy(name, **parameters), budget=budget)
    reference = judge(family)
    kept, num_evicted = None, 0
    for start, stop, logits in feed(model, cache, ids, CHUNKS):
        expected = reference.logits(ids[:, start:stop], kept)
        torch.testing.assert_close(logits, expected, **CLOSE)
        kept = kept_of(cache)  # before the gate: what the layers themselves left
        if stop < ids.shape[1]:
            cache.apply_gate(logits[:, -1])
            kept = kept_of(cache)
            num_evicted += sum(stop - len(row) for layer in kept for row in layer)
    assert num_evicted > 500
    # a judge that hides nothing disagrees, so the agreement above means something
    loud = judge(family).logits(ids, None)[:, -1]
    if "window" not in family:
        assert (loud - logits[:, -1]).abs().max() > 100 * CLOSE["atol"]


def test_a_manual_loop_is_generate(family, model_of, cache_for, tokens):
    ids = tokens(1, 80)
    model = model_of(family)
    policy = agentkv.policy("conf-kv-int8", threshold=0.5, recent=8)
    cache = cache_for(model, policy=policy, budget=96)
    made = model.generate(
        ids, past_key_values=cache, logits_processor=[cache.gate()], max_new_tokens=30,
        do_sample=False,
    )  # fmt: skip
    by_hand = cache_for(model, policy=policy, budget=96)
    logits = by_hand.feed(model, ids)
    new = [logits.argmax(-1, keepdim=True)]
    gate = by_hand.gate()
    with torch.no_grad():
        while len(new) < 30:
            logits = model(new[-1], past_key_values=by_hand).logits[:, -1]
            gate(None, logits)
            new.append(logits.argmax(-1, keepdim=True))
    assert torch.equal(made[:, 80:], torch.cat(new, dim=1))
    assert cache.nbytes == by_hand.nbytes
    assert all(
        torch.equal(cache.kept(i)[0][0], by_hand.kept(i)[0][0]) for i in range(len(cache.layers))
    )
    full_layers = cache.geometry.policy_layers
    assert cache.cache_layers[full_layers[0]].storage.num_quantized[0] > 0 or "window" in family


@pytest.mark.parametrize("policy", POLICIES[:3], ids=lambda p: p[0])
@pytest.mark.sample("values")
def test_a_sequence_in_a_left_padded_batch_is_the_sequence_alone(
    family, model_of, cache_for, tokens, policy
):
    name, parameters, budget = policy
    model = model_of(family)
    chunks = [30, 1, 1, 1, 12, 1, 1]
    ids = tokens(2, sum(chunks))
    ids[0, :11] = 0
    mask = (ids != 0).long()
    mask[:, 30:] = 1
    positions = (mask.cumsum(-1) - 1).clamp_min(0)
    value = agentkv.policy(name, **parameters)
    together = cache_for(model, policy=value, budget=budget)
    both = [
        logits
        for *_, logits in feed(
            model, together, ids, chunks, attention_mask=mask, position_ids=positions
        )
    ]
    for row, padding in ((0, 11), (1, 0)):
        alone = cache_for(model, policy=value, budget=budget)
        mine = [chunks[0] - padding, *chunks[1:]]
        steps = feed(model, alone, ids[row : row + 1, padding:], mine)
        for (*_, logits), in_batch in zip(steps, both, strict=True):
            torch.testing.assert_close(logits[0, -1], in_batch[row, -1], **CLOSE)
        for layer in range(len(alone.layers)):
            assert torch.equal(together.kept(layer)[row][0], alone.kept(layer)[0][0])
    assert together.nbytes > 0


def test_generate_pads_a_batch_as_transformers_does(family, model_of, cache_for, tokens):
    model, own = model_of(family), model_of(family)
    own.set_attn_implementation("eager")
    ids = tokens(3, 18)
    ids[0, :7], ids[2, :3] = 0, 0
    mask = (ids != 0).long()
    settings = {"attention_mask": mask, "max_new_tokens": 10, "do_sample": False}
    cache = cache_for(model, policy="full")
    found = model.generate(ids, past_key_values=cache, **settings)
    assert torch.equal(found, own.generate(ids, **settings))
    assert [len(row[0]) for row in cache.kept(-1 if "window" not in family else 0)] == [
        20, 27, 24
    ] or "window" in family  # fmt: skip


def test_an_attached_model_without_the_cache_is_what_it_was(family, model_of, tokens):
    model, own = model_of(family), model_of(family)
    own.set_attn_implementation("eager")
    agentkv.attach(model)
    ids = tokens(2, 20)
    ids[1, :5] = 0
    mask = (ids != 0).long()
    with torch.no_grad():
        found = model(ids, attention_mask=mask).logits[:, 5:]
        expected = own(ids, attention_mask=mask).logits[:, 5:]
    torch.testing.assert_close(found, expected, **CLOSE)
    settings = {"attention_mask": mask, "max_new_tokens": 8, "do_sample": False}
    assert torch.equal(model.generate(ids, **settings), own.generate(ids, **settings))
