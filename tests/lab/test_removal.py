"""`agentkv_lab removal`: the exact change of an output, and which measures rank by it."""

import json
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from agentkv_lab.__main__ import lab
from agentkv_lab.outputs import LayerOutput
from agentkv_lab.removal import measures, num_found, removed


def random_layer() -> LayerOutput:
    draw = torch.Generator().manual_seed(0)
    attention = torch.randn(2, 3, 1, 9, generator=draw).softmax(dim=-1)
    values = torch.randn(2, 9, 4, generator=draw)
    return LayerOutput(attention, values, values[:, None].expand(2, 3, 9, 4))


def test_the_change_is_that_of_attention_without_the_entry():
    layer = random_layer()
    found = removed(layer.weights, layer.values)
    for entry in range(9):
        left = layer.weights.clone()
        left[..., entry] = 0
        left = left / left.sum(dim=-1, keepdim=True)
        change = (layer.weights - left) @ layer.values
        torch.testing.assert_close(found[..., entry].float(), change.abs().sum(dim=-1))


def test_edies_bound_is_never_below_the_exact_change_without_its_alpha():
    layer = random_layer()
    exact, bound = removed(layer.weights, layer.values), measures(layer)["EDIE's bound"]
    weights = layer.weights
    without_alpha = bound * (1.1 - weights) / (1 - weights)
    assert bool((exact <= without_alpha + 1e-6).all())


def test_attention_alone_misses_an_entry_with_a_large_value():
    values = torch.tensor([[[1.0], [1.1], [9.0]]])
    weights = torch.tensor([0.45, 0.4, 0.15]).view(1, 1, 1, 3)
    layer = LayerOutput(weights, values, values[:, None])
    exact = removed(layer.weights, layer.values)
    found = {name: int(num_found(x, exact, 1)) for name, x in measures(layer).items()}
    assert exact.argmax() == 2
    assert (found["attention"], found["times norm"]) == (0, 1)


def test_a_measure_finds_itself():
    scores = torch.rand(4, 20, generator=torch.Generator().manual_seed(0))
    assert num_found(scores, scores, 6).tolist() == [6] * 4
    assert num_found(scores, -scores, 6).tolist() == [0] * 4


def test_the_command_writes_a_row_for_each_measure(bees: Path, tmp_path: Path):
    out = tmp_path / "removal.jsonl"
    arguments = (
        f"removal --model nano --text {bees} --seen 80 --samples 2 --most 4 --threads 1 --out {out}"
    )
    result = CliRunner().invoke(lab, arguments.split())
    assert result.exit_code == 0, result.output
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert [row["label"] for row in rows] == ["attention", "times norm", "EDIE's bound"]
    counts = [x for row in rows for sample in row["found"] for layer in sample for x in layer]
    assert set(counts) <= set(range(5)) and max(counts) == 4


@pytest.mark.parametrize("most", ["81", "0"])
def test_a_wrong_number_is_refused(most: str, bees: Path, tmp_path: Path):
    arguments = f"removal --text {bees} --seen 80 --most {most} --out {tmp_path / 'x.jsonl'}"
    assert CliRunner().invoke(lab, arguments.split()).exit_code == 2
