"""`agentkv_lab trigger`: what looks bring, and which signals rank them, on nano and made data."""

import io
import json
from dataclasses import replace

import pytest
import torch
from rich.console import Console

import agentkv
from agentkv.cache.cache import Cache
from agentkv.policies.recall import AtRandom
from agentkv_lab.trigger.follow import FOLLOWED, follow
from agentkv_lab.trigger.learn import NUM_DIRECTIONS, fit
from agentkv_lab.trigger.measure import TriggerBench, run_bench
from agentkv_lab.trigger.rank import area, gain_share, interval, resampled
from agentkv_lab.trigger.read import NUM_LARGEST, ReadTokens, read_tokens, trial_policy
from agentkv_tasks.settings import RunSettings

SEEN, BUDGET = 200, 100


@pytest.fixture(scope="module")
def nano():
    return agentkv.load_model("nano")


def cache_of(nano, **parameters):
    policy = trial_policy(agentkv.policy("lookback-int8", **parameters))
    return Cache.for_model(nano.model, policy=policy, budget=BUDGET, chunk=64)


@pytest.fixture(scope="module")
def ids():
    generator = torch.Generator().manual_seed(0)
    return torch.randint(5, 3000, (SEEN + 6,), generator=generator).tolist()


@torch.inference_mode()
def test_a_tried_look_is_taken_back_and_a_kept_one_stays(nano, ids):
    never = read_tokens(nano.model, cache_of(nano), ids, SEEN, AtRandom(0.0))
    always = read_tokens(nano.model, cache_of(nano), ids, SEEN, AtRandom(1.0))
    plain = cache_of(nano)
    plain.may_look_back = False
    tokens = torch.tensor([ids])
    plain.feed(nano.model, tokens[:, : SEEN - 1])
    for place in range(SEEN - 1, len(ids) - 1):
        logits = plain.feed(nano.model, tokens[:, place : place + 1])
        odds = logits[0].double().log_softmax(-1)
        expected = -float(odds[ids[place + 1]])
        assert float(never.nll[place - SEEN + 1, 0]) == pytest.approx(expected, abs=1e-4)
    assert torch.equal(never.nll[0], always.nll[0])
    assert not torch.equal(never.nll[1:, 0], always.nll[1:, 0])


@torch.inference_mode()
def test_a_look_at_everything_leaves_nothing_to_gain_and_its_shares_are_those_of_attention(
    nano, ids
):
    everything = {"blocks": 1000, "block": 1, "format": "dense", "recent": BUDGET}
    found = read_tokens(nano.model, cache_of(nano, **everything), ids, SEEN, AtRandom(0.0))
    without, after = found.divergence.unbind(1)
    # at later tokens, the keys and values of tokens without a look differ
    assert float(after[0]) < 1e-3 < float(without[0]) and float(after.mean()) < float(
        without.mean()
    )
    # a block of one entry has at most what its entry has from the head that likes it best
    assert bool((found.drawn <= found.drawn_entry + 1e-6).all())
    assert bool((found.drawn <= found.drawn_all + 1e-6).all())
    assert 0 < float(found.drawn_all.min()) and float(found.drawn_all.max()) < 1


@torch.inference_mode()
@pytest.mark.parametrize("signal", FOLLOWED)
def test_the_looks_at_a_signal_stay_and_have_its_share(nano, ids, signal):
    never, looks = follow(nano.model, cache_of(nano), ids, SEEN, signal, 0.0)
    assert looks == 0 and len(never) == 6
    always, looks = follow(nano.model, cache_of(nano), ids, SEEN, signal, 1.0)
    assert looks == 6
    kept = read_tokens(nano.model, cache_of(nano), ids, SEEN, AtRandom(1.0))
    assert always == pytest.approx(kept.nll[:, 1].tolist(), abs=1e-3)
    some, looks = follow(nano.model, cache_of(nano), ids, SEEN, signal, 0.3)
    assert 0 < looks < 6 and some[0] == never[0]  # the first token has nothing to be ranked among


def made_tokens(count, seed):
    """Tokens whose looks bring much where the hidden state points in one direction."""
    draw = torch.Generator().manual_seed(seed)
    hidden = torch.randn(count, 20, generator=draw)
    change = hidden[:, 3].clamp_min(0) ** 2
    largest = torch.rand(count, NUM_LARGEST, generator=draw).log().sort(descending=True).values
    rest = {
        "entropy": torch.rand(count, generator=draw),
        "embedding": torch.randn(count, 20, generator=draw),
        "nll": torch.stack([change, torch.zeros(count)], 1),
        "divergence": torch.stack([change, torch.zeros(count)], 1),
        "full_nll": torch.zeros(count),
    }
    rest |= {name: torch.rand(count, 2) for name in ("drawn", "drawn_entry", "drawn_all")}
    return ReadTokens(largest=largest, hidden=hidden, change=change, **rest)


def test_a_trigger_learns_what_it_hears_and_nothing_else():
    train, test = made_tokens(800, 0), made_tokens(400, 1)
    train.hidden[:, 3] *= 2  # among the principal directions
    hears = fit(train, train.change, ("hidden",))
    assert hears.directions["hidden"].shape == (20, NUM_DIRECTIONS)
    deaf = fit(train, train.change, ("logits", "embedding"))
    assert gain_share(hears.scores(test), test.change, 0.3) > 0.9
    assert gain_share(deaf.scores(test), test.change, 0.3) < 0.5


def test_gain_shares_are_those_of_the_first_tokens():
    gain = torch.tensor([4.0, -1.0, 0.0, 7.0])
    assert gain_share(gain, gain, 0.5) == pytest.approx(1.1)
    assert gain_share(-gain, gain, 0.5) == pytest.approx(-0.1)
    assert area(gain, gain) == pytest.approx((0.7 + 1.1 + 1.1 + 1.0) / 4)
    draws = resampled(gain, gain, 0.5, (2, 2))
    low, high = interval(draws)
    # both continuations, the first one twice, or the second one twice
    assert sorted({round(x, 3) for x in draws.tolist()}) == [1.0, 1.1, 1.333]
    assert (low, high) == pytest.approx((1.0, 4 / 3))


def test_the_command_measures_all_signals_and_reads_nothing_twice(tmp_path):
    names = ("train", "test")
    for name in names:
        lines = [f"link Bee number {i * i % 97} of hive {i} [{i}] {name}" for i in range(60)]
        (tmp_path / f"{name}.txt").write_text("\n".join(lines))
    bench = TriggerBench(
        settings=RunSettings.read(model="nano", policies=("lookback-int8",), chunk=64),
        **{name: tmp_path / f"{name}.txt" for name in names},
        num_train=2, num_test=2, reads=True, seen=200, num_tokens=6, entries=150, threads=1,
        work=tmp_path / "work", out=tmp_path / "rows.jsonl", command="trigger",
    )  # fmt: skip
    rows = run_bench(bench, Console(file=io.StringIO()))
    stamps = {path: path.stat().st_mtime_ns for path in (tmp_path / "work").iterdir()}
    assert len(stamps) == 4
    assert [row.signal for row in run_bench(bench, Console(file=io.StringIO()))] == [
        row.signal for row in rows
    ]
    assert stamps == {path: path.stat().st_mtime_ns for path in (tmp_path / "work").iterdir()}
    next((tmp_path / "work").glob("test-01*")).unlink()
    run_bench(replace(bench, reads=False), Console(file=io.StringIO()))
    assert len(list((tmp_path / "work").iterdir())) == 3
    head, *_, tokens = [json.loads(line) for line in bench.out.read_text().splitlines()]
    assert head["sample_tokens"] == [6] and head["train_tokens"] == 12
    assert len(tokens["tokens"]["confidence"]) == 6
    assert str(tmp_path) not in bench.out.read_text()


def test_a_policy_that_does_not_look_back_is_refused():
    with pytest.raises(ValueError, match="'window' does not look back"):
        trial_policy(agentkv.policy("window"))
