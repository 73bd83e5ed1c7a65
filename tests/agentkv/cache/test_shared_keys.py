"""Layers that attend to the keys and values of an earlier layer (Gemma 3n, small Gemma 4)."""

import copy

import pytest
import torch
from transformers import DynamicCache, Gemma3nTextModel
from transformers import __version__ as transformers_version

import agentkv
from agentkv.cache.hf.families import UnsupportedModel, attentions, describe
from agentkv.cache.hf.reading import read_layers
from agentkv.policies.entries import PolicyError
from agentkv.policies.recall import Always, Unsure
from tests.agentkv.cache.caches_in_use import assert_same, feed_packed
from tests.agentkv.cache.conftest import Judge
from tests.agentkv.cache.every_family import changed, tiny
from tests.agentkv.cache.policies_under_test import CASES
from tests.agentkv.cache.test_lookback import EVERYTHING, beside_a_full_cache, cache_of, looking

CLOSE = {"atol": 2e-4, "rtol": 2e-4}
IS_OLDEST = transformers_version.startswith("4.")
FAMILIES = ["gemma3n_text"] if IS_OLDEST else ["gemma3n_text", "gemma4_text E2B"]


@pytest.fixture(params=FAMILIES)
def family(request):
    return request.param


@pytest.fixture
def model(family):
    return tiny(family)


def ids_of(batch, length, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(1, 60, (batch, length), generator=generator)


def fed(model, name, batch=1, length=40, **options):
    case = CASES[name]
    cache = agentkv.Cache.for_model(model, policy=case.make(), budget=case.budget, **options)
    cache.feed(model, ids_of(batch, length))
    return cache


def own_of(family):
    """The model over transformers' own cache and attention, and that cache."""
    own = tiny(family)
    own.set_attn_implementation("eager")
    return own, DynamicCache(config=own.config)


# ---- what is stored


def test_only_layers_with_keys_of_their_own_are_layers_of_the_cache(family, model):
    geometry = describe(model)
    assert [each.window for each in geometry.layers] == [12, None]
    assert geometry.sources == (0, 0, 1)
    assert len(attentions(model)) == 2
    cache = agentkv.Cache.for_model(model, policy="full")
    cache.feed(model, ids_of(1, 40))
    assert [len(cache.kept(layer)[0][0]) for layer in range(2)] == [11, 40]


def test_layers_without_keys_of_their_own_take_no_bytes(family):
    kinds = ["sliding_attention", "full_attention"] * 2
    fewer = {"num_hidden_layers": 4, "num_kv_shared_layers": 2, "layer_types": kinds}
    fewer |= {"activation_sparsity_pattern": [0.9] * 4} if "gemma3n" in family else {}
    caches = [fed(model, "conf-kv-int8") for model in (tiny(family), changed(family, **fewer))]
    assert caches[0].nbytes == caches[1].nbytes
    assert caches[0].peak_nbytes == caches[1].peak_nbytes


class _Crossed(Gemma3nTextModel):
    def __init__(self, config):
        super().__init__(config)
        self.layers[4].self_attn.layer_type = "sliding_attention"


class _StoresLate(Gemma3nTextModel):
    def __init__(self, config):
        super().__init__(config)
        unshared = copy.deepcopy(config)
        unshared.num_kv_shared_layers = 0
        self.layers[4] = type(self.layers[4])(unshared, 4)
        self.layers[4].self_attn.config = config


@pytest.mark.skipif(IS_OLDEST, reason="this transformers shares keys by the number of a layer")
def test_keys_of_a_layer_with_another_window_are_refused():
    with pytest.raises(UnsupportedModel, match="keys of layer 0, which has another window"):
        read_layers(_Crossed, tiny("gemma3n_text").config)


def test_keys_that_are_stored_after_others_were_shared_are_refused():
    with pytest.raises(UnsupportedModel, match="stores keys after a layer that shares those of"):
        read_layers(_StoresLate, tiny("gemma3n_text").config)


# ---- when entries leave


@torch.no_grad()
@pytest.mark.parametrize(
    ("policy", "budget", "quantized"), [("window", 24, 0), ("int8", None, 128)]
)
def test_entries_leave_and_are_quantized_when_the_last_layer_has_attended(
    model, policy, budget, quantized
):
    def held_by(cache):
        layers = cache.cache_layers
        return [(each.num_held(0), sum(each.storage.num_quantized)) for each in layers]

    cache = agentkv.Cache.for_model(model, policy=policy, budget=budget)
    held = []
    last = list(model.model.layers)[-1]
    hook = last.register_forward_hook(lambda *args: held.append(held_by(cache)))
    for num_tokens in (200, 1):
        model(ids_of(1, num_tokens, seed=num_tokens), past_key_values=cache)
    hook.remove()
    least = budget or 201
    assert held == [[(200, 0), (200, 0)], [(12, 0), (min(least + 1, 201), quantized)]]
    assert held_by(cache) == [(11, 0), (least, quantized)]


@torch.no_grad()
def test_a_chunk_is_read_in_a_forward_of_its_own(family, model):
    cache = agentkv.Cache.for_model(model, policy="window", budget=24, chunk=8)
    assert cache.tokens_at_once(100) == 8
    judge, ids, kept = Judge(tiny(family)), ids_of(1, 50), None
    found = cache.feed(model, ids)
    for piece in ids.split(8, dim=1):
        expected = judge.logits(piece, kept)[:, -1]
        past = judge.cache.get_seq_length()
        kept = [[torch.arange(past)], [torch.arange(max(0, past - 24), past)]]
    torch.testing.assert_close(found, expected, **CLOSE)
    assert agentkv.Cache.for_model(model, policy="full", chunk=8).tokens_at_once(100) > 100


# ---- which tokens attend


@torch.no_grad()
@pytest.mark.parametrize("is_padded", [False, True])
def test_a_prompt_is_read_for_the_logits_of_its_last_token_alone(family, model, is_padded):
    (own, reference), ids = own_of(family), ids_of(2, 60)
    if is_padded:
        ids[0, :9] = 0
    cache, mask = agentkv.Cache.for_model(model, policy="full"), (ids != 0).long()
    places = (mask.cumsum(-1) - 1).clamp_min(0)
    for start, stop in ((0, 40), (40, 41), (41, 60)):
        new = slice(start, stop)
        given = {"attention_mask": mask[:, :stop], "position_ids": places[:, new]}
        expected = own(ids[:, new], past_key_values=reference, **given).logits[:, -1]
        found = cache.feed(model, ids[:, new], mask[:, :stop] if is_padded else None)
        torch.testing.assert_close(found, expected, **CLOSE)


@torch.no_grad()
@pytest.mark.parametrize("num_logits", [1, 3])
def test_any_number_of_logits_may_be_kept(family, model, num_logits):
    (own, reference), ids = own_of(family), ids_of(2, 50)
    cache = agentkv.Cache.for_model(model, policy="full")
    for piece in ids.split([30, 20], dim=1):
        expected = own(piece, past_key_values=reference).logits[:, -num_logits:]
        found = model(piece, past_key_values=cache, logits_to_keep=num_logits).logits
        torch.testing.assert_close(found, expected, **CLOSE)


@torch.no_grad()
def test_a_left_padded_batch_is_generated_as_each_row_alone(family, model):
    ids = ids_of(2, 30)
    ids[0, :9] = 0
    settings = {"max_new_tokens": 8, "do_sample": False}
    cache = agentkv.Cache.for_model(model, policy="full")
    made = model.generate(ids, attention_mask=(ids != 0).long(), past_key_values=cache, **settings)
    own, reference = own_of(family)
    alone = own.generate(ids[:1, 9:], past_key_values=reference, **settings)
    assert torch.equal(made[0, 30:], alone[0, 21:])


@pytest.mark.skipif(IS_OLDEST, reason="this transformers has no Gemma 4")
def test_layers_that_share_keys_skip_tokens_whose_logits_nobody_asks_for():
    model, seen = tiny("gemma4_text E2B"), []
    cache = agentkv.Cache.for_model(model, policy="full")
    for layer in model.model.layers:
        layer.register_forward_pre_hook(lambda layer, args: seen.append(args[0].shape[1]))
    cache.feed(model, ids_of(1, 30))
    assert seen == [30, 30, 1, 1, 1]


def test_a_mask_of_four_dimensions_is_refused(model):
    cache = agentkv.Cache.for_model(model, policy="full")
    with pytest.raises(ValueError, match="a padding mask has 2 dimensions"):
        model(
            ids_of(1, 4),
            attention_mask=torch.ones(1, 1, 4, 4).tril().bool(),
            past_key_values=cache,
        )


# ---- what else a cache does


@torch.no_grad()
@pytest.mark.parametrize("name", ["conf-kv-int8", "snapkv", "full"])
def test_packed_caches_are_each_as_alone(family, model, name):
    lengths = (40, 33)
    alone, shared = ([fed(model, name, length=n) for n in lengths] for _ in range(2))
    for step, counts in enumerate([(1, 1), (7, 1), (1, 1)]):
        new = [ids_of(1, n, seed=step + i) for i, n in enumerate(counts)]
        found = feed_packed(model, shared, new)
        assert found.errors == (None, None)
        expected = [cache.feed(model, ids) for cache, ids in zip(alone, new, strict=True)]
        torch.testing.assert_close(found.logits, torch.cat(expected), **CLOSE)
    for cache, other in zip(shared, alone, strict=True):
        cache.check()
        assert cache.confidences == pytest.approx(other.confidences, abs=1e-4)
        cache.confidences = other.confidences
        assert_same(cache, other)


def test_a_copy_goes_on_as_the_cache(model):
    cache = fed(model, "conf-kv-int8", batch=2)
    twin = copy.deepcopy(cache)
    new = ids_of(2, 5, seed=1)
    assert torch.equal(twin.feed(model, new), cache.feed(model, new))
    assert_same(twin, cache)


@torch.no_grad()
def test_a_forward_that_did_not_end_is_taken_back_by_restoring(model):
    cache, twin = fed(model, "conf-kv-int8"), fed(model, "conf-kv-int8")
    before, new = cache.snapshot(), ids_of(1, 5, seed=1)

    def fail(*args):
        raise RuntimeError("out of memory")

    handle = model.model.layers[-1].register_forward_hook(fail)
    with pytest.raises(RuntimeError, match="out of memory"):
        model(new, past_key_values=cache)
    handle.remove()
    with pytest.raises(ValueError, match="did not end"):
        cache.feed(model, new)
    cache.restore(before)
    assert torch.equal(cache.feed(model, new), twin.feed(model, new))
    cache.check()


@torch.no_grad()
def test_looking_at_all_entries_is_attention_over_everything(model):
    found, expected, num_looks = beside_a_full_cache(model, ids_of, budget=20)
    torch.testing.assert_close(found, expected, **CLOSE)
    assert num_looks == 2 * 16


@torch.no_grad()
def test_layers_attend_to_what_the_layer_with_the_keys_has_promoted(family, model):
    cache = cache_of(model, "window", Always(), blocks=2, block=4, format="dense")
    cache.feed(model, ids_of(1, 40))
    before = [each.storage.positions(0).tolist() for each in cache.cache_layers]
    held = []
    hook = model.model.layers[-1].register_forward_hook(
        lambda *args: held.append(cache.cache_layers[1].storage.positions(0).tolist())
    )
    found = cache.feed(model, ids_of(1, 1, seed=1))
    hook.remove()
    assert cache.num_looks == 2 and len(held) == 2
    promoted = set(held[1]) - set(before[1]) - {40}
    assert len(promoted) == 8
    judge = Judge(tiny(family))
    judge.logits(ids_of(1, 40), None)
    everything = torch.arange(40)
    seen = torch.tensor(sorted({*held[1]} - {40}))
    expected = judge.logits(ids_of(1, 1, seed=1), [[everything], [seen]])
    torch.testing.assert_close(found, expected[:, -1], **CLOSE)


@pytest.mark.skipif(IS_OLDEST, reason="this transformers does not announce assisted decoding")
@pytest.mark.parametrize("name", ["full", "window"])
def test_prompt_lookup_says_what_plain_decoding_says(family, model, name):
    ids = ids_of(1, 15).repeat(1, 4)
    settings = {"max_new_tokens": 20, "do_sample": False, "eos_token_id": None}
    wanted = model.generate(ids, **settings)
    budget = None if name == "full" else 200
    cache = agentkv.Cache.for_model(model, policy=name, budget=budget)
    made = model.generate(ids, past_key_values=cache, prompt_lookup_num_tokens=5, **settings)
    assert torch.equal(made[:, :80], wanted[:, :80])
    cache.check()


def test_a_policy_that_reads_one_residual_stream_is_refused_where_layers_mix_several():
    model = tiny("gemma3n_text")
    with pytest.raises(PolicyError, match="gemma3n_text mixes 4 residual streams in each layer"):
        agentkv.Cache.for_model(model, policy="edie-tada", budget=24)


def test_a_batch_looks_back_without_promoting(model):
    policy = looking("snapkv", Always(), promotes=False, **EVERYTHING)
    cache = agentkv.Cache.for_model(model, policy=policy, budget=24)
    cache.feed(model, ids_of(2, 60))
    cache.feed(model, ids_of(2, 1, seed=1))
    assert cache.num_looks == 4
    cache.check()


@torch.no_grad()
def test_layers_that_share_keys_read_the_cold_tier_too(family, model):
    own, past = own_of(family)
    cache = cache_of(model, "window", Unsure(), budget=20, reads="all", format="dense")
    for seed, count in enumerate((70, 40, 7, 40)):
        ids = ids_of(2, count, seed)
        expected = own(ids, past_key_values=past).logits[:, -1]
        torch.testing.assert_close(cache.feed(model, ids), expected, **CLOSE)
    assert all(cache.evictor.num_cold)
