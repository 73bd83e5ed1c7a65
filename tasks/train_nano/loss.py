"""Batches, losses and accuracy of training rows."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import LlamaForCausalLM

from train_nano.episode import Row
from train_nano.model import hidden_states, pad

MAX_PADDED = 4096
"""Maximum tokens of a batch with padding. Only a single longer row exceeds it."""


def batches(rows: Sequence[Row]) -> Iterator[list[Row]]:
    """Group `rows` by length into batches that need little padding."""
    group: list[Row] = []
    for row in sorted(rows, key=lambda row: len(row.ids)):
        short = group and len(group[0].ids) < 0.75 * len(row.ids)
        if group and (short or len(row.ids) * (len(group) + 1) > MAX_PADDED):
            yield group
            group = []
        group.append(row)
    if group:
        yield group


def losses(
    model: LlamaForCausalLM,
    rows: Sequence[Row],
    device: torch.device,
    dtype: torch.dtype = torch.bfloat16,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the loss, correctness and weight of each token with a positive weight.

    The three tensors are one-dimensional and follow the rows in order. The loss is multiplied by
    the weight. Matrix products use `dtype`, bfloat16 or float32.
    """
    ids = pad([row.ids for row in rows], 0).to(device)  # (B, T)
    weights = pad([row.weights for row in rows], 0).to(device, torch.float32)
    positions = pad([row.positions for row in rows], 0).to(device)
    counted = weights[:, 1:] > 0
    with torch.autocast(device.type, dtype=torch.bfloat16, enabled=dtype == torch.bfloat16):
        hidden = hidden_states(model, ids[:, :-1], positions[:, :-1], counted)
        logits = model.lm_head(hidden)  # (N, V)
    target, weight = ids[:, 1:][counted], weights[:, 1:][counted]
    loss = F.cross_entropy(logits.to(torch.float32), target, reduction="none")
    return loss * weight, logits.argmax(-1) == target, weight


def per_token(rows: Sequence[Row], correct: Tensor) -> Iterator[tuple[str, bool]]:
    """Yield the row's kind and whether the token was predicted, for each weighted token."""
    hits = iter(correct.tolist())
    for row in rows:
        for weight in row.weights[1:]:
            if weight > 0:
                yield row.kind, next(hits)


def per_reply(rows: Sequence[Row], correct: Tensor) -> Iterator[tuple[Row, bool]]:
    """Yield the row and whether all tokens were predicted, for each run of weighted tokens."""
    hits = iter(correct.tolist())
    for row in rows:
        is_exact: bool | None = None
        for weight in row.weights[1:]:
            hit = next(hits) if weight > 0 else None
            if weight > 0:
                is_exact = hit if is_exact is None else is_exact and bool(hit)
            elif is_exact is not None:
                yield row, is_exact
                is_exact = None
        if is_exact is not None:
            yield row, is_exact


class Accuracy:
    """Counts of all answers and of correct answers, by kind."""

    def __init__(self) -> None:
        self.total: Counter[str] = Counter()
        self.correct: Counter[str] = Counter()

    def __add__(self, other: "Accuracy") -> "Accuracy":
        both = Accuracy()
        both.total, both.correct = self.total + other.total, self.correct + other.correct
        return both

    def add(self, answers: Iterable[tuple[str, bool]]) -> None:
        """Count `answers`, pairs of a kind and whether the answer was correct."""
        for kind, hit in answers:
            self.total[kind] += 1
            self.correct[kind] += hit

    def share(self, kinds: Iterable[str]) -> float:
        """Return the share of correct answers among `kinds`, 0 without answers."""
        kinds = tuple(kinds)
        total = sum(self.total[kind] for kind in kinds)
        return sum(self.correct[kind] for kind in kinds) / total if total else 0.0
