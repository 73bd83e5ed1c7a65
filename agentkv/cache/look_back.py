"""Looking back: which tokens are computed a second time, and that second pass.

Shapes: B sequences, H key-value heads, G query heads per key-value head, D head size.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

import torch
from torch import Tensor, nn

from agentkv.cache.geometry import Attention
from agentkv.cache.hf.compat import Handle
from agentkv.cache.hf.hooked_cache import HookedCache
from agentkv.cache.layer import CacheLayer
from agentkv.cache.look_step import LookStep
from agentkv.cache.spans import Spans
from agentkv.cache.storage.backend import by_segment
from agentkv.policies.entries import Span
from agentkv.policies.recall import LookBack
from agentkv_kernels.entries import DensePart

_LAST = torch.iinfo(torch.int64).max


class LookRecord:
    """Alarms of a cache's sequences, and what its looks have come to so far."""

    def __init__(
        self,
        alarms: Sequence[int | None] = (),
        count: int = 0,
        changed: int = 0,
        fetched: Mapping[str, int] | None = None,
        read_nbytes: int = 0,
    ) -> None:
        self.alarms = list(alarms)
        """Position of each sequence's latest alarm; None before the first."""
        self.count = count
        """Tokens that have looked back, in all sequences."""
        self.changed = changed
        """Looks after which another token was the likeliest."""
        self.fetched = Counter(fetched or {})
        """Entries fetched, over all layers and segments, by the label of their tokens."""
        self.read_nbytes = read_nbytes
        """Bytes read in cold tiers and their digests, over all layers and segments."""

    def reorder(self, index: Sequence[int]) -> None:
        """Make sequence i a copy of what sequence index[i] was."""
        self.alarms = [self.alarms[i] for i in index]

    def decide(
        self, recall: LookBack, signals: Sequence[float], newest: Sequence[int | None]
    ) -> list[bool]:
        """Note the alarms of the newest tokens, and return which of them look back.

        Args:
            signals: of each sequence; see `Occasion`.
            newest: position of each sequence's newest token; None for a sequence that has no new
                token.
        """
        looking = []
        for i, (signal, position) in enumerate(zip(signals, newest, strict=True)):
            if position is None:
                looking.append(False)
                continue
            if recall.when.is_alarm(signal, position, self.alarms[i]):
                self.alarms[i] = position
            looking.append(recall.when.looks(position, self.alarms[i]))
        return looking


class SecondPass(HookedCache):
    """Stands for a cache in one forward of the tokens that it was fed last.

    In every layer, each sequence that looks back replaces the key and value of its newest token and
    attends to what it fetches as well; a layer that shares the keys of another one attends to what
    that has fetched. Statistics of the policy stay those of the first pass. All other sequences are
    unchanged, and their logits mean nothing.

    Args:
        layers: the cache's layers, as transformers sees them.
        spans: its labels.
        next_numbers: rotary position of each sequence's next token.
        looking: per sequence, whether it looks back.
        recall: of the cache's policy.
        num_q_heads: query heads of a sequence.
    """

    def __init__(
        self,
        layers: Any,
        spans: Spans,
        next_numbers: Sequence[int],
        looking: Sequence[bool],
        recall: LookBack,
        num_q_heads: int,
    ) -> None:
        super().__init__(layers=layers)
        self._layers: list[CacheLayer] = [each.layer for each in layers]
        self._next_numbers, self._looking, self._recall = next_numbers, looking, recall
        self._num_q_heads = num_q_heads
        looks = [i for i, each in enumerate(looking) if each]
        self._fetched = {i: _Tally(spans.sequences[i].labelled) for i in looks}
        self._others: dict[int, dict[int, list[DensePart]]] = {}
        """By layer, what its segments have fetched, for layers that share its keys."""
        self.read_nbytes = 0
        """Bytes read in cold tiers and their digests, over all layers and segments."""
        self.unsettled = [layer for layer in self._layers if layer.cold is not None]
        """Layers that may hold more than the policy allows, if entries are promoted."""

    @property
    def fetched(self) -> Counter[str]:
        """Entries fetched, over all layers and segments, by the label of their tokens."""
        return sum((tally.by_label for tally in self._fetched.values()), Counter[str]())

    def check_input(self, module: nn.Module, batch: int, num_tokens: int) -> None:
        assert (batch, num_tokens) == (len(self._looking), 1), "the newest token of each sequence"

    def rotary_positions(self, given: Tensor | None, num_tokens: int) -> Tensor:
        return torch.tensor(self._next_numbers)[:, None].sub_(1).clamp_min_(0)

    def can_step(self, num_columns: int) -> bool:
        return num_columns == 1 and all(map(_can_look_compiled, self._layers))

    def begin_step(
        self, attentions: Sequence[nn.Module], scales: Sequence[float]
    ) -> Sequence[tuple[Sequence[CacheLayer], slice]]:
        sequences = [i for i, looks in enumerate(self._looking) if looks]
        group = self._num_q_heads // self._layers[0].shape.num_heads
        self.look_step = LookStep(self._layers, sequences, self._recall, group)
        return [(self._layers, slice(i, i + 1)) for i in sequences]

    def finish(self) -> None:
        done = self.look_step
        if done is not None:
            self.unsettled = done.unsettled
            self.read_nbytes += done.read_nbytes
            for row, sequence in enumerate(done.sequences):
                self._fetched[sequence].add(torch.from_numpy(done.positions(row)))

    @torch.no_grad()
    def attend(
        self,
        module: nn.Module,
        handle: Handle,
        query: Tensor,
        mask: Tensor | None,
        scale: float,
        sinks: Tensor | None,
    ) -> Tensor:
        """Attend with the newest token of each sequence, (B, 1, H * G, D); zeros without a look."""
        layer = self._layers[handle.layer_idx]
        attention = layer.attention_of(module, scale, sinks)
        storage, output = layer.storage, query.new_zeros(query.shape)
        of_segments, queries = by_segment(storage, output), by_segment(storage, query)
        segments = [
            segment
            for sequence, looks in enumerate(self._looking)
            for segment in (storage.segments(sequence) if looks else ())
        ]
        if not handle.is_stored:
            handle.is_stored = True
            norms = layer.norms_of(handle.values, attention)
            layer.backend.write_newest(
                storage, segments, keys=handle.keys, values=handle.values, norms=norms
            )
            fetched = self._fetch(layer, segments, queries, attention)
            if layer.is_shared:
                self._others[handle.layer_idx] = fetched
        else:
            fetched = self._others[handle.layer_idx]
        for segment in segments:
            done = layer.backend.attend_again(
                storage,
                segment,
                queries[segment, None],
                scale=scale,
                sinks=_sinks_of(layer, segment, attention),
                others=fetched.get(segment, ()),
            )
            of_segments[segment] = done[0]
        return output.transpose(1, 2)

    def _fetch(
        self,
        layer: CacheLayer,
        segments: Sequence[int],
        queries: Tensor,
        attention: Attention,
    ) -> dict[int, list[DensePart]]:
        """Fetch cold entries for some segments: promote them, or return what one token alone reads.

        Args:
            queries: of all segments, (N, heads, 1, D).
        """
        storage, cold, window = layer.storage, layer.cold, layer.shape.window
        if cold is None:
            return {}
        recall = self._recall
        picks = [torch.arange(0)] * storage.num_segments
        for segment in segments:
            sequence = segment // storage.layout.segments_per_sequence
            num_seen, q, scale = layer.fed[sequence], queries[segment, None], attention.scale
            sinks = _sinks_of(layer, segment, attention)
            picks[segment] = cold.best(
                segment,
                q,
                scale=scale,
                others=layer.backend.log_sums(storage, segment, q, scale=scale, sinks=sinks),
                oldest=0 if window is None else num_seen - window,
                blocks=recall.blocks,
                block=recall.block,
            )
            self._fetched[sequence].add(cold.storage.positions(segment)[picks[segment]])
            self.read_nbytes += cold.look_nbytes(segment, picks[segment].shape[0])
        if recall.promotes:
            cold.promote(storage, picks)
            return {}
        return {i: [cold.read(i, picks[i], queries.dtype).to(storage.device)] for i in segments}


def _can_look_compiled(layer: CacheLayer) -> bool:
    """Return whether a compiled step may take a layer's part in a second pass."""
    cold = layer.cold
    return layer.can_step and (cold is None or cold.is_compiled)


def query_similarities(layers: Sequence[CacheLayer]) -> list[float]:
    """Return the cosine of the two newest queries of each sequence, averaged over all heads of
    the layers that keep queries; 1 before the second token."""
    windows = [layer.storage.queries for layer in layers]
    kept = [window for window in windows if window is not None]
    similarities = []
    for sequence in range(len(layers[0].fed)):
        if layers[0].fed[sequence] < 2:
            similarities.append(1.0)
            continue
        newest = [window.of(sequence)[0][:, -2:] for window in kept]
        pairs = torch.cat([queries.to("cpu", torch.float32) for queries in newest])
        similarities.append(float(torch.cosine_similarity(pairs[:, 0], pairs[:, 1], -1).mean()))
    return similarities


def draws(layers: Sequence[CacheLayer]) -> list[float]:
    """Return how strongly the newest token of each sequence is drawn to cold entries: the largest
    share of attention that one of them would get in a layer, mean over the layers."""
    found: list[list[float]] = [[] for _ in layers[0].fed]
    for layer in layers:
        cold, storage, attention = layer.cold, layer.storage, layer.attention
        if cold is None or storage.queries is None:
            continue
        assert attention is not None, "a token was fed"
        for sequence, num_seen in enumerate(layer.fed):
            newest = storage.queries.of(sequence)[0][None, :, -1:]
            largest = 0.0
            own = torch.split(by_segment(storage, newest), 1)
            for segment, q in zip(storage.segments(sequence), own, strict=True):
                if not cold.storage.counts[segment]:
                    continue
                scale, sinks = attention.scale, _sinks_of(layer, segment, attention)
                others = layer.backend.log_sums(storage, segment, q, scale=scale, sinks=sinks)
                shares = cold.shares(segment, q, scale=scale, others=others)
                if layer.shape.window is not None:
                    oldest = num_seen - layer.shape.window
                    shares = shares[cold.storage.positions(segment) >= oldest]
                largest = max(largest, float(shares.max())) if len(shares) else largest
            found[sequence].append(largest)
    return [fmean(each) if each else 0.0 for each in found]


class _Tally:
    """Counts positions of one sequence by the labelled span that holds them."""

    def __init__(self, spans: Sequence[Span]) -> None:
        self._labels = [*(span.label for span in spans), ""]
        self._starts = torch.tensor([span.start for span in spans], dtype=torch.int64)
        self._stops = torch.tensor([_LAST if span.stop is None else span.stop for span in spans])
        self._counts = torch.zeros(len(self._labels), dtype=torch.int64)

    def add(self, positions: Tensor) -> None:
        """Count positions (n,)."""
        positions = positions.to("cpu", torch.int64)
        numbers = torch.bucketize(positions, self._starts, right=True) - 1
        if self._stops.numel():
            is_outside = (numbers < 0) | (positions >= self._stops[numbers])
            numbers = numbers.masked_fill(is_outside, len(self._stops))
        self._counts += torch.bincount(numbers % len(self._labels), minlength=len(self._labels))

    @property
    def by_label(self) -> Counter[str]:
        """Numbers of positions by label; the empty label stands for tokens without one."""
        found: Counter[str] = Counter()
        for label, count in zip(self._labels, self._counts.tolist(), strict=True):
            if count:
                found[label] += count
        return found


def _sinks_of(layer: CacheLayer, segment: int, attention: Attention) -> Tensor | None:
    """Return the sink logits of a segment's query heads; None for none."""
    if attention.sinks is None:
        return None
    per = layer.storage.layout.segments_per_sequence
    return attention.sinks.view(per, -1)[segment % per]
