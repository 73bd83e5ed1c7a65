"""Rolling back: how far a cache can forget its newest tokens, and why no further.

An entry that left since a token was fed is missing once that token is forgotten. While an assistant
drafts tokens, evictions therefore wait until transformers has said which of them stay.
"""

import operator
from collections.abc import Sequence
from typing import SupportsIndex

from agentkv.cache.layer import CacheLayer
from agentkv.cache.misuse import Misuse
from agentkv.cache.numbering import Numbering
from agentkv.policies.policy import Policy

INSTEAD = "Decode without an assistant model and prompt_lookup_num_tokens, or give the cache {}"


def why_no_drafts(policy: Policy, *, has_gate: bool) -> str | None:
    """Return why assisted decoding cannot go with a policy; None if it can.

    Args:
        has_gate: whether the gate is applied to the logits of every token.
    """
    name = f"policy {policy.name!r}"
    if policy.recall.looks_back:
        return (
            f"{name} may look back after each token, before the next one is fed, and assisted "
            "decoding feeds several drafted tokens at once. "
            + INSTEAD.format("a policy that does not look back, such as 'int8' or 'window'")
        )
    if has_gate and policy.needs_logits:
        return (
            f"the gate of {name} evicts after each token, and assisted decoding shows it the "
            "logits of drafted tokens that may be taken back. "
            + INSTEAD.format("no gate: make another one and do not call its `gate`")
        )
    if policy.allocator.learns:
        return (
            f"{name} learns from every forward of several tokens, and would take drafted ones for "
            "contexts. " + INSTEAD.format("a policy that does not learn, such as 'edie'")
        )
    return None


def num_to_forget(tokens: SupportsIndex, seen: int) -> int:
    """Return how many of `seen` columns `crop(tokens)` forgets. Raises Misuse for too many."""
    given = operator.index(tokens)
    if given > 0:
        return max(0, seen - given)
    if -given > seen:
        raise Misuse(f"the cache has seen {seen} tokens and cannot forget {-given}")
    return -given


def require_held(
    layers: Sequence[CacheLayer], numberings: Sequence[Numbering], policy: Policy, count: int
) -> None:
    """Check that nothing has left that would be there if the newest tokens had not been fed.

    Args:
        count: the newest columns, which are to be forgotten.

    Raises:
        Misuse: a ValueError that says how many can be, and why no more.
    """
    seen, most, why = layers[0].seen, layers[0].seen, ""
    for layer in layers:
        can, because = _most_forgotten(layer)
        if can < most:
            most, why = can, because
    for num_seen, each in zip(layers[0].fed, numberings, strict=False):
        if num_seen - each.end < most:
            most, why = num_seen - each.end, "rotary positions were counted anew"
    if count > most:
        raise Misuse(
            f"this cache cannot forget its newest {count} tokens: {why} when it had seen "
            f"{seen - most} of {seen}, under policy {policy.name!r}. It can forget {most}. Take a "
            "`snapshot` before, and `restore` it; or take a policy that keeps every entry, such "
            "as 'full' or 'int8'"
        )


def _most_forgotten(layer: CacheLayer) -> tuple[int, str]:
    """Return how many columns a layer can forget, and why no more."""
    most, why = layer.seen - layer.evicted_at, "entries had left"
    window = layer.shape.window
    if window is not None and max(layer.fed, default=0) >= window + layer.num_spared:
        most = min(most, layer.num_spared)
        why = "the model's window had moved past entries"
    if layer.seen - layer.padded_at < most:
        most, why = layer.seen - layer.padded_at, "padding was fed, which is not stored,"
    return most, why
