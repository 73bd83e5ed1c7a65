"""A learned trigger: says from a token's first pass how much a look would bring.

In the manner of UT-ACA (arXiv 2603.18446), whose small learned detector hears the logits and the
embedding of a token. We know its abstract only; features, label and fit are our choice.

Shapes: T tokens, F features.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from agentkv_lab.trigger.read import ReadTokens

POSITIVE = 0.15
"""Share of the training tokens that a trigger learns to find: those with the largest label."""
NUM_DIRECTIONS = 16
"""Principal directions that stand for an embedding or a hidden state."""
PENALTY = 0.01
"""Weight of the squared coefficients in the loss."""
_STEPS = 100

PARTS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "learned": ("logits",),
        "learned + embedding": ("logits", "embedding"),
        "learned + state": ("logits", "embedding", "hidden"),
        "learned + attention": ("logits", "drawn"),
    }
)
"""Learned triggers, and what each of them hears."""


def logit_features(tokens: ReadTokens) -> Tensor:
    """Return what the logits say, (T, 5): log-odds of the likeliest token, its lead over the
    second, mass of the largest ones, entropy, and the largest log-probability."""
    largest = tokens.largest
    top = largest[:, 0].exp().clamp(max=1 - 1e-6)
    return torch.stack(
        [
            top.log() - (1 - top).log(),
            largest[:, 0] - largest[:, 1],
            largest.exp().sum(1),
            tokens.entropy,
            largest[:, 0],
        ],
        1,
    )


def draw_features(tokens: ReadTokens) -> Tensor:
    """Return how strongly cold entries draw the token, (T, 6)."""
    means = [x.mean(1) for x in (tokens.drawn, tokens.drawn_entry, tokens.drawn_all)]
    return torch.stack(
        [*means, *(x.clamp_min(1e-6).log() for x in means)],
        1,
    )


@dataclass(frozen=True, slots=True)
class Trigger:
    """A logistic regression."""

    parts: tuple[str, ...]
    directions: Mapping[str, Tensor]
    """Principal directions (D, NUM_DIRECTIONS) of each part that has them."""
    mean: Tensor
    """(F,)."""
    deviation: Tensor
    """(F,)."""
    weights: Tensor
    """(F,)."""

    def scores(self, tokens: ReadTokens) -> Tensor:
        """Return the log-odds (T,), up to a constant, that a look is worth it."""
        features = _features(tokens, self.parts, self.directions)
        return (features - self.mean) / self.deviation @ self.weights


def fit(tokens: ReadTokens, label: Tensor, parts: tuple[str, ...]) -> Trigger:
    """Fit a trigger to find the tokens with the largest label.

    Args:
        label: (T,), what a look at each token brings.
        parts: see `PARTS`.
    """
    directions = {
        part: _directions(getattr(tokens, part))
        for part in parts
        if part in ("embedding", "hidden")
    }
    features = _features(tokens, parts, directions)
    mean, deviation = features.mean(0), features.std(0).clamp_min(1e-6)
    inputs = (features - mean) / deviation
    wanted = (label > label.quantile(1 - POSITIVE)).to(torch.float32)
    weights = torch.zeros(inputs.shape[1] + 1, requires_grad=True)
    optimizer: Any = torch.optim.LBFGS([weights], max_iter=_STEPS, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        optimizer.zero_grad()
        odds = inputs @ weights[:-1] + weights[-1]
        value = torch.nn.functional.binary_cross_entropy_with_logits(odds, wanted)
        value = value + PENALTY * weights[:-1].square().sum()
        value.backward()  # type: ignore[no-untyped-call]
        return value

    optimizer.step(loss)
    return Trigger(parts, directions, mean, deviation, weights.detach()[:-1])


def _directions(vectors: Tensor) -> Tensor:
    directions: Tensor = torch.linalg.svd(vectors - vectors.mean(0), full_matrices=False)[2]
    return directions[:NUM_DIRECTIONS].mT


def _features(
    tokens: ReadTokens, parts: tuple[str, ...], directions: Mapping[str, Tensor]
) -> Tensor:
    found = []
    for part in parts:
        match part:
            case "logits":
                found.append(logit_features(tokens))
            case "drawn":
                found.append(draw_features(tokens))
            case _:
                found.append(getattr(tokens, part) @ directions[part])
    return torch.cat(found, 1)
