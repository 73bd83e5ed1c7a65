"""A token taken in by compiled code in one go, against the same in steps; rows dropped in all lanes
at once, against lanes one by one; all layers shown to a policy at once, against each alone."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import agentkv
from agentkv.cache.budget import Allowance
from agentkv.cache.evict import _tidy, evict
from agentkv.cache.geometry import Geometry, LayerShape
from agentkv.cache.keeper import Keeper
from agentkv.cache.lanes import Lanes
from agentkv.cache.layer import LayerStore
from agentkv.cache.step import Step
from agentkv.cache.table import Field, Meter
from agentkv.cache.view import Attention
from agentkv_kernels.ops import drop_rows, keep_rows
from tests.agentkv.cache.caches_in_use import kept
from tests.agentkv.cache.lanes_by_hand import DIM, contents, shape
from tests.agentkv.cache.policies_under_test import CASES

CPU = torch.device("cpu")
HEADS, GROUP = 2, 3


def store_of(policy, batch):
    """An empty layer of some sequences under a policy."""
    layer = LayerShape(HEADS, DIM, None)
    geometry = Geometry("llama", (layer,), HEADS * GROUP, torch.float32, None)
    budget = 100 if policy.gate.evicts else None
    keeper = Keeper(0, Allowance(policy, budget, geometry, batch))
    return LayerStore(layer, keeper=keeper, meter=Meter())


def tokens_for(batch, count, seed):
    draw = torch.Generator().manual_seed(seed)
    sizes = ((HEADS * GROUP, 1.0), (HEADS, 2.0), (HEADS, 1.0))
    return [torch.randn(batch, heads, count, DIM, generator=draw) * x for heads, x in sizes]


@pytest.mark.parametrize("sinks", [None, torch.linspace(-2, 3, HEADS * GROUP)])
@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("full", {}),
        ("int8", {}),
        ("conf-kv-int8", {"recent": 20}),
        ("h2o", {}),
        ("h2o", {"normalize": True}),
        ("scissorhands", {}),
        ("snapkv", {"window": 5}),
        ("ada-snapkv", {"window": 5}),
    ],
)
def test_a_token_taken_in_at_once_is_taken_in_as_in_steps(name, parameters, sinks):
    attention, policy = Attention(0.7, sinks, None), agentkv.policy(name, **parameters)
    stores = [store_of(policy, 2) for _ in range(2)]
    for store in stores:
        store.attend(*tokens_for(2, 90, seed=0), None, attention)
        evict([store], None, num_new=90)
    fast, slow = stores
    assert fast.rack is not None, "nothing compiled serves here"
    slow._step.rack = None
    for step in range(70):
        new = tokens_for(2, 1, seed=step + 1)
        found, expected = (store.attend(*new, None, attention) for store in stores)
        torch.testing.assert_close(found, expected, atol=2e-5, rtol=1e-5)
        for store in stores:
            evict([store], None, num_new=1)
            store.check()
            assert store.meter.live == store.nbytes
        assert fast.lanes.counts == slow.lanes.counts
        for lane in range(fast.lanes.num_lanes):
            places = [store.lanes.positions(lane) for store in stores]
            assert torch.equal(*places)
            both = [store.lanes.statistic(lane) for store in stores]
            torch.testing.assert_close(*both, atol=2e-6, rtol=1e-5)
            for mine, theirs in zip(
                contents(fast.lanes, lane), contents(slow.lanes, lane), strict=True
            ):
                assert torch.equal(mine, theirs)
        if fast.ring is not None:
            for sequence in range(2):
                for mine, theirs in zip(
                    fast.ring.of(sequence), slow.ring.of(sequence), strict=True
                ):
                    assert torch.equal(mine, theirs)


def filled(counts, per, recent, tracked):
    """Lanes with rows of random keys, values, norms and statistics, some of them quantised."""
    of_lanes = shape("int8", lanes=per, heads=2 // per, tracked=tracked, norms=1)
    lanes = Lanes(of_lanes, batch=len(counts), device=CPU, meter=Meter())
    draw = torch.Generator().manual_seed(0)
    most = max(counts)
    keys, values, norms = (
        torch.randn(lanes.num_lanes, 2 // per, most, n, generator=draw) for n in (DIM, DIM, 1)
    )
    columns = [torch.arange(most)[-count:] for count in counts]
    lanes.append(keys, values, norms, first=[0] * len(counts), columns=columns)
    lanes.quantise_to([recent] * len(counts))
    for lane in range(lanes.num_lanes):
        numbers = lanes.statistic(lane)
        numbers.copy_(torch.rand(numbers.shape, generator=draw))
    return lanes


@settings(deadline=None, max_examples=30)
@given(
    counts=st.lists(st.integers(1, 150), min_size=2, max_size=4),
    per=st.sampled_from([1, 2]),
    recent=st.integers(0, 70),
    size=st.integers(0, 2),
    data=st.data(),
)
def test_a_few_rows_of_each_lane_go_and_no_others(counts, per, recent, size, data):
    tracked = Field(1, (size,), torch.float32)
    lanes = filled(counts, per, recent, tracked)
    rack = Step(lanes, None, None).rack
    for _ in range(3):
        rows = [
            data.draw(st.lists(st.integers(0, count - 1), max_size=3, unique=True)) if count else []
            for count in lanes.counts
        ]
        before = [
            (*contents(lanes, i), lanes.positions(i), lanes.statistic(i)[0], lanes.norms(i)[0])
            for i in range(lanes.num_lanes)
        ]
        before = [[x.clone() for x in of_lane] for of_lane in before]
        drop_rows([rack], rows)
        for i, gone in enumerate(rows):
            stays = [t for t in range(before[i][2].shape[0]) if t not in gone]
            found = (
                *contents(lanes, i), lanes.positions(i), lanes.statistic(i)[0], lanes.norms(i)[0]
            )  # fmt: skip
            for axis, mine, old in zip((1, 1, 0, 0, 1), found, before[i], strict=True):
                assert torch.equal(mine, old.index_select(axis, torch.tensor(stays).long()))


@settings(deadline=None, max_examples=60)
@given(
    counts=st.lists(st.integers(1, 300), min_size=1, max_size=4),
    per=st.sampled_from([1, 2]),
    recent=st.integers(0, 70),
    size=st.integers(0, 2),
    shares=st.lists(st.sampled_from([None, 1.0, 0.98, 0.9, 0.5, 0.05, 0.0]), min_size=4),
    is_same=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_what_stays_of_many_rows_is_what_plain_torch_leaves(
    counts, per, recent, size, shares, is_same, seed
):
    tracked = Field(1, (size,), torch.float32)
    fast, slow = (filled(counts, per, recent, tracked) for _ in range(2))
    rack, draw = Step(fast, None, None).rack, torch.Generator().manual_seed(seed)
    for _ in range(3):
        masks, verdicts = [], []
        for sequence, share in zip(range(len(counts)), shares, strict=False):
            most = max(slow.counts[sequence * per : (sequence + 1) * per])
            verdict = None
            if share is not None:
                # as where all lanes lose the same rows, and where each loses its own
                one = torch.rand(1 if is_same else per, most, generator=draw)
                verdict = (one < share).expand(per, most).contiguous()
            verdicts.append(verdict)
            for i, count in enumerate(slow.counts[sequence * per : (sequence + 1) * per]):
                end = (i + 1) * most
                masks.append(0 if verdict is None else verdict.data_ptr() + end - count)
        was_even = fast.is_even
        if keep_rows([rack], masks):
            _tidy(fast)
        slow.apply(verdicts)
        fast.check()
        assert fast.counts == slow.counts and fast.num_coded == slow.num_coded
        assert fast.is_even or not was_even or len(set(fast.counts)) > 1 or None in verdicts
        for lane in range(fast.num_lanes):
            for mine, theirs in zip(contents(fast, lane), contents(slow, lane), strict=True):
                assert torch.equal(mine, theirs)
            for read in (Lanes.positions, Lanes.statistic, Lanes.norms):
                assert torch.equal(read(fast, lane), read(slow, lane))


@pytest.mark.parametrize("name", CASES)
def test_all_layers_together_lose_what_each_alone_would(llama, tokens, name):
    case = CASES[name]
    together, apart = (
        agentkv.Cache.for_model(llama, policy=case.make(), budget=case.budget) for _ in range(2)
    )

    def evict_apart(confidences):
        for layer in apart.keepers:
            evict([apart.stores[layer]], confidences, num_new=apart._num_new)

    apart.evict = evict_apart
    for cache in (together, apart):
        cache.feed(llama, tokens(2, 110))
    for step in range(12):
        token = tokens(2, 1, seed=step)
        logits = [cache.feed(llama, token) for cache in (together, apart)]
        torch.testing.assert_close(*logits)
        assert kept(together) == kept(apart)
