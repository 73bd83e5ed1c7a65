"""Inputs of models in 8 and 4 bits: compiled steps read them as torch does."""

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import agentkv
from agentkv.cache.hf import plain_forward
from agentkv.cache.packed import PackedForward
from agentkv.cache.step import MOST_READ
from agentkv.cache.storage.backend import Backend
from tests.agentkv.cache.every_family import changed
from tests.agentkv.weights.test_quantized_step import FAR, quantized

WIDE = {"intermediate_size": 64}
MODELS = {
    "int8": lambda: quantized(changed("llama", **WIDE), "int8"),
    "int4": lambda: quantized(changed("llama", **WIDE), "int4"),
    "tied": lambda: quantized(changed("qwen3", tie_word_embeddings=True, **WIDE), "int4"),
    "biases": lambda: quantized(
        changed("llama", attention_bias=True, mlp_bias=True, **WIDE), "int4"
    ),
    "fused rows": lambda: quantized(changed("phi3", sliding_window=None, **WIDE), "int4"),
    "parallel": lambda: quantized(changed("cohere", **WIDE), "int8"),
    "normed over all heads": lambda: quantized(changed("olmo2", **WIDE), "int8"),
}


@pytest.fixture(scope="module")
def model():
    return attached("int8")


@pytest.fixture
def by_plain_torch(monkeypatch):
    """The lengths of the inputs that no compiled step has read."""
    lengths, own = [], plain_forward.forward

    def noted(parts, cache, ids, *rest):
        lengths.append(ids.shape[1])
        return own(parts, cache, ids, *rest)

    monkeypatch.setattr(plain_forward, "forward", noted)
    return lengths


def attached(name):
    model = MODELS[name]()
    agentkv.attach(model)
    return model


def by_torch(cache):
    """Keep compiled code from a cache that has begun."""
    for layer in cache.cache_layers:
        layer.use_backend(Backend())
    return cache


def ids_of(model, count):
    generator = torch.Generator().manual_seed(count)
    return torch.randint(0, model.config.vocab_size, (1, count), generator=generator)


@torch.no_grad()
def fed(model, cache, ids, ends, **more):
    logits = [
        model(ids[:, start:stop], past_key_values=cache, **more).logits
        for start, stop in zip((0, *ends), ends, strict=False)
    ]
    cache.check()
    return logits


def entries(cache):
    """Return positions, keys and values of all layers."""
    return [
        (layer.storage.positions(0), *layer.storage.parts(0)[0].decode(torch.float32))
        for layer in cache.cache_layers
    ]


@pytest.mark.parametrize("dtype", FAR, ids=str)
@pytest.mark.parametrize("name", MODELS)
def test_a_short_input_leaves_what_torch_leaves(name, dtype, by_plain_torch):
    model = attached(name).to(dtype)
    ids, ends = ids_of(model, 90), (20, 21, 51, 53, 90)
    first = agentkv.Cache.for_model(model, policy="full")
    other = agentkv.Cache.for_model(model, policy="full")
    for cache in (first, other):
        fed(model, cache, ids, ends[:1])
    by_torch(other)
    by_plain_torch.clear()
    found = fed(model, first, ids[:, 20:], [end - 20 for end in ends[1:]])
    assert by_plain_torch == []
    expected = fed(model, other, ids[:, 20:], [end - 20 for end in ends[1:]])
    assert by_plain_torch == [1, 30, 2, 37]
    for one, two in zip(found, expected, strict=True):
        assert one.shape == two.shape and one.dtype == two.dtype
        assert float((one - two).abs().max() / two.abs().max()) <= FAR[dtype]
    assert first.nbytes == other.nbytes and first.seen == other.seen == 90
    for one, two in zip(entries(first), entries(other), strict=True):
        assert torch.equal(one[0], two[0])
        for x, y in zip(one[1:], two[1:], strict=True):
            assert float((x - y).abs().max() / y.abs().max()) <= 5 * FAR[dtype]


@settings(max_examples=25, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 70), min_size=1, max_size=6), threads=st.sampled_from([1, 2, 3])
)
def test_inputs_of_any_lengths_are_as_one_input(model, lengths, threads):
    ids = ids_of(model, sum(lengths) + 2)
    ends = [2 + sum(lengths[: i + 1]) for i in range(len(lengths))]
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        parts = fed(model, agentkv.Cache.for_model(model, policy="full"), ids, [2, *ends])
        (whole,) = fed(model, agentkv.Cache.for_model(model, policy="full"), ids, [ids.shape[1]])
    finally:
        torch.set_num_threads(before)
    found = torch.cat(parts, dim=1)
    assert float((found - whole).abs().max() / whole.abs().max()) <= 2 * FAR[torch.float32]


@settings(max_examples=12, deadline=None)
@given(first=st.integers(1, 40), more=st.integers(2, 5 * MOST_READ))
def test_a_long_input_is_read_in_parts(model, first, more):
    ids = ids_of(model, first + more)
    one, two = (agentkv.Cache.for_model(model, policy="full") for _ in range(2))
    *_, found = fed(model, one, ids, [first, first + more], logits_to_keep=1)
    fed(model, two, ids, [first])
    by_torch(two)
    *_, expected = fed(model, two, ids[:, first:], [more], logits_to_keep=1)
    assert found.shape == expected.shape and one.nbytes == two.nbytes
    assert float((found - expected).abs().max() / expected.abs().max()) <= 2 * FAR[torch.float32]
    for x, y in zip(entries(one), entries(two), strict=True):
        assert torch.equal(x[0], y[0])


@pytest.mark.parametrize(("asked", "count"), [(0, 9), (1, 1), (4, 4), (30, 9)])
def test_the_logits_of_the_last_tokens_are_those_that_are_asked_for(model, asked, count):
    ids = ids_of(model, 29)
    one, two = (agentkv.Cache.for_model(model, policy="full") for _ in range(2))
    fed(model, one, ids, [20])
    fed(model, two, ids, [20])
    *_, found = fed(model, one, ids[:, 20:], [9], logits_to_keep=asked)
    *_, whole = fed(model, two, ids[:, 20:], [9])
    assert found.shape[1] == count
    torch.testing.assert_close(found, whole[:, -count:])


@torch.no_grad()
@pytest.mark.parametrize(
    ("policy", "first", "more"),
    [
        ("window", 20, 9),
        ("h2o", 20, 9),
        ("snapkv", 20, 9),
        ("int4", 20, 9),
        ("lookback", 20, 9),
    ],
)
def test_what_a_step_does_not_read_goes_the_ordinary_way(
    model, policy, first, more, by_plain_torch
):
    budget = {} if policy in ("full", "int4") else {"budget": 64}
    cache, ids = (
        agentkv.Cache.for_model(model, policy=policy, **budget),
        ids_of(model, first + more),
    )
    fed(model, cache, ids, [first, first + more], logits_to_keep=1)
    assert by_plain_torch == [first, more]


def test_all_logits_of_a_long_input_are_left_to_torch(model, by_plain_torch):
    count = MOST_READ + 1
    for keep, read in ((0, [count]), (2, [count]), (1, [])):
        cache = agentkv.Cache.for_model(model, policy="full")
        by_plain_torch.clear()
        fed(model, cache, ids_of(model, 20 + count), [20, 20 + count], logits_to_keep=keep)
        assert by_plain_torch == read


@torch.no_grad()
def test_several_sequences_caches_and_padding_go_the_ordinary_way(model, by_plain_torch):
    ids = ids_of(model, 30)
    cache = agentkv.Cache.for_model(model, policy="full")
    fed(model, cache, ids.expand(2, -1), [20, 30])
    cache = agentkv.Cache.for_model(model, policy="full")
    fed(model, cache, ids, [20])
    PackedForward(model, [cache, copy.deepcopy(cache)], [ids[:, 20:]] * 2).read()
    padded = torch.ones(1, 40, dtype=torch.int64)
    padded[0, 33] = 0
    model(ids[:, 20:], past_key_values=cache, attention_mask=padded)
    assert by_plain_torch == [20, 10, 20, 10]


@torch.no_grad()
def test_weights_in_floats_are_left_to_torch(by_plain_torch):
    model = changed("llama", **WIDE).eval()
    agentkv.attach(model)
    fed(model, agentkv.Cache.for_model(model, policy="full"), ids_of(model, 30), [20, 30])
    assert by_plain_torch == [20, 10]


@torch.no_grad()
@pytest.mark.parametrize("forked", [False, True])
def test_a_cache_with_a_gap_and_a_fork_of_it_read_what_they_hold(model, forked, by_plain_torch):
    ids = ids_of(model, 60)
    one, two = (agentkv.Cache.for_model(model, policy="full") for _ in range(2))
    for cache in (one, two):
        fed(model, cache, ids, [40])
        cache.drop(range(8, 19))
    by_torch(two)
    source, one = one, one.fork() if forked else one
    by_plain_torch.clear()
    (found,) = fed(model, one, ids[:, 40:], [20])
    assert by_plain_torch == []
    (expected,) = fed(model, two, ids[:, 40:], [20])
    assert float((found - expected).abs().max() / expected.abs().max()) <= FAR[torch.float32]
    if forked:
        assert source.seen == 40
        source.check()
        (again,) = fed(model, source, ids[:, 40:], [20])
        torch.testing.assert_close(again, found)
