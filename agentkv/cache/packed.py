"""Several caches in one forward of their model, their tokens packed into one sequence.

Everything but attention runs on all tokens at once; in attention, each cache serves its own. No
token is padding, whatever the lengths.

A recurrent layer would take the packed tokens for one sequence. Caches with recurrent states share
a forward only to decode: each sequence is then a row with one token, as in any batch.

Shapes: B_i sequences in cache i, B of all caches together, n_i new tokens of each sequence.
"""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import accumulate, pairwise
from typing import NoReturn, SupportsIndex, TypeVar

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from agentkv.cache.cache import Cache
from agentkv.cache.hf.compat import CACHE, Handle
from agentkv.cache.hf.hooked_cache import HookedCache
from agentkv.cache.layer import CacheLayer
from agentkv.cache.misuse import Misuse
from agentkv.cache.recurrent import RecurrentLayer
from agentkv.policies.policy import Policy

T = TypeVar("T")


def why_alone(cache: Cache, num_tokens: int) -> str | None:
    """Return why `num_tokens` new tokens of `cache` cannot share a forward; None if they can."""
    if cache.recurrent and (num_tokens > 1 or not cache.seen):
        return (
            "a model with recurrent states reads several tokens, or a first one, of one cache at a "
            "time"
        )
    if num_tokens == 1 and cache.looks_at_once:
        return f"under {cache.policy.name}, a token looks back in its one pass"
    if num_tokens > 1 and cache.policy.allocator.learns:
        return f"{cache.policy.name} learns from each context and must read it alone"
    return None


class PackedForward(HookedCache):
    """One forward of several caches, used once.

    Args:
        caches: caches of `model`, each once, of any policies and lengths.
        ids: per cache, tokens (B_i, n_i) that its sequences have not seen, without padding. They
            are fed in this one forward, and attended in chunks as `Cache.feed` does; the caller
            keeps to `Cache.tokens_at_once`.

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
            why = why_alone(cache, new.shape[1]) if len(caches) > 1 else None
            if why is not None:
                raise Misuse(
                    f"{why}; found {new.shape[1]} tokens for it among others: use cache.feed"
                )
            cache.check_input(model.base_model, *new.shape)
        super().__init__(layers=caches[0].layers)
        self._model, self._caches, self._ids = model, tuple(caches), tuple(ids)
        ends = list(accumulate((new.numel() for new in ids), initial=0))
        self._parts = [slice(*ends) for ends in pairwise(ends)]
        """Per cache: its tokens in the packed sequence."""
        ends = list(accumulate((new.shape[0] for new in ids), initial=0))
        self.rows = [slice(*ends) for ends in pairwise(ends)]
        """Per cache: its rows of the logits."""
        self._recurrent: dict[int, RecurrentLayer] = {}
        """By decoder layer, recurrent states of all caches during the forward."""
        self._has_rows = bool(caches[0].recurrent)
        """True if each sequence is a row with one token; False if all tokens are one row."""
        self.errors: list[Exception | None] = [None] * len(caches)
        """Per cache, the error that broke it alone; it must be restored or reset."""

    @torch.no_grad()
    def read(self) -> Tensor:
        """Feed all tokens and return the logits (B, V) after each sequence's last, without a gate.

        An exception in one cache ends that cache alone (`errors`); one in the model is raised. A
        cache whose forward did not end refuses the next one until it is restored or reset.
        """
        if len(self._caches) == 1:
            cache, new = self._caches[0], self._ids[0]
            with cache.attending_in_chunks():
                alone: Tensor = self._model(
                    input_ids=new, use_cache=True, logits_to_keep=1, **{CACHE: cache}
                ).logits
            return alone[:, -1]
        device = self._ids[0].device
        packed = torch.cat([new.reshape(-1).to(device) for new in self._ids])[None]
        last = list(accumulate(new.shape[1] for new in self._ids for _ in range(new.shape[0])))
        logits: Tensor = self._model(
            input_ids=packed.T if self._has_rows else packed,
            use_cache=True,
            logits_to_keep=1 if self._has_rows else torch.tensor(last, device=device) - 1,
            **{CACHE: self},
        ).logits
        return self._look_back_each(logits[:, 0] if self._has_rows else logits[0])

    def _look_back_each(self, logits: Tensor) -> Tensor:
        """Return the logits (B, V) that count once every cache may have looked back."""
        parts = [logits[rows] for rows in self.rows]
        for i, part in enumerate(parts):
            again = self._guarded(i, partial(Cache.look_back, model=self._model, logits=part))
            if again is not None:
                parts[i] = again
        return torch.cat(parts)

    def confidences(self, logits: Tensor) -> Tensor:
        """Return the confidence (B,) float32 of logits (B, V), by the policy of each cache.

        Equal policies are asked once; one that needs no logits yields zeros.
        """
        found = logits.new_zeros(logits.shape[0], dtype=torch.float32)
        policies: list[tuple[Policy, list[slice]]] = []
        for cache, rows in zip(self._caches, self.rows, strict=True):
            policy = cache.policy
            if not policy.needs_logits:
                continue
            equal = next((rows for other, rows in policies if other == policy), None)
            if equal is None:
                policies.append((policy, [rows]))
            else:
                equal.append(rows)
        for policy, of_policy in policies:
            each = policy.confidence(torch.cat([logits[rows] for rows in of_policy]))
            sizes = [rows.stop - rows.start for rows in of_policy]
            for rows, part in zip(of_policy, torch.split(each, sizes), strict=True):
                found[rows] = part
        return found

    def apply_gates_at(self, confidences: Sequence[float]) -> None:
        """Apply the gate of every unbroken cache, given the result of `confidences`."""
        for i, rows in enumerate(self.rows):
            self._guarded(i, partial(Cache.apply_gate_at, confidences=confidences[rows]))

    def apply_gate(self, logits: Tensor) -> None:
        self.apply_gates_at(self.confidences(logits).tolist())

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        raise Misuse(
            "a packed forward serves one forward and cannot be copied or pickled: copy the caches"
        )

    # ---- what transformers and the hooks call

    def check_input(self, module: nn.Module, batch: int, num_tokens: int) -> None:
        shape = (num_tokens, batch) if self._has_rows else (batch, num_tokens)
        if shape != (1, self._parts[-1].stop):
            raise Misuse("caches in a packed forward are fed by its `read`, not by the model")
        for cache, new in zip(self._caches, self._ids, strict=True):
            cache.check_input(module, *new.shape)

    def begin(self, num_tokens: int, is_token: Tensor | None) -> None:
        for i, (cache, new) in enumerate(zip(self._caches, self._ids, strict=True)):
            try:
                cache.begin(new.shape[1], None)
            except BaseException as error:
                if isinstance(error, Exception) and not isinstance(error, Misuse):
                    self.errors[i] = error
                    continue
                for begun in self._caches[:i]:
                    begun.leave()
                raise

    def leave(self) -> None:
        for cache in self._caches:
            cache.leave()

    def rotary_positions(self, given: Tensor | None, num_tokens: int) -> Tensor:
        """Return (1, all tokens), or (all tokens, 1) if each is a row."""
        places = torch.tensor(
            [
                [
                    position
                    for cache, new in zip(self._caches, self._ids, strict=True)
                    for first in cache.next_numbers or [0] * new.shape[0]
                    for position in range(first, first + new.shape[1])
                ]
            ]
        )
        return places.T if self._has_rows else places

    def note_ids(self, ids: Tensor | None) -> None:
        assert ids is not None
        for cache, new, part in zip(self._caches, self._ids, self._parts, strict=True):
            cache.note_ids(ids.reshape(-1)[part].view(new.shape))

    def recurrent_layer(self, layer_idx: int) -> RecurrentLayer:
        if layer_idx not in self._recurrent:
            own = [cache.recurrent[layer_idx] for cache in self._caches]
            self._recurrent[layer_idx] = RecurrentLayer.joined(own)
        return self._recurrent[layer_idx]

    def attend(
        self,
        module: nn.Module,
        handle: Handle,
        query: Tensor,
        mask: Tensor | None,
        scale: float,
        sinks: Tensor | None,
    ) -> Tensor:
        """Call `attend` of each cache on its own tokens: (1, all tokens, query heads, D), or (all
        tokens, 1, query heads, D) if each is a row."""
        assert mask is None, "a packed forward has no padding"
        packed = [
            x.transpose(0, 2) if self._has_rows else x for x in (query, handle.keys, handle.values)
        ]
        query = packed[0]
        output = query.new_zeros(query.shape[2], query.shape[1], query.shape[3])
        for i, part in enumerate(self._parts):
            q, keys, values = (self._of(i, x) for x in packed)

            def attend(
                cache: Cache, q: Tensor = q, keys: Tensor = keys, values: Tensor = values
            ) -> Tensor:
                own, _ = cache.update(keys, values, handle.layer_idx)
                own.is_stored = handle.is_stored
                with cache.attending_in_chunks():
                    return cache.attend(module, own, q, None, scale, sinks)

            out = self._guarded(i, attend)
            if out is not None:
                output[part] = out.reshape(-1, *output.shape[1:])
        handle.is_stored = True
        return output[:, None] if self._has_rows else output[None]

    def can_step(self, num_columns: int) -> bool:
        return all(
            cache.can_step(new.shape[1]) for cache, new in zip(self._caches, self._ids, strict=True)
        )

    def begin_step(
        self, attentions: Sequence[nn.Module], scales: Sequence[float]
    ) -> Sequence[tuple[Sequence[CacheLayer], slice]]:
        members = []
        for i, rows in enumerate(self.rows):
            begun = self._guarded(i, lambda cache: cache.begin_step(attentions, scales))
            if begun is not None:
                members += [(layers, rows) for layers, _ in begun]
        return members

    def finish(self) -> None:
        for i in range(len(self._caches)):
            self._guarded(i, partial(self._finish_one, rows=self.rows[i]))

    def _finish_one(self, cache: Cache, rows: slice) -> None:
        for layer_idx, joined in self._recurrent.items():
            cache.recurrent[layer_idx].take(joined, rows)
        cache.finish()

    def _of(self, i: int, x: Tensor) -> Tensor:
        """Return cache i's part (B_i, H, n_i, D) of (1, H, all tokens, D)."""
        part = x[:, :, self._parts[i]]
        batch, num_new = self._ids[i].shape
        return (
            part if batch == 1 else part[0].reshape(-1, batch, num_new, x.shape[3]).transpose(0, 1)
        )

    def _guarded(self, i: int, work: Callable[[Cache], T]) -> T | None:
        """Return the result of `work` on cache i; None if it is broken, now or before."""
        if self.errors[i] is not None:
            return None
        try:
            return work(self._caches[i])
        except Exception as error:  # one broken cache must not affect the others
            self.errors[i] = error
            return None
