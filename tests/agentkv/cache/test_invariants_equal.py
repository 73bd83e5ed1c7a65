"""Under some settings one policy degenerates into another and must equal it.

Equal to the last bit, rows and logits: both then do the same arithmetic on the same rows.
"""

from dataclasses import replace

import pytest
import torch

import agentkv
from agentkv.policies.gates import Fixed
from agentkv.policies.precision import Dense
from tests.agentkv.cache.policies_under_test import CASES, CHUNKS, QUERIES, SMALL
from tests.sampling import sampled

WINDOW = QUERIES["window"]


@torch.no_grad()
def live(model, policy, budget, ids, cache_for, settle=None):
    """Logits of every chunk, and what is kept after it, per layer."""
    cache = cache_for(model, policy=policy, budget=budget)
    found, start = [], 0
    for num_tokens in CHUNKS:
        new = ids[:, start : start + num_tokens]
        logits = model(new, past_key_values=cache).logits
        cache.apply_gate(logits[:, -1] if settle is None else settle)
        cache.check()
        found.append((logits, [cache.kept(layer) for layer in range(4)]))
        start += num_tokens
    return found, cache


def assert_equal(one, other):
    for (logits, kept), (others, theirs) in zip(one, other, strict=True):
        for rows, their_rows in zip(kept, theirs, strict=True):
            for heads, their_heads in zip(rows, their_rows, strict=True):
                assert all(torch.equal(a, b) for a, b in zip(heads, their_heads, strict=True))
        # To rounding: compiled attention serves some formats and plain torch others.
        torch.testing.assert_close(logits, others, rtol=1e-4, atol=1e-5)


def of(name, **parameters):
    return agentkv.policy(name, **parameters)


def never_unsure(name, **parameters):
    return of(name, threshold=0.0, **parameters)


def never_sure(name, **parameters):
    return of(name, threshold=1.1, **parameters)


def with_gate(policy):
    return replace(policy, gate=Fixed())


def exact(policy):
    return replace(policy, precision=Dense())


AGED = {"recent": 8, "protected": 8}
ALWAYS = {"tau1": 1e12, "tau2": 1e12, "tau3": 1e12}  # every layer is as good as the best
PAIRS = {
    "sure of nothing is the loose budget": (
        never_sure("conf-kv", protected=4), with_gate(of("conf-kv", protected=4)), 24,
    ),
    "nor in 8 bits": (
        never_sure("conf-kv-int8", **AGED), with_gate(of("conf-kv-int8", **AGED)), 80,
    ),
    "nor with a slope": (
        never_sure("conf-kv-l", **AGED), with_gate(of("conf-kv-l", **AGED)), 80,
    ),
    "recency alone is a window": (never_sure("conf-kv", mass_weight=0.0), of("window"), 24),
    "a flat slope is none": (
        never_sure("conf-kv-l", slope=(1.0, 1.0), **AGED), never_sure("conf-kv-int8", **AGED), 80,
    ),
    "all recent is nothing quantized": (
        of("conf-kv-int8", recent=80, threshold=0.5), of("conf-kv", threshold=0.5), 80,
    ),
    "all original is nothing quantized": (
        of("arkv", **SMALL, **ALWAYS), exact(of("arkv", **SMALL)), 24,
    ),
    "no sinks are a window": (of("streaming", sinks=0), of("window"), 24),
    "a flat pyramid is none": (of("pyramidkv", **SMALL, beta=1), of("snapkv", **SMALL), 24),
    "all of it a floor is no competition": (
        of("ada-snapkv", **SMALL, floor=1.0), of("snapkv", **SMALL), 24,
    ),
    "nor with a guarantee": (
        of("ada-snapkv", **SMALL, floor=1.0, safeguard="guarantee"), of("snapkv", **SMALL), 24,
    ),
    "one stage is no second": (
        of("critical-snapkv", **SMALL, first_stage=1.0), of("snapkv", **SMALL), 24,
    ),
    "nor with heads that compete": (
        of("critical-ada-snapkv", **SMALL, first_stage=1.0), of("ada-snapkv", **SMALL), 24,
    ),
    "a drop of nothing is the budget": (
        of("scissorhands", drop=0.0, protected=4),
        replace(of("scissorhands", protected=4), gate=Fixed()), 24,
    ),
    "a bare window mean": (
        of("arkv", window=6, kernel=3, gamma=0.0, alpha=1.0, **ALWAYS),
        of("snapkv", window=6, kernel=3, pool="avg"), 24,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", PAIRS)
def test_a_policy_at_its_limit_is_the_other(llama, cache_for, tokens, name):
    policy, other, budget = PAIRS[name]
    ids = tokens(2, sum(CHUNKS))
    found, cache = live(llama, policy, budget, ids, cache_for)
    expected, _ = live(llama, other, budget, ids, cache_for)
    assert_equal(found, expected)
    assert sum(len(row[0]) for row in cache.kept(0)) < ids.numel() * 0.9, "nothing went"
    if "nothing quantized" in name:
        assert not any(sum(store.storage.num_quantized) for store in cache.cache_layers)


@pytest.mark.parametrize("name", ["conf-kv", "conf-kv-int8", "conf-kv-l"])
def test_sure_of_everything_is_the_tight_budget(llama, cache_for, tokens, name):
    policy = never_unsure(name, protected=4, **({} if name == "conf-kv" else {"recent": 4}))
    found, _ = live(llama, policy, 80, tokens(2, sum(CHUNKS)), cache_for)
    layers = (50, 43, 37, 30) if name == "conf-kv-l" else (40,) * 4
    for _, kept in found:
        for rows, expected in zip(kept, layers, strict=True):
            assert {len(head) for row in rows for head in row} == {expected}


@pytest.mark.parametrize("name", ["conf-kv", "window"])
def test_recency_alone_is_a_window_at_the_tight_budget_too(llama, cache_for, tokens, name):
    parameters = {} if name == "window" else {"mass_weight": 0.0, "threshold": 0.0}
    found, _ = live(
        llama, of(name, **parameters), 24 if name == "conf-kv" else 12, tokens(1, sum(CHUNKS)),
        cache_for,
    )  # fmt: skip
    seen = 0
    for num_tokens, (_, kept) in zip(CHUNKS, found, strict=True):
        seen += num_tokens
        assert all(row[0].tolist() == list(range(seen - 12, seen)) for rows in kept for row in rows)


@pytest.mark.parametrize("name", sampled(CASES, every=8, first=1))
def test_a_budget_that_holds_everything_is_the_full_cache(llama, cache_for, tokens, name):
    case, ids = CASES[name], tokens(2, sum(CHUNKS))
    policy, budget = case.make(), sum(CHUNKS)
    if policy.precision.recent is not None:
        # what is quantized by age does not wait for a budget
        policy = replace(policy, precision=replace(policy.precision, recent=budget))
    if name.startswith("conf-kv") or name == "ada-by-confidence":
        policy = replace(policy, gate=replace(policy.gate, threshold=1.1))
    if name == "conf-kv-l":
        budget *= 2  # for the least of its layers
    found, cache = live(llama, policy, budget if case.is_bounded else None, ids, cache_for)
    expected, full = live(llama, "full", None, ids, cache_for)
    assert_equal(found, expected)
    assert not any(sum(store.storage.num_quantized) for store in cache.cache_layers)
