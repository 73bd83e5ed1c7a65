"""Sample the next tokens of several replies on the device that holds the logits."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Sampler:
    """Temperature and random state of one reply."""

    temperature: float
    """0 is greedy; a higher value samples."""
    random: torch.Generator
    """Random state, on the device of the logits; every draw advances it."""
    top_p: float = 1.0
    """Draws only from the likeliest ids that together have this probability."""


@dataclass(frozen=True, slots=True)
class LogProbability:
    """Log-probability of an id in the model's own distribution, without temperature or mask."""

    id: int
    value: float
    top: tuple[tuple[int, float], ...]
    """The likeliest ids with their log-probabilities, likeliest first."""


def log_probability(logits: Tensor, id: int, num_top: int) -> LogProbability:
    """Return the log-probability of `id`, and the `num_top` likeliest ids, for logits (V,)."""
    values = torch.log_softmax(logits.to(torch.float32), dim=-1)
    top = values.topk(min(num_top, len(values)))
    pairs = zip(top.indices.tolist(), top.values.tolist(), strict=True)
    return LogProbability(id, float(values[id]), tuple(pairs))


def sample(logits: Tensor, allowed: Sequence[Tensor | None], samplers: Sequence[Sampler]) -> Tensor:
    """Sample one id per row of `logits` (R, V) without waiting for the device.

    Args:
        allowed: per row, the mask that `Rule.allowed` returned. It may be shorter or longer than V.
        samplers: per row.

    Returns:
        Ids (R,) on the device of the logits.
    """
    masked = _mask_logits(logits, allowed)
    ids = masked.argmax(dim=-1)
    for i, sampler in enumerate(samplers):
        if sampler.temperature > 0:
            mask = allowed[i]
            num_ids = logits.shape[1] if mask is None else min(logits.shape[1], len(mask))
            ids[i] = _draw(masked[i, :num_ids], sampler)
    return ids


def _draw(logits: Tensor, sampler: Sampler) -> Tensor:
    """Draw one id, () on the device, from `logits` (V,).

    Draws what torch.multinomial would, without its check, which waits for the device.
    """
    probabilities = torch.softmax(logits.to(torch.float32) / sampler.temperature, dim=-1)
    if sampler.top_p < 1:
        probabilities = _nucleus(probabilities, sampler.top_p)
    noise = torch.empty_like(probabilities).exponential_(generator=sampler.random)
    return probabilities.div_(noise).argmax()


def _nucleus(probabilities: Tensor, top_p: float) -> Tensor:
    """Return `probabilities` (V,) with zeros for all but the likeliest ids that reach `top_p`."""
    likeliest, ids = probabilities.sort(descending=True)
    before = likeliest.cumsum(0) - likeliest
    kept = torch.where(before < top_p, likeliest, 0.0)
    kept[0] = likeliest[0]
    return torch.zeros_like(probabilities).scatter_(0, ids, kept)


def _mask_logits(logits: Tensor, allowed: Sequence[Tensor | None]) -> Tensor:
    if all(mask is None for mask in allowed):
        return logits
    on_cuda = logits.device.type == "cuda"
    forbidden = torch.zeros(logits.shape, dtype=torch.bool, pin_memory=on_cuda)
    for row, mask in zip(forbidden, allowed, strict=True):
        if mask is not None:
            # Checkpoints may be padded beyond their tokenizer, and tokenizers may have more ids.
            num_ids = min(len(row), len(mask))
            torch.logical_not(mask[:num_ids], out=row[:num_ids])
            row[num_ids:] = True
    return logits.masked_fill(forbidden.to(logits.device, non_blocking=True), -torch.inf)
