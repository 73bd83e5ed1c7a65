"""How sure a model is of its next token: plain torch, and which implementation serves."""

import math
from functools import cache
from importlib import import_module
from types import ModuleType

import torch
from torch import Tensor

from agentkv_kernels.device import chosen

FAR = 1000.0
"""So far below the best a logit counts at most: its odds are 0 long before (our choice)."""


def certainty(logits: Tensor, weights: tuple[float, float, float]) -> Tensor:
    """As `certainty_in_torch`, in one read on a processor with Numba."""
    if chosen(None, logits.device, {"numba": lack_of_certainty(logits)}) == "numba":
        found: Tensor = _on_processors().certainty(logits, weights)
        return found
    return certainty_in_torch(logits, weights)


def certainty_in_torch(logits: Tensor, weights: tuple[float, float, float]) -> Tensor:
    """(B,) float32 of raw logits (B, V), V at least 2; the weights are of three features:

        1 - H / ln V    sigmoid(m)    p1

    with H the entropy, m the gap between the two best log-probabilities, p1 the best probability.
    NaN where a logit is NaN or inf, or all are -inf.

    Source: the features are those of CONF-KV (arXiv 2605.24786).
    """
    best = logits.topk(2).values.float()  # (B, 2)
    # -inf (a forbidden token) would make 0 * inf
    below = (logits.float() - best[:, :1]).clamp_min_(-FAR)
    odds = below.exp()
    total = odds.sum(-1)
    entropy = total.log() - (odds * below).sum(-1) / total
    gap = (best[:, 0] - best[:, 1]).sigmoid()
    w_entropy, w_gap, w_top = weights
    certain = 1 - entropy / math.log(logits.shape[-1])
    return w_entropy * certain + w_gap * gap + w_top / total


def lack_of_certainty(logits: Tensor) -> str | None:
    """Why the kernel for processors cannot read these logits; None if it can."""
    if logits.dtype != torch.float32:
        return f"logits are {logits.dtype}, the kernel knows float32"
    if logits.stride(-1) != 1:
        return "the logits of a row do not lie together"
    if logits.requires_grad and torch.is_grad_enabled():
        return "gradients are asked for"
    return None


@cache
def _on_processors() -> ModuleType:  # once: at every step even an import statement counts
    return import_module("agentkv_kernels.numba.certainty")
