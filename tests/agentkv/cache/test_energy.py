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
    return policy.allocator.state.get("", (0, ()))


@torch.no_grad()
def test_prompts_teach_and_single_tokens_do_not(llama, cache_for, tokens):
    policy = tada()
    cache = cache_for(llama, policy=policy, budget=16, chunk=64)
    cache.feed(llama, tokens(1, 12))
    assert learned(policy)[0] == 1  # though nothing had to go
    for turn in range(2, 5):
        cache.feed(llama, tokens(1, 20, seed=turn))
        assert learned(policy)[0] == turn
        for i in range(3):
            llama(tokens(1, 1, seed=i), past_key_values=cache)
        assert learned(policy)[0] == turn
        cache.check()
    counts = [sum(map(len, cache.kept(layer)[0])) for layer in range(4)]
    assert sum(counts) == 4 * 2 * 16 and len(set(counts)) > 1


class _Watched(RemovalError):
    """Notes the rows it is shown, and the sum of equation 12 over those before the window."""

    __slots__ = ("sums",)

    def unpooled(self, rows):
        found = RemovalError.unpooled(self, rows)
        past = rows.positions[0] < rows.num_seen - 4
        self.sums.append(float(found[:, past].double().sum()))
        return found


def watched(**parameters):
    scorer = _Watched(window=4, alpha=0.1, kernel=3, pool="avg")
    object.__setattr__(scorer, "sums", [])
    return replace(tada(**parameters), scorer=scorer), scorer.sums


def test_what_is_learned_is_bounds_times_the_turn_of_the_stream(llama, cache_for, tokens):
    (policy, sums), turns = watched(), {}
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
    assert count == 1 and len(sums) == 8, "once for what is learned, once to be pooled"
    sums = sums[::2]
    expected = [total * turns[layer] for layer, total in enumerate(sums)]
    assert means == pytest.approx(expected, rel=1e-4)


def energies_by_hand(model, ids, window):
    """Return equations 11 to 13 of each layer in float64 and plain torch, from a forward without a
    cache: bounds on the error, summed over all heads and all tokens before the window, times the
    turn of the stream."""
    seen = {}

    def listen(layer):
        decoder = model.model.layers[layer]

        def enter(module, args, kwargs):
            seen[layer, "before"] = args[0] if args else kwargs["hidden_states"]

        def leave(module, args, output):
            seen[layer, "added"] = output[0]

        return [
            decoder.register_forward_pre_hook(enter, with_kwargs=True),
            decoder.self_attn.register_forward_hook(leave),
            *(
                getattr(decoder.self_attn, name).register_forward_hook(
                    lambda module, args, output, name=name: seen.update({(layer, name): output})
                )
                for name in ("q_proj", "k_proj", "v_proj")
            ),
        ]

    num_layers, length = model.config.num_hidden_layers, ids.shape[1]
    handles = [handle for layer in range(num_layers) for handle in listen(layer)]
    model(ids, use_cache=False)
    for handle in handles:
        handle.remove()
    cos, sin = model.model.rotary_emb(seen[0, "before"], torch.arange(length)[None])
    found = []
    for layer in range(num_layers):
        q, k, v = (
            seen[layer, name][0].double().view(length, -1, 8).transpose(0, 1)
            for name in ("q_proj", "k_proj", "v_proj")
        )
        q, k = (x * cos.double() + torch.cat([-x[..., 4:], x[..., :4]], -1) * sin for x in (q, k))
        total = 0.0
        for head in range(q.shape[0]):
            values, keys = v[head // 2], k[head // 2]
            for j in range(length - window, length):
                a = (keys[: j + 1] @ q[head, j] * 8**-0.5).softmax(-1)
                output = (a @ values[: j + 1]).abs().sum()
                past = a[: length - window]
                bounds = past / (1.1 - past) * (values[: length - window].abs().sum(-1) + output)
                middle = a[window : length - 2 * window]
                weight = float(middle.max()) if len(middle) else 1.0
                total += weight * float(bounds.sum())
        before = seen[layer, "before"][0, -window:].double()
        after = before + seen[layer, "added"][0, -window:].double()
        turn = 1 - torch.cosine_similarity(before, after, dim=-1).mean()
        found.append(total * float(turn))
    return found


@torch.no_grad()
@pytest.mark.parametrize("budget", [16, 64])
def test_what_is_learned_is_the_papers_energy_whether_entries_go_or_not(
    llama, cache_for, tokens, budget
):
    ids, policy = tokens(1, 40), tada()
    cache_for(llama, policy=policy, budget=budget).feed(llama, ids)
    count, means = learned(policy)
    assert count == 1
    assert means == pytest.approx(energies_by_hand(llama, ids, 4), rel=1e-4)


@torch.no_grad()
def test_a_context_in_which_a_layer_may_keep_everything_counts_like_any_other(
    llama, cache_for, tokens
):
    policy, alone = tada(), []
    # so unequal that the first layer's share reaches all tokens of a context
    policy.allocator.load_state({"": (1, (1000.0, 1.0, 1.0, 1.0))})
    contexts = [tokens(1, 40, seed=seed) for seed in range(3)]
    for count, ids in enumerate(contexts, start=2):
        cache = cache_for(llama, policy=policy, budget=16)
        cache.feed(llama, ids)
        assert [len(head) for head in cache.kept(0)[0]] == [40, 40], "nothing went there"
        assert learned(policy)[0] == count
        once = tada()
        cache_for(llama, policy=once, budget=16).feed(llama, ids)
        alone.append(learned(once)[1])
    sums = [sum(of_layer) for of_layer in zip(*alone, strict=True)]
    expected = [(first + total) / 4 for first, total in zip((1000, 1, 1, 1), sums, strict=True)]
    assert learned(policy)[1] == pytest.approx(expected, rel=1e-3)


@torch.no_grad()
def test_every_context_of_gpt2_counts_at_a_budget_near_its_length(model_of, cache_for, tokens):
    model, policy = model_of("gpt2"), agentkv.policy("edie-tada", window=8, kernel=7)
    for seed in range(8):
        cache_for(model, policy=policy, budget=100).feed(model, tokens(1, 120, seed=seed))
    assert learned(policy)[0] == 8


def test_caches_with_one_policy_value_learn_together_and_keys_apart(llama, cache_for, tokens):
    shop = tada(key="shop")
    for turn in range(2):
        cache_for(llama, policy=shop, budget=16).feed(llama, tokens(1, 30, seed=turn))
    assert shop.allocator.state["shop"][0] == 2
    assert tada(key="shop").allocator.state == {}


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
    assert cache.policy.allocator.state[""][0] == 1
    twin.restore(twin.snapshot())  # which holds nothing of the decoded token
    for each in (cache, twin):
        model(tokens(2, 2, seed=2), past_key_values=each)
    assert cache.policy.allocator.state[""][0] == 2
    assert cache.policy.allocator.state == twin.policy.allocator.state
