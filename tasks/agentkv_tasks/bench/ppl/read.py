"""Read one sample under a policy: what comes before, then its continuation token by token."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import torch

from agentkv.cache.cache import Cache


@dataclass(frozen=True, slots=True)
class Continuation:
    """One continuation under one policy."""

    nll: tuple[float, ...]
    """Negative log-likelihood of each token, in nats."""
    mean_bytes: float
    peak_bytes: int
    index_bytes: int
    cold_bytes: int
    num_looks: int
    look_bytes: int


@torch.inference_mode()
def read_sample(model: Any, cache: Cache, ids: Sequence[int], seen: int) -> Continuation:
    """Feed the first `seen` tokens, then the others one by one, and score these.

    Args:
        cache: an empty cache; mutated.
    """
    tokens = torch.tensor([ids], device=model.device)
    logits = cache.feed(model, tokens[:, :seen])
    num_looks, look_bytes = cache.num_looks, cache.look_nbytes
    nll, sizes = [], []
    for place in range(seen, len(ids)):
        nll.append(-float(logits[0].double().log_softmax(dim=-1)[ids[place]]))
        sizes.append(cache.nbytes)
        if place + 1 < len(ids):
            logits = cache.feed(model, tokens[:, place : place + 1])
    return Continuation(
        nll=tuple(nll),
        mean_bytes=fmean(sizes),
        peak_bytes=cache.peak_nbytes,
        index_bytes=cache.index_nbytes,
        cold_bytes=cache.cold_nbytes,
        num_looks=cache.num_looks - num_looks,
        look_bytes=cache.look_nbytes - look_bytes,
    )
