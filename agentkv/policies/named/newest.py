"""Policies that keep the newest entries, whatever the attention."""

from dataclasses import replace
from typing import Annotated

from agentkv.policies.adjusted import BySpan
from agentkv.policies.allocators import Shared
from agentkv.policies.declare import named
from agentkv.policies.gates import Fixed
from agentkv.policies.named.stored import Recent, with_older
from agentkv.policies.parameters import Help
from agentkv.policies.policy import Policy
from agentkv.policies.scorers import Age
from agentkv.policies.selectors import TopK

LeftFactor = Annotated[
    float, Help("Factor on scores of entries of pages that were left (our choice: 0.5).")
]


@named(Fixed)
def window(base: Policy) -> Policy:
    """Keeps the newest `budget` entries."""
    return replace(base, allocator=Shared())


@named(window)
def window_by_span(
    base: Policy,
    *,
    left: LeftFactor = 0.5,
    replies: Annotated[
        float, Help("Factor on scores of entries of replies (our choice: 4).")
    ] = 4.0,
) -> Policy:
    """`window` that ages left pages faster and replies slower.

    The score of an entry is the reciprocal of its age, times the factor of its span; the newest
    entry stays. The owner of the cache labels pages and replies, as an agent does; without labels
    it is `window`.

    Source: our choice.
    """
    return replace(base, scorer=BySpan(Age(), left, replies), selector=TopK(protected=1))


@named(window)
def streaming(
    base: Policy,
    *,
    sinks: Annotated[int, Help("Entries kept from the start of the sequence (paper: 4).")] = 4,
) -> Policy:
    """Keeps the first entries (attention sinks) and the newest.

    The budget includes both. Entries keep their original positions (our choice; the paper counts
    positions inside the cache).

    Source: StreamingLLM (arXiv 2309.17453).
    """
    return replace(base, selector=TopK(sinks=sinks))


@named(streaming)
def streaming_int8(
    base: Policy,
    *,
    sinks: Annotated[
        int, Help("Entries kept from the start (our choice: 256, which hold an agent's goal).")
    ] = 256,
    recent: Recent = 64,
) -> Policy:
    """Keeps the goal and the newest entries, older ones in int8.

    It looks at neither attention nor confidence, so a policy that does should beat it at equal
    bytes.

    Source: StreamingLLM (arXiv 2309.17453) with the storage of CONF-KV; the union is our choice.
    """
    return with_older(base, "int8", recent)
