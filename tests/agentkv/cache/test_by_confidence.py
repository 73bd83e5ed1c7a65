"""Other uses of the confidence: a gate that decides once a turn, and a precision that waits until
the model is sure."""

import copy
from dataclasses import replace

import pytest
import torch

import agentkv
from agentkv.cache.eviction.turns import Turns
from agentkv.policies.entries import PolicyError
from tests.agentkv.cache.caches_in_use import feed_packed, kept

BY_TURN = {"threshold": 0.001, "protected": 4, "by_turn": True}
"""A turn of any tokens is sure, one without tokens is not."""


def by_turn(model):
    policy = agentkv.policy("conf-kv", **BY_TURN)
    return agentkv.Cache.for_model(model, policy=policy, budget=24)


def held(cache):
    return [layer.storage.counts for layer in cache.cache_layers]


def num_dense(cache):
    return [layer.storage.dense.counts for layer in cache.cache_layers]


# ---- turns


def test_a_turn_ends_with_an_input_and_its_mean_decides():
    turns = Turns()
    assert turns.decide([0.9, 0.9], 12) == [0, 0], "nothing was decoded yet"
    assert turns.decide([0.2, 1.0], 1) is None
    assert turns.decide([0.6, 0.0], 1) is None
    assert turns.decide([0.9, 0.9], 3) == pytest.approx([0.4, 0.5])
    assert turns.decide([0.9, 0.9], 3) == [0, 0]


def test_a_gate_by_turn_cuts_after_an_input_and_leaves_the_reply_alone(model_of, tokens):
    model = model_of("llama")
    cache = by_turn(model)
    cache.feed(model, tokens(1, 40, seed=0))
    assert held(cache) == [[24]] * 4
    for seed in range(3):
        cache.feed(model, tokens(1, 1, seed=seed))
        assert held(cache) == [[24]] * 4
    cache.feed(model, tokens(1, 9, seed=4))
    assert held(cache) == [[12]] * 4
    for seed, count in enumerate((13, 14, 15)):
        cache.feed(model, tokens(1, 1, seed=seed))
        assert held(cache) == [[count]] * 4
        cache.check()


@pytest.mark.parametrize("how", ["copy", "snapshot", "file", "reorder"])
def test_a_cache_in_the_middle_of_a_turn_goes_on_as_it_would_have(model_of, tokens, tmp_path, how):
    model = model_of("llama")
    cache = by_turn(model)
    for count in (40, 1, 1):
        cache.feed(model, tokens(2, count, seed=count))
    if how == "copy":
        other = copy.deepcopy(cache)
    elif how == "snapshot":
        other, snapshot = copy.deepcopy(cache), cache.snapshot()
        other.feed(model, tokens(2, 9, seed=9))
        other.restore(snapshot)
    elif how == "file":
        cache.save(tmp_path / "cache")
        other = agentkv.Cache.load(tmp_path / "cache", model)
    else:
        other = copy.deepcopy(cache)
        other.reorder_cache(torch.tensor([1, 0]))
        other.reorder_cache(torch.tensor([1, 0]))
    assert other.turns.counts == cache.turns.counts == [2, 2]
    assert other.turns.sums == cache.turns.sums
    for each in (cache, other):
        each.feed(model, tokens(2, 9, seed=5))
    assert held(cache) == [[12, 12]] * 4
    assert kept(other) == kept(cache)


def test_sequences_of_a_batch_have_turns_of_their_own(model_of, tokens):
    model = model_of("llama")
    cache = agentkv.Cache.for_model(
        model, policy=agentkv.policy("conf-kv", **BY_TURN | {"threshold": 0.5}), budget=24
    )
    for count, confidences in ((40, (1, 1)), (1, (0.9, 0.2)), (9, (0.0, 0.0))):
        model(input_ids=tokens(2, count, seed=count), past_key_values=cache)
        cache.apply_gate_at(confidences)
    assert held(cache) == [[12, 24]] * 4


# ---- precision by confidence


def test_entries_that_wait_for_a_sure_model_are_dense_until_then(model_of, tokens):
    model = model_of("llama")
    policy = agentkv.policy("int8", recent=8, sure=0.5)
    cache = agentkv.Cache.for_model(model, policy=policy)
    for confidences, expected in (((0.4, 0.4), [100, 100]), ((0.5, 0.4), [37, 101])):
        model(input_ids=tokens(2, 100 if cache.seen == 0 else 1, seed=1), past_key_values=cache)
        cache.apply_gate_at(confidences)
        assert num_dense(cache) == [expected] * 4
        cache.check()


@pytest.mark.parametrize("sure", [0.0, 1.0])
def test_a_precision_that_is_always_or_never_sure_is_another_policy(model_of, tokens, sure):
    model = model_of("llama")
    waiting = agentkv.policy("int4", recent=8, sure=sure)
    other = agentkv.policy("full") if sure else agentkv.policy("int4", recent=8)
    caches = [agentkv.Cache.for_model(model, policy=each) for each in (waiting, other)]
    for seed, count in enumerate((110, 1, 1, 80, 1)):
        logits = [each.feed(model, tokens(2, count, seed=seed)) for each in caches]
        assert torch.equal(*logits)
    assert num_dense(caches[0]) == num_dense(caches[1])


def test_packed_caches_ask_each_policy_for_its_own_confidence(model_of, tokens):
    model = model_of("llama")
    policies = [
        agentkv.policy("int8", recent=8, sure=0.004),
        agentkv.policy("conf-kv", threshold=0.3, protected=4),
        agentkv.policy("full"),
    ]

    def caches():
        budgets = (None, 24, None)
        both = zip(policies, budgets, strict=True)
        return [agentkv.Cache.for_model(model, policy=p, budget=b) for p, b in both]

    together, alone = caches(), caches()
    for seed, count in enumerate((100, 1, 1)):
        ids = [tokens(1, count, seed=10 * seed + i) for i in range(3)]
        feed_packed(model, together, ids)
        for cache, own in zip(alone, ids, strict=True):
            cache.feed(model, own)
    for found, expected in zip(together, alone, strict=True):
        assert held(found) == held(expected) and num_dense(found) == num_dense(expected)
        if expected.policy.needs_logits:
            assert found.confidences == pytest.approx(expected.confidences, abs=1e-5)


def test_bytes_need_a_precision_that_does_not_wait(model_of):
    policy = agentkv.policy("streaming-int8", sinks=2, recent=8)
    waiting = agentkv.policy("int8", recent=8, sure=0.9).precision
    policy = replace(policy, precision=waiting)
    with pytest.raises(PolicyError, match="quantizes after every forward"):
        agentkv.Cache.for_model(model_of("llama"), policy=policy, budget="1MiB")


@pytest.mark.parametrize(
    ("name", "parameters", "message"),
    [
        ("int8", {"sure": 1.5}, "sure must be"),
        ("conf-kv", {"by_turn": 1}, "by_turn must be true or false"),
    ],
)
def test_values_that_mean_nothing_are_refused(name, parameters, message):
    with pytest.raises(PolicyError, match=message):
        agentkv.policy(name, **parameters)
