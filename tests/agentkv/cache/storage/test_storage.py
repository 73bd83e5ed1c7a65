"""Storage under every backend against lists: appended, dropped, quantized, reordered at random."""

import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from agentkv.cache.storage.numba_backend import NUMBA
from agentkv.cache.storage.sizes import EntrySize
from agentkv.cache.storage.table import Meter
from agentkv.policies.entries import Drop, DropOne
from tests.agentkv.cache.storage.by_hand import (
    DIM,
    TORCH,
    TRACKED,
    contents,
    drop,
    layout,
    most_off,
    storage_for,
)


class StorageAgainstLists(RuleBasedStateMachine):
    """Each segment of the model is a list of entry numbers in storage order, the first `coded` of
    them quantized; contents are looked up by number."""

    @initialize(
        form=st.sampled_from([None, "int8", "int8", "fp8", "int4", "nf4"]),
        segments_and_heads=st.sampled_from([(1, 1), (1, 2), (2, 1), (3, 1)]),
        batch=st.integers(1, 3),
        tracked=st.sampled_from(TRACKED),
        norms=st.integers(0, 2),
        by_rank=st.booleans(),
        is_compiled=st.booleans(),
    )
    def start(self, form, segments_and_heads, batch, tracked, norms, by_rank, is_compiled):
        self.per, self.heads = segments_and_heads
        self.backend = NUMBA if is_compiled else TORCH
        self.batch, self.meter, self.fed = batch, Meter(), [0] * batch
        self.shape = layout(
            form,
            segments=self.per,
            heads=self.heads,
            tracked=tracked,
            norms=norms,
            by_rank=by_rank and form is not None,
        )
        self.storage = storage_for(self.shape, batch, self.meter)
        self.entries = [[] for _ in range(batch * self.per)]
        self.coded = [0] * (batch * self.per)
        self.held = []  # by entry number: position, keys, values, norms, statistic
        self.generator = torch.Generator().manual_seed(0)
        self.append(130, None)

    def random(self, *size):
        return torch.randn(*size, generator=self.generator)

    def chosen(self, count, share):
        return torch.rand(count, generator=self.generator) < share

    @rule(count=st.sampled_from([1, 1, 5, 64, 150]), share=st.sampled_from([None, None, 0.7, 0.0]))
    def append(self, count, share):
        size = 10.0 ** float(torch.randint(-3, 4, (1,), generator=self.generator))
        all_heads = self.per * self.heads
        keys, values = self.random(2, self.batch, all_heads, count, DIM) * size
        norms = None
        if self.shape.num_norms:
            norms = self.random(self.batch, all_heads, count, self.shape.num_norms).abs()
        columns = None
        if share is not None:
            columns = [self.chosen(count, share).nonzero().squeeze(1) for _ in range(self.batch)]
        self.backend.append(self.storage, keys, values, norms, first=self.fed, columns=columns)
        keys, values = (x.view(-1, self.heads, count, DIM) for x in (keys, values))
        if norms is not None:
            norms = norms.view(-1, self.heads, count, self.shape.num_norms)
        for segment, entries in enumerate(self.entries):
            first = self.fed[segment // self.per]
            real = range(count) if columns is None else columns[segment // self.per].tolist()
            for place, column in enumerate(real, start=first):
                about = None if norms is None else norms[segment, :, column]
                zeros = torch.zeros(self.shape.tracked.inner, dtype=self.shape.tracked.dtype)
                here = keys[segment, :, column], values[segment, :, column]
                entries.append(len(self.held))
                self.held.append([place, *here, about, zeros])
        for i in range(self.batch):
            self.fed[i] += count if columns is None else columns[i].shape[0]

    @rule()
    def observe(self):
        if self.shape.tracked.inner == (0,):
            return
        for segment, entries in enumerate(self.entries):
            for i, number in enumerate(entries):
                seen = (self.random(*self.shape.tracked.inner) * 50).abs()
                self.held[number][4] = seen.to(self.shape.tracked.dtype)
                self.storage.tracked(segment)[0, i] = self.held[number][4]

    @rule(data=st.data())
    def drop_runs(self, data):
        verdicts = []
        for sequence in range(self.batch):
            own = range(sequence * self.per, (sequence + 1) * self.per)
            least = min(len(self.entries[segment]) for segment in own)
            first = data.draw(st.integers(0, least))
            last = data.draw(st.integers(first, min(least, first + 40)))
            verdicts.append(Drop(first, last) if data.draw(st.booleans()) else None)
            if verdicts[-1] is not None:
                for segment in own:
                    self.cut(
                        segment, [not first <= i < last for i in range(len(self.entries[segment]))]
                    )
        drop(self.backend, self.storage, verdicts)

    @rule(data=st.data())
    def drop_one_of_each(self, data):
        verdicts = []
        for sequence in range(self.batch):
            own = range(sequence * self.per, (sequence + 1) * self.per)
            if any(not self.entries[segment] for segment in own) or data.draw(st.booleans()):
                verdicts.append(None)
                continue
            picks = [data.draw(st.integers(0, len(self.entries[segment]) - 1)) for segment in own]
            verdicts.append(DropOne(torch.tensor(picks)))
            for segment, pick in zip(own, picks, strict=True):
                self.cut(segment, [i != pick for i in range(len(self.entries[segment]))])
        drop(self.backend, self.storage, verdicts)

    @rule(share=st.sampled_from([0.9, 0.5, 0.1, 1.0, 0.0]), is_for_all=st.booleans())
    def keep_some(self, share, is_for_all):
        verdicts = []
        for sequence in range(self.batch):
            own = range(sequence * self.per, (sequence + 1) * self.per)
            if not is_for_all and sequence:
                verdicts.append(None)
                continue
            longest = max(len(self.entries[segment]) for segment in own)
            mask = self.chosen((self.per, longest), share)
            verdicts.append(mask)
            for i, segment in enumerate(own):
                # a shorter segment is padded at its front
                self.cut(segment, mask[i, longest - len(self.entries[segment]) :].tolist())
        drop(self.backend, self.storage, verdicts)

    def cut(self, segment, stays):
        entries = self.entries[segment]
        self.coded[segment] = sum(stays[: self.coded[segment]])
        self.entries[segment] = [
            number for number, stay in zip(entries, stays, strict=True) if stay
        ]

    @rule(data=st.data())
    def drop_what_no_token_sees(self, data):
        oldest = [data.draw(st.integers(0, max(self.fed) // 2)) for _ in self.entries]
        self.backend.drop_span(self.storage, [(0, limit) for limit in oldest])
        for segment, limit in enumerate(oldest):
            self.cut(segment, [self.held[number][0] >= limit for number in self.entries[segment]])

    @precondition(lambda self: self.shape.format is not None and not self.shape.by_rank)
    @rule(data=st.data())
    def quantize_by_age(self, data):
        recent = [data.draw(st.integers(0, 100)) for _ in range(self.batch)]
        self.backend.quantize_oldest(self.storage, recent)
        for segment, entries in enumerate(self.entries):
            num_dense = len(entries) - self.coded[segment]
            self.coded[segment] += max(0, (num_dense - recent[segment // self.per]) // 64) * 64

    @precondition(lambda self: self.shape.by_rank)
    @rule(share=st.sampled_from([0.0, 0.2, 1.0]))
    def quantize_by_rank(self, share):
        picks = []
        for segment, entries in enumerate(self.entries):
            coded, later = self.coded[segment], entries[self.coded[segment] :]
            mask = self.chosen(len(later), share)
            picks.append(mask.nonzero().squeeze(1) + coded)
            worse = [number for number, pick in zip(later, mask.tolist(), strict=True) if pick]
            better = [number for number, pick in zip(later, mask.tolist(), strict=True) if not pick]
            self.entries[segment] = entries[:coded] + worse + better
            self.coded[segment] += len(worse)
        self.backend.quantize(self.storage, picks)

    @rule(data=st.data())
    def reorder(self, data):
        some = data.draw(st.lists(st.integers(0, self.batch - 1), min_size=1, max_size=3))
        twin = self.storage.take(some)
        self.storage.release()
        self.storage, self.batch = twin, len(some)
        which = [sequence * self.per + i for sequence in some for i in range(self.per)]
        # a copied entry is an entry of its own from now on
        self.coded, self.fed = (
            [self.coded[segment] for segment in which],
            [self.fed[i] for i in some],
        )
        copied = []
        for segment in which:
            copied.append([])
            for number in self.entries[segment]:
                copied[-1].append(len(self.held))
                self.held.append(list(self.held[number]))
        self.entries = copied

    @rule()
    def write_down_and_read_back(self):
        twin = storage_for(self.shape, self.batch, self.meter)
        tables = zip(self.storage.tables.values(), twin.tables.values(), strict=True)
        for old, new in tables:
            new.fill(old.extents, [old.packed(f) for f in range(len(old.fields))])
        assert twin.nbytes == self.storage.nbytes and twin.is_even == self.storage.is_even
        self.storage.release()
        self.storage = twin

    @invariant()
    def the_structure_is_sound_and_its_bytes_are_those_metered(self):
        self.storage.check()
        assert self.storage.nbytes == self.meter.live <= self.meter.peak
        size = EntrySize.of(self.shape)
        most = 0
        for entries, coded in zip(self.entries, self.coded, strict=True):
            if entries:
                most += size.segment(num_dense=len(entries) - coded, num_quantized=coded)
        assert self.storage.nbytes <= most

    @invariant()
    def the_entries_are_those_of_the_lists(self):
        assert self.storage.counts == [len(entries) for entries in self.entries]
        assert self.storage.num_quantized == self.coded
        assert self.storage.dense.counts == [
            len(entries) - coded for entries, coded in zip(self.entries, self.coded, strict=True)
        ]
        for segment, entries in enumerate(self.entries):
            held = [self.held[number] for number in entries]
            assert self.storage.positions(segment).tolist() == [each[0] for each in held]
            if not entries:
                continue
            if self.shape.tracked.inner != (0,):
                expected = torch.stack([each[4] for each in held])
                assert torch.equal(self.storage.tracked(segment)[0], expected)
            if self.shape.num_norms:
                expected = torch.stack([each[3] for each in held], dim=1)
                assert torch.equal(self.storage.norms(segment)[0], expected)
            self.compare(segment, held, self.coded[segment])

    def compare(self, segment, held, coded):
        for which, found in enumerate(contents(self.storage, segment)):
            expected = torch.stack([each[1 + which] for each in held], dim=1)
            assert torch.equal(found[:, coded:], expected[:, coded:])
            if coded:
                part, original = self.storage.parts(segment)[0], expected[:, :coded]
                off = (found[:, :coded] - original).abs()
                assert (off <= most_off(part, which, original) * (1 + 1e-6)).all()

    @invariant()
    def even_segments_read_at_once_are_the_segments_one_by_one(self):
        if not self.storage.is_even:
            return
        together = self.storage.parts()
        for segment in range(len(self.entries)):
            for part, alone in zip(together, self.storage.parts(segment), strict=True):
                assert torch.equal(part.positions[segment], alone.positions[0])
                for found, expected in zip(
                    part.decode(torch.float32), alone.decode(torch.float32), strict=True
                ):
                    assert torch.equal(found[segment], expected[0])

    def teardown(self):
        if hasattr(self, "storage"):
            self.storage.release()
            assert self.meter.live == 0


StorageAgainstLists.TestCase.settings = settings(stateful_step_count=15)
TestStorageAgainstLists = StorageAgainstLists.TestCase
