"""Every policy: what is attended to is what is kept, by layer, sequence and head, and nothing else.

The judge is transformers' own full cache in which the rows that went are hidden, and in which the
quantized ones are what the cache reads them back as.
"""

import pytest
import torch

from tests.agentkv.cache.policies_under_test import BOUNDED, CASES, CHUNKS, PROMPT, TOLERANCE
from tests.sampling import sampled

CLOSE = {"atol": 1e-4, "rtol": 1e-4}
FAR = 50 * CLOSE["atol"]
QUANTISED = {name: case for name, case in CASES.items() if case.format is not None}
EXACT = {name: case for name, case in BOUNDED.items() if case.format is None}
# one of each way to store, attend and choose: per head, ragged, with norms, by rank, shared, by age
KINDS = ["h2o", "ada-pyramidkv", "critical-ada-snapkv", "arkv", "edie-tada", "conf-kv-int8"]
OTHERS = ["qwen2", "qwen3", "mistral", "mistral-window", "gpt2", "gpt_oss", "gemma3"]


def quantized(cache):
    """Per layer, per row, per KV head: positions that are held quantized."""
    found = []
    for store in cache.cache_layers:
        lanes, of_rows = store.storage, []
        for lane, count in enumerate(lanes.num_quantized):
            places = lanes.positions(lane)[:count].long()
            if lane % lanes.layout.segments_per_sequence == 0:
                of_rows.append([])
            of_rows[-1] += [places] * lanes.layout.num_heads
        found.append(of_rows)
    return found


def each_with(change, kept, others):
    """`change` of every head's positions in two such lists."""
    return [
        [[change(*pair) for pair in zip(*heads, strict=True)] for heads in zip(*rows, strict=True)]
        for rows in zip(kept, others, strict=True)
    ]


@pytest.mark.parametrize("name", sampled(CASES, every=5))
def test_logits_are_those_of_a_full_cache_with_the_evicted_masked(
    llama, judge, cache_for, tokens, name
):
    case = CASES[name]
    cache = cache_for(llama, policy=case.make(), budget=case.budget)
    ids, reference = tokens(2, sum(CHUNKS) + 1), judge("llama")
    *_, kept = reference.follow(llama, cache, ids, CHUNKS, TOLERANCE[case.format], **CLOSE)
    if not case.is_bounded:
        return
    # a judge that hides nothing disagrees, and so does one that takes the first head's rows for all
    with torch.no_grad():
        found = llama(ids[:, -1:], past_key_values=cache).logits
    deaf = judge("llama")
    deaf.logits(ids[:, :-1], None)
    assert (deaf.logits(ids[:, -1:], None) - found).abs().max() > FAR
    if case.heads != "shared":
        heads = [[row[0] for row in layer] for layer in kept]
        assert (reference.logits(ids[:, -1:], heads) - found).abs().max() > FAR


@pytest.mark.sample("values")
@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("family", OTHERS)
def test_so_they_are_in_every_family(model_of, family, judge, cache_for, tokens, name):
    case, model = CASES[name], model_of(family)
    cache = cache_for(model, policy=case.make(), budget=case.budget)
    ids = tokens(2, sum(CHUNKS))
    tolerance = TOLERANCE[case.format]
    for _ in judge(family).follow(model, cache, ids, CHUNKS, tolerance, **CLOSE):
        pass


@pytest.mark.parametrize("name", sampled(QUANTISED, every=2))
def test_quantized_entries_stay_so_and_are_attended_for_as_long_as_they_live(
    llama, judge, cache_for, tokens, name
):
    case = QUANTISED[name]
    cache = cache_for(llama, policy=case.make(), budget=case.budget)
    ids, reference = tokens(1, sum(CHUNKS) + 1), judge("llama")
    steps = reference.follow(llama, cache, ids, CHUNKS, TOLERANCE[case.format], **CLOSE)
    next(steps)
    early = quantized(cache)
    *_, kept = steps
    still = each_with(lambda a, b: a[torch.isin(a, b)], early, kept)
    num_still = sum(len(head) for layer in still for row in layer for head in row)
    assert num_still >= 4, "too few rows to tell"
    now = quantized(cache)
    each_with(lambda a, b: _all_in(a, b), still, now)
    with torch.no_grad():
        found = llama(ids[:, -1:], past_key_values=cache).logits
    blind = each_with(lambda a, b: a[~torch.isin(a, b)], kept, still)
    assert (reference.logits(ids[:, -1:], blind) - found).abs().max() > FAR


def _all_in(some, of):
    assert bool(torch.isin(some, of).all()), "a row got bits back"


@torch.no_grad()
@pytest.mark.parametrize("name", sampled(EXACT, every=8, first=3))
def test_two_turns_are_one_forward_with_the_same_entries_masked(
    llama, judge, kept_by_head, cache_for, tokens, name
):
    case = EXACT[name]
    cache = cache_for(llama, policy=case.make(), budget=case.budget)
    ids = tokens(2, PROMPT + 12)
    cuts = []
    logits = llama(ids[:, :PROMPT], past_key_values=cache).logits
    cache.apply_gate(logits[:, -1])
    cuts.append((PROMPT, kept_by_head(cache)))
    reply = llama(ids[:, PROMPT : PROMPT + 1], past_key_values=cache).logits
    cache.apply_gate(reply[:, -1])
    cuts.append((PROMPT + 1, kept_by_head(cache)))
    page = llama(ids[:, PROMPT + 1 :], past_key_values=cache).logits
    expected = judge("llama").at_once(ids, cuts)
    torch.testing.assert_close(torch.cat([logits, reply, page], dim=1), expected, **CLOSE)
