"""Scores equal the papers' formulas in plain loops over float64."""

import dataclasses
import math

import pytest
import torch

from agentkv.policies.adjusted import ByPhase, BySpan
from agentkv.policies.entries import PolicyError, Span
from agentkv.policies.pool import pooled
from agentkv.policies.scorers import (
    Age,
    AttentionAndRecency,
    AttentionAndRedundancy,
    Function,
    HeavyHitters,
    KeyDifference,
    MeanAndVariance,
    Recurrence,
    RemovalError,
    Unimportance,
    WindowMean,
    removal_errors,
)
from tests.agentkv.policies.shown import random_head, shown

WINDOWED = [
    WindowMean(window=4, kernel=1, pool="avg"),
    WindowMean(window=4, kernel=3, pool="avg"),
    WindowMean(window=4, kernel=7, pool="max"),
    MeanAndVariance(window=4, gamma=263.81, kernel=5),
    RemovalError(window=4, alpha=0.1, kernel=7, pool="avg"),
    RemovalError(window=4, alpha=0.1, kernel=3, pool="max"),
]
ABLATIONS = [
    RemovalError(4, 0.1, 3, "avg", importance, token_weight)
    for importance, token_weight in [
        ("error", "none"),
        ("error", "all"),
        ("error", "not_first"),
        ("error", "not_last"),
        ("paasvn", "none"),
        ("paasvn", "middle"),
        ("aas", "none"),
    ]
]
TRACKING = [
    AttentionAndRecency(mass_weight=0.3, decay=0.9),
    HeavyHitters(),
    HeavyHitters(normalize=True),
    Unimportance(variant="sum"),
    Recurrence(threshold=0.01),
]
BY_KEYS = [KeyDifference(), AttentionAndRedundancy(window=2, kernel=3, share=0.1, similarity=0.5)]


def pool_in_loops(scores, kernel, pool):
    half = kernel // 2
    out = []
    for i in range(len(scores)):
        near = scores[max(0, i - half) : i + half + 1]
        out.append(sum(near) / kernel if pool == "avg" else max(near))
    return out


def past_in_loops(head, scorer):
    """Return the score of each entry before the window, without a pool."""
    num_past = max(0, head.num_entries - scorer.window)
    queries = [query for of_head in head.weights for query in of_head]
    if isinstance(scorer, RemovalError):
        return [sum(edie_in_loops(head, q, i, scorer) for q in queries) for i in range(num_past)]
    out = []
    for i in range(num_past):
        drawn = [query[i] for query in queries]
        mean = sum(drawn) / len(drawn)
        gamma = scorer.gamma if isinstance(scorer, MeanAndVariance) else 0.0
        out.append(mean + gamma * sum((x - mean) ** 2 for x in drawn) / len(drawn))
    return out


def edie_in_loops(head, query, i, scorer):
    """c_j * u_ij, with the ranges of c_j of table 3 and the measures of equations 3 and 4."""
    w, n = scorer.window, head.num_entries
    first, stop = {
        "middle": (w, n - 2 * w), "not_first": (w, n), "not_last": (0, n - 2 * w), "all": (0, n),
        "none": (0, 0),
    }[scorer.token_weight]  # fmt: skip
    weight = max((query[k] for k in range(first, stop)), default=1.0)
    norm = sum(map(abs, head.values[i]))
    if scorer.importance != "error":
        return weight * query[i] * (norm if scorer.importance == "paasvn" else 1.0)
    output = [sum(a * v[d] for a, v in zip(query, head.values, strict=True)) for d in range(5)]
    return weight * query[i] / (1 + scorer.alpha - query[i]) * (norm + sum(map(abs, output)))


@pytest.mark.parametrize("scorer", [*WINDOWED, *ABLATIONS], ids=str)
@pytest.mark.parametrize("num_entries", [3, 5, 11, 12, 13, 30])
@pytest.mark.parametrize("num_queries", [1, 4])
def test_a_window_scores_as_its_formula_says(scorer, num_entries, num_queries):
    num_queries = min(num_queries, num_entries)
    heads = [random_head(seed, num_entries=num_entries, num_queries=num_queries) for seed in (1, 2)]
    found = scorer.scores(shown(heads))
    assert found.dtype == torch.float32
    pool = "avg" if isinstance(scorer, MeanAndVariance) else scorer.pool
    for head, scores in zip(heads, found, strict=True):
        expected = pool_in_loops(past_in_loops(head, scorer), scorer.kernel, pool)
        expected += [0.0] * min(scorer.window, num_entries)
        assert scores.tolist() == pytest.approx(expected, rel=1e-4, abs=1e-7)


@pytest.mark.parametrize("scorer", WINDOWED, ids=str)
def test_what_the_window_itself_draws_leaks_into_no_pool(scorer):
    entries = shown([random_head(5)])
    values, attention = entries.keys_values()[1].clone(), entries.attention().clone()
    values[:, -4:] = 0.0  # so that no output changes with what the window draws
    quiet = dataclasses.replace(entries, keys_values=lambda: (values, values))
    attention[..., -4:] *= 1.7
    loud = dataclasses.replace(quiet, attention=lambda: attention)
    torch.testing.assert_close(scorer.scores(loud), scorer.scores(quiet))


@pytest.mark.parametrize("scorer", [Age(), *WINDOWED, *TRACKING, *BY_KEYS], ids=str)
@pytest.mark.parametrize("shorter", [5, 13, 19])
def test_a_lane_scores_the_same_alone_and_beside_a_longer_one(scorer, shorter):
    heads = [random_head(7, num_entries=shorter), random_head(8, num_entries=22)]
    tracked = [[[float(i * i % 7), i + 1.0] for i in range(head.num_entries)] for head in heads]
    together = scorer.scores(shown(heads, tracked=tracked, sinks=1, protected=2, num_seen=80))
    for i, head in enumerate(heads):
        alone = scorer.scores(
            shown([head], tracked=[tracked[i]], sinks=1, protected=2, num_seen=80)
        )
        # entries outside the candidates are worth what they like
        kept = slice(1, head.num_entries - 2)
        torch.testing.assert_close(
            together[i, -head.num_entries :][kept], alone[0, kept], rtol=1e-5, atol=1e-7
        )


def test_the_bound_is_never_below_the_error_of_really_removing_a_row():
    for seed in range(5):
        head = random_head(seed, sharpness=3.0)
        entries = shown([head])
        bounds = removal_errors(entries.attention(), entries.keys_values()[1], alpha=0.0)[0]
        for g, of_head in enumerate(head.weights):
            for j, query in enumerate(of_head):
                for i in range(head.num_entries):
                    rest = 1 - query[i]
                    moved = 0.0
                    for d in range(5):
                        parts = [a * v[d] for a, v in zip(query, head.values, strict=True)]
                        moved += abs(sum(parts) - (sum(parts) - parts[i]) / rest)
                    assert float(bounds[g, j, i]) >= moved - 1e-4 * max(1.0, moved)


def test_a_row_that_draws_everything_has_a_finite_score():
    attention = torch.zeros(1, 1, 1, 4)
    attention[..., 1] = 1.0
    found = removal_errors(attention, torch.ones(1, 4, 3), alpha=0.0)
    assert found.isfinite().all() and found.argmax() == 1


def test_the_score_blends_both_after_stretching_each_over_the_candidates():
    scorer = AttentionAndRecency(mass_weight=0.25, decay=0.9)
    entries = dataclasses.replace(
        shown([random_head(0, num_entries=4)]),
        positions=torch.tensor([[10, 20, 30, 110]]),
        tracked=torch.tensor([[0.2, 0.6, 0.4, 0.2]])[..., None],
    )
    expected = [0.0, 0.25 + 0.75 * 0.1, 0.125 + 0.75 * 0.2, 0.75]
    assert scorer.scores(entries)[0].tolist() == pytest.approx(expected)
    middle = dataclasses.replace(entries, sinks=1, protected=1)
    assert scorer.scores(middle)[0, 1:3].tolist() == pytest.approx([0.25, 0.75])
    lone = dataclasses.replace(entries, sinks=1, protected=2)
    assert scorer.scores(lone)[0, 1] == 0.0


def test_heavy_hitters_count_all_attention_or_its_mean_over_who_could_see_the_row():
    head = random_head(3, num_entries=6)
    masses, counts = [5.0, 0.5, 2.0, 1.0, 0.25, 1.0], [9, 7, 4, 3, 2, 1]
    entries = shown([head], tracked=[list(zip(masses, counts, strict=True))])
    assert HeavyHitters().scores(entries)[0].tolist() == masses
    expected = [mass / count for mass, count in zip(masses, counts, strict=True)]
    assert HeavyHitters(normalize=True).scores(entries)[0].tolist() == pytest.approx(expected)


def test_the_newest_of_equal_keys_is_worth_as_much_as_one_of_a_kind():
    keys = torch.tensor([[[1.0, 0], [1, 0], [0, 1], [1, 0], [-1, -1]]])
    entries = dataclasses.replace(
        shown([random_head(3, num_entries=5)]), keys_values=lambda: (keys, keys)
    )
    alone = AttentionAndRedundancy(window=1, kernel=1, share=0.0, similarity=0.5)
    first, second, other, newest = alone.scores(entries)[0, :4].tolist()
    # both older keys pass over the newest, which passes over the second
    assert first < second < newest == other
    distance = KeyDifference().scores(entries)[0]
    assert distance.argmax() == 4 and distance[0] == distance[3] < distance[2]


def test_a_row_passed_over_more_often_is_worth_less():
    entries = dataclasses.replace(
        shown([random_head(3, num_entries=4)]),
        tracked=torch.tensor([[[0, 0], [255, 1], [16, 0], [170, 3]]], dtype=torch.uint8),
    )
    assert Unimportance(history=10).scores(entries)[0].tolist() == [0.0, -9.0, -1.0, -6.0]


def test_a_row_is_worth_more_the_sooner_it_should_be_activated_again():
    tracked = [[9, 0], [1, 0], [9, 1], [5, 1], [5, 4], [5, 8]]  # last activation, longest time
    entries = shown([random_head(3, num_entries=6)], tracked=[tracked], num_seen=10)
    found = Recurrence(threshold=0.01).scores(entries)[0].tolist()
    expected = []
    for last, longest in tracked:
        first = 2 / (1 + math.exp(1 + (9 - last) / longest)) if longest else 0.0
        expected.append(first + (2 / (1 + math.exp(longest - 1)) if longest else 0.0))
    expected[0] = 2 / (1 + math.e)  # activated just now, and never before
    assert found == pytest.approx(expected, rel=1e-4)


def test_a_page_that_was_left_loses_weight_and_a_reply_gains_some():
    spans = (Span("goal", 0, 2), Span("page 0", 2, 5), Span("reply 0", 5, 7), Span("page 1", 7, 10))
    entries = dataclasses.replace(
        shown([random_head(s, num_entries=14, num_queries=4) for s in (1, 2)], num_seen=14),
        positions=torch.arange(14).expand(2, -1),
        spans=(*spans, Span("reply 1", 10), Span("page 2", 20, 30)),
    )
    plain = WindowMean(window=2, kernel=1, pool="avg")
    factors = torch.tensor([1.0] * 2 + [0.5] * 3 + [3.0] * 2 + [1.0] * 3 + [3.0] * 4)
    found = BySpan(plain, left=0.5, replies=3.0).scores(entries)
    torch.testing.assert_close(found, plain.scores(entries) * factors)
    unlabelled = dataclasses.replace(entries, spans=())
    assert torch.equal(BySpan(plain, 0.5, 3.0).scores(unlabelled), plain.scores(entries))
    ages = torch.tensor([14.0 - position for position in range(14)])
    torch.testing.assert_close(
        BySpan(Age(), 0.5, 3.0).scores(entries), (factors / ages).expand(2, -1)
    )


@pytest.mark.parametrize("pool", ["avg", "max"])
def test_a_pool_keeps_shapes_and_takes_any_number_of_leading_ones(pool):
    x = torch.rand(2, 3, 9)
    for i, j in [(0, 0), (1, 2)]:
        expected = pool_in_loops(x[i, j].tolist(), 5, pool)
        assert pooled(x, 5, pool)[i, j].tolist() == pytest.approx(expected)
    assert pooled(x[..., :0], 5, pool).shape == (2, 3, 0)


def test_a_persons_own_score_is_taken_as_it_is():
    entries = shown([random_head(1), random_head(2)])
    mine = Function("mine", lambda entries: entries.keys_values()[1].norm(dim=-1).half())
    expected = entries.keys_values()[1].norm(dim=-1).half().float()
    assert torch.equal(mine.scores(entries), expected)
    never = Function("never", lambda entries: torch.full(entries.positions.shape, -torch.inf))
    assert never.scores(entries).isfinite().all()


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        (torch.zeros(20), r"'mine' returned \(20,\); it must be a tensor of shape \(1, 20\) or "),
        (None, "returned NoneType"),
        (torch.full((1, 20), torch.nan), "returned NaN"),
    ],
)
def test_a_persons_own_score_that_ranks_nothing_is_refused(returned, message):
    entries = shown([random_head(1), random_head(2)], is_shared=True)
    with pytest.raises(PolicyError, match=message):
        Function("mine", lambda entries: returned).scores(entries)


def test_nan_where_there_is_no_row_does_no_harm():
    entries = shown([random_head(1), random_head(2, num_entries=12)])
    found = Function("mine", lambda entries: entries.keys_values()[1].sum(dim=-1)).scores(entries)
    assert found[entries.present].isfinite().all()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: WindowMean(0, 5, "avg"), "window must be"),
        (lambda: WindowMean(8, 4, "avg"), "kernel must be an odd whole number.*found 4"),
        (lambda: WindowMean(8, 5, "mean"), "pool must be one of max, avg; found 'mean'"),
        (lambda: MeanAndVariance(8, "much", 5), "gamma must be a number"),
        (lambda: RemovalError(8, -0.1, 5, "avg"), "alpha must be at least 0"),
        (lambda: RemovalError(8, 0.1, 5, "avg", "vatp"), "importance must be one of error, paasvn"),
        (
            lambda: RemovalError(8, 0.1, 5, "avg", "error", "end"),
            "token_weight must be one of middle, not_first, not_last, all, none; found 'end'",
        ),
        (lambda: AttentionAndRedundancy(0, 7, 0.1, 0.5), "window must be"),
        (lambda: AttentionAndRedundancy(8, 7, 1.1, 0.5), r"share must be in \[0, 1\]"),
        (lambda: AttentionAndRedundancy(8, 7, 0.1, -1), "similarity must be"),
        (lambda: ByPhase(HeavyHitters()), "HeavyHitters keeps none"),
        (lambda: ByPhase(ByPhase(WINDOWED[0])), "ByPhase keeps none, or one for each already"),
        (lambda: BySpan(WINDOWED[0], -1, 2), "left must be at least 0"),
        (lambda: Unimportance(0), "history must be"),
        (lambda: Recurrence(0.0), "threshold must be more than 0"),
        (lambda: Unimportance(variant="mean"), "variant must be one of count, sum"),
        (lambda: Function("mine", len, window=-1), "window must be"),
    ],
)
def test_a_scorer_that_cannot_be_is_refused(make, message):
    with pytest.raises(PolicyError, match=message):
        make()
