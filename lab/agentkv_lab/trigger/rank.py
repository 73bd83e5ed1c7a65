"""Which share of what looks bring the tokens have that a signal ranks first.

Shapes: T tokens of all continuations, one after the other.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from agentkv.cache.look_back import LookRecord
from agentkv_lab.trigger.learn import PARTS, fit
from agentkv_lab.trigger.read import ReadTokens

DRAWS = 1_000
"""Bootstrap draws."""


def signals(test: ReadTokens, train: ReadTokens, counts: Sequence[int]) -> Mapping[str, Tensor]:
    """Return the signals of the test's tokens, (T,) each: larger where a look is wanted more.

    Args:
        train: tokens that the learned triggers are fitted to, by how much a look changes.
        counts: tokens of each continuation of the test.
    """
    confidence = test.largest[:, 0].exp()
    found = {
        "confidence": -confidence,
        "rank": -_ranks(confidence.tolist(), counts),
        "gap": -(confidence - test.largest[:, 1].exp()),
        "entropy": test.entropy,
        "drawn, block": test.drawn.mean(1),
        "drawn, entry": test.drawn_entry.mean(1),
        "drawn, all": test.drawn_all.mean(1),
        "drawn and open": test.drawn_entry.mean(1) * test.entropy,
    }
    for name, parts in PARTS.items():
        found[name] = fit(train, train.change, parts).scores(test)
    found["change (needs the look)"] = test.change
    return found


def _ranks(confidences: Sequence[float], counts: Sequence[int]) -> Tensor:
    """Return the ranks that `when="unsurest"` hears."""
    found, start = [], 0
    for count in counts:
        record = LookRecord()
        for position, confidence in enumerate(confidences[start : start + count]):
            found += record.ranks([confidence], [position])
        start += count
    return torch.tensor(found)


def gain_share(signal: Tensor, gain: Tensor, share: float) -> float:
    """Return the share of the whole gain that the tokens with the largest signal have.

    Args:
        signal, gain: (T,).
        share: of the tokens.
    """
    order = signal.argsort(descending=True, stable=True)
    first = gain[order[: round(share * len(order))]]
    return float(first.sum() / gain.sum())


def area(signal: Tensor, gain: Tensor) -> float:
    """Return the mean of `gain_share` over all shares: 0.5 by chance."""
    order = signal.argsort(descending=True, stable=True)
    return float((gain[order].cumsum(0) / gain.sum()).mean())


def resampled(signal: Tensor, gain: Tensor, share: float, counts: Sequence[int]) -> Tensor:
    """Return `gain_share` in bootstrap draws of whole continuations, (`DRAWS`,).

    Equal arguments give equal draws, so that signals can be compared draw by draw.
    """
    clusters = torch.arange(len(counts)).repeat_interleave(torch.tensor(counts))
    picks = torch.randint(
        len(counts), (DRAWS, len(counts)), generator=torch.Generator().manual_seed(0)
    )
    times = torch.nn.functional.one_hot(picks, len(counts)).sum(1).to(torch.float32)
    order = signal.argsort(descending=True, stable=True)
    weights, gains = times[:, clusters[order]], gain[order]  # (DRAWS, T), (T,)
    before = weights.cumsum(1) - weights
    room = share * weights.sum(1, keepdim=True) - before
    looking = torch.minimum(weights, room.clamp_min(0))
    return (looking @ gains) / (weights @ gains)


def interval(values: Tensor) -> tuple[float, float]:
    """Return the 2.5th and the 97.5th percentile of resampled values."""
    low, high = values.quantile(torch.tensor([0.025, 0.975])).tolist()
    return low, high
