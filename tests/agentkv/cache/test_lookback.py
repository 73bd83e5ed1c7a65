"""Caches that look back: evicted entries stay in a cold tier, and come back where wanted."""

import copy
import math
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import DynamicCache

import agentkv
from agentkv.cache.cache import AT_ONCE
from agentkv.cache.look_back import Look, LookRecord, SecondPass, query_similarities
from agentkv.cache.misuse import Misuse
from agentkv.cache.storage.choose import TORCH
from agentkv.cache.storage.cold_memory import ColdMemoryError
from agentkv.cache.storage.numba_backend import NUMBA
from agentkv.models.generation import Generation
from agentkv.models.rules import TextRule
from agentkv.models.sampling import Sampler
from agentkv.policies.entries import PolicyError
from agentkv.policies.recall import Always, AtRandom, Forget, LookBack, Turned, Unsure, Unsurest
from agentkv_kernels.digests import decode
from agentkv_kernels.layout import TRACKED
from tests.agentkv.cache.caches_in_use import (
    assert_same,
    assert_same_stream,
    feed_packed,
    kept,
    used_nbytes,
)
from tests.agentkv.cache.policies_under_test import CASES, CHUNKS
from tests.sampling import sampled

EVERYTHING = {"blocks": 1000, "block": 1}
INDICES = [{}, {"digests": True}, {"representatives": 2}]
"""Ways to choose blocks: by all keys, by digests, by two entries of each block."""


def looking(name, when, *, reads="hot", **options):
    """A policy of the shared cases that looks back."""
    return replace(CASES[name].make(), recall=LookBack(when, reads=reads, **options))


def cache_of(model, name, when, *, budget=None, **options):
    policy = looking(name, when, **options)
    return agentkv.Cache.for_model(model, policy=policy, budget=budget or CASES[name].budget)


def places(storage, segment):
    return set(storage.positions(segment).tolist())


def keeps_newest(name):
    """Whether a case evicts, and its newest entry never leaves and stays dense."""
    if CASES[name].make().recall.looks_back:
        return False
    try:
        looking(name, Always())
    except PolicyError:
        return False
    return CASES[name].is_bounded


LOOKING = [name for name in CASES if keeps_newest(name)]


# ---- the cold tier


@pytest.mark.parametrize("name", sampled(LOOKING, every=8, first=3))
def test_a_cache_that_never_looks_is_as_without_a_cold_tier_and_forgets_nothing(
    model_of, tokens, name
):
    model, case = model_of("llama"), CASES[name]
    plain = agentkv.Cache.for_model(model, policy=case.make(), budget=case.budget)
    cold = cache_of(model, name, Unsure(threshold=0.0))
    for seed, count in enumerate(CHUNKS):
        logits = [each.feed(model, tokens(2, count, seed=seed)) for each in (plain, cold)]
        assert torch.equal(*logits)
        cold.check()
    # a cache that may look keeps some unused capacity
    assert_same_stream(cold, plain)
    hot = [[layer.storage for layer in each.cache_layers] for each in (cold, plain)]
    assert used_nbytes(hot[0]) == used_nbytes(hot[1])
    for layer in cold.cache_layers:
        for segment in range(layer.storage.num_segments):
            hot, evicted = places(layer.storage, segment), places(layer.cold.storage, segment)
            assert hot | evicted == set(range(sum(CHUNKS))) and not hot & evicted
    assert cold.num_looks == 0 < cold.cold_nbytes and plain.cold_nbytes == 0


@pytest.mark.parametrize("name", sampled(LOOKING, every=12))
@pytest.mark.parametrize("promotes", [True, False])
@pytest.mark.sample("values")
def test_entries_are_hot_or_cold_however_often_tokens_look_back(model_of, tokens, name, promotes):
    model = model_of("llama")
    cache = cache_of(model, name, Always(), blocks=2, block=4, promotes=promotes)
    for seed, count in enumerate(CHUNKS):
        cache.feed(model, tokens(2, count, seed=seed))
        cache.check()
        for layer in cache.cache_layers:
            for segment in range(layer.storage.num_segments):
                both = places(layer.storage, segment), places(layer.cold.storage, segment)
                assert both[0] | both[1] == set(range(cache.seen))
    assert cache.num_looks == 2 * len(CHUNKS)


def test_every_token_of_a_short_input_may_look_back_and_of_a_longer_one_the_last(model_of, tokens):
    model = model_of("llama")
    cache = cache_of(model, "window", Always(), short=5)
    cache.feed(model, tokens(1, 4, seed=0))
    assert cache.num_looks == 0  # nothing is cold yet
    cache.feed(model, tokens(1, 200, seed=1))
    single = copy.deepcopy(cache)
    before, short = cache.num_looks, tokens(1, 5, seed=2)
    logits = cache.feed(model, short)
    for place in range(5):
        expected = single.feed(model, short[:, place : place + 1])
    assert torch.equal(logits, expected)
    assert_same(cache, single)
    assert cache.num_looks == before + 5
    cache.feed(model, tokens(1, 6, seed=3))
    assert cache.num_looks == before + 6
    cache.may_look_back = False
    cache.feed(model, short)
    assert cache.num_looks == before + 6


@pytest.mark.parametrize("form", ["dense", "int8", "int4"])
@pytest.mark.parametrize("index", INDICES)
def test_a_look_reads_all_keys_or_the_index_and_what_it_fetches(model_of, tokens, form, index):
    model = model_of("llama")
    cache = cache_of(model, "window", Always(), blocks=2, block=4, format=form, **index)
    cache.may_look_back = False
    cache.feed(model, tokens(1, 200, seed=0))
    assert cache.look_nbytes == 0
    cache.may_look_back = True
    cache.feed(model, tokens(1, 1, seed=1))
    assert cache.fetched == {"": 8 * len(cache.cache_layers)}
    layout, num_cold = cache.cache_layers[0].cold.storage.layout, 200 - cache.budget
    heads, dim = layout.num_heads, layout.head_dim
    # a key has its scales, or half of the number of the block that has them
    key = {"dense": 4 * heads * dim, "int8": heads * dim + 2, "int4": heads * (dim // 2 + 2)}[form]
    scanned = num_cold * key
    if form == "int8":
        scanned += 3 * heads * dim  # scales of three blocks
    if "digests" in index:
        scanned = -(-num_cold // 4) * (4 + heads * (2 * dim + 1))
    if "representatives" in index:
        whole, rest = divmod(num_cold, 4)
        scanned = (2 * whole + min(rest, 2)) * key + 4 * (1 + heads) * num_cold
    assert cache.look_nbytes == len(cache.cache_layers) * (scanned + 8 * 2 * key)


@pytest.mark.parametrize("form", ["dense", "int8", "fp8", "int4", "nf4"])
def test_a_cold_tier_of_any_format_reads_back_what_was_evicted(model_of, tokens, form):
    model = model_of("llama")
    cache = cache_of(model, "window", Unsure(0.0), format=form)
    full = agentkv.Cache.for_model(model, policy="full")
    for each in (cache, full):
        each.feed(model, tokens(1, 80))  # every layer evicts after it has attended
    for layer, whole in zip(cache.cache_layers, full.cache_layers, strict=True):
        found = layer.cold.read(0, torch.arange(56), torch.float32)
        expected = whole.storage.parts(0)[0]
        assert found.positions.tolist() == [list(range(56))]
        tolerance = {"dense": 0, "int8": 0.02, "fp8": 0.06, "int4": 0.2, "nf4": 0.2}[form]
        for x, y in ((found.keys, expected.keys), (found.values, expected.values)):
            assert (x - y[:, :, :56]).norm() <= tolerance * y.norm()


# ---- what a look sees


@torch.no_grad()
@pytest.mark.parametrize("family", sampled(["llama", "qwen2", "qwen3", "mistral", "gpt2"], every=2))
@pytest.mark.parametrize("digests", [False, True])
@pytest.mark.sample("values")
def test_looking_at_all_dense_entries_is_attention_over_everything(
    family, digests, model_of, tokens
):
    model = model_of(family).double()
    found, expected, num_looks = beside_a_full_cache(model, tokens, budget=24, digests=digests)
    torch.testing.assert_close(found, expected, atol=1e-10, rtol=1e-10)
    assert num_looks == 2 * 11  # nothing is cold before the first


@torch.no_grad()
@pytest.mark.parametrize("family", ["mistral-window", "gpt_oss", "gemma3"])
def test_it_is_so_within_windows_of_the_model_and_with_sinks(family, model_of, tokens):
    found, expected, num_looks = beside_a_full_cache(model_of(family), tokens, budget=20)
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)
    assert num_looks == 2 * 15


def beside_a_full_cache(model, tokens, *, budget, digests=False):
    """Logits while all that was evicted is looked at, those of transformers, and the looks."""
    judge, past = copy.deepcopy(model), DynamicCache()
    policy = {"promotes": False, "format": "dense", "digests": digests, **EVERYTHING}
    cache = cache_of(model, "window", Always(), budget=budget, **policy)
    ids, found, expected = tokens(2, 36), [], []
    for part in [ids[:, :20], *ids[:, 20:].split(1, dim=1)]:  # the first part fits
        found.append(cache.feed(model, part))
        expected.append(judge(part, past_key_values=past).logits[:, -1])
        cache.check()
    return torch.stack(found), torch.stack(expected), cache.num_looks


# ---- inputs that read the cold tier


def reading(name, when, **options):
    return {"name": name, "when": when, "reads": "all", "format": "dense", "short": 64, **options}


@torch.no_grad()
@pytest.mark.parametrize(
    ("family", "name"),
    sampled(
        [
            *(("llama", name) for name in ("window", "h2o", "ada-snapkv", "conf-kv", "edie")),
            *((family, "window") for family in ("mistral-window", "gpt_oss", "gemma3", "gpt2")),
        ],
        every=2,
    ),
)
def test_an_input_that_reads_the_cold_tier_is_encoded_as_under_a_full_cache(
    family, name, model_of, tokens
):
    model = model_of(family)
    judge, past = copy.deepcopy(model), DynamicCache()
    cache = cache_of(model, budget=20 if name == "window" else None, **reading(name, Unsure()))
    for seed, count in enumerate((70, 40, 7, 40)):
        part = tokens(2, count, seed=seed)
        assert not cache.reads_singly(count)
        found = cache.feed(model, part)
        expected = judge(part, past_key_values=past).logits[:, -1]
        torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)
        cache.check()
    assert cache.num_looks == 0 and all(cache.evictor.num_cold)


@torch.no_grad()
def test_the_last_token_of_an_input_is_not_left_alone(model_of, tokens):
    model = model_of("llama").double()
    judge, past = copy.deepcopy(model), DynamicCache()
    cache = cache_of(model, **reading("window", Unsure()))
    for seed, count in enumerate((90, AT_ONCE + 1)):
        part = tokens(1, count, seed=seed)
        expected = judge(part, past_key_values=past).logits[:, -1]
        torch.testing.assert_close(cache.feed(model, part), expected, atol=1e-9, rtol=1e-9)
    assert cache.forward_lengths(1) == [1]
    assert cache.forward_lengths(2 * AT_ONCE + 1) == [AT_ONCE, AT_ONCE - 1, 2]
    cache.reads_cold = False
    assert cache.forward_lengths(2 * AT_ONCE + 1) == [AT_ONCE, AT_ONCE, 1]


@torch.no_grad()
@pytest.mark.parametrize("reads", ["hot", "all"])
def test_a_short_prompt_reads_the_cold_tier_where_steps_are_compiled(model_of, tokens, reads):
    model, ids = model_of("llama"), tokens(1, 400)
    policy = agentkv.policy("lookback", threshold=0.0, short=0, format="dense", reads=reads)
    cache = agentkv.Cache.for_model(model, policy=policy, budget=100)
    cache.feed(model, ids)
    rule = TextRule(lambda ids: "x" * len(ids), end_ids=(), max_tokens=4)
    sampler, prompt = Sampler(0.0, torch.Generator()), ids[0, :4].tolist()
    generation = Generation(cache, prompt, rule, sampler=sampler, deadline=None, is_compiled=True)
    assert len(generation.unread) == 4
    assert len(generation.next_chunk) == (4 if reads == "all" else 1)
    fresh = agentkv.Cache.for_model(model, policy=policy, budget=100)
    fresh.feed(model, ids[:, :50])
    first = Generation(fresh, prompt, rule, sampler=sampler, deadline=None, is_compiled=True)
    assert len(first.next_chunk) == 1  # nothing is cold yet


@torch.no_grad()
def test_entries_that_came_back_are_read_once(model_of, tokens):
    model = model_of("llama").double()
    judge, past = copy.deepcopy(model), DynamicCache()
    cache = cache_of(model, **reading("window", Always(), **EVERYTHING))
    for seed, count in enumerate((90, 1, 7, 1, 1, 40, 1, 3)):
        part = tokens(1, count, seed=seed)
        found = cache.feed(model, part)
        expected = judge(part, past_key_values=past).logits[:, -1]
        torch.testing.assert_close(found, expected, atol=1e-9, rtol=1e-9)
    assert cache.num_looks == 4


@torch.no_grad()
def test_padded_inputs_read_the_cold_tier_as_alone(model_of, tokens):
    model = model_of("llama").double()
    cache = cache_of(model, **reading("window", Unsure()))
    ids, mask = tokens(2, 100), torch.ones(2, 100, dtype=torch.long)
    mask[0, :30] = 0
    cache.feed(model, ids, mask)
    more = torch.cat([mask, torch.tensor([[0] * 5 + [1] * 15, [1] * 20])], dim=1)
    found = cache.feed(model, tokens(2, 20, seed=1), more)
    for row, parts in enumerate(((ids[:1, 30:], 5), (ids[1:], 0))):
        alone = cache_of(model, **reading("window", Unsure()))
        alone.feed(model, parts[0])
        expected = alone.feed(model, tokens(2, 20, seed=1)[row : row + 1, parts[1] :])
        torch.testing.assert_close(found[row : row + 1], expected, atol=1e-9, rtol=1e-9)


@torch.no_grad()
def test_attention_to_cold_entries_counts_for_no_hot_one(model_of, tokens):
    model = model_of("llama").double()
    small, large = (
        cache_of(model, **reading("h2o", Unsure()), budget=budget) for budget in (24, 500)
    )
    for seed, count in enumerate((60, 30)):
        for cache in (small, large):
            cache.feed(model, tokens(1, count, seed=seed))
    assert not any(large.evictor.num_cold)
    for few, all_of in zip(small.cache_layers, large.cache_layers, strict=True):
        for segment in range(few.storage.num_segments):
            own = few.storage.positions(segment).to(torch.int64)
            drawn, drawn_of_all = (
                layer.storage.metadata.entries(TRACKED, segment)[0, :, 0] for layer in (few, all_of)
            )
            torch.testing.assert_close(drawn, drawn_of_all[own], atol=1e-5, rtol=1e-5)


@torch.no_grad()
def test_reading_the_cold_tier_holds_no_more_hot_bytes(model_of, tokens):
    model = model_of("llama")
    peaks = []
    for reads in ("hot", "all"):
        cache = cache_of(model, "window", Unsure(), reads=reads)
        for seed, count in enumerate((300, 40)):
            cache.feed(model, tokens(1, count, seed=seed))
        peaks.append((cache.nbytes, cache.peak_nbytes, cache.cold_nbytes))
    hot, reading = peaks
    assert all(few <= more for few, more in zip(reading, hot, strict=True))


@torch.no_grad()
@pytest.mark.parametrize("draw", [0.0, 0.03])
@pytest.mark.parametrize("form", ["dense", "int8"])
@pytest.mark.parametrize("name", ["snapkv", "window", "conf-kv", "ada-snapkv"])
def test_promoted_are_the_blocks_with_the_largest_shares_of_attention(
    model_of, tokens, name, form, draw
):
    model = ordinary(model_of("llama"))
    cache = cache_of(model, name, Always(), blocks=2, block=4, format=form, draw=draw)
    cache.feed(model, tokens(1, 60))
    seen = watch_best(cache)
    cache.feed(model, tokens(1, 1, seed=1))
    numbers = [len(found) for *_, found in seen]
    assert max(numbers) and (draw == 0 or min(numbers) < max(numbers))
    for layer, cold, hot, segment, q, scale, found in seen:
        expected = best_in_loops(cold, hot, q, scale, blocks=2, block=4, least=draw)
        assert found == expected
        assert found <= places(cache.cache_layers[layer].storage, segment) or name != "window"


@torch.no_grad()
@pytest.mark.parametrize("family", ["llama", "gpt_oss"])
@pytest.mark.parametrize("name", ["window", "ada-snapkv", "conf-kv-int8"])
@pytest.mark.parametrize("form", ["int8", "dense"])
@pytest.mark.sample("values")
def test_compiled_looks_are_those_in_torch(model_of, tokens, family, name, form):
    model = model_of(family)
    cache = cache_of(model, name, Always(), blocks=3, block=2, format=form)
    for seed, count in enumerate(CHUNKS):
        cache.feed(model, tokens(2, count, seed=seed))
    num_lent = 0
    for layer in cache.cache_layers:
        cold, hot = layer.cold, layer.storage
        if cold is None:
            continue  # a layer with a window of its own, which the policy leaves alone
        assert cold._backend is NUMBA
        heads = layer.attention.sinks
        for segment, lent in enumerate(cold.lent):
            layout, per = hot.layout, hot.layout.segments_per_sequence
            group = model.config.num_attention_heads // (per * layout.num_heads)
            torch.manual_seed(segment)
            q = 3 * torch.randn(1, layout.num_heads * group, 1, layout.head_dim)
            sinks = None if heads is None else heads.view(per, -1)[segment % per]
            sums = [
                backend.log_sums(hot, segment, q, scale=0.3, sinks=sinks)
                for backend in (NUMBA, TORCH)
            ]
            torch.testing.assert_close(*sums, atol=1e-5, rtol=1e-5)
            options = {"lent": list(lent.values()), "scale": 0.3, "others": sums[0]}
            found, expected = (
                backend.largest_shares(cold.storage, segment, q, **options)
                for backend in (NUMBA, TORCH)
            )
            torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-4)
            assert not found[options["lent"]].any() and found.max() <= 1
            num_lent += len(lent)
            attended = (
                backend.attend_again(hot, segment, q, scale=0.3, sinks=sinks, others=())
                for backend in (NUMBA, TORCH)
            )
            torch.testing.assert_close(*attended, atol=1e-6, rtol=1e-5)
    assert num_lent


def ordinary(model):
    """A copy of a model that always runs transformers' forward, in second passes too."""
    own = copy.deepcopy(model)
    own.forward = type(own).forward.__get__(own)
    return own


def num_otherwise_encoded(cache, other):
    """Return how many cold entries of two caches decode otherwise, and how many there are."""
    num_other = num_entries = 0
    for one, two in zip(cache.cache_layers, other.cache_layers, strict=True):
        if one.cold is None:
            continue
        for segment in range(one.storage.num_segments):
            parts = [each.cold.storage.parts(segment)[0] for each in (one, two)]
            assert parts[0].positions.tolist() == parts[1].positions.tolist()
            decoded = [torch.cat(part.decode(torch.float32), dim=-1)[0] for part in parts]
            is_other = (decoded[0] - decoded[1]).abs().amax(dim=(0, 2)) > 1e-3
            num_other += int(is_other.sum())
            num_entries += is_other.shape[0]
    return num_other, num_entries


IN_A_SECOND_PASS = Unsure(1.0)
"""Every token looks back, after a first pass that finds it unsure."""


@torch.no_grad()
@pytest.mark.parametrize("form", ["int8", "dense", "int4", "fp8", "nf4"])
@pytest.mark.parametrize("promotes", [True, False])
@pytest.mark.parametrize("digests", [False, True])
@pytest.mark.parametrize("when", [Always(), IN_A_SECOND_PASS], ids=["one pass", "second pass"])
@pytest.mark.parametrize("draw", [0.0, 0.02])
@pytest.mark.parametrize("family", ["llama", "qwen2", "mistral-window"])
@pytest.mark.parametrize("name", sampled(LOOKING, every=6))
@pytest.mark.sample("pairs")
def test_a_compiled_look_is_that_of_transformers(
    model_of, tokens, name, family, draw, when, digests, promotes, form
):
    model, caches, found = model_of(family), [], []
    options = {"blocks": 2, "block": 4, "promotes": promotes, "digests": digests, "format": form}
    options["draw"] = draw
    if family == "mistral-window":
        options["budget"] = 20  # less than the model's window, or nothing is cold
    for each in (model, ordinary(model)):
        caches.append(cache_of(each, name, when, **options))
        gate, logits = caches[-1].gate(), []
        for seed, count in enumerate((*CHUNKS, 1, 1, 1)):
            logits.append(each(tokens(2, count, seed=seed), past_key_values=caches[-1]).logits)
            gate(None, logits[-1][:, -1])
            caches[-1].check()
        found.append(torch.cat(logits, dim=1))
    compiled, plain = caches
    # sums of another order round a key that lies between two codes either way
    num_other, num_entries = num_otherwise_encoded(compiled, plain)
    assert num_other <= (0 if form == "dense" else num_entries // 100)
    assert compiled.num_looks == plain.num_looks > 0
    if num_other:
        return
    torch.testing.assert_close(*found, atol=2e-4, rtol=2e-4)
    assert kept(compiled) == kept(plain)
    assert compiled.fetched == plain.fetched and compiled.look_nbytes == plain.look_nbytes
    assert compiled.num_changing_looks == plain.num_changing_looks
    for one, other in zip(compiled.cache_layers, plain.cache_layers, strict=True):
        assert (one.cold is None) == (other.cold is None)
        if one.cold is not None:
            assert one.cold.lent == other.cold.lent
            assert used_nbytes([one.cold.storage]) == used_nbytes([other.cold.storage])


@torch.no_grad()
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("when", [Always(), IN_A_SECOND_PASS], ids=["one pass", "second pass"])
def test_a_compiled_look_in_16_bits_fetches_what_that_of_transformers_does(
    model_of, tokens, when, dtype
):
    model, found = model_of("llama").to(dtype), []
    for each in (model, ordinary(model)):
        cache = cache_of(each, "window", when, **EVERYTHING)
        found.append(torch.cat([cache.feed(each, tokens(2, n, seed=n)) for n in (60, 1, 1)]))
        cache.check()
        assert cache.num_looks == 6
    near = {torch.bfloat16: 6e-2, torch.float16: 6e-3}[dtype] * found[1].abs().max()
    assert (found[0] - found[1]).abs().max() <= near


def test_a_look_runs_no_code_of_transformers(model_of, tokens, monkeypatch):
    model = model_of("llama")
    cache = cache_of(model, "window", Always(), blocks=2, block=4)
    cache.feed(model, tokens(1, 1))
    monkeypatch.setattr(type(model.model), "forward", None)
    monkeypatch.setattr(SecondPass, "attend", None)
    monkeypatch.setattr(Look, "attend", None)
    cache.feed(model, tokens(1, 60))
    cache.feed(model, tokens(1, 1))
    assert cache.num_looks == 2


@torch.no_grad()
@pytest.mark.parametrize("name", ["window", "ada-snapkv"])
def test_digests_choose_the_blocks_with_the_highest_bounds(model_of, tokens, name):
    model = ordinary(model_of("llama"))
    cache = cache_of(model, name, Always(), blocks=2, block=4, format="dense", digests=True)
    cache.feed(model, tokens(1, 90))
    seen = []
    for layer in cache.cache_layers:
        layer.cold = _WatchedDigests(layer.cold, layer.storage, seen)
    for seed in range(6):
        cache.feed(model, tokens(1, 1, seed=seed))
        cache.check()
    assert 0 < cache.index_nbytes < cache.cold_nbytes
    assert seen and any(num_lent for *_, num_lent in seen)
    for expected, found, _ in seen:
        assert found == expected


class _WatchedDigests:
    """A cold tier that computes in loops which blocks it should choose."""

    def __init__(self, tier, hot, seen):
        self._tier, self._hot, self._seen = tier, hot, seen

    def __getattr__(self, name):
        return getattr(self._tier, name)

    def best(self, segment, q, *, scale, **rest):
        expected = self._chosen_in_loops(segment, q[0, :, 0].tolist(), scale)
        num_lent = len(self._tier.lent[segment])
        found = self._tier.best(segment, q, scale=scale, **rest)
        places = self._tier.storage.positions(segment)[found].tolist()
        self._seen.append((expected, set(places), num_lent))
        return found

    def _chosen_in_loops(self, segment, q, scale):
        index, lent = self._tier.index, self._tier.lent[segment]
        numbers = index.blocks(segment).tolist()
        bounds = [bound.tolist() for bound in decode(*index._codes(segment))]
        _, keys = entries_in(self._hot, segment)
        best = dict.fromkeys(numbers, 0.0)
        for i, query in enumerate(q):
            head = i * len(keys) // len(q)
            logits = [
                scale * sum(max(x * a, x * b) for x, a, b in zip(query, low, high, strict=True))
                for low, high in zip(bounds[0][head], bounds[1][head], strict=True)
            ]
            others = [
                scale * sum(a * b for a, b in zip(query, key, strict=True)) for key in keys[head]
            ]
            top = max(*logits, *others)
            total = sum(math.exp(x - top) for x in (*logits, *others))
            for number, logit in zip(numbers, logits, strict=True):
                best[number] = max(best[number], math.exp(logit - top) / total)
        free = [p for p in self._tier.storage.positions(segment).tolist() if p not in lent]
        able = sorted({p // 4 for p in free}, key=best.__getitem__, reverse=True)
        return {p for p in free if p // 4 in able[:2]}


def watch_best(cache):
    """Let every cold tier tell what it was asked and what it found."""
    seen = []
    for number, layer in enumerate(cache.cache_layers):
        layer.cold = _Watched(layer.cold, layer.storage, number, seen)
    return seen


class _Watched:
    def __init__(self, tier, hot, layer, seen):
        self._tier, self._hot, self._layer, self._seen = tier, hot, layer, seen

    def __getattr__(self, name):
        return getattr(self._tier, name)

    def best(self, segment, q, *, scale, **rest):
        both = [entries_in(storage, segment) for storage in (self._tier.storage, self._hot)]
        found = self._tier.best(segment, q, scale=scale, **rest)
        cold = self._tier.storage
        where = set(cold.positions(segment)[found].tolist())
        self._seen.append((self._layer, *both, segment, q[0, :, 0].tolist(), scale, where))
        return found


def entries_in(storage, segment):
    """Positions and keys, in lists: [head][entry][channel]."""
    keys = torch.cat([part.decode_keys() for part in storage.parts(segment)], dim=2)[0]
    return storage.positions(segment).tolist(), keys.tolist()


def best_in_loops(cold, hot, q, scale, *, blocks, block, least):
    own = [i for i, position in enumerate(cold[0]) if position not in hot[0]]  # others are lent
    positions = [cold[0][i] for i in own]
    keys = [[head[i] for i in own] for head in cold[1]]
    num_heads, num_cold = len(keys), len(positions)
    best = dict.fromkeys(positions, 0.0)
    for i, query in enumerate(q):
        head = i * num_heads // len(q)
        every = [*keys[head], *hot[1][head]]
        logits = [scale * sum(a * b for a, b in zip(query, key, strict=True)) for key in every]
        odds = [math.exp(x - max(logits)) for x in logits]
        for j in range(num_cold):
            best[positions[j]] = max(best[positions[j]], odds[j] / sum(odds))
    of_block = {}
    for position, share in best.items():
        of_block[position // block] = max(of_block.get(position // block, 0.0), share)
    able = [number for number, share in of_block.items() if share >= least]
    chosen = sorted(able, key=of_block.__getitem__, reverse=True)[:blocks]
    return {position for position in positions if position // block in chosen}


# ---- which tokens look


@torch.no_grad()
def test_only_sequences_with_an_alarm_look_and_those_beside_them_are_unchanged(model_of, tokens):
    model = model_of("llama")
    ids, more = tokens(3, 70), tokens(3, 1, seed=1)
    free = cache_of(model, "window", Unsure(0.0))
    free.feed(model, ids)
    sure = free.feed(model, more).softmax(-1).amax(-1)
    # of three sequences one is less sure, by more than a batch of another size rounds
    threshold = float(sure.sort().values[:2].mean())
    one = int(sure.argmin())
    cache = cache_of(model, "window", Unsure(0.0))
    cache.feed(model, ids)
    cache.policy = replace(
        cache.policy, recall=replace(cache.policy.recall, when=Unsure(threshold))
    )
    logits = cache.feed(model, more)
    assert cache.num_looks == 1
    for i in range(3):
        alone = cache_of(model, "window", Unsure(0.0))
        alone.feed(model, ids[i : i + 1])
        alone.policy = cache.policy
        expected = alone.feed(model, more[i : i + 1])
        torch.testing.assert_close(logits[i : i + 1], expected, atol=1e-4, rtol=1e-4)
        assert alone.num_looks == (i == one)
        for layer in range(4):
            assert [x.tolist() for x in cache.kept(layer)[i]] == [
                x.tolist() for x in alone.kept(layer)[0]
            ]
    cache.check()


def test_a_stretch_goes_on_after_an_alarm():
    when = Unsure(threshold=0.5, stretch=2)
    assert not when.is_alarm(0.5, 7, 6) and when.is_alarm(0.4, 7, None)
    assert [when.looks(position, 7) for position in (7, 8, 9, 10)] == [True, True, True, False]
    assert not when.looks(3, None)


def test_looks_go_on_until_the_model_is_calm():
    when, alarm, found = Unsure(threshold=0.5, calm=0.9), None, []
    for position, confidence in enumerate((0.8, 0.4, 0.8, 0.89, 0.9, 0.8, 0.3)):
        if when.is_alarm(confidence, position, alarm):
            alarm = position
        found.append(when.looks(position, alarm))
    assert found == [False, True, True, True, False, False, True]
    with pytest.raises(PolicyError, match=r"calm=0.4 is below threshold=0.5"):
        Unsure(threshold=0.5, calm=0.4)


def shares_of_looks(when, confidences):
    """Share of one sequence's tokens that look back, of the first and of the second half."""
    record, found = LookRecord([None]), []
    for position, confidence in enumerate(confidences):
        ranks = record.ranks([confidence], [position])
        found += record.decide(LookBack(when), ranks, [position])
    half = len(found) // 2
    return sum(found[:half]) / half, sum(found[half:]) / half


@pytest.mark.parametrize("share", [0.05, 0.15, 0.5])
def test_the_unsurest_share_is_held_whatever_the_confidences_are(share):
    draw = torch.rand(2000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    # a base model, a chat model that is nearly always sure, and one text after the other
    for confidences in (draw, 1 - draw**8 / 100, torch.cat([draw[:1000], 1 - draw[1000:] / 9])):
        for found in shares_of_looks(Unsurest(share), confidences.tolist()):
            assert found == pytest.approx(share, abs=0.02)


def test_of_equally_sure_tokens_none_is_the_unsurest():
    assert shares_of_looks(Unsurest(0.3), [1.0] * 60) == (0, 0)
    before, after = shares_of_looks(Unsurest(0.3), [1.0] * 60 + [0.9] * 60)
    assert before == 0 and after == pytest.approx(0.3, abs=0.1)


@torch.no_grad()
def test_ranks_go_on_after_copies_forks_files_and_other_orders(model_of, tokens, tmp_path):
    model = model_of("llama")
    policy = agentkv.policy("lookback", when="unsurest", share=0.4, blocks=2, block=4, slack=7)
    cache = agentkv.Cache.for_model(model, policy=policy, budget=24)
    for seed in range(12):
        cache.feed(model, tokens(2, 1 if seed else 33, seed=seed))
    before = cache.snapshot()
    cache.save(tmp_path / "cache")
    others = [copy.deepcopy(cache), cache.fork(), agentkv.Cache.load(tmp_path / "cache", model)]
    turned = copy.deepcopy(cache)
    turned.reorder_cache(torch.tensor([1, 0]))
    cache.feed(model, tokens(2, 1, seed=40))
    assert cache.looks.heard != others[0].looks.heard
    cache.restore(before)
    for seed in range(6):
        ids = tokens(2, 1, seed=seed)
        expected = cache.feed(model, ids)
        for other in others:
            assert torch.equal(other.feed(model, ids), expected)
        found = turned.feed(model, ids.flip(0)).flip(0)
        torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)
    for other in (*others, turned):
        assert other.num_looks == cache.num_looks > before.state.num_looks
    for one, other in zip(turned.looks.heard[0], cache.looks.heard[1], strict=True):
        assert one == pytest.approx(other, abs=1e-4)


@torch.no_grad()
def test_a_forgotten_token_has_no_rank_any_more(model_of, tokens):
    model = model_of("llama")
    policy = agentkv.policy("lookback", when="unsurest", share=0.4, reads="hot")
    cache = agentkv.Cache.for_model(model, policy=policy, budget=100)
    for seed in range(4):
        cache.feed(model, tokens(1, 1, seed=seed))
    expected = [list(each) for each in cache.looks.heard]
    cache.feed(model, tokens(1, 3, seed=9))
    assert [place for place, _ in cache.looks.heard[0]] == [0, 1, 2, 3, 6]
    cache.crop(-3)
    assert cache.looks.heard == expected


@torch.no_grad()
@pytest.mark.parametrize("name", ["window", "snapkv"])
def test_a_token_looks_back_where_its_queries_have_turned(model_of, tokens, name):
    model = model_of("llama")
    ids = tokens(2, 60)
    seen = queries_of(model, torch.cat([ids, tokens(2, 1, seed=1)], 1))
    cosines = torch.cosine_similarity(seen[:, :, -1], seen[:, :, -2], dim=-1).mean(1)
    threshold = float(cosines.mean())  # one of the two sequences turns more
    # nothing is cold yet, so that no look changes a query
    cache = cache_of(model, name, Turned(threshold), budget=200)
    cache.feed(model, ids)
    cache.feed(model, tokens(2, 1, seed=1))
    assert (
        cache.looks.alarms[int(cosines.argmin())] == 60 != cache.looks.alarms[int(cosines.argmax())]
    )
    assert query_similarities(cache.cache_layers) == pytest.approx(cosines.tolist(), abs=1e-5)


def queries_of(model, ids):
    """All rotated queries (B, layers * heads, T, D) of a model without a cache's help."""
    cache = agentkv.Cache.for_model(
        model, policy=agentkv.policy("snapkv", window=ids.shape[1]), budget=2 * ids.shape[1]
    )
    cache.feed(model, ids)
    layers = [layer.storage.queries for layer in cache.cache_layers]
    return torch.stack(
        [torch.cat([layer.of(i)[0] for layer in layers]) for i in range(ids.shape[0])]
    )


@torch.no_grad()
def test_looks_by_queries_go_on_after_copies_files_and_other_orders(model_of, tokens, tmp_path):
    model = model_of("llama")
    policy = agentkv.policy("lookback", when="turned", similarity=1.0, blocks=2, block=4, slack=0)
    cache = agentkv.Cache.for_model(model, policy=policy, budget=24)
    for count in (60, 1):
        cache.feed(model, tokens(2, count, seed=count))
    cache.save(tmp_path / "cache")
    others = [copy.deepcopy(cache), agentkv.Cache.load(tmp_path / "cache", model)]
    others[0].reorder_cache(torch.tensor([1, 0]))
    expected = cache.feed(model, tokens(2, 1, seed=7))
    found = [others[0].feed(model, tokens(2, 1, seed=7).flip(0)).flip(0)]
    found.append(others[1].feed(model, tokens(2, 1, seed=7)))
    for logits, other in zip(found, others, strict=True):
        torch.testing.assert_close(logits, expected, atol=1e-4, rtol=1e-4)
        assert other.num_looks == cache.num_looks == 4
        other.check()


def test_random_looks_have_their_share_and_are_drawn_by_position():
    when = AtRandom(share=0.2, seed=3)
    alarms = [position for position in range(5000) if when.is_alarm(1.0, position, None)]
    assert 900 < len(alarms) < 1100
    assert alarms == [position for position in range(5000) if when.is_alarm(0.0, position, None)]
    assert alarms != [
        position for position in range(5000) if replace(when, seed=4).is_alarm(1.0, position, None)
    ]


@torch.no_grad()
def test_what_looks_fetch_is_counted_by_label(model_of, tokens):
    model = ordinary(model_of("llama"))
    cache = cache_of(model, "window", Always(), blocks=2, block=1, promotes=False)
    cache.feed(model, tokens(2, 5))
    cache.label("page", 60)
    cache.feed(model, tokens(2, 70, seed=1))
    seen, before = watch_best(cache), cache.fetched
    logits = cache.feed(model, tokens(2, 1, seed=2))
    fetched = [place for *_, found in seen for place in found]
    labels = ["page" if 5 <= place < 65 else "" for place in fetched]
    assert Counter(cache.fetched) - Counter(before) == Counter(labels)
    num_layers = len(cache.cache_layers)
    assert len(fetched) == 2 * 2 * num_layers  # entries, sequences
    assert cache.fetched["page"] > 0 and logits.shape[0] == 2


@torch.no_grad()
def test_looks_that_change_the_likeliest_token_are_counted(model_of, tokens):
    model = model_of("llama")
    without, changed = cache_of(model, "window", Unsure(0.0)), 0
    cache = cache_of(model, "window", IN_A_SECOND_PASS, promotes=False, **EVERYTHING)
    for each in (without, cache):
        each.feed(model, tokens(1, 60))
    changed = cache.num_changing_looks
    found = []
    for seed in range(30):
        token = tokens(1, 1, seed=seed)
        # the same keys and values, so that one look is all that differs
        twin = copy.deepcopy(cache)
        twin.policy = replace(twin.policy, recall=replace(twin.policy.recall, when=Unsure(0.0)))
        pair = [int(each.feed(model, token).argmax()) for each in (twin, cache)]
        found.append(pair[0] != pair[1])
    assert cache.num_changing_looks - changed == sum(found) > 0


# ---- the rest of a cache's life


@torch.no_grad()
@pytest.mark.parametrize(
    ("name", "index"),
    sampled(
        [
            (name, index)
            for index in INDICES
            for name in ("conf-kv-int8", "window", "snapkv", "edie-tada", "arkv")
            # the windows of other cases are shorter than the queries that choose representatives
            if "representatives" not in index or not CASES[name].make().scorer.window
        ],
        every=5,
        first=1,
    ),
)
def test_copies_files_and_snapshots_go_on_as_the_cache_does(
    model_of, tokens, tmp_path, name, index
):
    model = model_of("llama")
    policy = looking(name, Unsure(0.9, stretch=3), blocks=3, block=4, **index)
    cache = agentkv.Cache.for_model(model, policy=policy, budget=CASES[name].budget)
    for seed, count in enumerate((110, 1, 1, 6, 1)):
        cache.feed(model, tokens(2, count, seed=seed))
    before = cache.snapshot()
    cache.save(tmp_path / "cache")
    others = [copy.deepcopy(cache), agentkv.Cache.load(tmp_path / "cache", model, policy=policy)]
    cache.feed(model, tokens(2, 40, seed=9))
    cache.restore(before)
    assert cache.num_looks > 0 < cache.cold_nbytes
    for seed in range(4):
        found = [each.feed(model, tokens(2, 1, seed=seed)) for each in (cache, *others)]
        assert torch.equal(found[0], found[1]) and torch.equal(found[0], found[2])
    for each in others:
        each.check()
        assert_same(each, cache)
        assert (each.num_looks, each.cold_nbytes) == (cache.num_looks, cache.cold_nbytes)
        assert each.num_changing_looks == cache.num_changing_looks
        assert each.look_nbytes == cache.look_nbytes > 0
        assert each.fetched == cache.fetched
    cache.reset()
    assert cache.cold_nbytes == cache.num_looks == 0
    cache.check()


@torch.no_grad()
@pytest.mark.parametrize("name", ["window", "h2o", "ada-snapkv"])
def test_an_entry_is_encoded_once_however_often_it_comes_back(model_of, tokens, name):
    model = model_of("llama")
    cache = cache_of(model, name, Always(), blocks=4, block=2, format="fp8")
    stored = {}
    for seed in range(16):
        cache.feed(model, tokens(1, 50 if not seed else 1, seed=seed))
        cache.check()
        for i, layer in enumerate(cache.cache_layers):
            for segment, lent in enumerate(layer.cold.lent):
                hot = places(layer.storage, segment)
                assert lent.keys() <= hot
                for place, codes in codes_in(layer.cold.storage, segment).items():
                    assert stored.setdefault((i, segment, place), codes) == codes
    num_cold = cache.evictor.num_cold
    num_all = sum(len(layer.kept()[0][0]) for layer in cache.cache_layers)
    if name == "window":
        assert num_cold == [cache.seen * len(cache.cache_layers) - num_all]


def codes_in(storage, segment):
    """Codes of the keys by position."""
    keys = storage.codes.entries(0, segment).transpose(0, 1).tolist()
    return dict(zip(storage.positions(segment).tolist(), keys, strict=True))


@torch.no_grad()
@pytest.mark.parametrize("index", INDICES)
def test_a_dropped_span_leaves_the_cold_tier_too(model_of, tokens, index):
    model = model_of("llama")
    cache = cache_of(model, "window", Always(), **index, format="dense")
    cache.label("goal", 10)
    cache.label("page", 60)
    cache.feed(model, tokens(1, 100))
    cache.drop("page")
    cache.check()
    for layer in cache.cache_layers:
        held = places(layer.storage, 0) | places(layer.cold.storage, 0)
        assert held == {*range(10), *range(70, 100)}
    cache.feed(model, tokens(1, 1))


@torch.no_grad()
@pytest.mark.parametrize("index", INDICES)
def test_reordered_sequences_take_their_cold_entries_along(model_of, tokens, index):
    model, options = model_of("llama"), {"blocks": 2, "block": 4, **index}
    cache = cache_of(model, "window", Always(), **options)
    cache.feed(model, tokens(2, 80))
    cache.reorder_cache(torch.tensor([1, 1, 0]))
    cache.check()
    found = cache.feed(model, tokens(1, 1, seed=2).expand(3, 1))
    for i, source in enumerate((1, 1, 0)):
        alone = cache_of(model, "window", Always(), **options)
        alone.feed(model, tokens(2, 80)[source : source + 1])
        expected = alone.feed(model, tokens(1, 1, seed=2))
        torch.testing.assert_close(found[i : i + 1], expected, atol=1e-4, rtol=1e-4)


@torch.no_grad()
@pytest.mark.parametrize("options", [{}, {"num_beams": 3}, {"do_sample": True}])
def test_generate_sees_the_second_pass_only(model_of, tokens, options):
    model = model_of("llama")
    agentkv.attach(model)
    prompt = tokens(1, 40)
    cache = cache_of(model, "window", Always(), promotes=False, format="dense", **EVERYTHING)
    cache.feed(model, prompt[:, :20])
    torch.manual_seed(0)
    full = agentkv.Cache.for_model(model, policy="full")
    full.feed(model, prompt[:, :20])
    for token in prompt[:, 20:-1].split(1, dim=1):
        cache.feed(model, token)
        full.feed(model, token)
    outputs = []
    for each in (cache, full):
        torch.manual_seed(1)
        asked = {"max_new_tokens": 12, "return_dict_in_generate": True, "output_logits": True}
        each.batch_repeat_interleave(options.get("num_beams", 1))
        outputs.append(model.generate(prompt, past_key_values=each, **asked, **options))
    assert torch.equal(outputs[0].sequences, outputs[1].sequences)
    for found, expected in zip(outputs[0].logits, outputs[1].logits, strict=True):
        torch.testing.assert_close(found, expected, atol=1e-3, rtol=1e-3)


@torch.no_grad()
def test_caches_that_share_a_forward_look_back_each_for_itself(model_of, tokens):
    model = model_of("llama")
    whens = (IN_A_SECOND_PASS, Unsure(0.0), AtRandom(0.5), Turned(0.5))
    together, alone = (
        [cache_of(model, "window", when, blocks=2, block=4) for when in whens] for _ in range(2)
    )
    for seed, count in enumerate((60, 1, 1, 7, 1, 1)):
        ids = [tokens(1, count, seed=10 * seed + i) for i in range(len(whens))]
        found = feed_packed(model, together, ids)
        assert found.errors == (None,) * len(whens)
        expected = [cache.feed(model, own) for cache, own in zip(alone, ids, strict=True)]
        torch.testing.assert_close(found.logits, torch.cat(expected), atol=1e-4, rtol=1e-4)
    for one, other in zip(together, alone, strict=True):
        one.check()
        assert one.num_looks == other.num_looks
    assert together[0].num_looks == 6 > together[2].num_looks > 0 == together[1].num_looks


@torch.no_grad()
def test_a_token_that_looks_back_in_its_one_pass_shares_no_forward(model_of, tokens):
    model = model_of("llama")
    one, other = (cache_of(model, "window", Always(), blocks=2, block=4) for _ in range(2))
    feed_packed(model, [one, other], [tokens(1, 60, seed=i) for i in range(2)])
    with pytest.raises(Misuse, match="looks back in its one pass; found 1 tokens for it among oth"):
        feed_packed(model, [one, other], [tokens(1, 1), tokens(1, 1)])
    one.may_look_back = other.may_look_back = False
    feed_packed(model, [one, other], [tokens(1, 1), tokens(1, 1)])


@torch.no_grad()
@pytest.mark.parametrize("name", ["window", "snapkv", "h2o"])
def test_a_token_that_always_looks_is_computed_once_if_no_statistic_needs_more(
    model_of, tokens, name
):
    """A policy that ranks by attention is told of the attention without a look."""
    model = model_of("llama")
    cache = cache_of(model, name, Always(), blocks=2, block=4)
    cache.feed(model, tokens(1, 90))
    passes = []
    hook = model.register_forward_hook(lambda *own: passes.append(own), always_call=True)
    for seed in range(3):
        cache.feed(model, tokens(1, 1, seed=seed))
    hook.remove()
    assert cache.looks_at_once == (name == "window")
    assert len(passes) == (3 if name == "window" else 6) and cache.num_looks == 4


# ---- refusals


def test_a_policy_that_may_lose_the_newest_entry_cannot_look_back():
    keeps = agentkv.scored("mine", lambda entries: entries.positions.float(), protected=1)
    assert replace(keeps, recall=LookBack(Always())).recall.looks_back
    loses = agentkv.scored("mine", lambda entries: entries.positions.float())
    with pytest.raises(PolicyError, match="may evict or quantize the newest entry"):
        replace(loses, recall=LookBack(Always()))
    with pytest.raises(PolicyError, match="may evict or quantize the newest entry"):
        replace(agentkv.policy("int8", recent=0), recall=LookBack(Always()))
    assert not Forget().looks_back


def test_a_scorer_with_one_query_and_looks_by_two_are_refused():
    one = agentkv.policy("snapkv", window=1)
    with pytest.raises(PolicyError, match="looks back by 2 queries, and its scorer reads a window"):
        replace(one, recall=LookBack(Turned()))


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: LookBack(Always(), blocks=0), "blocks must be"),
        (lambda: LookBack(Always(), block=0), "block must be"),
        (lambda: LookBack(Always(), format="int3"), "format must be one of int8"),
        (lambda: LookBack(0.9), "when must be Always"),
        (lambda: Unsure(1.5), r"threshold must be in \[0, 1\]"),
        (lambda: Unsure(stretch=-1), "stretch must be"),
        (lambda: AtRandom(2.0), "share must be"),
        (lambda: Unsurest(-0.1), r"share must be in \[0, 1\]"),
        (lambda: Turned(-0.1), "similarity must be"),
        (lambda: LookBack(Always(), draw=1.1), "draw must be"),
        (lambda: LookBack(Always(), short=-1), "short must be"),
        (lambda: LookBack(Always(), reads="cold"), "reads must be one of hot, all"),
        (lambda: LookBack(Always(), representatives=-1), "representatives must be"),
        (lambda: LookBack(Always(), block=4, representatives=5), "take at most 4, or longer"),
        (lambda: LookBack(Always(), digests=True, representatives=2), "in two ways; take one"),
        (lambda: LookBack(Always(), draw=0.1, representatives=2), "rank blocks without one"),
        (lambda: LookBack(Always(), cold=0), "cold must be a whole number of tokens, at least 1"),
    ],
)
def test_a_wrong_parameter_is_refused(make, message):
    with pytest.raises(PolicyError, match=message):
        make()


# ---- where the cold tier is


@torch.no_grad()
@pytest.mark.parametrize("bound", [None, 50])
def test_a_cold_tier_in_files_is_as_one_in_memory_and_leaves_no_file(
    model_of, tokens, tmp_path, bound
):
    model = model_of("llama")
    policy = looking("window", Always(), blocks=2, block=4, cold=bound)
    options = {"policy": policy, "budget": 24, "cold_folder": tmp_path}
    cache = agentkv.Cache.for_model(model, **options)
    plain = agentkv.Cache.for_model(model, policy=policy, budget=24)
    for seed, count in enumerate((110, 1, 1, 60, 1)):
        logits = [each.feed(model, tokens(2, count, seed=seed)) for each in (cache, plain)]
        assert torch.equal(*logits)
        cache.check()
    assert cache.cold_nbytes == plain.cold_nbytes and not list(tmp_path.iterdir())
    mapped = Path("/proc/self/maps").read_text().count(f"{tmp_path}/agentkv-cold-")
    num_tables = sum(bool(t.numel()) for t in cold_tensors(cache))
    assert mapped >= num_tables > 0
    cache.save(tmp_path / "cache")
    for twin in (
        copy.deepcopy(cache),
        agentkv.Cache.load(tmp_path / "cache", model, policy=policy, cold_folder=tmp_path),
    ):
        assert_same(twin, cache)
        assert Path("/proc/self/maps").read_text().count("/agentkv-cold-") > mapped
        del twin
    cache.reset()
    del cache
    assert f"{tmp_path}/agentkv-cold-" not in Path("/proc/self/maps").read_text()


def cold_tensors(cache):
    """The tensors of all cold tiers."""
    tables = [layer.cold.storage.tables.values() for layer in cache.cache_layers]
    return [tensor for of_layer in tables for table in of_layer for tensor in table.tensors]


@torch.no_grad()
@pytest.mark.parametrize("form", sampled(["dense", "int4", "int8"], every=2))
@pytest.mark.parametrize("name", ["window", "ada-snapkv"])
@pytest.mark.sample("values")
def test_a_forward_that_could_exceed_the_limit_is_refused_before_it_begins(
    model_of, tokens, name, form
):
    model, case = model_of("llama"), CASES[name]
    policy = looking(name, Always(), blocks=2, block=4, format=form)
    cache = agentkv.Cache.for_model(model, policy=policy, budget=case.budget, cold_limit="150 KiB")
    num_fed = 0
    with pytest.raises(ColdMemoryError, match="the cold tier may need .* its limit is 153600"):
        while True:
            cache.feed(model, tokens(1, 14, seed=num_fed))
            num_fed += 1
            assert cache.cold_nbytes <= 153600
    assert num_fed * 14 > 2 * case.budget and cache.cold_nbytes > 75000
    cache.check()
    before = cache.seen
    cache.drop(range(before // 2))
    cache.feed(model, tokens(1, 7))  # which makes room
    assert cache.seen == before + 7


@torch.no_grad()
@pytest.mark.parametrize("form", ["dense", "int4", "int8"])
def test_a_bounded_cold_tier_keeps_within_a_limit_that_fits_its_bound(model_of, tokens, form):
    model = model_of("llama")
    policy = looking("window", Always(), blocks=2, block=4, format=form, cold=64)
    cache = agentkv.Cache.for_model(model, policy=policy, budget=24)
    cache.feed(model, tokens(1, 100))
    most = max(tier.grown_nbytes(1000) for tier in cache.evictor.cold_tiers)
    limit = most * len(cache.cache_layers)
    cache = agentkv.Cache.for_model(model, policy=policy, budget=24, cold_limit=limit)
    for seed in range(30):
        cache.feed(model, tokens(1, (1, 30, 300)[seed % 3], seed=seed))
        cache.check()
        assert cache.cold_nbytes <= limit
        assert seed < 2 or all(56 <= tier.storage.counts[0] <= 64 for tier in tiers(cache))
    free = looking("window", Always(), blocks=2, block=4, format=form)
    cache = agentkv.Cache.for_model(model, policy=free, budget=24, cold_limit=limit)
    cache.feed(model, tokens(1, 1))
    with pytest.raises(ColdMemoryError, match="the cold tier may need"):
        cache.feed(model, tokens(1, 400))


@torch.no_grad()
@pytest.mark.parametrize("growth", [0.125, 1 / 32])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_hot_and_bounded_cold_entries_in_4_bits_take_no_more_than_int4_does(
    model_of, tokens, monkeypatch, dtype, growth
):
    monkeypatch.setattr("agentkv.cache.storage.cold_tier.GROWTH", growth)
    model, budget, num_tokens = model_of("llama"), 500, 2000
    policy = agentkv.policy("lookback-int4", cold=num_tokens - budget - 768, draw=0.0)
    cache = agentkv.Cache.for_model(model, policy=policy, budget=budget, dtype=dtype)
    judge = agentkv.Cache.for_model(model, policy="int4", dtype=dtype)
    for each in (cache, judge):
        each.feed(model, tokens(1, num_tokens))
    most = judge.nbytes
    for seed in range(40):
        cache.feed(model, tokens(1, 1, seed=seed))
        assert cache.nbytes + cache.cold_nbytes <= most
    assert cache.num_looks > 30 and sum(cache.fetched.values()) > 1000


def tiers(cache):
    return cache.evictor.cold_tiers


@torch.no_grad()
@pytest.mark.parametrize("digests", [False, True])
@pytest.mark.parametrize("name", ["window", "ada-snapkv", "h2o"])
def test_entries_that_are_hot_at_present_stay_whatever_the_bound(model_of, tokens, name, digests):
    model = model_of("llama")
    cache = cache_of(model, name, Always(), blocks=3, block=4, cold=9, digests=digests)
    cache.feed(model, tokens(2, 90))
    for seed in range(12):
        before = [dict(lent) for tier in tiers(cache) for lent in tier.lent]
        cache.feed(model, tokens(2, 1, seed=seed))
        cache.check()
        for number, (layer, segment) in enumerate(segments_of(cache)):
            held, hot = (places(each, segment) for each in (layer.cold.storage, layer.storage))
            assert before[number].keys() & hot <= held
            assert len(held) <= max(9, len(layer.cold.lent[segment]))


def segments_of(cache):
    """Each layer with each of its segments."""
    return [(layer, i) for layer in cache.cache_layers for i in range(layer.storage.num_segments)]


@torch.no_grad()
def test_what_a_window_of_the_model_hides_is_no_longer_on_loan(model_of, tokens):
    model = model_of("mistral-window")
    cache = cache_of(model, "window", Always(), blocks=4, block=2, budget=20, cold=4)
    cache.feed(model, tokens(1, 40))
    for seed in range(60):
        cache.feed(model, tokens(1, 1, seed=seed))
        cache.check()
        twin = agentkv.Cache.for_model(model, policy=cache.policy, budget=20)
        twin.origin = cache.origin
        twin.restore(cache.snapshot())
        twin.check()
    assert all(tier.storage.counts[0] <= 20 for tier in tiers(cache))


@pytest.mark.parametrize(
    ("policy", "options", "message"),
    [
        ("window", {"cold_limit": 5}, "'window' forgets what it evicts"),
        ("full", {"cold_folder": "."}, "'full' forgets what it evicts"),
        (
            "lookback",
            {"cold_limit": "25%"},
            "cold_limit must be bytes, such as '2GiB'; found '25%'",
        ),
        ("lookback", {"cold_limit": 0}, "needs a byte or more; found 0"),
        ("lookback", {"cold_folder": "no such folder"}, "No such file or directory"),
        ("lookback", {"cold_folder": "/dev/null"}, "Not a directory"),
        ("lookback", {"cold_limit": "many"}, "units"),
    ],
)
def test_a_cold_tier_that_cannot_be_made_is_refused(model_of, policy, options, message):
    with pytest.raises(ValueError, match=message):
        agentkv.Cache.for_model(model_of("llama"), policy=policy, **options)


@torch.no_grad()
def test_a_full_disk_is_told_and_the_cache_can_be_restored(model_of, tokens, tmp_path):
    model = model_of("llama")
    folder = tmp_path / "cold"
    folder.mkdir()
    cache = agentkv.Cache.for_model(model, policy="lookback", budget=24, cold_folder=folder)
    cache.feed(model, tokens(1, 100))
    before = cache.snapshot()
    folder.rmdir()  # as good as a disk that takes no further file
    with pytest.raises(ColdMemoryError, match="needs a file of .* give another folder"):
        for seed in range(3):
            cache.feed(model, tokens(1, 500, seed=seed))
    folder.mkdir()
    cache.restore(before)
    cache.check()
    cache.feed(model, tokens(1, 500))


@torch.no_grad()
@pytest.mark.gpu
@pytest.mark.parametrize("digests", [False, True])
def test_the_cold_tier_of_a_model_on_a_device_is_on_the_host(model_of, tokens, digests, tmp_path):
    logits, kept = [], []
    for device in ("cpu", "cuda"):
        model = model_of("llama").to(device)
        policy = agentkv.policy(
            "lookback-int8", when="always", blocks=2, block=4, recent=4, digests=digests
        )
        cache = agentkv.Cache.for_model(model, policy=policy, budget=72)
        for seed, count in enumerate(CHUNKS):
            logits.append(cache.feed(model, tokens(2, count, seed=seed).to(device)).cpu())
            cache.check()
        cache.save(tmp_path / device)
        loaded = agentkv.Cache.load(tmp_path / device, model)
        loaded.reorder_cache(torch.tensor([1, 0]))
        logits.append(loaded.feed(model, tokens(2, 1, seed=9).to(device)).cpu())
        loaded.check()
        kept.append([each.tolist() for head in loaded.kept(0) for each in head])
        for each in (cache, loaded):
            for layer in each.cache_layers:
                hot, cold = layer.storage, layer.cold
                assert hot.device.type == device and cold.storage.device.type == "cpu"
                tables = cold.storage.tables.values()
                assert all(x.device.type == "cpu" for table in tables for x in table.tensors)
                assert cold.index is None or cold.index.table.tensors[0].device.type == device
    half = len(logits) // 2
    torch.testing.assert_close(logits[:half], logits[half:], atol=1e-3, rtol=1e-3)
    assert kept[0] == kept[1]


def test_tokens_at_the_start_that_came_back_are_not_pinned(model_of, tokens):
    model = model_of("llama")
    policy = replace(agentkv.policy("window"), recall=LookBack(Unsure(0.0), repair=8))
    cache = agentkv.Cache.for_model(model, policy=policy, budget=40)
    ids = tokens(1, 90)
    cache.feed(model, ids)
    with pytest.raises(Misuse, match="have left layer 0"):
        cache.pin(range(2))
    cold = cache.cache_layers[0].cold
    for layer in cache.cache_layers:
        layer.cold.promote(layer.storage, [torch.arange(2)])
    assert cold.lent == [{0: 0, 1: 1}]
    with pytest.raises(Misuse, match="first 2 tokens came back after an eviction"):
        cache.pin(range(2))
    assert not cache.pins()
