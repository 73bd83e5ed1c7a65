"""Attention over mixed-precision entries, judged by loops in float64."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from agentkv_kernels import attention
from agentkv_kernels.entries import DensePart, Quantized
from agentkv_kernels.formats import FORMATS, format_of


def by_hand(q, stored, scale, q_positions, window, sinks):
    """Output and weights (B, HG, Q, T), one query head and one query at a time."""
    keys, values, positions = stored
    q, keys, values = q.double(), keys.double(), values.double()
    group = q.shape[1] // keys.shape[1]
    out = torch.zeros_like(q)
    weights = torch.zeros(*q.shape[:3], keys.shape[2], dtype=torch.float64)
    for b, h, i in torch.cartesian_prod(*(torch.arange(n) for n in q.shape[:3])).tolist():
        logits = {}
        for t, place in enumerate(positions[b].tolist()):
            if q_positions is not None:
                back = int(q_positions[b, i]) - place
                if back < 0 or (window is not None and back >= window):
                    continue
            logits[t] = float(q[b, h, i] @ keys[b, h // group, t]) * scale
        extra = [] if sinks is None else [float(sinks[h])]
        if not logits and not extra:
            continue
        top = max([*logits.values(), *extra])
        total = sum(math.exp(x - top) for x in [*logits.values(), *extra])
        for t, logit in logits.items():
            weights[b, h, i, t] = math.exp(logit - top) / total
            out[b, h, i] += weights[b, h, i, t] * values[b, h // group, t]
    return out, weights


def mass_of(weights, num_heads, num_mass):
    """(B, H, T): the mean over a group's query heads and over the last queries."""
    return weights.unflatten(1, (num_heads, -1))[:, :, :, -num_mass:].mean(dim=(2, 3))


def coded(format, keys, values, positions):
    """Entries (B, H, T, D) in a format, and what its decoder makes of each sequence by itself."""
    ids = (torch.arange(keys.shape[2]) // 64).int()
    fields, decoded = [], []
    for x in (keys, values):
        each = [format.encode(entries) for entries in x]
        decoded.append(torch.stack([format.decode(*entry, ids) for entry in each]))
        fields.append([torch.stack(field) for field in zip(*each, strict=True)])
    (keys, key_scales), (values, value_scales) = fields
    block_ids = ids.repeat(len(positions), 1) if format.by_block else None
    part = Quantized(format, keys, values, key_scales, value_scales, block_ids, positions)
    return part, decoded


def rows_of(seed, *, batch, heads, num_entries, head_dim, num_coded, name="int8"):
    """Parts holding entries at ascending positions with holes, the first `num_coded` in a format;
    and the keys, values and positions they hold."""
    torch.manual_seed(seed)
    keys, values = torch.randn(2, batch, heads, num_entries, head_dim).mul(2)
    places = torch.stack(
        [torch.randperm(2 * num_entries)[:num_entries].sort()[0] for _ in range(batch)]
    )
    parts = []
    if num_coded:
        first = (x[:, :, :num_coded] for x in (keys, values))
        part, decoded = coded(format_of(name), *first, places[:, :num_coded])
        keys[:, :, :num_coded], values[:, :, :num_coded] = decoded
        parts.append(part)
    if num_coded < num_entries:
        rest = (x[:, :, num_coded:] for x in (keys, values))
        parts.append(DensePart(*rest, places[:, num_coded:]))
    return parts, (keys, values, places)


# batch, KV heads, group, queries, entries, head size, coded entries, window, sinks
SHAPES = [
    (1, 1, 1, 1, 1, 8, 0, None, False),
    (1, 2, 2, 1, 65, 16, 64, None, False),
    (1, 2, 3, 1, 130, 5, 77, None, True),
    (2, 1, 4, 5, 63, 60, 0, None, False),
    (2, 3, 1, 7, 100, 16, 65, None, False),
    (1, 2, 2, 37, 70, 12, 70, 9, True),
    (2, 2, 4, 11, 81, 16, 33, 20, True),
]
CALLS = {
    "blocks of 7": lambda *a, **kw: attention.attend_in_blocks(*a, block=7, q_block=3, **kw),
    "blocks of 64": lambda *a, **kw: attention.attend_in_blocks(*a, block=64, q_block=64, **kw),
    "at once": attention.attend_at_once,
    "public": attention.attend,
}


@pytest.mark.parametrize("shape", SHAPES, ids=lambda s: "-".join(map(str, s)))
def test_attention_mass_and_weights_are_those_of_loops_in_float64(shape):
    batch, heads, group, num_q, num_entries, head_dim, num_coded, window, with_sinks = shape
    parts, stored = rows_of(
        1, batch=batch, heads=heads, num_entries=num_entries, head_dim=head_dim, num_coded=num_coded
    )
    q = torch.randn(batch, heads * group, num_q, head_dim)
    sinks = torch.randn(heads * group) if with_sinks else None
    q_positions = None
    if num_q > 1:
        # the last query stands just after the last entry, so every query sees some entry
        last = stored[2].amax(dim=1)
        q_positions = last[:, None] + 1 - torch.arange(num_q - 1, -1, -1).mul(3).div(4).int()
    out, weights = by_hand(q, stored, 0.3, q_positions, window, sinks)
    seen = {"scale": 0.3, "q_positions": q_positions, "window": window, "sinks": sinks}
    for call in CALLS.values():
        done = call(q, parts, num_mass_queries=4, **seen)
        torch.testing.assert_close(done.output.double(), out, atol=2e-5, rtol=1e-5)
        mass = mass_of(weights, heads, min(4, num_q))
        torch.testing.assert_close(done.mass.double(), mass, atol=1e-6, rtol=1e-5)
    done = attention.attend(q, parts, **seen)
    torch.testing.assert_close(done.output.double(), out, atol=2e-5, rtol=1e-5)
    assert done.mass is None
    for block in (7, 4096):
        found = attention.weights(q, parts, block=block, **seen)
        assert found.shape == (batch, heads, group, num_q, num_entries)
        torch.testing.assert_close(found.flatten(1, 2).double(), weights, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("num_q", [1, 4])
def test_entries_of_every_format_are_attended(name, num_q):
    parts, stored = rows_of(
        3, batch=2, heads=2, num_entries=90, head_dim=34, num_coded=70, name=name
    )
    keys, values, places = stored
    q = torch.randn(2, 6, num_q, 34)
    q_positions = places.amax(dim=1)[:, None] - torch.arange(num_q).flip(0)
    for window, sinks in ((None, None), (60, torch.randn(6))):
        seen = {"scale": 0.2, "q_positions": q_positions, "window": window, "sinks": sinks}
        out, weights = by_hand(q, (keys, values, places), **seen)
        for call in CALLS.values():
            done = call(q, parts, num_mass_queries=2, **seen)
            torch.testing.assert_close(done.output.double(), out, atol=2e-5, rtol=1e-5)
            mass = mass_of(weights, 2, min(2, num_q))
            torch.testing.assert_close(done.mass.double(), mass, atol=1e-6, rtol=1e-5)
        for block in (13, 4096):
            found = attention.weights(q, parts, block=block, **seen).flatten(1, 2)
            torch.testing.assert_close(found.double(), weights, atol=1e-6, rtol=1e-5)


@given(
    name=st.sampled_from(list(FORMATS)),
    sizes=st.tuples(*(st.integers(1, n) for n in (2, 2, 2, 3))),
    num_entries=st.integers(1, 24),
    share=st.floats(0, 1),
    window=st.none() | st.integers(1, 30),
    with_sinks=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_weights_agree_with_attention_and_loops_whatever_can_be_seen(
    name, sizes, num_entries, share, window, with_sinks, seed
):
    batch, heads, group, num_q = sizes
    num_coded = int(share * num_entries)
    parts, (keys, values, places) = rows_of(
        seed,
        batch=batch,
        heads=heads,
        num_entries=num_entries,
        head_dim=4,
        num_coded=num_coded,
        name=name,
    )
    q = torch.randn(batch, heads * group, num_q, 4)
    # some queries stand before every entry and see nothing
    q_positions = torch.randint(-1, 2 * num_entries + 1, (batch, num_q))
    sinks = torch.randn(heads * group) if with_sinks else None
    seen = {"scale": 0.4, "q_positions": q_positions, "window": window, "sinks": sinks}
    out, expected = by_hand(q, (keys, values, places), **seen)
    weights = attention.weights(q, parts, **seen).flatten(1, 2)
    torch.testing.assert_close(weights.double(), expected, atol=1e-6, rtol=1e-5)
    assert (weights[expected == 0] == 0).all()
    done = attention.attend_in_blocks(q, parts, num_mass_queries=num_q, **seen)
    torch.testing.assert_close(done.output.double(), out, atol=2e-5, rtol=1e-5)
    mass = mass_of(weights, heads, num_q)
    torch.testing.assert_close(done.mass, mass, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("most", [1, 300, 1 << 22])
def test_fused_attention_is_that_of_loops_however_many_queries_it_takes_at_once(monkeypatch, most):
    monkeypatch.setattr(attention, "MAX_LOGITS_AT_ONCE", most)
    parts, stored = rows_of(
        7, batch=2, heads=2, num_entries=90, head_dim=16, num_coded=70, name="int8"
    )
    q = torch.randn(2, 6, 11, 16)
    q_positions = stored[2].amax(dim=1)[:, None] - torch.arange(11).flip(0)
    for window in (None, 60):
        seen = {"scale": 0.3, "q_positions": q_positions, "window": window}
        out, _ = by_hand(q, stored, 0.3, q_positions, window, None)
        done = attention.attend_fused(q, parts, **seen)
        torch.testing.assert_close(done.output.double(), out, atol=2e-5, rtol=1e-5)


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float32, 2e-5), (torch.bfloat16, 2e-2), (torch.float16, 2e-3)]
)
@pytest.mark.parametrize("most", [300, 1 << 26])
def test_a_device_reads_a_page_as_loops_do(monkeypatch, dtype, tolerance, most):
    monkeypatch.setattr(attention, "MAX_LOGITS_ON_DEVICE", most)
    keys, values = torch.randn(2, 2, 2, 90, 64, device="cuda").to(dtype)
    q = torch.randn(2, 6, 11, 64, device="cuda").to(dtype)
    positions = torch.arange(90, device="cuda").expand(2, -1)
    seen = {"scale": 0.125, "q_positions": positions[:, -11:]}
    for window in (None, 60):
        found = attention.attend(q, [DensePart(keys, values, positions)], window=window, **seen)
        exact = [DensePart(keys.double(), values.double(), positions)]
        loops = attention.attend_in_blocks(q.double(), exact, window=window, block=7, **seen)
        torch.testing.assert_close(
            found.output.double(), loops.output, atol=tolerance, rtol=tolerance
        )


def test_a_query_that_sees_nothing_gets_zeros_and_gives_no_mass():
    keys, values = torch.randn(2, 1, 1, 4, 8)
    part = DensePart(keys, values, torch.tensor([[3, 4, 5, 6]]))
    q, q_positions = torch.randn(1, 1, 2, 8), torch.tensor([[2, 6]])
    done = attention.attend_in_blocks(
        q, [part], scale=1.0, q_positions=q_positions, num_mass_queries=2
    )
    assert (done.output[0, 0, 0] == 0).all()
    torch.testing.assert_close(done.mass.sum(), torch.tensor(0.5))
    weights = attention.weights(q, [part], scale=1.0, q_positions=q_positions)
    torch.testing.assert_close(weights.sum(dim=-1).flatten(), torch.tensor([0.0, 1.0]))


@pytest.mark.parametrize("with_sinks", [False, True])
def test_masses_of_a_head_sum_to_one_less_the_share_of_the_sink(with_sinks):
    parts, _ = rows_of(5, batch=1, heads=2, num_entries=100, head_dim=16, num_coded=64)
    q = torch.randn(1, 4, 1, 16)
    sinks = torch.full((4,), 2.0) if with_sinks else None
    masses = attention.attend(q, parts, scale=0.2, sinks=sinks, num_mass_queries=1).mass.sum(dim=-1)
    weights = attention.weights(q, parts, scale=0.2, sinks=sinks).sum(dim=-1)
    for total in (masses, weights):
        if with_sinks:
            assert (total < 0.999).all()
        else:
            torch.testing.assert_close(total, torch.ones_like(total))


def test_half_precision_entries_are_attended_in_their_dtype():
    keys, values = torch.randn(2, 1, 2, 50, 16, dtype=torch.bfloat16)
    positions = torch.arange(50)[None]
    q = torch.randn(1, 4, 1, 16, dtype=torch.bfloat16)
    done = attention.attend(q, [DensePart(keys, values, positions)], scale=0.25, num_mass_queries=1)
    assert done.output.dtype == torch.bfloat16 and done.mass.dtype == torch.float32
    out, _ = by_hand(q, (keys, values, positions), 0.25, None, None, None)
    torch.testing.assert_close(done.output.double(), out, atol=2e-2, rtol=2e-2)


def test_weights_of_half_precision_entries_are_exact_to_float32():
    """Many entries would tie in bfloat16, and a tie decides which entry is evicted."""
    torch.manual_seed(4)
    keys, values = torch.randn(2, 1, 2, 50, 16, dtype=torch.bfloat16)
    positions = torch.arange(50)[None]
    q, sinks = torch.randn(1, 4, 3, 16, dtype=torch.bfloat16), torch.randn(4).bfloat16()
    weights = attention.weights(q, [DensePart(keys, values, positions)], scale=0.3, sinks=sinks)
    assert weights.dtype == torch.float32
    _, expected = by_hand(q, (keys, values, positions), 0.3, None, None, sinks)
    torch.testing.assert_close(weights.flatten(1, 2).double(), expected, atol=1e-7, rtol=1e-5)


@pytest.mark.parametrize("name", FORMATS)
def test_a_coded_part_is_read_through_the_scale_of_each_entry(name):
    """Entries were dropped after they were encoded, so a block's entries are fewer than 64."""
    format = format_of(name)
    torch.manual_seed(0)
    x, y = torch.randn(2, 2, 2, 128, 4)
    x[:, :, 64:] *= 100
    part, (keys, values) = coded(format, x, y, torch.arange(128).repeat(2, 1))
    order = torch.randperm(128).sort()[0][::3]

    def gathered(scales):
        return scales if format.by_block else scales[:, :, order]

    part = Quantized(
        format,
        part.keys[:, :, order],
        part.values[:, :, order],
        gathered(part.key_scales),
        gathered(part.value_scales),
        part.block_ids[:, order] if format.by_block else None,
        part.positions[:, order],
    )
    for dtype in (torch.float32, torch.bfloat16):
        piece = part.slice(5, 30)
        found = piece.decode(dtype)
        assert torch.equal(found[0], keys[:, :, order][:, :, 5:30].to(dtype))
        assert torch.equal(found[1], values[:, :, order][:, :, 5:30].to(dtype))
        assert torch.equal(piece.positions, part.positions[:, 5:30])
        assert torch.equal(part.decode(dtype)[0], keys[:, :, order].to(dtype))
    assert torch.equal(part.slice(5, 30).decode_keys(), keys[:, :, order][:, :, 5:30])
