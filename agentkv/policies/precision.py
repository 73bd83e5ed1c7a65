"""Storage formats of the entries that stay: dense, by age, or by attention.

Precision never changes which entries stay. A quantized entry stays quantized, because the lost bits
cannot be restored.
"""

import math
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, Self

import torch
from torch import Tensor

from agentkv.policies.parameters import (
    require_above,
    require_count,
    require_one_of,
    require_share,
)

FORMATS = ("int8", "fp8", "int4", "nf4", "int8-max")
"""Quantized formats of `agentkv_kernels.formats`."""


class _NotByRank:
    """Base of precisions that do not use scores."""

    __slots__ = ()
    by_rank: ClassVar[bool] = False
    estimates_once: ClassVar[bool] = False

    def quality(self, attention: Tensor) -> float:
        raise AssertionError("only a precision by rank has a quality")

    def num_dense(self, share: float, budget: int) -> int:
        raise AssertionError("only a precision by rank has a quality")


@dataclass(frozen=True, slots=True)
class Dense(_NotByRank):
    """Stores all entries in the model's dtype."""

    format: ClassVar[str | None] = None
    recent: ClassVar[int | None] = None
    sure: ClassVar[float | None] = None

    def fitted(self, budget: int | None) -> Self:
        return self


@dataclass(frozen=True, slots=True)
class QuantizeOld(_NotByRank):
    """Stores the newest entries in the model's dtype; quantizes older ones once, in blocks of 64.

    Entries wait until a block of 64 is full, so up to recent + 63 are in the model's dtype.

    Source: CONF-KV (arXiv 2605.24786); the blocks are our choice.
    """

    recent: int | None
    """None: half of the budget, at most 256 (the paper's 256 of 512; 128 of 256 is our choice)."""
    format: str = "int8"
    sure: float | None = None
    """Quantize a sequence's entries only after a token with at least this confidence (our choice);
    None: after every forward."""

    def __post_init__(self) -> None:
        if self.recent is not None:
            require_count("recent", self.recent)
        require_one_of("format", self.format, FORMATS)
        if self.sure is not None:
            require_share("sure", self.sure)

    def fitted(self, budget: int | None) -> Self:
        if self.recent is not None:
            return self
        return replace(self, recent=256 if budget is None else min(256, budget // 2))


@dataclass(frozen=True, slots=True)
class QuantizeByRank:
    """Stores the best entries of a layer densely and quantizes the rest, by the layer's attention.

    p_k is the mass of key k, summed over all query heads and the last W queries and normalized over
    the keys before the window. quality = H**(1/tau1) * V**(1/tau2) * K**(1/tau3), with H the
    entropy, V the variance over the keys and K the kurtosis (Pearson's) of p. A layer's share (the
    paper's OQ ratio) is its quality divided by the best layer's. share * (B - W) of its entries and
    the W entries of the window stay dense.

    With estimate="once" a sequence has one quality per layer, estimated from its prefill:

    * Tokens: the prefill is all forwards before the first one of a single token, in any chunks. It
      ends earlier at the first forward after which an entry has to be dropped, before the drop (our
      choice; the paper has no chunks). Every head therefore still holds every token, and k is a
      position of the sequence: 0 <= k < T - W after T tokens.
    * Queries: the last W of these T tokens, or all of them if there are fewer.
    * Averages: none beyond the sums of the equations. One weight is a softmax over all T keys, the
      window's included; those before the window are then summed and normalized.
    * A prefill of at most W tokens has no key before its window. The quality is then estimated when
      the first entry has to be dropped, before the drop (our choice).
    * A second turn changes nothing (our choice; the paper has one prompt). Copied, saved and
      restored sequences keep their qualities.

    With estimate="every_trim" the quality is estimated at every eviction, over the entries held at
    that time. Heads hold different entries after the first trim, and p_k sums over the k-th entry
    of each head.

    Source: ARKV, equations 3 to 7 and Algorithm 1. The paper's equation 8 says share * B; its code
    takes entropy and moments of single weights. We follow Algorithm 1 and equations 3 to 7.
    """

    window: int
    """W."""
    tau1: float
    tau2: float
    tau3: float
    format: str = "fp8"
    estimate: Literal["once", "every_trim"] = "once"
    dense: float | None = None
    """Every layer's share, whatever its quality; None: the quality decides. 0 quantizes all that a
    trim keeps beyond the window: the paper's baseline base_quant."""
    recent: ClassVar[int | None] = None
    sure: ClassVar[float | None] = None
    by_rank: ClassVar[bool] = True

    def __post_init__(self) -> None:
        require_count("window", self.window)
        for name in ("tau1", "tau2", "tau3"):
            require_above(name, getattr(self, name), 0)
        require_one_of("format", self.format, FORMATS)
        require_one_of("estimate", self.estimate, ("once", "every_trim"))
        if self.dense is not None:
            require_share("dense", self.dense)

    @property
    def estimates_once(self) -> bool:
        return self.estimate == "once"

    def fitted(self, budget: int | None) -> Self:
        return self

    def quality(self, attention: Tensor) -> float:
        mass = attention.to(torch.float64).sum(dim=(0, 1, 2))  # (T,)
        # without attention, or with uniform attention, a moment is 0; the layer still needs a share
        tiny = 1e-30
        p = mass / mass.sum().clamp_min(tiny)
        entropy = -torch.special.xlogy(p, p).sum()
        apart = p - (p.mean() if len(p) else 0)
        second = apart.square().sum() / max(1, len(p))
        fourth = apart.pow(4).sum() / max(1, len(p))
        kurtosis = fourth / second.square().clamp_min(tiny * tiny)
        logs = torch.stack([entropy, second, kurtosis]).clamp_min(tiny).log().tolist()
        powers = (self.tau1, self.tau2, self.tau3)
        exponent = sum(log / tau for log, tau in zip(logs, powers, strict=True))
        return math.exp(exponent)

    def num_dense(self, share: float, budget: int) -> int:
        share = share if self.dense is None else self.dense
        return max(0, round(share * (budget - self.window)))
