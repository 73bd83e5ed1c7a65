"""The next token of several replies, chosen where the logits are."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Sampler:
    """How a reply's tokens are chosen: the likeliest at temperature 0, else drawn."""

    temperature: float
    random: torch.Generator
    """On the device of the logits; moved by every draw."""


def choose(logits: Tensor, allowed: Sequence[Tensor | None], samplers: Sequence[Sampler]) -> Tensor:
    """An id for every row of logits (R, V), as (R,) on their device, which is not waited for.

    Args:
        allowed: per row, which ids may be chosen, as `Rule.allowed` says it.
        samplers: per row.
    """
    masked = _masked(logits, allowed)
    ids = masked.argmax(dim=-1)
    for i, sampler in enumerate(samplers):
        if sampler.temperature > 0:
            mine = allowed[i]
            num_ids = logits.shape[1] if mine is None else min(logits.shape[1], len(mine))
            ids[i] = _draw(masked[i, :num_ids], sampler)
    return ids


def _draw(logits: Tensor, sampler: Sampler) -> Tensor:
    """One id, () on the device: what torch.multinomial draws, without its look at the result."""
    chances = torch.softmax(logits.to(torch.float32) / sampler.temperature, dim=-1)
    noise = torch.empty_like(chances).exponential_(generator=sampler.random)
    return chances.div_(noise).argmax()


def _masked(logits: Tensor, allowed: Sequence[Tensor | None]) -> Tensor:
    if all(mine is None for mine in allowed):
        return logits
    on_cuda = logits.device.type == "cuda"
    forbidden = torch.zeros(logits.shape, dtype=torch.bool, pin_memory=on_cuda)
    for row, mine in zip(forbidden, allowed, strict=True):
        if mine is not None:
            # Checkpoints are padded beyond the tokenizer, and tokenizers outgrow checkpoints.
            num_ids = min(len(row), len(mine))
            torch.logical_not(mine[:num_ids], out=row[:num_ids])
            row[num_ids:] = True
    return logits.masked_fill(forbidden.to(logits.device, non_blocking=True), -torch.inf)
