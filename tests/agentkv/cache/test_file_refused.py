"""Refused files and the reasons given: other models and policies, damage, hostile contents."""

import json
import os
import pickle
from dataclasses import replace

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

import agentkv
from agentkv.cache.checkpoint.file import VERSION, CacheFileError, read, write
from agentkv_kernels.layout import BLOCK_IDS, KEYS, POSITION, TRACKED, VALUES
from tests.agentkv.cache.caches_in_use import assert_same, used
from tests.agentkv.cache.conftest import fresh
from tests.agentkv.cache.policies_under_test import CASES, SMALL, along_keys

FAST = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])

# ---- other models, policies, versions


def test_the_first_difference_between_models_is_named(model_of, tokens, tmp_path):
    llama = model_of("llama")
    used(llama, tokens, "snapkv", 40).save(tmp_path / "cache")

    def refusal(model, **more):
        with pytest.raises(CacheFileError) as error:
            agentkv.Cache.load(tmp_path / "cache", model, **more)
        return str(error.value)

    assert "family was llama, and this model's is qwen3" in refusal(model_of("qwen3"))
    other = model_of("llama").to(torch.bfloat16)
    assert "dtype was float32, and this model's is bfloat16" in refusal(other)
    other = model_of("llama")
    other.config.rope_parameters = {"rope_type": "default", "rope_theta": 5e5}
    assert "rope (rope_parameters)" in refusal(other) and "500000.0" in refusal(other)
    other = model_of("llama")
    other.config.rms_norm_eps = 0.5
    assert "config (rms_norm_eps) was 1e-06, and this model's is 0.5" in refusal(other)
    for index in (0, 7, -2):
        other = model_of("llama")
        with torch.no_grad():
            list(other.model.parameters())[index].mul_(1.001)
        assert "weights" in refusal(other)
    other = model_of("llama")
    other.config.use_cache, other.config._name_or_path = False, "elsewhere"
    agentkv.Cache.load(
        tmp_path / "cache", other
    ).check()  # these settings have no effect on keys and values


def test_the_first_difference_between_policies_is_named(llama, tokens, tmp_path):
    path = tmp_path / "cache"

    def refusal(**more):
        with pytest.raises(CacheFileError) as error:
            agentkv.Cache.load(path, llama, **more)
        return str(error.value)

    used(llama, tokens, agentkv.policy("snapkv", **SMALL), 40).save(path)
    assert "gate" in refusal(policy="full")
    said = refusal(policy=agentkv.policy("snapkv", window=6, kernel=5))
    assert "the scorer of the policy 'snapkv'" in said and "kernel=3" in said and "kernel=5" in said
    twin = replace(agentkv.policy("snapkv", **SMALL), name="mine")
    assert agentkv.Cache.load(path, llama, policy=twin).policy.name == "mine"

    own = agentkv.scored("along-keys", along_keys, protected=3)
    used(llama, tokens, own, 40).save(path)
    assert "pass it as policy=" in refusal()
    other = agentkv.scored("along-keys", lambda rows: rows.attention(), protected=3)
    assert "along_keys" in refusal(policy=other) and "<lambda>" in refusal(policy=other)
    agentkv.Cache.load(path, llama, policy=own).check()

    changed = agentkv.policy("snapkv", **SMALL)
    changed = replace(changed, selector=replace(changed.selector, sinks=2))
    used(llama, tokens, changed, 40).save(path)
    assert "assembled from parts" in refusal()
    agentkv.Cache.load(path, llama, policy=changed).check()


def test_a_file_of_another_version_is_refused(llama, tokens, tmp_path):
    path = tmp_path / "cache"
    used(llama, tokens, "window", 20).save(path)
    data = path.read_bytes()
    said = f'"version":"{VERSION}"'.encode()
    assert data.count(said) == 1
    path.write_bytes(data.replace(said, b'"version":"9"'))
    with pytest.raises(CacheFileError, match="version 9"):
        agentkv.Cache.load(path, llama)


# ---- damage


class Bomb:
    def __reduce__(self):
        return (os.mkdir, ("bomb-went-off",))


def test_a_file_of_another_program_is_refused_and_never_executed(llama, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "cache"
    for data in (b"", b"{}", bytes(200), b"\xff" * 200, pickle.dumps(Bomb())):
        path.write_bytes(data)
        with pytest.raises(CacheFileError):
            agentkv.Cache.load(path, llama)
    torch.save({"keys": Bomb()}, path)
    with pytest.raises(CacheFileError):
        agentkv.Cache.load(path, llama)
    save_file({"layers.0.dense.keys": torch.zeros(4, 4)}, path)
    with pytest.raises(CacheFileError, match="not written by agentkv"):
        agentkv.Cache.load(path, llama)
    assert os.listdir(tmp_path) == ["cache"]


@pytest.fixture(scope="module")
def whole(tokens, tmp_path_factory):
    """A good file."""
    case, path = CASES["conf-kv-int8"], tmp_path_factory.mktemp("whole") / "cache"
    model = fresh("llama")
    used(model, tokens, case.make(), case.budget).save(path)
    return path.read_bytes()


@FAST
@given(data=st.data())
def test_a_damaged_file_is_refused(llama, whole, tmp_path, data):
    good, path = whole, tmp_path / "damaged"
    header = 8 + int.from_bytes(good[:8], "little")
    bad = bytearray(good)
    for _ in range(data.draw(st.integers(1, 3))):
        # the header is small, and most of what can be misread is in it
        place = data.draw(st.one_of(st.integers(0, header), st.integers(0, len(bad) - 1)))
        bad[place] = data.draw(st.integers(0, 255).filter(lambda b, old=bad[place]: b != old))
    cut = data.draw(st.sampled_from([0, 0, 0, 1, 100, len(bad) // 2]))
    path.write_bytes(bytes(bad[: len(bad) - cut]))
    try:
        loaded = agentkv.Cache.load(path, llama)
    except CacheFileError:
        return
    # two changes may cancel out, and any kind of blank may follow the header
    assert cut == 0 and bytes(bad[header:]) == good[header:]
    path.write_bytes(good)
    assert_same(loaded, agentkv.Cache.load(path, llama))


def rewrite(path, change):
    """Alter what a file says and give it a correct digest, as an attacker would."""
    text, tensors = read(path)
    tensors, saved = {name: t.clone() for name, t in tensors.items()}, json.loads(text)
    change(saved["state"], tensors, saved)
    write(path, json.dumps(saved), tensors)


def set_in(*path, to):
    def change(state, tensors, saved):
        for step in path[:-1]:
            state = state[step]
        state[path[-1]] = to

    return change


def tensor(name, change):
    def alter(state, tensors, saved):
        tensors[name] = change(tensors[name])

    return alter


def setting(key, to):
    return lambda state, tensors, saved: saved.__setitem__(key, to)


HOSTILE = {
    "more sequences": set_in("fed", to=[101, 101, 101]),
    "no sequence": set_in("fed", to=[]),
    "no layer": set_in("layers", to=[]),
    "a position nobody saw": tensor(f"layers.1.metadata.{POSITION}", lambda t: t + 50),
    "a position below 0": tensor(f"layers.1.metadata.{POSITION}", lambda t: t - 120),
    "one position for all": tensor(f"layers.1.metadata.{POSITION}", lambda t: t * 0),
    "a block without a scale": tensor(f"layers.0.codes.{BLOCK_IDS}", lambda t: t + 9),
    "a block below 0": tensor(f"layers.0.codes.{BLOCK_IDS}", lambda t: t - 1),
    "a statistic that is none": tensor(f"layers.3.metadata.{TRACKED}", lambda t: t * torch.nan),
    "keys of another dtype": tensor(f"layers.0.dense.{KEYS}", lambda t: t.to(torch.float16)),
    "keys of another shape": tensor(f"layers.0.dense.{KEYS}", lambda t: t[:-1]),
    "a tensor too many": lambda s, t, saved: t.update(more=torch.zeros(3)),
    "a field too many": lambda s, t, saved: t.update({"layers.0.dense.2": torch.zeros(3)}),
    "a tensor too few": lambda s, t, saved: t.pop(f"layers.2.dense.{VALUES}"),
    "ids of fewer tokens": tensor("ids", lambda t: t[:, 1:].contiguous()),
    "ids of another dtype": tensor("ids", lambda t: t.float()),
    "a capacity too large": set_in("layers", 0, "extents", "dense", 0, 2, to=10**9),
    "a capacity too small": set_in("layers", 0, "extents", "dense", 0, 2, to=1),
    "entries below 0": set_in("layers", 0, "extents", "dense", 0, 1, to=-1),
    "entries before the first": set_in("layers", 0, "extents", "dense", 0, 0, to=-1),
    "another table": set_in("layers", 0, "extents", "more", to=[]),
    "no table": set_in("layers", 0, "extents", to={}),
    "a segment too few": lambda state, t, saved: state["layers"][0]["extents"]["metadata"].pop(),
    "another dtype": set_in("layers", 0, "dtype", to="int64"),
    "half the dtype": set_in("layers", 0, "dtype", to="float16"),
    "a scale that is none": set_in("layers", 0, "scale", to=float("nan")),
    "more steps than tokens": set_in("layers", 0, "num_steps", to=500),
    "a quality of nobody": set_in("layers", 0, "qualities", to={"2": 1.0}),
    "nothing seen": set_in("seen", to=0),
    "fed more than seen": set_in("fed", to=[500, 500]),
    "fed nothing": set_in("fed", to=[0, 0]),
    "all of it new": set_in("num_new", to=10**6),
    "confidence of one": set_in("confidences", to=[0.5]),
    "learned something": set_in("learned", to={"": [1, [1.0, 1.0, 1.0, 1.0]]}),
    "an unknown field": set_in("more", to=1),
    "no budget": lambda s, t, saved: saved.pop("budget"),
    "a budget below 0": setting("budget", -3),
    "a share of all": setting("budget", {"of_seen": 7.0, "floor": 0}),
    "a share with an endless floor": setting("budget", {"of_seen": 0.5, "floor": 10**30}),
    "bytes below 0": setting("budget", {"count": -3}),
    "a tiny budget": setting("budget", 1),
    "no chunk": setting("chunk", 0),
    "no policy": setting("policy", "null"),
    "an unknown policy": setting("policy", '{"name":"best","parameters":{},"parts":{}}'),
    "unknown parts": setting("policy", '{"name":"full","parameters":{},"parts":{"gate":"open"}}'),
    "a model that is none": setting("model", []),
    "an unknown config": lambda s, t, saved: saved["model"].update({"config (more)": 1}),
}


@pytest.mark.parametrize("change", HOSTILE)
def test_a_file_that_contradicts_itself_is_refused_before_it_is_used(
    llama, whole, tmp_path, change
):
    path = tmp_path / "cache"
    path.write_bytes(whole)
    rewrite(path, HOSTILE[change])
    with pytest.raises(CacheFileError):
        agentkv.Cache.load(path, llama)


@pytest.mark.parametrize("text", ["", "[]", "[" * 100_000, '{"more": 1}'])
def test_a_file_without_a_valid_state_is_refused(llama, tmp_path, text):
    write(tmp_path / "cache", text, {})
    with pytest.raises(CacheFileError, match="invalid"):
        agentkv.Cache.load(tmp_path / "cache", llama)


def test_energies_of_another_model_are_refused(llama, tokens, tmp_path):
    used(llama, tokens, agentkv.policy("edie-tada", **SMALL), 24).save(tmp_path / "cache")
    rewrite(tmp_path / "cache", set_in("learned", "", to=[3, [1.0, 2.0]]))
    with pytest.raises(CacheFileError, match="2 layers"):
        agentkv.Cache.load(tmp_path / "cache", llama)


def leaves(value, path=()):
    if isinstance(value, dict | list):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from leaves(inner, (*path, key))
    else:
        yield path


@FAST
@given(data=st.data())
def test_a_file_with_any_altered_value_is_refused_or_makes_a_working_cache(
    llama, tokens, tmp_path, data
):
    whole, path = tmp_path / "whole", tmp_path / "altered"
    if not whole.exists():
        used(llama, tokens, agentkv.policy("arkv", **SMALL), 30, length=60).save(whole)
    path.write_bytes(whole.read_bytes())
    anything = st.sampled_from([None, 0, 1, 2, 3, 31, -1, 2**31, 10**30, 0.5, "", [], {}, True])

    def change(state, tensors, saved):
        found = data.draw(st.sampled_from(list(leaves(state))))
        set_in(*found, to=data.draw(anything))(state, tensors, saved)

    rewrite(path, change)
    try:
        loaded = agentkv.Cache.load(path, llama)
    except CacheFileError:
        return
    loaded.check()
    loaded.feed(llama, tokens(2, 3))
    loaded.check()
