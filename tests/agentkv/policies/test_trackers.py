"""Tracked statistics equal plain loops over the whole history of attention."""

import random
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from agentkv.policies.entries import AttentionUpdate, PolicyError
from agentkv.policies.trackers import MovingMass, Recurrences, Shortfalls, SummedMass


def history_of(seed, num_tokens):
    """[query][entry] mean weights, each entry of them as long as what the query could see."""
    draw = random.Random(seed)
    out = []
    for t in range(num_tokens):
        odds = [draw.random() ** 4 + 1e-3 for _ in range(t + 1)]
        out.append([x / sum(odds) for x in odds])
    return out


def follow(tracker, history, chunks):
    """The column (1, T, n) after feeding a history in chunks of these sizes."""
    column = torch.zeros(1, 0, tracker.size, dtype=tracker.dtype)
    first = 0
    for num_new in chunks:
        column = torch.cat([column, column.new_zeros(1, num_new, tracker.size)], dim=1)
        tracker.update(column, seen_of(history, first, num_new, tracker.num_queries(num_new)))
        first += num_new
    assert first == len(history)
    return column


def seen_of(history, first, num_new, num_queries):
    weights = torch.zeros(1, num_new, first + num_new)
    for i in range(num_new):
        query = history[first + i]
        weights[0, i, : len(query)] = torch.tensor(query)
    return AttentionUpdate(
        mass=weights[:, num_new - num_queries :].mean(dim=1),
        num_queries=num_queries,
        first=[first],
        num_new=num_new,
        each=lambda count: weights[:, num_new - count :],
    )


@st.composite
def feedings(draw):
    return draw(st.lists(st.integers(1, 40) | st.just(1), min_size=1, max_size=12))


@given(st.integers(0, 10**6), feedings(), st.integers(1, 30))
def test_shortfalls_count_exactly_the_last_queries_that_passed_a_row_over(seed, chunks, history):
    weights = history_of(seed, sum(chunks))
    tracker = Shortfalls(history)
    counts = tracker.counts(follow(tracker, weights, chunks))[0].tolist()
    recent = weights[-history:]
    for i, count in enumerate(counts):
        assert count == sum(len(query) > i and query[i] < 1 / len(query) for query in recent)


def test_what_stays_after_an_eviction_keeps_its_shortfalls():
    tracker, weights = Shortfalls(12), history_of(3, 20)
    column = follow(tracker, weights, [5, 1, 1, 8, 1, 1, 1, 1, 1])
    kept = [0, 3, 4, 11, 19]
    column = torch.cat([column[:, kept], column.new_zeros(1, 1, tracker.size)], dim=1)
    # the next query sees six entries, so that an even share is a sixth
    given_ = torch.tensor([[0.3, 0.1, 0.2, 0.05, 0.05, 0.3]])
    seen = AttentionUpdate(given_, 1, [20], 1, lambda count: given_[:, None])
    tracker.update(column, seen)
    recent = weights[-11:]
    expected = [sum(len(query) > i and query[i] < 1 / len(query) for query in recent) for i in kept]
    low = [0, 1, 0, 1, 1]
    assert tracker.counts(column)[0].tolist() == [*map(sum, zip(expected, low, strict=True)), 0]


@given(st.integers(0, 10**6), feedings(), st.sampled_from([0.01, 0.1, 0.5]))
def test_recurrences_are_the_last_activation_and_the_longest_time_between_two(
    seed, chunks, threshold
):
    weights = history_of(seed, sum(chunks))
    found = follow(Recurrences(threshold), weights, chunks)[0].tolist()
    for i, (last, longest) in enumerate(found):
        queries = range(i, len(weights))
        times = [i - 1, *(t for t in queries if weights[t][i] >= threshold)]
        assert last == times[-1]
        assert longest == max((b - a for a, b in pairwise(times)), default=0)


def test_what_stays_after_an_eviction_keeps_its_recurrences():
    tracker, weights = Recurrences(0.1), history_of(5, 12)
    whole = follow(tracker, weights, [12])
    kept = torch.cat([whole[:, [0, 4, 11]], whole.new_zeros(1, 1, 2)], dim=1)
    mass = torch.tensor([[0.5, 0.05, 0.05, 0.4]])
    tracker.update(kept, AttentionUpdate(mass, 1, [12], 1, lambda count: mass[:, None]))
    last, longest = whole[0, 0].tolist()
    assert kept[0, 0].tolist() == [12, max(longest, 12 - last)]
    assert kept[0, 1].tolist() == whole[0, 4].tolist()
    assert kept[0, 3].tolist() == [12, 1]


@given(st.integers(0, 10**6), feedings())
def test_summed_masses_are_all_that_was_ever_drawn(seed, chunks):
    weights = history_of(seed, sum(chunks))
    sums = follow(SummedMass(), weights, chunks)[0, :, 0].tolist()
    expected = [sum(query[i] for query in weights[i:]) for i in range(len(weights))]
    assert sums == pytest.approx(expected, rel=1e-4)
    both = follow(SummedMass(counts=True), weights, chunks)[0]
    assert both[:, 0].tolist() == sums
    assert both[:, 1].tolist() == list(range(len(weights), 0, -1))


def test_recent_sums_shrink_with_every_query():
    weights = history_of(1, 30)
    sums = follow(SummedMass(recent=5), weights, [1] * 30)[0, :, 0].tolist()
    expected = [
        sum(query[i] * 0.8 ** (29 - t) for t, query in enumerate(weights) if t >= i)
        for i in range(30)
    ]
    assert sums == pytest.approx(expected, rel=1e-4)
    # of a chunk only the last five count, and none of them has shrunk
    sums = follow(SummedMass(recent=5), weights, [30])[0, :, 0].tolist()
    expected = [sum(query[i] for query in weights[25:] if len(query) > i) for i in range(30)]
    assert sums == pytest.approx(expected, rel=1e-4)


@given(st.integers(0, 10**6), feedings())
def test_moving_masses_are_their_formula_in_float64(seed, chunks):
    weights = history_of(seed, sum(chunks))
    found = follow(MovingMass(0.9), weights, chunks)[0, :, 0].tolist()
    averages, step = [], 0
    for num_new in chunks:
        step += num_new
        queries = weights[max(step - 32, step - num_new) : step]
        for i in range(step):
            mean = sum(query[i] for query in queries if len(query) > i) / len(queries)
            if i >= len(averages):
                averages.append(mean)
            faded = 0.9 ** len(queries)
            averages[i] = faded * averages[i] + (1 - faded) * mean
    assert found == pytest.approx(averages, rel=1e-4, abs=1e-7)


def test_recent_sums_shrink_with_the_queries_of_a_chunk_that_do_not_count_too():
    weights = history_of(1, 13)
    sums = follow(SummedMass(recent=5), weights, [3, 10])[0, :, 0].tolist()
    for i in range(13):
        before = sum(query[i] for query in weights[:3] if len(query) > i)
        after = sum(query[i] for query in weights[8:] if len(query) > i)
        assert sums[i] == pytest.approx(0.8**10 * before + after, rel=1e-4)


def test_a_history_takes_a_bit_per_query_and_at_least_one():
    assert [Shortfalls(n).size for n in (1, 8, 9, 400)] == [1, 1, 2, 50]
    with pytest.raises(PolicyError, match="history must be"):
        Shortfalls(0)


def test_lanes_at_different_places_are_as_each_by_itself():
    tracker, histories = Shortfalls(7), [history_of(seed, 30) for seed in (1, 2)]
    behind = [
        follow(tracker, history[:count], [count])
        for history, count in zip(histories, (9, 9), strict=True)
    ]
    # the second sequence was fed five tokens before, of which nothing is left
    together, alone = torch.cat(behind), [column.clone() for column in behind]
    given_ = torch.rand(2, 1, 9, generator=torch.Generator().manual_seed(0)) / 4
    for step in range(10):
        firsts = [9 + step, 14 + step]
        tracker.update(together, AttentionUpdate(given_[:, 0], 1, firsts, 1, lambda count: given_))
        for segment, column in enumerate(alone):
            own = given_[segment, None]
            tracker.update(
                column,
                AttentionUpdate(own[:, 0], 1, [firsts[segment]], 1, lambda count, own=own: own),
            )
        assert torch.equal(together, torch.cat(alone))
