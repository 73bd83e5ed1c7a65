"""LayerStorage of rows: the reference against loops in float64, and who serves them."""

import math

import pytest
import torch

from agentkv_kernels import device, lanes, ops
from agentkv_kernels.ragged import Average
from tests.kernels.lane_rows import Lot


def stored_rows(stored, lane):
    """Keys and values (W, T, D) float64 of one lane, row by row, by the definition of a box."""
    found = []
    for head in range(stored.num_heads):
        rows, coded = [], stored.coded
        if coded is not None:
            for t in range(coded.boxes.counts[lane]):
                block = int(coded.block_ids[place(coded.boxes, lane, 0, 1, t)])
                code = place(coded.boxes, lane, head, stored.num_heads, t)
                scale = place(coded.blocks, lane, head, stored.num_heads, block)
                pairs = (coded.keys, coded.key_exponents), (coded.values, coded.value_exponents)
                rows.append([codes[code] * 2.0 ** exps[scale].double() for codes, exps in pairs])
        for t in range(stored.dense.boxes.counts[lane]):
            at = place(stored.dense.boxes, lane, head, stored.num_heads, t)
            rows.append([stored.dense.keys[at].double(), stored.dense.values[at].double()])
        found.append(rows)
    return found


def place(boxes, lane, head, num_heads, row):
    base, room, start, _ = boxes.table[:, lane].tolist()
    return num_heads * base + head * room + start + row


@pytest.mark.parametrize("implementation", ["reference", "numba"])
@pytest.mark.parametrize("absent", [0.0, 0.4])
@pytest.mark.parametrize("sinks_of", [None, 2])
def test_lanes_are_attended_as_loops_in_float64_do(implementation, absent, sinks_of):
    sizes = [(66, 3), (0, 0), (0, 7), (2, 0)]
    lot = Lot(sizes, heads=2, head_dim=4, absent=absent)
    stored, q, numbers = lot.stored, lot.queries(2), lot.tracked(3)
    sinks = None if sinks_of is None else lot.numbers(sinks_of * 4)
    before = numbers.clone()
    average = Average(numbers, 0.9, 0.2, starts_at_mass=True)
    seen = {"scale": 0.3, "sinks": sinks, "with_mass": True, "average": average}
    done = ops.attend_lanes(q, stored, implementation=implementation, **seen)
    for lane in range(len(sizes)):
        there = stored.boxes.rows(stored.positions, lane, 1)[0] >= 0
        mass = torch.zeros(there.shape[0], dtype=torch.float64)
        held = stored_rows(stored, lane)
        for head in range(4):
            rows = held[head // 2]
            logits = {
                t: float(q[lane, head].double() @ key) * 0.3
                for t, (key, _) in enumerate(rows)
                if there[t]
            }
            extra = [] if sinks is None else [float(sinks[(lane % sinks_of) * 4 + head])]
            total = sum(math.exp(x) for x in [*logits.values(), *extra])
            out = torch.zeros(4, dtype=torch.float64)
            for t, logit in logits.items():
                out += math.exp(logit) / total * rows[t][1]
                mass[t] += math.exp(logit) / total / 4
            torch.testing.assert_close(done.output[lane, head].double(), out, atol=1e-5, rtol=1e-5)
        found = stored.boxes.rows(done.mass, lane, 1)[0].double()
        torch.testing.assert_close(found, mass, atol=1e-6, rtol=1e-5)
        for t in range(there.shape[0]):
            at = place(stored.boxes, lane, 0, 1, t)
            last = t == there.shape[0] - 1
            moved = mass[t] if last else 0.9 * before[at, 0] + 0.2 * mass[t]
            assert float(numbers[at, 0]) == pytest.approx(float(moved), abs=1e-5)
            assert bool((numbers[at, 1:] == before[at, 1:]).all())


def test_without_a_device_numba_serves_and_the_choice_says_why():
    choice = ops.choice_for(torch.device("cpu"))
    assert str(choice) == "numba: Numba on cpu"
    lot = Lot([(3, 4)], heads=1, head_dim=8)
    q = lot.queries(2)
    done = ops.attend_lanes(q, lot.stored, scale=0.3)
    expected = lanes.attend_lanes(q, lot.stored, scale=0.3)
    torch.testing.assert_close(done.output, expected.output)
    assert done.mass is None
    with pytest.raises(ValueError, match="Triton kernels cannot be used: numba.*leave the impl"):
        ops.attend_lanes(q, lot.stored, scale=0.3, implementation="triton")


def test_what_numba_does_not_serve_the_reference_does():
    lot = Lot([(3, 4)], heads=1, head_dim=8, dtype=torch.bfloat16)
    q = lot.queries(2)
    done = ops.attend_lanes(q, lot.stored, scale=0.3)
    assert torch.equal(done.output, lanes.attend_lanes(q, lot.stored, scale=0.3).output)
    with pytest.raises(ValueError, match="Numba kernels cannot be used: rows are torch.bfloat16"):
        ops.attend_lanes(q, lot.stored, scale=0.3, implementation="numba")


@pytest.mark.parametrize(
    "dtype, group, head_dim, reason",
    [
        (torch.float64, 1, 64, "rows are torch.float64"),
        (torch.float32, 9, 64, "9 query heads per key-value head in torch.float32, at most 8"),
        (torch.bfloat16, 17, 64, "17 query heads"),
        (torch.float32, 1, 256, "heads of 256 channels in torch.float32, at most 128"),
        (torch.float16, 16, 512, "heads of 512 channels"),
    ],
)
def test_what_the_kernels_do_not_serve_is_named(dtype, group, head_dim, reason):
    lack = device.lack_of_attention(dtype, group, head_dim)
    assert lack is not None and lack.startswith(reason)


def test_rows_are_never_laid_outside_their_boxes():
    boxes = ops.RaggedLayout.of([4, 9], [1, 0], [2, 9], device="cpu")
    assert boxes.table.tolist() == [[0, 4], [4, 9], [1, 0], [2, 9]]
    with pytest.raises(AssertionError, match="outside their room"):
        boxes.used([1, 0], [4, 9])
