"""A contender of another library that fails is left out, and the rest of the table is made."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from rich.progress import Progress
from torch import Tensor

import agentkv
from agentkv_tasks.bench.contenders import others
from agentkv_tasks.bench.contenders.contender import Ours, Transformers
from agentkv_tasks.bench.contenders.models import twin
from agentkv_tasks.bench.speed.cell import SpeedCell, measure_cell

Measure = Callable[..., tuple[list[dict[str, Any]], str]]


@dataclass(slots=True)
class Fails(Transformers):
    """A rival that cannot hold more than `most` tokens, and says so as libraries do."""

    most: int = 0
    error: Exception = AssertionError()

    def feed(self, ids: Tensor) -> Tensor:
        logits = Transformers.feed(self, ids)
        if self.cache.get_seq_length() > self.most:
            raise self.error
        return logits


def rival(monkeypatch: pytest.MonkeyPatch, most: int, error: Exception) -> None:
    """Let `--against static` have a rival that fails beyond so many tokens."""
    inner = others._in_torch

    def with_a_rival(against: Any, plain: Any, chunk: int, budget: Any) -> Any:
        made = inner((), plain, chunk, budget)
        return made | {"static": lambda: Fails("static", plain, chunk, most=most, error=error)}

    monkeypatch.setattr(others, "_in_torch", with_a_rival)


def test_a_rival_that_fails_at_one_length_is_missing_there_alone(
    measure: Measure, monkeypatch: pytest.MonkeyPatch
) -> None:
    # the check reads 264 tokens, and a round five after those seen
    rival(monkeypatch, 303, RuntimeError("shape '[-1, 64]' is invalid\nfor input of size 4480"))
    rows, said = measure("full", lengths=(150, 300), against=("static",), num_split_rounds=0)
    assert [(row["seen"], row["label"]) for row in rows] == [
        (150, "transformers"),
        (150, "static"),
        (150, "full"),
        (300, "transformers"),
        (300, "full"),
    ]
    wanted = "static: left out after 300 tokens, batch 1, shape '[-1, 64]' is invalid for input of"
    assert [line for line in said.splitlines() if "left out" in line] == [f"{wanted} size 4480"]


def test_a_rival_that_fails_in_its_check_is_missing_everywhere(
    measure: Measure, monkeypatch: pytest.MonkeyPatch
) -> None:
    rival(monkeypatch, 10, AssertionError())
    rows, said = measure("full", lengths=(40,), against=("static",), num_split_rounds=0)
    assert [row["label"] for row in rows] == ["transformers", "full"]
    assert "static: left out, AssertionError" in said.splitlines()


@torch.inference_mode()
def test_failures_of_agentkv_and_of_the_baseline_are_not_hidden(plain: Any) -> None:
    ours = twin(plain, "sdpa")
    agentkv.attach(ours)

    def refuses(rows: Any) -> Tensor:
        raise RuntimeError("ours")

    ids = torch.arange(60)[None]
    cell = SpeedCell(
        ids=ids, seen=50, num_warm_up=1, num_tokens=2, num_rounds=1, num_split_rounds=0
    )
    broken = Ours("broken", {}, agentkv.scored("broken", refuses), ours, 16, 64)
    baseline = Fails("transformers", plain, 64, most=52, error=RuntimeError("theirs"))
    good = Transformers("transformers", plain, 64)
    for contenders, message in (([good, broken], "ours"), ([baseline], "theirs")):
        said: list[str] = []
        with pytest.raises(RuntimeError, match=message):
            list(measure_cell(cell, contenders, Progress(disable=True), said.append))
        assert said == []
