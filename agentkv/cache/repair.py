"""Turn repair: evicted entries that a new input would attend to come back before it is read.

The input goes through the model once without being stored. Its queries score what was evicted, the
best of it is promoted, and the input is then read as usual, with what came back in view.

Source: RepairKV (OpenReview LsrmZrp7tW), and its public code where the abstract leaves it open.

Shapes: B sequences, H key-value heads, G query heads per key-value head, Q tokens of the input, D
head size; W heads per segment, T cold entries of a segment.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from agentkv.cache.geometry import Attention
from agentkv.cache.hf.compat import Handle
from agentkv.cache.hf.hooked_cache import HookedCache
from agentkv.cache.layer import CacheLayer
from agentkv.cache.look_back import Tally
from agentkv.cache.spans import Spans
from agentkv.cache.storage.backend import by_segment, of_segment
from agentkv_kernels.attention import attend
from agentkv_kernels.entries import DensePart

BEFORE, AFTER = 2, 20
"""Neighbors of a position that come back with it (RepairKV's code: bursts of 2 and 20)."""
_QUERIES_AT_ONCE = 64
"""Queries that are scored at once, which bounds the memory (our choice)."""
_HOST = torch.device("cpu")


def best_bursts(scores: Tensor, available: Tensor, count: int) -> Tensor:
    """Return the positions (n,) that come back, ascending.

    Positions are taken in the order of their scores, the lower one first among equals, each with
    its available neighbors.

    Args:
        scores: (P,) float32, one per position.
        available: (P,) bool; the others cannot come back.
        count: most positions.

    Source: RepairKV's public code, `pack_anchor_bursts`.
    """
    is_left, taken = available.clone(), 0
    chosen = torch.zeros_like(is_left)
    order = scores.masked_fill(~available, -torch.inf).argsort(descending=True, stable=True)
    for place in order[: int(available.sum())].tolist():
        if taken == count:
            break
        burst = slice(max(0, place - BEFORE), place + AFTER + 1)
        new = is_left[burst].nonzero().squeeze(1)[: count - taken] + burst.start
        chosen[new], is_left[new] = True, False
        taken += new.shape[0]
    return chosen.nonzero().squeeze(1)


class Rehearsal(HookedCache):
    """Stands for a cache in one forward of an input that the cache has not read.

    New tokens attend to the hot entries and to each other. Nothing is stored. Each layer's queries
    score its cold entries: the share of attention over hot and cold ones, the largest of all
    queries, summed over the query heads.

    Args:
        layers: the cache's layers, as transformers sees them.
        spans: its labels.
        next_numbers: rotary position of each sequence's next token.
    """

    def __init__(self, layers: Any, spans: Spans, next_numbers: Sequence[int]) -> None:
        super().__init__(layers=layers)
        self._layers: list[CacheLayer] = [each.layer for each in layers]
        self._spans, self._next_numbers = spans, next_numbers
        self._fed = list(self._layers[0].fed)
        self.scores = [torch.zeros(count) for count in self._fed]
        """Per sequence, the score of each token that was fed."""
        self._promoted: list[tuple[CacheLayer, int, Tensor]] = []
        """Layer, segment and positions of what `promote` has brought back."""
        self.read_nbytes = 0
        """Bytes read in cold tiers, over all layers and segments."""

    def check_input(self, module: nn.Module, batch: int, num_tokens: int) -> None:
        assert batch == len(self._fed), "as many sequences as the cache has"

    def rotary_positions(self, given: Tensor | None, num_tokens: int) -> Tensor:
        return torch.tensor(self._next_numbers)[:, None] + torch.arange(num_tokens)

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
        """Attend with new tokens, (B, Q, H * G, D), and score the cold entries."""
        layer = self._layers[handle.layer_idx]
        attention = layer.attention_of(module, scale, sinks)
        is_new, handle.is_stored = not handle.is_stored, True
        storage, output = layer.storage, query.new_zeros(query.shape)
        queries, of_segments = by_segment(storage, query), by_segment(storage, output)
        # layers that share keys may ask with the last tokens alone
        num_new, num_q = handle.keys.shape[2], query.shape[2]
        for segment in range(storage.num_segments):
            sequence = segment // storage.layout.segments_per_sequence
            start, own = self._fed[sequence], queries[segment, None]
            places = torch.arange(start, start + num_new, device=query.device)[None]
            keys, values = (
                of_segment(storage, x, segment)[None] for x in (handle.keys, handle.values)
            )
            of_segments[segment] = attend(
                own,
                [*storage.parts(segment), DensePart(keys, values, places)],
                scale=scale,
                q_positions=places[:, num_new - num_q :],
                window=layer.shape.window,
                sinks=layer.sinks_of(segment, attention),
            ).output[0]
            if is_new and layer.cold is not None:
                self._score(layer, segment, sequence, own, attention)
        return output.transpose(1, 2)

    def _score(
        self, layer: CacheLayer, segment: int, sequence: int, q: Tensor, attention: Attention
    ) -> None:
        """Add the shares that a segment's cold entries would receive to the sequence's scores.

        Args:
            q: (1, W * G, Q, D).
        """
        assert layer.cold is not None
        cold, hot = layer.cold.storage, layer.storage
        positions = cold.positions(segment).to(torch.int64)
        if not positions.shape[0]:
            return
        [keys] = [part.decode_keys()[0] for part in cold.parts(segment)]  # (W, T, D)
        is_out = ~self._can_return(layer, segment)
        hot_keys = [part.decode_keys()[0] for part in hot.parts(segment)]
        sinks = layer.sinks_of(segment, attention)
        best = torch.zeros(q.shape[1], positions.shape[0])
        for some in torch.split(q, _QUERIES_AT_ONCE, dim=2):
            grouped = some[0].to(torch.float32).reshape(keys.shape[0], -1, q.shape[3])
            grouped = grouped * attention.scale  # (W, G * Q, D)
            sums = [(grouped @ each.mT).logsumexp(2) for each in hot_keys if each.shape[1]]
            if sinks is not None:
                num = some.shape[2]
                sums.append(sinks.float().repeat_interleave(num).view(keys.shape[0], -1))
            logits = grouped.to(_HOST) @ keys.mT
            logits[..., is_out] = -torch.inf
            totals = torch.stack([logits.logsumexp(2), *(each.to(_HOST) for each in sums)])
            shares = (logits - totals.logsumexp(0).unsqueeze(2)).exp()
            shares = shares.view(q.shape[1], some.shape[2], -1)
            best = torch.maximum(best, shares.amax(dim=1))
        self.scores[sequence].index_add_(0, positions, best.sum(dim=0))
        self.read_nbytes += layer.cold.keys_nbytes(segment)

    def promote(self, count: int) -> list[CacheLayer]:
        """Bring back the best positions of each sequence, in every layer where they are cold.

        They are at most half of what the policy keeps of the sequence, in the layer where it keeps
        least, so that the newest entries stay (our choice).

        Args:
            count: most positions of a sequence.

        Returns:
            The layers that may now hold more than the policy allows.
        """
        wanted = [
            self._best(sequence, min(count, self._room(sequence)))
            for sequence in range(len(self._fed))
        ]
        grown = []
        for layer in self._layers:
            if layer.cold is None:
                continue
            picks = []
            for segment in range(layer.storage.num_segments):
                sequence = segment // layer.storage.layout.segments_per_sequence
                positions = layer.cold.storage.positions(segment).to(torch.int64)
                is_wanted = torch.isin(positions, wanted[sequence])
                pick = (is_wanted & self._can_return(layer, segment)).nonzero().squeeze(1)
                picks.append(pick[positions[pick].argsort()])
                self.read_nbytes += pick.shape[0] * layer.cold.entry_nbytes
                self._promoted.append((layer, segment, positions[pick]))
            if any(pick.shape[0] for pick in picks):
                layer.cold.promote(layer.storage, picks)
                grown.append(layer)
        return grown

    def fetched(self) -> Counter[str]:
        """Count the promoted entries that are hot, over all layers and segments, by the label of
        their tokens. A policy that ranks by attention may have evicted some of them again."""
        tallies = [Tally(own.labelled) for own in self._spans.sequences]
        for layer, segment, positions in self._promoted:
            hot = layer.storage.positions(segment).to(_HOST, torch.int64)
            sequence = segment // layer.storage.layout.segments_per_sequence
            tallies[sequence].add(positions[torch.isin(positions, hot)])
        return sum((tally.by_label for tally in tallies), Counter[str]())

    def _room(self, sequence: int) -> int:
        held = [
            layer.storage.counts[segment]
            for layer in self._layers
            if layer.cold is not None
            for segment in layer.storage.segments(sequence)
        ]
        return min(held, default=0) // 2

    def _best(self, sequence: int, count: int) -> Tensor:
        available = torch.zeros(self._fed[sequence], dtype=torch.bool)
        for layer in self._layers:
            if layer.cold is None:
                continue
            for segment in layer.cold.storage.segments(sequence):
                positions = layer.cold.storage.positions(segment).to(torch.int64)
                available[positions[self._can_return(layer, segment)]] = True
        return best_bursts(self.scores[sequence], available, count)

    def _can_return(self, layer: CacheLayer, segment: int) -> Tensor:
        """Return which cold entries of a segment, (T,) bool, are not hot at present and lie within
        the layer's window."""
        assert layer.cold is not None
        positions = layer.cold.storage.positions(segment)
        can = torch.ones_like(positions, dtype=torch.bool)
        can[list(layer.cold.loans.of(segment).values())] = False
        if layer.shape.window is not None:
            sequence = segment // layer.storage.layout.segments_per_sequence
            can &= positions > self._fed[sequence] - layer.shape.window
        return can
