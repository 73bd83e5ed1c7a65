"""Queries of pages and of replies, which a policy may want apart."""

import torch

import agentkv


def positions(cache, sequence=0):
    storage = cache.cache_layers[0].storage
    windows = (storage.queries, storage.queries_of_chunks)
    return [window.of(sequence)[1].tolist() for window in windows]


@torch.no_grad()
def test_a_long_page_leaves_the_queries_of_the_reply_before_it(llama, cache_for, tokens):
    policy = agentkv.policy("snapkv-by-phase", window=4)
    cache = cache_for(llama, policy=policy, budget=16)
    ids = tokens(1, 70)
    cache.feed(llama, ids[:, :20])
    assert positions(cache) == [[], [16, 17, 18, 19]]
    for place in range(20, 26):
        cache.feed(llama, ids[:, place, None])
    cache.feed(llama, ids[:, 26:66])
    assert positions(cache) == [[22, 23, 24, 25], [62, 63, 64, 65]]
    cache.feed(llama, ids[:, 66:67])
    assert positions(cache) == [[23, 24, 25, 66], [62, 63, 64, 65]]
    queries, places = cache.cache_layers[0].storage.last_queries(0)
    assert places.tolist() == [23, 24, 25, 62, 63, 64, 65, 66] and queries.shape[1] == 8
    cache.check()


@torch.no_grad()
def test_a_saved_cache_goes_on_with_the_queries_of_both(llama, cache_for, tokens, tmp_path):
    policy = agentkv.policy("snapkv-by-phase", window=4)
    cache = cache_for(llama, policy=policy, budget=16)
    ids = tokens(1, 60)
    cache.feed(llama, ids[:, :30])
    for place in range(30, 35):
        cache.feed(llama, ids[:, place, None])
    before = cache.snapshot()
    cache.save(tmp_path / "cache")
    again = agentkv.Cache.load(tmp_path / "cache", llama)
    assert positions(again) == positions(cache)
    expected = cache.feed(llama, ids[:, 35:])
    assert torch.equal(again.feed(llama, ids[:, 35:]), expected)
    cache.restore(before)
    assert torch.equal(cache.feed(llama, ids[:, 35:]), expected)
