"""The kernels for processors: shapes that are easy to get wrong, and that they stay optional."""

import math
import os
import subprocess
import sys

import pytest
import torch
from agentkv_kernels.numba.limits import lack_of_attention, lack_of_parts
from agentkv_kernels.ops import FORMATS, Dense, Quantized
from hypothesis import given, settings
from hypothesis import strategies as st

from agentkv_kernels import ops, reference
from agentkv_kernels.numba import attend as on_processors
from agentkv_kernels.ragged import Average, DenseEntries, RaggedLayout, StoredEntries
from tests.kernels.lane_rows import Lot

sizes = st.tuples(st.integers(0, 140), st.integers(0, 9))


@settings(deadline=None, max_examples=80)
@given(
    counts=st.lists(sizes, min_size=1, max_size=4),
    heads=st.integers(1, 3),
    group=st.integers(1, 8),
    head_dim=st.sampled_from([1, 3, 16, 33, 64]),
    absent=st.sampled_from([0.0, 0.3, 1.0]),
    with_sinks=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_lanes_of_any_lengths_are_attended_as_the_reference_does(
    counts, heads, group, head_dim, absent, with_sinks, seed
):
    lot = Lot(counts, heads=heads, head_dim=head_dim, absent=absent, seed=seed)
    stored, q = lot.stored, lot.queries(group)
    sinks = lot.numbers(len(counts) * heads * group) if with_sinks else None
    before = lot.tracked(2)
    found, expected = (
        Average(before.clone(), keep=0.75, gain=0.25, starts_at_mass=True) for _ in range(2)
    )
    seen = {"scale": 0.2, "sinks": sinks, "with_mass": True}
    done = on_processors.attend_lanes(q, stored, average=found, **seen)
    judge = lanes.attend_lanes(q, stored, average=expected, **seen)
    torch.testing.assert_close(done.output, judge.output, atol=2e-5, rtol=1e-5)
    for lane in range(len(counts)):
        mass = [stored.boxes.rows(drawn.mass, lane, 1) for drawn in (done, judge)]
        torch.testing.assert_close(*mass, atol=2e-6, rtol=1e-5)
    kept = {"atol": 2e-6, "rtol": 1e-5, "equal_nan": True}
    torch.testing.assert_close(found.numbers, expected.numbers, **kept)


def dense(keys, values):
    """One lane of these rows (W, T, D)."""
    heads, count, head_dim = keys.shape
    boxes = RaggedLayout.of([count], [0], [count], device="cpu")
    flat = (x.reshape(-1, head_dim).contiguous() for x in (keys, values))
    places = torch.arange(count, dtype=torch.int32)
    return StoredEntries(heads, boxes, places, DenseEntries(boxes, *flat), None)


@pytest.mark.parametrize("size", [1e-30, 1.0, 40.0, 1e4])
def test_a_softmax_is_exact_however_steep(size):
    torch.manual_seed(0)
    q, keys, values = torch.randn(1, 2, 8), torch.randn(1, 300, 8) * size, torch.randn(1, 300, 8)
    done = ops.attend_lanes(
        q, dense(keys, values), scale=1.0, with_mass=True, implementation="numba"
    )
    weights = torch.softmax(q[0].double() @ keys[0].double().mT, dim=-1)
    # logits of thousands are themselves rounded
    loose = {"atol": 2e-6 * max(1.0, size), "rtol": 1e-5}
    torch.testing.assert_close(done.output[0].double(), weights @ values[0].double(), **loose)
    torch.testing.assert_close(done.mass.double(), weights.mean(dim=0), **loose)
    assert float(done.mass.sum()) == pytest.approx(1, abs=1e-5)


def test_a_row_that_outweighs_a_million_leaves_them_what_they_are_worth():
    keys = torch.zeros(1, 5, 1)
    keys[0, :, 0] = torch.tensor([0.0, -20.0, -80.0, -120.0, -1e30])
    done = ops.attend_lanes(
        torch.ones(1, 1, 1),
        dense(keys, keys * 0),
        scale=1.0,
        with_mass=True,
        implementation="numba",
    )
    expected = [math.exp(x) for x in (0.0, -20.0, -80.0, -120.0, -1e30)]
    total = sum(expected)
    # what is smaller than the smallest normal float32 is 0
    expected = [x / total if x > 2**-126 else 0.0 for x in expected]
    assert done.mass.tolist() == pytest.approx(expected, rel=1e-5, abs=0)


def test_what_is_not_a_number_is_not_hidden():
    keys, values = torch.zeros(2, 1, 9, 4)
    keys[0, 3] = math.nan
    seen = {"scale": 1.0, "implementation": "numba"}
    assert ops.attend_lanes(torch.ones(1, 1, 4), dense(keys, values), **seen).output.isnan().all()
    values[0, 3, 1], keys[0, 3] = math.inf, 0
    found = ops.attend_lanes(torch.ones(1, 1, 4), dense(keys, values), **seen).output[0, 0]
    assert found.tolist() == [0.0, math.inf, 0.0, 0.0]


def views(seed, *, batch, heads, num_rows, head_dim, num_coded):
    """Parts as a store shows them: views of roomy tensors, keys and values with rooms of their
    own; and the same rows packed."""
    draw = torch.Generator().manual_seed(seed)

    def roomy(x, room, start):
        whole = torch.full((*x.shape[:2], room, *x.shape[3:]), 99, dtype=x.dtype)
        whole[:, :, start : start + x.shape[2]] = x
        return whole[:, :, start : start + x.shape[2]]

    places = torch.arange(num_rows, dtype=torch.int32).expand(batch, -1)
    keys, values = torch.randn(2, batch, heads, num_rows, head_dim, generator=draw)
    parts, packed = [], []
    if num_coded:
        form, fields = FORMATS["int8"], []
        for x in (keys, values):
            each = [form.encode(rows[:, :num_coded]) for rows in x]
            fields.append([torch.stack(field) for field in zip(*each, strict=True)])
        (k, k_scales), (v, v_scales) = fields
        ids = (torch.arange(num_coded) // 64).int().expand(batch, -1)
        about = k_scales, v_scales, ids, places[:, :num_coded]
        packed.append(Quantized(form, k, v, *about))
        parts.append(
            Quantized(form, roomy(k, num_coded + 7, 2), roomy(v, num_coded + 7, 2), *about)
        )
    if num_coded < num_rows:
        rest = [x[:, :, num_coded:] for x in (keys, values)]
        packed.append(Dense(*rest, places[:, num_coded:]))
        rooms = [roomy(x, num_rows + by, 1) for x, by in zip(rest, (1, 6), strict=True)]
        parts.append(Dense(*rooms, places[:, num_coded:]))
    return parts, packed


@pytest.mark.parametrize("num_coded", [0, 1, 65, 80])
@pytest.mark.parametrize(("batch", "heads"), [(1, 1), (1, 3), (3, 1), (2, 2)])
def test_parts_are_read_where_they_lie(num_coded, batch, heads):
    parts, packed = views(1, batch=batch, heads=heads, num_rows=80, head_dim=6, num_coded=num_coded)
    q = torch.randn(batch, heads * 3, 1, 6)
    seen = {"scale": 0.4, "sinks": torch.randn(heads * 3), "num_mass_queries": 1}
    assert lack_of_parts(q, parts) is None
    expected = reference.attend(q, packed, **seen)
    # as models hand queries over, too
    for those in (q, q.transpose(1, 2).contiguous().transpose(1, 2)):
        done = on_processors.attend(those, parts, **seen)
        torch.testing.assert_close(done.output, expected.output, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(done.mass, expected.mass, atol=1e-6, rtol=1e-5)


def test_a_step_is_the_same_alone_and_among_others():
    lot = Lot([(70, 9), (0, 3), (130, 1)], heads=2, head_dim=16)
    q = lot.queries(3)
    together = on_processors.attend_lanes(q, lot.stored, scale=0.3).output
    for lane in range(3):
        parts = lanes.parts_of(lot.stored, lane)
        alone = on_processors.attend(q[lane, None, :, None], parts, scale=0.3).output
        assert torch.equal(alone[0, :, 0], together[lane])


def test_what_is_not_served_is_named():
    q = torch.zeros(1, 2, 1, 8)
    part, whole = views(0, batch=1, heads=2, num_rows=70, head_dim=8, num_coded=64)[1]
    assert lack_of_parts(q, [part, whole]) is None
    assert "more than one query" in lack_of_parts(torch.zeros(1, 2, 3, 8), [whole])
    assert "parts are others" in lack_of_parts(q, [whole, part])
    padded = Dense(whole.keys, whole.values, whole.positions, is_padded=True)
    assert "not there" in lack_of_parts(q, [padded])
    half = Dense(whole.keys.half(), whole.values.half(), whole.positions)
    assert "rows are torch.float16" in lack_of_parts(q, [half])
    assert "rows are torch.bfloat16" in lack_of_attention(q.bfloat16())
    codes, scales = FORMATS["fp8"].encode(torch.randn(2, 5, 8))
    fp8 = Quantized(FORMATS["fp8"], *[codes[None]] * 2, *[scales[None]] * 2, None, part.positions)
    assert "rows are in fp8" in lack_of_parts(q, [fp8])


def test_gradients_go_through_plain_torch():
    part = views(0, batch=1, heads=1, num_rows=9, head_dim=4, num_coded=0)[1][0]
    q = torch.randn(1, 1, 1, 4, requires_grad=True)
    ops.attend(q, [part], scale=0.5).output.sum().backward()
    assert q.grad is not None and bool((q.grad != 0).any())
    with torch.no_grad():
        assert lack_of_attention(q) is None


def in_a_process(code, **environment):
    """What a program prints that treats every warning as an error."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert not done.returncode, done.stderr
    return done.stdout.strip()


def test_numba_is_imported_by_the_first_step_and_not_before():
    code = (
        "import sys, torch; from agentkv_kernels import ops; import agentkv.cache.cache;"
        "print('numba' in sys.modules);"
        "rows = torch.zeros(1, 1, 3, 4); place = torch.arange(3)[None];"
        "ops.attend(rows[:, :, :1], [ops.Dense(rows, rows, place)], scale=1.0);"
        "print('numba' in sys.modules)"
    )
    assert in_a_process(code).split() == ["False", "True"]


def test_without_numba_plain_torch_serves():
    code = (
        "import sys; sys.modules['numba'] = None;"
        "import torch; from agentkv_kernels import ops; print(ops.choice_for(torch.device('cpu')))"
    )
    expected = "reference: rows on cpu, and Numba is not installed: pip install 'agentkv[cpu]'"
    assert in_a_process(code) == expected


def test_a_process_that_was_forked_after_a_step_takes_steps_too():
    code = (
        "import os, torch; from agentkv_kernels import ops;"
        "rows = torch.ones(1, 1, 3, 4); place = torch.arange(3)[None];"
        "step = lambda: ops.attend(rows[:, :, :1], [ops.Dense(rows, rows, place)], scale=1.0);"
        "step(); child = os.fork();"
        "found = step().output.sum();"
        "os._exit(int(found != 4)) if not child else print(os.waitpid(child, 0)[1])"
    )
    assert in_a_process(code) == "0"
