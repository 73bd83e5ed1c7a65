"""Tables against lists: lengthened, cut, gathered, copied and filled in random order."""

import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from agentkv.cache.table import Field, Meter, Table

CPU = torch.device("cpu")
FIELDS = [Field(3, (2,), torch.float32), Field(1, (), torch.int32), Field(2, (0,), torch.uint8)]


def row(number):
    """What stands in a row: numbers of which no two are alike."""
    keys = torch.arange(6, dtype=torch.float32).view(3, 2) + 10 * number
    return keys, torch.tensor(-number, dtype=torch.int32)


class TableAgainstLists(RuleBasedStateMachine):
    """Each lane of the model is a list of row numbers."""

    @initialize(num_lanes=st.integers(1, 4), spare=st.sampled_from([0, 5, 63]))
    def start(self, num_lanes, spare):
        self.meter = Meter()
        self.table = Table(FIELDS, num_lanes, device=CPU, meter=self.meter, spare=spare)
        self.lanes = [[] for _ in range(num_lanes)]
        self.next = 0

    @rule(data=st.data(), is_even=st.booleans())
    def extend(self, data, is_even):
        few = st.one_of(st.just(1), st.integers(0, 90))
        counts = [data.draw(few)] * len(self.lanes)
        if not is_even:
            counts = [data.draw(few) for _ in self.lanes]
        before = [len(lane) for lane in self.lanes]
        self.table.extend(counts[0] if is_even else counts)
        for i, (first, count) in enumerate(zip(before, counts, strict=True)):
            for place in range(first, first + count):
                keys, number = row(self.next)
                self.table.rows(0, i)[:, place] = keys
                self.table.rows(1, i)[0, place] = number
                self.lanes[i].append(self.next)
                self.next += 1

    @rule(data=st.data(), is_even=st.booleans())
    def drop(self, data, is_even):
        runs = []
        for lane in self.lanes:
            first = data.draw(st.integers(0, len(lane)))
            last = data.draw(st.integers(first, len(lane)))
            runs.append((first, last))
        if is_even:
            least = min(map(len, self.lanes))
            runs = [(min(runs[0][0], least), min(runs[0][1], least))] * len(self.lanes)
        self.table.drop(runs)
        for lane, (first, last) in zip(self.lanes, runs, strict=True):
            del lane[first:last]

    @rule(data=st.data())
    def keep(self, data):
        picks = []
        for i, lane in enumerate(self.lanes):
            if data.draw(st.booleans()):
                picks.append(None)
                continue
            # in any order: rows that are quantised by rank change places
            order = data.draw(st.permutations(range(len(lane))))
            order = order[: data.draw(st.integers(0, len(lane)))]
            picks.append(torch.tensor(order, dtype=torch.int64))
            self.lanes[i] = [lane[number] for number in order]
        self.table.keep(picks)

    @rule(data=st.data())
    def take(self, data):
        some = data.draw(st.lists(st.integers(0, len(self.lanes) - 1), min_size=1, max_size=4))
        old, self.table = self.table, self.table.take(some)
        for f, tensor in enumerate(old.tensors):
            if tensor.numel():
                assert tensor.data_ptr() != self.table.tensors[f].data_ptr()
        old.release()
        self.lanes = [list(self.lanes[i]) for i in some]

    @rule(is_exact=st.booleans())
    def fill_another(self, is_exact):
        packed = [self.table.packed(f) for f in range(3)]
        twin = Table(FIELDS, len(self.lanes), device=CPU, meter=self.meter, spare=self.table.spare)
        twin.extend(7)  # it held something else before
        if is_exact:
            twin.fill_again(self.table.layout, packed)
            assert twin.layout == self.table.layout and twin.nbytes == self.table.nbytes
        else:
            twin.fill(self.table.counts, packed)
            assert twin.counts == self.table.counts
        packed[0].zero_()
        self.table.release()
        self.table = twin

    @precondition(lambda self: len(self.lanes) > 1 and self.table.is_even)
    @rule()
    def look_at_all_lanes_at_once(self):
        for f in range(2):
            rows = torch.stack([self.table.rows(f, i) for i in range(len(self.lanes))])
            assert torch.equal(self.table.all_rows(f), rows)
            assert torch.equal(self.table.show(f, slice(1, None)), rows[1:])

    @invariant()
    def the_rows_are_those_of_the_lists(self):
        assert self.table.counts == [len(lane) for lane in self.lanes]
        for i, lane in enumerate(self.lanes):
            assert self.table.rows(1, i).tolist() == [[-number for number in lane]]
            if lane:
                keys = torch.stack([row(number)[0] for number in lane], dim=1)
                assert torch.equal(self.table.rows(0, i), keys)

    @invariant()
    def every_byte_is_metered_and_little_is_unused(self):
        self.table.check()
        assert self.table.nbytes == self.meter.live <= self.meter.peak
        most = sum(len(lane) + self.table.spare + 1 if lane else 0 for lane in self.lanes)
        assert self.table.nbytes <= most * (3 * 2 * 4 + 4)

    def teardown(self):
        if hasattr(self, "table"):
            self.table.release()
            assert self.meter.live == 0


TableAgainstLists.TestCase.settings = settings(
    max_examples=100, stateful_step_count=20, deadline=None
)
TestTableAgainstLists = TableAgainstLists.TestCase


@pytest.mark.parametrize("num_lanes", [1, 3])
def test_letting_the_oldest_row_go_at_each_step_moves_memory_once_in_a_block(num_lanes):
    table = Table([Field(2, (4,), torch.float32)], num_lanes, device=CPU, meter=Meter())
    table.extend(100)
    homes = set()
    for _ in range(640):
        table.extend(1)
        table.drop([(0, 1)] * num_lanes)
        assert table.is_even
        homes.add(table.tensors[0].data_ptr())
        table.check()
    assert table.nbytes <= num_lanes * (100 + 64) * 2 * 4 * 4
    # a home may be had twice
    assert len(homes) <= 640 / 64 + 2


def test_an_empty_table_holds_nothing_and_can_grow_again():
    meter = Meter()
    table = Table(FIELDS, 2, device=CPU, meter=meter)
    table.extend([300, 5])
    assert meter.live == meter.peak > 0
    table.keep([torch.arange(0)] * 2)
    assert table.nbytes == meter.live == 0 < meter.peak
    table.extend(1)
    assert table.counts == [1, 1]
    table.check()
