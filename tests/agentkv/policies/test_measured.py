"""The allocator that remembers: what contexts teach it, and how its layers share a budget out."""

import math
from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from agentkv.policies.allocators import EnergyAllocator


def test_the_first_context_is_shared_out_equally_and_the_next_by_what_it_showed():
    measured = EnergyAllocator().fitted(0)
    assert measured.layers(100, 4, 1000) == (100, 100, 100, 100)
    measured.update([1.0, 2.0, 3.0, 4.0])
    assert measured.layers(100, 4, 1000) == (40, 80, 120, 160)
    measured.update([4.0, 3.0, 2.0, 1.0])
    assert measured.layers(100, 4, 1000) == (100, 100, 100, 100)
    measured.update([10.0, 10.0, 10.0, 10.0])
    assert measured.state[""] == (3, pytest.approx((5, 5, 5, 5)))


def test_a_moving_average_forgets():
    measured = EnergyAllocator(decay=0.75)
    measured.update([8.0, 0.0])
    assert measured.state[""] == (1, (8.0, 0.0))
    measured.update([0.0, 8.0])
    assert measured.state[""] == (2, (6.0, 2.0))


@example(energies=[0.0, 5e-324], budget=1, protected=0, extra=1, num_seen=2)
@given(
    st.lists(st.floats(0, 1e6), min_size=1, max_size=12),
    st.integers(1, 400),
    st.integers(0, 100),
    st.integers(0, 20),
    st.integers(1, 2000),
)
def test_measured_layers_fill_up_like_water_between_floor_and_cap(
    energies, budget, protected, extra, num_seen
):
    protected = min(protected, budget)
    measured = EnergyAllocator(least=extra).fitted(protected)
    measured.update(energies)
    layers = measured.layers(budget, len(energies), num_seen)
    assert sum(layers) == budget * len(energies)
    if budget >= num_seen or not any(energies):
        assert set(layers) == {budget}
        return
    least = min(budget, protected + extra)
    assert all(least <= n <= num_seen for n in layers)
    # of two layers between the bounds each has entries in proportion, but for one of rounding
    inside = [(n, e) for n, e in zip(layers, energies, strict=True) if least < n < num_seen]
    for n, e in inside:
        for m, f in inside:
            assert (n - 1) * f <= (m + 1) * e * (1 + 1e-6) + 1e-3
    for n, e in zip(layers, energies, strict=True):
        for m, f in zip(layers, energies, strict=True):
            assert n >= m or e <= f or n >= m - 1


def test_layers_at_a_bound_leave_the_others_their_proportion():
    measured = EnergyAllocator()
    measured.update([1.0, 2.0, 3.0, 6.0])
    # 400 entries as 33, 67, 100, 200; the last can use 150, the others have 250 as 1 : 2 : 3
    assert measured.layers(100, 4, 150) == (42, 83, 125, 150)
    # the first needs 70; 330 as 2 : 3 : 6, of which the second would have 60 and needs 70 too
    assert measured.fitted(70).layers(100, 4, 1000) == (70, 70, 87, 173)


def test_copies_share_what_was_learned_and_keys_do_not():
    measured = EnergyAllocator(key="shop")
    copy = replace(measured.fitted(32), key="forum")
    measured.update([1.0, 3.0])
    assert copy.layers(100, 2, 1000) == (100, 100)
    copy.update([3.0, 1.0])
    assert measured.layers(100, 2, 1000) == (50, 150)
    assert set(copy.state) == {"shop", "forum"}
    assert measured == EnergyAllocator(key="shop")


def test_what_was_learned_can_be_written_down_and_put_back():
    measured = EnergyAllocator()
    measured.update([1.0, 3.0])
    written = measured.state
    measured.update([9.0, 9.0])
    other = EnergyAllocator()
    other.load_state(written)
    assert other.state == written == {"": (1, (1.0, 3.0))}
    other.update([3.0, 1.0])
    assert other.layers(100, 2, 1000) == (100, 100)


@pytest.mark.parametrize(
    "remembered", [{"": (0, (1.0,))}, {"": (1, ())}, {"": (1, (-1.0,))}, {"": (1, (math.nan,))}]
)
def test_a_broken_memory_is_refused_and_changes_nothing(remembered):
    measured = EnergyAllocator()
    measured.update([1.0, 3.0])
    with pytest.raises(ValueError, match="''"):
        measured.load_state({"other": (2, (1.0,)), **remembered})
    assert measured.state == {"": (1, (1.0, 3.0))}


def test_what_another_model_showed_is_refused():
    measured = EnergyAllocator(key="shop")
    measured.update([1.0, 3.0])
    with pytest.raises(ValueError, match="'shop' belong to a model with 2 layers; this one has 3"):
        measured.layers(100, 3, 1000)
    with pytest.raises(ValueError, match="give another key"):
        measured.update([1.0, 2.0, 3.0])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: EnergyAllocator(least=-1), "least must be a whole number of entries"),
        (lambda: EnergyAllocator(decay=1.0), r"decay must be in \[0, 1\)"),
        (lambda: EnergyAllocator(key=3), "key must be the name of a stream"),
    ],
)
def test_what_it_cannot_be_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
