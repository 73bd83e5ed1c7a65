"""Read continuations token by token: what could raise an alarm, and what a look would bring.

At every token a look is tried and taken back, and some looks at random are kept, so that the cache
is in the state in which an alarm with their share would find it.

Shapes: T tokens, L layers, D hidden size, H * G query heads, N cold entries.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from agentkv.cache.cache import Cache
from agentkv.cache.layer import CacheLayer
from agentkv.policies.policy import Policy
from agentkv.policies.recall import AtRandom, LookBack
from agentkv.policies.slots import Signal

NUM_LARGEST = 8
"""Largest log-probabilities that are kept of each prediction (our choice)."""


@dataclass(frozen=True, slots=True)
class Everywhere:
    """Every token looks back, in a second pass: its first pass leaves its queries."""

    hears: ClassVar[Signal] = "similarity"

    def is_alarm(self, signal: float, position: int, last_alarm: int | None) -> bool:
        return True

    def looks(self, position: int, last_alarm: int | None) -> bool:
        return True


@dataclass(frozen=True, slots=True)
class ReadTokens:
    """Tokens of one continuation. All but the last four fields are known before a look."""

    largest: Tensor
    """(T, NUM_LARGEST) float32: largest log-probabilities of the next token, in order."""
    entropy: Tensor
    """(T,) float32, in nats."""
    embedding: Tensor
    """(T, D) float32: embedding of the token that was read."""
    hidden: Tensor
    """(T, D) float32: the state from which the next token is predicted."""
    drawn: Tensor
    """(T, L) float32: in each layer, the largest share of attention that a block of cold entries
    would get, mean over the heads."""
    drawn_entry: Tensor
    """(T, L) float32: the largest share of one cold entry from any head."""
    drawn_all: Tensor
    """(T, L) float32: the share of all cold entries, mean over the heads."""
    nll: Tensor
    """(T, 2) float32: negative log-likelihood of the next token without and with a look."""
    divergence: Tensor
    """(T, 2) float32: KL(full || policy) without and with a look."""
    change: Tensor
    """(T,) float32: KL(with || without): how much a look changes, which needs no full cache."""
    full_nll: Tensor
    """(T,) float32: negative log-likelihood of the next token with a full cache."""


def trial_policy(policy: Policy) -> Policy:
    """Return a policy that looks back, with a look to try at every token."""
    recall = policy.recall
    if not isinstance(recall, LookBack):
        raise ValueError(f"policy {policy.name!r} does not look back; give lookback-int8, say")
    return replace(policy, recall=replace(recall, when=Everywhere()))


@torch.inference_mode()
def read_tokens(
    model: Any, cache: Cache, ids: Sequence[int], seen: int, kept: AtRandom
) -> ReadTokens:
    """Read the first `seen` tokens, then the others one by one.

    Args:
        cache: an empty cache under a `trial_policy`; mutated.
        kept: which looks are kept.
    """
    tokens = torch.tensor([ids], device=model.device)
    full = Cache.for_model(model, policy="full")
    states: list[Tensor] = []
    hook = model.get_output_embeddings().register_forward_pre_hook(
        lambda module, given: states.append(given[0][0, -1].to(torch.float32).clone())
    )
    embeddings = model.get_input_embeddings()
    found: list[dict[str, Tensor]] = []
    try:
        cache.may_look_back = False
        cache.feed(model, tokens[:, : seen - 1])
        full.feed(model, tokens[:, : seen - 1])
        for place in range(seen - 1, len(ids) - 1):
            newest, target = tokens[:, place : place + 1], ids[place + 1]
            wanted = full.feed(model, newest)
            states.clear()
            given = cache.feed(model, newest)
            before = {"hidden": states[-1], "embedding": embeddings(newest)[0, 0]}
            before.update(draws(cache))
            snapshot = None if kept.is_alarm(0.0, place, None) else cache.snapshot()
            cache.may_look_back = True
            looked = cache.look_back(model, given)
            cache.may_look_back = False
            assert looked is not None, "something is cold"
            if snapshot is not None:
                cache.restore(snapshot)
            found.append({**before, **_compared(wanted[0], given[0], looked[0], target)})
    finally:
        hook.remove()
    names = [field.name for field in fields(ReadTokens)]
    return ReadTokens(
        **{name: torch.stack([each[name].to(torch.float32) for each in found]) for name in names}
    )


def _compared(wanted: Tensor, given: Tensor, looked: Tensor, target: int) -> dict[str, Tensor]:
    """Return the figures of one prediction from logits (V,) with everything, without and with a
    look."""
    full, without, after = (x.double().log_softmax(-1) for x in (wanted, given, looked))

    def divergence(first: Tensor, second: Tensor) -> Tensor:
        return (first.exp() * (first - second)).sum()

    return {
        "largest": without.topk(NUM_LARGEST).values,
        "entropy": -(without.exp() * without).sum(),
        "nll": -torch.stack([without[target], after[target]]),
        "divergence": torch.stack([divergence(full, without), divergence(full, after)]),
        "change": divergence(after, without),
        "full_nll": -full[target],
    }


def draws(cache: Cache) -> dict[str, Tensor]:
    """Return how strongly cold entries draw the token that a cache was fed last, (L,) each: the
    three fields of `ReadTokens`.

    Args:
        cache: of one sequence, under a `trial_policy`.
    """
    recall = cache.policy.recall
    assert isinstance(recall, LookBack)
    layers = [layer for layer in cache.cache_layers if layer.cold is not None]
    found = [_draws_of(layer, recall.block) for layer in layers]
    names = ("drawn", "drawn_entry", "drawn_all")
    return {name: torch.stack([each[i] for each in found]) for i, name in enumerate(names)}


def _draws_of(layer: CacheLayer, block: int) -> tuple[Tensor, Tensor, Tensor]:
    storage, cold, attention = layer.storage, layer.cold, layer.attention
    assert storage.queries is not None and cold is not None and attention is not None
    assert storage.num_segments == 1 and attention.sinks is None, "heads share their entries"
    query = storage.queries.of(0)[0][:, -1:]  # (H * G, 1, D)
    others = layer.backend.log_sums(
        storage, 0, query[None], scale=attention.scale, sinks=None
    ).view(-1)
    [part] = cold.storage.parts(0)
    keys = part.decode_keys()[0]  # (H, N, D)
    grouped = query.to(torch.float32).view(keys.shape[0], -1, query.shape[2])
    logits = (grouped @ keys.mT).flatten(0, 1) * attention.scale  # (H * G, N)
    lent = list(cold.lent[0].values())
    logits[:, lent] = -torch.inf  # they are hot at present
    totals = torch.logaddexp(logits.logsumexp(-1), others.to(torch.float32))
    shares = (logits - totals[:, None]).exp()
    blocks = part.positions[0].to(torch.int64) // block
    of_blocks = shares.new_zeros(shares.shape[0], int(blocks.max()) + 1)
    of_blocks.index_add_(1, blocks, shares)
    return of_blocks.mean(0).max(), shares.max(), shares.sum(1).mean()
