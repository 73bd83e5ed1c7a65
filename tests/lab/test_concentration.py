"""`agentkv_lab concentration`: known attention, and nano's."""

import json
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from agentkv_lab.__main__ import lab
from agentkv_lab.concentration import allocations, lost, needed

SHARP_AND_FLAT = torch.tensor([[1.0, 0.0, 0.0, 0.0], [0.25, 0.25, 0.25, 0.25]])


def test_the_fewest_entries_that_hold_a_share_are_counted():
    weights = torch.tensor([[0.2, 0.5, 0.3], [0.1, 0.1, 0.8]])
    assert needed(weights, 0.8).tolist() == [2, 1]
    assert needed(weights, 0.81).tolist() == [3, 2]
    assert needed(SHARP_AND_FLAT, 0.99).tolist() == [1, 4]


def test_heads_that_compete_give_a_flat_head_what_a_sharp_one_cannot_use():
    found = allocations(SHARP_AND_FLAT, 2)
    assert found["equal"].tolist() == [2, 2]
    assert found["adaptive"].tolist() == [1, 3]
    assert lost(SHARP_AND_FLAT, found["equal"]).tolist() == [0, 0.5]
    assert lost(SHARP_AND_FLAT, found["adaptive"]).tolist() == [0, 0.25]


def test_adaptive_budgets_never_lose_more_than_equal_ones():
    draw = torch.Generator().manual_seed(0)
    for _ in range(20):
        sharpness = 8 * torch.rand(5, 1, generator=draw)
        weights = (sharpness * torch.randn(5, 60, generator=draw)).softmax(dim=-1)
        found = {name: lost(weights, n).sum() for name, n in allocations(weights, 12).items()}
        assert found["adaptive"] <= found["equal"]


def test_the_command_writes_one_row_with_shares_and_budgets(bees: Path, tmp_path: Path):
    out = tmp_path / "concentration.jsonl"
    arguments = (
        f"concentration --model nano --text {bees} --seen 150 --samples 2 --budgets 16,32 "
        f"--threads 1 --out {out}"
    )
    result = CliRunner().invoke(lab, arguments.split())
    assert result.exit_code == 0, result.output
    (row,) = [json.loads(line) for line in out.read_text().splitlines()]
    half, most = (row["needed"][share][0][0] for share in ("0.5", "0.99"))
    assert all(1 <= a <= b <= 150 for a, b in zip(half, most, strict=True)) and half != most
    for budget in ("16", "32"):
        equal, adaptive = (row["lost"][budget][name][1] for name in ("equal", "adaptive"))
        assert all(b <= a + 1e-6 for a, b in zip(equal, adaptive, strict=True))
    assert row["lost"]["32"]["equal"][0][0] < row["lost"]["16"]["equal"][0][0]


def test_a_budget_of_the_whole_text_is_refused(bees: Path, tmp_path: Path):
    arguments = f"concentration --text {bees} --seen 64 --out {tmp_path / 'x.jsonl'}"
    result = CliRunner().invoke(lab, arguments.split())
    assert result.exit_code == 2 and "expected less than --seen 64" in " ".join(
        result.output.split()
    )


@pytest.mark.parametrize("share", [0.5, 0.95])
def test_rounding_asks_for_no_entry_more(share: float):
    assert needed(torch.full((1, 20), 0.05), share).tolist() == [round(20 * share)]
