"""The named policies: what they are made of, what they accept, what is said of them."""

from dataclasses import replace

import pytest
import torch

import agentkv
from agentkv.policies.allocators import Adaptive
from agentkv.policies.declare import NamedPolicy
from agentkv.policies.gates import Confident
from agentkv.policies.registry import NAMED, about, parameters_of

PARTS = ("gate", "allocator", "scorer", "selector", "precision", "recall")
STORED = ("int8", "int8-max", "fp8", "int4", "nf4")
EVICTING = sorted(set(NAMED) - {"full", *STORED})


def parts_of(policy):
    return [getattr(policy, part) for part in PARTS]


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("full", "Unbounded Shared Age TopK Dense Forget"),
        ("window", "Fixed Shared Age TopK Dense Forget"),
        ("window-by-span", "Fixed Shared BySpan TopK Dense Forget"),
        ("lookback", "Fixed Shared Age TopK Dense LookBack"),
        ("streaming", "Fixed Shared Age TopK Dense Forget"),
        ("h2o", "Fixed Uniform HeavyHitters TopK Dense Forget"),
        ("scissorhands", "Dropping Uniform Unimportance TopK Dense Forget"),
        ("lazy-eviction", "Fixed Uniform Recurrence TopK Dense Forget"),
        ("keydiff", "Fixed Uniform KeyDifference TopK Dense Forget"),
        ("expected-attention", "Fixed Uniform ExpectedAttention TopK Dense Forget"),
        ("triattention", "Fixed Uniform DistancePreference TopK Dense Forget"),
        ("tova", "Fixed Shared WindowMean TopK Dense Forget"),
        ("snapkv", "Fixed Uniform WindowMean TopK Dense Forget"),
        ("snapkv-by-phase", "Fixed Uniform ByPhase TopK Dense Forget"),
        ("snapkv-by-span", "Fixed Uniform BySpan TopK Dense Forget"),
        ("pyramidkv", "Fixed Pyramid WindowMean TopK Dense Forget"),
        ("ada-snapkv", "Fixed Adaptive WindowMean TopK Dense Forget"),
        ("ada-pyramidkv", "Fixed Adaptive WindowMean TopK Dense Forget"),
        ("critical-snapkv", "Fixed Uniform WindowMean TwoStage Dense Forget"),
        ("critical-pyramidkv", "Fixed Pyramid WindowMean TwoStage Dense Forget"),
        ("critical-ada-snapkv", "Fixed Adaptive WindowMean TwoStage Dense Forget"),
        ("r-kv", "Fixed Uniform AttentionAndRedundancy TopK Dense Forget"),
        ("arkv", "Trimming Uniform MeanAndVariance TopK QuantizeByRank Forget"),
        ("edie", "Fixed Uniform RemovalError TopK Dense Forget"),
        ("edie-tada", "Fixed EnergyAllocator RemovalError TopK Dense Forget"),
        ("conf-kv", "Confident Shared AttentionAndRecency TopK Dense Forget"),
        ("conf-kv-int8", "Confident Shared AttentionAndRecency TopK QuantizeOld Forget"),
        ("conf-kv-l", "Confident Linear AttentionAndRecency TopK QuantizeOld Forget"),
        ("streaming-int8", "Fixed Shared Age TopK QuantizeOld Forget"),
        ("lookback-int8", "Fixed Shared Age TopK QuantizeOld LookBack"),
        ("lookback-int4", "Fixed Shared Age TopK QuantizeOld LookBack"),
        ("int8", "Unbounded Shared Age TopK QuantizeOld Forget"),
        ("int8-max", "Unbounded Shared Age TopK QuantizeOld Forget"),
        ("fp8", "Unbounded Shared Age TopK QuantizeOld Forget"),
        ("int4", "Unbounded Shared Age TopK QuantizeOld Forget"),
        ("nf4", "Unbounded Shared Age TopK QuantizeOld Forget"),
    ],
)
def test_a_published_policy_is_these_six_parts(name, parts):
    made = agentkv.policy(name)
    assert made.name == name
    assert " ".join(type(part).__name__ for part in parts_of(made)) == parts
    made.fitted(None if parts.startswith("Unbounded") else 512)


def test_no_policy_is_left_out_above():
    mark = test_a_published_policy_is_these_six_parts.pytestmark[0]
    assert {case[0] for case in mark.args[1]} == set(NAMED)


def test_policies_are_in_alphabetical_order_each_after_the_one_it_builds_on():
    assert list(NAMED)[:4] == ["arkv", "conf-kv", "conf-kv-int8", "conf-kv-l"]
    family = [name for name in NAMED if "snapkv" in NAMED[name].lineage]
    assert family[:3] == ["snapkv", "ada-snapkv", "ada-pyramidkv"]
    firsts = [named.lineage[0] for named in NAMED.values()]
    assert firsts == sorted(firsts)
    for name, named in NAMED.items():
        assert set(named.lineage[:-1]) <= set(list(NAMED)[: list(NAMED).index(name)])


def test_a_policy_has_the_parameters_of_the_one_it_builds_on():
    for named in NAMED.values():
        if isinstance(named.base, NamedPolicy):
            assert set(named.base.parameters) <= set(named.parameters)
    assert NAMED["lookback"].declared["slack"].help == NAMED["window"].declared["slack"].help
    assert agentkv.policy("lookback").gate.slack == NAMED["lookback"].parameters["slack"] == 63
    assert agentkv.policy("streaming-int8").selector.sinks == 256


def test_an_unknown_name_is_answered_with_the_known_ones():
    with pytest.raises(ValueError, match="unknown policy 'gatd'; known: ada-pyramidkv, .*window"):
        agentkv.policy("gatd")
    with pytest.raises(ValueError, match="unknown policy 'gatd'"):
        about("gatd")


@pytest.mark.parametrize(
    ("name", "parameters", "message"),
    [
        ("window", {"sinks": 4}, "'window' has no parameter 'sinks'; known: slack, schedule"),
        ("streaming", {"threshold": 0.5}, "known: sinks, slack"),
        ("full", {"slack": 1}, "has no parameter 'slack'; it has none"),
        ("conf-kv", {"recent": 64}, "no parameter 'recent'"),
        ("conf-kv", {"weights": (1, 1, 1)}, "weights must be three shares"),
        ("conf-kv", {"weights": 3}, "weights must be 3 numbers"),
        ("conf-kv", {"decay": 1.0}, "decay must be"),
        ("conf-kv", {"mass_weight": 1.5}, "mass_weight must be"),
        ("conf-kv", {"tight": 0}, "tight must be"),
        ("conf-kv", {"protected": -1}, "protected must be"),
        ("conf-kv", {"threshold": "high"}, "threshold must be a number; found 'high'"),
        ("conf-kv-int8", {"recent": 1.5}, "recent must be"),
        ("conf-kv-int8", {"format": "int9"}, "format must be one of int8, fp8, int4, nf4"),
        ("conf-kv-l", {"slope": (1.25,)}, "slope must be 2 numbers"),
        ("streaming", {"sinks": True}, "sinks must be"),
        ("h2o", {"protected": 0.5}, "protected must be"),
        ("h2o", {"normalize": 1}, "normalize must be true or false; found 1"),
        ("scissorhands", {"history": 0}, "history must be"),
        ("scissorhands", {"drop": 1.0}, "drop must be"),
        ("scissorhands", {"variant": "mean"}, "variant must be one of count, sum"),
        ("lazy-eviction", {"threshold": 0}, "threshold must be more than 0"),
        ("expected-attention", {"queries": 0}, "queries must be"),
        ("expected-attention", {"horizon": 1.5}, "horizon must be"),
        ("expected-attention", {"sinks": -1}, "sinks must be"),
        ("expected-attention", {"epsilon": -1}, "epsilon must be at least 0"),
        ("triattention", {"queries": 0}, "queries must be"),
        ("triattention", {"horizon": 0}, "horizon must be"),
        ("snapkv", {"window": 0}, "window must be"),
        ("snapkv", {"kernel": 4}, "kernel must be an odd"),
        ("snapkv", {"pool": "mean"}, "pool must be one of max, avg; found 'mean'"),
        ("snapkv", {"schedule": "sometimes"}, "schedule must be one of always, prefill"),
        ("snapkv-by-phase", {"window": 0}, "window must be"),
        ("window-by-span", {"left": None}, "left must be a number"),
        ("window-by-span", {"replies": -1}, "replies must be at least 0"),
        ("snapkv-by-span", {"left": -1}, "left must be at least 0"),
        ("snapkv-by-span", {"replies": "more"}, "replies must be a number"),
        ("pyramidkv", {"beta": 0}, "beta must be at least 1"),
        ("ada-snapkv", {"floor": -0.1}, "floor must be"),
        ("ada-pyramidkv", {"safeguard": "both"}, "safeguard must be one of mix, guarantee"),
        ("critical-snapkv", {"first_stage": 2}, "first_stage must be"),
        ("critical-pyramidkv", {"epsilon": -1}, "epsilon must be at least 0"),
        ("critical-ada-snapkv", {"gqa": "sum"}, "gqa must be one of mean_norm"),
        ("arkv", {"tau2": 0}, "tau2 must be more than 0"),
        ("arkv", {"estimate": "twice"}, "estimate must be one of once, every_trim; found 'twice'"),
        ("arkv", {"gamma": None}, "gamma must be a number; found None"),
        ("arkv", {"alpha": 1.1}, "alpha must be"),
        ("arkv", {"dense": 1.5}, "dense must be in"),
        ("edie", {"alpha": -0.1}, "alpha must be at least 0"),
        ("edie", {"importance": "vatp"}, "importance must be one of error, paasvn, aas"),
        ("edie", {"token_weight": "last"}, "token_weight must be one of middle, not_first"),
        ("edie-tada", {"by_shift": 1}, "by_shift must be true or false; found 1"),
        ("edie-tada", {"least": -1}, "least must be"),
        ("int8", {"recent": None}, "recent must be"),
    ],
)
def test_a_parameter_that_cannot_be_is_refused_by_name(name, parameters, message):
    with pytest.raises(agentkv.PolicyError, match=message):
        agentkv.policy(name, **parameters)


@pytest.mark.parametrize("name", sorted(NAMED))
def test_every_parameter_is_explained_and_reported(name):
    known, said = parameters_of(name), about(name)
    assert agentkv.policy(name).parameters == known
    assert all(parameter.help.endswith(".") for parameter in said.declared.values()), said.declared
    summary = said.paragraphs[0]
    assert summary.endswith(".") and len(summary) <= 100


@pytest.mark.parametrize("name", EVICTING)
def test_whatever_evicts_can_do_so_after_prompts_alone(name):
    assert agentkv.policy(name).gate.bounded
    gate = agentkv.policy(name, schedule="prefill").fitted(512).gate
    assert not gate.bounded and gate.is_due(2, 0) and not gate.is_due(1, 1)
    assert agentkv.policy(name, slack=5).gate.slack == 5
    if not isinstance(gate, Confident):
        assert agentkv.policy(name, interval=2).gate.is_due(1, 2)


def test_a_parameter_has_the_help_of_its_own_policy():
    assert "an eighth of loose" in about("conf-kv-l").declared["protected"].help
    assert "half of the budget" in about("h2o").declared["protected"].help
    assert about("nf4").declared["recent"].help == about("int8").declared["recent"].help
    assert (
        about("snapkv").declared["window"].help
        == about("critical-ada-snapkv").declared["window"].help
    )
    assert about("critical-ada-snapkv").source == "CriticalKV (arXiv 2502.03805)"


def test_equal_parts_are_equal_values():
    assert agentkv.policy("conf-kv", threshold=0.5) == agentkv.policy("conf-kv", threshold=0.5)
    assert agentkv.policy("conf-kv", threshold=0.5) != agentkv.policy("conf-kv")
    assert parts_of(agentkv.policy("streaming", sinks=0)) == parts_of(agentkv.policy("window"))
    assert parts_of(agentkv.policy("edie-tada")) == parts_of(agentkv.policy("edie-tada"))


def test_a_list_from_a_file_is_as_good_as_a_tuple():
    for name, key in (("conf-kv", "weights"), ("conf-kv-l", "slope")):
        given = {key: list(parameters_of(name)[key])}
        assert parts_of(agentkv.policy(name, **given)) == parts_of(agentkv.policy(name))


@pytest.mark.parametrize(
    ("budget", "tight", "protected", "recent"),
    [(512, 256, 64, 256), (256, 128, 32, 128), (100, 50, 12, 50), (1, 1, 0, 0)],
)
def test_the_papers_settings_follow_from_the_budget(budget, tight, protected, recent):
    fitted = agentkv.policy("conf-kv-int8").fitted(budget)
    assert (fitted.gate.loose, fitted.gate.tight) == (budget, tight)
    assert fitted.selector.protected == protected
    assert fitted.precision.recent == recent


def test_a_window_is_scored_with_and_protected():
    for name in EVICTING:
        if "window" in parameters_of(name):
            made = agentkv.policy(name, window=16).fitted(64)
            assert made.scorer.window == made.selector.protected == 16
            with pytest.raises(ValueError, match="16 protected entries do not fit"):
                agentkv.policy(name, window=16).fitted(15)


def test_policies_that_build_on_another_are_that_one_at_the_ends_of_their_parameters():
    snapkv = agentkv.policy("snapkv").fitted(128)
    flat = agentkv.policy("pyramidkv", beta=1).fitted(128)
    level = agentkv.policy("ada-snapkv", floor=1.0).fitted(128)
    same = agentkv.policy("conf-kv-l", slope=(1.0, 1.0)).fitted(128)
    scores = torch.rand(4, 300, generator=torch.Generator().manual_seed(0))
    for other in (flat, level):
        assert other.allocator.layers(128, 8, 5000) == snapkv.allocator.layers(128, 8, 5000)
        assert torch.equal(other.allocator.heads(scores, 96), snapkv.allocator.heads(scores, 96))
        assert (other.scorer, other.selector) == (snapkv.scorer, snapkv.selector)
    assert same.allocator.layers(128, 8, 5000) == (128,) * 8
    raw = agentkv.policy("ada-pyramidkv").fitted(128).allocator
    assert raw.layers(128, 8, 5000) == agentkv.policy("pyramidkv").fitted(128).allocator.layers(
        128, 8, 5000
    )


@pytest.mark.parametrize(
    ("base", "part", "other", "message"),
    [
        ("conf-kv", "allocator", "ada-snapkv", "AttentionAndRecency .* Adaptive makes entries"),
        (
            "conf-kv-int8",
            "allocator",
            "edie-tada",
            "EnergyAllocator makes entries of different heads",
        ),
        ("scissorhands", "allocator", "ada-pyramidkv", "Unimportance scores of different heads"),
        ("ada-snapkv", "scorer", "conf-kv", "different units"),
        ("h2o", "precision", "arkv", "HeavyHitters keeps no window"),
        ("arkv", "gate", "full", "Unbounded lets none go; take a gate with a budget"),
    ],
)
def test_parts_that_make_no_sense_together_are_refused(base, part, other, message):
    with pytest.raises(agentkv.PolicyError, match=message):
        replace(agentkv.policy(base), **{part: getattr(agentkv.policy(other), part)})


@pytest.mark.parametrize("given", [{"pooled": False}, {"gqa": "product_then_mean"}])
def test_a_selector_that_reads_a_window_wants_a_scorer_that_keeps_one(given):
    selector = agentkv.policy("critical-snapkv", **given).selector
    with pytest.raises(agentkv.PolicyError, match="HeavyHitters keeps no window"):
        replace(agentkv.policy("h2o"), selector=selector)
    replace(agentkv.policy("h2o"), selector=agentkv.policy("critical-snapkv").selector)
    replace(agentkv.policy("edie"), selector=selector)


@pytest.mark.parametrize("part", PARTS)
def test_any_part_may_come_from_any_policy_or_is_refused_in_words(part):
    parts = [getattr(agentkv.policy(other), part) for other in NAMED]
    for base in map(agentkv.policy, EVICTING):
        for given in parts:
            try:
                replace(base, **{part: given}).fitted(256)
            except agentkv.PolicyError as error:
                assert len(str(error)) > 20, (base, given)


def test_a_look_back_by_queries_refuses_a_scorer_that_keeps_those_of_phases_apart():
    turned = agentkv.policy("lookback", when="turned").recall
    replace(agentkv.policy("snapkv"), recall=turned)
    with pytest.raises(agentkv.PolicyError, match="ByPhase keeps those of pages and of replies"):
        replace(agentkv.policy("snapkv-by-phase"), recall=turned)


def newest(entries):
    return entries.positions.to(torch.float32)


def test_a_function_makes_a_policy_of_ones_own():
    made = agentkv.scored("mine", newest, window=8, protected=4, sinks=2, slack=3, shared=True)
    assert (made.name, made.scorer.window, made.gate.slack) == ("mine", 8, 3)
    assert (made.selector.sinks, made.selector.protected) == (2, 4)
    assert made.allocator.shared and not agentkv.scored("mine", newest).allocator.shared
    assert made.parameters["window"] == 8
    assert made.fitted(16).gate.ceiling == 16


def test_a_function_lets_heads_compete_once_it_says_its_scores_compare():
    with pytest.raises(ValueError, match="policy 'mine': Function scores of different heads"):
        replace(agentkv.scored("mine", newest), allocator=Adaptive())
    compares = agentkv.scored("mine", newest, comparable=True)
    assert replace(compares, allocator=Adaptive()).allocator.pools


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"name": ""}, "a policy needs a name; found ''"),
        ({"function": 3}, "policy 'mine' needs a function of Entries; found 3"),
        ({"window": -1}, "window must be"),
        ({"sinks": 1.5}, "sinks must be"),
        ({"shared": "yes"}, "shared must be true or false; found 'yes'"),
    ],
)
def test_a_function_that_makes_no_policy_is_refused(given, message):
    with pytest.raises(agentkv.PolicyError, match=message):
        agentkv.scored(**{"name": "mine", "function": newest, **given})
