"""Policies on recorded episodes."""

from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer
from transformers import LlamaForCausalLM

import agentkv
from agentkv.dialog.prompt import PlainTemplate
from train_nano.annotate import annotated
from train_nano.drills import Drills
from train_nano.episode import Row, encode
from train_nano.forced import Forced, forced, summary
from train_nano.loss import losses, per_reply
from train_nano.model import configure, initialise

SHIPPED = Path(agentkv.__file__).parent / "models" / "nano" / "tokenizer.json"


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(SHIPPED))


@pytest.fixture(scope="module")
def model(tokenizer: Tokenizer) -> LlamaForCausalLM:
    model = initialise(configure(tokenizer, width=32, layers=2, inner=64), tokenizer, seed=1)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return model.eval()


@pytest.fixture(scope="module")
def row(tokenizer: Tokenizer) -> Row:
    return encode(PlainTemplate(tokenizer), annotated(Drills(3).walk(8)))


def under(model: LlamaForCausalLM, row: Row, policy: str, **options: object) -> list[Forced]:
    cache = agentkv.Cache.for_model(model, policy=policy, chunk=16, **options)  # type: ignore[arg-type]
    return list(forced(model, cache, row))


def test_under_a_full_cache_replies_are_as_likely_as_in_one_pass(
    model: LlamaForCausalLM, row: Row
) -> None:
    lost, correct, _ = losses(model, [row], torch.device("cpu"), torch.float32)
    replies = under(model, row, "full")
    assert [reply.is_right for reply in replies] == [hit for _, hit in per_reply([row], correct)]
    assert sum(reply.nll for reply in replies) == pytest.approx(
        float(lost.detach().sum()), rel=1e-3
    )


def test_a_policy_that_drops_rows_changes_the_replies_after_it_and_no_earlier_one(
    model: LlamaForCausalLM, row: Row
) -> None:
    budget = 200
    whole, some = under(model, row, "full"), under(model, row, "window", budget=budget)
    assert [reply.seen for reply in some] == [reply.seen for reply in whole]
    alike = [abs(a.nll - b.nll) < 1e-3 for a, b in zip(whole, some, strict=True)]
    reached = [budget < reply.seen for reply in whole]
    assert any(reached) and not all(reached)
    assert all(same for same, late in zip(alike, reached, strict=True) if not late)
    assert not all(alike)


def test_replies_are_counted_by_what_was_read_before_them() -> None:
    replies = [Forced(10, True, 1.0), Forced(99, False, 2.5), Forced(100, True, 0.25)]
    assert summary(replies, far=100) == {
        "near": {"replies": 2, "right": 1, "nll": 3.5},
        "far": {"replies": 1, "right": 1, "nll": 0.25},
    }
