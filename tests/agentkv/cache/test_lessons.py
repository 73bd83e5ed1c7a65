"""An allocator that learns: once per prompt, from every layer, in the cache's own life."""

from dataclasses import replace

import pytest
import torch

import agentkv
from agentkv.policies.scorers import RemovalError
from tests.agentkv.cache.policies_under_test import SMALL


def tada(**parameters):
    return agentkv.policy("edie-tada", window=4, kernel=3, **parameters)


def learned(policy):
    return policy.allocator.remembered.get("", (0, ()))


@torch.no_grad()
def test_prompts_teach_and_single_tokens_do_not(llama, cache_for, tokens):
    policy = tada()
    cache = cache_for(llama, policy=policy, budget=16, chunk=64)
    cache.feed(llama, tokens(1, 12))
    assert learned(policy)[0] == 0  # nothing had to go
    for turn in range(1, 4):
        cache.feed(llama, tokens(1, 20, seed=turn))
        assert learned(policy)[0] == turn
        for i in range(3):
            llama(tokens(1, 1, seed=i), past_key_values=cache)
        assert learned(policy)[0] == turn
        cache.check()
    counts = [sum(map(len, cache.kept(layer)[0])) for layer in range(4)]
    assert sum(counts) == 4 * 2 * 16 and len(set(counts)) > 1


def test_what_is_learned_is_scores_times_the_turn_of_the_stream(llama, cache_for, tokens):
    sums, turns = [], {}

    class Watched(RemovalError):
        __slots__ = ()

        def scores(self, rows):
            found = RemovalError.scores(self, rows)
            past = rows.positions[0] < rows.num_seen - 4
            sums.append(float(found[:, past].double().sum()))
            return found

    policy = replace(tada(), scorer=Watched(window=4, alpha=0.1, kernel=3, pool="avg"))
    cache = cache_for(llama, policy=policy, budget=16)

    def listen(layer):
        streams = {}

        def enter(module, args, kwargs):
            streams["before"] = args[0] if args else kwargs["hidden_states"]

        def leave(module, args, output):
            before, added = streams["before"][0, -4:].double(), output[0][0, -4:].double()
            cosine = torch.cosine_similarity(before, before + added, dim=-1)
            turns[layer] = float((1 - cosine).mean())

        decoder = llama.model.layers[layer]
        decoder.register_forward_pre_hook(enter, with_kwargs=True)
        decoder.self_attn.register_forward_hook(leave)

    for layer in range(4):
        listen(layer)
    cache.feed(llama, tokens(1, 40))
    count, means = learned(policy)
    assert count == 1 and len(sums) == 4
    expected = [total * turns[layer] for layer, total in enumerate(sums)]
    assert means == pytest.approx(expected, rel=1e-4)


def test_caches_with_one_policy_value_learn_together_and_keys_apart(llama, cache_for, tokens):
    shop = tada(key="shop")
    for turn in range(2):
        cache_for(llama, policy=shop, budget=16).feed(llama, tokens(1, 30, seed=turn))
    assert shop.allocator.remembered["shop"][0] == 2
    assert tada(key="shop").allocator.remembered == {}


def test_a_batch_teaches_the_mean_of_its_sequences(llama, cache_for, tokens):
    ids = tokens(3, 40)
    alone = []
    for row in range(3):
        policy = tada()
        cache_for(llama, policy=policy, budget=16).feed(llama, ids[row : row + 1])
        alone.append(learned(policy)[1])
    together = tada()
    cache_for(llama, policy=together, budget=16).feed(llama, ids)
    count, means = learned(together)
    assert count == 1
    assert means == pytest.approx([sum(layer) / 3 for layer in zip(*alone, strict=True)], rel=1e-4)


@torch.no_grad()
def test_what_a_prompt_teaches_counts_from_the_next_prompt_on(llama, cache_for, tokens):
    policy = tada()
    cache = cache_for(llama, policy=policy, budget=16)

    def rows():
        return [sum(map(len, cache.kept(layer)[0])) for layer in range(4)]

    cache.feed(llama, tokens(1, 40))
    for i in range(5):
        assert rows() == [32] * 4  # earlier prompts taught nothing: all layers alike
        llama(tokens(1, 1, seed=i), past_key_values=cache)
    shares = policy.allocator.fitted(4).layers(16, 4, 65)
    cache.feed(llama, tokens(1, 20, seed=9))
    for i in range(5):
        assert rows() == [2 * share for share in shares]
        llama(tokens(1, 1, seed=i), past_key_values=cache)


@torch.no_grad()
def test_what_goes_while_decoding_is_no_part_of_the_next_context(model_of, cache_for, tokens):
    model = model_of("gpt_oss")
    cache, twin = (
        cache_for(model, policy=agentkv.policy("edie-tada", **SMALL), budget=24) for _ in range(2)
    )
    for each in (cache, twin):
        model(tokens(2, 60), past_key_values=each)
        model(tokens(2, 1, seed=1), past_key_values=each)
    learned = cache.policy.allocator.remembered
    assert learned[""][0] == 1
    # in so short a page rows go in one layer only, and it teaches nothing
    twin.restore(twin.snapshot())
    for each in (cache, twin):
        model(tokens(2, 2, seed=2), past_key_values=each)
        assert each.policy.allocator.remembered == learned
