"""Gates: what they let a layer hold, when entries go, and how far down eviction goes."""

import math
from fractions import Fraction

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import agentkv
from agentkv.policies.gates import Confident, Dropping, Fixed, Trimming, Unbounded, confidence

WEIGHTS = (0.4, 0.3, 0.3)


@pytest.mark.parametrize(
    ("gate", "due"),
    [
        (Unbounded(), {}),
        (Fixed(), {1: range(1, 8), 2: range(1, 8), 512: range(1, 8)}),
        (Fixed(schedule="prefill"), {2: range(1, 8), 512: range(1, 8)}),
        (Fixed(interval=3), {1: [3, 6]}),
        (Dropping(schedule="prefill"), {2: range(1, 8), 512: range(1, 8)}),
        (Trimming(interval=3), {1: [3, 6]}),
        (Confident(0.7, WEIGHTS, None, None), {1: range(1, 8), 2: range(1, 8), 512: range(1, 8)}),
        (
            Confident(0.7, WEIGHTS, None, None, schedule="prefill"),
            {2: range(1, 8), 512: range(1, 8)},
        ),
    ],
)
def test_the_schedule_says_after_which_forwards_rows_may_go(gate, due):
    for num_new in (1, 2, 512):
        steps = [step for step in range(1, 8) if gate.is_due(num_new, step)]
        assert steps == list(due.get(num_new, []))
    always = all(list(due.get(num_new, [])) == list(range(1, 8)) for num_new in (1, 2, 512))
    assert gate.bounded == always


def test_every_tenth_token_gives_the_saw_teeth_of_kvpress():
    gate = Fixed(interval=10).fitted(40)
    num_entries, lengths = 96, []
    for step in range(1, 21):
        num_entries += 1
        if gate.is_due(1, step) and num_entries > gate.budget(0.0):
            num_entries = gate.target(gate.budget(0.0), num_entries)
        lengths.append(num_entries)
    assert lengths == [*range(97, 106), 40, *range(41, 50), 40]


def test_a_fixed_gate_goes_back_to_its_budget_and_needs_one():
    gate = Fixed(slack=3).fitted(40)
    assert (gate.ceiling, gate.budget(0.0), gate.budget(1.0)) == (40, 40, 40)
    assert gate.target(40, 45) == gate.target(40, 4000) == 40
    with pytest.raises(ValueError, match="needs a budget"):
        Fixed().fitted(None)
    with pytest.raises(ValueError, match="keeps every entry"):
        Unbounded().fitted(40)
    assert Unbounded().fitted(None).budget(0.5) is None


@given(st.data())
def test_bulk_eviction_stays_between_the_protected_rows_and_the_budget(data):
    budget = data.draw(st.integers(1, 600))
    protected = data.draw(st.integers(0, budget))
    num_entries = data.draw(st.integers(budget + 1, 5000))
    hundredths = data.draw(st.integers(0, 99))
    dropping = Dropping(drop=hundredths / 100).fitted(budget).protecting(protected)
    trimming = Trimming(alpha=hundredths / 100).fitted(budget).protecting(protected)
    share = Fraction(hundredths, 100)
    left = budget - math.floor(share * budget)
    assert dropping.target(budget, num_entries) == max(left, protected)
    kept = min(math.floor(share * (num_entries - protected)), budget - protected)
    assert trimming.target(budget, num_entries) == kept + protected
    # a layer that got fewer entries than are protected anywhere keeps what it got
    assert dropping.target(1, num_entries) == trimming.target(1, num_entries) == 1 or not protected


def test_after_a_trim_three_quarters_of_the_past_and_the_window_are_left():
    gate = agentkv.policy("arkv").fitted(512).gate
    assert gate.target(512, 513) == int(0.75 * (513 - 32)) + 32
    assert gate.target(512, 4096) == 512
    whole = agentkv.policy("arkv", alpha=1.0).fitted(512).gate
    assert whole.target(512, 513) == 512


def test_a_policy_tells_its_gate_what_its_selector_protects():
    assert agentkv.policy("scissorhands").fitted(100).gate.target(100, 101) == 50
    assert agentkv.policy("scissorhands").fitted(16).gate.target(16, 17) == 10
    assert agentkv.policy("scissorhands", drop=0.9).fitted(100).gate.target(100, 101) == 10


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Fixed(slack=-1), "slack must be a whole number of entries, at least 0; found -1"),
        (lambda: Fixed(schedule="often"), "schedule must be one of always, prefill; found 'often'"),
        (lambda: Fixed(interval=0), "interval must be a whole number of tokens, at least 1"),
        (lambda: Fixed(schedule="prefill", interval=4), "give one of the two"),
        (lambda: Fixed().fitted(0), "budget must be a whole number of tokens, at least 1"),
        (lambda: Dropping(drop=1), r"drop must be in \[0, 1\); found 1"),
        (lambda: Dropping(schedule="never"), "schedule must be one of"),
        (lambda: Trimming(alpha=1.5), r"alpha must be in \[0, 1\]; found 1.5"),
        (lambda: Confident(0.7, (0.5, 0.5), None, None), "weights must be 3 numbers"),
        (lambda: Confident(0.7, (1, 1, 1), None, None), "weights must be three shares"),
        (lambda: Confident(None, WEIGHTS, None, None), "threshold must be a number; found None"),
        (lambda: Confident(0.7, WEIGHTS, 0, None), "tight must be a whole number"),
        (lambda: Confident(0.7, WEIGHTS, None, True), "loose must be a whole number"),
        (lambda: Confident(0.7, WEIGHTS, None, None, schedule=3), "schedule must be one of"),
    ],
)
def test_what_a_gate_cannot_do_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize(
    ("threshold", "found"), [(1.01, [8, 8, 8]), (0.0, [4, 4, 4]), (0.7, [8, 4, 4])]
)
def test_the_tight_budget_holds_from_the_threshold_on(threshold, found):
    gate = agentkv.policy("conf-kv", threshold=threshold).fitted(8).gate
    assert [gate.budget(sure) for sure in (0.69, 0.7, 1.0)] == found
    assert gate.target(gate.budget(1.0), 9) == gate.budget(1.0)


def test_a_policys_own_budgets_need_no_other_and_bear_no_contradiction():
    own = agentkv.policy("conf-kv", loose=300, tight=20, protected=5)
    assert own.fitted(None).gate.ceiling == own.fitted(300).gate.ceiling == 300
    with pytest.raises(ValueError, match="loose=300 and a budget of 200"):
        own.fitted(200)
    with pytest.raises(ValueError, match="tight=50 is more than the loose budget of 40"):
        agentkv.policy("conf-kv", tight=50).fitted(40)
    with pytest.raises(ValueError, match="30 protected entries do not fit"):
        agentkv.policy("conf-kv", protected=30).fitted(40)


def test_a_uniform_guess_and_a_certain_one_have_the_confidence_of_the_formula():
    uniform = confidence(torch.zeros(1, 50), WEIGHTS)
    assert float(uniform) == pytest.approx(0.5 * 0.3 + 0.3 / 50, abs=1e-6)
    one_hot = torch.full((1, 50), -math.inf)
    one_hot[0, 7] = 0.0
    assert float(confidence(one_hot, WEIGHTS)) == pytest.approx(1.0)
    assert Fixed().confidence(torch.zeros(2, 50)).tolist() == [1, 1]


@given(st.integers(0, 10**6), st.floats(1.0, 5.0), st.floats(-50, 50), st.floats(0.1, 20))
def test_confidence_never_falls_as_logits_sharpen_nor_moves_with_a_constant(
    seed, sharper, constant, size
):
    logits = torch.randn(3, 40, generator=torch.Generator().manual_seed(seed)) * size
    c = confidence(logits, WEIGHTS)
    assert ((c >= 0) & (c <= 1 + 1e-6)).all()
    assert (confidence(logits * sharper, WEIGHTS) >= c - 1e-5).all()
    torch.testing.assert_close(confidence(logits + constant, WEIGHTS), c, atol=1e-4, rtol=0)


@given(st.integers(0, 10**6))
def test_confidence_is_its_formula_in_float64(seed):
    logits = torch.randn(2, 30, generator=torch.Generator().manual_seed(seed)) * 3
    p = logits.double().softmax(-1)
    top = p.sort(dim=-1, descending=True).values
    entropy = -(p * p.log()).sum(-1) / math.log(30)
    margin = (top[:, 0].log() - top[:, 1].log()).sigmoid()
    expected = 0.4 * (1 - entropy) + 0.3 * margin + 0.3 * top[:, 0]
    torch.testing.assert_close(confidence(logits, WEIGHTS).double(), expected, atol=1e-5, rtol=0)
