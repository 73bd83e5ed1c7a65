"""Tests for scoring policies on recorded episodes with teacher forcing."""

from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer
from transformers import LlamaForCausalLM

import agentkv
from agentkv.dialog.prompt import PlainTemplate
from train_nano.annotate import annotate
from train_nano.drills import Drills
from train_nano.episode import TrainingRow, encode
from train_nano.loss import losses, per_reply
from train_nano.model import configure, initialize
from train_nano.teacher_forcing import ForcedReply, score_replies, summarize

SHIPPED = Path(agentkv.__file__).parent / "models" / "nano" / "tokenizer.json"


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(SHIPPED))


@pytest.fixture(scope="module")
def model(tokenizer: Tokenizer) -> LlamaForCausalLM:
    model = initialize(configure(tokenizer, width=32, layers=2, inner=64), tokenizer, seed=1)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return model.eval()


@pytest.fixture(scope="module")
def row(tokenizer: Tokenizer) -> TrainingRow:
    return encode(PlainTemplate(tokenizer), annotate(Drills(3).walk(8)))


def score(
    model: LlamaForCausalLM, row: TrainingRow, policy: str, **options: object
) -> list[ForcedReply]:
    cache = agentkv.Cache.for_model(model, policy=policy, chunk=16, **options)  # type: ignore[arg-type]
    return list(score_replies(model, cache, row))


def test_a_full_cache_scores_replies_as_one_forward_pass_does(
    model: LlamaForCausalLM, row: TrainingRow
) -> None:
    loss, correct, _ = losses(model, [row], torch.device("cpu"), torch.float32)
    replies = score(model, row, "full")
    assert [reply.is_correct for reply in replies] == [hit for _, hit in per_reply([row], correct)]
    assert sum(reply.nll for reply in replies) == pytest.approx(
        float(loss.detach().sum()), rel=1e-3
    )


def test_a_policy_that_drops_entries_changes_only_replies_after_the_first_drop(
    model: LlamaForCausalLM, row: TrainingRow
) -> None:
    budget = 200
    full, window = score(model, row, "full"), score(model, row, "window", budget=budget)
    assert [reply.seen for reply in window] == [reply.seen for reply in full]
    equal = [abs(a.nll - b.nll) < 1e-3 for a, b in zip(full, window, strict=True)]
    reached = [budget < reply.seen for reply in full]
    assert any(reached) and not all(reached)
    assert all(same for same, late in zip(equal, reached, strict=True) if not late)
    assert not all(equal)


def test_replies_are_aggregated_by_the_length_of_their_context() -> None:
    replies = [
        ForcedReply(10, True, 1.0, 9),
        ForcedReply(99, False, 2.5, 9),
        ForcedReply(100, True, 0.25, 9),
    ]
    assert summarize(replies, far=100) == {
        "near": {"replies": 2, "right": 1, "nll": 3.5},
        "far": {"replies": 1, "right": 1, "nll": 0.25},
    }
