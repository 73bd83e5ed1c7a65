"""Newest tokens are forgotten where nothing has left since, and assisted decoding works by that."""

from dataclasses import replace

import pytest
import torch
from transformers import DynamicCache

import agentkv
from agentkv.cache.misuse import Misuse
from agentkv.cache.numbering import Numbering
from tests.agentkv.cache.conftest import VOCAB, families
from tests.agentkv.cache.policies_under_test import CASES, PUBLISHED
from tests.sampling import sampled

CLOSE = {"atol": 2e-4, "rtol": 2e-4}
PLAIN = {"max_new_tokens": 20, "do_sample": False, "eos_token_id": VOCAB}  # no such token
PROMPT_LOOKUP = {**PLAIN, "prompt_lookup_num_tokens": 4}
SAYS_WHEN = hasattr(DynamicCache, "activate_past_recording")
"""Whether this transformers announces assisted decoding before its first forward."""


def roomy(cache_for, model, name):
    """A cache in which nothing is evicted for some hundred tokens."""
    case = CASES[name]
    return cache_for(model, policy=case.make(), budget=case.budget and 4096)


def repeating(tokens, length, seed=3):
    """A prompt in which lookups find something, of which much is rejected."""
    return tokens(1, 17, seed=seed).repeat(1, length // 17 + 1)[:, :length]


@torch.no_grad()
@pytest.mark.parametrize("name", sampled(PUBLISHED, every=8, first=1))
def test_what_was_forgotten_leaves_no_trace_while_nothing_is_evicted(
    llama, cache_for, tokens, name
):
    ids, wrong = tokens(2, 50), tokens(2, 7, seed=1)
    cache, never = roomy(cache_for, llama, name), roomy(cache_for, llama, name)
    for each in (cache, never):
        each.label("goal", 10, pinned=True)
        each.label("page", pinned=True)
        each.feed(llama, ids[:, :40])
    cache.feed(llama, wrong[:, :6])
    llama(wrong[:, 6:], past_key_values=cache)
    cache.crop(-6)
    cache.crop(40)
    assert cache.seen == 40 and torch.equal(cache.ids, ids[:, :40].int())
    assert (cache.spans(1), cache.pins(1)) == (never.spans(1), never.pins(1))
    cache.check()
    for piece in (ids[:, 40:45], ids[:, 45:46], ids[:, 46:]):
        given = [llama(piece, past_key_values=each).logits for each in (cache, never)]
        assert torch.allclose(*given, **CLOSE)
    cache.check()
    assert all(torch.equal(*both) for both in zip(cache.kept(3)[1], never.kept(3)[1], strict=True))


@pytest.mark.parametrize("family", families("llama", "gpt_oss"))
def test_prompt_lookup_says_what_plain_decoding_says(family, model_of, cache_for, tokens):
    model, ids = model_of(family), repeating(tokens, 60)
    cache = cache_for(model, policy="full")
    wanted = model.generate(ids, **PLAIN)
    if not SAYS_WHEN and any(cache.is_sliding):
        pytest.skip("this transformers does not say when tokens may be rolled back")
    made = model.generate(ids, past_key_values=cache, **PROMPT_LOOKUP)
    assert torch.equal(made[:, :80], wanted)  # transformers 4.57 may return one token too many
    assert torch.equal(cache.ids, made[:, :-1].int())
    cache.check()
    longer = model.generate(made, **PLAIN)
    assert torch.equal(model.generate(made, past_key_values=cache, **PLAIN), longer)
    cache.check()


@pytest.mark.skipif(not SAYS_WHEN, reason="this transformers does not announce assisted decoding")
def test_a_prompt_that_was_seen_is_not_fed_once_more(llama, cache_for, tokens):
    cache, ids = cache_for(llama, policy="full"), repeating(tokens, 50)
    made = llama.generate(ids, past_key_values=cache, **PROMPT_LOOKUP)
    with pytest.raises(ValueError, match="feeds the 69 tokens that this cache has seen once more"):
        llama.generate(made, past_key_values=cache, **PROMPT_LOOKUP)
    assert cache.seen == 69
    cache.reset()
    assert llama.generate(made, past_key_values=cache, **PROMPT_LOOKUP).shape == (1, 90)


@pytest.mark.parametrize("do_sample", [False, True])
def test_an_assistant_drafts_for_a_cache(llama, model_of, cache_for, tokens, do_sample):
    assistant = model_of("qwen3")
    agentkv.attach(assistant)
    made = []
    for cache in (DynamicCache(), cache_for(llama, policy="full")):
        torch.manual_seed(0)
        settings = {"max_new_tokens": 12, "do_sample": do_sample, "assistant_model": assistant}
        made.append(llama.generate(tokens(1, 30), past_key_values=cache, **settings))
    assert torch.equal(*made)


@pytest.mark.skipif(not SAYS_WHEN, reason="this transformers does not announce assisted decoding")
@pytest.mark.parametrize("name", sampled(PUBLISHED, every=4))
def test_every_policy_takes_drafts_or_says_at_once_why_not(llama, cache_for, tokens, name):
    case, ids = CASES[name], repeating(tokens, 110)
    cache = cache_for(llama, policy=case.make(), budget=case.budget)
    if cache.policy.recall.looks_back or cache.policy.allocator.learns:
        with pytest.raises(Misuse, match="assisted decoding feeds|drafted ones for contexts"):
            llama.generate(ids, past_key_values=cache, **PROMPT_LOOKUP)
        assert cache.seen == 0
        cache.feed(llama, ids)
    else:
        made = llama.generate(ids, past_key_values=cache, **PROMPT_LOOKUP)
        assert cache.seen == 129 and torch.equal(cache.ids, made[:, :129].int())
    cache.check()  # every layer is within its budget again


@pytest.mark.skipif(not SAYS_WHEN, reason="this transformers does not announce assisted decoding")
def test_evictions_wait_for_the_verdict_on_a_draft_and_for_nothing_else(llama, cache_for, tokens):
    ids = tokens(1, 60)
    cache = cache_for(llama, policy="window", budget=24)
    cache.feed(llama, ids[:, :40])
    cache.activate_past_recording()
    with torch.no_grad():
        llama(ids[:, 40:48], past_key_values=cache)
        assert cache.kept(0)[0][0].tolist() == [*range(16, 48)]
        cache.crop(-5)
        assert cache.kept(0)[0][0].tolist() == [*range(19, 43)]
        for token in ids[:, 43:46].split(1, dim=1):
            llama(token, past_key_values=cache)
        assert cache.kept(0)[0][0].tolist() == [*range(22, 46)]
        cache.activate_past_recording()
        llama(ids[:, 46:50], past_key_values=cache)
    assert cache.snapshot().seen == 50  # nobody may roll back what a snapshot holds
    assert cache.kept(0)[0][0].tolist() == [*range(26, 50)]
    cache.activate_past_recording()
    cache.feed(llama, ids[:, 50:])
    assert cache.kept(0)[0][0].tolist() == [*range(36, 60)]


def test_tokens_after_which_entries_left_are_not_forgotten(llama, cache_for, tokens):
    cache = cache_for(llama, policy="streaming", budget=30)
    cache.feed(llama, tokens(1, 40))
    kept = cache.kept(0)[0][0].tolist()
    with pytest.raises(ValueError, match=r"newest 1 tokens.*40 of 40, under policy 'streaming'"):
        cache.crop(-1)
    with pytest.raises(ValueError, match="seen 40 tokens and cannot forget 41"):
        cache.crop(-41)
    assert (cache.seen, cache.kept(0)[0][0].tolist()) == (40, kept)
    cache.crop(0)
    cache.crop(40)
    cache.drop(range(20, 30))
    cache.feed(llama, tokens(1, 6))  # fits into what was dropped
    with pytest.raises(ValueError, match="It can forget 6"):
        cache.crop(-7)
    cache.crop(-6)
    cache.check()
    restored = cache.snapshot()
    cache.feed(llama, tokens(1, 2))
    cache.restore(restored)
    with pytest.raises(ValueError, match="It can forget 0"):
        cache.crop(-1)


def test_a_models_own_window_bounds_what_is_forgotten(model_of, cache_for, tokens):
    model = model_of("mistral-window")
    cache = cache_for(model, policy="full")
    cache.feed(model, tokens(1, 23))
    cache.crop(-3)
    cache.feed(model, tokens(1, 4, seed=1))
    with pytest.raises(ValueError, match="the model's window had moved"):
        cache.crop(-1)
    cache.check()


def test_padding_and_renumbered_positions_are_not_forgotten(llama, cache_for, tokens):
    cache, ids = cache_for(llama, policy="full"), tokens(2, 12)
    mask = torch.ones_like(ids)
    mask[0, :5] = 0
    cache.feed(llama, ids, mask)
    cache.feed(llama, tokens(2, 4))
    cache.crop(-4)
    with pytest.raises(ValueError, match="padding was fed"):
        cache.crop(-1)
    cache = cache_for(llama, policy="full")
    cache.geometry = replace(cache.geometry, max_positions=24)
    cache.feed(llama, tokens(1, 20))
    cache.drop(range(0, 12))
    cache.feed(llama, tokens(1, 8))
    assert cache.numberings != [Numbering()] and cache.num_renumberings == 1
    cache.crop(-8)
    with pytest.raises(ValueError, match="counted anew"):
        cache.crop(-1)


@pytest.mark.skipif(not SAYS_WHEN, reason="this transformers does not announce assisted decoding")
def test_a_gate_and_drafts_do_not_go_together(llama, cache_for, tokens):
    cache = cache_for(llama, policy="conf-kv-int8", budget=24)
    gate, ids = cache.gate(), repeating(tokens, 40)
    with pytest.raises(ValueError, match="gate of policy 'conf-kv-int8' evicts after each token"):
        llama.generate(ids, past_key_values=cache, logits_processor=[gate], **PROMPT_LOOKUP)
    assert cache.seen == 0
    with torch.no_grad():
        llama(ids, past_key_values=cache)
    cache.check()


def test_a_cache_that_forgot_most_of_what_came_singly_can_be_saved(llama, tokens, tmp_path):
    cache = agentkv.Cache.for_model(llama, policy="full")
    for seed in range(12):
        cache.feed(llama, tokens(1, 1, seed=seed))
    cache.crop(-9)
    cache.save(tmp_path / "cache")
    loaded = agentkv.Cache.load(tmp_path / "cache", llama)
    new = tokens(1, 1, seed=20)
    assert torch.equal(loaded.feed(llama, new), cache.feed(llama, new))


@pytest.mark.parametrize("count", [2, 60])
def test_a_cache_that_forgot_part_of_what_came_at_once_has_snapshots(llama, tokens, count):
    cache = agentkv.Cache.for_model(llama)
    cache.feed(llama, tokens(1, 60))
    cache.crop(-count)
    kept = cache.snapshot()
    cache.feed(llama, tokens(1, 5, seed=1))
    cache.restore(kept)
    assert cache.seen == 60 - count
    cache.check()


def test_only_a_cache_that_keeps_all_as_it_is_can_be_cropped_without_a_trace(llama, cache_for):
    croppable = {name for name in PUBLISHED if roomy(cache_for, llama, name).is_croppable}
    assert croppable == {"full"}


@pytest.mark.parametrize("name", ["full", "int8", "window", "lookback-int8"])
def test_a_cache_says_whether_forgetting_leaves_what_was_there_before(
    llama, cache_for, tokens, name
):
    cache = roomy(cache_for, llama, name)
    cache.feed(llama, tokens(1, 40))
    for count in (1, 40):
        assert cache.forgets_exactly(count) == (name == "full")
    assert not cache.forgets_exactly(41)
    assert cache.seen == 40


def test_and_a_models_own_window_is_counted(model_of, cache_for, tokens):
    model = model_of("mistral-window")
    cache = cache_for(model, policy="full")
    cache.feed(model, tokens(1, 5))
    assert cache.forgets_exactly(1)
    cache.feed(model, tokens(1, 60))
    assert not cache.forgets_exactly(1)


def test_the_gate_of_a_policy_without_one_does_nothing(llama, cache_for, tokens):
    gated = {name for name in PUBLISHED if roomy(cache_for, llama, name).policy.needs_logits}
    assert gated == {"conf-kv", "conf-kv-int8", "conf-kv-l"}
    cache, other = (cache_for(llama, policy="window", budget=24) for _ in range(2))
    settings = {"logits_processor": [cache.gate()], **PLAIN}
    made = llama.generate(tokens(1, 40), past_key_values=cache, **settings)
    assert torch.equal(made, llama.generate(tokens(1, 40), past_key_values=other, **PLAIN))
    assert cache.confidences is None and cache.nbytes == other.nbytes
