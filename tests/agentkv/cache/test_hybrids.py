"""Models with recurrent layers: their state goes wherever the cache goes, and policies act on the
layers that attend."""

import copy

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    DeepseekV3Config,
    DeepseekV3ForCausalLM,
    DynamicCache,
)
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

import agentkv
from agentkv.cache.hf.families import UnsupportedModel, describe
from agentkv.cache.hf.layer_kinds import state_nbytes
from agentkv.cache.misuse import Misuse
from agentkv.cache.packed import PackedForward
from agentkv.policies.entries import PolicyError
from tests.agentkv.cache.caches_in_use import assert_same
from tests.agentkv.cache.conftest import SIZES, Judge
from tests.agentkv.cache.hybrids import HYBRIDS, fresh
from tests.agentkv.cache.policies_under_test import CASES
from tests.sampling import sampled

CLOSE = {"atol": 2e-4, "rtol": 2e-4}
CHUNKS = [37, 1, 1, 1, 9, 1, 1]
"""A prompt, a reply, an observation, a reply; a forward each."""


@pytest.fixture(params=HYBRIDS)
def family(request):
    return request.param


some_families = pytest.mark.parametrize("family", sampled(HYBRIDS, every=3))


@pytest.fixture
def model(family):
    return fresh(family)


@pytest.fixture
def lfm2():
    return fresh("lfm2")


@pytest.fixture
def qwen():
    return fresh("qwen3_next")


def own_cache(model):
    return DynamicCache(config=model.config)


@torch.no_grad()
def logits_of(model, cache, ids, chunks, mask=None):
    """Logits (B, V) after each chunk, as `generate` numbers the positions."""
    found, start = [], 0
    for stop in torch.tensor(chunks).cumsum(0).tolist():
        more = {}
        if mask is not None:
            places = (mask[:, :stop].cumsum(1) - 1).clamp_min(0)[:, start:stop]
            more = {"attention_mask": mask[:, :stop], "position_ids": places}
        out = model(ids[:, start:stop], past_key_values=cache, use_cache=True, **more)
        found.append(out.logits[:, -1])
        start = stop
    return torch.stack(found)


# ---- the model's own cache


def test_full_is_the_models_own_cache(family, model, cache_for, tokens):
    own, ids = fresh(family), tokens(2, sum(CHUNKS))
    expected = logits_of(own, own_cache(own), ids, CHUNKS)
    cache = cache_for(model, policy="full")
    torch.testing.assert_close(logits_of(model, cache, ids, CHUNKS), expected, **CLOSE)
    cache.check()
    in_pieces = cache_for(model, policy="full", chunk=8)
    model_logits = in_pieces.feed(model, ids[:, :37])
    torch.testing.assert_close(model_logits, expected[0], **CLOSE)


@some_families
def test_chunks_of_any_length_give_the_same_state(family, model, cache_for, tokens):
    ids = tokens(2, 26)
    at_once, in_chunks, one_by_one = (cache_for(model, policy="full") for _ in range(3))
    expected = logits_of(model, at_once, ids, [25, 1])[-1]
    for cache, chunks in ((in_chunks, [1, 2, 9, 13, 1]), (one_by_one, [1] * 26)):
        torch.testing.assert_close(logits_of(model, cache, ids, chunks)[-1], expected, **CLOSE)
    for i, layer in at_once.recurrent.items():
        for name, state in layer.copies().items():
            for cache in (in_chunks, one_by_one):
                torch.testing.assert_close(cache.recurrent[i].state(name), state, **CLOSE)


def test_a_sequence_is_the_same_alone_and_left_padded_in_a_batch(family, model, cache_for, tokens):
    ids = tokens(2, sum(CHUNKS))
    mask = torch.ones_like(ids)
    mask[0, :11] = 0
    own = fresh(family)
    cache = cache_for(model, policy="full")
    found = logits_of(model, cache, ids * mask, CHUNKS, mask)
    expected = logits_of(own, own_cache(own), ids * mask, CHUNKS, mask)
    torch.testing.assert_close(found, expected, **CLOSE)
    alone = cache_for(model, policy="full")
    shorter = logits_of(model, alone, ids[:1, 11:], [CHUNKS[0] - 11, *CHUNKS[1:]])
    torch.testing.assert_close(found[:, :1], shorter, **CLOSE)
    cache.check()


@some_families
def test_padding_longer_than_a_forward_leaves_the_state_empty(family, model, cache_for, tokens):
    ids = tokens(2, 30)
    mask = torch.ones_like(ids)
    mask[0, :20] = 0
    cache, alone = cache_for(model, policy="full"), cache_for(model, policy="full")
    found = logits_of(model, cache, ids, [8, 8, 8, 6], mask)[-1]
    expected = logits_of(model, alone, ids[:1, 20:], [4, 6])[-1]
    torch.testing.assert_close(found[:1], expected, **CLOSE)


SETTINGS = {
    "greedy": {"do_sample": False},
    "sampled": {"do_sample": True, "temperature": 0.8},
    "beams": {"do_sample": False, "num_beams": 3},
}


@pytest.mark.parametrize("how", SETTINGS)
@pytest.mark.sample("values")
def test_generate_is_that_of_the_models_own_cache_in_two_turns(
    family, model, cache_for, tokens, how
):
    own = fresh(family)
    cache, reference = cache_for(model, policy="full"), own_cache(own)
    ids = tokens(1, 13)
    for turn in range(1 if how == "beams" else 2):
        torch.manual_seed(3)
        found = model.generate(ids, past_key_values=cache, max_new_tokens=6, **SETTINGS[how])
        torch.manual_seed(3)
        expected = own.generate(ids, past_key_values=reference, max_new_tokens=6, **SETTINGS[how])
        assert torch.equal(found, expected)
        ids = torch.cat([found, tokens(1, 5, seed=turn + 1)], dim=1)
    cache.check()


def test_a_model_without_weights_has_the_same_geometry(family, model):
    assert describe(fresh(family).to("meta")) == describe(model)


# ---- policies


class HybridJudge(Judge):
    """A full cache of every layer, in which entries of layers that attend are hidden."""

    def __init__(self, name):
        self.model = fresh(name)
        geometry = describe(self.model)
        attending = dict(zip(geometry.hybrid.attending, geometry.layers, strict=True))
        num_layers = geometry.hybrid.num_layers
        self.layers = [attending.get(i, geometry.layers[0]) for i in range(num_layers)]
        self.sources = range(num_layers)
        self.model.set_attn_implementation("judge")
        self.cache = own_cache(self.model)
        self.cache.layers = [
            DynamicLayer() if isinstance(layer, DynamicSlidingWindowLayer) else layer
            for layer in self.cache.layers
        ]


def by_decoder_layer(cache):
    """What each layer that attends keeps, at its place among the decoder layers."""
    hybrid = cache.geometry.hybrid
    kept = {i: cache.kept(n) for n, i in enumerate(hybrid.attending)}
    return [kept.get(i, cache.kept(0)) for i in range(hybrid.num_layers)]


POLICIES = ["window", "streaming", "h2o", "snapkv", "ada-snapkv", "critical-snapkv", "edie"]
POLICIES += ["conf-kv", "expected-attention", "tova", "keydiff"]


@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.sample("values")
def test_logits_are_those_of_a_full_cache_with_the_evicted_hidden(
    family, model, cache_for, tokens, name
):
    case, ids = CASES[name], tokens(2, 110)
    cache, judge = cache_for(model, policy=case.make(), budget=case.budget), HybridJudge(family)
    kept, start = None, 0
    for num_tokens in (60, 1, 1, 8, 1, 1, 30, 1):
        new = ids[:, start : start + num_tokens]
        with torch.no_grad():
            logits = model(new, past_key_values=cache).logits
        torch.testing.assert_close(logits, judge.logits(new, kept), **CLOSE)
        cache.apply_gate(logits[:, -1])
        cache.check()
        kept = by_decoder_layer(cache)
        start += num_tokens
    assert cache.num_evicted > 0


def test_a_budget_counts_the_layers_that_attend(qwen, cache_for, tokens):
    cache = cache_for(qwen, policy=CASES["pyramidkv"].make(), budget=20)
    cache.feed(qwen, tokens(1, 60))
    assert len(cache.cache_layers) == 2  # of three decoder layers
    assert [len(cache.kept(i)[0][0]) for i in range(2)] != [20, 20]
    assert sum(len(cache.kept(i)[0][0]) for i in range(2)) == 40
    assert cache.num_holders()[1] == 2 * qwen.config.num_key_value_heads


def test_a_policy_that_learns_reads_the_layers_that_attend(cache_for, tokens):
    jamba = fresh("jamba")
    cache = cache_for(jamba, policy=CASES["edie-tada"].make(), budget=24)
    cache.feed(jamba, tokens(1, 60))
    cache.feed(jamba, tokens(1, 20))
    cache.check()
    with pytest.raises(PolicyError, match="granitemoehybrid adds a multiple"):
        cache_for(fresh("granitemoehybrid"), policy=CASES["edie-tada"].make(), budget=24)


# ---- copies, files, batches


def spoiled(model, cache, tokens):
    """Logits of tokens that the cache should not have seen."""
    return cache.feed(model, tokens(cache.batch_size, 6, seed=9))


def continued(model, cache, tokens):
    return [cache.feed(model, tokens(cache.batch_size, n, seed=n)) for n in (1, 7, 1)]


@pytest.mark.parametrize("name", ["int8", "h2o"])
@pytest.mark.sample("values")
def test_copies_snapshots_and_files_go_on_exactly(family, model, cache_for, tokens, tmp_path, name):
    case = CASES[name]
    cache = cache_for(model, policy=case.make(), budget=case.budget)
    cache.feed(model, tokens(2, 60))
    cache.feed(model, tokens(2, 1))
    snapshot, twin = cache.snapshot(), copy.deepcopy(cache)
    cache.save(tmp_path / "cache")
    loaded = agentkv.Cache.load(tmp_path / "cache", model)
    for other in (twin, loaded):
        other.check()
        assert_same(other, cache)
        assert other.recurrent_nbytes == cache.recurrent_nbytes > 0
    states = [state for layer in cache.recurrent.values() for state in layer.copies().values()]
    assert snapshot.nbytes > sum(state.untyped_storage().nbytes() for state in states)
    expected = continued(model, cache, tokens)
    for other in (twin, loaded):
        for found, logits in zip(continued(model, other, tokens), expected, strict=True):
            assert torch.equal(found, logits)
    for _ in range(2):
        spoiled(model, cache, tokens)
        cache.restore(snapshot)
        cache.check()
        assert torch.equal(torch.stack(continued(model, cache, tokens)), torch.stack(expected))


@some_families
def test_sequences_are_dropped_repeated_and_reordered_with_their_states(
    family, model, cache_for, tokens
):
    ids = tokens(3, 30)
    cache = cache_for(model, policy="full")
    cache.feed(model, ids)
    cache.reorder_cache(torch.tensor([2, 0, 0]))
    cache.batch_select_indices(torch.tensor([0, 2]))
    cache.batch_repeat_interleave(2)
    cache.check()
    assert cache.batch_size == 4
    new = tokens(4, 5, seed=1)
    found = cache.feed(model, new)
    for row, source in enumerate([2, 2, 0, 0]):
        alone = cache_for(model, policy="full")
        alone.feed(model, ids[source : source + 1])
        torch.testing.assert_close(found[row], alone.feed(model, new[row : row + 1])[0], **CLOSE)


@some_families
def test_bytes_are_those_of_entries_and_states(family, model, cache_for, tokens):
    cache = cache_for(model, policy="window", budget=24)
    cache.feed(model, tokens(2, 40))
    first = cache.recurrent_nbytes
    cache.feed(model, tokens(2, 40))
    held = {
        state.untyped_storage().data_ptr(): state.untyped_storage().nbytes()
        for layer in cache.recurrent.values()
        for kind in ("conv 0", "recurrent 0")
        if (state := layer.state(kind)) is not None
    }
    assert cache.recurrent_nbytes == first == sum(held.values())
    assert cache.nbytes == cache.meter.live == first + sum(x.nbytes for x in cache.cache_layers)
    assert cache.peak_nbytes >= cache.nbytes
    before = cache.nbytes
    cache.batch_repeat_interleave(3)
    cache.check()
    assert cache.recurrent_nbytes == 3 * first
    assert cache.peak_nbytes >= cache.nbytes > before
    cache.reset()
    cache.check()
    assert cache.nbytes == 0
    again, anew = cache.feed(model, tokens(2, 9)), cache_for(model, policy="window", budget=24)
    assert torch.equal(again, anew.feed(model, tokens(2, 9)))


@some_families
def test_a_plan_counts_the_states_without_weights(family, model, cache_for, tokens):
    with torch.device("meta"):
        planned = AutoModelForCausalLM.from_config(model.config)
    cache = cache_for(model, policy="full")
    cache.feed(model, tokens(1, 5))
    assert state_nbytes(planned) == cache.recurrent_nbytes


def test_states_keep_the_models_dtype_whatever_that_of_entries(qwen, cache_for, tokens):
    single = cache_for(qwen, policy="full")
    half = cache_for(qwen, policy="full", dtype="bfloat16")
    for cache in (single, half):
        cache.feed(qwen, tokens(1, 20))
    assert half.recurrent_nbytes == single.recurrent_nbytes
    assert half.nbytes < single.nbytes


def test_a_cache_that_was_fed_in_inference_mode_is_fed_outside_of_it(lfm2, cache_for, tokens):
    cache = cache_for(lfm2, policy="full")
    with torch.inference_mode():
        cache.feed(lfm2, tokens(1, 20))
        cache.feed(lfm2, tokens(1, 1))
    cache.feed(lfm2, tokens(1, 1))
    lfm2(tokens(1, 1), past_key_values=cache)
    cache.feed(lfm2, tokens(1, 4))
    assert not any(
        state.requires_grad
        for layer in cache.recurrent.values()
        for state in layer.copies().values()
    )


def test_a_forward_that_did_not_end_spoils_the_cache_until_it_is_restored(lfm2, cache_for, tokens):
    cache = cache_for(lfm2, policy="full")
    cache.feed(lfm2, tokens(1, 20))
    snapshot, expected = cache.snapshot(), copy.deepcopy(cache).feed(lfm2, tokens(1, 3))

    def fail(*args):
        raise RuntimeError("no memory")

    hook = lfm2.model.layers[1].register_forward_pre_hook(fail)  # after a convolution
    with pytest.raises(RuntimeError, match="no memory"):
        cache.feed(lfm2, tokens(1, 3))
    hook.remove()
    with pytest.raises(Misuse, match="did not end"):
        cache.feed(lfm2, tokens(1, 3))
    cache.restore(snapshot)
    assert torch.equal(cache.feed(lfm2, tokens(1, 3)), expected)


# ---- what recurrent states rule out


def test_tokens_are_not_forgotten_one_by_one(lfm2, cache_for, tokens):
    cache = cache_for(lfm2, policy="full")
    cache.feed(lfm2, tokens(1, 20))
    assert not cache.is_croppable
    with pytest.raises(Misuse, match="cannot forget its newest 3 tokens: .*recurrent state"):
        cache.crop(-3)
    with pytest.raises(Misuse, match="cannot drop tokens: .*recurrent state"):
        cache.drop(range(3, 6))
    with pytest.raises(Misuse, match="cannot take back the drafts .*recurrent state"):
        cache.activate_past_recording()
    cache.crop(0)
    cache.check()
    assert cache.seen == 20


def test_a_policy_that_looks_back_is_refused(lfm2, cache_for):
    with pytest.raises(PolicyError, match="recurrent layers of lfm2 would take it in twice"):
        cache_for(lfm2, policy="lookback-int8")


def test_a_budget_in_bytes_is_refused(lfm2, cache_for):
    with pytest.raises(PolicyError, match="recurrent states of lfm2 have a size"):
        cache_for(lfm2, policy="window", budget="1MiB")


@pytest.mark.parametrize("hidden", [range(5, 9), range(26, 30)])
def test_padding_after_a_token_is_refused(lfm2, cache_for, tokens, hidden):
    cache, ids = cache_for(lfm2, policy="full"), tokens(2, 30)
    mask = torch.ones_like(ids)
    mask[0, list(hidden)] = 0
    with pytest.raises(Misuse, match="pad on the left, in the first turn"):
        cache.feed(lfm2, ids, mask)
    cache.check()
    assert cache.seen == 0
    cache.feed(lfm2, ids)


def test_padding_in_a_later_turn_or_in_a_forward_of_one_column_is_refused(lfm2, cache_for, tokens):
    cache, mask = cache_for(lfm2, policy="full"), torch.ones(2, 25)
    mask[0, 20:22] = 0
    cache.feed(lfm2, tokens(2, 20))
    with pytest.raises(Misuse, match="pad on the left, in the first turn"):
        cache.feed(lfm2, tokens(2, 5), mask)
    with pytest.raises(Misuse, match="in a forward of several columns"):
        cache_for(lfm2, policy="full").feed(lfm2, tokens(2, 1), torch.tensor([[0], [1]]))
    cache.feed(lfm2, tokens(2, 5))


@some_families
def test_caches_share_forwards_of_one_token_each(family, model, cache_for, tokens):
    policies = [("full", 2), ("window", 1), ("full", 1)]
    shared, alone = (
        [
            cache_for(model, policy=name, budget=None if name == "full" else 24)
            for name, _ in policies
        ]
        for _ in range(2)
    )
    for caches in (shared, alone):
        for n, (cache, (_, batch)) in enumerate(zip(caches, policies, strict=True)):
            cache.feed(model, tokens(batch, 20 + 9 * n, seed=n))
    for step in range(3):
        new = [tokens(batch, 1, seed=step + n) for n, (_, batch) in enumerate(policies)]
        packed = PackedForward(model, shared, new)
        found = packed.read()
        assert packed.errors == [None] * 3
        expected = [cache.feed(model, ids) for cache, ids in zip(alone, new, strict=True)]
        torch.testing.assert_close(found, torch.cat(expected), **CLOSE)
    for cache, other in zip(shared, alone, strict=True):
        cache.check()
        assert_same(cache, other)
        assert cache.recurrent_nbytes == other.recurrent_nbytes


def test_caches_of_a_hybrid_are_fed_several_tokens_one_at_a_time(lfm2, cache_for, tokens):
    caches = [cache_for(lfm2, policy="full") for _ in range(2)]
    with pytest.raises(Misuse, match="several tokens, or a first one, of one cache at a time"):
        PackedForward(lfm2, caches, [tokens(1, 4)] * 2)
    with pytest.raises(Misuse, match="several tokens, or a first one, of one cache at a time"):
        PackedForward(lfm2, caches, [tokens(1, 1)] * 2)
    alone = PackedForward(lfm2, caches[:1], [tokens(1, 4)]).read()
    assert torch.equal(alone, caches[1].feed(lfm2, tokens(1, 4)))


def test_families_that_store_something_else_are_refused_by_its_name():
    sizes = SIZES | {"num_hidden_layers": 2}
    own = {"kv_lora_rank": 8, "q_lora_rank": 8, "qk_nope_head_dim": 8, "qk_rope_head_dim": 8}
    own |= {"v_head_dim": 8, "first_k_dense_replace": 2, "n_routed_experts": 2, "n_group": 1}
    with pytest.raises(UnsupportedModel, match="caches latents .kv_lora_rank."):
        describe(DeepseekV3ForCausalLM(DeepseekV3Config(**sizes, **own)))
