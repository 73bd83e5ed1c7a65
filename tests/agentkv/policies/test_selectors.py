"""Selections equal sorting in plain loops and have the properties that the papers claim."""

import dataclasses
import itertools
import math
import random

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from agentkv.policies.allocators import Adaptive, Shared, Uniform
from agentkv.policies.entries import Drop, DropOne, PolicyError
from agentkv.policies.scorers import AttentionAndRecency, WindowMean
from agentkv.policies.selectors import BudgetFraction, TopK, TwoStage
from tests.agentkv.policies.shown import filled, kept_of, random_head, shown


def shown_lanes(lengths, *, sinks, protected, num_queries=4, **rest):
    heads = [
        random_head(i, num_entries=count, num_queries=num_queries)
        for i, count in enumerate(lengths)
    ]
    return heads, shown(heads, sinks=sinks, protected=protected, **rest)


def best_in_loops(scores, candidates, count):
    """Prefer newer entries at equal scores."""
    return sorted(candidates, key=lambda i: (scores[i], i), reverse=True)[:count]


def test_where_newer_is_better_one_run_goes():
    _, entries = shown_lanes([10], sinks=2, protected=0)
    assert TopK(sinks=2).select(entries, None, 6, Uniform()) == Drop(2, 6)
    assert TwoStage(sinks=2).select(entries, None, 6, Uniform()) == Drop(2, 6)


@pytest.mark.parametrize("budget", [4, 7, 9])
def test_the_best_scored_and_the_protected_stay(budget):
    _, entries = shown_lanes([10], sinks=0, protected=3)
    scores = [0.9, 0.1, 0.5, 0.3, 0.7, 0.2, 0.8, 0.0, 0.0, 0.0]
    selection = TopK(protected=3).select(entries, torch.tensor([scores]), budget, Shared())
    by_score = sorted(range(7), key=lambda i: -scores[i])[: budget - 3]
    assert kept_of(selection, [10]) == [sorted(by_score) + [7, 8, 9]]
    assert isinstance(selection, DropOne) == (budget == 9)


@pytest.mark.parametrize("num_segments", [1, 3])
@pytest.mark.parametrize("budget", [5, 9])
def test_of_equals_the_newer_stays(budget, num_segments):
    _, entries = shown_lanes([10] * num_segments, sinks=1, protected=2)
    scores = torch.full((num_segments, 10), 0.5)
    selection = TopK(sinks=1, protected=2).select(entries, scores, budget, Uniform())
    assert kept_of(selection, [10] * num_segments) == [[0, *range(11 - budget, 10)]] * num_segments


@given(st.data())
def test_every_lane_keeps_its_best_and_the_total_is_the_budget(data):
    sinks, protected = data.draw(st.integers(0, 3)), data.draw(st.integers(0, 4))
    fixed = sinks + protected
    least = max(fixed, 1)
    lengths = data.draw(st.lists(st.integers(least, fixed + 12), min_size=1, max_size=4))
    assume(sum(lengths) > least * len(lengths))
    budget = data.draw(st.integers(least, (sum(lengths) - 1) // len(lengths)))
    allocator = data.draw(st.sampled_from([Uniform(), Adaptive(floor=0.0), Adaptive(floor=0.5)]))
    draw = random.Random(data.draw(st.integers(0, 10**6)))
    scores = [[draw.choice([0.0, 0.1, 0.5, 0.9]) for _ in range(count)] for count in lengths]
    _, entries = shown_lanes(lengths, sinks=sinks, protected=protected, num_queries=1)
    selection = TopK(sinks, protected).select(entries, filled(scores, math.nan), budget, allocator)
    kept = kept_of(selection, lengths)
    assert sum(map(len, kept)) == budget * len(lengths)
    for segment, of_lane, count in zip(kept, scores, lengths, strict=True):
        candidates = range(sinks, count - protected)
        best = best_in_loops(of_lane, candidates, len(segment) - fixed)
        assert segment == sorted([*range(sinks), *best, *range(count - protected, count)])


@given(st.data())
def test_pinned_entries_stay_and_the_others_compete_for_the_rest_of_the_budget(data):
    sinks, protected, num_pinned = (data.draw(st.integers(0, 3)) for _ in range(3))
    fixed = sinks + protected + num_pinned
    least = max(fixed, 1)
    count = data.draw(st.integers(least + 1, fixed + 12))
    num_segments, budget = data.draw(st.integers(1, 3)), data.draw(st.integers(least, count - 1))
    draw = random.Random(data.draw(st.integers(0, 10**6)))
    between = range(sinks, count - protected)
    pinned = [set(draw.sample(between, num_pinned)) for _ in range(num_segments)]
    marked = [[i in of_segment for i in range(count)] for of_segment in pinned]
    _, entries = shown_lanes(
        [count] * num_segments, sinks=sinks, protected=protected, num_queries=1
    )
    entries = dataclasses.replace(entries, pinned=torch.tensor(marked), is_padded=False)
    allocator = data.draw(st.sampled_from([Uniform(), Adaptive(floor=0.0), Adaptive(floor=0.5)]))
    scores = [[draw.choice([0.0, 0.1, 0.5]) for _ in range(count)] for _ in pinned]
    selector = TopK(sinks, protected)
    selection = selector.select(entries, torch.tensor(scores), budget, allocator)
    kept = kept_of(selection, [count] * num_segments)
    assert sum(map(len, kept)) == budget * num_segments
    by_age = kept_of(selector.select(entries, None, budget, allocator), [count] * num_segments)
    for segment, of_segment, newest, own in zip(kept, scores, by_age, pinned, strict=True):
        stays = {*range(sinks), *own, *range(count - protected, count)}
        candidates = [i for i in between if i not in own]
        best = best_in_loops(of_segment, candidates, len(segment) - fixed)
        assert segment == sorted({*stays, *best})
        assert newest == sorted({*stays, *candidates[len(candidates) - (budget - fixed) :]})


def test_a_lane_of_few_rows_leaves_what_it_has_no_use_for_to_the_others():
    lengths = [4, 12, 12]
    _, entries = shown_lanes(lengths, sinks=0, protected=2)
    scores = filled([[float(i) for i in range(count)] for count in lengths], math.nan)
    kept = kept_of(TopK(protected=2).select(entries, scores, 8, Uniform()), lengths)
    assert [len(segment) for segment in kept] == [4, 10, 10]


@given(st.integers(0, 10**6), st.integers(6, 17))
def test_heads_that_compete_keep_no_less_than_heads_with_equal_budgets(seed, budget):
    heads = [random_head(seed + i, sharpness=3.0) for i in range(3)]
    entries = shown(heads, protected=4)
    scores = WindowMean(window=4, kernel=3, pool="max").scores(entries)
    mass = [
        float(scores[TopK(protected=4).select(entries, scores, budget, allocator)].sum())
        for allocator in (Uniform(), Adaptive(floor=0.0))
    ]
    assert mass[1] >= mass[0] - 1e-6


@pytest.mark.parametrize("budget", [5, 12, 19])
def test_recency_alone_is_a_sliding_window_with_protected_rows(budget):
    entries = shown([random_head(1)], protected=3, tracked=[[1.0] + [0.1] * 19])
    scores = AttentionAndRecency(mass_weight=0.0, decay=0.9).scores(entries)
    selection = TopK(protected=3).select(entries, scores, budget, Shared())
    assert kept_of(selection, [20]) == [list(range(20 - budget, 20))]


def products_in_loops(head, norms, scores, selector, stop):
    """Return the products that the second stage ranks one head's candidates by."""
    draws = [[sum(column) / len(column) for column in zip(*q, strict=True)] for q in head.weights]
    bare = [sum(column) / len(column) for column in zip(*draws, strict=True)]
    if selector.gqa == "mean_norm":
        weights = scores if selector.pooled else bare
        return [
            (weight + selector.epsilon) * sum(norm) / len(norm)
            for weight, norm in zip(weights, norms, strict=True)
        ]
    if selector.pooled:
        half = selector.kernel // 2
        draws = [
            [max(draw[max(0, i - half) : min(stop, i + half + 1)]) for i in range(stop)]
            for draw in draws
        ]
    return [
        sum((draw[i] + selector.epsilon) * norm for draw, norm in zip(draws, norms[i], strict=True))
        / len(draws)
        for i in range(stop)
    ]


@pytest.mark.parametrize("is_pooled", [True, False])
@pytest.mark.parametrize("gqa", ["mean_norm", "product_then_mean"])
@pytest.mark.parametrize("first_stage", [0.0, 0.25, 0.6])
@pytest.mark.parametrize("lengths", [[20], [14, 20, 17]])
def test_a_first_part_goes_by_score_and_the_rest_by_its_product_with_the_norm(
    lengths, first_stage, gqa, is_pooled
):
    selector = TwoStage(1, 4, first_stage, 0.05, pooled=is_pooled, gqa=gqa, kernel=3)
    draw = random.Random(9)
    norms = [[[draw.random() * 5, draw.random()] for _ in range(n)] for n in lengths]
    heads, entries = shown_lanes(lengths, sinks=1, protected=4, norms=norms)
    scores = WindowMean(window=4, kernel=3, pool="max").scores(entries)
    kept = kept_of(selector.select(entries, scores, 11, Adaptive()), lengths)
    assert sum(map(len, kept)) == 11 * len(lengths)
    for h, head in enumerate(heads):
        of_lane = scores[h, -head.num_entries :].tolist()
        stop, count = head.num_entries - 4, len(kept[h]) - 5
        products = products_in_loops(head, norms[h], of_lane, selector, stop)
        secured = best_in_loops(of_lane, range(1, stop), math.floor(first_stage * count))
        others = [i for i in range(1, stop) if i not in secured]
        rest = best_in_loops(products, others, count - len(secured))
        assert kept[h] == sorted([0, *secured, *rest, *range(stop, head.num_entries)])


@pytest.mark.parametrize("gqa", ["mean_norm", "product_then_mean"])
def test_heads_that_share_their_rows_average_their_products(gqa):
    heads = [random_head(seed, num_entries=15) for seed in (1, 2)]
    draw = random.Random(4)
    norms = [[[draw.random(), draw.random()] for _ in range(15)] for _ in heads]
    entries = shown(heads, protected=4, norms=norms, is_shared=True)
    selector = TwoStage(0, 4, 0.0, 0.0, pooled=False, gqa=gqa)
    scores = torch.zeros(1, 15)
    if gqa == "mean_norm":
        # shared, weights and norms are each a mean over the heads
        bare = entries.attention().mean(dim=(0, 1, 2)).tolist()
        sizes = [sum(map(sum, of_row)) / 4 for of_row in zip(*norms, strict=True)]
        products = [a * b for a, b in zip(bare, sizes, strict=True)]
    else:
        each = [
            products_in_loops(head, of_head, None, selector, 11)
            for head, of_head in zip(heads, norms, strict=True)
        ]
        products = [sum(column) / 2 for column in zip(*each, strict=True)]
    kept = kept_of(selector.select(entries, scores, 9, Shared()), [15])
    assert kept == [sorted([*best_in_loops(products, range(11), 5), *range(11, 15)])]


@pytest.mark.parametrize("allocator", [Uniform(), Adaptive()])
def test_a_first_stage_of_everything_is_the_plain_best(allocator):
    lengths = [18, 20]
    norms = [[[float(i % 5)] for i in range(count)] for count in lengths]
    _, entries = shown_lanes(lengths, sinks=2, protected=4, norms=norms)
    scores = WindowMean(window=4, kernel=5, pool="avg").scores(entries)
    two = TwoStage(2, 4, first_stage=1.0).select(entries, scores, 10, allocator)
    assert torch.equal(two, TopK(2, 4).select(entries, scores, 10, allocator))


def test_protected_rows_stay_however_small_their_values():
    norms = [[[100.0]] * 16 + [[0.0]] * 4]
    _, entries = shown_lanes([20], sinks=0, protected=4, norms=norms)
    scores = WindowMean(window=4, kernel=3, pool="max").scores(entries)
    kept = kept_of(TwoStage(0, 4, first_stage=0.0).select(entries, scores, 6, Uniform()), [20])
    assert kept[0][-4:] == [16, 17, 18, 19]


def test_what_protected_rows_draw_is_not_pooled_into_their_neighbors():
    norms = [[[1.0, 1.0]] * 20]
    _, entries = shown_lanes([20], sinks=0, protected=4, norms=norms)
    attention = torch.full((1, 2, 4, 20), 0.01)
    attention[..., 2], attention[..., 16] = 0.1, 0.66
    entries = dataclasses.replace(entries, attention=lambda: attention)
    selector = TwoStage(0, 4, 0.0, gqa="product_then_mean", kernel=3)
    kept = kept_of(selector.select(entries, torch.zeros(1, 20), 7, Uniform()), [20])
    assert kept == [[1, 2, 3, 16, 17, 18, 19]]


@pytest.mark.parametrize("seed", range(8))
def test_the_second_stage_has_the_least_bound_and_the_bound_holds(seed):
    head = random_head(seed, num_entries=12, num_queries=1, group=1, sharpness=3.0)
    draw = random.Random(seed)
    out = [[draw.gauss(0, 1) for _ in range(6)] for _ in range(5)]
    projected = [
        [sum(v * entry[d] for v, entry in zip(value, out, strict=True)) for d in range(6)]
        for value in head.values
    ]
    norms = [sum(map(abs, entry)) for entry in projected]
    weights = head.weights[0][0]

    def theta(kept):
        mass = sum(weights[i] for i in kept)
        total = sum(a * norm for a, norm in zip(weights, norms, strict=True))
        return total - (2 - 1 / mass) * sum(weights[i] * norms[i] for i in kept)

    def moved(kept):
        mass = sum(weights[i] for i in kept)
        shares = [weights[i] / mass if i in kept else 0.0 for i in range(12)]
        changes = [a - b for a, b in zip(weights, shares, strict=True)]
        return sum(
            abs(sum(change * entry[d] for change, entry in zip(changes, projected, strict=True)))
            for d in range(6)
        )

    entries = shown([head], norms=[[[norm] for norm in norms]])
    selector = TwoStage(first_stage=0.5, epsilon=0.0, pooled=False)
    [kept] = kept_of(selector.select(entries, torch.tensor([weights]), 6, Shared()), [12])
    assert moved(kept) <= theta(kept) + 1e-9
    secured = best_in_loops(weights, range(12), 3)
    sigma = sum(weights[i] for i in secured)
    assert set(secured) <= set(kept) and sigma > 0.5
    gain = sum(weights[i] * norms[i] for i in kept)
    for others in itertools.combinations(set(range(12)) - set(secured), 3):
        assert sum(weights[i] * norms[i] for i in [*secured, *others]) <= gain + 1e-6


@pytest.mark.parametrize(
    ("protected", "sinks", "budget", "tight", "expected"),
    [
        (BudgetFraction(0.125, most=64), 0, 512, 256, 64),
        (BudgetFraction(0.125, most=64), 0, 100, 50, 12),
        (BudgetFraction(0.5), 0, 33, 33, 16),
        (BudgetFraction(0.5), 4, 32, 8, 4),
        (BudgetFraction(0.125, most=64), 0, 512, 30, 30),
        (BudgetFraction(0.5), 0, 1, 1, 0),
        (7, 3, 100, 10, 7),
    ],
)
@pytest.mark.parametrize("kind", [TopK, TwoStage])
def test_a_portion_becomes_rows_with_the_budget(kind, protected, sinks, budget, tight, expected):
    fitted = kind(sinks=sinks, protected=protected).fitted(budget, tight)
    assert fitted == kind(sinks=sinks, protected=expected)


@pytest.mark.parametrize("kind", [TopK, TwoStage])
@pytest.mark.parametrize(("sinks", "protected"), [(0, 30), (5, 16), (21, BudgetFraction(0.5))])
def test_rows_that_never_go_and_do_not_fit_are_refused(kind, sinks, protected):
    with pytest.raises(PolicyError, match="do not fit into the smallest budget of 20 entries"):
        kind(sinks=sinks, protected=protected).fitted(40, 20)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: TopK(sinks=-1), "sinks must be"),
        (lambda: TopK(protected=True), "protected must be"),
        (lambda: TopK(protected=BudgetFraction(1.5)), "protected part of the budget must be in"),
        (lambda: TwoStage(protected=BudgetFraction(0.5, most=-1)), "most entries"),
        (lambda: TwoStage(first_stage=2), "first_stage must be in"),
        (lambda: TwoStage(epsilon=-1.0), "epsilon must be at least 0"),
        (lambda: TwoStage(gqa="sum"), "gqa must be one of"),
        (lambda: TwoStage(kernel=2), "kernel must be an odd"),
    ],
)
def test_a_selector_that_cannot_be_is_refused(make, message):
    with pytest.raises(PolicyError, match=message):
        make()


def test_norms_are_asked_for_as_the_group_is_averaged():
    assert TopK().norms is None
    assert TwoStage().norms == "mean"
    assert dataclasses.replace(TwoStage(), gqa="product_then_mean").norms == "each"
