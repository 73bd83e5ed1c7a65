"""ARKV in the cache against its paper, in float64 from the judge's weights: which rows stay, and
which of them in the model's dtype."""

import pytest
import torch

import agentkv

BUDGET, WINDOW, KERNEL, GAMMA = 30, 6, 3, 263.81
TAUS = (7.774, 5.407, 5.528)


def quality(weights):
    """Return equations 3 to 6 from weights (heads, w, T) on the entries before the window."""
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
    """Return equation 9, smoothed, from the weights (G, w, T) of one key-value head."""
    mean, spread = weights.mean(dim=(0, 1)), weights.var(dim=(0, 1), correction=0)
    raw = [0.0, *(mean + GAMMA * spread).tolist(), 0.0]
    return [sum(raw[i : i + KERNEL]) / KERNEL for i in range(len(raw) - 2)]


@torch.no_grad()
@pytest.mark.parametrize("format", ["fp8", "int8", "int4", "nf4"])
def test_the_best_entries_stay_and_the_best_of_these_keep_their_bits(
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
                lanes, lane = cache.cache_layers[layer].storage, 2 * row + head
                places = lanes.positions(lane).tolist()
                coded = places[: lanes.num_quantized[lane]]
                assert sorted(places) == sorted([*kept, *range(num_past, 90)])
                assert sorted(coded) == sorted(set(kept) - set(original))
                num_coded.append(len(coded))
    assert min(num_coded) == 0 < max(num_coded), "one layer is best, and the others are not"


def arkv(**parameters):
    return agentkv.policy("arkv", window=WINDOW, kernel=KERNEL, **parameters)


def qualities(cache):
    """Return the quality of each layer and sequence; None if unknown."""
    keepers = cache.evictor.layer_policies.values()
    return [[keeper.ranks.qualities.get(i) for i in range(cache.batch_size)] for keeper in keepers]


def paper(judge, ids):
    """Compute `qualities` from equations 3 to 6: after a prefill of ids (B, K), over the K - W key
    positions before the window, summed over all heads and the last W queries."""
    reference = judge("llama")
    reference.logits(ids, None)
    past = ids.shape[1] - WINDOW
    return [
        [quality(of_row[:, -WINDOW:, :past]) for of_row in reference.weights[layer]]
        for layer in range(4)
    ]


def close(found, expected):
    flat = [[x for of_layer in both for x in of_layer] for both in (found, expected)]
    return flat[0] == pytest.approx(flat[1], rel=1e-4)


@torch.no_grad()
@pytest.mark.parametrize("chunks", [[28], [10, 10, 8], [27, 1]], ids=str)
def test_the_ratio_is_estimated_once_from_the_prefill_however_it_is_cut(
    llama, judge, cache_for, tokens, chunks
):
    ids, cache = tokens(2, 28), cache_for(llama, policy=arkv(), budget=BUDGET)
    for piece in ids.split(chunks, dim=1):
        llama(piece, past_key_values=cache)
    expected = paper(judge, ids if chunks[-1] > 1 else ids[:, :-1])
    # a reply that is trimmed twice, an observation larger than the budget, and another reply
    for piece in tokens(2, 88, seed=1).split([1] * 22 + [60] + [1] * 6, dim=1):
        llama(piece, past_key_values=cache)
        assert close(qualities(cache), expected)
        cache.check()
    assert any(any(store.storage.num_quantized) for store in cache.cache_layers)


@torch.no_grad()
def test_a_prefill_over_the_budget_is_estimated_before_the_first_entry_goes(
    llama, judge, cache_for, tokens
):
    ids = tokens(2, 90)
    whole = cache_for(llama, policy=arkv(), budget=BUDGET)
    llama(ids, past_key_values=whole)
    assert close(qualities(whole), paper(judge, ids))
    cut = cache_for(llama, policy=arkv(), budget=BUDGET)
    for piece in ids.split([20, 20, 25, 25], dim=1):
        llama(piece, past_key_values=cut)
    # 40 tokens are the first that are more than the budget, and all heads held all of them
    assert close(qualities(cut), paper(judge, ids[:, :40]))


@torch.no_grad()
def test_a_prompt_without_a_key_before_the_window_is_estimated_when_entries_first_go(
    llama, judge, cache_for, tokens
):
    ids, cache = tokens(1, BUDGET + 1), cache_for(llama, policy=arkv(), budget=BUDGET)
    for piece in ids.split([WINDOW] + [1] * (BUDGET + 1 - WINDOW), dim=1):
        assert cache.seen == 0 or qualities(cache) == [[None]] * 4
        llama(piece, past_key_values=cache)
    assert close(qualities(cache), paper(judge, ids))


@torch.no_grad()
def test_the_ratio_goes_with_its_sequence_wherever_that_goes(
    llama, judge, cache_for, tokens, tmp_path
):
    ids = tokens(2, 28)
    expected = paper(judge, ids)
    cache = cache_for(llama, policy=arkv(), budget=BUDGET)
    llama(ids, past_key_values=cache)
    early = cache.snapshot()  # the prefill may go on
    for piece in tokens(2, 20, seed=1).split(1, dim=1):
        llama(piece, past_key_values=cache)
    late = cache.snapshot()
    cache.save(tmp_path / "cache")
    for other in (agentkv.Cache.load(tmp_path / "cache", llama), cache):
        llama(tokens(2, 50, seed=2), past_key_values=other)
        assert close(qualities(other), expected)
    cache.batch_repeat_interleave(2)
    cache.reorder_cache(torch.tensor([3, 0, 1]))
    llama(tokens(3, 50, seed=3), past_key_values=cache)
    assert close(qualities(cache), [[row[1], row[0], row[0]] for row in expected])
    cache.restore(late)
    llama(tokens(2, 50, seed=4), past_key_values=cache)
    assert close(qualities(cache), expected)
    cache.restore(early)
    assert qualities(cache) == [[None] * 2] * 4
    more = tokens(2, 2, seed=5)
    llama(more, past_key_values=cache)
    llama(tokens(2, 1, seed=6), past_key_values=cache)
    assert close(qualities(cache), paper(judge, torch.cat([ids, more], dim=1)))


@torch.no_grad()
def test_padding_is_no_part_of_the_prefill(llama, judge, cache_for, tokens):
    short, long = tokens(1, 20), tokens(1, 28, seed=1)
    ids = torch.cat([torch.cat([short.new_zeros(1, 8), short], dim=1), long])
    mask = (ids > 0).long()
    places = (mask.cumsum(1) - 1).clamp_min(0)
    cache = cache_for(llama, policy=arkv(), budget=BUDGET)
    llama(ids, attention_mask=mask, position_ids=places, past_key_values=cache)
    for column in tokens(2, 12, seed=2).split(1, dim=1):
        mask = torch.cat([mask, mask.new_ones(2, 1)], dim=1)
        places = places[:, -1:] + 1
        llama(column, attention_mask=mask, position_ids=places, past_key_values=cache)
    alone = [
        [x for x in both]
        for both in zip(
            *([row[0] for row in paper(judge, each)] for each in (short, long)), strict=True
        )
    ]
    assert close(qualities(cache), alone)


@torch.no_grad()
def test_estimating_at_every_trim_goes_by_what_each_head_then_holds(llama, cache_for, tokens):
    cache = cache_for(llama, policy=arkv(estimate="every_trim"), budget=BUDGET)
    llama(tokens(1, 28), past_key_values=cache)
    found = []
    for i in range(30):
        llama(tokens(1, 1, seed=i), past_key_values=cache)
        found.append(qualities(cache))
    assert found[0] == [[None]] * 4, "no row went"
    assert len({str(each) for each in found if each != [[None]] * 4}) > 2


@torch.no_grad()
def test_a_layer_alone_is_the_best_there_is(model_of, cache_for, tokens):
    # five layers of six are bounded by their windows alone
    model = model_of("gemma3")
    policy = agentkv.policy("arkv", window=WINDOW, kernel=KERNEL)
    cache = cache_for(model, policy=policy, budget=BUDGET)
    for piece in tokens(1, 100).split([90, 1, 8, 1], dim=1):
        model(piece, past_key_values=cache)
        cache.check()
    assert [sum(store.storage.num_quantized) for store in cache.cache_layers] == [0] * 6
