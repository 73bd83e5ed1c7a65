"""The cache, fed the prompt in one piece, against kvpress around the same model: the same positions
stay in every layer, sequence and head, and what is decoded then sees the same.
"""

import copy
from collections import defaultdict
from dataclasses import dataclass, field

import pytest
import torch
from kvpress import (
    AdaKVPress,
    CriticalAdaKVPress,
    CriticalKVPress,
    DecodingPress,
    ExpectedAttentionPress,
    KnormPress,
    ObservedAttentionPress,
    PyramidKVPress,
    SnapKVPress,
    StreamingLLMPress,
    TOVAPress,
)
from transformers import AttentionInterface, DynamicCache

import agentkv
from agentkv.policies.allocators import Shared, Uniform
from agentkv.policies.gates import Fixed
from agentkv.policies.policy import Policy
from agentkv.policies.precision import Dense
from agentkv.policies.scorers import Function, WindowMean
from agentkv.policies.selectors import TopK

RATIO, BUDGET, WINDOW = 0.6, 38, 8
ALIKE = {"window": WINDOW, "kernel": 5, "pool": "avg"}
GUARANTEE = {"safeguard": "guarantee"}
CLOSE = {"atol": 1e-5, "rtol": 0}


def snapkv_press(ratio=RATIO):
    return SnapKVPress(ratio, window_size=WINDOW, kernel_size=5)


def beside_the_window(first_stage):
    """kvpress counts the window, whose rows come first by score, in its first stage."""
    return (int(BUDGET * first_stage) - WINDOW) / (BUDGET - WINDOW) + 1e-6


def tova():
    scorer = WindowMean(window=1, kernel=1, pool="avg")
    return Policy("tova", Fixed(), Shared(), scorer, TopK(protected=1), Dense())


@dataclass(frozen=True)
class Case:
    press: object
    policy: object
    attention: str = "sdpa"
    budget: int | float = BUDGET


CASES = {
    "streaming": Case(StreamingLLMPress(RATIO, n_sink=4), agentkv.policy("streaming", sinks=4)),
    "snapkv": Case(snapkv_press(), agentkv.policy("snapkv", **ALIKE)),
    "snapkv-eager": Case(snapkv_press(), agentkv.policy("snapkv", **ALIKE), "eager"),
    "snapkv-share": Case(snapkv_press(), agentkv.policy("snapkv", **ALIKE), budget=0.4),
    "h2o": Case(
        ObservedAttentionPress(RATIO),
        agentkv.policy("h2o", normalize=True, protected=0),
        "eager",
    ),
    "tova": Case(TOVAPress(RATIO), tova()),
    "expected-attention": Case(
        ExpectedAttentionPress(RATIO), agentkv.policy("expected-attention", queries=96)
    ),
    "pyramidkv": Case(
        # the same line over the layers, see test_parts
        PyramidKVPress(0.5, window_size=WINDOW, kernel_size=5, beta=5),
        agentkv.policy("pyramidkv", **ALIKE, beta=25),
        budget=48,
    ),
    **{
        f"ada-{floor}": Case(
            AdaKVPress(snapkv_press(), alpha_safeguard=floor),
            agentkv.policy("ada-snapkv", **ALIKE, **GUARANTEE, floor=floor),
        )
        for floor in (0.2, 0.8)
    },
    **{
        f"critical-{ratio}": Case(
            CriticalKVPress(snapkv_press(), first_stage_ratio=ratio),
            agentkv.policy("critical-snapkv", **ALIKE, first_stage=beside_the_window(ratio)),
        )
        for ratio in (0.25, 0.5)
    },
}


def cache_of(model, policy, budget=BUDGET):
    return agentkv.Cache.for_model(model, policy=policy, budget=budget, prefill="whole")


def kept_in(cache, length):
    """Per layer (B, H, T) bool."""
    kept = []
    for layer in range(len(cache.layers)):
        by_row = cache.kept(layer)
        stays = torch.zeros(len(by_row), len(by_row[0]), length, dtype=torch.bool)
        for row, heads in enumerate(by_row):
            for head, positions in enumerate(heads):
                assert (positions.diff() > 0).all()
                stays[row, head, positions] = True
        kept.append(stays)
    return kept


@pytest.mark.parametrize("name", CASES)
def test_the_same_positions_stay(family, ids, model_of, kept_by, name):
    case = CASES[name]
    model = model_of(family)
    cache = cache_of(model, case.policy, case.budget)
    cache.feed(model, ids)
    cache.check()
    theirs = kept_by(case.press, family, ids, case.attention)
    for found, expected in zip(kept_in(cache, ids.shape[1]), theirs, strict=True):
        assert torch.equal(found, expected)


def test_critical_on_ada_gives_heads_as_many_rows(family, draw, model_of, kept_by):
    """For one sequence: of several, kvpress adds up the heads' budgets."""
    ids = draw(batch=1)
    model = model_of(family)
    policy = agentkv.policy("critical-ada-snapkv", **ALIKE, **GUARANTEE, floor=0.2)
    cache = cache_of(model, policy)
    cache.feed(model, ids)
    theirs = kept_by(CriticalAdaKVPress(snapkv_press(), first_stage_ratio=0.25), family, ids)
    for found, expected in zip(kept_in(cache, ids.shape[1]), theirs, strict=True):
        assert torch.equal(found.sum(-1), expected.sum(-1))


@pytest.mark.parametrize("name", CASES)
def test_with_room_for_all_nothing_changes(family, ids, model_of, kept_by, name):
    case = CASES[name]
    press = copy.deepcopy(case.press)
    press.compression_ratio = 0.0
    for kept in kept_by(press, family, ids, case.attention):
        assert kept.all()
    model, own = model_of(family), model_of(family)
    cache, full = cache_of(model, case.policy, 96), cache_of(model, "full", None)
    found, unevicted = cache.feed(model, ids), full.feed(model, ids)
    if case.policy.scorer.tracker is None:
        assert torch.equal(found, unevicted)
    else:  # attention that returns its masses sums in another order
        torch.testing.assert_close(found, unevicted, **CLOSE)
    torch.testing.assert_close(found, own(ids).logits[:, -1], **CLOSE)
    for kept in kept_in(cache, ids.shape[1]):
        assert kept.all()


def test_the_norms_of_projected_values_are_the_same(family, ids, layers, model_of):
    model = model_of(family)
    cache = cache_of(model, agentkv.policy("critical-snapkv", **ALIKE), 96)
    cache.feed(model, ids)
    for store, layer in zip(cache.cache_layers, layers, strict=True):
        theirs = CriticalKVPress.vwl1norm(layer.values, layer.module).flatten(0, 1)
        for lane, expected in enumerate(theirs):
            ours = store.storage.norms(lane)[0, 0, :, 0]
            torch.testing.assert_close(ours, expected, atol=1e-4, rtol=0)


def hiding(kept):
    """Attention over a full cache in which each layer's `kept` (B, H, T) of the prompt is all that
    new tokens see of it."""

    def attend(module, query, key, value, attention_mask, scaling=None, **kwargs):
        group, num_new = query.shape[1] // key.shape[1], query.shape[2]
        seen = torch.ones(num_new, key.shape[2], dtype=torch.bool).tril(key.shape[2] - num_new)
        seen = seen.expand(*key.shape[:2], -1, -1).clone()
        if num_new < key.shape[2]:
            stays = kept[module.layer_idx]
            seen[..., : stays.shape[2]] &= stays[:, :, None]
        key, value, seen = (x.repeat_interleave(group, dim=1) for x in (key, value, seen))
        logits = query.double() @ key.double().transpose(-1, -2) * scaling
        weights = logits.masked_fill(~seen, -torch.inf).softmax(-1)
        return (weights @ value.double()).transpose(1, 2).to(query.dtype), None

    return attend


@torch.no_grad()
def test_heads_of_unequal_length_attend_as_a_full_cache_with_a_mask_does(
    family, ids, draw, model_of, kept_by
):
    """And as kvpress does, which puts keys that nothing attends to where it pruned."""
    press = AdaKVPress(snapkv_press(), alpha_safeguard=0.2)
    kept = kept_by(press, family, ids)
    assert any(len(stays.sum(-1).unique()) > 1 for stays in kept)
    AttentionInterface.register("hiding", hiding(kept))
    ours, masked, theirs = model_of(family), model_of(family, "hiding"), model_of(family)
    policy = agentkv.policy("ada-snapkv", **ALIKE, **GUARANTEE, floor=0.2, schedule="prefill")
    cache, full, pressed = cache_of(ours, policy), DynamicCache(), DynamicCache()
    cache.feed(ours, ids)
    masked(ids, past_key_values=full)
    with press(theirs):
        theirs(ids, past_key_values=pressed)
    for token in draw(length=5, seed=1).split(1, dim=1):
        found = ours(token, past_key_values=cache).logits
        torch.testing.assert_close(found, masked(token, past_key_values=full).logits, **CLOSE)
        torch.testing.assert_close(found, theirs(token, past_key_values=pressed).logits, **CLOSE)
    cache.check()


@dataclass
class NotedKnorm(KnormPress):
    """Key norms, and which positions they left, as (B, H, n) per layer and in kvpress's order."""

    left: dict = field(default_factory=lambda: defaultdict(lambda: torch.zeros(2, 2, 0)))

    def compress(self, module, hidden_states, keys, values, attentions, kwargs):
        compressed = super().compress(module, hidden_states, keys, values, attentions, kwargs)
        before, last = self.left[module.layer_idx], int(kwargs["position_ids"].max())
        num_new = keys.shape[2] - before.shape[2]
        new = torch.arange(last + 1 - num_new, last + 1).expand(2, 2, -1)
        same = (compressed[0][:, :, :, None] == keys[:, :, None]).all(-1)  # (B, H, n, T)
        assert (same.sum(-1) == 1).all()
        self.left[module.layer_idx] = torch.cat([before, new], -1).gather(2, same.int().argmax(-1))
        return compressed


@torch.no_grad()
def test_every_tenth_decoded_token_a_gate_evicts_like_a_decoding_press(model_of):
    """kvpress is told the positions, which transformers would count from what is left. No token
    comes twice, since in the first layer the keys of both would be equally long; and the model is
    not Qwen3, which gives all keys one length."""
    shuffle = torch.Generator().manual_seed(0)
    ids = torch.stack([torch.randperm(128, generator=shuffle) for _ in range(2)])
    norms = Function("knorm", lambda rows: -rows.keys_values()[0].norm(dim=-1))
    policy = Policy("knorm", Fixed(interval=10), Uniform(), norms, TopK(), Dense())
    model, theirs = model_of("llama"), model_of("llama")
    cache, pressed = cache_of(model, policy, 40), DynamicCache()
    knorm = NotedKnorm()
    cache.feed(model, ids[:, :96])
    lengths, num_evictions = [], 0
    with DecodingPress(knorm, compression_interval=10, target_size=40)(theirs):
        theirs(ids[:, :96], past_key_values=pressed)
        for place in range(96, 128):
            token, place = ids[:, place, None], torch.tensor([[place]])
            found = cache.feed(model, token)
            expected = theirs(token, past_key_values=pressed, position_ids=place).logits[:, -1]
            torch.testing.assert_close(found, expected, **CLOSE)
            kept = [cache.kept(layer) for layer in range(4)]
            lengths.append({len(p) for rows in kept for heads in rows for p in heads})
            assert lengths[-1] == {layer.keys.shape[2] for layer in pressed.layers}
            if lengths[-1] == {40}:
                num_evictions += 1
                for layer, of_layer in knorm.left.items():
                    ours = torch.stack([torch.stack(heads) for heads in kept[layer]])
                    assert torch.equal(ours, of_layer.sort(-1).values.long())
    expected = [*range(97, 106), 40, *range(41, 50), 40, *range(41, 50), 40, 41, 42]
    assert lengths == [{length} for length in expected]
    assert num_evictions == 3
    cache.check()
