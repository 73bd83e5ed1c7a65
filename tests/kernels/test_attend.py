"""Attention over mixed-precision rows, judged by loops in float64."""

import math

import pytest
import torch

from agentkv_kernels import ops, reference
from agentkv_kernels.ops import Coded, Dense, dequantize, quantize


def by_hand(q, parts, scale, q_positions, window, sinks, num_mass):
    """Output and mass, one query head and one query at a time."""
    batch, num_q_heads, num_q, head_dim = q.shape
    rows = [part.rows(0, part.num_rows, torch.float32) for part in parts]
    keys = torch.cat([k for k, _, _ in rows], dim=2).double()
    values = torch.cat([v for _, v, _ in rows], dim=2).double()
    positions = torch.cat([p for _, _, p in rows], dim=1)
    num_heads, num_rows = keys.shape[1], keys.shape[2]
    group = num_q_heads // num_heads
    out = torch.zeros(q.shape, dtype=torch.float64)
    mass = torch.zeros(batch, num_heads, num_rows, dtype=torch.float64)
    num_mass = min(num_mass, num_q)
    for b in range(batch):
        for h in range(num_q_heads):
            for i in range(num_q):
                logits = {}
                for t in range(num_rows):
                    place = int(positions[b, t])
                    if place < 0:
                        continue
                    if q_positions is not None:
                        back = int(q_positions[b, i]) - place
                        if back < 0 or (window is not None and back >= window):
                            continue
                    logits[t] = float(q[b, h, i].double() @ keys[b, h // group, t]) * scale
                extra = [] if sinks is None else [float(sinks[h])]
                if not logits and not extra:
                    continue
                top = max([*logits.values(), *extra])
                total = sum(math.exp(x - top) for x in [*logits.values(), *extra])
                for t, logit in logits.items():
                    p = math.exp(logit - top) / total
                    out[b, h, i] += p * values[b, h // group, t]
                    if i >= num_q - num_mass:
                        mass[b, h // group, t] += p / (group * num_mass)
    return out, mass


def rows_of(seed, *, batch, heads, num_rows, head_dim, num_coded):
    """Parts holding rows at ascending positions with holes, the first `num_coded` in 8 bits."""
    torch.manual_seed(seed)
    keys, values = torch.randn(2, batch, heads, num_rows, head_dim).mul(2)
    places = torch.stack([torch.randperm(2 * num_rows)[:num_rows].sort()[0] for _ in range(batch)])
    parts = []
    if num_coded:
        each = [
            quantize(torch.stack([keys[b], values[b]])[:, :, :num_coded].permute(2, 0, 1, 3))
            for b in range(batch)
        ]
        ids = (torch.arange(num_coded) // 64).int().expand(batch, -1)
        codes, exponents = (torch.stack(x) for x in zip(*each, strict=True))
        parts.append(Coded(codes, exponents, ids, places[:, :num_coded]))
    if num_coded < num_rows:
        rest = slice(num_coded, None)
        parts.append(Dense(keys[:, :, rest], values[:, :, rest], places[:, rest]))
    return parts


# batch, KV heads, group, queries, rows, head size, rows in 8 bits, window, sinks
SHAPES = [
    (1, 1, 1, 1, 1, 8, 0, None, False),
    (1, 2, 2, 1, 65, 16, 64, None, False),
    (1, 2, 3, 1, 130, 5, 77, None, True),
    (2, 1, 4, 5, 63, 60, 0, None, False),
    (2, 3, 1, 7, 100, 16, 65, None, False),
    (1, 2, 2, 37, 70, 12, 70, 9, True),
    (2, 2, 4, 11, 81, 16, 33, 20, True),
]


@pytest.mark.parametrize("shape", SHAPES, ids=lambda s: "-".join(map(str, s)))
@pytest.mark.parametrize("how", ["blocks of 7", "blocks of 64", "at once", "public"])
def test_attention_and_mass_are_those_of_loops_in_float64(shape, how):
    batch, heads, group, num_q, num_rows, head_dim, num_coded, window, with_sinks = shape
    parts = rows_of(
        1, batch=batch, heads=heads, num_rows=num_rows, head_dim=head_dim, num_coded=num_coded
    )
    q = torch.randn(batch, heads * group, num_q, head_dim)
    sinks = torch.randn(heads * group) if with_sinks else None
    # the last query stands just after the last row, so every query sees some row
    last = torch.cat([p.positions for p in parts], dim=1).amax(dim=1)
    q_positions = None
    if num_q > 1:
        q_positions = last[:, None] + 1 - torch.arange(num_q - 1, -1, -1).mul(3).div(4).int()
    call = {
        "blocks of 7": lambda **kw: reference.attend(q, parts, block=7, q_block=3, **kw),
        "blocks of 64": lambda **kw: reference.attend(q, parts, block=64, q_block=64, **kw),
        "at once": lambda **kw: reference.attend_at_once(q, parts, **kw),
        "public": lambda **kw: ops.attend(q, parts, **kw),
    }[how]
    done = call(scale=0.3, q_positions=q_positions, window=window, sinks=sinks, num_mass_queries=4)
    out, mass = by_hand(q, parts, 0.3, q_positions, window, sinks, 4)
    torch.testing.assert_close(done.output.double(), out, atol=2e-5, rtol=1e-5)
    torch.testing.assert_close(done.mass.double(), mass, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("block", [3, 1000])
def test_rows_that_are_not_there_may_hold_nan(block):
    torch.manual_seed(2)
    keys, values = torch.randn(2, 2, 2, 20, 8)
    positions = torch.arange(20).repeat(2, 1)
    positions[0, :6] = -1  # a left-padded sequence
    positions[1, 13:] = -1  # a shorter one
    absent = (positions < 0)[:, None, :, None]
    keys, values = keys.masked_fill(absent, math.nan), values.masked_fill(absent, math.nan)
    q = torch.randn(2, 4, 3, 8)
    q_positions = torch.tensor([[17, 18, 19], [10, 11, 12]])
    part = Dense(keys, values, positions, is_padded=True)
    clean = Dense(keys.nan_to_num(9.0), values.nan_to_num(9.0), positions, is_padded=True)
    for window, sinks in ((None, None), (5, torch.randn(4))):
        done = reference.attend(
            q,
            [part],
            scale=0.5,
            q_positions=q_positions,
            window=window,
            sinks=sinks,
            num_mass_queries=2,
            block=block,
        )
        out, mass = by_hand(q, [clean], 0.5, q_positions, window, sinks, 2)
        torch.testing.assert_close(done.output.double(), out, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(done.mass.double(), mass, atol=1e-6, rtol=1e-5)
        public = ops.attend(
            q, [part], scale=0.5, q_positions=q_positions, window=window, sinks=sinks
        )
        torch.testing.assert_close(public.output, done.output)


def test_a_query_that_sees_nothing_gets_zeros_and_gives_no_mass():
    keys, values = torch.randn(2, 1, 1, 4, 8)
    part = Dense(keys, values, torch.tensor([[3, 4, 5, 6]]))
    q_positions = torch.tensor([[2, 6]])
    done = reference.attend(
        torch.randn(1, 1, 2, 8), [part], scale=1.0, q_positions=q_positions, num_mass_queries=2
    )
    assert (done.output[0, 0, 0] == 0).all()
    torch.testing.assert_close(done.mass.sum(), torch.tensor(0.5))


@pytest.mark.parametrize("with_sinks", [False, True])
def test_masses_of_a_head_sum_to_one_less_the_share_of_the_sink(with_sinks):
    parts = rows_of(5, batch=1, heads=2, num_rows=100, head_dim=16, num_coded=64)
    q = torch.randn(1, 4, 1, 16)
    sinks = torch.full((4,), 2.0) if with_sinks else None
    total = ops.attend(q, parts, scale=0.2, sinks=sinks, num_mass_queries=1).mass.sum(dim=-1)
    if with_sinks:
        assert (total < 0.999).all()
    else:
        torch.testing.assert_close(total, torch.ones(1, 2))


def test_half_precision_rows_are_attended_in_their_dtype():
    keys, values = torch.randn(2, 1, 2, 50, 16, dtype=torch.bfloat16)
    part = Dense(keys, values, torch.arange(50)[None])
    q = torch.randn(1, 4, 1, 16, dtype=torch.bfloat16)
    done = ops.attend(q, [part], scale=0.25, num_mass_queries=1)
    assert done.output.dtype == torch.bfloat16 and done.mass.dtype == torch.float32
    out, _ = by_hand(q, [part], 0.25, None, None, None, 1)
    torch.testing.assert_close(done.output.double(), out, atol=2e-2, rtol=2e-2)


def test_a_coded_part_is_read_through_the_scale_of_each_rows_own_block():
    torch.manual_seed(0)
    x = torch.randn(128, 2, 1, 4)
    x[64:] *= 100
    codes, exponents = quantize(x)
    ids = (torch.arange(128) // 64).int()
    order = torch.randperm(128).sort()[0][::3]
    part = Coded(codes[order][None], exponents[None], ids[order][None], order[None])
    keys, values, _ = part.rows(5, 30, torch.float32)
    whole = dequantize(codes, exponents, ids)[order][5:30]  # (t, 2, H, D)
    assert torch.equal(keys[0], whole[:, 0].transpose(0, 1))
    assert torch.equal(values[0], whole[:, 1].transpose(0, 1))
