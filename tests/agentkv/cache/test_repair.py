"""Turn repair: evicted entries that a new input would attend to come back before it is read."""

import copy
import threading
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import agentkv
from agentkv.cache.hf.compat import CACHE
from agentkv.cache.misuse import Misuse
from agentkv.cache.repair import AFTER, BEFORE, Rehearsal, best_bursts
from agentkv.models.batch import Batch
from agentkv.models.generation import Generation
from agentkv.models.rules import TextRule
from agentkv.models.sampling import Sampler
from agentkv.policies.entries import PolicyError
from agentkv.policies.recall import LookBack, Unsure
from tests.agentkv.cache.caches_in_use import assert_same, kept
from tests.agentkv.cache.every_family import tiny
from tests.agentkv.cache.policies_under_test import CASES
from tests.agentkv.cache.test_shared_keys import IS_OLDEST

NEVER = {"threshold": 0.0, "reads": "hot", "short": 64, "slack": 0}


@pytest.fixture(scope="module")
def nano_model():
    return agentkv.load_model("nano").model


def repairing(model, repair=30, *, policy="lookback", budget=40, **parameters):
    value = agentkv.policy(policy, **(NEVER | {"repair": repair} | parameters))
    return agentkv.Cache.for_model(model, policy=value, budget=budget, chunk=24)


def rehearsed(cache, model, ids):
    """A rehearsal of some tokens, and its logits (B, V)."""
    rehearsal = Rehearsal(cache.layers, cache.evictor.spans, cache.next_numbers)
    with torch.no_grad():
        out = model(input_ids=ids, use_cache=True, logits_to_keep=1, **{CACHE: rehearsal})
    return rehearsal, out.logits[:, -1]


@given(st.data())
def test_the_best_positions_come_back_each_with_its_neighbors(data):
    size = data.draw(st.integers(1, 60))
    worths = data.draw(st.lists(st.integers(0, 5), min_size=size, max_size=size))
    flags = data.draw(st.lists(st.booleans(), min_size=size, max_size=size))
    count = data.draw(st.integers(0, size + 2))
    expected: list[int] = []
    for best in sorted(range(size), key=lambda i: (-worths[i], i)):
        for near in range(best - BEFORE, best + AFTER + 1):
            is_there = 0 <= near < size and flags[near] and near not in expected
            if flags[best] and is_there and len(expected) < count:
                expected.append(near)
    found = best_bursts(torch.tensor(worths, dtype=torch.float32), torch.tensor(flags), count)
    assert found.tolist() == sorted(expected)


SHARING = ["gemma3n_text"] if IS_OLDEST else ["gemma3n_text", "gemma4_text E2B"]


@pytest.mark.parametrize("family", ["llama", "gpt_oss", "gemma3", "qwen3", *SHARING])
@pytest.mark.parametrize("policy", ["lookback", "lookback-int8"])
def test_a_rehearsal_gives_the_logits_of_reading_and_leaves_the_cache_as_it_was(
    model_of, tokens, family, policy
):
    model = tiny(family) if family in SHARING else model_of(family)
    page, new = (tokens(2, length, seed=length) % 50 + 1 for length in (90, 12))
    cache = repairing(model, policy=policy)
    cache.feed(model, page)
    before = copy.deepcopy(cache)
    _, logits = rehearsed(cache, model, new)
    assert_same(cache, before)
    cache.check()
    before.may_look_back = False  # so that it does not repair
    expected = before.feed(model, new)
    torch.testing.assert_close(logits, expected, atol=2e-5, rtol=1e-4)


def test_a_passage_that_an_input_repeats_comes_back(nano_model):
    ids = torch.randint(5, 3000, (1, 400), generator=torch.Generator().manual_seed(0))
    cache = repairing(nano_model, 40, budget=100)
    cache.feed(nano_model, ids)
    assert not {120, 121} & set(kept(cache)[0][0])
    again = ids[:, 100:124]
    count = cache.repair(nano_model, again)
    cache.check()
    assert count == 40 * len(cache.cache_layers)
    back = set(kept(cache)[0][0]) - set(range(4)) - set(range(300, 400))
    assert len(back) == 40 and len(back & set(range(98, 145))) >= 30
    assert set(range(345, 400)) < set(kept(cache)[0][0])
    assert {len(heads) for layer in kept(cache) for heads in layer} == {
        100
    }  # they took the places of others
    assert cache.fetched == {"": count} and cache.num_looks == 0 < cache.look_nbytes


def test_what_comes_back_takes_half_of_the_entries_at_most(model_of, tokens):
    model = model_of("llama")
    cache = repairing(model, 500)
    cache.feed(model, tokens(1, 90))
    assert cache.repair(model, tokens(1, 12, seed=1)) == 20 * len(cache.cache_layers)
    assert set(range(76, 90)) < set(kept(cache)[0][0])


def test_entries_that_a_policy_evicts_again_are_not_counted(model_of, tokens):
    model = model_of("llama")
    policy = replace(CASES["snapkv"].make(), recall=LookBack(Unsure(0.0), repair=8))
    cache = agentkv.Cache.for_model(model, policy=policy, budget=24)
    cache.feed(model, tokens(1, 90))
    before = kept(cache)
    count = cache.repair(model, tokens(1, 12, seed=1))
    cache.check()
    new = sum(len(set(b) - set(a)) for x, y in zip(before, kept(cache), strict=True)
              for a, b in zip(x, y, strict=True))  # fmt: skip
    assert 0 < count == new
    assert cache.fetched.get("", 0) == count


def test_another_thread_is_refused_in_the_middle_of_a_rehearsal(model_of, tokens):
    model, found = model_of("llama"), []
    cache = repairing(model)
    cache.feed(model, tokens(1, 90))
    entered, may_go_on = threading.Event(), threading.Event()

    def wait(*arguments: object) -> None:
        entered.set()
        may_go_on.wait(20)

    handle = model.model.layers[1].register_forward_pre_hook(wait)
    worker = threading.Thread(target=lambda: found.append(cache.repair(model, tokens(1, 12))))
    worker.start()
    assert entered.wait(20)
    with pytest.raises(Misuse, match="is in the middle of a forward"):
        cache.feed(model, tokens(1, 3))
    may_go_on.set()
    worker.join()
    handle.remove()
    assert found and found[0] > 0
    cache.check()
    cache.feed(model, tokens(1, 3))


def test_a_rehearsal_that_fails_leaves_the_cache_as_it_was(model_of, tokens):
    model = model_of("llama")
    cache = repairing(model)
    cache.feed(model, tokens(1, 90))
    before = copy.deepcopy(cache)

    def fail(*arguments: object) -> None:
        raise RuntimeError("no memory")

    handle = model.model.layers[1].register_forward_pre_hook(fail)
    with pytest.raises(RuntimeError, match="no memory"):
        cache.feed(model, tokens(1, 12))
    handle.remove()
    assert_same(cache, before)
    cache.feed(model, tokens(1, 12))
    cache.check()


def test_feed_repairs_before_it_reads_and_decoding_does_not(model_of, tokens):
    model = model_of("llama")
    cache, by_hand = repairing(model, 20), repairing(model, 20)
    for each in (cache, by_hand):
        each.feed(model, tokens(1, 90))
    page = tokens(1, 20, seed=1)
    assert by_hand.repair(model, page) == 20 * len(by_hand.cache_layers)
    by_hand.may_look_back = False
    by_hand.feed(model, page)
    assert cache.repairs(20) and not cache.reads_singly(20)
    cache.feed(model, page)
    assert_same(cache, by_hand)
    before = dict(cache.fetched)
    cache.feed(model, tokens(1, 1, seed=2))
    assert cache.fetched == before


@pytest.mark.parametrize("family", ["gpt_oss", "gemma3", "gemma3n_text"])
def test_a_repair_leaves_windows_and_shared_layers_whole(model_of, tokens, family):
    model = tiny(family) if family == "gemma3n_text" else model_of(family)
    page, new = (tokens(2, length, seed=length) % 50 + 1 for length in (90, 12))
    cache = repairing(model)
    cache.feed(model, page)
    assert cache.repair(model, new) > 0
    cache.check()
    cache.feed(model, new)
    cache.check()
    assert cache.seen == 102


def test_sequences_of_a_batch_are_repaired_as_if_alone(model_of, tokens):
    model, pages = model_of("llama"), tokens(2, 90)
    both = repairing(model)
    both.feed(model, pages)
    both.repair(model, tokens(2, 12, seed=1))
    for i in range(2):
        alone = repairing(model)
        alone.feed(model, pages[i : i + 1])
        alone.repair(model, tokens(2, 12, seed=1)[i : i + 1])
        for layer in range(len(alone.cache_layers)):
            assert torch.equal(alone.kept(layer)[0][0], both.kept(layer)[i][0])


def test_nothing_comes_back_where_looks_are_off_or_nothing_was_evicted(model_of, tokens):
    model = model_of("llama")
    cache = repairing(model)
    cache.feed(model, tokens(1, 30))
    assert cache.repair(model, tokens(1, 12)) == 0
    cache.feed(model, tokens(1, 60))
    cache.may_look_back = False
    cache.feed(model, tokens(1, 12))
    assert not cache.fetched
    plain = repairing(model, 0)
    plain.feed(model, tokens(1, 90))
    assert plain.repair(model, tokens(1, 12)) == 0


def test_inputs_longer_than_short_and_single_tokens_are_read_as_they_are(model_of, tokens):
    model = model_of("llama")
    cache = repairing(model, short=12)
    cache.feed(model, tokens(1, 90))
    assert [n for n in range(1, 20) if cache.repairs(n)] == list(range(2, 13))
    for length in (1, 13):
        cache.feed(model, tokens(1, length, seed=length))
        assert not cache.fetched
    cache.feed(model, tokens(1, 12, seed=3))
    assert cache.fetched


def test_an_input_that_does_not_fit_the_cache_is_refused_before_anything_comes_back(
    model_of, tokens
):
    model = model_of("llama")
    cache = repairing(model)
    cache.feed(model, tokens(1, 90))
    before = kept(cache)
    with pytest.raises(Misuse, match="holds 1 sequences and was given 2"):
        cache.repair(model, tokens(2, 12))
    with pytest.raises(Misuse, match="another model"):
        cache.repair(model_of("qwen3"), tokens(1, 12))
    assert kept(cache) == before
    cache.check()


def test_a_reply_of_an_agent_begins_with_a_repair(nano_model):
    ids = torch.randint(5, 3000, (1, 400), generator=torch.Generator().manual_seed(0))
    cache = repairing(nano_model, 40, budget=100)
    cache.feed(nano_model, ids)
    rule = TextRule(lambda ids: "x" * len(ids), end_ids=(), max_tokens=4)
    sampler = Sampler(0.0, torch.Generator())
    prompt = ids[0, 100:124].tolist()
    generation = Generation(cache, prompt, rule, sampler=sampler, deadline=None)
    batch = Batch(nano_model)
    batch.add(generation)
    batch.step()
    assert generation.error is None
    assert cache.fetched == {"": 40 * len(cache.cache_layers)}
    batch.step()
    assert cache.fetched == {"": 40 * len(cache.cache_layers)}


def test_long_inputs_are_repaired_one_at_a_step(nano_model):
    ids = torch.randint(5, 3000, (1, 400), generator=torch.Generator().manual_seed(0))
    batch, generations = Batch(nano_model), []
    for start in (100, 100, 200):
        cache = repairing(nano_model, 40, budget=100, short=1000)
        cache.feed(nano_model, ids)
        rule = TextRule(lambda ids: "x" * len(ids), end_ids=(), max_tokens=4)
        prompt = ids[0, start : start + (100 if start == 100 else 20)].tolist()
        sampler = Sampler(0.0, torch.Generator())
        generations.append(Generation(cache, prompt, rule, sampler=sampler, deadline=None))
        batch.add(generations[-1])
    batch.step()
    assert [each.has_begun for each in generations] == [True, False, True]
    assert generations[1].num_prompt_tokens == len(generations[1].unread)
    batch.step()
    assert all(each.has_begun and each.cache.fetched for each in generations)


def test_repairs_without_promotion_are_refused():
    with pytest.raises(PolicyError, match="repair=8 brings entries back to stay"):
        LookBack(Unsure(), promotes=False, repair=8)
    with pytest.raises(PolicyError, match="repair"):
        LookBack(Unsure(), repair=-1)
