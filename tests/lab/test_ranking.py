"""`agentkv_lab ranking`: one schedule, several ways to rank."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

import agentkv
from agentkv.cache.cache import Cache
from agentkv_lab.__main__ import lab
from agentkv_lab.ranking import rankings, read
from tests.agentkv.reference.test_reference import model_of

IDS, SEEN = [(11 * i) % 41 + 1 for i in range(60)], 50
CONF_KV = agentkv.policy("conf-kv", threshold=0.45, tight=12, protected=4)
SNAPKV = agentkv.policy("snapkv", window=4, kernel=3)


def reading(policy, confidences=None):
    model = model_of("llama")
    cache = Cache.for_model(model, policy=policy, budget=24, chunk=8)
    return read(model, cache, IDS, SEEN, confidences)


def test_a_reading_with_its_own_confidences_is_the_same_reading():
    own = reading(CONF_KV)
    assert len(own.nll) == 10 and len(own.confidences) == 11  # 50 tokens at once, then one by one
    assert min(own.confidences) < 0.45 < max(own.confidences), "both budgets are used"
    assert reading(CONF_KV, own.confidences) == own
    opposite = [1 - each for each in own.confidences]
    assert reading(CONF_KV, opposite).entries != own.entries


@pytest.mark.parametrize("policy", [CONF_KV, SNAPKV], ids=lambda policy: policy.name)
def test_every_ranking_evicts_as_many_entries_and_others(policy):
    own = reading(policy)
    for name, other in rankings(policy, 0).items():
        found = reading(other, own.confidences)
        assert found.entries == own.entries, name
        assert found.nll != own.nll, name


def test_random_rankings_are_seeded():
    confidences = reading(CONF_KV).confidences
    for name in ("random", "random, once"):
        first, again, other = (
            reading(rankings(CONF_KV, seed)[name], confidences).nll for seed in (0, 0, 1)
        )
        assert first == again and first != other


def test_age_as_the_ranking_of_a_fixed_budget_is_a_window():
    aged = rankings(agentkv.policy("h2o", protected=4), 0)["age"]
    assert reading(aged).nll == pytest.approx(reading(agentkv.policy("window")).nll)


def test_the_command_writes_a_row_for_each_ranking(bees: Path, tmp_path: Path):
    out = tmp_path / "ranking.jsonl"
    arguments = (
        f"ranking --model nano --text {bees} --policies conf-kv --seen 200 --tokens 3 --samples 2 "
        f"--entries 128 --threads 1 --out {out}"
    )
    result = CliRunner().invoke(lab, arguments.split())
    assert result.exit_code == 0, result.output
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    names = ["own", "own", "own", "attention", "age", "random", "random, once"]
    assert [row["ranking"] for row in rows] == names
    assert len({row["mean_entries"] for row in rows[2:]}) == 1


@pytest.mark.parametrize(
    ("policy", "message"),
    [("full", "it evicts nothing"), ("conf-kv-int8", "it quantizes"), ("lookback", "looks back")],
)
def test_a_policy_that_does_more_than_evict_is_refused(
    policy: str, message: str, bees: Path, tmp_path: Path
):
    arguments = f"ranking --text {bees} --policies {policy} --out {tmp_path / 'x.jsonl'}"
    result = CliRunner().invoke(lab, arguments.split())
    assert result.exit_code == 2 and message in " ".join(result.output.split())
