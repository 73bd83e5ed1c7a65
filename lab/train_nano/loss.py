"""Batches, losses and accuracy of training rows."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import LlamaForCausalLM

from train_nano.episode import TrainingRow
from train_nano.model import hidden_states, pad

Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class BatchSize:
    """Sizes of batches for one kind of device."""

    most: int
    """Maximum tokens of a batch with padding. Only a single longer row exceeds it."""
    spare: int
    """Tokens of padding that cost less than one more batch."""


CPU_BATCH = BatchSize(4096, 0)
CUDA_BATCH = BatchSize(65_536, 4096)
"""A batch is a thousand kernels, whose launches take as long as the work on a few thousand tokens.
"""


def batch_size(device: torch.device) -> BatchSize:
    """Return the sizes of batches on `device`."""
    return CPU_BATCH if device.type == "cpu" else CUDA_BATCH


def batches(
    rows: Sequence[TrainingRow], size: BatchSize = CPU_BATCH
) -> Iterator[list[TrainingRow]]:
    """Group `rows` by length into batches that need little padding."""
    group: list[TrainingRow] = []
    for row in sorted(rows, key=lambda row: len(row.ids)):
        padded = len(row.ids) * (len(group) + 1)
        short = group and len(group[0].ids) < 0.75 * len(row.ids)
        spent = padded - len(row.ids) - sum(len(other.ids) for other in group)
        if group and ((short and spent > size.spare) or padded > size.most):
            yield group
            group = []
        group.append(row)
    if group:
        yield group


def losses(
    model: LlamaForCausalLM,
    rows: Sequence[TrainingRow],
    device: torch.device,
    dtype: torch.dtype = torch.bfloat16,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the loss, correctness and weight of each token with a positive weight.

    The three tensors are one-dimensional and follow the rows in order. The loss is multiplied by
    the weight. Matrix products use `dtype`, bfloat16 or float32.
    """
    ids = pad([row.ids for row in rows], np.int64)  # (B, T)
    positions = pad([row.positions for row in rows], np.int64)
    weights = pad([row.weights for row in rows], np.float32)[:, 1:].flatten()
    chosen = weights.nonzero().flatten()  # (N,) among B * (T - 1)
    target, weight = ids[:, 1:].flatten()[chosen], weights[chosen]
    inputs = ids[:, :-1], positions[:, :-1], chosen, target, weight
    ids, positions, chosen, target, weight = (_move(each, device) for each in inputs)
    with torch.autocast(device.type, dtype=torch.bfloat16, enabled=dtype == torch.bfloat16):
        logits = model.lm_head(hidden_states(model, ids, positions, chosen))  # (N, V)
    loss = F.cross_entropy(logits.to(torch.float32), target, reduction="none")
    return loss * weight, logits.argmax(-1) == target, weight


def _move(tensor: Tensor, device: torch.device) -> Tensor:
    """Copy `tensor` to `device`, to a GPU without waiting for the work there."""
    if device.type == "cpu":
        return tensor
    return tensor.contiguous().pin_memory().to(device, non_blocking=True)


def per_token(rows: Sequence[TrainingRow], correct: Tensor) -> Iterator[tuple[TrainingRow, bool]]:
    """Yield the row and whether the token was predicted, for each weighted token."""
    for row, _, hits in _split(rows, correct):
        for hit in hits.tolist():
            yield row, hit


def per_reply(rows: Sequence[TrainingRow], correct: Tensor) -> Iterator[tuple[TrainingRow, bool]]:
    """Yield the row and whether all tokens were predicted, for each run of weighted tokens."""
    for row, counted, hits in _split(rows, correct):
        starts = np.diff(counted, prepend=False) & counted
        firsts = np.flatnonzero(starts[counted])
        if len(firsts):
            for hit in np.logical_and.reduceat(hits, firsts).tolist():
                yield row, hit


def _split(
    rows: Sequence[TrainingRow], correct: Tensor
) -> Iterator[tuple[TrainingRow, Mask, Mask]]:
    """Yield each row, which of its tokens but the first are weighted, and their correctness."""
    hits = correct.cpu().numpy()
    for row in rows:
        counted = np.asarray(row.weights)[1:] > 0
        count = int(counted.sum())
        yield row, counted, hits[:count]
        hits = hits[count:]


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
