"""A cache as a model calls it: checked before a forward, attended to in it, tidied after it."""

import weakref
from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from agentkv.cache.attach import CheckedCache
from agentkv.cache.budget import Allowance, Budget, Bytes
from agentkv.cache.evict import estimate, evict
from agentkv.cache.families import describe, output_projection
from agentkv.cache.geometry import Geometry
from agentkv.cache.hf import Handle, Layer, Misuse, uncompiled
from agentkv.cache.keeper import Keeper
from agentkv.cache.layer import LayerStore
from agentkv.cache.lessons import Lessons
from agentkv.cache.progress import Progress
from agentkv.cache.stream import IdStream
from agentkv.cache.table import Meter
from agentkv.cache.turns import watch_turns
from agentkv.cache.view import Attention
from agentkv.policies.policy import Policy

OTHER_MODEL = "this cache was made for another model; make one with agentkv.Cache.for_model(model)"


class _WithoutGradient(torch.autograd.Function):
    """Passes an output of attention on, and refuses the gradient that it has none for."""

    @staticmethod
    def forward(ctx: Any, output: Tensor, query: Tensor) -> Tensor:
        return output.view_as(output)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        raise Misuse(
            "a cache is for inference: what it stores has no gradient. Train the model without it, "
            "with use_cache=False"
        )


class ForwardCache(CheckedCache):
    """What transformers and the hooks of an attached model call; `Cache` is what people call."""

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        policy: Policy,
        budget: Budget,
        prefill: Literal["chunked", "whole"],
        chunk: int,
    ) -> None:
        modules = {id(module) for module in model.modules()}
        self._set_up(
            describe(model), weakref.ref(model.base_model), modules, policy, budget, prefill, chunk
        )
        if policy.allocator.learns:
            watch_turns(model)

    def _set_up(
        self,
        geometry: Geometry,
        model: "weakref.ref[nn.Module]",
        modules: set[int],
        policy: Policy,
        budget: Budget,
        prefill: Literal["chunked", "whole"],
        chunk: int,
    ) -> None:
        """Be an empty cache.

        Args:
            model: the base model.
            modules: ids of the modules of the model, with what is around its base.
        """
        self.geometry = geometry
        self.policy = policy
        """As it was asked for; `fitted` has its numbers filled in."""
        self.prefill, self.chunk = prefill, chunk
        self.confidences: list[float] | None = None
        """Per sequence, at the last step a gate that needs logits was given them; else None."""
        self.pending: list[list[int]] | None = None
        """For its owner to set: per sequence, tokens that were sampled and not fed yet. Saved and
        restored with the cache, which makes no use of them."""
        self._budget = budget
        self._model, self._modules = model, modules
        self._meter = Meter()
        self._batch: int | None = None
        self._ids = IdStream()
        self._new_ids: Tensor | None = None
        """The ids of the forward that is going on."""
        self._num_new = 0
        self._has_gate = False
        self._unsettled: Tensor | None = None
        """(B,) what the policy's gate made of the latest forward's logits, if anyone will ask."""
        self._progress = Progress()
        self._lessons = Lessons(policy.allocator)
        self.allowance = Allowance(policy, budget, self.geometry)
        self.keepers = {
            layer: Keeper(i, self.allowance) for i, layer in enumerate(self.geometry.policy_layers)
        }
        """By layer, of those that the policy acts on."""
        self.stores = [
            LayerStore(shape, keeper=self.keepers.get(i), meter=self._meter)
            for i, shape in enumerate(self.geometry.layers)
        ]
        """One per layer."""
        super().__init__(layers=[Layer(store) for store in self.stores])

    @property
    def seen(self) -> int:
        """Tokens fed so far, in columns of the batch."""
        return self.stores[0].seen

    @property
    def batch_size(self) -> int:
        """Sequences in the batch; -1 before the first forward."""
        return -1 if self._batch is None else self._batch

    def check_input(self, module: nn.Module, batch: int, num_tokens: int) -> None:
        """Refuse a forward that cannot work, before it starts. Raises Misuse (ValueError)."""
        self._progress.require_rest()
        if module is not self._model() and id(module) not in self._modules:
            raise Misuse(OTHER_MODEL)
        self._check_batch(batch)
        most = self.geometry.max_positions
        if most is not None and self.seen + num_tokens > most:
            raise Misuse(
                f"{self.geometry.family} has {most} positions; {self.seen} tokens were seen and "
                f"{num_tokens} more were given. Evicting does not free positions: start a new cache"
            )
        if self._batch is None:
            self._share_bytes(batch)  # by the sequences, whose number is known now

    def begin(self) -> None:
        self._progress.begin()
        self._unsettled = None

    def leave(self) -> None:
        self._progress.leave()

    def positions(self, mask: Tensor | None, num_tokens: int) -> Tensor | None:
        fed = self.stores[0].fed
        if mask is None and fed.count(self.seen) == len(fed):
            return None
        if mask is None:
            steps = torch.arange(num_tokens)[None]
        elif mask.dim() != 2:
            return None  # refused where it is looked at
        else:
            steps = mask[:, -num_tokens:].to(torch.int64).cumsum(dim=1) - 1
        first = torch.tensor(fed or [0], device=steps.device)[:, None]
        # padding is not stored, and any position does for it
        return (first + steps).clamp_min(0)

    def note_ids(self, ids: Tensor | None) -> None:
        self._new_ids = ids

    @property
    def turn_window(self) -> int:
        is_context = self.policy.allocator.learns and self._num_new > 1
        return self.policy.scorer.window if is_context else 0

    def note_turn(self, layer_idx: int, turn: Tensor) -> None:
        self._lessons.note_turn(layer_idx, turn)

    @uncompiled
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
        with torch.no_grad():
            output = self._attend(module, handle, query, mask, scale, sinks)
        if query.requires_grad and torch.is_grad_enabled():
            output = _WithoutGradient.apply(output, query)  # type: ignore[no-untyped-call]
        return output

    def _attend(
        self,
        module: nn.Module,
        handle: Handle,
        query: Tensor,
        mask: Tensor | None,
        scale: float,
        sinks: Tensor | None,
    ) -> Tensor:
        keys, values = handle.keys, handle.values
        self._progress.has_changed = True
        self._batch, self._num_new = keys.shape[0], keys.shape[2]
        if handle.layer_idx == 0 and self._num_new > 1:
            self.allowance.begin_context()
        store = self.stores[handle.layer_idx]
        projection = None
        if store.keeper is not None and self.policy.selector.norms is not None:
            projection = output_projection(module)
        attention = store.attention
        if attention is None or not attention.is_of(scale, sinks, projection):
            attention = Attention(scale, sinks, projection)
        keeper = store.keeper
        if self._num_new == 1 and keeper is not None and not keeper.num_steps:
            # the prefill is over: no row has come since, and the layer's queries are its last
            estimate([store], range(len(store.fed)))
        output = store.attend(query, keys, values, mask, attention)
        if self._num_new > 1 and store.keeper is not None:
            # at once, so that no two layers hold a whole prompt
            evict([store], None, num_new=self._num_new)
        return output

    @torch.no_grad()
    def finish(self) -> None:
        if self._num_new == 1:
            self.evict(None)
        self._store_by_rank()
        if self.turn_window:
            self._lessons.take(self.keepers)
        self._ids.append(self._new_ids)
        self._new_ids = None
        self._progress.end()

    def evict(self, confidences: Sequence[float] | None) -> None:
        """Drop rows down to what the policy allows, in all layers; None for the confidence: down to
        the most it ever allows."""
        stores = [self.stores[i] for i in self.keepers]
        evict(stores, confidences, num_new=self._num_new)

    def _store_by_rank(self) -> None:
        if not self.policy.precision.by_rank:
            return
        going = {i for keeper in self.keepers.values() for i in keeper.ranks.noted}
        estimate([self.stores[i] for i in self.keepers], going)
        best: dict[int, float] = {}
        for keeper in self.keepers.values():
            for sequence, quality in keeper.ranks.qualities.items():
                best[sequence] = max(best.get(sequence, 0.0), quality)
        for i, keeper in self.keepers.items():
            lanes = self.stores[i].lanes
            assert lanes is not None
            keeper.store_by_rank(lanes, best)

    def _share_bytes(self, batch: int) -> None:
        """See to it that a budget in bytes is one for so many sequences. Raises PolicyError, and
        nothing has changed."""
        if isinstance(self._budget, Bytes) and batch != self.allowance.batch:
            self.allowance = Allowance(self.policy, self._budget, self.geometry, batch)
            for keeper in self.keepers.values():
                keeper.allowance = self.allowance

    def _check_batch(self, batch: int) -> None:
        if self._batch is not None and batch != self._batch:
            raise Misuse(
                f"this cache holds {self._batch} sequences and was given {batch}; make a new one"
            )

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Sequence i becomes a copy of what sequence beam_idx[i] was (beam search).

        Here and below, a budget in bytes is shared by the sequences that there then are: where they
        are more, rows go at once.

        Raises:
            PolicyError: a ValueError; the bytes are too few for so many. Nothing has changed.
        """
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
        memory, had = self.allowance.memory, self._batch
        self._share_bytes(len(index))  # refused before anything changes
        with self._progress.changing():
            self.allowance.go_by(memory)
            if self.allowance.batch > had:
                # before they are copied, so that all of them together stay within the bytes
                evict([self.stores[i] for i in self.keepers], None, num_new=1)
                self._store_by_rank()
            for store in self.stores:
                store.reorder(index)
            self._ids.reorder(index)
            self._unsettled = None
            if self.confidences is not None:
                self.confidences = [self.confidences[i] for i in index]
            self._batch = len(index)

    def crop(self, *args: Any, **kwargs: Any) -> None:
        """Always refused."""
        raise Misuse(
            "this cache cannot be rolled back: what was evicted, quantised and averaged since is "
            "gone. Decode without an assistant model, or take a `snapshot` first and `restore` it"
        )
