"""Entries that come to lanes and go from them: the reference against lists of rows."""

import pytest
import torch

from agentkv_kernels import ops
from agentkv_kernels.formats import BLOCK, FORMATS
from tests.kernels.lane_rows import Lot
from tests.kernels.test_lanes import place, stored_rows


def listed(stored, lane):
    """Keys and values of one lane's heads, (W, T, D) each, as lists of rows have them."""
    heads = stored_rows(stored, lane)
    shape = stored.num_heads, -1, stored.head_dim
    pairs = [[row[i] for rows in heads for row in rows] for i in (0, 1)]
    return [
        torch.stack(rows).view(shape) if rows else torch.empty(shape[0], 0, shape[2])
        for rows in pairs
    ]


def as_block(rows):
    """Entries (W, 64, D) after int8."""
    codes, exponents = FORMATS["int8"].encode(rows)
    return codes.double() * 2.0 ** exponents.double()


def test_rows_come_at_the_end_and_leave_in_blocks_of_64_as_lists_do():
    sizes, recent = [(0, 66), (64, 3), (5, 62)], 5
    lot = Lot(sizes, heads=2, head_dim=4, behind=BLOCK + 4)
    stored, numbers = lot.stored, lot.tracked(2)
    expected = [listed(stored, lane) for lane in range(3)]
    places = [stored.boxes.rows(stored.positions, lane, 1)[0].tolist() for lane in range(3)]
    num_coded, num_whole = [c for c, _ in sizes], [d for _, d in sizes]
    for step in range(4):
        new = [lot.numbers(3, 2, 4) for _ in range(2)]
        positions = torch.tensor([500, 600, 700], dtype=torch.int32) + step
        stored = ops.append_row(stored, *new, positions=positions, recent=recent, numbers=numbers)
        for lane in range(3):
            pairs = zip(expected[lane], new, strict=True)
            expected[lane] = [torch.cat([rows, x[lane, :, None].double()], 1) for rows, x in pairs]
            places[lane].append(int(positions[lane]))
            num_whole[lane] += 1
            if num_whole[lane] > recent + 63:
                cut = slice(num_coded[lane], num_coded[lane] + BLOCK)
                for rows in expected[lane]:
                    rows[:, cut] = as_block(rows[:, cut])
                num_coded[lane] += BLOCK
                num_whole[lane] -= BLOCK
    assert num_coded == [64, 64, 5], "the sizes no longer try what they are for"
    assert list(stored.coded.boxes.counts) == num_coded
    for lane in range(3):
        for found, rows in zip(listed(stored, lane), expected[lane], strict=True):
            assert torch.equal(found.double(), rows.double())
        assert stored.boxes.rows(stored.positions, lane, 1)[0].tolist() == places[lane]
        assert bool((stored.boxes.rows(numbers, lane, 1)[0, -4:] == 0).all())
        assert bool((stored.boxes.rows(numbers, lane, 1)[0, :-4] != 0).all())


def test_the_rows_that_stay_are_those_picked_and_merging_moves_them_little():
    sizes = [(130, 9), (0, 4), (70, 0), (2, 2)]
    lot = Lot(sizes, heads=2, head_dim=4)
    stored, statistic, norms = lot.stored, lot.tracked(3), lot.numbers(2 * 300, 1)
    norms = norms[: 2 * stored.positions.shape[0]]
    picked = [list(range(1, 139, 3)), [0, 3], list(range(0, 70, 5)), []]
    picks = torch.full((4, 60), -7, dtype=torch.int32)
    for lane, rows in enumerate(picked):
        picks[lane, : len(rows)] = torch.tensor(rows, dtype=torch.int32)
    coded = [sum(row < c for row in rows) for rows, (c, _) in zip(picked, sizes, strict=True)]
    counts = [len(rows) for rows in picked]
    after, carried = ops.compact(
        stored, picks, counts=counts, coded_counts=coded, spare=2, carried=[statistic, norms]
    )
    assert after.boxes.rooms == (48, 4, 16, 0)
    for lane, rows in enumerate(picked):
        for found, old in zip(listed(after, lane), listed(stored, lane), strict=True):
            assert torch.equal(found.double(), old[:, rows].double())
        for field, old, heads in (
            (after.positions, stored.positions, 1),
            (carried[0], statistic, 1),
            (carried[1], norms, 2),
        ):
            of_lane = stored.boxes.rows(old, lane, heads)[:, rows]
            assert torch.equal(after.boxes.rows(field, lane, heads), of_lane)
    before = [listed(after, lane) for lane in range(4)]
    merged = ops.merge_blocks(after, [True, True, False, True]).coded
    assert list(merged.blocks.counts) == [1, 0, after.coded.blocks.counts[2], 0]
    for lane, n in enumerate(coded):
        rows = range(n)
        ids = [int(merged.block_ids[place(merged.boxes, lane, 0, 1, t)]) for t in rows]
        assert lane == 2 or ids == [t // BLOCK for t in rows]
        for head in range(2):
            for i, (codes, exponents) in enumerate(
                ((merged.keys, merged.key_exponents), (merged.values, merged.value_exponents))
            ):
                for t in rows:
                    scale = 2.0 ** exponents[place(merged.blocks, lane, head, 2, ids[t])].double()
                    found = codes[place(merged.boxes, lane, head, 2, t)] * scale
                    off = (found - before[lane][i][head, t]).abs()
                    assert bool((off <= (scale / 2 if lane != 2 else 0)).all())


@pytest.mark.parametrize("asked", ["triton", "numba"])
def test_kernels_that_cannot_serve_are_refused_by_name(asked):
    stored = Lot([(3, 4)], heads=1, head_dim=8).stored
    keys = torch.zeros(1, 1, 8)
    reason = f"the {asked.capitalize()} kernels cannot be used"
    with pytest.raises(ValueError, match=reason):
        ops.append_row(
            stored, keys, keys, positions=torch.zeros(1, dtype=torch.int32), implementation=asked
        )
    with pytest.raises(ValueError, match=reason):
        ops.merge_blocks(stored, [True], implementation=asked)
    picks = torch.zeros(1, 1, dtype=torch.int32)
    with pytest.raises(ValueError, match=reason):
        ops.compact(stored, picks, counts=[1], coded_counts=[1], spare=0, implementation=asked)


@pytest.mark.parametrize("asked", ["triton", "numba"])
def test_queries_of_another_dtype_and_gradients_are_left_to_the_reference(asked):
    lot = Lot([(3, 4)], heads=1, head_dim=8)
    for q in (lot.queries(2).double(), lot.queries(2).requires_grad_()):
        assert not ops.serves_lanes(q, lot.stored)
        ops.attend_lanes(q, lot.stored, scale=0.3)
        with pytest.raises(ValueError, match="kernels cannot be used"):
            ops.attend_lanes(q, lot.stored, scale=0.3, implementation=asked)
