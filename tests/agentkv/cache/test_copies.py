"""Copies of a cache: each goes on as the original would, and neither is felt by the other."""

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
from tests.agentkv.cache.policies_under_test import CASES, SMALL

# half a copy would be a trap: copy.copy does the same
WAYS = [*((name, copy.deepcopy) for name in CASES), ("conf-kv-int8", copy.copy)]


def go_on(model, cache, tokens, seed=50):
    """A decoded token, an observation, two tokens more; the logits of each."""
    lengths = enumerate([1, 7, 1, 1])
    batch = max(cache.batch_size, 1)
    return [cache.feed(model, tokens(batch, length, seed + i)) for i, length in lengths]


def assert_equal(found, expected):
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def mid_episode(model, tokens, name):
    """Two sequences of different lengths, a page and a token in."""
    case = CASES[name]
    cache = agentkv.Cache.for_model(model, policy=case.make(), budget=case.budget, chunk=40)
    ids = tokens(2, 130)
    mask = torch.ones_like(ids)
    mask[0, :15] = 0
    cache.feed(model, ids[:, :129], mask[:, :129])
    cache.feed(model, ids[:, 129:], mask)
    cache.pending = [[3, 1], [2]]
    return cache


@pytest.mark.parametrize("name, way", WAYS)
def test_a_copy_goes_on_exactly_as_the_original_and_apart_from_it(llama, tokens, name, way):
    cache, twin = (mid_episode(llama, tokens, name) for _ in range(2))
    copied = way(cache)
    copied.check()
    assert_same(copied, cache)
    assert (copied.peak_nbytes, copied.budget) == (cache.peak_nbytes, cache.budget)
    go_on(llama, copied, tokens, seed=9)  # other tokens, that the original must not feel
    again = way(cache)
    expected = go_on(llama, twin, tokens)
    assert_equal(go_on(llama, cache, tokens), expected)
    assert_equal(go_on(llama, again, tokens), expected)
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


def test_so_it_does_in_every_family(family, model, tokens):
    cache, twin = (mid_episode(model, tokens, "conf-kv-int8") for _ in range(2))
    copied, expected = copy.deepcopy(cache), go_on(model, twin, tokens)
    assert_equal(go_on(model, copied, tokens), expected)
    assert_equal(go_on(model, cache, tokens), expected)
    assert_same(copied, cache)


@pytest.mark.parametrize("goes", ["original", "copy"])
@pytest.mark.parametrize("name", ["conf-kv-int8", "ada-snapkv"])
def test_either_outlives_the_other(llama, tokens, name, goes):
    both, twin = [mid_episode(llama, tokens, name)], mid_episode(llama, tokens, name)
    both.append(copy.deepcopy(both[0]))
    gone = weakref.ref(both.pop(0 if goes == "original" else 1))
    gc.collect()
    assert gone() is None
    # what was freed is used again
    others = [mid_episode(llama, tokens, name) for _ in range(3)]
    assert_equal(go_on(llama, both[0], tokens), go_on(llama, twin, tokens))
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
    assert_equal(go_on(llama, copied, tokens), go_on(llama, cache, tokens))
    assert_same(copied, cache)


def test_a_prompt_that_was_read_once_is_gone_on_with_many_times(llama, tokens):
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


def test_a_container_is_copied_with_its_caches_each_once(llama, tokens):
    cache = mid_episode(llama, tokens, "conf-kv-int8")
    holder = Holder([cache, cache])
    copied = copy.deepcopy({"holder": holder, "gate": cache.gate()})
    first, second = copied["holder"].caches
    assert first is second and first is not cache and copied["gate"].cache is first
    assert_equal(go_on(llama, first, tokens), go_on(llama, cache, tokens))
    shallow = copy.copy(holder.caches)
    assert shallow[0] is cache


def test_a_model_that_is_copied_with_its_cache_is_the_copys_model(llama, tokens):
    cache = mid_episode(llama, tokens, "critical-ada-snapkv")
    llama.cache_of_mine = cache
    twin = copy.deepcopy(llama)
    assert twin.cache_of_mine is not cache
    expected = go_on(llama, cache, tokens)
    del llama.cache_of_mine
    assert_equal(go_on(twin, twin.cache_of_mine, tokens), expected)
    with pytest.raises(ValueError, match="another model"):
        twin.cache_of_mine.feed(llama, tokens(2, 1))
    pair = copy.deepcopy({"model": llama, "cache": cache})
    assert_equal(
        go_on(pair["model"], pair["cache"], tokens, seed=3), go_on(llama, cache, tokens, seed=3)
    )


def test_a_persons_own_cache_keeps_what_it_carries(llama, tokens):
    class Mine(agentkv.Cache):
        pass

    cache = Mine.for_model(llama, policy="full")
    cache.notes_of_mine = ["a"]
    copied = copy.deepcopy(cache)
    assert type(copied) is Mine and copied.notes_of_mine == ["a"]
    assert copied.notes_of_mine is not cache.notes_of_mine


# ---- what is shared


def test_what_was_learned_is_copied_and_then_learned_apart(llama, tokens):
    policy = agentkv.policy("edie-tada", **SMALL)
    cache, companion = (used(llama, tokens, policy, 24) for _ in range(2))
    learned = policy.allocator.state
    copied = copy.deepcopy(cache)
    assert copied.policy.allocator.state == learned
    go_on(llama, copied, tokens)
    assert policy.allocator.state == learned != copied.policy.allocator.state
    # caches that learned together go on to do so, when they are copied together
    one, other = copy.deepcopy([cache, companion])
    go_on(llama, one, tokens)
    assert one.policy.allocator.state == other.policy.allocator.state != learned


def test_a_snapshot_goes_back_into_any_copy_of_its_cache(llama, tokens):
    cache = mid_episode(llama, tokens, "conf-kv-int8")
    before, twin = cache.snapshot(), mid_episode(llama, tokens, "conf-kv-int8")
    copied = copy.deepcopy(cache)
    expected = go_on(llama, twin, tokens)
    for snapshot in (before, copy.deepcopy(before), copy.copy(before)):
        for each in (cache, copied):
            go_on(llama, each, tokens, seed=1)
            each.restore(snapshot)
            each.check()
            assert_equal(go_on(llama, each, tokens), expected)
    cache.restore(copied.snapshot())
    assert_same(cache, copied)
    together = copy.deepcopy({"before": before, "cache": cache})
    together["cache"].restore(together["before"])
    assert_equal(go_on(llama, together["cache"], tokens), expected)
    with pytest.raises(ValueError, match="no snapshot of this cache"):
        mid_episode(llama, tokens, "conf-kv-int8").restore(before)


# ---- what cannot be copied


def test_nothing_of_a_cache_is_pickled_and_the_error_says_what_to_use(llama, tokens):
    cache = mid_episode(llama, tokens, "conf-kv-int8")
    for thing in (cache, cache.snapshot(), [cache], cache.gate()):
        with pytest.raises(ValueError, match=r"cannot be pickled.*`save`.*`Cache.load`"):
            pickle.dumps(thing)
    assert_same(copy.deepcopy(cache), cache)


def test_parts_of_a_cache_are_copied_with_it_or_not_at_all(llama, tokens):
    cache = mid_episode(llama, tokens, "ada-snapkv")
    store = cache.cache_layers[0]
    storage = store.storage
    parts = [store, storage, storage.queries, storage.descriptor, *storage.tables.values()]
    parts += [storage.metadata.descriptor]
    for part in parts:
        for way in (copy.copy, copy.deepcopy, pickle.dumps):
            with pytest.raises(TypeError, match="address"):
                way(part)
    with pytest.raises(TypeError, match="address"):
        copy.deepcopy(cache.layers[0])


def test_a_shared_forward_is_not_copied(llama, tokens):
    caches = [mid_episode(llama, tokens, "window") for _ in range(2)]
    together = PackedForward(llama, caches, [tokens(2, 1)] * 2)
    for way in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(ValueError, match="one forward"):
            way(together)


def test_a_cache_in_the_middle_of_a_forward_is_not_copied(llama, tokens):
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
