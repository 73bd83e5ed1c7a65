"""Follow a policy's cache along a stream and compare it with a full cache.

Shapes: V entries of the vocabulary.
"""

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from agentkv.cache.cache import Cache
from agentkv.cache.storage.layer_storage import LayerStorage
from agentkv_lab.states.rows import Distance, LayerStates, Lives, StateRow

Step = tuple[tuple[float, float, float | None], ...]
"""Per layer: shares of dense and quantized tokens among those seen, and the share of its entries
that rank lets stay dense (None for other policies)."""


@dataclass(frozen=True, slots=True)
class ReferenceStep:
    """Next-token distribution of a full cache."""

    logits: Tensor
    """(V,) float32."""
    log_odds: Tensor
    """(V,) float64, log-probabilities."""
    next_id: int
    is_reply: bool
    """True if the next token belongs to a reply."""

    @classmethod
    def of(cls, logits: Tensor, next_id: int, is_reply: bool) -> "ReferenceStep":
        """Compute it from raw logits (V,)."""
        return cls(logits.float(), logits.double().log_softmax(dim=-1), next_id, is_reply)


@dataclass(frozen=True, slots=True)
class StepDistance:
    """Distance of one step from the reference; see `Distance`."""

    divergence: float
    logits: float
    agrees: bool
    nll: float
    full_nll: float
    is_reply: bool

    @classmethod
    def of(cls, logits: Tensor, reference: ReferenceStep) -> "StepDistance":
        """Compute it from raw logits (V,)."""
        log_odds = logits.double().log_softmax(dim=-1)
        return cls(
            divergence=float((reference.log_odds.exp() * (reference.log_odds - log_odds)).sum()),
            logits=float((logits.float() - reference.logits).abs().mean()),
            agrees=bool(logits.argmax() == reference.logits.argmax()),
            nll=-float(log_odds[reference.next_id]),
            full_nll=-float(reference.log_odds[reference.next_id]),
            is_reply=reference.is_reply,
        )


@dataclass(slots=True)
class Follower:
    """Feeds a stream to a cache token by token and records every step."""

    label: str
    parameters: Mapping[str, Any]
    """Parameters of the policy, and its budget."""
    cache: Cache
    seconds: float = 0.0
    """Time of all steps."""
    _distances: list[StepDistance] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    """Storage after each step, in bytes."""
    cold_sizes: list[int] = field(default_factory=list)
    """Bytes of the cold tier and its index after each step."""
    steps: list[Step] = field(default_factory=list)
    entries: list[float] = field(default_factory=list)
    """Entries after each step, mean over layers and heads."""
    evictions: list[bool] = field(default_factory=list)
    """True for each step with an eviction."""
    _ages: list[int] = field(default_factory=list)
    _since: dict[tuple[int, int], Tensor] = field(default_factory=dict)
    """By layer and segment: tokens seen when the entry at each position was quantized, or -1."""
    _before: dict[int, tuple[int, int]] = field(default_factory=dict)
    """By layer: entries and quantized entries of all segments at the last look."""
    _seen: int = 0

    def prefill(self, model: Any, ids: Tensor) -> None:
        """Read the prompt (1, n), which is not recorded."""
        self.cache.feed(model, ids)
        self._record()

    def step(self, model: Any, token: Tensor, reference: ReferenceStep) -> None:
        """Read one more token (1, 1) and compare the distribution of the next one."""
        began = time.perf_counter()
        logits = self.cache.feed(model, token)[0]
        self._distances.append(StepDistance.of(logits, reference))
        self.sizes.append(self.cache.nbytes)
        self.cold_sizes.append(self.cache.cold_nbytes + self.cache.index_nbytes)
        self.evictions.append(self._record())
        self.steps.append(self._states())
        self.entries.append(round(_mean(self._num_entries()), 2))
        self.seconds += time.perf_counter() - began

    @property
    def lives(self) -> Lives:
        """Lifetimes of quantized entries, counted once per segment."""
        alive = [self.cache.seen - since[since >= 0] for since in self._since.values()]
        ages = sorted(self._ages)
        return Lives(
            gone=len(ages),
            median_age=None if not ages else float(ages[len(ages) // 2]),
            shortest_age=None if not ages else ages[0],
            alive=sum(len(each) for each in alive),
            longest_alive=max((int(each.max()) for each in alive if len(each)), default=None),
        )

    def row(self, begin: int, end: int, *, is_whole: bool, **about: Any) -> StateRow:
        """Return the row of steps begin..end - 1; `about` holds the other fields."""
        part, num_steps = slice(begin, end), end - begin
        distances = self._distances[part]
        on_replies = [step for step in distances if step.is_reply]
        steps = self.steps[part]
        layers = []
        for i, index in enumerate(self.cache.evictor.layer_policies):
            of_layer = [step[i] for step in steps]
            deserved = [share for _, _, share in of_layer if share is not None]
            original = math.fsum(each[0] for each in of_layer) / num_steps
            quantised = math.fsum(each[1] for each in of_layer) / num_steps
            layers.append(
                LayerStates(
                    layer=index,
                    original=original,
                    quantised=quantised,
                    evicted=max(0.0, 1 - original - quantised),
                    deserved=math.fsum(deserved) / len(deserved) if deserved else None,
                )
            )
        return StateRow(
            label=self.label,
            policy_parameters=self.parameters,
            num_steps=num_steps,
            is_whole=is_whole,
            original=_mean([layer.original for layer in layers]),
            quantised=_mean([layer.quantised for layer in layers]),
            evicted=_mean([layer.evicted for layer in layers]),
            layers=tuple(layers),
            distance=_distance(distances),
            reply_distance=_distance(on_replies) if on_replies else None,
            evictions=sum(self.evictions[part]),
            entries=self.entries[part],
            mean_bytes=round(_mean(self.sizes[part])),
            end_bytes=self.sizes[end - 1],
            cold_bytes=self.cold_sizes[end - 1],
            peak_bytes=self.cache.peak_nbytes,
            lives=self.lives if is_whole else None,
            seconds=round(self.seconds, 1) if is_whole else None,
            **about,
        )

    def _states(self) -> Step:
        states = []
        policies = self.cache.evictor.layer_policies
        qualities = [policy.ranks.qualities.get(0) for policy in policies.values()]
        best = max((quality for quality in qualities if quality is not None), default=None)
        for index, quality in zip(policies, qualities, strict=True):
            storage = self._storage(index)
            seen = self.cache.seen * storage.num_segments
            deserved = None if quality is None or best is None else quality / best
            num_dense, num_quantized = sum(storage.dense.counts), sum(storage.num_quantized)
            states.append((num_dense / seen, num_quantized / seen, deserved))
        return tuple(states)

    def _num_entries(self) -> list[float]:
        storages = [self._storage(index) for index in self.cache.evictor.layer_policies]
        return [sum(storage.counts) / storage.num_segments for storage in storages]

    def _record(self) -> bool:
        """Record quantized and evicted entries; return True if entries were evicted."""
        has_evicted, num_new = False, self.cache.seen - self._seen
        self._seen = self.cache.seen
        for index in self.cache.evictor.layer_policies:
            storage = self._storage(index)
            rows, coded = sum(storage.counts), sum(storage.num_quantized)
            rows_before, coded_before = self._before.get(index, (0, 0))
            self._before[index] = rows, coded
            has_gone = rows < rows_before + num_new * storage.num_segments
            has_evicted |= has_gone
            if coded != coded_before or (has_gone and coded):
                self._record_quantized(index, storage)
        return has_evicted

    def _record_quantized(self, index: int, storage: LayerStorage) -> None:
        seen = self.cache.seen
        for segment, count in enumerate(storage.num_quantized):
            since = self._since.get((index, segment))
            if since is None or len(since) < seen:
                grown = torch.full((max(1024, 2 * seen),), -1)
                if since is not None:
                    grown[: len(since)] = since
                since = self._since[index, segment] = grown
            is_coded = torch.zeros(len(since), dtype=torch.bool)
            is_coded[storage.positions(segment)[:count].long().cpu()] = True
            has_gone = ~is_coded & (since >= 0)
            self._ages += (seen - since[has_gone]).tolist()
            since[has_gone] = -1
            since[is_coded & (since < 0)] = seen

    def _storage(self, index: int) -> LayerStorage:
        return self.cache.cache_layers[index].storage


def _distance(steps: Sequence[StepDistance]) -> Distance:
    return Distance(
        num_steps=len(steps),
        divergence=_mean([step.divergence for step in steps]),
        worst_divergence=max(step.divergence for step in steps),
        logit_distance=_mean([step.logits for step in steps]),
        agreement=_mean([step.agrees for step in steps]),
        nll=_mean([step.nll for step in steps]),
        full_nll=_mean([step.full_nll for step in steps]),
    )


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)
