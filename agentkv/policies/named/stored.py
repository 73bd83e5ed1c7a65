"""Policies that evict nothing: the baseline, and the storage formats."""

from dataclasses import replace
from typing import Annotated

from agentkv.policies.allocators import Shared
from agentkv.policies.declare import named
from agentkv.policies.parameters import Help, require_count
from agentkv.policies.policy import Policy
from agentkv.policies.precision import QuantizeOld

Recent = Annotated[int, Help("Newest entries that stay in the model's dtype (our choice: 64).")]
Sure = Annotated[
    float | None,
    Help(
        "Quantize only after a token whose probability, as the likeliest, is at least this; None: "
        "after every forward (our choice)."
    ),
]


@named()
def full(base: Policy) -> Policy:
    """Keeps all entries in the model's dtype: the baseline."""
    return replace(base, allocator=Shared())


@named(full)
def int8(base: Policy, *, recent: Recent = 64, sure: Sure = None) -> Policy:
    """Keeps all entries, older ones in 8-bit integers.

    There is a scale per head, channel and 64 entries.

    Source: the storage of CONF-KV (arXiv 2605.24786) without its eviction.
    """
    return with_older(base, "int8", recent, sure)


@named(full)
def int8_max(base: Policy, *, recent: Recent = 64, sure: Sure = None) -> Policy:
    """`int8` with the scale max / 127, for comparisons.

    It rounds less than `int8`, whose scales are powers of two. Evictions add to the error, because
    merged blocks are rounded anew. Compiled kernels do not read this format, so it is slow.

    Source: the storage of CONF-KV (arXiv 2605.24786) without its eviction.
    """
    return with_older(base, "int8-max", recent, sure)


@named(full)
def fp8(base: Policy, *, recent: Recent = 64, sure: Sure = None) -> Policy:
    """`int8` in 8-bit floating point.

    There is one scale per head and entry.

    Source: the storage of ARKV without its eviction.
    """
    return with_older(base, "fp8", recent, sure)


@named(full)
def int4(base: Policy, *, recent: Recent = 64, sure: Sure = None) -> Policy:
    """`int8` with 4 evenly spaced bits.

    There is one scale per head, entry and 32 channels.
    """
    return with_older(base, "int4", recent, sure)


@named(full)
def nf4(base: Policy, *, recent: Recent = 64, sure: Sure = None) -> Policy:
    """`int8` with 4 normally spaced bits.

    There is one scale per head, entry and 32 channels.

    Source: NF4 of QLoRA (arXiv 2305.14314).
    """
    return with_older(base, "nf4", recent, sure)


def with_older(base: Policy, format: str, recent: int, sure: float | None = None) -> Policy:
    """Return a policy that stores all but the `recent` newest entries in a format."""
    stored = QuantizeOld(require_count("recent", recent), format, sure)
    return replace(base, precision=stored)
