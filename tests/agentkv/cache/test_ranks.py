"""ARKV in the cache against its paper, in float64 from the judge's weights: which rows stay, and
which of them in the model's dtype."""

import pytest
import torch

import agentkv

BUDGET, WINDOW, KERNEL, GAMMA = 30, 6, 3, 263.81
TAUS = (7.774, 5.407, 5.528)


def quality(weights):
    """Of weights (heads, w, T) on the rows before the window: equations 3 to 6."""
    p = weights.sum(dim=(0, 1))
    p = p / p.sum()
    entropy = float(-(p * p.log()).sum())
    variance = float((p - p.mean()).pow(2).mean())
    kurtosis = float((p - p.mean()).pow(4).mean()) / variance**2
    product = 1.0
    for number, tau in zip((entropy, variance, kurtosis), TAUS, strict=True):
        product *= number ** (1 / tau)
    return product


def scores(weights):
    """Of the weights (G, w, T) of one key-value head: equation 9, smoothed."""
    mean, spread = weights.mean(dim=(0, 1)), weights.var(dim=(0, 1), correction=0)
    raw = [0.0, *(mean + GAMMA * spread).tolist(), 0.0]
    return [sum(raw[i : i + KERNEL]) / KERNEL for i in range(len(raw) - 2)]


@torch.no_grad()
@pytest.mark.parametrize("format", ["fp8", "int8", "int4", "nf4"])
def test_the_best_rows_stay_and_the_best_of_these_keep_their_bits(
    llama, judge, cache_for, tokens, format
):
    policy = agentkv.policy("arkv", window=WINDOW, kernel=KERNEL, format=format)
    cache = cache_for(llama, policy=policy, budget=BUDGET)
    ids, reference = tokens(2, 90), judge("llama")
    llama(ids, past_key_values=cache)
    reference.logits(ids, None)
    num_past, num_coded = 90 - WINDOW, []
    for row in range(2):
        weights = [
            reference.weights[layer][row, :, -WINDOW:, :num_past].unflatten(0, (2, 2))
            for layer in range(4)
        ]  # (H, G, w, T) of each layer
        qualities = [quality(of_layer.flatten(0, 1)) for of_layer in weights]
        for layer in range(4):
            share = qualities[layer] / max(qualities)
            num_original = round(share * (BUDGET - WINDOW))
            for head in range(2):
                worth = scores(weights[layer][head])
                best = sorted(range(num_past), key=worth.__getitem__, reverse=True)
                kept, original = best[: BUDGET - WINDOW], best[:num_original]
                lanes, lane = cache.stores[layer].lanes, 2 * row + head
                places = lanes.positions(lane).tolist()
                coded = places[: lanes.num_coded[lane]]
                assert sorted(places) == sorted([*kept, *range(num_past, 90)])
                assert sorted(coded) == sorted(set(kept) - set(original))
                num_coded.append(len(coded))
    assert min(num_coded) == 0 < max(num_coded), "one layer is best, and the others are not"


@torch.no_grad()
def test_a_layer_alone_is_the_best_there_is(model_of, cache_for, tokens):
    # five layers of six are bounded by their windows alone
    model = model_of("gemma3")
    policy = agentkv.policy("arkv", window=WINDOW, kernel=KERNEL)
    cache = cache_for(model, policy=policy, budget=BUDGET)
    for piece in tokens(1, 100).split([90, 1, 8, 1], dim=1):
        model(piece, past_key_values=cache)
        cache.check()
    assert [sum(store.lanes.num_coded) for store in cache.stores] == [0] * 6
