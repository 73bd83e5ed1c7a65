"""Budgets: a number of tokens, or bytes for the whole cache that become a number of tokens."""

import re
from dataclasses import dataclass

import torch

from agentkv.cache.hf import Geometry
from agentkv.policies.policy import Policy, PolicyError
from agentkv_kernels.ops import BLOCK

UNITS = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}


@dataclass(frozen=True, slots=True)
class Bytes:
    """Bytes that the whole cache may hold at rest, all sequences together."""

    count: int


def parse_budget(budget: int | str | None) -> int | Bytes | None:
    """Tokens as they are; text such as "64MiB" or "1.5 GB" as bytes. Raises PolicyError."""
    if not isinstance(budget, str):
        return budget
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]+)\s*", budget)
    unit = UNITS.get(match[2].upper()) if match else None
    if match is None or unit is None:
        raise PolicyError(
            f"budget {budget!r} is neither a number of tokens nor bytes such as '64MiB'; "
            "units: B, KB, MB, GB, KiB, MiB, GiB"
        )
    return Bytes(int(float(match[1]) * unit))


def fit(policy: Policy, budget: int | Bytes | None, geometry: Geometry, batch: int) -> Policy:
    """The policy fitted to a budget. Raises PolicyError where it does not fit."""
    if not isinstance(budget, Bytes):
        return policy.fitted(budget)
    if policy.gate.ceiling is not None:
        raise PolicyError(
            f"this policy has its own budget of {policy.gate.ceiling} tokens; leave the other out"
        )

    def size(num_tokens: int) -> int:
        try:
            return resting_bytes(policy.fitted(num_tokens), geometry, batch)
        except PolicyError:
            return 0  # too few tokens for this policy: the search goes up

    low, high = 1, 2
    while size(high) <= budget.count and high < 1 << 32:
        low, high = high, high * 2
    while high - low > 1:
        middle = (low + high) // 2
        if size(middle) <= budget.count:
            low = middle
        else:
            high = middle
    fitted = policy.fitted(low)
    needed = resting_bytes(fitted, geometry, batch)
    if needed > budget.count:
        raise PolicyError(
            f"a budget of {budget.count} bytes is less than one token in every layer takes "
            f"({needed} bytes for this model and {batch} sequences, with room to grow)"
        )
    return fitted


def resting_bytes(policy: Policy, geometry: Geometry, batch: int) -> int:
    """The most bytes that a full cache under a fitted policy holds between two steps."""
    ceiling = policy.gate.ceiling
    if ceiling is None:
        raise PolicyError("a budget in bytes needs a policy that evicts")
    acted_on = set(geometry.policy_layers)
    shares = iter(policy.allocator.shares(ceiling, len(acted_on)))
    total = 0
    for i, layer in enumerate(geometry.layers):
        recent = None
        if i in acted_on:
            num_rows = next(shares) + policy.gate.slack
            if layer.window is not None:
                num_rows = min(num_rows, layer.window)
            recent = policy.precision.recent
        else:
            assert layer.window is not None
            num_rows = layer.window
        num_dense = num_rows if recent is None else min(num_rows, recent + BLOCK - 1)
        total += row_bytes(
            num_dense=num_dense,
            num_coded=num_rows - num_dense,
            head_width=layer.num_heads * layer.head_dim,
            dtype=geometry.dtype,
            tracks_mass=i in acted_on and policy.scorer.decay is not None,
        )
    return total * batch


def row_bytes(
    *, num_dense: int, num_coded: int, head_width: int, dtype: torch.dtype, tracks_mass: bool
) -> int:
    """The most bytes of one sequence's rows in one layer, a block of unused room included."""
    num_scales = 2 * -(-num_coded // BLOCK)
    dense = (num_dense + BLOCK) * 2 * head_width * dtype.itemsize
    coded = num_coded * (2 * head_width + 4) + num_scales * 2 * head_width
    metadata = (num_dense + num_coded + BLOCK) * (8 if tracks_mass else 4)
    return dense + coded + metadata
