"""The reference of the Triton kernels against loops in float64; shapes that kernels support."""

import math

import pytest
import torch

from agentkv_kernels import device
from agentkv_kernels.ema import Ema
from agentkv_kernels.ragged import RaggedLayout
from tests.kernels import segments
from tests.kernels.random_segments import RandomSegments


def stored_rows(stored, segment):
    """Keys and values (W, T, D) float64 of one segment, entry by entry, by the definition of a
    box."""
    found = []
    for head in range(stored.num_heads):
        entries, coded = [], stored.coded
        if coded is not None:
            for t in range(coded.layout.counts[segment]):
                block = int(coded.block_ids[place(coded.layout, segment, 0, 1, t)])
                code = place(coded.layout, segment, head, stored.num_heads, t)
                scale = place(coded.blocks, segment, head, stored.num_heads, block)
                pairs = (coded.keys, coded.key_exponents), (coded.values, coded.value_exponents)
                entries.append([codes[code] * 2.0 ** exps[scale].double() for codes, exps in pairs])
        for t in range(stored.dense.layout.counts[segment]):
            at = place(stored.dense.layout, segment, head, stored.num_heads, t)
            entries.append([stored.dense.keys[at].double(), stored.dense.values[at].double()])
        found.append(entries)
    return found


def place(layout, segment, head, num_heads, entry):
    base, capacity, start, _ = layout.extents[:, segment].tolist()
    return num_heads * base + head * capacity + start + entry


@pytest.mark.parametrize("sinks_of", [None, 2])
def test_segments_are_attended_as_loops_in_float64_do(sinks_of):
    sizes = [(66, 3), (0, 0), (0, 7), (2, 0)]
    lot = RandomSegments(sizes, heads=2, head_dim=4)
    stored, q, numbers = lot.stored, lot.queries(2), lot.tracked(3)
    sinks = None if sinks_of is None else lot.numbers(sinks_of * 4)
    before = numbers.clone()
    ema = Ema(0.9, 0.2, starts_at_mass=True)
    seen = {"scale": 0.3, "sinks": sinks, "with_mass": True, "ema": ema, "tracked": numbers}
    done = segments.attend_segments(q, stored, **seen)
    for segment in range(len(sizes)):
        count = stored.layout.counts[segment]
        mass = torch.zeros(count, dtype=torch.float64)
        held = stored_rows(stored, segment)
        for head in range(4):
            entries = held[head // 2]
            logits = {
                t: float(q[segment, head].double() @ key) * 0.3
                for t, (key, _) in enumerate(entries)
            }
            extra = [] if sinks is None else [float(sinks[(segment % sinks_of) * 4 + head])]
            total = sum(math.exp(x) for x in [*logits.values(), *extra])
            out = torch.zeros(4, dtype=torch.float64)
            for t, logit in logits.items():
                out += math.exp(logit) / total * entries[t][1]
                mass[t] += math.exp(logit) / total / 4
            torch.testing.assert_close(
                done.output[segment, head].double(), out, atol=1e-5, rtol=1e-5
            )
        found = stored.layout.entries(done.mass, segment, 1)[0].double()
        torch.testing.assert_close(found, mass, atol=1e-6, rtol=1e-5)
        for t in range(count):
            at = place(stored.layout, segment, 0, 1, t)
            last = t == count - 1
            moved = mass[t] if last else 0.9 * before[at, 0] + 0.2 * mass[t]
            assert float(numbers[at, 0]) == pytest.approx(float(moved), abs=1e-5)
            assert bool((numbers[at, 1:] == before[at, 1:]).all())


def test_without_a_device_numba_serves_and_the_choice_says_why():
    assert str(device.choice_for(torch.device("cpu"))) == "numba: Numba on cpu"
    with device.preferring("torch"):
        assert str(device.choice_for(torch.device("cpu"))) == "torch: preferred"


@pytest.mark.parametrize(
    "dtype, group, head_dim, reason",
    [
        (torch.float64, 1, 64, "entries in torch.float64"),
        (
            torch.float32,
            9,
            64,
            "9 query heads per key-value head in torch.float32; the kernels support 8",
        ),
        (torch.bfloat16, 17, 64, "17 query heads"),
        (torch.float32, 1, 256, "heads of 256 channels in torch.float32; the kernels support 128"),
        (torch.float16, 16, 512, "heads of 512 channels"),
    ],
)
def test_shapes_that_the_kernels_do_not_support_are_named(dtype, group, head_dim, reason):
    reason_found = device.unsupported_by_triton(dtype, group, head_dim)
    assert reason_found is not None and reason_found.startswith(reason)


def test_a_layout_grows_within_its_capacities_only():
    layout = RaggedLayout.of([4, 9], [1, 0], [2, 8], device="cpu")
    assert layout.extents.tolist() == [[0, 4], [4, 9], [1, 0], [2, 8]]
    grown = layout.grown(None)
    assert grown.counts == (3, 9) and grown.extents[3].tolist() == [3, 9]
    with pytest.raises(AssertionError, match="beyond the capacity"):
        grown.grown(None)
