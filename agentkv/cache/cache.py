"""The cache itself: what transformers is handed as `past_key_values`."""

from typing import Literal

import torch
from torch import Tensor
from transformers import PreTrainedModel

from agentkv.cache.attach import Gate, attach
from agentkv.cache.budget import parse_budget
from agentkv.cache.forward import ForwardCache
from agentkv.cache.hf import Misuse
from agentkv.cache.lessons import Lessons
from agentkv.cache.stream import IdStream
from agentkv.policies.policy import Policy
from agentkv.policies.registry import policy as named_policy
from agentkv.policies.rows import PolicyError

__all__ = ["Cache", "attach"]


class Cache(ForwardCache):
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

    @property
    def fitted(self) -> Policy:
        """The policy with its budget filled in, for the sequence that has seen most."""
        fed = next(iter(self.keepers.values())).fed
        return self.allowance.at(max(fed, default=0))

    @property
    def ids(self) -> Tensor | None:
        """(B, seen) int32 on the CPU: the tokens fed so far, padding included. None before the
        first, and for good once embeddings were fed."""
        return self._ids.all()

    @property
    def nbytes(self) -> int:
        """Bytes of all storage, read from the storage: keys, values, scales, positions, statistics,
        the window of queries."""
        return sum(store.nbytes for store in self.stores)

    @property
    def peak_nbytes(self) -> int:
        """The most bytes the storage held at any moment, within forwards too."""
        return self._meter.peak

    def kept(self, layer: int) -> list[list[Tensor]]:
        """Original positions `layer` still holds, per sequence and KV head: int64, ascending."""
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
        self.confidences = gate.confidence(logits).tolist()
        for i in self.keepers:
            self.stores[i].evict(self.confidences, num_new=self._num_new)
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
