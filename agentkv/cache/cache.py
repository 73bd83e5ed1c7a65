"""The cache itself: what transformers is handed as `past_key_values`."""

import os
from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor
from transformers import PreTrainedModel

from agentkv.cache.attach import Gate, attach
from agentkv.cache.budget import parse_budget
from agentkv.cache.families import describe
from agentkv.cache.file import CacheFileError, SavedFile
from agentkv.cache.hf import Misuse
from agentkv.cache.lessons import Lessons
from agentkv.cache.saved import fill, read_settings, save
from agentkv.cache.state import StatefulCache
from agentkv.cache.stream import IdStream
from agentkv.policies.policy import Policy
from agentkv.policies.registry import policy as named_policy
from agentkv.policies.rows import PolicyError

__all__ = ["Cache", "attach"]


class Cache(StatefulCache):
    """Keys and values of one batch of token streams, kept small by a policy.

    Make one with `for_model`, hand it to `generate` or `forward` as `past_key_values`, and go on
    using it in the next turn. Feed every token once; positions are counted from the tokens seen.
    """

    @classmethod
    def for_model(
        cls,
        model: PreTrainedModel,
        *,
        policy: str | Policy = "conf-kv-int8",
        budget: int | float | str | None = None,
        prefill: Literal["chunked", "whole"] = "chunked",
        chunk: int = 512,
    ) -> "Cache":
        """An empty cache for `model`, which is attached if it was not.

        Args:
            policy: a name, or a value from `agentkv.policy`.
            budget: tokens per layer and KV head, protected ones included; or a share of the tokens
                each sequence has seen, such as 0.25 or "25%"; or bytes for the whole cache at rest,
                such as "64MiB". The budget of conf-kv is its loose one.
            prefill: how `feed` takes a long input: in chunks with a gate after each, which bounds
                the peak, or whole, which lets every token see all of it. A forward that arrives
                whole, as from `generate`, is attended to whole and evicted layer by layer right
                after; `generate(..., prefill_chunk_size=cache.chunk)` bounds that too.
            chunk: tokens per chunk.

        Raises:
            PolicyError, UnsupportedModel: ValueErrors that say what is possible.
        """
        if prefill not in ("chunked", "whole"):
            raise PolicyError(f"prefill must be 'chunked' or 'whole'; found {prefill!r}")
        if chunk < 1:
            raise PolicyError(f"chunk must be at least 1 token; found {chunk}")
        value = named_policy(policy) if isinstance(policy, str) else policy
        parsed = parse_budget(budget)
        attach(model)
        return cls(model, policy=value, budget=parsed, prefill=prefill, chunk=chunk)

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        model: PreTrainedModel,
        *,
        policy: str | Policy | None = None,
    ) -> "Cache":
        """The cache that `save` wrote, which goes on exactly as the saved one would have.

        Rows come back on the devices of the model's layers. `model` is attached if it was not.

        Args:
            policy: that of the saved cache; only one that was put together by hand, such as
                `agentkv.scored`, has to be given. If it has learned something, it keeps that, and
                else learns what was saved.

        Raises:
            CacheFileError: a ValueError; another program's file, damaged or of another version, or
                saved with another model or policy, of which the first difference is named.
            OSError: there is no such file.
        """
        describe(model)
        inner: Any = model.base_model
        given = named_policy(policy) if isinstance(policy, str) else policy
        with SavedFile(path) as file:
            value, settings, notes = read_settings(file, inner, given)
            cache = cls(
                model,
                policy=value,
                budget=settings.budget,
                prefill=settings.prefill,
                chunk=settings.chunk,
            )
            fill(cache, inner, file, notes)
        attach(model)
        return cache

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the cache to one file, from which `load` makes it again.

        The file takes its place once it is whole and on the disk, and only its owner may read it:
        it holds what was fed in latent form, and the token ids as they are. To be called between
        forwards.

        Raises:
            CacheFileError: a ValueError; the model is gone, or something is held that cannot be
                written down.
            OSError: the file could not be written; what stood there still does.
        """
        self.check()
        model: Any = self._model()
        if model is None:
            raise CacheFileError(
                "the model this cache was made for is gone, and with it what the cache could be "
                "loaded into; keep it as long as the cache"
            )
        save(self, model, path)

    @property
    def fitted(self) -> Policy:
        """The policy with its budget filled in, for the sequence that has seen most."""
        fed = next(iter(self.keepers.values())).fed
        return self.allowance.at(max(fed, default=0))

    @property
    def nbytes(self) -> int:
        """Bytes of all storage, read from the storage: keys, values, scales, positions, statistics,
        the window of queries."""
        return sum(store.nbytes for store in self.stores)

    @property
    def peak_nbytes(self) -> int:
        """The most bytes the storage held at any moment, within forwards too.

        Copies of rows on their way count: what is laid out anew is there twice, field by field.
        What attention, scores and encoding compute in does not.
        """
        return self._meter.peak

    def kept(self, layer: int) -> list[list[Tensor]]:
        """Original positions `layer` still holds, per sequence and KV head: int64, ascending.

        A sequence's own tokens are counted, from 0; padding has no position.
        """
        return self.stores[layer].kept()

    def check(self) -> None:
        """Audit the whole structure. Raises AssertionError saying what is broken."""
        for store in self.stores:
            store.check()
            assert store.seen == self.seen, "layers have seen different numbers of tokens"
        assert self.nbytes == self._meter.live, f"{self.nbytes} bytes, {self._meter.live} metered"
        assert self._meter.live <= self._meter.peak
        ids = self.ids
        assert ids is None or ids.shape == (self._batch, self.seen), "the id stream is not whole"

    def gate(self) -> "Gate":
        """A logits processor that tells the policy how sure the model is; put it first in the list.

        In a loop of one's own, call it with the ids and the logits (B, V) of the last token after
        each forward.
        """
        return Gate(self)

    def settle(self, logits: Tensor) -> None:
        """Evict down to what the policy allows, given the raw logits (B, V) of the last token."""
        gate = self.policy.gate
        if not gate.needs_logits or self._batch is None:
            return
        if logits.shape[0] != self._batch:
            raise Misuse(f"logits of {logits.shape[0]} sequences, the cache holds {self._batch}")
        # the only point of a step that waits for the device
        self.settle_at(gate.confidence(logits).tolist())

    def settle_at(self, confidences: Sequence[float]) -> None:
        """As `settle`, where what the policy's gate makes of the logits is on the host already."""
        if not self.policy.gate.needs_logits or self._batch is None:
            return
        assert len(confidences) == self._batch, "a confidence for every sequence"
        self.confidences = list(confidences)
        self.evict(self.confidences)
        self._store_by_rank()

    @torch.no_grad()
    def feed(
        self, model: PreTrainedModel, ids: Tensor, attention_mask: Tensor | None = None
    ) -> Tensor:
        """Feed new tokens, in chunks if `prefill` says so, with the gate after each chunk.

        Args:
            ids: (B, n) token ids that the cache has not seen.
            attention_mask: (B, seen + n), zeros for padding; None where there is none.

        Returns:
            The logits of the last token, (B, V).
        """
        step = self.chunk if self.prefill == "chunked" else max(1, ids.shape[1])
        self.check_input(model.base_model, ids.shape[0], ids.shape[1])
        logits: Tensor | None = None
        for start in range(0, ids.shape[1], step):
            piece = ids[:, start : start + step]
            mask = None
            if attention_mask is not None:
                mask = attention_mask[:, : self.seen + piece.shape[1]]
            outputs = model(
                input_ids=piece,
                attention_mask=mask,
                past_key_values=self,
                use_cache=True,
                logits_to_keep=1,
            )
            logits = outputs.logits[:, -1]
            self.settle(logits)
        if logits is None:
            raise Misuse("no tokens to feed")
        return logits

    def reset(self) -> None:
        """Forget everything; the cache is as new, but for its peak."""
        for store in self.stores:
            store.reset()
        self._batch, self.confidences, self.pending = None, None, None
        self._ids, self._lessons = IdStream(), Lessons(self.policy.allocator)
