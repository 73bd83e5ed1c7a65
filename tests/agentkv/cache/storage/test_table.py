"""Tables against lists: extended, dropped from, gathered, copied and filled in random order."""

import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from agentkv.cache.storage.table import EntryTable, Meter
from agentkv_kernels.layout import Field

CPU = torch.device("cpu")
FIELDS = [Field(3, (2,), torch.float32), Field(1, (), torch.int32), Field(2, (0,), torch.uint8)]


def entry(number):
    """The contents of an entry, different for every number."""
    keys = torch.arange(6, dtype=torch.float32).view(3, 2) + 10 * number
    return keys, torch.tensor(-number, dtype=torch.int32)


class TableAgainstLists(RuleBasedStateMachine):
    """Each segment of the model is a list of entry numbers."""

    @initialize(
        num_segments=st.integers(1, 4),
        spare=st.sampled_from([0, 5, 63]),
        growth=st.sampled_from([0.0, 0.5]),
    )
    def start(self, num_segments, spare, growth):
        self.meter = Meter()
        self.table = EntryTable(
            FIELDS, num_segments, device=CPU, meter=self.meter, spare=spare, growth=growth
        )
        self.lists = [[] for _ in range(num_segments)]
        self.next = 0

    @rule(data=st.data(), is_even=st.booleans())
    def extend(self, data, is_even):
        few = st.one_of(st.just(1), st.integers(0, 90))
        counts = [data.draw(few)] * len(self.lists)
        if not is_even:
            counts = [data.draw(few) for _ in self.lists]
        before = [len(own) for own in self.lists]
        self.table.extend(counts[0] if is_even else counts)
        for i, (first, count) in enumerate(zip(before, counts, strict=True)):
            for place in range(first, first + count):
                keys, number = entry(self.next)
                self.table.entries(0, i)[:, place] = keys
                self.table.entries(1, i)[0, place] = number
                self.lists[i].append(self.next)
                self.next += 1

    @rule(data=st.data(), is_even=st.booleans())
    def drop(self, data, is_even):
        runs = []
        for own in self.lists:
            first = data.draw(st.integers(0, len(own)))
            last = data.draw(st.integers(first, len(own)))
            runs.append((first, last))
        if is_even:
            least = min(map(len, self.lists))
            runs = [(min(runs[0][0], least), min(runs[0][1], least))] * len(self.lists)
        self.table.drop(runs)
        for own, (first, last) in zip(self.lists, runs, strict=True):
            del own[first:last]

    @rule(data=st.data())
    def keep(self, data):
        picks = []
        for i, own in enumerate(self.lists):
            if data.draw(st.booleans()):
                picks.append(None)
                continue
            # in any order: entries that are quantized by rank change places
            order = data.draw(st.permutations(range(len(own))))
            order = order[: data.draw(st.integers(0, len(own)))]
            picks.append(torch.tensor(order, dtype=torch.int64))
            self.lists[i] = [own[number] for number in order]
        self.table.keep(picks)

    @rule(data=st.data())
    def take(self, data):
        some = data.draw(st.lists(st.integers(0, len(self.lists) - 1), min_size=1, max_size=4))
        old, self.table = self.table, self.table.take(some)
        for f, tensor in enumerate(old.tensors):
            if tensor.numel():
                assert tensor.data_ptr() != self.table.tensors[f].data_ptr()
        old.release()
        self.lists = [list(self.lists[i]) for i in some]

    @rule()
    def fill_another(self):
        packed = [self.table.packed(f) for f in range(3)]
        spare, growth = self.table.spare, self.table.growth
        twin = EntryTable(
            FIELDS, len(self.lists), device=CPU, meter=self.meter, spare=spare, growth=growth
        )
        twin.extend(7)  # it held something else before
        twin.fill(self.table.extents, packed)
        assert twin.extents == self.table.extents and twin.nbytes == self.table.nbytes
        packed[0].zero_()
        self.table.release()
        self.table = twin

    @precondition(lambda self: len(self.lists) > 1 and self.table.is_even)
    @rule()
    def view_all_segments_at_once(self):
        for f in range(2):
            entries = torch.stack([self.table.entries(f, i) for i in range(len(self.lists))])
            assert torch.equal(self.table.view(f, None), entries)
            assert torch.equal(self.table.view(f, slice(1, None)), entries[1:])

    @invariant()
    def the_entries_are_those_of_the_lists(self):
        assert self.table.counts == [len(own) for own in self.lists]
        for i, own in enumerate(self.lists):
            assert self.table.entries(1, i).tolist() == [[-number for number in own]]
            if own:
                keys = torch.stack([entry(number)[0] for number in own], dim=1)
                assert torch.equal(self.table.entries(0, i), keys)

    @invariant()
    def every_byte_is_metered_and_little_is_unused(self):
        self.table.check()
        assert self.table.nbytes == self.meter.live <= self.meter.peak
        spare, growth = self.table.spare, self.table.growth
        most = sum(
            len(own) + max(spare, int(growth * len(own))) + 1 if own else 0 for own in self.lists
        )
        assert self.table.nbytes <= most * (3 * 2 * 4 + 4)

    def teardown(self):
        if hasattr(self, "table"):
            self.table.release()
            assert self.meter.live == 0


TableAgainstLists.TestCase.settings = settings(stateful_step_count=20)
TestTableAgainstLists = TableAgainstLists.TestCase


@pytest.mark.parametrize("num_segments", [1, 3])
def test_dropping_the_oldest_entry_at_each_step_moves_memory_once_per_block(num_segments):
    table = EntryTable([Field(2, (4,), torch.float32)], num_segments, device=CPU, meter=Meter())
    table.extend(100)
    homes = set()
    for _ in range(640):
        table.extend(1)
        table.drop([(0, 1)] * num_segments)
        assert table.is_even
        homes.add(table.tensors[0].data_ptr())
        table.check()
    assert table.nbytes <= num_segments * (100 + 64) * 2 * 4 * 4
    # the allocator may return an address twice
    assert len(homes) <= 640 / 64 + 2


def test_an_empty_table_holds_nothing_and_can_grow_again():
    meter = Meter()
    table = EntryTable(FIELDS, 2, device=CPU, meter=meter)
    table.extend([300, 5])
    assert meter.live == meter.peak > 0
    table.keep([torch.arange(0)] * 2)
    assert table.nbytes == meter.live == 0 < meter.peak
    table.extend(1)
    assert table.counts == [1, 1]
    table.check()
