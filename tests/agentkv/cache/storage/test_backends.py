"""Every backend against plain torch, on the same layers; all layers at once against one by one.

With `TRITON_INTERPRET=1` in the environment, or a CUDA device, Triton is tried as well.
"""

import os
from dataclasses import dataclass, replace
from typing import ClassVar

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import agentkv
from agentkv.cache.budget import Allowance
from agentkv.cache.eviction.evictor import evict
from agentkv.cache.eviction.layer_policy import LayerPolicy
from agentkv.cache.geometry import Attention, Geometry, LayerShape
from agentkv.cache.layer import CacheLayer
from agentkv.cache.spans import Spans
from agentkv.cache.storage.choose import backend_for
from agentkv.cache.storage.table import Meter
from agentkv.policies.entries import Drop, DropOne
from agentkv_kernels.device import preferring
from agentkv_kernels.ema import Ema
from agentkv_kernels.layout import EMPTY, FORMAT_NUMBERS, Field
from tests.agentkv.cache.caches_in_use import kept
from tests.agentkv.cache.policies_under_test import CASES
from tests.agentkv.cache.storage.by_hand import CPU, DIM, TORCH, contents, drop, layout, storage_for
from tests.sampling import sampled

HEADS, GROUP = 2, 3
IS_INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
HAS_TRITON = torch.cuda.is_available() or IS_INTERPRETED
EXAMPLES = 4 if IS_INTERPRETED else 30
NAMES = ["numba", *(["triton"] if HAS_TRITON else [])]


def backend(name):
    if name == "numba":
        from agentkv.cache.storage.numba_backend import NUMBA

        return NUMBA
    from agentkv.cache.storage.triton_backend import TRITON

    return TRITON


def layer_for(policy, batch):
    """An empty layer of some sequences under a policy."""
    shape = LayerShape(HEADS, DIM, None)
    geometry = Geometry("llama", (shape,), HEADS * GROUP, torch.float32, None)
    budget = 100 if policy.gate.evicts else None
    allowance = Allowance(policy, budget, geometry, batch)
    spans = Spans()
    spans.set_batch(batch)
    return CacheLayer(shape, policy=LayerPolicy(0, allowance, spans), meter=Meter())


def tokens_for(batch, count, seed):
    draw = torch.Generator().manual_seed(seed)
    sizes = ((HEADS * GROUP, 1.0), (HEADS, 2.0), (HEADS, 1.0))
    return [torch.randn(batch, heads, count, DIM, generator=draw) * x for heads, x in sizes]


@dataclass(frozen=True)
class Halves:
    """A format that only plain torch knows: float16 codes, and a scale for each entry and head."""

    name: ClassVar[str] = "halves"
    by_block: ClassVar[bool] = False
    code_dtype: ClassVar[torch.dtype] = torch.float16
    scale_dtype: ClassVar[torch.dtype] = torch.float32

    def code_size(self, head_dim):
        return head_dim

    def scale_size(self, head_dim):
        return 1

    def encode(self, x):
        scales = x.abs().amax(dim=-1, keepdim=True).clamp_min(1e-30)
        return (x / scales).to(torch.float16), scales

    def decode(self, codes, scales, block_ids):
        return codes.to(torch.float32) * scales


@pytest.mark.parametrize("implementation", ["torch", *NAMES])
def test_a_format_that_compiled_code_does_not_read_is_served_by_plain_torch(implementation):
    shape = replace(layout(), format=Halves())
    with preferring(implementation):
        serving = backend_for(shape, HEADS * GROUP, CPU)
    assert serving.name == "torch"
    storage = storage_for(shape)
    keys, values = (torch.randn(1, 2, 100, DIM) for _ in range(2))
    serving.append(storage, keys, values, None, first=[0], columns=None)
    serving.quantize_oldest(storage, [20])
    assert storage.num_quantized == [64]
    found = contents(storage, 0)
    torch.testing.assert_close(found[0], keys[0], atol=2e-3, rtol=2e-3)
    torch.testing.assert_close(found[1], values[0], atol=2e-3, rtol=2e-3)


@pytest.mark.sample("pairs")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize(("segments", "heads"), [(1, 2), (2, 1)])
@pytest.mark.parametrize("form", FORMAT_NUMBERS)
def test_compiled_code_reads_entries_exactly_as_their_format_decodes_them(
    form, segments, heads, dtype
):
    shape = replace(layout(form, segments=segments, heads=heads), dtype=dtype, head_dim=72)
    storage = storage_for(shape, batch=2)
    keys, values = torch.randn(2, 2, 2, 200, 72, generator=torch.Generator().manual_seed(0))
    TORCH.append(storage, keys.to(dtype), values.to(dtype), first=[0, 0])
    if form is not None:
        TORCH.quantize_oldest(storage, [20, 20])
    TORCH.drop_runs(storage, [(3, 9 + 4 * segment) for segment in range(storage.num_segments)])
    for segment in range(storage.num_segments):
        [read] = backend("numba").parts(storage, segment)
        found = [x[0] for x in read.decode(torch.float32)]
        torch.testing.assert_close(found, contents(storage, segment), atol=0, rtol=0)
        assert torch.equal(read.positions[0], storage.positions(segment))


@pytest.mark.sample("pairs")
@pytest.mark.parametrize("sinks", [None, torch.linspace(-2, 3, HEADS * GROUP)])
@pytest.mark.parametrize("backend_name", NAMES)
@pytest.mark.parametrize(("segments", "heads"), [(1, 2), (2, 1)])
@pytest.mark.parametrize("window", [None, 30])
@pytest.mark.parametrize("form", [None, "int8", "int4"])
def test_a_token_whose_entry_is_stored_attends_as_in_plain_torch(
    form, window, segments, heads, backend_name, sinks
):
    shape = layout(form, segments=segments, heads=heads)
    storage, (q, keys, values) = storage_for(shape, batch=2), tokens_for(2, 200, seed=0)
    TORCH.append(storage, keys, values, first=[0, 0])
    if form is not None:
        TORCH.quantize_oldest(storage, [20, 20])
    TORCH.drop_runs(storage, [(3, 9 + 4 * segment) for segment in range(storage.num_segments)])
    rest = {"first": [199, 199], "columns": None, "scale": 0.3, "sinks": sinks, "observer": None}
    newest = q[:, :, -1:]
    found, expected = (
        each.attend(storage, newest, window=window, **rest)
        for each in (backend(backend_name), TORCH)
    )
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)
    if window is not None:
        hidden = [(0, 200 - window)] * storage.num_segments
        TORCH.drop_span(storage, hidden)
        seen = TORCH.attend(storage, newest, window=None, **rest)
        torch.testing.assert_close(found, seen, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("sinks", [None, torch.linspace(-2, 3, HEADS * GROUP)])
@pytest.mark.parametrize("backend_name", NAMES)
@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("full", {}),
        ("int8", {}),
        ("conf-kv-int8", {"recent": 20}),
        ("h2o", {}),
        ("h2o", {"normalize": True}),
        ("scissorhands", {}),
        ("snapkv", {"window": 5}),
        ("ada-snapkv", {"window": 5}),
    ],
)
def test_a_layer_decodes_under_a_backend_as_in_plain_torch(name, parameters, backend_name, sinks):
    attention, policy = Attention(0.7, sinks, None), agentkv.policy(name, **parameters)
    layers = [layer_for(policy, 2) for _ in range(2)]
    for layer, chosen in zip(layers, (backend_name, "torch"), strict=True):
        with preferring(chosen):
            layer.attend(*tokens_for(2, 90, seed=0), None, attention)
        assert layer.backend.name == chosen
        evict([layer], None, num_new=90)
    fast, slow = layers
    for step in range(40 if backend_name == "numba" else 6):
        new = tokens_for(2, 1, seed=step + 1)
        found, expected = (layer.attend(*new, None, attention) for layer in layers)
        torch.testing.assert_close(found, expected, atol=2e-3, rtol=1e-4)
        if backend_name == "numba":
            torch.testing.assert_close(found, expected, atol=2e-5, rtol=1e-5)
        for layer in layers:
            evict([layer], None, num_new=1)
            layer.check()
            assert layer.meter.live == layer.nbytes
        same(fast.storage, slow.storage)
        if fast.storage.queries is not None:
            for sequence in range(2):
                pairs = zip(*(each.storage.queries.of(sequence) for each in layers), strict=True)
                for own, other in pairs:
                    assert torch.equal(own, other)


def same(fast, slow):
    """Both hold the same entries in the same order, with statistics that are close."""
    assert fast.counts == slow.counts and fast.num_quantized == slow.num_quantized
    for segment in range(fast.num_segments):
        assert torch.equal(fast.positions(segment), slow.positions(segment))
        assert torch.equal(fast.norms(segment), slow.norms(segment))
        both = fast.tracked(segment), slow.tracked(segment)
        torch.testing.assert_close(*both, atol=1e-5, rtol=1e-3)
        for own, other in zip(contents(fast, segment), contents(slow, segment), strict=True):
            assert torch.equal(own, other)


def filled(counts, per, recent, tracked):
    """Storage with entries of random keys, values, norms and statistics, some of them quantized."""
    shape = layout("int8", segments=per, heads=2 // per, tracked=tracked, norms=1)
    storage = storage_for(shape, len(counts))
    draw = torch.Generator().manual_seed(0)
    most = max(counts)
    keys, values, norms = (
        torch.randn(len(counts), 2, most, n, generator=draw) for n in (DIM, DIM, 1)
    )
    columns = [torch.arange(most)[-count:] for count in counts]
    TORCH.append(storage, keys, values, norms, first=[0] * len(counts), columns=columns)
    TORCH.quantize_oldest(storage, [recent] * len(counts))
    for segment in range(storage.num_segments):
        numbers = storage.tracked(segment)
        numbers.copy_(torch.rand(numbers.shape, generator=draw))
    return storage


class Received:
    """Collects the mass of one new token per segment."""

    def __init__(self, storage):
        self.storage, self.masses = storage, {}

    def num_queries(self, num_new):
        return num_new

    def observe(self, which, mass, num_new, last_weights):
        segments = [which] if isinstance(which, int) else range(self.storage.num_segments)
        self.masses.update(zip(segments, mass, strict=True))
        torch.testing.assert_close(last_weights(1)[:, 0], mass)


ragged = st.lists(st.integers(1, 150), min_size=1, max_size=4)


@pytest.mark.parametrize("backend_name", NAMES)
@settings(max_examples=EXAMPLES)
@given(
    counts=ragged,
    per=st.sampled_from([1, 2]),
    recent=st.integers(0, 70),
    group=st.integers(1, 5),
    with_sinks=st.booleans(),
    starts=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_segments_of_any_lengths_are_attended_as_in_plain_torch(
    backend_name, counts, per, recent, group, with_sinks, starts, seed
):
    draw = torch.Generator().manual_seed(seed)
    tracked = Field(1, (2,), torch.float32)
    batch, masses = len(counts), []
    q = torch.randn(batch, 2 * group, 1, DIM, generator=draw)
    keys, values = torch.randn(2, batch, 2, 1, DIM, generator=draw)
    sinks = torch.randn(2 * group, generator=draw) if with_sinks else None
    ema = Ema(keep=0.75, gain=0.25, starts_at_mass=starts) if seed % 2 else None
    results = []
    for each in (backend(backend_name), TORCH):
        storage = filled(counts, per, recent, tracked)
        masses.append(Received(storage))

        output = each.append_attend(
            storage, q, keys, values, first=counts, scale=0.2, sinks=sinks, ema=ema,
            observer=None if ema else masses[-1],
        )  # fmt: skip
        storage.check()
        for segment in range(storage.num_segments):  # norms of new entries are the caller's
            storage.metadata.entries(2, segment)[:, -1:] = 0
        results.append((output, storage))
    torch.testing.assert_close(results[0][0], results[1][0], atol=1e-3, rtol=1e-4)
    same(results[0][1], results[1][1])
    found, expected = (each.masses for each in masses)
    assert found.keys() == expected.keys() and bool(found) == (ema is None)
    for segment, mass in found.items():
        torch.testing.assert_close(mass, expected[segment], atol=1e-5, rtol=1e-3)


@pytest.mark.parametrize("backend_name", NAMES)
@settings(max_examples=2 * EXAMPLES)
@given(
    counts=st.lists(st.integers(1, 100 if IS_INTERPRETED else 300), min_size=1, max_size=4),
    per=st.sampled_from([1, 2]),
    recent=st.integers(0, 70),
    size=st.integers(0, 2),
    shares=st.lists(st.sampled_from([None, 0, 1, 2, 0.98, 0.9, 0.5, 0.05, 0.0]), min_size=4),
    is_same=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_a_backend_drops_what_plain_torch_drops(
    backend_name, counts, per, recent, size, shares, is_same, seed
):
    tracked = Field(1, (size,), torch.float32) if size else EMPTY
    fast, slow = (filled(counts, per, recent, tracked) for _ in range(2))
    draw = torch.Generator().manual_seed(seed)
    for _ in range(3):
        verdicts = []
        for sequence, share in zip(range(len(counts)), shares, strict=False):
            held = slow.counts[sequence * per : (sequence + 1) * per]
            most, least = max(held), min(held)
            if share is None or not least:
                verdicts.append(None)
            elif share == 0:
                picks = [int(torch.randint(count, (), generator=draw)) for count in held]
                verdicts.append(DropOne(torch.tensor(picks)))
            elif isinstance(share, int):
                first = int(torch.randint(least, (), generator=draw))
                verdicts.append(Drop(first, min(least, first + share)))
            else:
                # all segments lose the same entries, or each its own
                kept = torch.rand(1 if is_same else per, most, generator=draw) < share
                verdicts.append(kept.expand(per, most))
        was_even = fast.is_even
        drop(backend(backend_name), fast, verdicts)
        drop(TORCH, slow, verdicts)
        fast.check()
        same(fast, slow)
        # a mask moves all segments to the same side; single entries may leave different tables
        is_masked = all(isinstance(verdict, torch.Tensor) for verdict in verdicts)
        counts_are_even = len(set(fast.counts)) == len(set(fast.num_quantized)) == 1
        if was_even and is_masked and counts_are_even:
            assert fast.is_even


def test_a_copy_of_storage_decodes_without_touching_its_original():
    original = filled([70, 5], 2, 10, EMPTY)
    copy = original.take([1, 0, 0])
    before = [contents(original, i)[0].clone() for i in range(original.num_segments)]
    q, keys, values = tokens_for(3, 1, seed=0)
    backend("numba").append_attend(
        copy, q, keys, values, first=[5, 70, 70], scale=1.0, sinks=None, ema=None, observer=None
    )
    copy.check()
    assert copy.counts == [6, 6, 71, 71, 71, 71]
    for segment, expected in enumerate(before):
        assert torch.equal(contents(original, segment)[0], expected)


@pytest.mark.parametrize("name", sampled(CASES, every=4, first=1))
def test_all_layers_together_lose_what_each_alone_would(llama, tokens, name):
    case = CASES[name]
    together, apart = (
        agentkv.Cache.for_model(llama, policy=case.make(), budget=case.budget) for _ in range(2)
    )
    for cache in (together, apart):
        cache.feed(llama, tokens(2, 110))
    for layer in apart.cache_layers:  # layers with backends of their own are served one by one
        layer.use_backend(type(layer.backend)())
    for step in range(12):
        token = tokens(2, 1, seed=step)
        logits = [cache.feed(llama, token) for cache in (together, apart)]
        torch.testing.assert_close(*logits)
        assert kept(together) == kept(apart)


def test_storage_is_even_where_all_segments_are_equal():
    assert filled([70, 70], 2, 10, EMPTY).is_even
    assert not filled([70, 71], 2, 10, EMPTY).is_even
