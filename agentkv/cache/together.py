"""Several caches in one forward of their model: the tokens of all lie one after another in one row.

What a model does to a token without looking at others is done for all of them at once; where tokens
look at each other, each cache attends to its own. No token is padding, whatever the lengths.

Shapes: B_i sequences in cache i, B of all caches together, n_i new tokens of each sequence.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, pairwise
from typing import Any, NoReturn, SupportsIndex, TypeVar

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from agentkv.cache.attach import CheckedCache
from agentkv.cache.cache import Cache
from agentkv.cache.hf import Handle, Misuse, uncompiled

T = TypeVar("T")


def can_join(cache: Cache, num_tokens: int) -> bool:
    """Whether so many new tokens of `cache` may share a forward: always, but for those of a policy
    that learns from every context it reads, which must be read alone."""
    return num_tokens == 1 or not cache.policy.allocator.learns


@dataclass(frozen=True, slots=True)
class Fed:
    """What a shared forward gave."""

    logits: Tensor
    """(B, V) after each sequence's last token, in order; of no meaning where `errors` has one."""
    errors: tuple[Exception | None, ...]
    """Per cache: what broke it, and it alone; it has to be restored or reset."""


class Together(CheckedCache):
    """One forward of several caches. Made for it, and of no use afterwards.

    Args:
        caches: of `model`, each once, of any policies and lengths.
        ids: per cache, the tokens (B_i, n_i) that its sequences have not seen; no padding. They are
            fed whole: cutting long ones into chunks is the caller's business.

    Raises:
        Misuse: a ValueError; no cache has changed.
    """

    def __init__(
        self, model: PreTrainedModel, caches: Sequence[Cache], ids: Sequence[Tensor]
    ) -> None:
        if not caches:
            raise Misuse("no caches to feed")
        if len({id(cache) for cache in caches}) < len(caches):
            raise Misuse("a cache was given twice; feed each once per forward")
        if len(ids) != len(caches):
            raise Misuse(f"{len(caches)} caches and tokens for {len(ids)}; give each its own")
        for cache, new in zip(caches, ids, strict=True):
            if new.dim() != 2 or not new.numel():
                raise Misuse(f"tokens must be (sequences, at least 1); found {tuple(new.shape)}")
            if len(caches) > 1 and not can_join(cache, new.shape[1]):
                raise Misuse(
                    f"{cache.policy.name} learns from each context and has to read one alone; "
                    f"found {new.shape[1]} tokens for it among others: use cache.feed"
                )
            cache.check_input(model.base_model, *new.shape)
        super().__init__(layers=caches[0].layers)
        self._model, self._caches, self._ids = model, tuple(caches), tuple(ids)
        ends = list(accumulate((new.numel() for new in ids), initial=0))
        self._parts = [slice(*ends) for ends in pairwise(ends)]
        """By cache: its tokens in the row, one sequence after another."""
        ends = list(accumulate((new.shape[0] for new in ids), initial=0))
        self.rows = [slice(*ends) for ends in pairwise(ends)]
        """By cache: its rows of the logits."""
        self.errors: list[Exception | None] = [None] * len(caches)
        """As `Fed.errors`."""

    @torch.no_grad()
    def read(self) -> Tensor:
        """Feed all tokens; logits (B, V) after each sequence's last. The caches wait to be settled.

        Positions are counted from the tokens each cache has seen, as `Cache.feed` counts them. An
        exception in one cache ends that cache alone (`errors`); one in the model itself is raised.
        A cache whose forward did not end refuses the next one until it is restored or reset.
        """
        if len(self._caches) == 1:
            cache, new = self._caches[0], self._ids[0]
            alone: Tensor = self._model(
                input_ids=new, past_key_values=cache, use_cache=True, logits_to_keep=1
            ).logits
            return alone[:, -1]
        device = self._ids[0].device
        row = torch.cat([new.reshape(-1).to(device) for new in self._ids])
        places = torch.tensor(
            [
                place
                for cache, new in zip(self._caches, self._ids, strict=True)
                for fed in cache.stores[0].fed or [0] * new.shape[0]
                for place in range(fed, fed + new.shape[1])
            ],
            device=device,
        )
        last = list(accumulate(new.shape[1] for new in self._ids for _ in range(new.shape[0])))
        logits: Tensor = self._model(
            input_ids=row[None],
            position_ids=places[None],
            past_key_values=self,
            use_cache=True,
            logits_to_keep=torch.tensor(last, device=device) - 1,
        ).logits
        return logits[0]

    def confidences(self, logits: Tensor) -> Tensor:
        """What each cache's gate makes of its rows of (B, V): (B,) float32, on their device.

        Equal gates are asked once for all; one that needs no logits gets zeros.
        """
        found = logits.new_zeros(logits.shape[0], dtype=torch.float32)
        gates: list[tuple[Any, list[slice]]] = []
        for cache, rows in zip(self._caches, self.rows, strict=True):
            gate = cache.policy.gate
            if not gate.needs_logits:
                continue
            mine = next((rows for other, rows in gates if other == gate), None)
            if mine is None:
                gates.append((gate, [rows]))
            else:
                mine.append(rows)
        for gate, of_gate in gates:
            each = gate.confidence(torch.cat([logits[rows] for rows in of_gate]))
            sizes = [rows.stop - rows.start for rows in of_gate]
            for rows, part in zip(of_gate, each.split(sizes), strict=True):
                found[rows] = part
        return found

    def settle_at(self, confidences: Sequence[float]) -> None:
        """Let every cache that is whole evict, given what `confidences` found."""
        for i, rows in enumerate(self.rows):
            self._guarded(i, partial(Cache.settle_at, confidences=confidences[rows]))

    def settle(self, logits: Tensor) -> None:
        self.settle_at(self.confidences(logits).tolist())

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        raise Misuse(
            "caches that go together do so for one forward, which can neither be copied nor "
            "pickled: copy the caches"
        )

    # ---- what transformers and the hooks call

    def check_input(self, module: nn.Module, batch: int, num_tokens: int) -> None:
        if (batch, num_tokens) != (1, self._parts[-1].stop):
            raise Misuse("caches that go together are fed by `feed_together`, not by hand")
        for cache, new in zip(self._caches, self._ids, strict=True):
            cache.check_input(module, *new.shape)

    def begin(self) -> None:
        for i, cache in enumerate(self._caches):
            try:
                cache.begin()
            except Misuse:
                for begun in self._caches[:i]:
                    begun.leave()
                raise

    def leave(self) -> None:
        for cache in self._caches:
            cache.leave()

    def note_ids(self, ids: Tensor | None) -> None:
        assert ids is not None
        for cache, new, part in zip(self._caches, self._ids, self._parts, strict=True):
            cache.note_ids(ids[0, part].view(new.shape))

    @uncompiled
    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> Any:
        return Handle(self, layer_idx, key_states, value_states), value_states

    def attend(
        self,
        module: nn.Module,
        handle: Handle,
        query: Tensor,
        mask: Tensor | None,
        scale: float,
        sinks: Tensor | None,
    ) -> Tensor:
        """Each cache's own `attend` on its own tokens: (1, tokens of all, query heads, D)."""
        assert mask is None, "there is no padding"
        whole = query.new_zeros(query.shape[2], query.shape[1], query.shape[3])
        for i, part in enumerate(self._parts):
            q, keys, values = (self._of(i, x) for x in (query, handle.keys, handle.values))

            def attend(
                cache: Cache, q: Tensor = q, keys: Tensor = keys, values: Tensor = values
            ) -> Tensor:
                mine, _ = cache.update(keys, values, handle.layer_idx)
                return cache.attend(module, mine, q, None, scale, sinks)

            out = self._guarded(i, attend)
            if out is not None:
                whole[part] = out.reshape(-1, *whole.shape[1:])
        return whole[None]

    def finish(self) -> None:
        for i in range(len(self._caches)):
            self._guarded(i, Cache.finish)

    def _of(self, i: int, x: Tensor) -> Tensor:
        """(1, H, tokens of all, D) to cache i's part of it, (B_i, H, n_i, D)."""
        part = x[:, :, self._parts[i]]
        batch, num_new = self._ids[i].shape
        return (
            part if batch == 1 else part[0].reshape(-1, batch, num_new, x.shape[3]).transpose(0, 1)
        )

    def _guarded(self, i: int, work: Callable[[Cache], T]) -> T | None:
        """What `work` makes of cache i; None if that broke it, now or before."""
        if self.errors[i] is not None:
            return None
        try:
            return work(self._caches[i])
        except Exception as error:  # the edge of one episode: the others must not feel it
            self.errors[i] = error
            return None


def feed_together(model: PreTrainedModel, caches: Sequence[Cache], ids: Sequence[Tensor]) -> Fed:
    """Feed several caches in one forward and settle each, as `Cache.feed` does one by one.

    Args, Raises: as `Together`.
    """
    together = Together(model, caches, ids)
    logits = together.read()
    together.settle(logits)
    return Fed(logits, tuple(together.errors))
