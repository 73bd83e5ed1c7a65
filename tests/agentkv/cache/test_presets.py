"""Caches under presets: inputs are read whole and compressed once, also in bytes and on disk."""

import torch

import agentkv
from agentkv.cache.cache import Cache

ONCE = {"window": 6, "kernel": 3}


def test_a_preset_reads_an_input_whole_whatever_the_cache_would(llama, cache_for):
    for name, prefill in [("h2o", "chunked"), ("paper:h2o", "whole"), ("paper:conf-kv", "whole")]:
        cache = cache_for(llama, policy=name, budget=20, prefill="chunked")
        assert cache.prefill == prefill
        assert (cache.tokens_at_once(600) == 600) == (prefill == "whole")


def test_a_prompt_is_compressed_after_its_last_token_and_the_cache_then_grows(
    llama, cache_for, tokens
):
    cache = cache_for(llama, policy=agentkv.policy("paper:snapkv", **ONCE), budget=20, chunk=16)
    cache.feed(llama, tokens(1, 70))
    gone = cache.num_evicted
    assert gone == 50 * 2 * 4  # of two heads in four layers
    for _ in range(3):
        cache.feed(llama, tokens(1, 1))
    assert len(cache.kept(0)[0][0]) == 23 and cache.num_evicted == gone
    cache.feed(llama, tokens(1, 9))
    assert len(cache.kept(0)[0][0]) == 20
    cache.check()


def test_bytes_are_kept_after_an_input_and_exceeded_while_decoding(llama, cache_for, tokens):
    policy = agentkv.policy("paper:ada-snapkv", **ONCE)
    cache = cache_for(llama, policy=policy, budget="100KB")
    cache.feed(llama, tokens(1, 150))
    assert cache.num_evicted and cache.nbytes <= 100_000
    for _ in range(70):
        cache.feed(llama, tokens(1, 1))
    held = cache.nbytes
    cache.feed(llama, tokens(1, 2))
    assert cache.nbytes < held and cache.nbytes <= 100_000


def test_a_saved_cache_goes_on_under_its_preset(llama, cache_for, tokens, tmp_path):
    cache = cache_for(llama, policy=agentkv.policy("paper:critical-snapkv", **ONCE), budget=20)
    cache.feed(llama, tokens(1, 40))
    cache.save(tmp_path / "cache")
    again = Cache.load(tmp_path / "cache", llama)
    assert again.policy.name == "paper:critical-snapkv"
    assert again.policy == cache.policy and again.tokens_at_once(999) == 999
    assert torch.equal(again.feed(llama, tokens(1, 5)), cache.feed(llama, tokens(1, 5)))
