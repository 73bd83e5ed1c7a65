"""Policies as values: what they accept, when they evict, which rows they pick."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import agentkv
from agentkv.policies.gates import confidence
from agentkv.policies.parts import Age, AttentionAndRecency, Best
from agentkv.policies.policy import Drop, Rows
from agentkv.policies.registry import NAMED, parameters_of

WEIGHTS = (0.4, 0.3, 0.3)


def rows_with(mass=None, positions=None, num_rows=10):
    positions = torch.arange(num_rows) if positions is None else torch.tensor(positions)
    mass = None if mass is None else torch.tensor(mass)
    return Rows(len(positions), positions, mass)


def kept(verdict, num_rows):
    if isinstance(verdict, Drop):
        return [i for i in range(num_rows) if not verdict.start <= i < verdict.stop]
    return verdict.tolist()


def test_an_unknown_name_is_answered_with_the_known_ones():
    with pytest.raises(
        ValueError, match="'gatd'; known: conf-kv, conf-kv-int8, full, streaming, window"
    ):
        agentkv.policy("gatd")


@pytest.mark.parametrize(
    ("name", "parameters", "message"),
    [
        ("window", {"sinks": 4}, "'window' has no parameter 'sinks'; known: slack"),
        ("streaming", {"threshold": 0.5}, "known: sinks, slack"),
        ("full", {"slack": 1}, "has no parameter 'slack'; it has none"),
        ("conf-kv", {"recent": 64}, "no parameter 'recent'"),
        ("conf-kv", {"weights": (1, 1, 1)}, "weights must be three shares"),
        ("conf-kv", {"weights": (0.5, 0.5)}, "weights must be three shares"),
        ("conf-kv", {"decay": 1.0}, "decay must be"),
        ("conf-kv", {"mass_weight": 1.5}, "mass_weight must be"),
        ("conf-kv", {"tight": 0}, "tight must be"),
        ("conf-kv", {"protected": -1}, "protected must be"),
        ("conf-kv-int8", {"recent": 1.5}, "recent must be"),
        ("streaming", {"sinks": True}, "sinks must be"),
        ("conf-kv", {"threshold": None}, "threshold must be"),
        ("conf-kv", {"weights": 3}, "weights must be"),
    ],
)
def test_a_parameter_that_cannot_be_is_refused_by_name(name, parameters, message):
    with pytest.raises(ValueError, match=message):
        agentkv.policy(name, **parameters)


@pytest.mark.parametrize("name", sorted(NAMED))
def test_every_parameter_is_documented_and_reported(name):
    made = agentkv.policy(name)
    assert made.name == name
    documented = NAMED[name].__doc__ + NAMED["conf-kv"].__doc__ + NAMED["window"].__doc__
    for parameter in parameters_of(name):
        assert f"{parameter}: " in documented
        assert parameter in made.parameters


def test_equal_parts_are_equal_values():
    assert agentkv.policy("conf-kv", threshold=0.5) == agentkv.policy("conf-kv", threshold=0.5)
    assert agentkv.policy("conf-kv", threshold=0.5) != agentkv.policy("conf-kv")
    sinkless = agentkv.policy("streaming", sinks=0)
    window = agentkv.policy("window")
    assert (sinkless.selector, sinkless.gate) == (window.selector, window.gate)


@pytest.mark.parametrize(
    ("budget", "tight", "protected", "recent"),
    [(512, 256, 64, 256), (256, 128, 32, 128), (100, 50, 12, 50), (1, 1, 0, 0)],
)
def test_the_papers_settings_follow_from_the_budget(budget, tight, protected, recent):
    fitted = agentkv.policy("conf-kv-int8").fitted(budget)
    assert (fitted.gate.loose, fitted.gate.tight) == (budget, tight)
    assert fitted.selector.protected == protected
    assert fitted.precision.recent == recent


def test_a_policys_own_budgets_need_no_other_and_bear_no_contradiction():
    own = agentkv.policy("conf-kv", loose=300, tight=20, protected=5)
    assert own.fitted(None).gate.ceiling == own.fitted(300).gate.ceiling == 300
    with pytest.raises(ValueError, match="loose=300 and a budget of 200"):
        own.fitted(200)
    with pytest.raises(ValueError, match="tight=50 is more than the loose budget of 40"):
        agentkv.policy("conf-kv", tight=50).fitted(40)
    with pytest.raises(ValueError, match="30 protected rows do not fit"):
        agentkv.policy("conf-kv", protected=30).fitted(40)


def test_a_uniform_guess_and_a_certain_one_have_the_confidence_of_the_formula():
    uniform = confidence(torch.zeros(1, 50), WEIGHTS)
    assert float(uniform) == pytest.approx(0.5 * 0.3 + 0.3 / 50, abs=1e-6)
    one_hot = torch.full((1, 50), -math.inf)
    one_hot[0, 7] = 0.0
    assert float(confidence(one_hot, WEIGHTS)) == pytest.approx(1.0)


@settings(deadline=None, max_examples=50)
@given(st.integers(0, 10**6), st.floats(1.0, 5.0), st.floats(-50, 50), st.floats(0.1, 20))
def test_confidence_never_falls_as_logits_sharpen_nor_moves_with_a_constant(
    seed, sharper, constant, size
):
    logits = torch.randn(3, 40, generator=torch.Generator().manual_seed(seed)) * size
    c = confidence(logits, WEIGHTS)
    assert ((c >= 0) & (c <= 1 + 1e-6)).all()
    assert (confidence(logits * sharper, WEIGHTS) >= c - 1e-5).all()
    torch.testing.assert_close(confidence(logits + constant, WEIGHTS), c, atol=1e-4, rtol=0)


@settings(deadline=None, max_examples=50)
@given(st.integers(0, 10**6))
def test_confidence_is_its_formula_in_float64(seed):
    logits = torch.randn(2, 30, generator=torch.Generator().manual_seed(seed)) * 3
    p = logits.double().softmax(-1)
    top = p.sort(dim=-1, descending=True).values
    entropy = -(p * p.log()).sum(-1) / math.log(30)
    margin = (top[:, 0].log() - top[:, 1].log()).sigmoid()
    expected = 0.4 * (1 - entropy) + 0.3 * margin + 0.3 * top[:, 0]
    torch.testing.assert_close(confidence(logits, WEIGHTS).double(), expected, atol=1e-5, rtol=0)


def test_age_keeps_sinks_and_the_newest():
    assert kept(Best(sinks=2).select(rows_with(), 6, Age()), 10) == [0, 1, 6, 7, 8, 9]


@pytest.mark.parametrize("budget", [4, 7, 9])
def test_the_best_scored_and_the_protected_stay(budget):
    mass = [0.9, 0.1, 0.5, 0.3, 0.7, 0.2, 0.8, 0.0, 0.0, 0.0]
    scorer = AttentionAndRecency(mass_weight=1.0, decay=0.9)
    found = kept(Best(protected=3).select(rows_with(mass), budget, scorer), 10)
    by_mass = sorted(range(7), key=lambda i: -mass[i])[: budget - 3]
    assert found == sorted(by_mass) + [7, 8, 9]


@pytest.mark.parametrize("budget", [5, 9])
def test_of_equals_the_newer_stays(budget):
    scorer = AttentionAndRecency(mass_weight=1.0, decay=0.9)
    found = kept(Best(protected=2).select(rows_with([0.5] * 10), budget, scorer), 10)
    assert found == list(range(10 - budget, 10))


def test_the_score_blends_both_after_stretching_each_over_the_candidates():
    rows = rows_with(mass=[0.2, 0.6, 0.4, 0.2], positions=[10, 20, 30, 110])
    scorer = AttentionAndRecency(mass_weight=0.25, decay=0.9)
    expected = [0.0, 0.25 + 0.75 * 0.1, 0.125 + 0.75 * 0.2, 0.75]
    assert scorer.scores(rows, 0, 4).tolist() == pytest.approx(expected)
    assert scorer.scores(rows, 1, 3).tolist() == pytest.approx([0.25, 0.75])
