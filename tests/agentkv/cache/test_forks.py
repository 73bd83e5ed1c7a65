"""Forks of a cache share its entries, and go on exactly as copies would."""

import copy
import gc
import mmap
import re
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)

import agentkv
from agentkv.cache.forks import group_nbytes
from agentkv.cache.misuse import Misuse
from tests.agentkv.cache.caches_in_use import kept, used
from tests.agentkv.cache.conftest import VOCAB, families
from tests.agentkv.cache.policies_under_test import CASES
from tests.sampling import sampled

FEW = settings(max_examples=settings.default.max_examples // 12, stateful_step_count=14)
LOOKING = {"threshold": 0.5, "blocks": 2, "block": 4}
TREES = {
    "full": lambda: agentkv.policy("full"),
    "int4": lambda: agentkv.policy("int4", recent=8),
    "h2o": lambda: agentkv.policy("h2o"),
    "ada-snapkv": CASES["ada-snapkv"].make,
    "conf-kv-int8": CASES["conf-kv-int8"].make,
    "lookback": lambda: agentkv.policy("lookback", **LOOKING),
    "lookback-int8": lambda: agentkv.policy("lookback-int8", recent=8, **LOOKING),
    "lookback-int8 at once": lambda: agentkv.policy("lookback-int8", recent=8, slack=0, **LOOKING),
    "lookback bounded": lambda: agentkv.policy("lookback", slack=5, cold=30, **LOOKING),
}
on_linux = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc/self/smaps")


def same(found, expected):
    assert kept(found) == kept(expected)
    assert torch.equal(found.ids, expected.ids)


def resident_nbytes():
    """Memory of this process in the files that forks share, each page counted once."""
    gc.collect()
    total = is_ours = 0
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if re.match(r"[0-9a-f]+-[0-9a-f]+ ", line):
            is_ours = "agentkv-entries" in line
        elif is_ours and line.startswith("Pss:"):
            total += int(line.split()[1]) * 1024
    return total


def filled(model, policy, num_tokens, budget=None):
    cache = agentkv.Cache.for_model(model, policy=policy, budget=budget)
    ids = torch.randint(0, VOCAB, (1, num_tokens), generator=torch.Generator().manual_seed(1))
    cache.feed(model, ids)
    return cache


@pytest.mark.parametrize("name", sampled(CASES, every=6, first=3))
def test_a_fork_goes_on_as_a_copy_would(llama, tokens, name):
    case = CASES[name]
    cache = used(llama, tokens, case.make(), case.budget)
    expected = copy.deepcopy(cache)
    fork = cache.fork()
    again = fork.fork()
    assert (fork.seen, fork.pending, fork.budget) == (cache.seen, cache.pending, cache.budget)
    for seed, length in enumerate([1, 7, 1, 1, 12, 1]):
        new = tokens(2, length, seed=seed + 9)
        wanted = expected.feed(llama, new)
        for each in (fork, cache, again):
            assert torch.equal(each.feed(llama, new), wanted)
    for each in (fork, cache, again):
        each.check()
        same(each, expected)


@pytest.mark.parametrize("family", families("gemma3", "gpt2"))
def test_a_fork_goes_on_as_a_copy_would_in_every_family(family, model, tokens):
    cache = used(model, tokens, agentkv.policy("int8", recent=8), None, length=60)
    expected, fork = copy.deepcopy(cache), cache.fork()
    for seed in range(3):
        new = tokens(2, 1, seed=seed)
        assert torch.equal(fork.feed(model, new), expected.feed(model, new))
    fork.check()
    same(fork, expected)


class Tree(RuleBasedStateMachine):
    """Forks of forks, each beside a cache that is a copy where the other is a fork."""

    def __init__(self, model, make):
        super().__init__()
        self.model, self.make = model, make
        self.generator = torch.Generator().manual_seed(0)
        self.pairs = []

    @initialize(length=st.integers(1, 60))
    def begin(self, length):
        policy = self.make()
        budget = 24 if policy.gate.evicts else None
        fork, twin = (
            agentkv.Cache.for_model(self.model, policy=self.make(), budget=budget) for _ in range(2)
        )
        self.pairs.append((fork, twin))
        self.feed_pair(self.pairs[0], length)

    @rule(data=st.data())
    def fork(self, data):
        cache, twin = self.draw(data)
        self.pairs.append((cache.fork(), copy.deepcopy(twin)))

    @rule(data=st.data(), length=st.sampled_from([1, 1, 1, 5, 20]))
    def feed(self, data, length):
        self.feed_pair(self.draw(data), length)

    @rule(data=st.data())
    def drop(self, data):
        pair = self.draw(data)
        start = data.draw(st.integers(0, pair[0].seen - 1))
        stop = data.draw(st.integers(start + 1, pair[0].seen))
        for each in pair:
            each.drop(range(start, stop))
        self.feed_pair(pair, 1)

    @rule(data=st.data(), count=st.integers(1, 6))
    def forget(self, data, count):
        pair = self.draw(data)
        if pair[0].seen > count and pair[0].can_forget(count):
            for each in pair:
                each.crop(-count)
            self.feed_pair(pair, 2)

    @rule(data=st.data())
    def restore(self, data):
        pair = self.draw(data)
        taken = [each.snapshot() for each in pair]
        self.feed_pair(pair, 3)
        for each, snapshot in zip(pair, taken, strict=True):
            each.restore(snapshot)

    @precondition(lambda self: len(self.pairs) > 1)
    @rule(data=st.data())
    def leave(self, data):
        self.pairs.remove(self.draw(data))

    def draw(self, data):
        return self.pairs[data.draw(st.integers(0, len(self.pairs) - 1))]

    def feed_pair(self, pair, length):
        ids = torch.randint(0, VOCAB, (1, length), generator=self.generator)
        found, expected = (each.feed(self.model, ids) for each in pair)
        assert torch.equal(found, expected)

    def teardown(self):
        for fork, twin in self.pairs:
            fork.check()
            same(fork, twin)
            self.feed_pair((fork, twin), 1)


@pytest.mark.parametrize("name", TREES)
def test_forks_of_forks_never_read_what_another_wrote(llama, name):
    run_state_machine_as_test(lambda: Tree(llama, TREES[name]), settings=FEW)


@pytest.mark.parametrize("policy", ["full", "int8", "int4"])
def test_eight_forks_take_little_more_than_one_cache(llama, policy):
    cache = filled(llama, policy, 1500)
    before = cache.nbytes
    forks = [cache.fork() for _ in range(8)]
    assert group_nbytes([cache, *forks]) <= 1.01 * before
    assert cache.shared_nbytes == cache.nbytes
    assert all(each.shared_nbytes == each.nbytes for each in forks)
    for each in forks:
        for token in range(20):  # no block of old entries is complete by then
            each.feed(llama, torch.tensor([[token]]))
        each.check()
        assert each.shared_nbytes == cache.nbytes < each.nbytes
    grown = sum(each.nbytes - cache.nbytes for each in forks)
    assert group_nbytes([cache, *forks]) == cache.nbytes + grown


@on_linux
def test_forks_take_the_memory_that_they_say(llama):
    cache = filled(llama, "full", 1500)
    before = resident_nbytes()
    forks = [cache.fork() for _ in range(8)]
    for each in forks:
        each.feed(llama, torch.tensor([[1, 2, 3]]))
    # keys and values of two heads and the positions of four layers: each may begin a page or two
    pages = 2 * mmap.PAGESIZE * 4 * (2 * 2 + 1)
    assert 0.9 * cache.nbytes < resident_nbytes() - before < cache.nbytes + 9 * pages
    del each, forks, cache
    gc.collect()
    assert resident_nbytes() == before


@on_linux
def test_memory_is_returned_where_every_fork_has_copied_its_own(llama):
    cache, before = filled(llama, "full", 1500), resident_nbytes()
    fork = cache.fork()
    fork.feed(llama, torch.tensor([[1]]))
    assert resident_nbytes() > before
    for each in (cache, fork):
        each.drop(range(10, 30))
        each.check()
        assert not each.shared_nbytes
    assert resident_nbytes() == before
    assert group_nbytes([cache, fork]) == cache.nbytes + fork.nbytes


def test_a_conversation_that_is_forked_again_and_again_copies_only_what_is_new(llama, tokens):
    cache, forks = filled(llama, "full", 600), []
    for seed in range(5):
        forks.append(cache.fork())
        cache.feed(llama, tokens(1, 20, seed=seed))
    forks.append(cache.fork())
    # each fork maps the beginning of one file
    assert group_nbytes([cache, *forks]) == cache.nbytes
    forks[0].feed(llama, tokens(1, 10))  # its own, since the file has other entries there
    both = [forks[0], forks[0].fork()]
    assert both[1].nbytes == both[0].nbytes
    assert group_nbytes(both) - cache.nbytes < 0.05 * cache.nbytes
    expected = filled(llama, "full", 600)
    expected.feed(llama, tokens(1, 10))
    new = tokens(1, 1, seed=3)
    assert torch.equal(forks[0].feed(llama, new), expected.feed(llama, new))


def test_blocks_that_a_look_merges_stay_as_they_were_for_others(llama, tokens):
    policy = agentkv.policy("lookback-int8", recent=8, slack=0, **LOOKING)
    cache = filled(llama, policy, 120, budget=24)
    expected, forks = copy.deepcopy(cache), [cache.fork()]
    before = copy.deepcopy(expected)
    for seed in range(6):
        new = tokens(1, 1, seed=seed)
        assert torch.equal(cache.feed(llama, new), expected.feed(llama, new))
        forks.append(cache.fork())
        forks[-1].check()
    cache.check()
    new = tokens(1, 1, seed=9)
    assert torch.equal(forks[0].feed(llama, new), before.feed(llama, new))


@pytest.mark.parametrize("name", ["lookback", "lookback-int4"])
def test_what_a_bounded_cold_tier_forgets_stays_in_forks(llama, tokens, name):
    policy = agentkv.policy(name, **LOOKING, cold=60, slack=0)
    cache = filled(llama, policy, 90, budget=24)
    fork, before = cache.fork(), copy.deepcopy(cache)
    held = [layer.cold.storage.positions(0).tolist() for layer in fork.cache_layers]
    assert any(table.shared for table in fork.cache_layers[0].cold.tables.values())
    cache.feed(llama, tokens(1, 50, seed=1))
    cache.check()
    for layer, own in zip(cache.cache_layers, held, strict=True):
        assert not set(own) <= set(layer.cold.storage.positions(0).tolist())
    assert held == [layer.cold.storage.positions(0).tolist() for layer in fork.cache_layers]
    for seed in range(60):
        new = tokens(1, 1, seed=seed)
        assert torch.equal(fork.feed(llama, new), before.feed(llama, new))
        fork.check()
        assert max(layer.cold.storage.counts[0] for layer in fork.cache_layers) <= 60


def test_a_cold_tier_in_files_is_copied(llama, tokens, tmp_path):
    cache = agentkv.Cache.for_model(
        llama, policy=agentkv.policy("lookback", **LOOKING), budget=24, cold_folder=tmp_path
    )
    cache.feed(llama, tokens(1, 90))
    fork = cache.fork()
    tables = fork.cache_layers[0].tables
    assert tables["dense"].shared is not None and tables["cold dense"].shared is None
    new = tokens(1, 1, seed=3)
    assert torch.equal(fork.feed(llama, new), cache.feed(llama, new))
    fork.check()


def test_a_fork_outgrows_its_room_and_goes_on(llama, tokens, monkeypatch):
    monkeypatch.setattr("agentkv.cache.storage.shared_file.ROOM_FOR_ALL", 4)
    monkeypatch.setattr("agentkv.cache.storage.shared_file.ROOM_PER_ENTRY", 1)
    cache = filled(llama, "full", 50)
    fork, expected = cache.fork(), copy.deepcopy(cache)
    for seed in range(9):
        new = tokens(1, 1, seed=seed)
        assert torch.equal(fork.feed(llama, new), expected.feed(llama, new))
    assert not fork.shared_nbytes
    fork.check()


def test_a_fork_copies_where_there_is_no_room_for_files(llama, tokens, monkeypatch, caplog):
    def refuse(num_bytes):
        raise OSError(28, "No space left on device")

    cache = filled(llama, "full", 50)
    monkeypatch.setattr("agentkv.cache.storage.sharing.SharedFile", refuse)
    fork = cache.fork()
    assert "No space left" in caplog.text and not fork.shared_nbytes
    new = tokens(1, 1)
    assert torch.equal(fork.feed(llama, new), cache.feed(llama, new))
    fork.check()
    cache.check()


def test_a_fork_of_an_empty_cache_is_an_empty_cache(llama, tokens):
    cache = agentkv.Cache.for_model(llama, policy="full")
    fork = cache.fork()
    new = tokens(1, 5)
    assert torch.equal(fork.feed(llama, new), cache.feed(llama, new))


def test_a_cache_cannot_be_forked_during_a_forward(llama, tokens):
    cache, raised = filled(llama, "full", 5), []

    def look(*args):
        try:
            cache.fork()
        except Misuse as error:
            raised.append(str(error))

    handle = llama.model.layers[1].register_forward_hook(look)
    cache.feed(llama, tokens(1, 3))
    handle.remove()
    assert len(raised) == 1 and "between forwards" in raised[0]
