"""Rows to losses: what a model gets right of what counts."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import LlamaForCausalLM

from train_nano.episode import Row
from train_nano.model import hidden_states, pad

MAX_PADDED = 4096  # tokens of one forward pass; more only for a single long row


def batches(rows: Sequence[Row]) -> Iterator[list[Row]]:
    """`rows` by length, in groups that waste little padding."""
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
    """Of every token that counts, row by row: its loss, whether it was predicted, its weight.

    Products are taken in `dtype`, bfloat16 or float32.
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
    """For each token that counts: the row's kind, and whether it was predicted."""
    hits = iter(correct.tolist())
    for row in rows:
        for weight in row.weights[1:]:
            if weight > 0:
                yield row.kind, next(hits)


def per_reply(rows: Sequence[Row], correct: Tensor) -> Iterator[tuple[Row, bool]]:
    """For each run of tokens that count: its row, and whether all were predicted."""
    hits = iter(correct.tolist())
    for row in rows:
        whole: bool | None = None
        for weight in row.weights[1:]:
            hit = next(hits) if weight > 0 else None
            if weight > 0:
                whole = hit if whole is None else whole and bool(hit)
            elif whole is not None:
                yield row, whole
                whole = None
        if whole is not None:
            yield row, whole


class Right:
    """How many answers of each kind of row there were, and how many of them were right."""

    def __init__(self) -> None:
        self.total: Counter[str] = Counter()
        self.right: Counter[str] = Counter()

    def __add__(self, other: "Right") -> "Right":
        both = Right()
        both.total, both.right = self.total + other.total, self.right + other.right
        return both

    def add(self, answers: Iterable[tuple[str, bool]]) -> None:
        """Count `answers`: kinds, and whether they were right."""
        for kind, hit in answers:
            self.total[kind] += 1
            self.right[kind] += hit

    def share(self, kinds: Iterable[str]) -> float:
        """The right ones' share of the answers of `kinds`; 0 of none."""
        kinds = tuple(kinds)
        total = sum(self.total[kind] for kind in kinds)
        return sum(self.right[kind] for kind in kinds) / total if total else 0.0
