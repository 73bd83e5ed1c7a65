"""The parts of policies, fed with what a model made of a prompt, against the press of kvpress that
does the same: the same scores, the same rows kept.

Budget 38 is what kvpress leaves of 96 rows at a ratio of 0.6. It counts the window in the budget,
and so do we; it lets the window's rows compete with scores above all others, where ours are no
candidates.
"""

import pytest
import torch
from kvpress import (
    AdaKVPress,
    CriticalAdaKVPress,
    CriticalKVPress,
    ExpectedAttentionPress,
    KeyDiffPress,
    KeyRerotationPress,
    ObservedAttentionPress,
    PyramidKVPress,
    SnapKVPress,
    StreamingLLMPress,
    TOVAPress,
)
from transformers import DynamicCache

from agentkv.policies.allocators import Adaptive, Pyramid, Shared, Uniform
from agentkv.policies.gates import Fixed
from agentkv.policies.policy import Policy
from agentkv.policies.precision import Dense
from agentkv.policies.predictors import ExpectedAttention
from agentkv.policies.scorers import Age, HeavyHitters, KeyDifference, WindowMean
from agentkv.policies.selectors import TopK, TwoStage

RATIO, BUDGET, WINDOW, KERNEL = 0.6, 38, 8, 5
SCORES = {"atol": 1e-6, "rtol": 0}


def snapkv_press(ratio=RATIO):
    return SnapKVPress(ratio, window_size=WINDOW, kernel_size=KERNEL)


def of_parts(scorer, selector, allocator=None, budget=BUDGET):
    """A policy of these parts, told its budget."""
    parts = Fixed(), allocator or Uniform(), scorer, selector, Dense()
    return Policy("against kvpress", *parts).fitted(budget)


def snapkv(allocator=None, budget=BUDGET, selector=None):
    scorer = WindowMean(window=WINDOW, kernel=KERNEL, pool="avg")
    return of_parts(scorer, selector or TopK(protected=WINDOW), allocator, budget)


def assert_same(ours, theirs):
    """Per layer (B, H, T) bool."""
    assert len(ours) == len(theirs)
    for layer, (found, expected) in enumerate(zip(ours, theirs, strict=True)):
        assert torch.equal(found, expected), f"layer {layer}: {(found != expected).sum()} differ"


def test_the_comparison_can_tell_a_window_from_another(layers, kept_of):
    other = of_parts(WindowMean(window=7, kernel=KERNEL, pool="avg"), TopK(protected=WINDOW))
    with pytest.raises(AssertionError, match="differ"):
        assert_same(kept_of(layers, snapkv()), kept_of(layers, other))


def test_streaming_keeps_the_sinks_and_the_newest(family, ids, layers, kept_of, kept_by):
    policy = of_parts(Age(), TopK(sinks=4))
    expected = torch.zeros(2, 2, 96, dtype=torch.bool)
    expected[..., [*range(4), *range(96 - 34, 96)]] = True
    assert_same(kept_of(layers, policy), [expected] * 4)
    assert_same(kept_by(StreamingLLMPress(RATIO, n_sink=4), family, ids), [expected] * 4)


def test_snapkv_scores_rows_alike(layers, rows_of):
    for layer in layers:
        theirs = layer.call(snapkv_press())
        for row in range(2):
            ours = snapkv().scorer.scores(rows_of(layer, row, snapkv()))
            torch.testing.assert_close(ours[:, :-WINDOW], theirs[row, :, :-WINDOW], **SCORES)


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_snapkv_keeps_the_same_rows(family, ids, layers, kept_of, kept_by, attention):
    # with eager attention kvpress reads the weights observed, else it computes them again
    assert_same(kept_of(layers, snapkv()), kept_by(snapkv_press(), family, ids, attention))


def test_heavy_hitters_per_query_that_could_see_them_are_those_of_observed_attention(
    family, ids, layers, rows_of, kept_of, kept_by
):
    policy = of_parts(HeavyHitters(normalize=True), TopK())
    press = ObservedAttentionPress(RATIO)
    for layer in layers:
        theirs = layer.call(press, attentions=layer.weights.flatten(1, 2))
        for row in range(2):
            ours = policy.scorer.scores(rows_of(layer, row, policy))
            torch.testing.assert_close(ours, theirs[row], **SCORES)
    assert_same(kept_of(layers, policy), kept_by(press, family, ids, "eager"))


def test_a_window_of_one_query_and_one_set_for_all_heads_is_tova(
    family, ids, layers, rows_of, kept_of, kept_by
):
    policy = of_parts(WindowMean(window=1, kernel=1, pool="avg"), TopK(protected=1), Shared())
    for layer in layers:
        theirs = layer.call(TOVAPress(RATIO))
        for row in range(2):
            ours = policy.scorer.scores(rows_of(layer, row, policy)).mean(0)
            torch.testing.assert_close(ours[:-1], theirs[row, 0, :-1], **SCORES)
    assert_same(kept_of(layers, policy), kept_by(TOVAPress(RATIO), family, ids))


def test_key_differences_are_those_of_keydiff(family, ids, layers, rows_of, kept_of, kept_by):
    policy = of_parts(KeyDifference(), TopK())
    for layer in layers:
        theirs = layer.call(KeyDiffPress(RATIO))
        for row in range(2):
            ours = policy.scorer.scores(rows_of(layer, row, policy))
            torch.testing.assert_close(ours, theirs[row], **SCORES)
    assert_same(kept_of(layers, policy), kept_by(KeyDiffPress(RATIO), family, ids))


@pytest.mark.parametrize("epsilon", [0.0, 0.02])
def test_attention_is_expected_alike(family, ids, layers, rows_of, kept_of, kept_by, epsilon):
    """kvpress reads all of a prompt's queries, and gives its sinks the most."""
    scorer = ExpectedAttention(window=96, horizon=512, sinks=4, epsilon=epsilon)
    policy, press = of_parts(scorer, TopK(sinks=4)), ExpectedAttentionPress(RATIO, epsilon=epsilon)
    for layer in layers:
        theirs = layer.call(press)
        for row in range(2):
            ours = policy.scorer.scores(rows_of(layer, row, policy))
            expected = theirs[row, :, 4:]
            torch.testing.assert_close(ours[:, 4:], expected, atol=1e-6, rtol=1e-3)
    assert_same(kept_of(layers, policy), kept_by(press, family, ids))


def theirs_of_pyramid(press, layers, length):
    return [press.get_layer_budget(layer.module, length) for layer in layers]


def test_the_pyramid_is_the_same_line_over_the_layers(layers):
    """kvpress takes the share of the prompt for what lies beside the window, which is e of ours,
    and gives whole layers that much, window included."""
    press = PyramidKVPress(0.5, window_size=64, beta=20)
    ours = Pyramid(beta=20).fitted(protected=64).layers(2048 + 64, 4, 4096)
    assert [rows - 64 for rows in ours] == [3994, 2697, 1399, 102]
    assert theirs_of_pyramid(press, layers, 4096) == [3994, 2697, 1399, 102]


def test_the_pyramid_never_falls_flat_without_a_word(layers):
    press = PyramidKVPress(0.9, window_size=64, beta=20)
    assert theirs_of_pyramid(press, layers, 4096) == [410] * 4
    ours = Pyramid(beta=20).fitted(protected=64).layers(410, 4, 4096)
    # e = 346, from 2e - e / 20 down to e / 20
    assert [rows - 64 for rows in ours] == [675, 456, 236, 17]


def test_pyramidkv_keeps_the_same_rows_where_the_lines_meet(family, ids, layers, kept_of, kept_by):
    """kvpress's line runs from 86.4 to 9.6 rows with the window in it: ours from 78.4 to 1.6 beside
    a window of 8, that is e = 40 and beta = 25."""
    press = PyramidKVPress(0.5, window_size=WINDOW, kernel_size=KERNEL, beta=5)
    theirs = kept_by(press, family, ids)
    assert [int(kept.sum(-1).unique()) for kept in theirs] == [86, 61, 35, 10]
    assert_same(kept_of(layers, snapkv(Pyramid(beta=25), budget=48)), theirs)


@pytest.mark.parametrize("floor", [0.2, 0.8, 1.0])
def test_ada_guarantees_and_shares_out_alike(family, ids, layers, kept_of, kept_by, floor):
    """A guarantee of 0.2 is 7 rows, fewer than the window has; of 0.8 it is 30 and binds."""
    theirs = kept_by(AdaKVPress(snapkv_press(), alpha_safeguard=floor), family, ids)
    for kept in theirs:
        per_head = kept.sum(-1)
        assert per_head.sum(-1).tolist() == [2 * BUDGET] * 2
        assert int(per_head.min()) >= int(floor * BUDGET)
    assert_same(kept_of(layers, snapkv(Adaptive(floor=floor, safeguard="guarantee"))), theirs)


def test_ada_is_uneven_on_this_prompt(family, ids, kept_by):
    theirs = kept_by(AdaKVPress(snapkv_press()), family, ids)
    assert any(len(kept.sum(-1).unique()) > 1 for kept in theirs)


def first_stage_beside_the_window(ratio, budget=BUDGET):
    """kvpress counts the window's rows, which come first by score, in its first stage."""
    return max(0, int(budget * ratio) - WINDOW) / (budget - WINDOW) + 1e-6


@pytest.mark.parametrize("ratio", [0.25, 0.5])
def test_criticalkv_keeps_the_same_rows(family, ids, layers, kept_of, kept_by, ratio):
    press = CriticalKVPress(snapkv_press(), first_stage_ratio=ratio, epsilon=1e-4)
    stage = first_stage_beside_the_window(ratio)
    selector = TwoStage(protected=WINDOW, first_stage=stage, epsilon=1e-4)
    assert_same(kept_of(layers, snapkv(selector=selector)), kept_by(press, family, ids))


def test_criticalkv_on_ada_gives_heads_what_ada_gives_them(
    family, draw, kept_by, layers_of, kept_of
):
    """For one sequence: of several, kvpress adds up the heads' budgets."""
    ids = draw(batch=1)
    layers = layers_of(family, ids)
    press = CriticalAdaKVPress(snapkv_press(), first_stage_ratio=0.25)
    theirs = [kept.sum(-1) for kept in kept_by(press, family, ids)]
    ada = Adaptive(floor=0.2, safeguard="guarantee")
    ours = kept_of(layers, snapkv(ada, selector=TwoStage(protected=WINDOW)))
    assert [kept.sum(-1).tolist() for kept in ours] == [kept.tolist() for kept in theirs]


@torch.no_grad()
def test_kept_keys_turned_to_positions_in_a_row_are_those_of_key_rerotation(
    family, ids, layers, kept_of, model_of
):
    """The cache keeps original positions. What kvpress makes of them for its own positions is a
    function of what we keep, and of the order: position i of the result is our i-th row."""
    model, cache = model_of(family), DynamicCache()
    with KeyRerotationPress(StreamingLLMPress(RATIO, n_sink=4))(model):
        model.model(ids, past_key_values=cache)
    kept = kept_of(layers, of_parts(Age(), TopK(sinks=4)))
    frequency = model.model.rotary_emb.inv_freq
    for layer, stays, theirs in zip(layers, kept, cache.layers, strict=True):
        for row in range(2):
            places = stays[row, 0].nonzero()[:, 0]
            turn = (torch.arange(BUDGET) - places)[:, None] * frequency
            one, other = layer.keys[row][:, places].chunk(2, dim=-1)
            turned = [one * turn.cos() - other * turn.sin(), other * turn.cos() + one * turn.sin()]
            torch.testing.assert_close(
                torch.cat(turned, dim=-1), theirs.keys[row], atol=1e-5, rtol=0
            )
