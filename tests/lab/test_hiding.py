"""`agentkv_lab hiding`: predictions without a part of the past."""

import json
from pathlib import Path

import pytest
import torch
from transformers import DynamicCache
from typer.testing import CliRunner

from agentkv_lab.__main__ import lab
from agentkv_lab.confidence.hiding import hidden
from tests.agentkv.reference.test_reference import model_of

IDS, SEEN = [(7 * i) % 43 + 1 for i in range(30)], 24


def test_hiding_nothing_changes_nothing():
    for tokens in hidden(model_of("llama"), IDS, SEEN, recent=0, kept=SEEN + 99):
        assert len(tokens) == 6
        assert [each.divergence for each in tokens] == pytest.approx([0] * 6, abs=1e-9)
        assert not any(each.is_changed for each in tokens)


@torch.no_grad()
def test_hidden_tokens_are_missing_from_the_keys_of_one_token_alone():
    recent, past = hidden(model_of("llama"), IDS, SEEN, recent=5, kept=9)
    plain = model_of("llama")
    ids = torch.tensor([IDS])
    for number, place in enumerate(range(SEEN, len(IDS))):
        cache = plain(ids[:, :place]).past_key_values
        wanted = plain(ids[:, : place + 1]).logits[0, -1].log_softmax(-1)
        for found, gone in (
            (recent, range(place - 5, place)),
            (past, range(place - 9)),
        ):
            stays = [i for i in range(place) if i not in gone]
            less = DynamicCache()
            for i, layer in enumerate(cache.layers):
                less.update(layer.keys[:, :, stays], layer.values[:, :, stays], i)
            position = torch.tensor([[place]])
            given = plain(
                ids[:, place : place + 1],
                past_key_values=less,
                position_ids=position,
                cache_position=position[0],
            )
            odds = given.logits[0, -1].log_softmax(-1)
            divergence = float((wanted.exp() * (wanted - odds)).sum())
            assert found[number].divergence == pytest.approx(divergence, rel=1e-4)
            assert divergence > 1e-3


def test_the_command_writes_a_row_for_the_recent_and_one_for_the_far_past(
    bees: Path, tmp_path: Path
):
    out = tmp_path / "hiding.jsonl"
    arguments = (
        f"hiding --model nano --text {bees} --seen 100 --tokens 4 --samples 2 --recent 20 "
        f"--kept 40 --threads 1 --out {out}"
    )
    result = CliRunner().invoke(lab, arguments.split())
    assert result.exit_code == 0, result.output
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert [row["label"] for row in rows] == ["recent 20", "all but 40"]
    for row in rows:
        assert len(row["divergence"]) == len(row["features"]) == 8
        assert row["mean_divergence"] > 0 and row["source"] == "bees.txt"


def test_more_than_was_seen_cannot_be_hidden(bees: Path, tmp_path: Path):
    arguments = f"hiding --text {bees} --seen 100 --recent 100 --out {tmp_path / 'x.jsonl'}"
    result = CliRunner().invoke(lab, arguments.split())
    assert result.exit_code == 2 and "--recent 100: expected 0 to 99" in result.output
