"""A compiled look settles segments in place: what is stored is as if the cache had promoted the
fetched entries, evicted and quantized one after another."""

import pytest
import torch

import agentkv
from agentkv.cache import look_step
from agentkv.cache.look_step import UNSETTLED, rule_of
from agentkv.cache.storage.cold_tier import ColdTier
from agentkv_kernels.decoder import TARGET


def policy_of(name, *, when="unsure", **options):
    return agentkv.policy(name, when=when, threshold=1.0, blocks=2, block=8, **options)


def feed(model, cache, tokens, *, drops):
    logits = [cache.feed(model, tokens(2, 260))]
    for seed in range(40):
        if drops and seed == 10:
            cache.drop(range(20, 90))
        logits.append(cache.feed(model, tokens(2, 1, seed=seed)))
        cache.check()
    return torch.stack(logits)


def stored(cache):
    """What all tables hold, and what is lent."""
    return [
        (
            {name: [table.packed(f) for f in range(len(table.fields))] for name, table in own},
            [sorted(lent.items()) for lent in layer.cold.lent],
            layer.evicted_at,
        )
        for layer in cache.cache_layers
        for own in [layer.tables.items()]
    ]


@pytest.mark.parametrize("when", ["always", "unsure"])
@pytest.mark.parametrize("drops", [False, True])
@pytest.mark.parametrize("name", ["lookback", "lookback-int8"])
def test_segments_are_settled_as_by_promoting_evicting_and_quantizing(
    model_of, tokens, monkeypatch, name, drops, when
):
    model, promoted, found = model_of("llama"), [], []
    promote = ColdTier.promote
    monkeypatch.setattr(ColdTier, "promote", lambda *own: promoted.append(own) or promote(*own))
    for settles in (True, False):
        if not settles:
            assert not promoted  # not even where a table lacked capacity
            monkeypatch.setattr(look_step, "rule_of", lambda layer, sequence: UNSETTLED)
        cache = agentkv.Cache.for_model(model, policy=policy_of(name, when=when), budget=150)
        logits = feed(model, cache, tokens, drops=drops)
        found.append((cache, logits))
    (cache, logits), (other, expected) = found
    assert torch.equal(logits, expected)
    assert cache.num_looks == other.num_looks > 60 and cache.fetched == other.fetched
    assert cache.look_nbytes == other.look_nbytes
    # a table may have room for another block of scales
    assert abs(cache.cold_nbytes - other.cold_nbytes) <= 64 * len(cache.cache_layers)
    for one, judge in zip(stored(cache), stored(other), strict=True):
        assert one[0].keys() == judge[0].keys() and one[1:] == judge[1:]
        for table, fields in one[0].items():
            assert all(map(torch.equal, fields, judge[0][table])), table


@pytest.mark.parametrize("when", ["always", "unsure"])
@pytest.mark.parametrize("name", ["lookback", "lookback-int8"])
def test_a_step_in_which_cold_entries_must_leave_is_settled_by_the_cache(
    model_of, tokens, monkeypatch, name, when
):
    model, promoted, found = model_of("llama"), [], []
    promote = ColdTier.promote
    monkeypatch.setattr(ColdTier, "promote", lambda *own: promoted.append(own) or promote(*own))
    for settles in (True, False):
        if not settles:
            monkeypatch.setattr(look_step, "rule_of", lambda layer, sequence: UNSETTLED)
        policy = policy_of(name, when=when, cold=120)
        cache = agentkv.Cache.for_model(model, policy=policy, budget=150)
        logits = feed(model, cache, tokens, drops=True)
        found.append((cache, logits, len(promoted)))
    (cache, logits, num_left), (other, expected, num_promoted) = found
    assert 0 < num_left < (num_promoted - num_left) / 2
    assert torch.equal(logits, expected)
    for layer, judge in zip(cache.cache_layers, other.cache_layers, strict=True):
        for segment in range(2):
            held = [each.cold.storage.positions(segment).tolist() for each in (layer, judge)]
            assert held[0] == held[1] and len(held[0]) <= 120
    for one, judge in zip(stored(cache), stored(other), strict=True):
        assert one[0].keys() == judge[0].keys() and one[1:] == judge[1:]
        for table, fields in one[0].items():
            assert all(map(torch.equal, fields, judge[0][table])), table


def test_only_policies_by_age_with_an_int8_cold_tier_are_settled(model_of, tokens):
    model = model_of("llama")
    cases = {
        "lookback": ({}, 150),
        "lookback-int8": ({}, 150),
        "lookback ": ({"format": "int4"}, None),
        "lookback  ": ({"digests": True}, None),
        "lookback   ": ({"promotes": False}, None),
    }
    for name, (options, target) in cases.items():
        own = policy_of(name.strip(), **options)
        cache = agentkv.Cache.for_model(model, policy=own, budget=150)
        cache.feed(model, tokens(1, 200))
        rules = {rule_of(layer, 0) for layer in cache.cache_layers}
        assert rules == {UNSETTLED} if target is None else {rule[TARGET] for rule in rules} == {150}
    # a segment that might evict what it has just fetched is left to the caller
    cache = agentkv.Cache.for_model(model, policy=policy_of("lookback"), budget=15)
    cache.feed(model, tokens(1, 200))
    assert {rule_of(layer, 0) for layer in cache.cache_layers} == {UNSETTLED}
