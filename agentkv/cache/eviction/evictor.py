"""Eviction of a whole cache: when each layer is asked, and the policy's verdicts carried out.

Units (one sequence in one layer) with equal numbers of entries, held and to keep, are shown to the
policy together, so that a step of a small model is not spent on calls. Scorers that look beyond a
segment, and policies that need to know something of each layer, are shown one unit at a time.
"""

from collections.abc import Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext

import torch
from torch import Tensor

from agentkv.cache.budget import Allowance, Budget, Bytes
from agentkv.cache.eviction.energy import EnergyStatistics
from agentkv.cache.eviction.layer_policy import LayerPolicy
from agentkv.cache.eviction.view import View
from agentkv.cache.geometry import Geometry
from agentkv.cache.layer import CacheLayer
from agentkv.cache.misuse import Misuse
from agentkv.cache.spans import NO_PINS, Pins, SequenceSpans, Spans
from agentkv.cache.storage.backend import Backend
from agentkv.cache.storage.cold_memory import ColdMemory, ColdMemoryError
from agentkv.cache.storage.cold_tier import ColdTier
from agentkv.cache.storage.evictions import Eviction, evicted_entries
from agentkv.cache.storage.table import Meter
from agentkv.policies.entries import Entries, Selection
from agentkv.policies.policy import Policy
from agentkv.policies.slots import Unpooled


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
                is_shared=i in geometry.sources,
            )
            for i, shape in enumerate(geometry.layers)
        ]
        """All layers of the cache."""
        self.energies = EnergyStatistics(policy.allocator)

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
            if layer.is_filled and layer.cold is not None:
                self._require_first(layer, sequence, pins)

    def _require_first(self, layer: CacheLayer, sequence: int, pins: Pins) -> None:
        """Check that what is pinned at the start is stored first, where it serves as sinks: an
        entry that a look brought back is stored last."""
        leading = self.allowance.pinned(self.fed[sequence], pins)[0]
        for segment in layer.storage.segments(sequence):
            first = layer.storage.positions(segment)[:leading].tolist()
            if first != list(range(leading)):
                raise Misuse(
                    f"some of the first {leading} tokens came back after an eviction and may leave "
                    "again; pin tokens before they are fed, with cache.label(..., pinned=True)"
                )

    def context_window(self, num_new: int) -> int:
        """Return over how many last tokens of a forward the residual shift is averaged; 0: none."""
        is_context = self.policy.allocator.learns and num_new > 1
        return self.policy.scorer.window if is_context else 0

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
            self.energies.finish_context(self.layer_policies)

    def apply_gate(self, confidences: Sequence[float], num_new: int) -> None:
        """Evict down to what the gate allows at these confidences, one per sequence."""
        with one_thread() if num_new == 1 else nullcontext():
            evict(self._acted_on, confidences, num_new=num_new)
        self._quantize_by_rank()

    @property
    def cold_tiers(self) -> list[ColdTier]:
        """The cold tiers of all layers that have one."""
        return [layer.cold for layer in self.layers if layer.cold is not None]

    @property
    def num_cold(self) -> list[int]:
        """Entries of each sequence in the cold tiers of all layers."""
        tiers = self.cold_tiers
        return [sum(tier.num_entries(i) for tier in tiers) for i in range(len(self.fed))]

    def shrink(self, layers: Sequence[CacheLayer] | None = None) -> None:
        """Evict to the present budget between forwards: before sequences are copied, and after
        entries came back or pins have moved the shares of the layers.

        Args:
            layers: those that may hold too much; None: all that the policy acts on.
        """
        evict(self._acted_on if layers is None else layers, None, num_new=1)
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
        self.spans.sequences = [SequenceSpans()]
        self.energies = EnergyStatistics(self.policy.allocator)


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


_Shown = dict[tuple[CacheLayer, int], tuple[View, Entries]]
"""Per layer and sequence: what this eviction has looked at already."""


def evict(
    layers: Sequence[CacheLayer], confidences: Sequence[float] | None, *, num_new: int
) -> None:
    """Drop entries of each sequence and layer down to what the policy allows.

    After a forward, that is without confidences, old entries are also quantized, unless the policy
    quantizes by confidence.

    Args:
        layers: layers of one cache that the policy acts on.
        confidences: one per sequence; None: allow the most that the gate ever does.
        num_new: tokens of the latest forward.
    """
    policy_part, fed = layers[0].policy, layers[0].fed
    assert policy_part is not None
    allowance = policy_part.allowance
    shown: _Shown = {}
    if allowance.policy.allocator.learns and confidences is None and num_new > 1:
        shown = _measure_energies(layers)
    evictions: dict[Backend, list[Eviction]] = {}
    for sequence in range(len(fed) if allowance.policy.gate.evicts else 0):
        confidence = None if confidences is None else confidences[sequence]
        policy = policy_part.fitted(sequence)
        if confidence is not None and policy.gate.budget(confidence) == policy.gate.ceiling:
            continue  # the end of the forward has evicted down to the ceiling already
        budgets = policy_part.budgets(sequence, confidence)
        due = () if budgets is None else _due(policy, layers, sequence, budgets, num_new)
        for num_entries, group in due:
            verdict = _decide(policy, group, sequence, num_entries, shown)
            storages = [layer.storage for layer in group]
            eviction = Eviction(storages, sequence, verdict)
            evictions.setdefault(group[0].backend, []).append(eviction)
            for layer in group:
                layer.evicted_at = layer.seen
    if allowance.policy.recall.looks_back:
        _keep_cold(layers, evictions.values())
    precision = allowance.policy.precision
    # after every forward, or where the model is sure
    quantizes = precision.format is not None and not precision.by_rank
    quantizes = quantizes and (confidences is None) == (precision.sure is None)
    for backend, of_backend in evictions.items():
        backend.drop(of_backend, tidies=not quantizes)
    if quantizes:
        _quantize_by_age(layers, policy_part, confidences)
        for backend, of_backend in evictions.items():
            for storage in dict.fromkeys(each for own in of_backend for each in own.storages):
                backend.tidy(storage)


def _quantize_by_age(
    layers: Sequence[CacheLayer], own: LayerPolicy, confidences: Sequence[float] | None
) -> None:
    """Quantize the oldest dense entries."""
    sure = own.allowance.policy.precision.sure
    recent = [own.fitted(i).precision.recent or 0 for i in range(len(own.fed))]
    if sure is not None and confidences is not None:
        recent = [
            count if confidence >= sure else num_seen
            for count, confidence, num_seen in zip(recent, confidences, own.fed, strict=True)
        ]
    for layer in layers:
        layer.backend.quantize_oldest(layer.storage, recent)


def _keep_cold(layers: Sequence[CacheLayer], evictions: Iterable[Sequence[Eviction]]) -> None:
    """Copy what is about to be dropped into the cold tiers."""
    gone = evicted_entries([each for of_backend in evictions for each in of_backend])
    for layer in layers:
        picks = gone.get(layer.storage)
        if picks is not None and layer.cold is not None:
            layer.cold.take_over(layer.storage, picks)


def _measure_energies(layers: Sequence[CacheLayer]) -> _Shown:
    """Sum the scores that an allocator learns from, of every layer and sequence, whether entries
    must leave or not; return what was looked at, so that it is read once."""
    shown: _Shown = {}
    for layer in layers:
        assert layer.policy is not None
        for sequence in range(len(layer.fed)):
            policy = layer.policy.fitted(sequence)
            if policy.gate.evicts and layer.storage.num_entries(sequence):
                view, entries = shown[layer, sequence] = _show(policy, [layer], sequence)
                scorer = policy.scorer
                if isinstance(scorer, Unpooled):
                    scores = _by_segment(scorer.unpooled(entries), entries.positions.shape[0])
                else:
                    scores = _scores(policy, entries)
                energy = float(scores.where(entries.candidates, 0).sum())
                layer.policy.energies[sequence] = energy
    return shown


def _show(policy: Policy, layers: Sequence[CacheLayer], sequence: int) -> tuple[View, Entries]:
    """Return one sequence in some layers as the policy sees it."""
    selector, own = policy.selector, layers[0].policy
    assert isinstance(selector.protected, int) and own is not None
    view = View([layer.unit(sequence) for layer in layers])
    entries = view.entries(
        num_seen=layers[0].fed[sequence],
        sinks=selector.sinks,
        protected=selector.protected,
        spans=own.spans.sequences[sequence].labelled,
        pins=own.spans.pins(sequence) if own.has_scattered_pins(sequence) else NO_PINS,
    )
    return view, entries


def _due(
    policy: Policy,
    layers: Sequence[CacheLayer],
    sequence: int,
    budgets: Sequence[int],
    num_new: int,
) -> Sequence[tuple[int, list[CacheLayer]]]:
    """Return layers that hold too much of a sequence, with the entries per head to keep; layers
    that can be shown together are in one group."""
    alone = not policy.scorer.segmentwise or policy.precision.by_rank or policy.allocator.learns
    groups: dict[Hashable, tuple[int, list[CacheLayer]]] = {}
    for layer in layers:
        assert layer.policy is not None
        storage = layer.storage
        if storage.queries is not None and not storage.last_queries(sequence)[1].shape[0]:
            continue  # all of the window's tokens were forgotten, and none came since
        target = layer.policy.target(policy, storage, sequence, budgets, num_new)
        if target is not None:
            segments = storage.segments(sequence)
            longest: int | None = max(storage.counts[segments.start : segments.stop])
            if policy.allocator.pools and not policy.scorer.by_age:
                # segments differ in length anyway, and padding them together pays
                longest = None
            shape = (target, longest, storage.device, layer.backend)
            key: Hashable = layer if alone else shape
            groups.setdefault(key, (target, []))[1].append(layer)
    return tuple(groups.values())


def _decide(
    policy: Policy,
    layers: Sequence[CacheLayer],
    sequence: int,
    num_entries: int,
    shown: _Shown,
) -> Selection:
    """Return the verdict on one sequence in some layers, in storage order."""
    selector, scorer, first = policy.selector, policy.scorer, layers[0]
    # eviction by age drops the same run of all layers with equally many, unless pins interrupt it
    assert first.policy is not None
    is_one_run = scorer.by_age and not first.policy.has_scattered_pins(sequence)
    visible = layers[:1] if is_one_run else layers
    view, entries = shown.get((first, sequence)) or _show(policy, visible, sequence)
    scores = None if scorer.by_age else _scores(policy, entries)
    verdict = view.in_storage_order(selector.select(entries, scores, num_entries, policy.allocator))
    if scores is not None and policy.precision.by_rank:
        ranks = first.policy.ranks
        quality = ranks.qualities.get(sequence)
        if quality is None or not policy.precision.estimates_once:
            quality = _quality(policy, entries)
        ranks.note(sequence, view.to_storage_order(scores), verdict, quality)
    return verdict


def estimate_qualities(layers: Sequence[CacheLayer], sequences: Iterable[int]) -> None:
    """Estimate the quality of each layer for these sequences, where a policy estimates it once.

    A layer without an estimate has dropped nothing yet. Without an entry before the window there is
    still no estimate.
    """
    for layer in layers:
        own = layer.policy
        if own is None or not layer.is_filled or not own.policy.precision.estimates_once:
            continue
        for sequence in sequences:
            policy = own.fitted(sequence)
            if sequence in own.ranks.qualities or not layer.storage.num_entries(sequence):
                continue
            _, entries = _show(policy, [layer], sequence)
            if entries.positions.shape[1] > entries.protected:
                own.ranks.qualities[sequence] = _quality(policy, entries)


def _quality(policy: Policy, entries: Entries) -> float:
    past = entries.attention()[..., : entries.positions.shape[1] - entries.protected]
    return policy.precision.quality(past)


def _scores(policy: Policy, entries: Entries) -> Tensor:
    """Return scores (S, T) float32."""
    return _by_segment(policy.scorer.scores(entries), entries.positions.shape[0])


def _by_segment(scores: Tensor, num_segments: int) -> Tensor:
    """Return scores (H, T) or (S, T) as (S, T)."""
    if scores.shape[0] > num_segments:
        return scores.view(num_segments, -1, scores.shape[1]).mean(dim=1)
    return scores
