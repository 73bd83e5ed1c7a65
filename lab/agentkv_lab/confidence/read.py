"""Read one sample twice, with the whole past and under a policy, and compare every token.

Shapes: V entries of the vocabulary.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from agentkv.cache.cache import Cache
from agentkv.policies.gates import confidence

FEATURES: dict[str, tuple[float, float, float]] = {
    "entropy": (1.0, 0.0, 0.0),
    "gap": (0.0, 1.0, 0.0),
    "top": (0.0, 0.0, 1.0),
}
"""The features of CONF-KV's confidence, and the weights that give each of them alone."""


@dataclass(frozen=True, slots=True)
class ComparedToken:
    """The prediction of one token."""

    features: tuple[float, float, float]
    """Under the policy, before any look: each of `FEATURES`, larger where the model is surer."""
    full_features: tuple[float, float, float]
    """The same with the whole past."""
    divergence: float
    """KL(full || policy) in nats, before any look."""
    is_changed: bool
    """True if another token is the likeliest than with the whole past, before any look."""
    is_changed_by_look: bool | None
    """True if the look changes the likeliest token; None if this token did not look."""
    look_divergence: float | None
    """KL(full || policy) after the look."""


@dataclass(frozen=True, slots=True)
class Compared:
    """One continuation."""

    tokens: tuple[ComparedToken, ...]
    mean_bytes: float


@torch.inference_mode()
def compare_sample(model: Any, cache: Cache, ids: Sequence[int], seen: int) -> Compared:
    """Feed the first `seen` tokens to the cache and to a full one, then the others one by one.

    A policy that looks back reads every token without a look first, and then looks.

    Args:
        cache: an empty cache; mutated.
    """
    full = Cache.for_model(model, policy="full")
    tokens = torch.tensor([ids], device=model.device)
    wanted = full.feed(model, tokens[:, :seen])
    cache.feed(model, tokens[:, : seen - 1])  # an input that reads the cold tier does not look
    given, looked = _feed(cache, model, tokens[:, seen - 1 : seen])
    found, sizes = [], []
    for place in range(seen, len(ids)):
        found.append(compared(wanted, given, looked))
        sizes.append(cache.nbytes)
        if place + 1 < len(ids):
            wanted = full.feed(model, tokens[:, place : place + 1])
            given, looked = _feed(cache, model, tokens[:, place : place + 1])
    return Compared(tuple(found), fmean(sizes))


def _feed(cache: Cache, model: Any, ids: Tensor) -> tuple[Tensor, Tensor | None]:
    """Return the logits (1, V) of the last token before its look, and after it if it looks."""
    cache.may_look_back = False
    logits = cache.feed(model, ids)
    cache.may_look_back = True
    return logits, cache.look_back(model, logits)


def compared(wanted: Tensor, given: Tensor, looked: Tensor | None) -> ComparedToken:
    """Compare two predictions of one token, logits (1, V).

    Args:
        wanted: with the whole past.
        given: under a policy, before any look.
        looked: after the look; None: no look was made.
    """
    return ComparedToken(
        features=_features(given),
        full_features=_features(wanted),
        divergence=_divergence(wanted, given),
        is_changed=bool(wanted.argmax() != given.argmax()),
        is_changed_by_look=None if looked is None else bool(looked.argmax() != given.argmax()),
        look_divergence=None if looked is None else _divergence(wanted, looked),
    )


def _features(logits: Tensor) -> tuple[float, float, float]:
    entropy, gap, top = (float(confidence(logits, weights)) for weights in FEATURES.values())
    return entropy, gap, top


def _divergence(wanted: Tensor, given: Tensor) -> float:
    odds, others = (x[0].double().log_softmax(dim=-1) for x in (wanted, given))
    return float((odds.exp() * (odds - others)).sum())
