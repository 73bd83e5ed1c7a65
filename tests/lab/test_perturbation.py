"""`agentkv_lab perturbation`: what outputs lose, in known cases and beside plain modules."""

import json
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import agentkv
from agentkv.cache.cache import Cache
from agentkv_lab.__main__ import lab
from agentkv_lab.outputs import LayerOutput, output_without, read_outputs
from agentkv_lab.perturbation import compressed, hidden_states, kept_by, loss_of
from tests.agentkv.reference.test_reference import model_of

IDS = [(7 * i) % 43 + 1 for i in range(41)]
WINDOW = {"window": 4, "kernel": 3}


@torch.no_grad()
def test_contributions_add_up_to_the_output_of_the_attention_module():
    layers = list(read_outputs(model_of("llama"), IDS, 3))
    plain, found = model_of("llama"), []
    for layer in plain.model.layers:
        layer.self_attn.o_proj.register_forward_hook(lambda *call: found.append(call[2][0, -1]))
    plain(torch.tensor([IDS]))
    assert len(layers) == len(found) == 3
    for layer, wanted in zip(layers, found, strict=True):
        assert layer.attention.shape == (2, 2, 3, 41)
        own = (layer.weights[..., None] * layer.projected).sum(dim=(0, 1, 2))
        torch.testing.assert_close(own, wanted.float(), rtol=1e-4, atol=1e-4)


def test_nothing_is_lost_if_all_entries_stay():
    for layer in read_outputs(model_of("llama"), IDS, 1):
        loss = loss_of(layer, torch.ones(2, 41, dtype=torch.bool))
        for value in (*loss.by_head, *loss.by_group, loss.layer, loss.bound):
            assert value == pytest.approx(0, abs=1e-3)


def test_the_loss_and_both_bounds_of_a_known_case():
    # two entries draw half of the attention each and contribute 1 and 3: 2 becomes 1
    layer = LayerOutput(
        attention=torch.tensor([0.5, 0.5]).view(1, 1, 1, 2),
        values=torch.tensor([1.0, 3.0]).view(1, 2, 1),
        projected=torch.tensor([1.0, 3.0]).view(1, 1, 2, 1),
    )
    kept = torch.tensor([[True, False]])
    assert output_without(layer, kept).item() == 1
    loss = loss_of(layer, kept)
    assert (loss.by_head, loss.by_group, loss.layer) == ((1.0,), (1.0,), 1.0)
    assert loss.bound == 2 * 3 * (1 - 0.5)
    assert loss.bound_by_head == (2 - (2 - 1 / 0.5) * 0.5,)


@pytest.mark.parametrize("name", ["paper:snapkv", "paper:critical-snapkv", "paper:ada-snapkv"])
def test_no_loss_exceeds_its_bound(name: str):
    model, lost = model_of("llama"), []
    cache = compressed(model, agentkv.policy(name, **WINDOW), 12, IDS[:-1])
    for number, layer in enumerate(read_outputs(model_of("llama"), IDS, 1)):
        kept = kept_by(cache, number, 2, 41)
        assert int(kept.sum()) == 2 * 12 + 2, "the budget, and the newest entry of each head"
        loss = loss_of(layer, kept)
        assert loss.layer <= loss.bound
        assert all(a <= b + 1e-4 for a, b in zip(loss.by_head, loss.bound_by_head, strict=True))
        lost.append(loss.layer)
    assert max(lost) > 0.01


def test_hidden_states_are_compared_after_each_layer():
    model = model_of("llama")
    states = []
    for policy, budget in (("full", None), (agentkv.policy("paper:snapkv", **WINDOW), 12)):
        cache = Cache.for_model(model, policy=policy, budget=budget, prefill="whole")
        cache.feed(model, torch.tensor([IDS[:-1]]))
        states.append(hidden_states(model, cache, IDS[-1]))
    plain = model_of("llama")(torch.tensor([IDS]), output_hidden_states=True).hidden_states
    wanted = torch.stack([each[0, -1].float() for each in plain[1:]])
    torch.testing.assert_close(states[0], wanted, rtol=1e-4, atol=1e-4)
    assert bool(((states[1] - wanted).abs().sum(dim=1) > 0.01).all())


def test_the_command_compares_a_critical_policy_with_the_same_one_without(
    bees: Path, tmp_path: Path
):
    out = tmp_path / "perturbation.jsonl"
    policies = "window,paper:ada-snapkv,paper:critical-ada-snapkv"
    arguments = (
        f"perturbation --model nano --text {bees} --policies {policies} --seen 150 --samples 2 "
        f"--budgets 48,64 --threads 1 --out {out}"
    )
    result = CliRunner().invoke(lab, arguments.split())
    assert result.exit_code == 0, result.output
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert [row["budget"] for row in rows] == [48] * 3 + [64] * 3
    assert len(rows[0]["hidden"]) == 2 and len(rows[0]["by_head"][0]) == len(rows[0]["hidden"][0])
    table, _, bounds = result.output.partition("loss ")
    lines = [line for line in table.splitlines() if line.lstrip().startswith(("48", "64"))]
    assert ["%" in line for line in lines] == [False, True, True] * 2
    assert bounds.count("100,") == 12, "all losses are within both bounds"


def test_a_policy_that_evicts_nothing_is_refused(bees: Path, tmp_path: Path):
    arguments = f"perturbation --text {bees} --policies full --out {tmp_path / 'x.jsonl'}"
    result = CliRunner().invoke(lab, arguments.split())
    assert result.exit_code == 2 and "give policies that evict" in " ".join(result.output.split())
