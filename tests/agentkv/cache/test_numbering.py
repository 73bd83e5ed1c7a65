"""A cache that evicts outlives its model's positions: what it holds is renumbered."""

import copy
import inspect
import sys
from dataclasses import replace
from functools import partial

import pytest
import torch

import agentkv
from agentkv.cache.hf.compat import cache_in
from agentkv.cache.hf.forward import COMPILED, decoding
from agentkv.cache.look_back import SecondPass
from agentkv.cache.misuse import Misuse
from agentkv.cache.numbering import Numbering
from agentkv.cache.storage.turn_keys import turned
from agentkv_kernels.entries import DensePart
from agentkv_kernels.layout import KEYS
from tests.agentkv.cache.caches_in_use import assert_same, feed_packed
from tests.agentkv.cache.policies_under_test import CASES
from tests.sampling import sampled

MOST = 64
ROTARY = sampled(
    ["llama", "qwen2", "mistral", "gpt_oss", "qwen3", "mistral-window", "gemma3"], every=3
)
SCALINGS = {
    "linear": {"rope_type": "linear", "factor": 2.0},
    "llama3": {
        "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 32,
    },
    "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16},
}  # fmt: skip
ROUNDED = {None: 2e-4, "dense": 2e-4, "int8": 0.03, "fp8": 0.15, "int4": 0.35, "nf4": 0.4}
"""Largest deviation of a key after a few renumberings, relative to the largest key."""
PIECES = [40, 1, 1, 13, *[1] * 4, 16, 3, *[1] * 3, 7, 16, 16, 1, 1]


# ---- the numbers


def held(num_seen, *runs):
    marked = torch.zeros(num_seen, dtype=torch.bool)
    for start, stop in runs:
        marked[start:stop] = True
    return marked


def numbers(numbering, *positions):
    return numbering.of(torch.tensor(positions)).tolist()


def test_positions_without_an_entry_do_not_count():
    first = Numbering()
    assert numbers(first, 0, 5, 99) == [0, 5, 99]
    new = first.renewed(held(60, (0, 4), (30, 33), (50, 60)), most=64, num_new=8, may_share=True)
    assert numbers(new, 0, 3, 30, 32) == [0, 3, 4, 6]
    assert numbers(new, 50, 59, 60, 70) == [13, 22, 23, 33]
    again = new.renewed(held(101, (0, 4), (90, 101)), most=64, num_new=8, may_share=True)
    assert numbers(again, 3, 85, 90, 100, 101) == [3, 4, 9, 19, 20]


def test_the_latest_quarter_keeps_its_distances_whatever_is_held_of_it():
    new = Numbering().renewed(held(64, (0, 2), (63, 64)), most=64, num_new=1, may_share=True)
    assert numbers(new, 0, 1, 48, 50, 63, 64) == [0, 1, 2, 4, 17, 18]


def test_old_entries_share_positions_where_too_many_are_held():
    new = Numbering().renewed(held(64, (0, 64)), most=64, num_new=1, may_share=True)
    found = numbers(new, *range(65))
    assert found[:8] == [*range(8)]  # the first eighth
    assert found[48:] == [*range(found[48], found[48] + 17)]  # the latest quarter, and what comes
    assert found[8:48] == [8 + n // 8 for n in range(40)]  # 40 on 5 of the 8 between
    assert found[64] <= 32
    again = new.renewed(held(96, (0, 96)), most=64, num_new=1, may_share=True)
    after = numbers(again, *range(97))
    assert after == sorted(after) and after[:8] == [*range(8)] and after[96] <= 32


def test_without_leave_to_share_there_may_be_no_room():
    assert Numbering().renewed(held(64, (0, 64)), most=64, num_new=1, may_share=False) is None
    new = Numbering().renewed(held(64, (0, 60)), most=64, num_new=4, may_share=False)
    assert new is None  # the latest quarter counts
    new = Numbering().renewed(held(64, (10, 64)), most=64, num_new=4, may_share=False)
    assert numbers(new, 10, 63, 64) == [0, 53, 54]


def test_channels_without_a_frequency_are_not_turned():
    x = torch.randn(2, 3, 10)
    found = turned(x, torch.tensor([0, 1, -700]), (0.5, 0.01))
    assert torch.equal(found[..., 4:], x[..., 4:]) and torch.equal(found[:, 0], x[:, 0])
    pair = torch.complex(x[..., :2], x[..., 2:4])
    angles = torch.tensor([0, 1, -700])[:, None] * torch.tensor([0.5, 0.01])
    expected = pair * torch.polar(torch.ones(3, 2), angles)
    torch.testing.assert_close(found[..., :2], expected.real, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(found[..., 2:4], expected.imag, atol=1e-4, rtol=1e-4)


# ---- the keys


class Unrotated:
    """Notes what a model's keys are before rotary embedding, and embeds them at any position."""

    def __init__(self, model):
        self.model, self.layers = model, model.model.layers
        self.found = [[] for _ in self.layers]
        self.is_again = False
        model.model.register_forward_pre_hook(self.enter, with_kwargs=True)
        for found, layer in zip(self.found, self.layers, strict=True):
            last = getattr(layer.self_attn, "k_norm", layer.self_attn.k_proj)
            last.register_forward_hook(partial(self.note, found))

    def enter(self, module, args, kwargs):
        self.is_again = isinstance(cache_in(kwargs), SecondPass)

    def note(self, found, module, args, keys):
        if keys.dim() == 4 and self.model.config.model_type == "gemma3_text":
            keys = keys.transpose(1, 2)
        keys = keys.flatten(2).unflatten(2, (-1, self.layers[0].self_attn.head_dim))
        if self.is_again:  # the newest token's key is replaced
            found[-1] = torch.cat([found[-1][:, :-1], keys], dim=1)
        else:
            found.append(keys)

    def keys(self, layer, numbers):
        """(B, H, n, D): keys of tokens 0, 1, ... at rotary positions (n,)."""
        keys = torch.cat(self.found[layer], dim=1)[:, : numbers.shape[0]].transpose(1, 2)
        module = sys.modules[type(self.model).__module__]
        cosines, sines = self._angles(layer, numbers, keys)
        return module.apply_rotary_pos_emb(keys, keys, cosines, sines)[1]

    def _angles(self, layer, numbers, keys):
        inner = self.model.model
        rotary, more = inner.rotary_emb, ()
        kinds = getattr(self.model.config, "layer_types", None)
        if kinds is not None and "layer_type" in inspect.signature(rotary.forward).parameters:
            more = (kinds[layer],)
        elif kinds is not None and kinds[layer] == "sliding_attention":
            rotary = getattr(inner, "rotary_emb_local", rotary)
        return rotary(keys, numbers[None], *more)


def short(model, most=MOST):
    """The model, with so few positions."""
    model.config.max_position_embeddings = most
    return model


def assert_keys_are_turned(cache, unrotated, *, tolerance=2e-4):
    """Every stored key is its projection at its present number, relative to the largest key.

    Keys in float32 deviate by its rounding, whatever the tolerance, unless they may come from a
    cold tier that is quantized.
    """
    looks_back = cache.policy.recall.looks_back
    fed = cache.evictor.fed
    for i, layer in enumerate(cache.cache_layers):
        for sequence, num_seen in enumerate(fed):
            numbering = cache.numberings[sequence]
            expected = unrotated.keys(i, numbering.of(torch.arange(num_seen)))[sequence]
            tiers = [layer.storage] if layer.cold is None else [layer.storage, layer.cold.storage]
            for storage in tiers:
                for j, segment in enumerate(storage.segments(sequence)):
                    heads = slice(j, j + 1) if storage.layout.num_heads == 1 else slice(None)
                    for part in storage.parts(segment):
                        own = expected[heads, part.positions[0].long()]
                        error = (part.decode_keys()[0] - own).norm(dim=-1)
                        is_float32 = (
                            isinstance(part, DensePart) and part.keys.dtype == torch.float32
                        )
                        most = min(tolerance, 2e-4) if is_float32 and not looks_back else tolerance
                        assert (error <= most * own.norm(dim=-1).amax()).all()


def cache_of(model, policy="streaming", budget=24, **parameters):
    return agentkv.Cache.for_model(
        model, policy=agentkv.policy(policy, **parameters), budget=budget, dtype="float32"
    )


@torch.no_grad()
@pytest.mark.parametrize("family", ROTARY)
def test_stored_keys_are_projections_at_their_new_positions(family, model_of, tokens):
    model = short(model_of(family))
    unrotated, cache = Unrotated(model), cache_of(model)
    for piece in tokens(2, sum(PIECES)).split(PIECES, dim=1):
        cache.feed(model, piece)
        assert cache.num_positions <= MOST
        if cache.num_renumberings:
            assert_keys_are_turned(cache, unrotated)
            cache.check()
    assert cache.num_renumberings >= 2 * 2


@torch.no_grad()
@pytest.mark.parametrize("scaling", SCALINGS)
def test_it_is_so_with_scaled_frequencies(scaling, tokens):
    from transformers import LlamaConfig, LlamaForCausalLM

    from tests.agentkv.cache.conftest import SIZES

    rope = SCALINGS[scaling] | {"rope_theta": 100.0}
    torch.manual_seed(0)
    config = LlamaConfig(**SIZES, max_position_embeddings=MOST, rope_parameters=rope)
    model = LlamaForCausalLM(config).eval()
    assert (model.model.rotary_emb.attention_scaling != 1) == (scaling == "yarn")
    unrotated, cache = Unrotated(model), cache_of(model)
    for piece in tokens(1, sum(PIECES)).split(PIECES, dim=1):
        cache.feed(model, piece)
    assert cache.num_renumberings
    assert_keys_are_turned(cache, unrotated)


@torch.no_grad()
@pytest.mark.parametrize(
    "name", sampled((name for name in CASES if CASES[name].is_bounded), every=9)
)
def test_it_is_so_under_every_policy(name, model_of, tokens):
    model = short(model_of("llama"))
    unrotated = Unrotated(model)
    cache = agentkv.Cache.for_model(model, policy=CASES[name].make(), budget=CASES[name].budget)
    for piece in tokens(2, 240).split([100, *[1] * 5, 15, *[1] * 5, 115], dim=1):
        cache.feed(model, piece)
        cache.check()
    assert cache.num_renumberings
    form = cache.policy.precision.format
    if cache.policy.recall.looks_back:
        form = form or cache.policy.recall.format
    assert_keys_are_turned(cache, unrotated, tolerance=ROUNDED[form])


@torch.no_grad()
@pytest.mark.parametrize("form", ["int8", "fp8", "int4", "nf4"])
def test_quantized_keys_are_rounded_once_more_for_each_turn(form, model_of, tokens):
    model = short(model_of("llama"), 1024)
    unrotated = Unrotated(model)
    policy = agentkv.policy("streaming-int8", sinks=4, recent=64)
    policy = replace(policy, precision=replace(policy.precision, format=form))
    cache = agentkv.Cache.for_model(model, policy=policy, budget=400)
    cache.feed(model, tokens(1, 1000))
    before = copy.deepcopy(cache)
    cache.feed(model, tokens(1, 40, seed=1))
    assert (before.num_renumberings, cache.num_renumberings) == (0, 1)
    before.numberings = [Numbering()]
    tolerance = {"int8": 0.01, "fp8": 0.0625, "int4": 0.13, "nf4": 0.13}[form]
    assert_keys_are_turned(before, unrotated, tolerance=tolerance)
    assert_keys_are_turned(cache, unrotated, tolerance=1.5 * tolerance)


@torch.no_grad()
@pytest.mark.parametrize(("dtype", "step"), [("bfloat16", 2**-8), ("float16", 2**-11)])
def test_keys_of_16_bits_stay_near_their_projections_over_ten_renumberings(
    dtype, step, model_of, tokens
):
    model = short(model_of("llama"))
    unrotated = Unrotated(model)
    policy = agentkv.policy("streaming", sinks=12)
    cache = agentkv.Cache.for_model(model, policy=policy, budget=40, dtype=dtype)
    ids = tokens(1, 400)
    for piece in ids.split(16, dim=1):
        cache.feed(model, piece)
    assert cache.num_renumberings >= 10
    # rounded at most by half a unit in the last place each time, and once when stored
    tolerance = step * (1 + cache.num_renumberings)
    assert_keys_are_turned(cache, unrotated, tolerance=tolerance)


@torch.no_grad()
def test_what_does_not_move_stays_bit_for_bit(model_of, tokens):
    model = short(model_of("llama"))
    cache = cache_of(model, sinks=8)
    cache.feed(model, tokens(1, 60))
    storage = cache.cache_layers[1].storage
    first = storage.dense.entries(KEYS, 0)[:, :8].clone()
    cache.feed(model, tokens(1, 30, seed=1))
    assert cache.num_renumberings
    assert torch.equal(storage.dense.entries(KEYS, 0)[:, :8], first)


# ---- the model


@torch.no_grad()
@pytest.mark.parametrize("family", ROTARY)
@pytest.mark.parametrize("policy", ["streaming", "snapkv"])
@pytest.mark.sample("values")
def test_logits_are_those_of_a_full_cache_with_these_positions(
    family, policy, model_of, tokens, judge, kept_by_head
):
    """The judge's keys are embedded anew at the numbers of our cache, and its tokens get them."""
    model = short(model_of(family))
    unrotated, expecting = Unrotated(model), judge(family)
    cache = agentkv.Cache.for_model(
        model, policy=CASES[policy].make(), budget=24, prefill="whole", dtype="float32"
    )
    known = 0
    for piece in tokens(1, sum(PIECES)).split(PIECES, dim=1):
        kept = kept_by_head(cache) if cache.seen else None
        start = cache.seen
        found = model(piece, past_key_values=cache).logits
        numbering = cache.numberings[0] if cache.numberings else Numbering()
        if cache.num_renumberings > known:
            known = cache.num_renumberings
            for i, layer in enumerate(expecting.cache.layers):
                layer.keys = unrotated.keys(i, numbering.of(torch.arange(start)))
        new = torch.arange(start, cache.seen)
        expected = expecting.logits(piece, kept, position_ids=numbering.of(new)[None])
        torch.testing.assert_close(found, expected, atol=2e-3, rtol=2e-3)
    assert known >= 2


@torch.no_grad()
@pytest.mark.parametrize("policy", sampled(["lookback", "streaming", "conf-kv-l"], every=2))
def test_every_way_of_feeding_numbers_alike(policy, model_of, tokens):
    """In compiled steps, by transformers, packed with another cache, and by `generate`."""
    model = short(model_of("llama"))
    slow = copy.deepcopy(model)
    slow.model.norm.register_forward_hook(lambda *given: None)  # transformers' own code

    def make(model):
        case = CASES[policy]
        return agentkv.Cache.for_model(model, policy=case.make(), budget=case.budget, chunk=16)

    compiled, plain, packed, beside = make(model), make(slow), make(model), make(model)
    assert decoding(model) == COMPILED != decoding(slow)
    for piece in tokens(1, sum(PIECES)).split(PIECES, dim=1):
        first = compiled.feed(model, piece)
        other = plain.feed(slow, piece)
        together = feed_packed(model, [packed, beside], [piece, piece.repeat(2, 1)])
        assert together.errors == (None, None)
        torch.testing.assert_close(first, other, atol=1e-3, rtol=1e-3)
        torch.testing.assert_close(first.repeat(3, 1), together.logits, atol=1e-3, rtol=1e-3)
    assert compiled.num_renumberings == plain.num_renumberings == packed.num_renumberings >= 2
    assert beside.num_renumberings == 2 * packed.num_renumberings
    ends = [
        each_model.generate(
            torch.cat([cache.ids.long(), piece[:, :1]], dim=1),
            past_key_values=cache,
            logits_processor=[cache.gate()],
            max_new_tokens=16,
            do_sample=False,
        )
        for each_model, cache in ((model, compiled), (slow, plain))
    ]
    assert torch.equal(*ends)
    assert compiled.num_positions <= MOST < compiled.seen


@torch.no_grad()
@pytest.mark.parametrize("policy", ["streaming", "streaming-int8"])
def test_a_run_within_its_positions_is_the_same_to_the_last_bit(policy, model_of, tokens):
    few, many = short(model_of("llama"), 64), short(model_of("llama"), 10_000)
    case = CASES[policy]
    one, other = (
        agentkv.Cache.for_model(model, policy=case.make(), budget=case.budget)
        for model in (few, many)
    )
    mask = torch.ones(2, 80, dtype=torch.long)
    mask[0, 10:26] = mask[1, 50:66] = 0  # 64 tokens each
    for piece in tokens(2, 80).split([16, 16, 8, 1, 1, 16, 16, 4, 1, 1], dim=1):
        own = mask[:, : one.seen + piece.shape[1]]
        assert torch.equal(one.feed(few, piece, own), other.feed(many, piece, own))
    assert one.num_renumberings == 0
    one.feed(few, tokens(2, 1))
    assert one.num_renumberings == 2


@torch.no_grad()
def test_padding_takes_no_position_of_a_model(model_of, tokens):
    model = short(model_of("llama"))
    cache, mask = cache_of(model), torch.ones(2, 66, dtype=torch.long)
    mask[1, 50:] = 0
    cache.feed(model, tokens(2, 50), mask[:, :50])
    cache.feed(model, tokens(2, 16, seed=1), mask)
    assert cache.numberings[0].shift and not cache.numberings[1].shift
    assert cache.next_numbers[1] == 50


@torch.no_grad()
def test_a_forward_is_short_only_where_positions_run_out(model_of, tokens):
    model = short(model_of("llama"))
    cache = cache_of(model)
    cache.feed(model, tokens(1, 60))
    assert cache.tokens_at_once(4) > cache.tokens_at_once(5) == 16
    cache.feed(model, tokens(1, 5, seed=1))
    assert cache.num_renumberings and cache.tokens_at_once(5) == cache.chunk


@torch.no_grad()
@pytest.mark.parametrize("policy", ["streaming-int8", "conf-kv-l"])
def test_a_model_of_256_positions_reads_far_more_tokens(policy, model_of, tokens):
    model = short(model_of("llama"), 256)
    cache = cache_of(model, policy, 128, **({"sinks": 16} if policy == "streaming-int8" else {}))
    ids = tokens(1, 1_200)
    for start in range(0, 1_200, 60):
        cache.feed(model, ids[:, start : start + 56])
        for i in range(start + 56, start + 60):
            logits = cache.feed(model, ids[:, i : i + 1])
        assert logits.isfinite().all() and cache.num_positions <= 256
    cache.check()
    # a quarter of the positions or more becomes free each time
    assert 1_200 / 256 - 1 < cache.num_renumberings <= 1_200 / 32


# ---- with everything else that a cache does


@torch.no_grad()
def test_pins_and_labels_keep_their_positions_in_the_stream(model_of, tokens):
    model = short(model_of("llama"))
    unrotated, cache = Unrotated(model), cache_of(model, "window")
    cache.label("goal", 6, pinned=True)
    cache.label("page", 30)
    cache.label("note", 4, pinned=True)
    for piece in tokens(1, 200).split(40, dim=1):
        cache.feed(model, piece)
    assert cache.num_renumberings
    assert [(each.label, each.start) for each in cache.spans()] == [
        ("goal", 0), ("page", 6), ("note", 36),
    ]  # fmt: skip
    for layer in range(4):
        assert cache.kept(layer)[0][0].tolist() == [*range(6), *range(36, 40), *range(186, 200)]
    assert_keys_are_turned(cache, unrotated)
    cache.drop("note")
    cache.feed(model, tokens(1, 60, seed=1))
    assert_keys_are_turned(cache, unrotated)


@torch.no_grad()
def test_dropped_spans_make_room_under_a_policy_that_keeps_everything(model_of, tokens):
    model = short(model_of("llama"))
    unrotated, cache = Unrotated(model), cache_of(model, "full", None)
    for number in range(6):
        cache.label(f"page {number}", 25)
        assert cache.has_positions(25)
        cache.feed(model, tokens(1, 25, seed=number))
        if number:
            cache.drop(f"page {number - 1}")
    assert cache.seen == 150 and cache.num_renumberings
    assert_keys_are_turned(cache, unrotated)
    assert cache.has_positions(64 - 25) and not cache.has_positions(64 - 24)
    assert cache.why_limited == "the policy keeps every token"


@torch.no_grad()
@pytest.mark.parametrize("digests", [False, True])
@pytest.mark.parametrize("form", ["dense", "int8", "int4"])
@pytest.mark.sample("values")
def test_the_cold_tier_is_turned_as_well(model_of, tokens, form, digests):
    model = short(model_of("llama"), 128)
    unrotated = Unrotated(model)
    policy = {"threshold": 1.0, "format": form, "digests": digests, "blocks": 2, "block": 8}
    cache = cache_of(model, "lookback", 40, **policy)
    for piece in tokens(1, 400).split([60, *[1] * 10, 50] * 3 + [40], dim=1):
        cache.feed(model, piece)
        cache.check()
    assert cache.num_renumberings >= 3 and cache.num_looks and cache.fetched
    assert_keys_are_turned(cache, unrotated, tolerance=ROUNDED[form])


@torch.no_grad()
def test_a_look_attends_to_cold_entries_at_their_new_positions(model_of, tokens):
    """Everything is looked at, so that the logits are those of a cache that holds everything."""
    from agentkv.policies.recall import Always
    from tests.agentkv.cache.test_lookback import cache_of as looking

    model = short(model_of("llama"))
    everything = {"promotes": False, "format": "dense", "blocks": 1000, "block": 1}
    cold = looking(model, "window", Always(), budget=24, **everything)
    hot = agentkv.Cache.for_model(model, policy="streaming", budget=1000)
    for piece in tokens(1, 100).split([24, *[1] * 76], dim=1):
        found, expected = cold.feed(model, piece), hot.feed(model, piece)
        torch.testing.assert_close(found, expected, atol=1e-3, rtol=1e-3)
    assert cold.num_renumberings == hot.num_renumberings >= 1


@torch.no_grad()
@pytest.mark.parametrize(
    "policy", sampled(["lookback", "streaming-int8", "expected-attention", "conf-kv-l"], every=2)
)
def test_snapshots_copies_and_files_go_on_alike(policy, model_of, tokens, tmp_path):
    model = short(model_of("llama"))
    case = CASES[policy]
    cache = agentkv.Cache.for_model(model, policy=case.make(), budget=case.budget)
    cache.feed(model, tokens(2, 100))
    before = cache.snapshot()
    cache.feed(model, tokens(2, 40, seed=1))
    assert cache.num_renumberings
    cache.save(tmp_path / "cache")
    number = cache.num_renumberings
    others = [agentkv.Cache.load(tmp_path / "cache", model), copy.deepcopy(cache)]
    after = cache.snapshot()
    expected = [cache.feed(model, piece) for piece in tokens(2, 40, seed=2).split(20, dim=1)]
    cache.restore(after)
    for other in (*others, cache):
        assert other.num_renumberings == number
        for piece, logits in zip(tokens(2, 40, seed=2).split(20, dim=1), expected, strict=True):
            assert torch.equal(other.feed(model, piece), logits)
    assert_same(others[0], cache)
    cache.restore(before)
    assert cache.num_renumberings < others[0].num_renumberings
    cache.reset()
    assert cache.numberings == [] and cache.num_renumberings == 0


@torch.no_grad()
def test_sequences_of_a_batch_are_numbered_each_for_itself(model_of, tokens):
    model = short(model_of("llama"))
    cache, ids = cache_of(model), tokens(2, 90)
    mask = torch.ones(2, 90, dtype=torch.long)
    mask[1, 20:70] = 0  # the second one sees 50 tokens less
    for stop in range(10, 91, 10):
        cache.feed(model, ids[:, stop - 10 : stop], mask[:, :stop])
    assert cache.evictor.fed == [90, 40]
    assert cache.numberings[0].shift and not cache.numberings[1].shift
    cache.batch_select_indices(torch.tensor([1, 0, 0]))
    assert [each.shift > 0 for each in cache.numberings] == [False, True, True]
    cache.feed(model, tokens(3, 30, seed=1))
    assert [each.shift > 0 for each in cache.numberings] == [True, True, True]


# ---- where it is not possible


@torch.no_grad()
def test_learned_positions_end(model_of, tokens):
    model = model_of("gpt2")
    cache = cache_of(model)
    assert cache.why_limited == "gpt2 has learned its positions"
    cache.feed(model, tokens(1, 150))
    assert cache.has_positions(10) and not cache.has_positions(11)
    with pytest.raises(Misuse, match="learned 160 positions; 150 tokens were seen and 11 more"):
        cache.feed(model, tokens(1, 11))


@torch.no_grad()
def test_frequencies_that_change_with_the_length_cannot_be_turned(tokens):
    from transformers import LlamaConfig, LlamaForCausalLM

    from tests.agentkv.cache.conftest import SIZES

    rope = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0}
    config = LlamaConfig(**SIZES, max_position_embeddings=MOST, rope_parameters=rope)
    model = LlamaForCausalLM(config).eval()
    cache = cache_of(model)
    assert "changes its frequencies" in cache.why_limited
    cache.feed(model, tokens(1, 60))
    assert cache.has_positions(4) and not cache.has_positions(5)
    cache.feed(model, tokens(1, 10))
    assert cache.num_renumberings == 0


@torch.no_grad()
def test_a_policy_that_keeps_everything_reads_on_as_it_is(model_of, tokens):
    model = short(model_of("llama"))
    cache = cache_of(model, "full", None)
    cache.feed(model, tokens(1, 60))
    assert not cache.has_positions(5)
    cache.feed(model, tokens(1, 10))
    assert cache.num_renumberings == 0 and cache.num_positions == 70
