"""The cache itself: what transformers is handed as `past_key_values`."""

import weakref
from typing import Any, Literal

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from agentkv.cache.attach import CheckedCache, Gate, attach
from agentkv.cache.budget import Allowance, Budget, Bytes, parse_budget
from agentkv.cache.families import describe, output_projection
from agentkv.cache.geometry import Geometry
from agentkv.cache.hf import Handle, Layer, Misuse
from agentkv.cache.layer import LayerStore
from agentkv.cache.lessons import Lessons
from agentkv.cache.stream import IdStream
from agentkv.cache.table import Meter
from agentkv.cache.turns import watch_turns
from agentkv.cache.view import Attention
from agentkv.policies.policy import Policy, PolicyError
from agentkv.policies.registry import policy as named_policy

__all__ = ["Cache", "attach"]

OTHER_MODEL = "this cache was made for another model; make one with agentkv.Cache.for_model(model)"


class Cache(CheckedCache):
    """Keys and values of one batch of token streams, kept small by a policy.

    Make one with `for_model`, hand it to `generate` or `forward` as `past_key_values`, and go on
    using it in the next turn. Feed every token once; positions are counted from the tokens seen.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        policy: Policy,
        budget: Budget,
        prefill: Literal["chunked", "whole"],
        chunk: int,
    ) -> None:
        self.geometry: Geometry = describe(model)
        self.policy = policy
        """As it was asked for; `fitted` has its numbers filled in."""
        self.prefill, self.chunk = prefill, chunk
        self.confidences: list[float] | None = None
        """Per sequence, at the last step a gate that needs logits was given them; else None."""
        self.pending: list[list[int]] | None = None
        """For its owner to set: per sequence, tokens that were sampled and not fed yet. Saved and
        restored with the cache, which makes no use of them."""
        self._budget = budget
        self._model = weakref.ref(model.base_model)
        self._modules = {id(module) for module in model.modules()}
        self._meter = Meter()
        self._batch: int | None = None
        self._ids = IdStream()
        self._num_new = 0
        self._lessons = Lessons(policy.allocator)
        self.allowance = Allowance(policy, budget, self.geometry)
        acted_on = {layer: i for i, layer in enumerate(self.geometry.policy_layers)}
        self.stores = [
            LayerStore(shape, index=acted_on.get(i), allowance=self.allowance, meter=self._meter)
            for i, shape in enumerate(self.geometry.layers)
        ]
        """One per layer."""
        super().__init__(layers=[Layer(store) for store in self.stores])
        if policy.allocator.learns:
            watch_turns(model)

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
        return self.allowance.at(max(self.stores[0].fed, default=0))

    @property
    def seen(self) -> int:
        """Tokens fed so far, in columns of the batch."""
        return self.stores[0].seen

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

    @property
    def batch_size(self) -> int:
        """Sequences in the batch; -1 before the first forward."""
        return -1 if self._batch is None else self._batch

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
        for i in self.geometry.policy_layers:
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

    # ---- what transformers and the model's hooks call

    def check_input(self, module: nn.Module, batch: int, num_tokens: int) -> None:
        """Refuse a forward that cannot work, before it starts. Raises Misuse (ValueError)."""
        if module is not self._model() and id(module) not in self._modules:
            raise Misuse(OTHER_MODEL)
        self._check_batch(batch)
        most = self.geometry.max_positions
        if most is not None and self.seen + num_tokens > most:
            raise Misuse(
                f"{self.geometry.family} has {most} positions; {self.seen} tokens were seen and "
                f"{num_tokens} more were given. Evicting does not free positions: start a new cache"
            )
        if self._batch is None and isinstance(self._budget, Bytes):
            # bytes are shared by the sequences, whose number is known now
            self.allowance = Allowance(self.policy, self._budget, self.geometry, batch)
            for store in self.stores:
                store.allowance = self.allowance

    def note_ids(self, ids: Tensor | None) -> None:
        self._ids.append(ids)

    @property
    def turn_window(self) -> int:
        is_learning = self.policy.allocator.learns and not self._lessons.is_over
        return self.policy.scorer.window if is_learning else 0

    def note_turn(self, layer_idx: int, turn: Tensor) -> None:
        self._lessons.note_turn(layer_idx, turn)

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> Any:
        """A light handle in place of the keys; the attention function stores and attends."""
        if layer_idx >= len(self.layers):
            raise Misuse("this cache was made for another model, with fewer layers")
        shape = self.geometry.layers[layer_idx]
        batch, heads, _, head_dim = key_states.shape
        if (heads, head_dim) != (shape.num_heads, shape.head_dim):
            raise Misuse("this cache was made for another model, with other heads")
        self._check_batch(batch)
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
        """Called by the registered attention function; see `LayerStore.attend`."""
        if id(module) not in self._modules:
            raise Misuse(OTHER_MODEL)
        if mask is not None and mask.dim() != 2:
            raise Misuse(f"a padding mask has 2 dimensions, this one {mask.dim()}")
        keys, values = handle.keys.detach(), handle.values.detach()
        self._batch, self._num_new = keys.shape[0], keys.shape[2]
        store = self.stores[handle.layer_idx]
        projection = None
        if store.index is not None and self.policy.selector.norms is not None:
            projection = output_projection(module)
        attention = Attention(scale, sinks, projection)
        return store.attend(query, keys, values, mask, attention)

    def finish(self) -> None:
        self._store_by_rank()
        if self.turn_window:
            self._lessons.take(self.stores, self.geometry.policy_layers)

    def _store_by_rank(self) -> None:
        if not self.policy.precision.by_rank:
            return
        acted_on = [self.stores[i] for i in self.geometry.policy_layers]
        best: dict[int, float] = {}
        for store in acted_on:
            for sequence, quality in store.ranks.qualities.items():
                best[sequence] = max(best.get(sequence, 0.0), quality)
        for store in acted_on:
            store.store_by_rank(best)

    def _check_batch(self, batch: int) -> None:
        if self._batch is not None and batch != self._batch:
            raise Misuse(
                f"this cache holds {self._batch} sequences and was given {batch}; make a new one"
            )

    def reset(self) -> None:
        """Forget everything; the cache is as new, but for its peak."""
        for store in self.stores:
            store.reset()
        self._batch, self.confidences, self.pending = None, None, None
        self._ids, self._lessons = IdStream(), Lessons(self.policy.allocator)

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Sequence i becomes a copy of what sequence beam_idx[i] was (beam search)."""
        self._rearrange(beam_idx.tolist())

    def batch_select_indices(self, indices: Tensor) -> None:
        """Keep only these sequences, in this order."""
        self._rearrange(indices.tolist())

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Every sequence `repeats` times in a row."""
        self._rearrange([i for i in range(self.batch_size) for _ in range(repeats)])

    def _rearrange(self, index: list[int]) -> None:
        if self._batch is None:
            raise Misuse("the cache is empty: there are no sequences to rearrange")
        for store in self.stores:
            store.reorder(index)
        self._ids.reorder(index)
        self._batch = len(index)

    def crop(self, *args: Any, **kwargs: Any) -> None:
        """Always refused."""
        raise Misuse(
            "this cache cannot be rolled back: what was evicted, quantised and averaged since is "
            "gone. Decode without an assistant model, or take a `snapshot` first and `restore` it"
        )
