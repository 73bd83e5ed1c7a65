"""Labels, pins and dropped spans: what is pinned stays, and what is dropped goes."""

import copy
import re

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import agentkv
from agentkv.cache.misuse import Misuse
from agentkv.cache.spans import NO_PINS
from agentkv.policies.entries import PolicyError, Span
from tests.agentkv.cache.policies_under_test import CASES, CHUNKS
from tests.sampling import sampled

EVICTING = [name for name, case in CASES.items() if case.is_bounded]


def heads_of(cache):
    """Positions held, of every layer, sequence and KV head."""
    return [
        [places.tolist() for of_sequence in cache.kept(i) for places in of_sequence]
        for i in range(len(cache.cache_layers))
    ]


def feed(model, cache, tokens, chunks=CHUNKS, batch=1):
    for seed, count in enumerate(chunks):
        cache.feed(model, tokens(batch, count, seed=seed))
        cache.check()
        yield heads_of(cache)


# ---- what is pinned stays


@pytest.mark.parametrize("name", sampled(EVICTING, every=8))
def test_pinned_tokens_stay_in_every_head_of_every_layer(model_of, tokens, name):
    model, case = model_of("llama"), CASES[name]
    cache = agentkv.Cache.for_model(model, policy=case.make(), budget=case.budget)
    cache.label("goal", 3, pinned=True)
    cache.label("page", 50)
    cache.label("note", 2, pinned=True)
    for held in feed(model, cache, tokens):
        for heads in held:
            assert all({0, 1, 2, 53, 54} <= set(places) for places in heads)
    assert cache.pins() == (range(3), range(53, 55))


# these two evict more, the fewer entries may go at all
EXACT = [name for name in EVICTING if not name.startswith(("scissorhands", "arkv"))]


@pytest.mark.parametrize("name", sampled(EXACT, every=8, first=1))
def test_pinned_tokens_count_in_the_budget(model_of, tokens, name):
    model, case = model_of("llama"), CASES[name]
    counts = []
    for pinned in (True, False):
        cache = agentkv.Cache.for_model(model, policy=case.make(), budget=case.budget)
        cache.label("goal", 2, pinned=pinned)
        cache.label("page", 30)
        cache.label("note", 2, pinned=pinned)
        [held] = feed(model, cache, tokens, CHUNKS[:1])
        counts.append(sum(len(places) for heads in held for places in heads))
    assert counts[0] == counts[1]


def test_a_window_with_a_pinned_start_is_streaming_with_so_many_sinks(model_of, tokens):
    model = model_of("llama")
    pinned = agentkv.Cache.for_model(model, policy="window", budget=20)
    pinned.label("goal", 5, pinned=True)
    streaming = agentkv.Cache.for_model(
        model, policy=agentkv.policy("streaming", sinks=5), budget=20
    )
    for found, expected in zip(
        feed(model, pinned, tokens), feed(model, streaming, tokens), strict=True
    ):
        assert found == expected


def test_a_window_keeps_pins_in_its_midst_and_fills_the_rest_with_the_newest(model_of, tokens):
    model = model_of("llama")
    cache = agentkv.Cache.for_model(model, policy="window", budget=20)
    cache.feed(model, tokens(1, 15))
    cache.pin(range(4, 8))
    cache.pin(range(10, 11))
    cache.feed(model, tokens(1, 40))
    expected = [4, 5, 6, 7, 10, *range(40, 55)]
    assert heads_of(cache) == [[expected] * 2] * 4
    cache.unpin(range(4, 11))
    cache.feed(model, tokens(1, 5))
    assert heads_of(cache) == [[list(range(40, 60))] * 2] * 4


def test_a_pin_survives_a_window_of_the_model_no_longer_than_the_window(model_of, tokens):
    model = model_of("mistral-window")  # 24 positions
    cache = agentkv.Cache.for_model(model, policy="window", budget=16)
    cache.label("goal", 4, pinned=True)
    cache.feed(model, tokens(1, 22))
    assert heads_of(cache) == [[[0, 1, 2, 3, *range(10, 22)]] * 2] * 4
    cache.feed(model, tokens(1, 4))
    assert heads_of(cache) == [[[3, *range(11, 26)]] * 2] * 4
    cache.feed(model, tokens(1, 4))
    assert heads_of(cache) == [[list(range(14, 30))] * 2] * 4
    cache.check()


def test_tokens_are_pinned_as_they_come_until_the_next_label(model_of, tokens):
    model = model_of("llama")
    cache = agentkv.Cache.for_model(model, policy="window", budget=12)
    cache.feed(model, tokens(1, 10))
    cache.label("note", pinned=True)
    for _ in range(4):
        cache.feed(model, tokens(1, 1))
    assert cache.pins() == (range(10, 14),)
    cache.label("rest")
    cache.feed(model, tokens(1, 30))
    assert heads_of(cache)[0][0] == [10, 11, 12, 13, *range(36, 44)]
    assert cache.spans() == (Span("note", 10, 14), Span("rest", 14))


def test_sequences_of_a_batch_are_pinned_apart(model_of, tokens):
    model = model_of("llama")
    cache = agentkv.Cache.for_model(model, policy="window", budget=10)
    mask = torch.ones(2, 30, dtype=torch.int64)
    mask[1, :7] = 0
    cache.label("goal", 2, pinned=True)
    cache.feed(model, tokens(2, 30), mask)
    cache.pin(range(20, 22), sequence=1)
    cache.feed(model, tokens(2, 5))
    first, second = (cache.kept(0)[i][0].tolist() for i in range(2))
    assert first == [0, 1, *range(27, 35)]
    assert second == [0, 1, 20, 21, *range(22, 28)]
    cache.reorder_cache(torch.tensor([1, 1, 0]))
    assert [cache.pins(i) for i in range(3)] == [
        (range(2), range(20, 22)), (range(2), range(20, 22)), (range(2),)
    ]  # fmt: skip
    cache.check()


def test_a_budget_in_shares_makes_room_for_what_is_pinned(model_of, tokens):
    model = model_of("llama")
    cache = agentkv.Cache.for_model(model, policy="streaming", budget="10%")
    cache.label("goal", 30, pinned=True)
    cache.feed(model, tokens(1, 100))
    assert heads_of(cache)[0][0] == list(range(30))
    cache.feed(model, tokens(1, 300))
    assert heads_of(cache)[0][0] == [*range(30), *range(390, 400)]


@pytest.mark.parametrize("name", ["edie-tada", "pyramidkv"])
def test_layers_give_up_at_once_what_pins_need_in_another_one(model_of, tokens, name):
    model, case = model_of("llama"), CASES[name]
    cache = agentkv.Cache.for_model(model, policy=case.make(), budget=case.budget)
    for seed in range(3):
        cache.feed(model, tokens(1, 60, seed=seed))
    before = [len(heads[0]) + len(heads[1]) for heads in heads_of(cache)]
    cache.label("note", cache.fitted.gate.budget(1.0) - case.newest - 1, pinned=True)
    cache.check()
    after = [len(heads[0]) + len(heads[1]) for heads in heads_of(cache)]
    assert sum(after) < sum(before)  # the last layer gets its part as tokens come
    cache.feed(model, tokens(1, 90, seed=3))
    cache.check()
    cache.unpin("note")
    cache.check()


# ---- what is dropped goes


@pytest.mark.parametrize("name", sampled(CASES, every=8, first=2))
def test_a_dropped_span_leaves_all_layers_and_the_rest_stays_where_it_was(model_of, tokens, name):
    model, case = model_of("llama"), CASES[name]
    cache = agentkv.Cache.for_model(model, policy=case.make(), budget=case.budget)
    cache.feed(model, tokens(1, 90))
    before = heads_of(cache)
    newest = before[0][0][-4]
    cache.drop(range(newest, 90))
    cache.check()
    assert heads_of(cache) == [
        [[place for place in places if place < newest] for places in heads] for heads in before
    ]
    cache.feed(model, tokens(1, 3))
    cache.check()
    assert max(max(places) for heads in heads_of(cache) for places in heads) == 92


def test_logits_after_a_drop_are_those_of_a_cache_that_hides_the_span(
    model_of, tokens, judge, kept_by_head
):
    model = model_of("llama")
    cache = agentkv.Cache.for_model(model, policy="full")
    cache.label("goal", 10)
    cache.label("page 0", 400)
    cache.label("reply 0")
    ids, more = tokens(2, 430), tokens(2, 6, seed=1)
    cache.feed(model, ids)
    held = cache.nbytes
    cache.drop("page 0")
    assert cache.kept(2)[1][0].tolist() == [*range(10), *range(410, 430)]
    assert cache.nbytes < held / 4
    kept = kept_by_head(cache)
    full = judge("llama")
    full.logits(ids, None)
    with torch.no_grad():
        found = model(more, past_key_values=cache).logits
    torch.testing.assert_close(found, full.logits(more, kept), atol=1e-4, rtol=1e-4)


def test_dropping_everything_leaves_a_cache_that_goes_on(model_of, tokens):
    model = model_of("llama")
    for name in ("full", "h2o", "conf-kv-int8", "snapkv"):
        case = CASES[name]
        cache = agentkv.Cache.for_model(model, policy=case.make(), budget=case.budget)
        cache.feed(model, tokens(1, 30))
        cache.drop(range(30))
        cache.check()
        for count in (1, 50, 1):
            cache.feed(model, tokens(1, count))
            cache.check()
        assert cache.seen == 82


def test_a_dropped_token_is_no_longer_pinned(model_of, tokens):
    model = model_of("llama")
    cache = agentkv.Cache.for_model(model, policy="window", budget=20)
    cache.label("goal", 8, pinned=True)
    cache.feed(model, tokens(1, 12))
    cache.drop(range(2, 5))
    assert cache.pins() == (range(2), range(5, 8))
    cache.feed(model, tokens(1, 40))
    assert heads_of(cache)[0][0] == [0, 1, 5, 6, 7, *range(37, 52)]


# ---- labels


def test_a_policy_sees_the_labels_and_what_is_pinned(model_of, tokens):
    shown = []

    def score(entries):
        shown.append((entries.spans, entries.pinned is not None))
        return entries.positions.to(torch.float32)

    model = model_of("llama")
    cache = agentkv.Cache.for_model(model, policy=agentkv.scored("mine", score), budget=16)
    cache.label("goal", 4, pinned=True)
    cache.label("page", 10)
    cache.feed(model, tokens(1, 20))
    spans = (Span("goal", 0, 4), Span("page", 4, 14))
    assert set(shown) == {(spans, False)}
    cache.pin(range(17, 19))
    shown.clear()
    cache.feed(model, tokens(1, 5))
    assert set(shown) == {(spans, True)}


def test_labels_survive_copies_snapshots_and_files(model_of, tokens, tmp_path):
    model = model_of("llama")
    cache = agentkv.Cache.for_model(model, policy="snapkv", budget=48)
    cache.label("goal", 4, pinned=True)
    cache.save(tmp_path / "empty")
    assert agentkv.Cache.load(tmp_path / "empty", model).spans() == cache.spans()
    cache.label("page")
    cache.feed(model, tokens(2, 60))
    cache.pin(range(50, 53), sequence=1)
    before = cache.snapshot()
    cache.save(tmp_path / "cache")
    others = [copy.deepcopy(cache), agentkv.Cache.load(tmp_path / "cache", model)]
    cache.drop(range(10))
    cache.label("reply")
    cache.restore(before)
    for each in (cache, *others):
        assert each.spans(1) == (Span("goal", 0, 4), Span("page", 4))
        assert [each.pins(0), each.pins(1)] == [(range(4),), (range(4), range(50, 53))]
        each.feed(model, tokens(2, 30, seed=3))
        each.check()
    assert heads_of(cache) == heads_of(others[0]) == heads_of(others[1])
    cache.reset()
    assert cache.spans() == cache.pins() == ()


def test_a_label_of_tokens_that_were_not_fed_may_be_replaced_with_its_pins(model_of, tokens):
    cache = agentkv.Cache.for_model(model_of("llama"), policy="window", budget=20)
    cache.label("goal", 5, pinned=True)
    cache.label("page", 30, pinned=False)
    cache.label("note", 6, pinned=True, start=35)
    cache.label("reply")
    cache.label("page", 32, start=5)
    cache.label("reply", start=37)
    assert cache.spans() == (Span("goal", 0, 5), Span("page", 5, 37), Span("reply", 37))
    assert cache.pins() == (range(5),)


def test_a_label_goes_on_where_the_tokens_after_a_crop_begin(model_of, tokens):
    model = model_of("llama")
    cache = agentkv.Cache.for_model(model, policy="full")
    cache.label("goal", 4, pinned=True)
    cache.label("page", 20, pinned=True)
    cache.label("reply")
    cache.feed(model, tokens(1, 30))
    cache.crop(-20)
    cache.label("page", 9, start=10)
    cache.label("reply", start=19)
    assert cache.spans() == (Span("goal", 0, 4), Span("page", 4, 19), Span("reply", 19))
    cache.label("note", 5, start=12)
    assert cache.spans()[1:3] == (Span("page", 4, 12), Span("note", 12, 17))
    assert cache.pins() == (range(10),)
    with pytest.raises(Misuse, match="'note' .* overlaps 'page'"):
        cache.label("note", 5, start=9)


# ---- refusals


@pytest.fixture
def fed(model_of, tokens):
    model = model_of("llama")
    cache = agentkv.Cache.for_model(model, policy="window", budget=20)
    cache.label("goal", 6)
    cache.label("page", 20)
    cache.feed(model, tokens(1, 30))
    return model, cache


@pytest.mark.parametrize(
    "wrong, error, match",
    [
        (lambda cache: cache.pin("goal"), Misuse, "6 of the tokens .* have left layer 0"),
        (lambda cache: cache.pin(range(28, 31)), Misuse, "not among the 30 tokens"),
        (lambda cache: cache.pin("pages"), Misuse, "label 'pages'; labels: goal, page"),
        (lambda cache: cache.pin(range(12, 20, 2)), Misuse, "step 1"),
        (lambda cache: cache.pin(range(20, 20)), Misuse, "20 to 20 are not among"),
        (lambda cache: cache.pin(range(20, 22), sequence=1), Misuse, "1 sequences; found number 1"),
        (lambda cache: cache.drop("reply"), Misuse, "label 'reply'"),
        (lambda cache: cache.label("more", 5, start=24), Misuse, "'more' .* overlaps 'page'"),
        (lambda cache: cache.label("more", start=0), Misuse, "overlaps 'goal'"),
        (lambda cache: cache.label("more", start=-1), Misuse, "positions count from 0"),
        (lambda cache: cache.label(""), Misuse, "at least one character"),
        (lambda cache: cache.label("none", 0), Misuse, "tokens=0"),
        (lambda cache: cache.label("note", 21, pinned=True), PolicyError, "21 pinned tokens"),
    ],
)
def test_a_wrong_span_is_refused_and_changes_nothing(fed, tokens, wrong, error, match):
    model, cache = fed
    before = cache.spans(), cache.pins(), heads_of(cache)
    with pytest.raises(error, match=match):
        wrong(cache)
    assert (cache.spans(), cache.pins(), heads_of(cache)) == before
    cache.feed(model, tokens(1, 5))
    cache.check()


def test_pins_beyond_the_budget_are_refused_before_anything_is_computed(model_of, tokens):
    model = model_of("llama")
    cache = agentkv.Cache.for_model(model, policy="h2o", budget=20)
    with pytest.raises(PolicyError, match="25 sinks .* smallest budget of 20"):
        cache.label("goal", 25, pinned=True)
    cache.label("note", pinned=True)
    cache.feed(model, tokens(1, 18))
    with pytest.raises(PolicyError, match="smallest budget of 20"):
        cache.feed(model, tokens(1, 3))
    assert cache.seen == 18
    cache.check()
    cache.label("rest")
    cache.feed(model, tokens(1, 3))


def test_pins_beyond_the_bytes_of_more_sequences_are_refused(model_of, tokens):
    model = model_of("llama")
    cache = agentkv.Cache.for_model(model, policy="window", budget="240KiB")
    cache.label("goal", 100, pinned=True)
    cache.feed(model, tokens(1, 140))
    with pytest.raises(PolicyError, match="100 sinks"):
        cache.batch_repeat_interleave(3)
    assert cache.batch_size == 1
    cache.check()


@pytest.mark.parametrize("name", ["window", "h2o", "lookback-int8", "conf-kv-l"])
@pytest.mark.parametrize("budget", [150, "240KiB"])
def test_a_budget_that_pins_exceed_is_refused_with_the_smallest_one_that_holds_them(
    model_of, tokens, name, budget
):
    model = model_of("llama")
    refused = agentkv.Cache.for_model(model, policy=name, budget=budget)
    with pytest.raises(PolicyError, match=f"^{name}: ") as found:
        refused.label("goal", 900, pinned=True)
    named = re.search(r"at least ([0-9.]+)( entries|KiB|MiB),", str(found.value))
    assert named is not None
    number, unit = float(named[1]), named[2]
    enough = int(number) if unit == " entries" else f"{number:g}{unit}"
    held = agentkv.Cache.for_model(model, policy=name, budget=enough)
    held.label("goal", 900, pinned=True)
    held.feed(model, tokens(1, 940))
    held.check()
    less = 0.9 * number
    low = agentkv.Cache.for_model(
        model, policy=name, budget=int(less) if unit == " entries" else f"{less:g}{unit}"
    )
    with pytest.raises(PolicyError):
        low.label("goal", 900, pinned=True)


# ---- pins as a value

POSITIONS = st.integers(0, 12)
CHANGES = st.lists(st.tuples(st.booleans(), POSITIONS, st.none() | POSITIONS), max_size=8)


@given(CHANGES)
def test_pins_are_a_set_of_positions(changes):
    pins, expected, end = NO_PINS, set(), 20
    for adds, start, stop in changes:
        if stop is not None and stop <= start:
            continue
        positions = set(range(start, end if stop is None else stop))
        pins = pins.with_range(start, stop) if adds else pins.without_range(start, stop)
        expected = expected | positions if adds else expected - positions
    every = torch.arange(end)
    assert set(every[pins.mask(every)].tolist()) == expected
    assert pins.count(end) == len(expected)
    leading = next((i for i in range(end + 1) if i not in expected), end)
    assert pins.leading(end) == leading
    assert list(pins.ranges) == sorted(pins.ranges, key=lambda each: each[0])


@pytest.mark.parametrize("name", sampled(CASES, every=12, first=3))
def test_what_was_fed_in_inference_mode_can_be_changed_outside_of_it(model_of, tokens, name):
    model, case = model_of("llama"), CASES[name]
    held = []
    for is_inference in (True, False):
        cache = agentkv.Cache.for_model(model, policy=case.make(), budget=case.budget)
        cache.label("goal", 3, pinned=True)
        cache.label("page", 50)
        with torch.inference_mode(is_inference):
            cache.feed(model, tokens(1, 60))
        cache.unpin("goal")
        cache.drop("page")
        cache.feed(model, tokens(1, 40, seed=1))
        cache.check()
        held.append(heads_of(cache))
    assert held[0] == held[1]


def test_a_window_of_the_model_s_own_moves_on_over_a_dropped_span(model_of, tokens):
    model, ids = model_of("gemma3"), tokens(1, 44)
    cache = agentkv.Cache.for_model(model, policy="full")
    cache.feed(model, ids[:, :24])
    cache.drop(range(17, 20))
    for seen in range(25, 44):
        if seen in (26, 34):  # what is put back knows of the span
            cache.restore(cache.snapshot())
        cache.feed(model, ids[:, seen - 1 : seen])
        shown = [place for place in range(seen - 11, seen) if place not in range(17, 20)]
        assert cache.kept(0)[0][0].tolist() == shown
        cache.check()
