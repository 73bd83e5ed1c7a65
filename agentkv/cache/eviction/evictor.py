"""Eviction of a whole cache: what the policy allows now, and when each layer is asked."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext

import torch
from torch import Tensor

from agentkv.cache.budget import Allowance, Budget, Bytes
from agentkv.cache.eviction.energy import EnergyStatistics
from agentkv.cache.eviction.evict import estimate_qualities, evict
from agentkv.cache.eviction.layer_policy import LayerPolicy
from agentkv.cache.geometry import Geometry
from agentkv.cache.layer import CacheLayer
from agentkv.cache.misuse import Misuse
from agentkv.cache.spans import Pins, SequenceSpans, Spans
from agentkv.cache.storage.cold_memory import ColdMemory, ColdMemoryError
from agentkv.cache.storage.table import Meter
from agentkv.policies.policy import Policy


class Evictor:
    """The policy of a cache, with its state for every layer.

    Args:
        policy: the policy as requested.
        budget: as `parse_budget` returned it.
        meter, cold_meter, index_meter: count the bytes of the layers, which this makes, of their
            cold tiers, and of the indexes of these.
        cold_memory: where the cold tiers are.
        dtype: of dense entries; None: the model's.

    Raises:
        PolicyError: the policy does not fit into the budget.
    """

    def __init__(
        self,
        policy: Policy,
        budget: Budget,
        geometry: Geometry,
        meter: Meter,
        cold_meter: Meter,
        index_meter: Meter,
        cold_memory: ColdMemory,
        dtype: torch.dtype | None = None,
    ) -> None:
        self.policy, self.budget, self.geometry = policy, budget, geometry
        self.cold_memory = cold_memory
        self.allowance = Allowance(policy, budget, geometry)
        self.spans = Spans()
        """Labels and pins of all sequences."""
        self.layer_policies = {
            layer: LayerPolicy(i, self.allowance, self.spans)
            for i, layer in enumerate(geometry.policy_layers)
        }
        """State per layer that the policy acts on."""
        self.layers = [
            CacheLayer(
                shape,
                policy=self.layer_policies.get(i),
                meter=meter,
                cold_meter=cold_meter,
                index_meter=index_meter,
                cold_memory=cold_memory,
                looks_back=policy.recall.looks_back,
                dtype=dtype,
            )
            for i, shape in enumerate(geometry.layers)
        ]
        """All layers of the cache."""
        self._energies = EnergyStatistics(policy.allocator)

    @property
    def _acted_on(self) -> list[CacheLayer]:
        return [self.layers[i] for i in self.layer_policies]

    def set_batch(self, batch: int) -> None:
        """Share a budget in bytes between `batch` sequences.

        Raises:
            PolicyError: the bytes are too few. Nothing has changed.
        """
        if isinstance(self.budget, Bytes) and batch != self.allowance.batch:
            allowance = Allowance(self.policy, self.budget, self.geometry, batch)
            self._require_fit(allowance, self.spans.sequences)
            self.allowance = allowance
            for layer_policy in self.layer_policies.values():
                layer_policy.allowance = self.allowance

    @property
    def fed(self) -> list[int]:
        """Tokens that each sequence was fed; before the first forward 0 for all of them."""
        return self.layers[0].fed or [0] * len(self.spans.sequences)

    def use_spans(self, sequences: Sequence[SequenceSpans]) -> None:
        """Take other labels and pins, one for each sequence.

        Raises:
            Misuse: a ValueError; tokens to be pinned have left a layer.
            PolicyError: a ValueError; the pinned tokens do not fit into the budget. In both cases
                nothing has changed.
        """
        for i, new in enumerate(sequences):
            if new.pins != self.spans.pins(i):
                self._require_held(i, new.pins)
        self._require_fit(self.allowance, sequences)
        self.spans.sequences = list(sequences)

    def require_room(self, num_new: int) -> None:
        """Check that tokens which are pinned as they come fit into the budget, and that whatever
        is evicted for them fits into the cold tiers.

        Raises:
            PolicyError: a ValueError; they do not.
            ColdMemoryError: a ValueError; it may not.
        """
        limit = self.cold_memory.limit
        if limit is not None:
            self._require_cold_room(num_new, limit)
        if any(each.pins.is_open for each in self.spans.sequences):
            self._require_fit(self.allowance, self.spans.sequences, num_new)

    def _require_cold_room(self, num_new: int, limit: int) -> None:
        needed = 0
        for layer in self.layers:
            if layer.cold is not None:
                needed += layer.cold.grown_nbytes(max(layer.storage.counts) + num_new)
        if needed > limit:
            raise ColdMemoryError(
                f"with {num_new} more tokens the cold tier may need {needed} bytes, and its limit "
                f"is {limit}: drop spans that are not needed, raise the limit, or `reset` the cache"
            )

    def _require_fit(
        self, allowance: Allowance, sequences: Sequence[SequenceSpans], num_new: int = 0
    ) -> None:
        for num_seen, each in zip(self.fed, sequences, strict=False):
            if each.pins.ranges:
                allowance.at(num_seen + num_new, each.pins)

    def _require_held(self, sequence: int, pins: Pins) -> None:
        """Check that every layer that the policy acts on holds what is pinned."""
        for i in self.layer_policies:
            layer = self.layers[i]
            for start, stop in pins.ranges if layer.is_filled else ():
                missing = layer.num_missing(sequence, start, stop)
                if missing:
                    raise Misuse(
                        f"{missing} of the tokens from position {start} on have left layer {i}, "
                        "and cannot come back; pin tokens before they are fed, with "
                        "cache.label(..., pinned=True)"
                    )

    def context_window(self, num_new: int) -> int:
        """Return over how many last tokens of a forward the residual shift is averaged; 0: none."""
        is_context = self.policy.allocator.learns and num_new > 1
        return self.policy.scorer.window if is_context else 0

    def note_residual_shift(self, layer_idx: int, shift: Tensor) -> None:
        """Take the residual shift of a layer; see `EnergyStatistics`."""
        self._energies.note_residual_shift(layer_idx, shift)

    def before_layer(self, layer: CacheLayer, num_new: int) -> None:
        """Prepare for a forward of `num_new` tokens in one layer."""
        if layer is self.layers[0] and num_new > 1:
            self.allowance.begin_context()
        if num_new == 1 and layer.policy is not None and not layer.policy.num_steps:
            # the prefill is over: nothing was appended since, and the window holds its last queries
            estimate_qualities([layer], range(len(layer.fed)))

    def after_layer(self, layer: CacheLayer, num_new: int) -> None:
        """Evict from a layer that was fed several tokens, so that no two layers hold a prompt."""
        if num_new > 1 and layer.policy is not None:
            evict([layer], None, num_new=num_new)

    def after_forward(self, num_new: int) -> None:
        """Evict down to the most the gate allows, and quantize."""
        if num_new == 1:
            with one_thread():
                evict(self._acted_on, None, num_new=num_new)
        self._quantize_by_rank()
        if self.context_window(num_new):
            self._energies.finish_context(self.layer_policies)

    def apply_gate(self, confidences: Sequence[float], num_new: int) -> None:
        """Evict down to what the gate allows at these confidences, one per sequence."""
        with one_thread() if num_new == 1 else nullcontext():
            evict(self._acted_on, confidences, num_new=num_new)
        self._quantize_by_rank()

    @property
    def num_cold(self) -> list[int]:
        """Entries of each sequence in the cold tiers of all layers."""
        tiers = [layer.cold for layer in self.layers if layer.cold is not None]
        return [sum(tier.num_entries(i) for tier in tiers) for i in range(len(self.fed))]

    def shrink(self) -> None:
        """Evict to the present budget between forwards: before sequences are copied, and after
        entries came back or pins have moved the shares of the layers."""
        evict(self._acted_on, None, num_new=1)
        self._quantize_by_rank()

    def _quantize_by_rank(self) -> None:
        if not self.policy.precision.by_rank:
            return
        noted = {i for own in self.layer_policies.values() for i in own.ranks.noted}
        estimate_qualities(self._acted_on, noted)
        best: dict[int, float] = {}
        for own in self.layer_policies.values():
            for sequence, quality in own.ranks.qualities.items():
                best[sequence] = max(best.get(sequence, 0.0), quality)
        for i, own in self.layer_policies.items():
            layer = self.layers[i]
            own.quantize_by_rank(layer.storage, layer.backend, best)

    def reset(self) -> None:
        """Forget everything, and return the memory of all layers."""
        for layer in self.layers:
            layer.reset()
        self.spans.clear()
        self._energies = EnergyStatistics(self.policy.allocator)


@contextmanager
def one_thread() -> Iterator[None]:
    """Keep torch to one thread inside the context.

    After a parallel operation, torch's other threads wait for the next one without sleeping, on
    the cores that the compiled step needs (measured: conf-kv-int8 took twice as long per token).
    What a step evicts is too little to share.
    """
    num_threads = torch.get_num_threads()
    if num_threads == 1:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(num_threads)
