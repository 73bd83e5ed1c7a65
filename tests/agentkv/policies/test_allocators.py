"""Allocators: shares of layers and heads, their sums, and who gives way."""

import math
from fractions import Fraction

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from agentkv.policies.allocators import Adaptive, EnergyAllocator, Linear, Pyramid, Shared, Uniform

ABSENT = -math.inf


@st.composite
def segments(draw, alike=False):
    """Scores of a few segments, with ties; some padded at the front unless `alike`."""
    num_segments, num_candidates = draw(st.integers(1, 5)), draw(st.integers(1, 12))
    score = st.integers(0, 6).map(lambda x: x / 4)
    lists = []
    for _ in range(num_segments):
        absent = 0 if alike else draw(st.integers(0, num_candidates))
        rest = draw(st.lists(score, min_size=num_candidates, max_size=num_candidates))
        lists.append([ABSENT] * absent + rest[absent:])
    return lists


def there(scores):
    return [sum(score > ABSENT for score in segment) for segment in scores]


def one_by_one(scores, budget):
    """Hand out entries in turns, smallest segment first, until budget or entries run out."""
    have = there(scores)
    counts = [0] * len(have)
    for _ in range(min(budget * len(have), sum(have))):
        open_lanes = [i for i in range(len(have)) if counts[i] < have[i]]
        counts[min(open_lanes, key=lambda i: counts[i])] += 1
    return counts


def won(scores, budget, sure=0):
    """Count the best entries of all segments, the best `sure` of each first; newer wins ties."""
    entries = [(score, j, i) for i, segment in enumerate(scores) for j, score in enumerate(segment)]
    entries = sorted(entry for entry in entries if entry[0] > ABSENT)[::-1]
    chosen = []
    for i in range(len(scores)):
        chosen += [entry for entry in entries if entry[2] == i][:sure]
    rest = [entry for entry in entries if entry not in chosen]
    chosen += rest[: max(0, budget * len(scores) - len(chosen))]
    return [sum(entry[2] == i for entry in chosen) for i in range(len(scores))]


def lifted(wanted, have):
    """Fractions: what a segment wants and does not have is given to the others, each the same."""
    out, open_lanes = list(wanted), set(range(len(wanted)))
    while any(out[i] > have[i] for i in open_lanes):
        over = {i for i in open_lanes if out[i] >= have[i]}
        excess = sum(out[i] - have[i] for i in over)
        open_lanes -= over
        for i in over:
            out[i] = Fraction(have[i])
        for i in open_lanes:
            out[i] += excess / len(open_lanes)
    return out


def heads(allocator, scores, budget):
    counts = allocator.heads(torch.tensor(scores, dtype=torch.float32), budget)
    assert counts.dtype == torch.int64
    return counts.tolist()


@given(segments(), st.integers(0, 12))
def test_uniform_heads_get_the_same_until_one_has_no_more(scores, budget):
    assert sorted(heads(Uniform(), scores, budget)) == sorted(one_by_one(scores, budget))
    assert all(
        count <= have
        for count, have in zip(heads(Uniform(), scores, budget), there(scores), strict=True)
    )
    assert heads(Shared(), scores[:1], budget) == one_by_one(scores[:1], budget)


@given(segments(), st.integers(0, 12))
def test_without_a_floor_the_best_rows_of_all_heads_say_who_gets_what(scores, budget):
    expected = won(scores, budget)
    assert heads(Adaptive(floor=0.0), scores, budget) == expected
    assert heads(Adaptive(floor=0.0, safeguard="guarantee"), scores, budget) == expected
    assert heads(EnergyAllocator(), scores, budget) == expected


@given(segments(), st.integers(0, 12), st.integers(0, 20))
def test_a_mix_is_within_a_row_of_its_formula_and_its_sum_is_exact(scores, budget, twentieths):
    floor = Fraction(twentieths, 20)
    found = heads(Adaptive(floor=twentieths / 20), scores, budget)
    have = there(scores)
    assert sum(found) == min(budget * len(have), sum(have))
    assert all(count <= most for count, most in zip(found, have, strict=True))
    exact = lifted([(1 - floor) * count + floor * budget for count in won(scores, budget)], have)
    # largest remainders: rounded down or up, and whoever goes up had no smaller one than who not
    ups = [x - math.floor(x) for x, count in zip(exact, found, strict=True) if count > x]
    downs = [x - math.floor(x) for x, count in zip(exact, found, strict=True) if count < x]
    assert all(abs(count - x) < 1 for x, count in zip(exact, found, strict=True))
    assert not ups or not downs or min(ups) >= max(downs)


def test_a_head_that_has_less_than_an_equal_share_is_still_sure_of_the_papers_floor():
    # the poor head has 21 of 22; of the best 44 entries 19 are its own: 0.8 * 19 + 0.2 * 22 = 19.6
    scores = torch.full((2, 25), 2.0)
    scores[0] = torch.tensor([ABSENT] * 4 + [1.0] * 2 + [3.0] * 19)
    assert heads(Adaptive(floor=0.2), scores.tolist(), 22) == [20, 24]


@given(segments(), st.integers(0, 12), st.integers(0, 4), st.floats(0, 1))
def test_a_guarantee_secures_each_heads_best_and_the_rest_compete(scores, budget, kept, floor):
    allocator = Adaptive(floor=floor, safeguard="guarantee").fitted(kept)
    sure = max(0, int(floor * (budget + kept)) - kept)
    assert heads(allocator, scores, budget) == won(scores, budget, sure)


@given(segments(), st.integers(0, 12))
def test_a_floor_of_one_is_uniform_whichever_safeguard(scores, budget):
    uniform = heads(Uniform(), scores, budget)
    assert heads(Adaptive(floor=1.0), scores, budget) == uniform
    if min(there(scores)) >= budget:
        assert heads(Adaptive(floor=1.0, safeguard="guarantee"), scores, budget) == uniform


@given(segments(alike=True), st.integers(0, 12))
def test_competing_heads_never_keep_less_mass_than_uniform_ones(scores, budget):
    def mass(counts):
        pairs = zip(scores, counts, strict=True)
        return sum(sum(sorted(segment, reverse=True)[:count]) for segment, count in pairs)

    assert mass(heads(Adaptive(floor=0.0), scores, budget)) >= mass(
        heads(Uniform(), scores, budget)
    )


def test_heads_of_kvpresss_example_keep_its_total_and_its_guarantee():
    # T = 96 and ratio 0.6 keep 38 entries of each of 2 heads, of which the window has 8
    scores = torch.rand(2, 88, generator=torch.Generator().manual_seed(0))
    scores[0] += 5
    counts = Adaptive(floor=0.2, safeguard="guarantee").fitted(8).heads(scores, 30)
    assert (counts + 8).tolist() == [68, 8]
    counts = Adaptive(floor=0.5, safeguard="guarantee").fitted(8).heads(scores, 30)
    assert (counts + 8).tolist() == [57, 19]


def test_a_pyramid_is_kvpresss_where_that_is_one():
    # there the window is inside the average, so that nothing is protected beside it
    assert Pyramid(beta=20).fitted(0).layers(2048, 4, 4096) == (3994, 2697, 1399, 102)


@given(
    st.integers(1, 600),
    st.integers(0, 100),
    st.integers(1, 40),
    st.integers(1, 9000),
    st.integers(1, 40),
)
def test_a_pyramid_is_a_line_between_its_ends_with_the_budgets_sum(
    budget, protected, num_layers, num_seen, beta
):
    protected = min(protected, budget)
    layers = Pyramid(beta=beta).fitted(protected).layers(budget, num_layers, num_seen)
    assert len(layers) == num_layers
    assert sum(layers) == budget * num_layers
    average = budget - protected
    if num_seen <= budget or num_seen < 2 * average or num_layers == 1:
        assert set(layers) == {budget}
        return
    low = Fraction(average, beta)
    high = 2 * average - low
    if high >= num_seen - protected:
        high = Fraction(num_seen - protected)
        low = 2 * average - high
    line = [high - i * (high - low) / (num_layers - 1) for i in range(num_layers)]
    assert all(abs(n - protected - x) < 1 for n, x in zip(layers, line, strict=True))
    assert all(protected <= n <= num_seen for n in layers)
    assert list(layers) == sorted(layers, reverse=True)


def test_a_flat_pyramid_is_uniform():
    flat = Pyramid(beta=1).fitted(32)
    assert flat.layers(128, 7, 4096) == Uniform().layers(128, 7, 4096) == (128,) * 7
    scores = torch.rand(3, 9)
    assert torch.equal(flat.heads(scores, 4), Uniform().heads(scores, 4))


@pytest.mark.parametrize(
    ("slope", "protected", "layers"),
    [
        ((1.25, 0.75), 0, (125, 113, 100, 87, 75)),
        ((1.0, 0.5), 0, (100, 88, 75, 62, 50)),
        ((1.0, 1.0), 0, (100, 100, 100, 100, 100)),
        ((1.25, 0.75), 99, (100, 100, 100, 100, 100)),
        ((1.25, 0.75), 100, (100, 100, 100, 100, 100)),
        ((1.0, 0.5), 79, (80, 80, 80, 80, 80)),
    ],
)
def test_a_line_has_its_ends_and_no_layer_below_the_protected_rows(slope, protected, layers):
    line = Linear(slope=slope).fitted(protected)
    assert line.shared and line.layers(100, 5, 4096) == layers


@given(st.integers(1, 600), st.integers(0, 600), st.integers(1, 40), st.integers(0, 10))
def test_a_lines_layers_sum_to_its_mean_unless_the_protected_rows_need_more(
    budget, protected, num_layers, twentieths
):
    protected = min(protected, budget)
    slope = (1 + twentieths / 40, 1 - twentieths / 40)
    least = min(budget, protected + 1)
    layers = Linear(slope=slope).fitted(protected).layers(budget, num_layers, 0)
    assert sum(layers) == budget * num_layers
    assert min(layers) >= least
    assert list(layers) == sorted(layers, reverse=True)
    less = Linear(slope=(1.0, 0.5)).fitted(protected).layers(budget, num_layers, 0)
    assert sum(less) == max(round(0.75 * budget * num_layers), least * num_layers)
    assert least <= min(less) and max(less) <= budget


def test_adaptive_heads_take_their_layers_from_another_allocator():
    allocator = Adaptive(over=Pyramid(beta=20)).fitted(8)
    assert allocator.layers(64, 4, 2000) == Pyramid(beta=20).fitted(8).layers(64, 4, 2000)
    assert Adaptive().layers(64, 4, 2000) == (64,) * 4


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Linear(slope=(1.5, 0.75)), "slope must be .* together at most 2; found"),
        (lambda: Linear(slope=(1.0, 0.0)), "both more than 0"),
        (lambda: Linear(slope=1.0), "slope must be 2 numbers"),
        (lambda: Pyramid(beta=0.5), "beta must be at least 1; found 0.5"),
        (lambda: Adaptive(floor=1.5), r"floor must be in \[0, 1\]; found 1.5"),
        (lambda: Adaptive(safeguard="none"), "safeguard must be one of mix, guarantee"),
        (lambda: Adaptive(over=Linear()), "Linear keeps one set of entries for all heads"),
    ],
)
def test_what_an_allocator_cannot_do_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
