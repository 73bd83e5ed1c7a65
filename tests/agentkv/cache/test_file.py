"""A cache that was saved and loaded continues exactly like the original."""

import json
import os
import resource
import stat

import pytest
import torch
from safetensors import safe_open

import agentkv
from agentkv.cache.checkpoint.file import CacheFileError, FileLimit
from agentkv.weights.replace import quantize_linear
from agentkv_kernels.layout import POSITION
from tests.agentkv.cache.caches_in_use import assert_same, used
from tests.agentkv.cache.policies_under_test import CASES, SMALL
from tests.sampling import sampled


def continue_with(model, cache, tokens, seed):
    """Feed a decoded token, an observation and two more tokens; return the logits of each."""
    batch = cache.batch_size
    lengths = enumerate([1, 7, 1, 1])
    return [cache.feed(model, tokens(batch, length, seed + i)) for i, length in lengths]


def assert_continues_after_loading(cache, model, tokens, path, policy=None):
    cache.save(path)
    loaded = agentkv.Cache.load(path, model, policy=policy)
    loaded.check()
    assert_same(loaded, cache)
    assert loaded.peak_nbytes == cache.peak_nbytes
    expected = continue_with(model, cache, tokens, 50)
    for found, logits in zip(continue_with(model, loaded, tokens, 50), expected, strict=True):
        assert torch.equal(found, logits)
    assert_same(loaded, cache)
    return loaded


@pytest.mark.parametrize("name", sampled(CASES, every=8, first=6))
def test_a_loaded_cache_continues_exactly_under_every_policy(llama, tokens, tmp_path, name):
    case = CASES[name]
    given_again = None if "by-confidence" not in name and name != "along-keys" else case.make()
    cache = agentkv.Cache.for_model(llama, policy=case.make(), budget=case.budget, chunk=40)
    ids = tokens(2, 130)
    mask = torch.ones_like(ids)
    mask[0, :15] = 0  # sequences of different lengths
    cache.feed(llama, ids[:, :129], mask[:, :129])
    cache.feed(llama, ids[:, 129:], mask)
    assert_continues_after_loading(cache, llama, tokens, tmp_path / "cache", given_again)


@pytest.mark.parametrize("name", ["critical-ada-snapkv", "conf-kv-int8", "arkv"])
@pytest.mark.sample("values")
def test_a_loaded_cache_continues_exactly_in_every_family(family, model, tokens, tmp_path, name):
    case = CASES[name]
    cache = used(model, tokens, case.make(), case.budget)
    loaded = assert_continues_after_loading(cache, model, tokens, tmp_path / "cache")
    assert loaded.policy == cache.policy and loaded.chunk == 40 and loaded.prefill == "chunked"


@pytest.mark.parametrize("policy", ["full", "lookback-int8"])
def test_a_file_that_may_be_too_large_is_not_begun(llama, tokens, tmp_path, policy):
    cache = used(llama, tokens, policy, None)
    path = tmp_path / "cache"
    cache.save(path)
    size = path.stat().st_size
    for most in (0, size // 2, size - 1):
        with pytest.raises(FileLimit, match=f"may have {most}"):
            cache.save(tmp_path / "other", most_bytes=most)
    assert os.listdir(tmp_path) == ["cache"]
    cache.save(tmp_path / "other", most_bytes=int(1.5 * size))
    assert (tmp_path / "other").stat().st_size == size


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_caches_of_models_of_every_dtype_can_be_saved(llama, tokens, tmp_path, dtype):
    llama.to(dtype)
    assert_continues_after_loading(
        used(llama, tokens, "int8", None), llama, tokens, tmp_path / "cache"
    )


@pytest.mark.parametrize("form", ["int8", "int4"])
def test_caches_of_models_in_quantized_weights_can_be_loaded(llama, tokens, tmp_path, form):
    quantize_linear(llama, form)
    cache = used(llama, tokens, "full", None)
    assert_continues_after_loading(cache, llama, tokens, tmp_path / "cache")


def test_the_gate_can_be_applied_right_after_loading(model_of, tokens, tmp_path):
    case = CASES["ada-by-confidence"]
    for family in ("llama", "gpt_oss"):
        model = model_of(family)
        cache = used(model, tokens, case.make(), case.budget)
        cache.save(tmp_path / "cache")
        loaded = agentkv.Cache.load(tmp_path / "cache", model, policy=case.make())
        logits = torch.zeros(2, 96)
        logits[:, 5] = 50.0
        for each in (cache, loaded):
            each.apply_gate(logits)
            each.check()
        assert_same(loaded, cache)


@pytest.mark.parametrize("budget", [0.5, "25%", "300KiB", 30])
def test_every_kind_of_budget_is_saved(llama, tokens, tmp_path, budget):
    cache = used(llama, tokens, "streaming", budget)
    assert_continues_after_loading(cache, llama, tokens, tmp_path / "cache")
    cache.batch_repeat_interleave(2)
    loaded = assert_continues_after_loading(cache, llama, tokens, tmp_path / "cache")
    assert loaded.evictor.allowance.batch == (4 if budget == "300KiB" else 1)


def test_an_empty_cache_is_loaded_empty_and_works(llama, tokens, tmp_path):
    cache = agentkv.Cache.for_model(llama, policy="h2o", budget=20)
    cache.pending = [[7]]
    cache.save(tmp_path / "cache")
    loaded = agentkv.Cache.load(tmp_path / "cache", llama)
    assert_same(loaded, cache)
    assert torch.equal(loaded.feed(llama, tokens(1, 40)), cache.feed(llama, tokens(1, 40)))


@torch.no_grad()
def test_a_cache_that_was_fed_embeddings_is_loaded_without_ids(llama, tokens, tmp_path):
    cache = agentkv.Cache.for_model(llama, policy="snapkv", budget=40)
    embeds = llama.get_input_embeddings()(tokens(2, 60))
    llama(inputs_embeds=embeds, past_key_values=cache)
    assert assert_continues_after_loading(cache, llama, tokens, tmp_path / "cache").ids is None


def test_learned_energies_are_loaded_unless_the_given_policy_has_its_own(llama, tokens, tmp_path):
    cache = used(llama, tokens, agentkv.policy("edie-tada", **SMALL), 24)
    learned = cache.policy.allocator.state
    assert learned[""][0] > 0
    cache.save(tmp_path / "cache")
    assert agentkv.Cache.load(tmp_path / "cache", llama).policy.allocator.state == learned
    learned_more = agentkv.policy("edie-tada", **SMALL)
    learned_more.allocator.load_state({"": (9, (1.0, 2.0, 3.0, 4.0))})
    loaded = agentkv.Cache.load(tmp_path / "cache", llama, policy=learned_more)
    assert loaded.policy.allocator.state == {"": (9, (1.0, 2.0, 3.0, 4.0))}
    loaded.feed(llama, tokens(2, 5))
    loaded.check()


# ---- the file itself


def test_only_the_owner_can_read_the_file_even_if_it_replaces_a_public_one(llama, tokens, tmp_path):
    path = tmp_path / "cache"
    path.write_text("old")
    path.chmod(0o644)
    before = os.umask(0)
    try:
        used(llama, tokens, "window", 20).save(path)
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert os.listdir(tmp_path) == ["cache"]


def test_the_file_is_plain_safetensors_and_little_larger_than_the_entries(llama, tokens, tmp_path):
    case = CASES["conf-kv-int8"]
    cache = used(llama, tokens, case.make(), case.budget)
    cache.save(tmp_path / "cache")
    with safe_open(tmp_path / "cache", framework="pt") as file:
        metadata = file.metadata()
        saved = json.loads(metadata["state"])
        assert metadata["format"] == "agentkv cache" and saved["model"]["family"] == "llama"
        assert saved["model"]["dtype"] == "float32" and saved["state"]["seen"] == 101
        assert torch.equal(file.get_tensor("ids"), cache.ids)
        places = file.get_tensor(f"layers.2.metadata.{POSITION}").view(2, -1)
        assert places[1].tolist() == cache.kept(2)[1][0].tolist()
    assert (tmp_path / "cache").stat().st_size < cache.nbytes + 20_000


def test_a_save_that_fails_leaves_the_old_file_and_nothing_else(llama, tokens, tmp_path):
    path = tmp_path / "cache"
    cache = used(llama, tokens, "full", None, length=400)
    cache.save(path)
    old = path.read_bytes()
    cache.feed(llama, tokens(2, 400))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(old) // 2, limits[1]))  # as on a full disk
    try:
        with pytest.raises(OSError):
            cache.save(path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert path.read_bytes() == old and os.listdir(tmp_path) == ["cache"]
    for pending in ([["not", "ids"]], [3], 3, [[True]], [[0.5]], "ids"):
        cache.pending = pending
        with pytest.raises(CacheFileError, match="pending"):
            cache.save(path)
    assert path.read_bytes() == old and os.listdir(tmp_path) == ["cache"]


def test_a_folder_is_neither_overwritten_nor_loaded(llama, tokens, tmp_path):
    (tmp_path / "cache").mkdir()
    cache = used(llama, tokens, "window", 20)
    with pytest.raises(OSError):
        cache.save(tmp_path / "cache")
    with pytest.raises(OSError):
        cache.save(tmp_path / "nowhere" / "cache")
    with pytest.raises(OSError):
        agentkv.Cache.load(tmp_path / "cache", llama)
    with pytest.raises(FileNotFoundError):
        agentkv.Cache.load(tmp_path / "other", llama)
    assert os.listdir(tmp_path) == ["cache"] and os.listdir(tmp_path / "cache") == []


def test_a_cache_without_its_model_cannot_be_saved(model_of, tokens, tmp_path):
    model = model_of("llama")
    cache = used(model, tokens, "window", 20)
    del model
    with pytest.raises(CacheFileError, match="model"):
        cache.save(tmp_path / "cache")
    assert os.listdir(tmp_path) == []
