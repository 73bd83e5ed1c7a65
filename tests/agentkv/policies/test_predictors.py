"""Queries turned to coming positions, and the scores that follow from them."""

import dataclasses
import math

import pytest
import torch
from transformers import (
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    GPT2Config,
    GPT2LMHeadModel,
    GptOssConfig,
    GptOssForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
)
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

import agentkv
from agentkv.cache.hf.families import describe
from agentkv.policies.entries import PolicyError, Queries
from agentkv.policies.predictors import DistancePreference, ExpectedAttention, turned
from tests.agentkv.policies.shown import random_head, shown

SIZES = {
    "vocab_size": 32, "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8,
    "bos_token_id": None, "eos_token_id": None, "pad_token_id": 0,
}  # fmt: skip
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
MIXED = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 8}


def llama(rope):
    # the configuration adds to what it is given
    parameters = {"rope_theta": 1e4} | rope
    return LlamaForCausalLM(LlamaConfig(**SIZES, rope_parameters=parameters, rope_scaling=rope))


def queries_of(heads, *, num_queries=6, last=40, frequencies=(1.0, 0.1), seed=0):
    """Random queries (heads, 2, w, 4) of the newest positions up to `last`."""
    draw = torch.Generator().manual_seed(seed)
    rotated = torch.randn(heads, 2, num_queries, 4, generator=draw)
    positions = torch.arange(last - num_queries + 1, last + 1)
    return Queries(rotated, positions, torch.tensor(frequencies).expand(heads, -1))


def predicting(heads, queries, **given):
    """Entries whose keys are as wide as the queries."""
    entries = shown(heads, **given)
    keys = entries.keys_values()[0][..., :4]
    return dataclasses.replace(entries, keys_values=lambda: (keys, keys), queries=lambda: queries)


@pytest.mark.parametrize("rope", [{"rope_type": "default"}, YARN], ids=["plain", "yarn"])
def test_a_turned_query_is_what_the_model_would_have_rotated_there(rope):
    model = llama(rope)
    rotary, shape = model.model.rotary_emb, describe(model).layers[0]
    plain = torch.randn(1, 2, 5, 8, generator=torch.Generator().manual_seed(0))
    places = torch.arange(20, 25)
    rotated, _ = apply_rotary_pos_emb(plain, plain, *rotary(plain, places[None]))
    angles = torch.tensor(shape.frequencies).expand(1, -1)
    for there in (25, 3000):
        at = torch.full((1, 5), there)
        expected, _ = apply_rotary_pos_emb(plain, plain, *rotary(plain, at))
        found = turned(Queries(rotated, places, angles), torch.tensor([there]))
        torch.testing.assert_close(found, expected, atol=1e-3, rtol=0)


def test_turning_to_several_positions_is_the_mean_of_turning_to_each():
    queries, places = queries_of(2), [41, 47, 90]
    each = [turned(queries, torch.tensor([place])) for place in places]
    torch.testing.assert_close(turned(queries, torch.tensor(places)), sum(each) / 3)
    still = dataclasses.replace(queries, frequencies=torch.zeros(2, 0))
    assert turned(still, torch.tensor(places)) is still.rotated


def test_a_family_has_the_angles_of_its_own_layers():
    assert (
        describe(GPT2LMHeadModel(GPT2Config(n_layer=1, n_embd=8, n_head=2))).layers[0].frequencies
        == ()
    )
    near, far = describe(Gemma3ForCausalLM(Gemma3TextConfig(**SIZES, **MIXED))).layers
    assert near.frequencies == pytest.approx([1e4 ** (-i / 4) for i in range(4)])
    assert far.frequencies == pytest.approx([1e6 ** (-i / 4) for i in range(4)])
    oss = describe(GptOssForCausalLM(GptOssConfig(**SIZES, **MIXED, num_local_experts=2)))
    assert len(oss.layers[0].frequencies) == 4


def test_a_model_that_changes_its_angles_is_refused_before_anything_is_fed():
    model = llama({"rope_type": "dynamic", "factor": 2.0})
    assert describe(model).layers[0].frequencies is None
    agentkv.Cache.for_model(model, policy="snapkv", budget=64)
    with pytest.raises(PolicyError, match="'expected-attention' turns queries to coming positions"):
        agentkv.Cache.for_model(model, policy="expected-attention", budget=64)


def test_equal_queries_without_rotation_give_the_attention_that_they_give():
    head = random_head(3, num_entries=9)
    one = torch.tensor([0.5, -1.0, 2.0, 0.25])
    queries = Queries(one.expand(1, 2, 6, 4), torch.arange(24, 30), torch.zeros(1, 0))
    entries = predicting([head], queries, num_seen=30)
    scorer = ExpectedAttention(window=6, horizon=5, sinks=2, epsilon=0.0)
    logits = [sum(a * b for a, b in zip(one.tolist(), v[:4], strict=True)) for v in head.values]
    odds = [math.exp(logit) for logit in logits[2:]]
    expected = [
        odd / sum(odds) * math.sqrt(sum(x * x for x in v[:4]))
        for odd, v in zip(odds, head.values[2:], strict=True)
    ]
    assert scorer.scores(entries)[0].tolist() == pytest.approx([0.0, 0.0, *expected], rel=1e-5)


def test_queries_that_differ_favor_keys_in_the_direction_in_which_they_do():
    """The mean is 0, so that nothing but the variance speaks."""
    along = torch.tensor([[3.0, 0, 0, 0], [-3.0, 0, 0, 0]])
    queries = Queries(along.expand(1, 1, 2, 4), torch.arange(8, 10), torch.zeros(1, 0))
    keys = torch.eye(4)[None] * torch.tensor([1.0, -1.0, 1.0, 1.0])[:, None]
    entries = dataclasses.replace(
        shown([random_head(0, num_entries=4)]),
        keys_values=lambda: (keys, keys),
        queries=lambda: queries,
    )
    first, *others = ExpectedAttention(2, 5, 0, 0.0).scores(entries)[0].tolist()
    assert first > 2 * max(others) and max(others) == pytest.approx(min(others))


def test_a_mean_query_prefers_keys_at_the_distances_at_which_it_meets_them():
    """One angle of a quarter turn, one query that was rotated by nothing, and equal keys before
    rotation: a key meets the query if it is a multiple of 4 positions away."""
    quarter = torch.full((1, 1), math.pi / 2)
    queries = Queries(torch.tensor([[[[1.0, 0.0]]]]), torch.tensor([8]), quarter)
    keys = torch.tensor([[[math.cos(a), math.sin(a)] for a in (i * math.pi / 2 for i in range(8))]])
    entries = dataclasses.replace(
        shown([random_head(0, num_entries=8)], num_seen=9),
        positions=torch.arange(8)[None],
        keys_values=lambda: (keys, keys),
        queries=lambda: queries,
    )
    # one step behind token 8, whose query has turned as far as that of position 0
    found = DistancePreference(window=1, horizon=1).scores(entries)[0]
    expected = [math.sqrt(2) * math.cos((9 - i) * math.pi / 2) for i in range(8)]
    assert found.tolist() == pytest.approx(expected, abs=1e-5)


def test_queries_that_point_anywhere_prefer_long_keys_at_any_distance():
    both = torch.tensor([[[[1.0, 0.0], [-1.0, 0.0]]]])
    queries = Queries(both, torch.tensor([7, 8]), torch.zeros(1, 0))
    keys = torch.tensor([[[3.0, 0.0], [0.0, 1.0], [-2.0, 0.0]]])
    entries = dataclasses.replace(
        shown([random_head(0, num_entries=3)]),
        keys_values=lambda: (keys, keys),
        queries=lambda: queries,
    )
    found = DistancePreference(window=2, horizon=4).scores(entries)[0].tolist()
    assert found == pytest.approx([math.sqrt(1.5), -math.sqrt(1.5), 0.0], abs=1e-5)


SCORERS = [
    ExpectedAttention(window=6, horizon=9, sinks=1, epsilon=0.01),
    DistancePreference(window=6, horizon=9),
]


@pytest.mark.parametrize("scorer", SCORERS, ids=str)
@pytest.mark.parametrize("shorter", [5, 13, 19])
def test_a_segment_scores_the_same_alone_and_beside_a_longer_one(scorer, shorter):
    heads = [random_head(7, num_entries=shorter), random_head(8, num_entries=22)]
    queries = queries_of(2)
    together = scorer.scores(predicting(heads, queries, num_seen=41))
    assert together[:, -shorter:].isfinite().all()
    for i, head in enumerate(heads):
        own = Queries(queries.rotated[i, None], queries.positions, queries.frequencies[i, None])
        alone = scorer.scores(predicting([head], own, num_seen=41))
        torch.testing.assert_close(together[i, -head.num_entries :], alone[0])
