"""Every policy: how many rows stay and which never go, at every step and in every batch."""

import math

import pytest
import torch

import agentkv
from tests.agentkv.cache.policies_under_test import BOUNDED, CASES, CHUNKS, PROMPT, PUBLISHED
from tests.sampling import sampled

CLOSE = {"atol": 2e-4, "rtol": 2e-4}
SCHEDULED = [name for name in PUBLISHED if "schedule" in agentkv.policy(name).parameters]
OTHERS = ["mistral-window", "gpt2", "gpt_oss", "gemma3"]
UNSURE = torch.zeros(1, 96)
SURE = torch.zeros(1, 96).index_fill_(1, torch.tensor([7]), 50.0)


def counts(cache):
    """Per layer, per row: how many positions each head keeps."""
    return [[[len(head) for head in row] for row in cache.kept(i)] for i in range(4)]


def assert_sound(cache, case, *, num_seen, first=0):
    """Positions ascend, none is there twice, and those that never go are there."""
    cache.check()
    for layer in range(4):
        for row in cache.kept(layer):
            assert len(row) == 2
            for places in row:
                held = places.tolist()
                assert held == sorted(set(held)) and held[-1] == first + num_seen - 1
                newest, sinks = min(case.newest, num_seen), min(case.sinks, num_seen)
                assert held[len(held) - newest :] == [
                    *range(first + num_seen - newest, first + num_seen)
                ]
                assert held[:sinks] == list(range(first, first + sinks))
            if case.heads == "shared":
                assert torch.equal(row[0], row[1])


def assert_as_allotted(found, layers, case):
    """Exactly the layer's rows in its heads together, and in each unless they compete."""
    for of_rows, expected in zip(found, layers, strict=True):
        for of_heads in of_rows:
            assert sum(of_heads) == 2 * expected
            assert case.heads == "ragged" or len(set(of_heads)) == 1


@torch.no_grad()
@pytest.mark.parametrize("name", CASES)
def test_exactly_the_budget_stays(llama, cache_for, tokens, name):
    case = CASES[name]
    cache = cache_for(llama, policy=case.make(), budget=case.budget)
    ids, seen = tokens(2, sum(CHUNKS)), 0
    for num_tokens in CHUNKS:
        llama(ids[:, seen : seen + num_tokens], past_key_values=cache)
        cache.apply_gate(UNSURE.expand(2, -1))
        seen += num_tokens
        assert_sound(cache, case, num_seen=seen)
        if not case.is_bounded:
            assert_as_allotted(counts(cache), [seen] * 4, case)
        elif seen == PROMPT:
            assert_as_allotted(counts(cache), case.layers, case)
        elif not case.learns:
            for of_rows, rows in zip(counts(cache), case.layers, strict=True):
                for of_heads in of_rows:
                    assert 2 * (rows - case.shrinks_by) <= sum(of_heads)
                    assert sum(of_heads) <= 2 * (rows + case.grows_by)
                    if not case.shrinks_by and not case.grows_by:
                        assert sum(of_heads) == 2 * rows
    if case.heads == "ragged":
        assert any(len(set(of_heads)) > 1 for of_rows in counts(cache) for of_heads in of_rows)
    if case.sure is not None:
        before = counts(cache)
        cache.apply_gate(torch.cat([UNSURE, SURE]))
        assert [rows[:1] for rows in counts(cache)] == [rows[:1] for rows in before]
        assert_as_allotted([rows[1:] for rows in counts(cache)], case.sure, case)
        cache.apply_gate(SURE.expand(2, -1))
        assert_sound(cache, case, num_seen=seen)
        assert_as_allotted(counts(cache), case.sure, case)


@torch.no_grad()
def test_what_earlier_contexts_taught_shares_the_same_entries_out(llama, cache_for, tokens):
    policy = CASES["edie-tada"].make()
    totals = []
    for seed in range(3):
        cache = cache_for(llama, policy=policy, budget=24)
        cache.feed(llama, tokens(1, PROMPT, seed=seed))
        cache.check()
        totals.append([sum(of_rows[0]) for of_rows in counts(cache)])
    assert [sum(total) for total in totals] == [4 * 2 * 24] * 3
    assert totals[0] == [48] * 4 and totals[1] != totals[0]


# ---- batches


@torch.no_grad()
@pytest.mark.parametrize(
    ("family", "name", "budget"),
    sampled([("llama", name, None) for name in CASES], every=12)
    + [("llama", name, 0.3) for name in ("ada-pyramidkv", "conf-kv-int8")]
    + sampled(
        [(family, name, None) for name in ("ada-snapkv", "h2o", "conf-kv") for family in OTHERS],
        every=3,  # every family once
    ),
)
def test_a_sequence_is_the_same_alone_and_in_a_padded_batch(
    model_of, cache_for, tokens, family, name, budget
):
    case, model = CASES[name], model_of(family)
    budget = budget or case.budget
    ids, mask = tokens(3, sum(CHUNKS)), torch.ones(3, sum(CHUNKS), dtype=torch.long)
    paddings = [range(0, 13), range(PROMPT - 9, PROMPT), ()]  # left, right, none
    for row, padding in enumerate(paddings):
        mask[row, list(padding)] = 0
        ids[row, list(padding)] = 0
    places = (mask.cumsum(-1) - 1).clamp_min(0)
    together = cache_for(model, policy=case.make(), budget=budget)
    alone = [cache_for(model, policy=case.make(), budget=budget) for _ in range(3)]
    start = 0
    for num_tokens in CHUNKS:
        stop = start + num_tokens
        logits = model(
            ids[:, start:stop], past_key_values=together, attention_mask=mask[:, :stop],
            position_ids=places[:, start:stop],
        ).logits  # fmt: skip
        last = []
        for row, cache in enumerate(alone):
            is_real = mask[row, start:stop].bool()
            mine = ids[row : row + 1, start:stop][:, is_real]
            found = model(mine, past_key_values=cache).logits[0]
            torch.testing.assert_close(logits[row][is_real], found, **CLOSE)
            last.append(found[-1])
        together.apply_gate(torch.stack(last))
        together.check()
        for row, cache in enumerate(alone):
            cache.apply_gate(last[row][None])
            for layer in range(len(together.layers)):
                held = zip(together.kept(layer)[row], cache.kept(layer)[0], strict=True)
                # positions count no padding
                assert all(torch.equal(one, other) for one, other in held), (layer, row)
        start = stop
        if case.learns:
            return  # from here on each context shifts the layers of the others


@torch.no_grad()
@pytest.mark.parametrize("name", ["ada-pyramidkv", "scissorhands", "arkv", "conf-kv-int8"])
def test_entries_follow_their_sequence_wherever_beams_take_it(llama, cache_for, tokens, name):
    case = CASES[name]
    ids, order = tokens(3, PROMPT + 10), torch.tensor([2, 0, 0])
    mask = torch.ones_like(ids)
    mask[0, :7] = 0  # so that they are at different places
    moved = cache_for(llama, policy=case.make(), budget=case.budget)
    settled = cache_for(llama, policy=case.make(), budget=case.budget)
    for cache, given in ((moved, ids), (settled, ids[order])):
        padded = mask if cache is moved else mask[order]
        for start, stop in ((0, PROMPT - 4), (PROMPT - 4, PROMPT)):
            llama(given[:, start:stop], past_key_values=cache, attention_mask=padded[:, :stop])
    moved.reorder_cache(order)
    for start, stop in ((PROMPT, PROMPT + 4), (PROMPT + 4, PROMPT + 5), (PROMPT + 5, PROMPT + 10)):
        piece = ids[order][:, start:stop]
        padded = {"attention_mask": mask[order][:, :stop]}
        found = llama(piece, past_key_values=moved, **padded).logits
        expected = llama(piece, past_key_values=settled, **padded).logits
        torch.testing.assert_close(found, expected, **CLOSE)
        moved.check()
        for layer in range(4):
            pairs = zip(moved.kept(layer), settled.kept(layer), strict=True)
            for row, other in pairs:
                assert all(torch.equal(a, b) for a, b in zip(row, other, strict=True))


# ---- when rows go


@torch.no_grad()
@pytest.mark.parametrize("name", sampled(SCHEDULED, every=6))
def test_on_the_schedule_of_prompts_replies_grow_and_the_next_prompt_selects_anew(
    llama, cache_for, tokens, name
):
    case = CASES[name]
    policy = agentkv.policy(name, **{**case.make().parameters, "schedule": "prefill"})
    cache = cache_for(llama, policy=policy, budget=case.budget)
    ids = tokens(1, PROMPT + 20)
    llama(ids[:, :PROMPT], past_key_values=cache)
    assert_as_allotted(counts(cache), case.layers, case)
    for step in range(10):
        place = PROMPT + step
        cache.apply_gate(llama(ids[:, place : place + 1], past_key_values=cache).logits[:, -1])
        cache.check()
        grown = [rows + step + 1 for rows in case.layers]
        assert_as_allotted(counts(cache), grown, case)
    llama(ids[:, PROMPT + 10 :], past_key_values=cache)
    assert_sound(cache, case, num_seen=PROMPT + 20)
    total = sum(map(sum, (row for of_rows in counts(cache) for row in of_rows)))
    assert total <= 2 * sum(case.layers)
    if not case.learns:
        assert_as_allotted(counts(cache), case.layers, case)


@torch.no_grad()
@pytest.mark.parametrize("name", ["snapkv", "ada-pyramidkv", "scissorhands", "arkv"])
def test_on_an_interval_entries_go_at_every_third_token_only(llama, cache_for, tokens, name):
    case = CASES[name]
    policy = agentkv.policy(name, **{**case.make().parameters, "interval": 3})
    cache = cache_for(llama, policy=policy, budget=case.budget)
    ids = tokens(1, PROMPT + 9)
    llama(ids[:, :PROMPT], past_key_values=cache)
    assert_as_allotted(counts(cache), [PROMPT] * 4, case)
    for step in range(1, 10):
        before = counts(cache)
        llama(ids[:, PROMPT + step - 1 : PROMPT + step], past_key_values=cache)
        cache.check()
        if step % 3:
            grown = [[[count + 1 for count in heads] for heads in rows] for rows in before]
            assert counts(cache) == grown
        elif step == 3:
            assert_as_allotted(counts(cache), case.layers, case)
        else:
            for rows, expected in zip(counts(cache), case.layers, strict=True):
                least, most = expected - case.shrinks_by, expected + case.grows_by
                assert 2 * least <= sum(rows[0]) <= 2 * most


@torch.no_grad()
@pytest.mark.parametrize(
    ("name", "share"),
    sampled([(name, 0.4) for name in PUBLISHED if name in BOUNDED], every=8) + [("snapkv", "40%")],
)
def test_a_share_of_the_tokens_seen_grows_with_them(llama, cache_for, tokens, name, share):
    case = CASES[name]
    parameters = {k: 0 if k == "slack" else v for k, v in case.make().parameters.items()}
    cache = cache_for(llama, policy=agentkv.policy(name, **parameters), budget=share)
    ids, start = tokens(1, 220), 0
    for num_tokens in (200, 1, 1, 1, 1, 1, 9, 1):
        stop = start + num_tokens
        llama(ids[:, start:stop], past_key_values=cache)
        cache.apply_gate(UNSURE)
        cache.check()
        budget = math.floor(0.4 * stop + 1e-9)
        total = sum(map(sum, (row for of_rows in counts(cache) for row in of_rows)))
        assert total <= 8 * budget
        if stop == 200 and name != "scissorhands":
            assert total == 8 * 80
        start = stop


@torch.no_grad()
@pytest.mark.parametrize("name", sampled(PUBLISHED, every=8, first=1))
def test_a_prompt_fed_whole_is_attended_to_whole(llama, model_of, cache_for, tokens, name):
    case, ids = CASES[name], tokens(2, PROMPT)
    full = cache_for(llama, policy="full", prefill="whole").feed(llama, ids)
    cache = cache_for(llama, policy=case.make(), budget=case.budget, prefill="whole")
    torch.testing.assert_close(cache.feed(llama, ids), full, **CLOSE)
    assert_sound(cache, case, num_seen=PROMPT)


@torch.no_grad()
@pytest.mark.parametrize("name", sampled(PUBLISHED, every=6, first=2))
def test_a_prompt_fed_in_chunks_goes_through_the_policy_after_each(
    llama, judge, kept_by_head, cache_for, tokens, name
):
    case, ids = CASES[name], tokens(2, 200)
    cache = cache_for(llama, policy=case.make(), budget=case.budget, chunk=PROMPT)
    by_hand = cache_for(llama, policy=case.make(), budget=case.budget)
    found = cache.feed(llama, ids)
    for piece in ids.split(PROMPT, dim=1):
        logits = llama(piece, past_key_values=by_hand).logits[:, -1]
        by_hand.apply_gate(logits)
    torch.testing.assert_close(found, logits, **CLOSE)
    assert counts(cache) == counts(by_hand)
    assert_sound(cache, case, num_seen=200)
    for layer in range(4):
        for mine, theirs in zip(cache.kept(layer), by_hand.kept(layer), strict=True):
            assert all(torch.equal(a, b) for a, b in zip(mine, theirs, strict=True))
