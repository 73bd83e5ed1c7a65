"""A cold tier against lists: evicted, fetched, dropped, reordered, saved and loaded at random."""

from dataclasses import replace

import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from agentkv.cache.storage.cold_tier import ColdTier, most_cold_nbytes
from agentkv.cache.storage.table import Meter
from agentkv.policies.recall import Always, LookBack
from tests.agentkv.cache.storage.by_hand import DIM, TORCH, layout, storage_for


class ColdTierAgainstLists(RuleBasedStateMachine):
    """Each segment of the model has a list of its hot positions, in storage order, and one of those
    in the tier, the first to have left first."""

    @initialize(
        form=st.sampled_from(["dense", "int4", "int8"]),
        segments_and_heads=st.sampled_from([(1, 2), (2, 1)]),
        batch=st.integers(1, 3),
        bound=st.sampled_from([None, 1, 5, 40, 64, 130]),
        digests=st.booleans(),
    )
    def start(self, form, segments_and_heads, batch, bound, digests):
        self.per, self.heads = segments_and_heads
        self.batch, self.bound, self.fed = batch, bound, [0] * batch
        self.recall = LookBack(Always(), block=4, format=form, digests=digests, cold=bound)
        shape = layout(None, segments=self.per, heads=self.heads)
        self.hot = storage_for(replace(shape, promotes=True), batch)
        self.meter = Meter()
        self.tier = self.new_tier()
        self.held = [[] for _ in range(batch * self.per)]
        self.left = [[] for _ in range(batch * self.per)]
        self.original = [{} for _ in range(batch * self.per)]
        self.generator = torch.Generator().manual_seed(0)
        self.append(150)
        self.evict(0.6)

    def new_tier(self):
        meters = {"meter": self.meter, "index_meter": Meter()}
        return ColdTier(self.hot, self.recall, num_q_heads=2, **meters)

    def some(self, count, share):
        """Ascending numbers below `count`."""
        chosen = torch.rand(count, generator=self.generator) < share
        return chosen.nonzero().squeeze(1)

    @rule(count=st.sampled_from([1, 5, 64, 150]))
    def append(self, count):
        size = (2, self.batch, self.per * self.heads, count, DIM)
        keys, values = torch.randn(size, generator=self.generator)
        TORCH.append(self.hot, keys, values, None, first=self.fed)
        by_segment = keys.view(-1, self.heads, count, DIM)
        for segment, held in enumerate(self.held):
            first = self.fed[segment // self.per]
            held.extend(range(first, first + count))
            self.original[segment] |= {first + i: by_segment[segment, :, i] for i in range(count)}
        self.fed = [num_seen + count for num_seen in self.fed]

    @rule(share=st.sampled_from([0.02, 0.3, 0.9, 1.0]))
    def evict(self, share):
        picks = [self.some(len(held), share) for held in self.held]
        self.tier.take_over(self.hot, picks)
        keep = [
            torch.tensor([i for i in range(len(held)) if i not in set(pick.tolist())], dtype=int)
            for held, pick in zip(self.held, picks, strict=True)
        ]
        TORCH.keep(self.hot, keep)
        for segment, pick in enumerate(picks):
            self.let_go(segment, [self.held[segment][i] for i in pick.tolist()])

    def let_go(self, segment, gone):
        held, left = self.held[segment], self.left[segment]
        held[:] = [place for place in held if place not in gone]
        left.extend(place for place in gone if place not in left)
        if self.bound is not None and len(left) > self.bound:
            excess = len(left) - self.bound + self.bound // 8
            cold = [place for place in left if place not in held]
            left[:] = [place for place in left if place not in cold[:excess]]

    @rule(share=st.sampled_from([0.1, 0.5, 1.0]))
    def fetch(self, share):
        picks = []
        for held, left in zip(self.held, self.left, strict=True):
            numbers = [i for i, place in enumerate(left) if place not in held]
            chosen = [numbers[i] for i in self.some(len(numbers), share).tolist()]
            picks.append(torch.tensor(chosen, dtype=torch.int64))
            held.extend(left[i] for i in chosen)
        self.tier.promote(self.hot, picks)

    @rule(first=st.floats(0, 1), size=st.sampled_from([0, 3, 60]))
    def drop_span(self, first, size):
        ranges = []
        for segment in range(len(self.held)):
            start = int(first * self.fed[segment // self.per])
            ranges.append((start, start + size))
            for places in (self.held[segment], self.left[segment]):
                places[:] = [place for place in places if not start <= place < start + size]
        TORCH.drop_span(self.hot, ranges)
        self.tier.drop_span(ranges)

    @rule(data=st.data())
    def reorder(self, data):
        index = data.draw(st.lists(st.integers(0, self.batch - 1), min_size=1, max_size=3))
        before = self.hot
        self.hot = before.take(index)
        before.release()
        self.tier.reorder(index)
        segments = [i * self.per + j for i in index for j in range(self.per)]
        self.held, self.left = (
            [list(of_all[segment]) for segment in segments] for of_all in (self.held, self.left)
        )
        self.original = [dict(self.original[segment]) for segment in segments]
        self.batch, self.fed = len(index), [self.fed[i] for i in index]

    @rule()
    def save_and_load(self):
        saved = {
            name: (table.extents, [table.packed(f) for f in range(len(table.fields))])
            for name, table in self.tier.tables.items()
        }
        self.tier.release()
        self.tier = self.new_tier()
        for name, table in self.tier.tables.items():
            table.fill(*saved[name])
        self.tier.lend_all(self.hot)

    @invariant()
    def it_holds_what_left_last_within_its_bound(self):
        self.tier.check(self.hot)
        for segment, (held, left) in enumerate(zip(self.held, self.left, strict=True)):
            assert self.hot.positions(segment).tolist() == held
            assert self.tier.storage.positions(segment).tolist() == left
            lent = {place: i for i, place in enumerate(left) if place in held}
            assert self.tier.lent[segment] == lent
            if self.recall.format == "dense" and left:
                keys = self.tier.read(segment, torch.arange(len(left)), torch.float32).keys[0]
                expected = [self.original[segment][place] for place in left]
                assert torch.equal(keys, torch.stack(expected, dim=1))
            if self.bound is not None:
                assert len(left) <= max(self.bound, len(lent))

    @invariant()
    def it_has_memory_for_no_more(self):
        assert self.meter.live == self.tier.nbytes
        if self.bound is not None:
            for name in ("cold metadata", "cold dense", "cold codes"):
                table = self.tier.tables.get(name)
                for _, count, capacity in () if table is None else table.extents:
                    assert capacity <= max(self.bound, count) + 1


ColdTierAgainstLists.TestCase.settings = settings(stateful_step_count=20)
TestColdTier = ColdTierAgainstLists.TestCase


@pytest.mark.parametrize("form", ["dense", "int4", "int8"])
@pytest.mark.parametrize("at_once", [17, 64, 65, 100])
def test_the_most_bytes_are_not_exceeded_however_many_entries_leave_at_once(
    form: str, at_once: int
) -> None:
    recall = LookBack(Always(), block=16, format=form, digests=True)
    hot = storage_for(replace(layout(None, segments=1, heads=2), promotes=True), 1)
    tier = ColdTier(hot, recall, num_q_heads=2, meter=Meter(), index_meter=Meter())
    keys = torch.randn(1, 2, at_once, DIM, generator=torch.Generator().manual_seed(0))
    for first in range(0, 9000, at_once):
        TORCH.append(hot, keys, keys, None, first=[first])
        tier.take_over(hot, [torch.arange(at_once)])
        TORCH.keep(hot, [torch.arange(0)])
        most = most_cold_nbytes(tier.storage.layout, recall, num_tokens=first + at_once)
        assert tier.nbytes + tier.index_nbytes <= most
    assert most <= 1.3 * (tier.nbytes + tier.index_nbytes)
