"""Eviction: the policy's verdicts on all layers and sequences, carried out together where possible.

Units (one sequence in one layer) with equal numbers of entries, held and to keep, are shown to the
policy together, so that a step of a small model is not spent on calls. Scorers that look beyond a
segment, and policies that need to know something of each layer, are shown one unit at a time.
"""

from collections.abc import Hashable, Iterable, Sequence

from torch import Tensor

from agentkv.cache.eviction.layer_policy import LayerPolicy
from agentkv.cache.eviction.view import View
from agentkv.cache.layer import CacheLayer
from agentkv.cache.spans import NO_PINS
from agentkv.cache.storage.backend import Backend
from agentkv.cache.storage.evictions import Eviction, evicted_entries
from agentkv.policies.entries import Entries, Selection
from agentkv.policies.policy import Policy
from agentkv.policies.slots import Unpooled

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
    for backend, of_backend in evictions.items():
        backend.drop(of_backend)
    precision = allowance.policy.precision
    if precision.format is not None and not precision.by_rank:
        _quantize_by_age(layers, policy_part, confidences)


def _quantize_by_age(
    layers: Sequence[CacheLayer], own: LayerPolicy, confidences: Sequence[float] | None
) -> None:
    """Quantize the oldest dense entries, after every forward or where the model is sure."""
    sure = own.allowance.policy.precision.sure
    if (confidences is None) != (sure is None):
        return
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
