"""Every family of `every_family` against transformers' own cache, and against a judge."""

import pytest
import torch
from transformers import DynamicCache
from transformers import __version__ as transformers_version

import agentkv
from agentkv.cache.hf.families import describe
from agentkv.cache.refusals import why_refused
from tests.agentkv.cache.conftest import Judge
from tests.agentkv.cache.every_family import CHANGES, SEEING, SINCE_5, tiny
from tests.agentkv.cache.policies_under_test import PUBLISHED, TOLERANCE

CLOSE = {"atol": 2e-4, "rtol": 2e-4}
CHUNKS = (31, 1, 1, 9, 1, 1)
SEARCHES = {
    "greedy": {"do_sample": False},
    "sampled": {"do_sample": True, "temperature": 2.0},
    "beams": {"do_sample": False, "num_beams": 3},
}
BUDGET = 24


FAMILIES = [
    name for name in CHANGES if name not in SINCE_5 or not transformers_version.startswith("4.")
]


@pytest.fixture(params=FAMILIES)
def family(request):
    return request.param


def own_of(family):
    """The model over transformers' own cache and attention."""
    model = tiny(family)
    model.set_attn_implementation("eager")
    return model


def ids_of(batch, length, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(1, 60, (batch, length), generator=generator)


@torch.no_grad()
def test_a_left_padded_batch_in_chunks_gives_the_logits_of_transformers_own_cache(family):
    model, own, ids = tiny(family), own_of(family), ids_of(2, sum(CHUNKS))
    ids[0, :7] = 0
    mask = (ids != 0).long()
    places = (mask.cumsum(-1) - 1).clamp_min(0)
    cache = agentkv.Cache.for_model(model, policy="full")
    reference, start = DynamicCache(config=own.config.get_text_config(decoder=True)), 0
    for num_tokens in CHUNKS:
        new = slice(start, start + num_tokens)
        given = {"attention_mask": mask[:, : new.stop], "position_ids": places[:, new]}
        found = model(ids[:, new], past_key_values=cache, **given).logits
        expected = own(ids[:, new], past_key_values=reference, **given).logits
        is_token = mask[:, new].bool()
        torch.testing.assert_close(found[is_token], expected[is_token], **CLOSE)
        start = new.stop
    assert expected.std() > 0.01, "logits so close that anything passes"
    cache.check()
    assert cache.nbytes == sum(
        tensor.untyped_storage().nbytes()
        for layer in cache.cache_layers
        for table in layer.storage.tables.values()
        for tensor in table.tensors
    )


@pytest.mark.parametrize("search", SEARCHES)
@pytest.mark.sample("values")
def test_generate_goes_on_for_two_turns_as_with_transformers_own_cache(family, search):
    model, own = tiny(family), own_of(family)
    cache = agentkv.Cache.for_model(model, policy="full")
    reference = DynamicCache(config=own.config.get_text_config(decoder=True))
    ids = ids_of(2, 15)
    turns = 1 if search == "beams" else 2  # beams multiply the batch
    for turn in range(turns):
        both = []
        for each, its in ((model, cache), (own, reference)):
            torch.manual_seed(turn)
            both.append(
                each.generate(
                    ids, attention_mask=torch.ones_like(ids), past_key_values=its,
                    max_new_tokens=6, **SEARCHES[search],
                )
            )  # fmt: skip
        assert torch.equal(*both)
        ids = torch.cat([both[0], ids_of(2, 9, seed=turn + 1)], dim=1)
    cache.check()


@torch.no_grad()
@pytest.mark.parametrize("name", PUBLISHED)
@pytest.mark.sample("values")
def test_every_policy_gives_the_logits_of_a_full_cache_with_the_evicted_hidden(family, name):
    case, model = PUBLISHED[name], tiny(family)
    policy = case.make()
    if why_refused(policy, describe(model)) is not None:
        with pytest.raises(ValueError, match=f"policy '{policy.name}' "):
            agentkv.Cache.for_model(model, policy=policy, budget=case.budget)
        return
    cache = agentkv.Cache.for_model(model, policy=policy, budget=case.budget)
    ids, tolerance = ids_of(1, sum(CHUNKS)), TOLERANCE[case.format]
    for _ in Judge(tiny(family)).follow(model, cache, ids, CHUNKS, tolerance, **CLOSE):
        pass


@torch.no_grad()
@pytest.mark.parametrize("name", ["full", "conf-kv-int8", "snapkv"])
@pytest.mark.sample("values")
def test_a_cache_goes_on_from_a_file_and_from_a_snapshot_as_it_was(family, name, tmp_path):
    case, model = PUBLISHED[name], tiny(family)
    cache = agentkv.Cache.for_model(model, policy=case.make(), budget=case.budget)
    cache.feed(model, ids_of(1, 40))
    cache.save(tmp_path / "cache")
    snapshot = cache.snapshot()
    loaded = agentkv.Cache.load(tmp_path / "cache", model)
    expected = cache.feed(model, ids_of(1, 5, seed=1))
    assert torch.equal(loaded.feed(model, ids_of(1, 5, seed=1)), expected)
    cache.restore(snapshot)
    assert torch.equal(cache.feed(model, ids_of(1, 5, seed=1)), expected)


@torch.no_grad()
def test_a_numbering_that_begins_anew_turns_the_keys_as_the_model_would(family):
    model = tiny(family)
    geometry = describe(model)
    if geometry.is_all_windowed or not geometry.can_turn:
        return
    moved = agentkv.Cache.for_model(model, policy="full")
    moved.feed(model, ids_of(1, 20))
    for layer in moved.cache_layers:
        layer.turn(0, lambda positions: torch.full_like(positions, 100, device="cpu"))
    far = agentkv.Cache.for_model(model, policy="full")
    places = torch.arange(100, 120)[None]
    model(ids_of(1, 20), position_ids=places, past_key_values=far)
    for mine, theirs in zip(moved.cache_layers, far.cache_layers, strict=True):
        for part, other in zip(mine.storage.parts(0), theirs.storage.parts(0), strict=True):
            found, expected = (torch.cat(x.decode(torch.float32)) for x in (part, other))
            torch.testing.assert_close(found, expected, atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("name", [name for name in SEEING if name in FAMILIES])
def test_a_picture_is_refused_before_any_work(name):
    model = tiny(name)
    cache = agentkv.Cache.for_model(model, policy="full")
    with pytest.raises(ValueError, match="pixel_values: a cache reads text only"):
        model(ids_of(1, 4), pixel_values=torch.zeros(1, 3, 8, 8), past_key_values=cache)
    assert cache.seen == 0
