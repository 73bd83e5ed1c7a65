"""A layer's store against lists: appended, dropped, quantised, reordered in random order."""

import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from agentkv.cache.lanes import Lanes
from agentkv.cache.size import row_size
from agentkv.cache.table import Meter
from agentkv.policies.rows import Drop
from tests.agentkv.cache.lanes_by_hand import CPU, DIM, TRACKED, contents, most_off, shape


class StoreAgainstLists(RuleBasedStateMachine):
    """Each lane of the model is a list of row numbers in storage order, the first `coded` of them
    quantised; what a row holds is looked up by its number."""

    @initialize(
        form=st.sampled_from([None, "int8", "int8", "fp8", "int4", "nf4"]),
        lanes_and_heads=st.sampled_from([(1, 1), (1, 2), (2, 1), (3, 1)]),
        batch=st.integers(1, 3),
        tracked=st.sampled_from(TRACKED),
        norms=st.integers(0, 2),
        by_rank=st.booleans(),
    )
    def start(self, form, lanes_and_heads, batch, tracked, norms, by_rank):
        self.per, self.heads = lanes_and_heads
        self.batch, self.meter, self.fed = batch, Meter(), [0] * batch
        self.shape = shape(
            form,
            lanes=self.per,
            heads=self.heads,
            tracked=tracked,
            norms=norms,
            by_rank=by_rank and form is not None,
        )
        self.lanes = Lanes(self.shape, batch=batch, device=CPU, meter=self.meter)
        self.rows = [[] for _ in range(batch * self.per)]
        self.coded = [0] * (batch * self.per)
        self.held = []  # by row number: position, keys, values, norms, statistic
        self.generator = torch.Generator().manual_seed(0)
        self.append(130, None)

    def random(self, *size):
        return torch.randn(*size, generator=self.generator)

    def chosen(self, count, share):
        return torch.rand(count, generator=self.generator) < share

    @rule(count=st.sampled_from([1, 1, 5, 64, 150]), share=st.sampled_from([None, None, 0.7, 0.0]))
    def append(self, count, share):
        size = 10.0 ** float(torch.randint(-3, 4, (1,), generator=self.generator))
        keys, values = self.random(2, len(self.rows), self.heads, count, DIM) * size
        norms = None
        if self.shape.num_norms:
            norms = self.random(len(self.rows), self.heads, count, self.shape.num_norms).abs()
        columns = None
        if share is not None:
            columns = [self.chosen(count, share).nonzero().squeeze(1) for _ in range(self.batch)]
        self.lanes.append(keys, values, norms, first=self.fed, columns=columns)
        for lane, row in enumerate(self.rows):
            first = self.fed[lane // self.per]
            real = range(count) if columns is None else columns[lane // self.per].tolist()
            for place, column in enumerate(real, start=first):
                about = None if norms is None else norms[lane, :, column]
                zeros = torch.zeros(self.shape.tracked.inner, dtype=self.shape.tracked.dtype)
                here = keys[lane, :, column], values[lane, :, column]
                row.append(len(self.held))
                self.held.append([place, *here, about, zeros])
        for i in range(self.batch):
            self.fed[i] += count if columns is None else columns[i].shape[0]

    @rule()
    def observe(self):
        if self.shape.tracked.inner == (0,):
            return
        for lane, row in enumerate(self.rows):
            for i, number in enumerate(row):
                seen = (self.random(*self.shape.tracked.inner) * 50).abs()
                self.held[number][4] = seen.to(self.shape.tracked.dtype)
                self.lanes.statistic(lane)[0, i] = self.held[number][4]

    @rule(data=st.data())
    def drop_runs(self, data):
        verdicts = []
        for sequence in range(self.batch):
            mine = range(sequence * self.per, (sequence + 1) * self.per)
            least = min(len(self.rows[lane]) for lane in mine)
            first = data.draw(st.integers(0, least))
            last = data.draw(st.integers(first, min(least, first + 40)))
            verdicts.append(Drop(first, last) if data.draw(st.booleans()) else None)
            if verdicts[-1] is not None:
                for lane in mine:
                    self.cut(lane, [not first <= i < last for i in range(len(self.rows[lane]))])
        self.lanes.apply(verdicts)

    @rule(share=st.sampled_from([0.9, 0.5, 0.1, 1.0, 0.0]), is_for_all=st.booleans())
    def keep_some(self, share, is_for_all):
        verdicts = []
        for sequence in range(self.batch):
            mine = range(sequence * self.per, (sequence + 1) * self.per)
            if not is_for_all and sequence:
                verdicts.append(None)
                continue
            longest = max(len(self.rows[lane]) for lane in mine)
            mask = self.chosen((self.per, longest), share)
            verdicts.append(mask)
            for i, lane in enumerate(mine):
                # a shorter lane is filled up at its front
                self.cut(lane, mask[i, longest - len(self.rows[lane]) :].tolist())
        self.lanes.apply(verdicts)

    def cut(self, lane, stays):
        row = self.rows[lane]
        self.coded[lane] = sum(stays[: self.coded[lane]])
        self.rows[lane] = [number for number, stay in zip(row, stays, strict=True) if stay]

    @rule(data=st.data())
    def drop_what_no_token_sees(self, data):
        oldest = [data.draw(st.integers(0, max(self.fed) // 2)) for _ in self.rows]
        self.lanes.drop_before(oldest)
        for lane, limit in enumerate(oldest):
            self.cut(lane, [self.held[number][0] >= limit for number in self.rows[lane]])

    @precondition(lambda self: self.shape.format is not None and not self.shape.by_rank)
    @rule(data=st.data())
    def quantise_by_age(self, data):
        recent = [data.draw(st.integers(0, 100)) for _ in range(self.batch)]
        self.lanes.quantise_to(recent)
        for lane, row in enumerate(self.rows):
            num_dense = len(row) - self.coded[lane]
            self.coded[lane] += max(0, (num_dense - recent[lane // self.per]) // 64) * 64

    @precondition(lambda self: self.shape.by_rank)
    @rule(share=st.sampled_from([0.0, 0.2, 1.0]))
    def quantise_by_rank(self, share):
        picks = []
        for lane, row in enumerate(self.rows):
            coded, later = self.coded[lane], row[self.coded[lane] :]
            mask = self.chosen(len(later), share)
            picks.append(mask.nonzero().squeeze(1) + coded)
            worse = [number for number, pick in zip(later, mask.tolist(), strict=True) if pick]
            better = [number for number, pick in zip(later, mask.tolist(), strict=True) if not pick]
            self.rows[lane] = row[:coded] + worse + better
            self.coded[lane] += len(worse)
        self.lanes.quantise(picks)

    @rule(data=st.data())
    def reorder(self, data):
        some = data.draw(st.lists(st.integers(0, self.batch - 1), min_size=1, max_size=3))
        twin = self.lanes.take(some)
        self.lanes.release()
        self.lanes, self.batch = twin, len(some)
        which = [sequence * self.per + i for sequence in some for i in range(self.per)]
        # rows that are copied are rows of their own from now on
        self.coded, self.fed = [self.coded[lane] for lane in which], [self.fed[i] for i in some]
        copied = []
        for lane in which:
            copied.append([])
            for number in self.rows[lane]:
                copied[-1].append(len(self.held))
                self.held.append(list(self.held[number]))
        self.rows = copied

    @rule()
    def write_down_and_read_back(self):
        twin = Lanes(self.shape, batch=self.batch, device=CPU, meter=self.meter)
        for old, new in zip(self.lanes.tables, twin.tables, strict=True):
            new.fill_again(old.layout, [old.packed(f) for f in range(len(old.fields))])
        assert twin.nbytes == self.lanes.nbytes and twin.is_even == self.lanes.is_even
        self.lanes.release()
        self.lanes = twin

    @invariant()
    def the_structure_is_sound_and_its_bytes_are_those_metered(self):
        self.lanes.check()
        assert self.lanes.nbytes == self.meter.live <= self.meter.peak
        size = row_size(self.shape)
        most = 0
        for row, coded in zip(self.rows, self.coded, strict=True):
            if row:
                most += size.lane(num_dense=len(row) - coded, num_coded=coded)
        assert self.lanes.nbytes <= most

    @invariant()
    def the_rows_are_those_of_the_lists(self):
        assert self.lanes.counts == [len(row) for row in self.rows]
        assert self.lanes.num_coded == self.coded
        assert self.lanes.num_dense == [
            len(row) - coded for row, coded in zip(self.rows, self.coded, strict=True)
        ]
        for lane, row in enumerate(self.rows):
            held = [self.held[number] for number in row]
            assert self.lanes.positions(lane).tolist() == [each[0] for each in held]
            if not row:
                continue
            if self.shape.tracked.inner != (0,):
                expected = torch.stack([each[4] for each in held])
                assert torch.equal(self.lanes.statistic(lane)[0], expected)
            if self.shape.num_norms:
                expected = torch.stack([each[3] for each in held], dim=1)
                assert torch.equal(self.lanes.norms(lane)[0], expected)
            self.compare(lane, held, self.coded[lane])

    def compare(self, lane, held, coded):
        for which, found in enumerate(contents(self.lanes, lane)):
            expected = torch.stack([each[1 + which] for each in held], dim=1)
            assert torch.equal(found[:, coded:], expected[:, coded:])
            if coded:
                part, original = self.lanes.parts(lane)[0], expected[:, :coded]
                off = (found[:, :coded] - original).abs()
                assert (off <= most_off(part, which, original) * (1 + 1e-6)).all()

    @invariant()
    def even_lanes_read_at_once_are_the_lanes_one_by_one(self):
        if not self.lanes.is_even:
            return
        together = self.lanes.parts()
        for lane in range(len(self.rows)):
            for part, own in zip(together, self.lanes.parts(lane), strict=True):
                assert torch.equal(part.positions[lane], own.positions[0])
                for found, expected in zip(
                    part.whole(torch.float32), own.whole(torch.float32), strict=True
                ):
                    assert torch.equal(found[lane], expected[0])

    def teardown(self):
        if hasattr(self, "lanes"):
            self.lanes.release()
            assert self.meter.live == 0


StoreAgainstLists.TestCase.settings = settings(
    max_examples=60, stateful_step_count=15, deadline=None
)
TestStoreAgainstLists = StoreAgainstLists.TestCase
