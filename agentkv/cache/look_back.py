"""Looking back: which tokens attend to cold entries as well, in their one pass or in a second one.

Shapes: B sequences, H key-value heads, G query heads per key-value head, D head size.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
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
_RANKED = 64
"""Confidences of a sequence, the newest included, among which each has its rank (our choice)."""


class LookRecord:
    """Alarms of a cache's sequences, and what its looks have come to so far."""

    def __init__(
        self,
        alarms: Sequence[int | None] = (),
        count: int = 0,
        changed: int = 0,
        fetched: Mapping[str, int] | None = None,
        read_nbytes: int = 0,
        heard: Sequence[Sequence[tuple[int, float]]] = (),
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
        self.heard = [list(each) for each in heard]
        """Position and confidence of each sequence's latest tokens, at most 63; those that had a
        rank, and none for a policy that hears no ranks."""
        self.latest: Mapping[str, int] = {}
        """Entries that the latest look fetched, counted as in `fetched`."""

    def note(self, look: "Look", count: int) -> None:
        """Count what a look has come to.

        Args:
            count: tokens that have looked back in it.
        """
        self.count += count
        self.latest = look.fetched
        self.note_fetched(look.fetched, look.read_nbytes)

    def note_fetched(self, fetched: Counter[str], read_nbytes: int) -> None:
        """Count entries that came back, and the bytes that were read to choose them."""
        self.fetched += fetched
        self.read_nbytes += read_nbytes

    def reorder(self, index: Sequence[int]) -> None:
        """Make sequence i a copy of what sequence index[i] was."""
        self.alarms = [self.alarms[i] for i in index]
        self.heard = [list(self.heard[i]) for i in index] if self.heard else []

    def forget(self, fed: Sequence[int]) -> None:
        """Forget the alarms and confidences of tokens after the first `fed` of each sequence."""
        before = zip(self.alarms, fed, strict=False)
        self.alarms = [None if alarm is None or alarm >= end else alarm for alarm, end in before]
        latest = zip(self.heard, fed, strict=False)
        self.heard = [[each for each in heard if each[0] < end] for heard, end in latest]

    def ranks(self, confidences: Sequence[float], newest: Sequence[int | None]) -> list[float]:
        """Return the rank of each confidence among the latest of its sequence, and note it.

        It is the share of them that are at most as high, in the middle of the confidence's own
        step: 0.5 for the first, and 1 / 128 for the lowest of 64.

        Args:
            newest: as in `decide`; a sequence without a new token has any rank.
        """
        self.heard = self.heard or [[] for _ in confidences]
        ranks = []
        for heard, confidence, position in zip(self.heard, confidences, newest, strict=True):
            lower = sum(earlier <= confidence for _, earlier in heard)
            ranks.append((lower + 0.5) / (len(heard) + 1))
            if position is not None:
                heard.append((position, confidence))
                del heard[: -(_RANKED - 1)]
        return ranks

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


class Look:
    """The newest tokens of some sequences of a cache, which attend to cold entries as well.

    A layer fetches for them the best blocks of its cold tier, promotes them if the policy does so,
    and attends to its hot entries and to what was fetched. A layer that shares the keys of another
    one attends to what that has fetched.

    Args:
        layers: of the cache.
        spans: its labels.
        sequences: those that look back, in ascending order.
        recall: of the cache's policy.
        num_q_heads: query heads of a sequence.
        appends: the tokens are new; else they are computed again.
    """

    def __init__(
        self,
        layers: Sequence[CacheLayer],
        spans: Spans,
        sequences: Sequence[int],
        recall: LookBack,
        num_q_heads: int,
        *,
        appends: bool,
    ) -> None:
        self._layers, self.sequences, self._recall = layers, sequences, recall
        self._num_q_heads, self._appends = num_q_heads, appends
        self._fetched = {i: Tally(spans.sequences[i].labelled) for i in sequences}
        self._by_layer: dict[CacheLayer, dict[int, list[DensePart]]] = {}
        """Entries that each segment of a layer has fetched, if later layers share its keys."""
        self.read_nbytes = 0
        """Bytes read in cold tiers and their digests, over all layers and segments."""
        self.unsettled = [layer for layer in layers if layer.cold is not None]
        """Layers that may hold more than the policy allows, if entries are promoted."""

    @property
    def fetched(self) -> Counter[str]:
        """Entries fetched, over all layers and segments, by the label of their tokens."""
        return sum((tally.by_label for tally in self._fetched.values()), Counter[str]())

    @property
    def num_fetching(self) -> int:
        """Sequences that have fetched an entry in some layer."""
        return sum(bool(tally.by_label) for tally in self._fetched.values())

    def attend(
        self, layer: CacheLayer, query: Tensor, attention: Attention, *, fetches: bool = True
    ) -> Tensor:
        """Attend with the newest token of each sequence, which the layer stores.

        Args:
            query: (B, H * G, 1, D), rotated.
            fetches: False: attend to what was fetched for another query.

        Returns:
            As `query`; zeros for a sequence that does not look back.
        """
        storage, output = layer.storage, query.new_zeros(query.shape)
        of_segments, queries = by_segment(storage, output), by_segment(storage, query)
        segments = [segment for i in self.sequences for segment in storage.segments(i)]
        if fetches:
            fetched = self._fetch(layer, segments, queries, attention)
            if layer.is_shared:
                self._by_layer[layer] = fetched
        else:
            fetched = self._by_layer[layer]
        for segment in segments:
            done = layer.backend.attend_again(
                storage,
                segment,
                queries[segment, None],
                scale=attention.scale,
                sinks=layer.sinks_of(segment, attention),
                others=fetched.get(segment, ()),
            )
            of_segments[segment] = done[0]
        return output

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
            sinks = layer.sinks_of(segment, attention)
            picks[segment] = cold.best(
                segment,
                q,
                scale=scale,
                others=layer.backend.log_sums(storage, segment, q, scale=scale, sinks=sinks),
                oldest=0 if window is None else num_seen + self._appends - window,
                recall=recall,
            )
            self._fetched[sequence].add(cold.storage.positions(segment)[picks[segment]])
            self.read_nbytes += cold.look_nbytes(segment, picks[segment].shape[0])
        if recall.promotes:
            cold.promote(storage, picks)
            return {}
        return {i: [cold.read(i, picks[i], queries.dtype).to(storage.device)] for i in segments}

    def can_step(self) -> bool:
        """Return whether a compiled step may take the place of all layers' `attend`."""
        return all(map(_can_look_compiled, self._layers))

    def begin_step(self) -> LookStep:
        """Return what a compiled step is told, which `finish_step` ends."""
        group = self._num_q_heads // self._layers[0].shape.num_heads
        layers, recall = self._layers, self._recall
        return LookStep(layers, self.sequences, recall, group, appends=self._appends)

    def finish_step(self, done: LookStep) -> None:
        """Take what a compiled step has found."""
        self.unsettled = done.unsettled
        self.read_nbytes += done.read_nbytes
        for row, sequence in enumerate(self.sequences):
            self._fetched[sequence].add(torch.from_numpy(done.positions(row)))


class SecondPass(HookedCache):
    """Stands for a cache in one forward of the tokens that it was fed last.

    In every layer, each sequence that looks back replaces the key and value of its newest token and
    attends to what it fetches as well. Statistics of the policy stay those of the first pass. All
    other sequences are unchanged, and their logits mean nothing.

    Args:
        layers: the cache's layers, as transformers sees them.
        look: of the sequences that look back.
        next_numbers: rotary position of each sequence's next token.
    """

    def __init__(self, layers: Any, look: Look, next_numbers: Sequence[int]) -> None:
        super().__init__(layers=layers)
        self._layers: list[CacheLayer] = [each.layer for each in layers]
        self._look, self._next_numbers = look, next_numbers

    def check_input(self, module: nn.Module, batch: int, num_tokens: int) -> None:
        assert (batch, num_tokens) == (len(self._next_numbers), 1), "each sequence's newest token"

    def rotary_positions(self, given: Tensor | None, num_tokens: int) -> Tensor:
        return torch.tensor(self._next_numbers)[:, None].sub_(1).clamp_min_(0)

    def can_step(self, num_columns: int) -> bool:
        return num_columns == 1 and self._look.can_step()

    def begin_step(
        self, attentions: Sequence[nn.Module], scales: Sequence[float]
    ) -> Sequence[tuple[Sequence[CacheLayer], slice]]:
        self.look_step = self._look.begin_step()
        return [(self._layers, slice(i, i + 1)) for i in self._look.sequences]

    def finish(self) -> None:
        if self.look_step is not None:
            self._look.finish_step(self.look_step)

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
        is_new, handle.is_stored = not handle.is_stored, True
        if is_new:
            storage = layer.storage
            segments = [each for i in self._look.sequences for each in storage.segments(i)]
            norms = layer.norms_of(handle.values, attention)
            layer.backend.write_newest(
                storage, segments, keys=handle.keys, values=handle.values, norms=norms
            )
        return self._look.attend(layer, query, attention, fetches=is_new).transpose(1, 2)


def _can_look_compiled(layer: CacheLayer) -> bool:
    """Return whether a compiled step may take a layer's part in a look."""
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


class Tally:
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
