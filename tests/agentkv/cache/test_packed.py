"""Caches fed in one forward are what they would be if each were fed alone."""

import copy

import pytest
import torch

import agentkv
from agentkv.cache.packed import PackedForward, why_alone
from tests.agentkv.cache.caches_in_use import feed_packed
from tests.agentkv.cache.conftest import families
from tests.agentkv.cache.policies_under_test import CASES, CHUNKS
from tests.sampling import sampled

LENGTHS = (70, 41, 56)
MIXED = ("conf-kv-int8", "full", "ada-snapkv")


def case_cache(model, cache_for, name):
    case = CASES[name]
    return cache_for(model, policy=case.make(), budget=case.budget)


def kept(cache):
    return [
        [heads.tolist() for row in cache.kept(layer) for heads in row]
        for layer in range(len(cache.cache_layers))
    ]


def assert_as_alone(together, alone):
    together.check()
    assert kept(together) == kept(alone)
    assert (together.nbytes, together.peak_nbytes) == (alone.nbytes, alone.peak_nbytes)
    assert torch.equal(together.ids, alone.ids)
    if alone.confidences is None:
        assert together.confidences is None
    else:
        assert together.confidences == pytest.approx(alone.confidences, abs=1e-4)


def feed(model, caches, ids):
    fed = feed_packed(model, caches, ids)
    assert fed.errors == (None,) * len(caches)
    return fed.logits


@pytest.mark.parametrize("family", families("llama", "gemma3"))
def test_three_policies_decode_together_as_they_would_alone(model, cache_for, tokens):
    caches, alone = ([case_cache(model, cache_for, name) for name in MIXED] for _ in range(2))
    for i, (cache, other, length) in enumerate(zip(caches, alone, LENGTHS, strict=True)):
        cache.feed(model, tokens(1, length, seed=i))
        other.feed(model, tokens(1, length, seed=i))
    for step in range(4):
        new = [tokens(1, 1, seed=100 * step + i) for i in range(len(caches))]
        logits = feed(model, caches, new)
        for i, (cache, other) in enumerate(zip(caches, alone, strict=True)):
            torch.testing.assert_close(
                logits[i, None], other.feed(model, new[i]), rtol=2e-4, atol=2e-4
            )
            assert_as_alone(cache, other)


@pytest.mark.parametrize("name", sampled(CASES, every=8, first=3))
def test_every_policy_is_itself_in_company(llama, cache_for, tokens, name):
    mine, alone = (case_cache(llama, cache_for, name) for _ in range(2))
    company = case_cache(llama, cache_for, "window")
    start = 0
    ids = tokens(1, sum(CHUNKS))
    for num_tokens in CHUNKS:
        new = ids[:, start : start + num_tokens]
        start += num_tokens
        with torch.no_grad():
            expected = llama(new, past_key_values=alone, logits_to_keep=1).logits[:, -1]
        alone.apply_gate(expected)
        if why_alone(mine, num_tokens) is None:
            logits = feed(llama, [company, mine], [tokens(1, 3, seed=start), new])[1:]
        else:
            logits = feed(llama, [mine], [new])
        torch.testing.assert_close(logits, expected, rtol=2e-4, atol=2e-4)
        assert_as_alone(mine, alone)


@pytest.mark.parametrize("family", families("gpt2", "gpt_oss"))
def test_pieces_of_any_length_and_caches_of_any_width_share_a_forward(model, cache_for, tokens):
    widths, pieces = (2, 1, 3), (5, 1, 12)
    caches, alone = ([case_cache(model, cache_for, name) for name in MIXED] for _ in range(2))
    for turn in range(3):
        new = [
            tokens(width, length + turn, seed=10 * turn + i)
            for i, (width, length) in enumerate(zip(widths, pieces, strict=True))
        ]
        logits = feed(model, caches, new).split(widths)
        for cache, other, ids, found in zip(caches, alone, new, logits, strict=True):
            torch.testing.assert_close(found, other.feed(model, ids), rtol=2e-4, atol=2e-4)
            assert_as_alone(cache, other)


def test_caches_join_and_leave_between_steps(llama, cache_for, tokens):
    caches, alone = ([case_cache(llama, cache_for, name) for name in MIXED] for _ in range(2))
    present = [(0,), (0, 1), (0, 1, 2), (2, 1), (1,), (2, 0)]
    for step, indices in enumerate(present * 3):
        new = {i: tokens(1, 2 if step < 6 else 1, seed=50 * step + i) for i in indices}
        logits = feed(llama, [caches[i] for i in indices], list(new.values()))
        for row, i in enumerate(indices):
            torch.testing.assert_close(
                logits[row, None], alone[i].feed(llama, new[i]), rtol=2e-4, atol=2e-4
            )
            assert_as_alone(caches[i], alone[i])


@pytest.mark.parametrize("at", [1, 2, 5])
def test_what_breaks_one_cache_is_not_felt_by_the_others(llama, cache_for, tokens, at):
    calls = 0

    def failing(rows):
        nonlocal calls
        calls += 1
        if calls == at:
            raise RuntimeError("no score")
        return rows.keys_values()[0].sum(dim=-1)

    bad = cache_for(llama, policy=agentkv.scored("failing", failing), budget=20)
    caches, alone = ([case_cache(llama, cache_for, name) for name in MIXED] for _ in range(2))
    bad.feed(llama, tokens(1, 20))
    broken = False
    for step in range(3):
        new = [tokens(1, 1, seed=7 * step + i) for i in range(4)]
        members = [caches[0], caches[1], *([] if broken else [bad]), caches[2]]
        ids = [new[0], new[1], *([] if broken else [new[3]]), new[2]]
        fed = feed_packed(llama, members, ids)
        errors = [error for error in fed.errors if error is not None]
        if errors:
            assert not broken and str(errors[0]) == "no score" and fed.errors[2] is errors[0]
        rows = [0, 1, len(members) - 1]
        for row, cache, other, mine in zip(rows, caches, alone, new, strict=False):
            expected = other.feed(llama, mine)
            torch.testing.assert_close(fed.logits[row, None], expected, rtol=2e-4, atol=2e-4)
            assert_as_alone(cache, other)
        broken = broken or bool(errors)
    assert broken


def test_a_cache_that_cannot_be_renumbered_ends_alone(model_of, cache_for, tokens, monkeypatch):
    model = model_of("llama")
    model.config.max_position_embeddings = 64
    bad, good, alone = (cache_for(model, policy="streaming", budget=24) for _ in range(3))
    for cache in (bad, good, alone):
        cache.feed(model, tokens(1, 64))
    stuck, turn = bad.cache_layers[1], type(bad.cache_layers[1]).turn

    def fail(layer, *given):
        if layer is stuck:
            raise MemoryError("no room to turn keys")
        turn(layer, *given)

    monkeypatch.setattr(type(stuck), "turn", fail)
    new = tokens(1, 1, seed=1)
    fed = feed_packed(model, [bad, good], [new, new])
    assert str(fed.errors[0]) == "no room to turn keys" and fed.errors[1] is None
    torch.testing.assert_close(fed.logits[1:], alone.feed(model, new), rtol=2e-4, atol=2e-4)
    assert_as_alone(good, alone)
    with pytest.raises(ValueError, match="did not end"):
        bad.feed(model, new)


def test_what_cannot_go_together_is_refused_before_anything_changes(llama, cache_for, tokens):
    cache, twin = (case_cache(llama, cache_for, "window") for _ in range(2))
    learner = case_cache(llama, cache_for, "edie-tada")
    for each in (cache, twin, learner):
        each.feed(llama, tokens(1, 40))
    other_model = copy.deepcopy(llama)
    stranger = case_cache(other_model, cache_for, "window")
    stranger.feed(other_model, tokens(1, 40))
    one = tokens(1, 1)
    refused = {
        "no caches": ([], []),
        "given twice": ([cache, twin, cache], [one] * 3),
        "another model": ([cache, stranger], [one] * 2),
        "tokens for 1": ([cache, twin], [one]),
        "at least 1": ([cache, twin], [one, one[:, :0]]),
        r"at least 1\); found": ([cache, twin], [one, one[0]]),
        "holds 1 sequences": ([cache, twin], [one, tokens(2, 1)]),
        "must read it alone": ([cache, learner], [one, tokens(1, 2)]),
    }
    before = [kept(each) for each in (cache, twin, learner)]
    for message, (caches, ids) in refused.items():
        with pytest.raises(ValueError, match=message):
            feed_packed(llama, caches, ids)
    assert [kept(each) for each in (cache, twin, learner)] == before
    assert [each.seen for each in (cache, twin, learner)] == [40] * 3


def test_positions_past_the_end_are_refused_for_all(model_of, cache_for, tokens):
    gpt2 = model_of("gpt2")
    near, far = (cache_for(gpt2, policy="window", budget=20) for _ in range(2))
    near.feed(gpt2, tokens(1, 10))
    far.feed(gpt2, tokens(1, 160))
    with pytest.raises(ValueError, match="160 positions"):
        feed_packed(gpt2, [near, far], [tokens(1, 1)] * 2)
    assert (near.seen, far.seen) == (10, 160)


def test_a_shared_forward_is_not_fed_by_hand(llama, cache_for, tokens):
    caches = [case_cache(llama, cache_for, "window") for _ in range(2)]
    together = PackedForward(llama, caches, [tokens(1, 3), tokens(1, 4)])
    with pytest.raises(ValueError, match="packed forward"):
        llama(tokens(2, 3), past_key_values=together)
