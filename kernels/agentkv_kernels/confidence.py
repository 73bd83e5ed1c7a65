"""Next-token confidence from raw logits: plain torch, or Numba on a CPU."""

import math
from functools import cache
from importlib import import_module
from types import ModuleType

import torch
from torch import Tensor

from agentkv_kernels.device import choice_for

FAR = 1000.0
"""Distance below the maximum beyond which a logit counts no more: its odds are 0 long before (our
choice)."""


def confidence(logits: Tensor, weights: tuple[float, float, float]) -> Tensor:
    """Return the confidence (B,) float32 of raw logits (B, V), V at least 2.

    The weights are those of three features, 1 - H / ln V, sigmoid(m) and p1, with H the entropy, m
    the gap between the two best log-probabilities and p1 the best probability. The result is NaN
    where a logit is NaN or inf, or all are -inf.

    Source: features of CONF-KV (arXiv 2605.24786).
    """
    if _fits_numba(logits) and choice_for(logits.device).implementation == "numba":
        return confidence_in_numba(logits, weights)
    return confidence_in_torch(logits, weights)


def confidence_in_torch(logits: Tensor, weights: tuple[float, float, float]) -> Tensor:
    """Compute `confidence` in plain torch: the reference."""
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


def confidence_in_numba(logits: Tensor, weights: tuple[float, float, float]) -> Tensor:
    """Compute `confidence` of float32 logits on a CPU, the last stride being 1, in one pass."""
    found = torch.empty(len(logits))
    where = (logits.data_ptr(), *logits.shape, logits.stride(0))
    _numba().read(*where, *weights, -FAR, found.data_ptr())
    return found


def _fits_numba(logits: Tensor) -> bool:
    needs_gradient = logits.requires_grad and torch.is_grad_enabled()
    return logits.dtype == torch.float32 and logits.stride(-1) == 1 and not needs_gradient


@cache
def _numba() -> ModuleType:  # cached: an import statement per step costs time
    return import_module("agentkv_kernels.numba.confidence")
