"""The store against a list: appended, dropped, gathered and quantised in random order."""

import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from agentkv.cache.lanes import Lanes
from agentkv.cache.strip import Meter
from agentkv_kernels.quantize import scales

HEADS, DIM = 2, 3


def empty_lanes(meter, *, tracks_mass=True, dtype=torch.float32):
    return Lanes(
        num_heads=HEADS,
        head_dim=DIM,
        dtype=dtype,
        device=torch.device("cpu"),
        tracks_mass=tracks_mass,
        meter=meter,
    )


def contents(lanes):
    """Keys and values (H, T, D) as attention reads them."""
    rows = [part.rows(0, part.num_rows, torch.float32) for part in lanes.parts()]
    return torch.cat([k[0] for k, _, _ in rows], 1), torch.cat([v[0] for _, v, _ in rows], 1)


class StoreAgainstList(RuleBasedStateMachine):
    """Each row of the list: position, keys (H, D), values (H, D), mass."""

    @initialize()
    def start(self):
        self.meter = Meter()
        self.lanes = empty_lanes(self.meter)
        self.rows = []
        self.seen = 0
        self.num_coded = 0
        self.generator = torch.Generator().manual_seed(0)

    @rule(count=st.integers(1, 150), skip=st.integers(0, 5), by_number=st.booleans())
    def append(self, count, skip, by_number):
        size = 10.0 ** float(torch.randint(-3, 4, (1,), generator=self.generator))
        keys, values = torch.randn(2, HEADS, count, DIM, generator=self.generator) * size
        first = self.seen + skip
        step = 1 if by_number else 2
        positions = torch.arange(first, first + step * count, step)
        self.lanes.append(keys, values, first if by_number else positions)
        for i, place in enumerate(positions.tolist()):
            self.rows.append([place, keys[:, i], values[:, i], 0.0])
        self.seen = int(positions[-1]) + 1

    @rule(data=st.data())
    def drop(self, data):
        a = data.draw(st.integers(0, len(self.rows)))
        b = data.draw(st.integers(a, min(len(self.rows), a + 90)))
        self.lanes.drop(a, b)
        self.num_coded -= max(0, min(b, self.num_coded) - a)
        del self.rows[a:b]

    @rule(share=st.sampled_from([0.0, 0.1, 0.5, 0.9, 1.0]))
    def keep(self, share):
        chosen = torch.rand(len(self.rows), generator=self.generator) < share
        index = chosen.nonzero().squeeze(1)
        self.lanes.keep(index)
        self.num_coded = int((index < self.num_coded).sum())
        self.rows = [self.rows[i] for i in index.tolist()]

    @rule(recent=st.integers(0, 200))
    def quantise(self, recent):
        self.lanes.quantise_to(recent)
        num_dense = len(self.rows) - self.num_coded
        self.num_coded += max(0, (num_dense - recent) // 64) * 64

    @rule(data=st.data())
    def observe(self, data):
        if not self.rows:
            return
        num_new = data.draw(st.integers(1, len(self.rows)))
        mass = torch.rand(len(self.rows), generator=self.generator)
        self.lanes.observe(mass, num_new=num_new, weight=0.25)
        for i, row in enumerate(self.rows):
            is_new = i >= len(self.rows) - num_new
            row[3] = float(mass[i]) if is_new else 0.75 * row[3] + 0.25 * float(mass[i])

    @invariant()
    def the_structure_is_sound(self):
        self.lanes.check()
        assert self.lanes.nbytes == self.meter.live <= self.meter.peak

    @invariant()
    def the_rows_are_those_of_the_list(self):
        assert self.lanes.num_rows == len(self.rows)
        assert self.lanes.num_coded == self.num_coded
        assert self.lanes.positions.tolist() == [row[0] for row in self.rows]
        if not self.rows:
            return
        assert self.lanes.mass.tolist() == pytest.approx([row[3] for row in self.rows], abs=1e-5)
        keys, values = contents(self.lanes)
        expected = [torch.stack([row[i] for row in self.rows], dim=1) for i in (1, 2)]
        coded = self.num_coded
        assert torch.equal(keys[:, coded:], expected[0][:, coded:])
        assert torch.equal(values[:, coded:], expected[1][:, coded:])
        if coded:
            part = self.lanes.parts()[0]
            scale = scales(part.exponents[0])[part.block_ids[0].long()]  # (T, 2, H, D)
            for i, found in enumerate((keys, values)):
                error = (found - expected[i])[:, :coded].abs()
                # half a scale when made, less than half of the present one over all later merges
                assert (error <= scale[:, i].transpose(0, 1)).all()


StoreAgainstList.TestCase.settings = settings(
    max_examples=40, stateful_step_count=20, deadline=None
)
TestStoreAgainstList = StoreAgainstList.TestCase


def test_codes_of_survivors_are_never_made_anew():
    torch.manual_seed(0)
    lanes = empty_lanes(Meter())
    lanes.append(*torch.randn(2, HEADS, 256, DIM), 0)
    lanes.quantise_to(0)
    before = contents(lanes)[0]
    lanes.drop(3, 4)
    lanes.keep(torch.arange(0, 255, 2))  # two blocks of scales are allowed for each one filled
    after = contents(lanes)[0]
    index = torch.cat([torch.arange(3), torch.arange(4, 256)])[::2]
    assert torch.equal(after, before[:, index])


def test_dropping_the_oldest_row_of_a_window_moves_nothing_for_a_whole_block():
    lanes = empty_lanes(Meter(), tracks_mass=False)
    lanes.append(*torch.randn(2, HEADS, 100, DIM), 0)
    num_moves, home = 0, None
    for i in range(100, 700):
        lanes.append(*torch.randn(2, HEADS, 1, DIM), i)
        lanes.drop(0, 1)
        where = lanes.parts()[0].keys.untyped_storage().data_ptr()
        num_moves, home = num_moves + (where != home), where
        lanes.check()
    assert num_moves <= 600 / 64 + 2


def test_dropping_everything_gives_all_memory_back():
    meter = Meter()
    lanes = empty_lanes(meter)
    lanes.append(*torch.randn(2, HEADS, 300, DIM), 0)
    lanes.quantise_to(40)
    lanes.keep(torch.arange(0))
    assert lanes.nbytes == meter.live == 0
    lanes.append(*torch.randn(2, HEADS, 1, DIM), 300)
    assert lanes.num_rows == 1
    lanes.check()


def test_a_copy_shares_nothing_with_its_original():
    lanes = empty_lanes(Meter())
    lanes.append(*torch.randn(2, HEADS, 100, DIM), 0)
    lanes.quantise_to(10)
    twin = lanes.copy()
    before = contents(twin)[0].clone()
    lanes.drop(0, 90)
    lanes.append(*torch.randn(2, HEADS, 5, DIM), 100)
    twin.check()
    assert torch.equal(contents(twin)[0], before)
