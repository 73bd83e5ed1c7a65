"""Copies of a cache continue like the original and never affect it."""

import copy
import gc
import pickle
import weakref
from dataclasses import dataclass

import pytest
import torch

import agentkv
from agentkv.cache.packed import PackedForward
from tests.agentkv.cache.caches_in_use import assert_same, used
from tests.agentkv.cache.conftest import families
from tests.agentkv.cache.policies_under_test import CASES, SMALL
from tests.sampling import sampled

# copy.copy makes a deep copy as well: a shallow one would share memory
COPIES = [
    *sampled([(name, copy.deepcopy) for name in CASES], every=8, first=2),
    ("conf-kv-int8", copy.copy),
]


def continue_with(model, cache, tokens, seed=50):
    """Feed a decoded token, an observation and two more tokens; return the logits of each."""
    lengths = enumerate([1, 7, 1, 1])
    batch = max(cache.batch_size, 1)
    return [cache.feed(model, tokens(batch, length, seed + i)) for i, length in lengths]


def assert_equal(found, expected):
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def mid_episode(model, tokens, name):
    """Return a cache of two sequences of different lengths, after a page and one token."""
    case = CASES[name]
    cache = agentkv.Cache.for_model(model, policy=case.make(), budget=case.budget, chunk=40)
    ids = tokens(2, 130)
    mask = torch.ones_like(ids)
    mask[0, :15] = 0
    cache.feed(model, ids[:, :129], mask[:, :129])
    cache.feed(model, ids[:, 129:], mask)
    cache.pending = [[3, 1], [2]]
    return cache


@pytest.mark.parametrize("name, make_copy", COPIES)
def test_a_copy_continues_exactly_and_independently(llama, tokens, name, make_copy):
    cache, twin = (mid_episode(llama, tokens, name) for _ in range(2))
    copied = make_copy(cache)
    copied.check()
    assert_same(copied, cache)
    assert (copied.peak_nbytes, copied.budget) == (cache.peak_nbytes, cache.budget)
    continue_with(llama, copied, tokens, seed=9)  # other tokens, which must not affect the original
    again = make_copy(cache)
    expected = continue_with(llama, twin, tokens)
    assert_equal(continue_with(llama, cache, tokens), expected)
    assert_equal(continue_with(llama, again, tokens), expected)
    assert_same(again, twin)
    assert_same(cache, twin)
    for each in (cache, copied, again):
        each.check()
    addresses = [
        {
            tensor.data_ptr()
            for store in each.cache_layers
            for table in store.storage.tables.values()
            for tensor in table.tensors
            if tensor.numel()
        }
        for each in (cache, copied, again)
    ]
    assert not addresses[0] & addresses[1] and not addresses[0] & addresses[2]


@pytest.mark.parametrize("family", families("gpt2", "gpt_oss"))
def test_a_copy_continues_exactly_in_every_family(family, model, tokens):
    cache, twin = (mid_episode(model, tokens, "conf-kv-int8") for _ in range(2))
    copied, expected = copy.deepcopy(cache), continue_with(model, twin, tokens)
    assert_equal(continue_with(model, copied, tokens), expected)
    assert_equal(continue_with(model, cache, tokens), expected)
    assert_same(copied, cache)


@pytest.mark.parametrize("goes", ["original", "copy"])
@pytest.mark.parametrize("name", ["conf-kv-int8", "ada-snapkv"])
@pytest.mark.sample("values")
def test_a_copy_and_its_original_outlive_each_other(llama, tokens, name, goes):
    both, twin = [mid_episode(llama, tokens, name)], mid_episode(llama, tokens, name)
    both.append(copy.deepcopy(both[0]))
    gone = weakref.ref(both.pop(0 if goes == "original" else 1))
    gc.collect()
    assert gone() is None
    # these reuse the freed memory
    others = [mid_episode(llama, tokens, name) for _ in range(3)]
    assert_equal(continue_with(llama, both[0], tokens), continue_with(llama, twin, tokens))
    both[0].check()
    assert_same(both[0], twin)
    del others


@pytest.mark.parametrize("budget", [None, 24, "25%", "300KiB"])
def test_a_copy_of_an_empty_cache_is_an_empty_cache(llama, tokens, budget):
    policy = "full" if budget is None else "window"
    cache = agentkv.Cache.for_model(llama, policy=policy, budget=budget, prefill="whole", chunk=7)
    cache.pending = [[7]]
    copied = copy.deepcopy(cache)
    assert_same(copied, cache)
    assert (copied.prefill, copied.chunk, copied.budget) == ("whole", 7, cache.budget)
    assert_equal(continue_with(llama, copied, tokens), continue_with(llama, cache, tokens))
    assert_same(copied, cache)


def test_one_prefilled_prompt_serves_several_continuations(llama, tokens):
    case = CASES["conf-kv-int8"]
    prompt = tokens(1, 100)
    read = agentkv.Cache.for_model(llama, policy=case.make(), budget=case.budget)
    with torch.no_grad():
        llama(prompt, past_key_values=read)
    settings = {"max_new_tokens": 6, "do_sample": False}
    for seed in (1, 2):
        ids = torch.cat([prompt, tokens(1, 9, seed=seed)], dim=1)
        copied = copy.deepcopy(read)
        made = llama.generate(
            ids, past_key_values=copied, logits_processor=[copied.gate()], **settings
        )
        own = agentkv.Cache.for_model(llama, policy=case.make(), budget=case.budget)
        with torch.no_grad():
            llama(prompt, past_key_values=own)
        expected = llama.generate(
            ids, past_key_values=own, logits_processor=[own.gate()], **settings
        )
        assert torch.equal(made, expected)
        assert_same(copied, own)
    assert read.seen == 100


# ---- in containers


@dataclass
class Holder:
    caches: list
    note: str = "kept"


def test_copying_a_container_copies_each_cache_once(llama, tokens):
    cache = mid_episode(llama, tokens, "conf-kv-int8")
    holder = Holder([cache, cache])
    copied = copy.deepcopy({"holder": holder, "gate": cache.gate()})
    first, second = copied["holder"].caches
    assert first is second and first is not cache and copied["gate"].cache is first
    assert_equal(continue_with(llama, first, tokens), continue_with(llama, cache, tokens))
    shallow = copy.copy(holder.caches)
    assert shallow[0] is cache


def test_a_cache_copied_with_its_model_belongs_to_the_new_model(llama, tokens):
    cache = mid_episode(llama, tokens, "critical-ada-snapkv")
    llama.cache_of_mine = cache
    twin = copy.deepcopy(llama)
    assert twin.cache_of_mine is not cache
    expected = continue_with(llama, cache, tokens)
    del llama.cache_of_mine
    assert_equal(continue_with(twin, twin.cache_of_mine, tokens), expected)
    with pytest.raises(ValueError, match="another model"):
        twin.cache_of_mine.feed(llama, tokens(2, 1))
    pair = copy.deepcopy({"model": llama, "cache": cache})
    assert_equal(
        continue_with(pair["model"], pair["cache"], tokens, seed=3),
        continue_with(llama, cache, tokens, seed=3),
    )


def test_a_copied_subclass_keeps_its_own_attributes(llama, tokens):
    class Mine(agentkv.Cache):
        pass

    cache = Mine.for_model(llama, policy="full")
    cache.notes_of_mine = ["a"]
    copied = copy.deepcopy(cache)
    assert type(copied) is Mine and copied.notes_of_mine == ["a"]
    assert copied.notes_of_mine is not cache.notes_of_mine


# ---- shared state


def test_learned_energies_are_copied_and_then_diverge(llama, tokens):
    policy = agentkv.policy("edie-tada", **SMALL)
    cache, companion = (used(llama, tokens, policy, 24) for _ in range(2))
    learned = policy.allocator.state
    copied = copy.deepcopy(cache)
    assert copied.policy.allocator.state == learned
    continue_with(llama, copied, tokens)
    assert policy.allocator.state == learned != copied.policy.allocator.state
    # caches that share a policy and are copied together share the copy
    one, other = copy.deepcopy([cache, companion])
    continue_with(llama, one, tokens)
    assert one.policy.allocator.state == other.policy.allocator.state != learned


def test_a_snapshot_can_be_restored_in_any_copy_of_its_cache(llama, tokens):
    cache = mid_episode(llama, tokens, "conf-kv-int8")
    before, twin = cache.snapshot(), mid_episode(llama, tokens, "conf-kv-int8")
    copied = copy.deepcopy(cache)
    expected = continue_with(llama, twin, tokens)
    for snapshot in (before, copy.deepcopy(before), copy.copy(before)):
        for each in (cache, copied):
            continue_with(llama, each, tokens, seed=1)
            each.restore(snapshot)
            each.check()
            assert_equal(continue_with(llama, each, tokens), expected)
    cache.restore(copied.snapshot())
    assert_same(cache, copied)
    together = copy.deepcopy({"before": before, "cache": cache})
    together["cache"].restore(together["before"])
    assert_equal(continue_with(llama, together["cache"], tokens), expected)
    with pytest.raises(ValueError, match="no snapshot of this cache"):
        mid_episode(llama, tokens, "conf-kv-int8").restore(before)


# ---- refusals


def test_pickling_is_refused_and_the_error_names_the_alternatives(llama, tokens):
    cache = mid_episode(llama, tokens, "conf-kv-int8")
    for thing in (cache, cache.snapshot(), [cache], cache.gate()):
        with pytest.raises(ValueError, match=r"cannot be pickled.*`save`.*`Cache.load`"):
            pickle.dumps(thing)
    assert_same(copy.deepcopy(cache), cache)


def test_parts_of_a_cache_cannot_be_copied_alone(llama, tokens):
    cache = mid_episode(llama, tokens, "ada-snapkv")
    store = cache.cache_layers[0]
    storage = store.storage
    parts = [store, storage, storage.queries, storage.descriptor, *storage.tables.values()]
    parts += [storage.metadata.descriptor]
    for part in parts:
        for make_copy in (copy.copy, copy.deepcopy, pickle.dumps):
            with pytest.raises(TypeError, match="address"):
                make_copy(part)
    with pytest.raises(TypeError, match="address"):
        copy.deepcopy(cache.layers[0])


def test_a_packed_forward_cannot_be_copied(llama, tokens):
    caches = [mid_episode(llama, tokens, "window") for _ in range(2)]
    together = PackedForward(llama, caches, [tokens(2, 1)] * 2)
    for make_copy in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(ValueError, match="one forward"):
            make_copy(together)


def test_a_cache_cannot_be_copied_during_a_forward(llama, tokens):
    cache, raised = mid_episode(llama, tokens, "window"), []

    def look(*args):
        try:
            copy.deepcopy(cache)
        except ValueError as error:
            raised.append(str(error))

    handle = llama.model.layers[1].register_forward_hook(look)
    cache.feed(llama, tokens(2, 1))
    handle.remove()
    assert len(raised) == 1 and "between forwards" in raised[0]
    assert_same(copy.deepcopy(cache), cache)
    cache.feed(llama, tokens(2, 1))
