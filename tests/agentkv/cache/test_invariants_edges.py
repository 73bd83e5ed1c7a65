"""Every policy where little is there: short prompts, sequences that begin late, half precision,
caches that are used again."""

import pytest
import torch

from tests.agentkv.cache.policies_under_test import BOUNDED, CASES, PUBLISHED
from tests.sampling import sampled

CLOSE = {"atol": 2e-4, "rtol": 2e-4}
# one of each way to store, attend and choose
KINDS = ["h2o", "scissorhands", "ada-pyramidkv", "critical-snapkv", "arkv", "edie", "conf-kv-int8"]


@torch.no_grad()
@pytest.mark.parametrize("name", sampled(BOUNDED, every=6, first=3))
def test_a_sequence_may_begin_with_one_token_and_fill_the_budget_slowly(
    llama, judge, kept_by_head, cache_for, tokens, name
):
    case = CASES[name]
    cache = cache_for(llama, policy=case.make(), budget=case.budget)
    reference, kept, ids, start = judge("llama"), None, tokens(2, 160), 0
    most = sum(case.layers) + 4 * case.grows_by
    for num_tokens in [1, 1, 2, 1, 1, 5, 9, 1, 1, 30, 40, 31, 1, 5]:
        new = ids[:, start : start + num_tokens]
        found, start = llama(new, past_key_values=cache).logits, start + num_tokens
        cache.check()
        if case.format is None:
            torch.testing.assert_close(found, reference.logits(new, kept), **CLOSE)
        kept = kept_by_head(cache)
        for row in range(2):
            total = sum(len(head) for layer in kept for head in layer[row])
            assert total == 8 * start if start <= min(case.layers) else total <= 2 * most


@torch.no_grad()
@pytest.mark.parametrize("name", KINDS)
def test_a_sequence_may_be_padding_alone_at_first(llama, cache_for, tokens, name):
    case = CASES[name]
    ids, mask = tokens(2, 150), torch.ones(2, 150, dtype=torch.long)
    mask[0, :40] = 0
    places = (mask.cumsum(-1) - 1).clamp_min(0)
    cache = cache_for(llama, policy=case.make(), budget=case.budget)
    alone = cache_for(llama, policy=case.make(), budget=case.budget)
    start = 0
    for num_tokens in (30, 10, 1, 104, 1, 4):
        stop = start + num_tokens
        found = llama(
            ids[:, start:stop], attention_mask=mask[:, :stop], past_key_values=cache,
            position_ids=places[:, start:stop],
        ).logits  # fmt: skip
        assert found.isfinite().all()
        cache.check()
        if start >= 40:
            mine = llama(ids[:1, start:stop], past_key_values=alone).logits
            torch.testing.assert_close(found[:1], mine, **CLOSE)
        else:
            assert [len(head) for head in cache.kept(0)[0]] == [0, 0]
        start = stop


@torch.no_grad()
@pytest.mark.parametrize(
    ("name", "dtype"),
    sampled([(name, torch.bfloat16) for name in PUBLISHED], every=8, first=1)
    + sampled([(name, torch.float16) for name in KINDS], every=2),
)
def test_models_in_half_precision_stay_in_it(llama, cache_for, tokens, name, dtype):
    case, model = CASES[name], llama.to(dtype)
    cache = cache_for(model, policy=case.make(), budget=case.budget)
    ids = tokens(1, 120)
    for piece in ids.split([110, 1, 8, 1], dim=1):
        logits = model(piece, past_key_values=cache).logits
        assert logits.dtype == dtype and logits.isfinite().all()
        cache.apply_gate(logits[:, -1])
        cache.check()
    for store in cache.cache_layers:
        assert {part.keys.dtype for part in store.storage.parts(0)} <= {
            dtype,
            torch.int8,
            torch.uint8,
        }
        assert store.storage.queries is None or store.storage.queries.of(0)[0].dtype == dtype


@torch.no_grad()
@pytest.mark.parametrize("name", sampled(KINDS, every=2))
def test_a_cache_that_was_reset_is_as_new(llama, cache_for, tokens, name):
    case = CASES[name]
    used = cache_for(llama, policy=case.make(), budget=case.budget)
    used.feed(llama, tokens(3, 130, seed=5))
    used.reset()
    assert used.nbytes == used.seen == 0
    fresh = cache_for(llama, policy=case.make(), budget=case.budget)
    for piece in tokens(2, 120).split([110, 1, 8, 1], dim=1):
        found = llama(piece, past_key_values=used).logits
        assert torch.equal(found, llama(piece, past_key_values=fresh).logits)
        used.check()
    assert used.nbytes == fresh.nbytes
    assert all(
        torch.equal(mine, theirs)
        for layer in range(4)
        for row, other in zip(used.kept(layer), fresh.kept(layer), strict=True)
        for mine, theirs in zip(row, other, strict=True)
    )
