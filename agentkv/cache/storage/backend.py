"""Backends: how a layer's entries are appended, attended to, dropped and quantized.

`Backend` is the interface and the reference, in plain torch. `NumbaBackend` and `TritonBackend`
override what they speed up. Backends hold no state; a layer chooses one when storage begins.

Shapes: B sequences, H key-value heads, G query heads per key-value head, Q new tokens, D head size;
S segments of a sequence, N = B * S, W = H / S heads per segment, T entries of a segment.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from agentkv.cache.storage.codes import append_quantized, merge_blocks
from agentkv.cache.storage.evictions import Eviction, by_storage, dropped_entries, kept_entries
from agentkv.cache.storage.layer_storage import LayerStorage
from agentkv.cache.storage.table import Run, Which
from agentkv.policies.entries import Selection
from agentkv_kernels.attention import attend, weights
from agentkv_kernels.device import Implementation
from agentkv_kernels.ema import Ema
from agentkv_kernels.entries import Part
from agentkv_kernels.formats import BLOCK
from agentkv_kernels.layout import KEYS, NORMS, TRACKED, VALUES
from agentkv_kernels.look import best_blocks

LastWeights = Callable[[int], Tensor]
"""A number of queries to the weights (n, q, T) of the last q: mean over a segment's query heads."""


class MassObserver(Protocol):
    """Receives the attention that entries get from new tokens."""

    def num_queries(self, num_new: int) -> int:
        """Return how many of the last of `num_new` queries the mass averages over."""
        ...

    def observe(self, which: Which, mass: Tensor, num_new: int, last_weights: LastWeights) -> None:
        """Take the mass (n, T) of some segments: mean over query heads and the last queries."""
        ...


class Backend:
    """Operations on the storage of a layer, in plain torch."""

    name: Implementation = "torch"
    is_compiled = False
    """True if a compiled step may take the place of `append_attend`, in all layers at once."""

    def append(
        self,
        storage: LayerStorage,
        keys: Tensor,
        values: Tensor,
        norms: Tensor | None = None,
        *,
        first: Sequence[int],
        columns: Sequence[Tensor] | None = None,
    ) -> None:
        """Append entries to every segment, with a statistic of 0.

        Args:
            keys, values: (B, H, Q, D).
            norms: (B, H, Q, n), for a layout with norms.
            first: position of each sequence's first new entry; the next ones count up.
            columns: per sequence (n,) int64 ascending, the columns that are tokens; None: all.
        """
        before, num_new = storage.counts, keys.shape[2]
        per = storage.layout.segments_per_sequence
        counts: list[int] | int = num_new
        if columns is not None:
            counts = [columns[segment // per].shape[0] for segment in range(len(before))]
        storage.metadata.extend(counts)
        storage.dense.extend(counts)
        at_once = columns is None and storage.dense.is_even
        for field, x in ((KEYS, keys), (VALUES, values)) if at_once else ():
            newest = storage.dense.view(field, None)[:, :, -num_new:]
            newest.view(storage.batch, per, *newest.shape[1:]).flatten(1, 2).copy_(x)
        for segment, start in enumerate(before):
            pick = None if columns is None else columns[segment // per]
            if not at_once:
                for field, x in ((KEYS, keys), (VALUES, values)):
                    own = of_segment(storage, x, segment)
                    _write_last(storage.dense.entries(field, segment), own, pick)
            positions, position = storage.positions(segment)[start:], first[segment // per]
            if positions.shape[0] == 1:
                positions.fill_(position)
            elif positions.shape[0]:
                torch.arange(position, position + positions.shape[0], out=positions)
            if storage.layout.tracked.inner != (0,):
                storage.tracked(segment)[:, start:].zero_()
            if norms is not None:
                own = of_segment(storage, norms, segment)
                _write_last(storage.metadata.entries(NORMS, segment), own, pick)

    def append_attend(
        self,
        storage: LayerStorage,
        q: Tensor,
        keys: Tensor,
        values: Tensor,
        *,
        first: Sequence[int],
        scale: float,
        sinks: Tensor | None,
        ema: Ema | None,
        observer: MassObserver | None,
    ) -> Tensor:
        """Append one token per sequence, attend over all entries, and keep its query.

        Norms of the new entries are left to `write_newest`.

        Args:
            q: (B, H * G, 1, D), rotated; query head h * G + g reads head h.
            keys, values: (B, H, 1, D).
            first: position of each sequence's new entry.
            scale: factor on the logits before the softmax.
            sinks: (H * G,) logits that join the softmax.
            ema: updates the first tracked number of every entry by its mass.
            observer: receives the mass.

        Returns:
            As `q`.
        """
        self.append(storage, keys, values, first=first)
        output = self.attend(
            storage,
            q,
            first=first,
            columns=None,
            scale=scale,
            sinks=sinks,
            window=None,
            observer=observer if ema is None else _EmaUpdate(storage, ema),
        )
        storage.note_queries(q, first=first, columns=None)
        return output

    def attend(
        self,
        storage: LayerStorage,
        q: Tensor,
        *,
        first: Sequence[int],
        columns: Sequence[Tensor] | None,
        scale: float,
        sinks: Tensor | None,
        window: int | None,
        observer: MassObserver | None,
        others: Callable[[int], Sequence[Part]] | None = None,
    ) -> Tensor:
        """Attend with new tokens whose entries are appended already.

        Args:
            q: (B, H * G, Q, D), rotated.
            first: position of each sequence's first new token.
            columns: as in `append`; other columns yield zeros.
            window: a token sees only entries less than `window` positions back; None: all of them.
            observer: receives the mass of every segment; None: no mass is computed.
            scale, sinks: as in `append_attend`.
            others: gives further entries that a segment sees; no mass of theirs is counted.

        Returns:
            As `q`.
        """
        per, queries = storage.layout.segments_per_sequence, by_segment(storage, q)
        own_sinks = None if sinks is None else sinks.view(per, -1)

        def attend_in(which: Which, q: Tensor) -> Tensor:
            sequences = range(storage.batch) if which is None else [_only(which) // per]
            starts = [first[i] for i in sequences for _ in range(per if which is None else 1)]
            segment_sinks = None if own_sinks is None else own_sinks[_only(which or 0) % per]
            sees_all = q.shape[2] == 1 and window is None
            q_positions = None if sees_all else _query_positions(starts, q)
            own_parts = self.parts(storage, which) if observer is None else storage.parts(which)
            parts, num_own = own_parts, sum(part.num_entries for part in own_parts)
            if others is not None:
                parts = [*own_parts, *others(_only(which))]
            done = attend(
                q,
                parts,
                scale=scale,
                q_positions=q_positions,
                window=window,
                sinks=segment_sinks,
                num_mass_queries=0 if observer is None else observer.num_queries(q.shape[2]),
            )
            if observer is not None:
                assert done.mass is not None

                def last_weights(count: int) -> Tensor:
                    found = weights(
                        q[:, :, -count:],
                        parts,
                        scale=scale,
                        q_positions=None if q_positions is None else q_positions[:, -count:],
                        window=window,
                        sinks=segment_sinks,
                    )
                    return found.mean(dim=(1, 2))[..., :num_own]

                mass = done.mass.mean(dim=1)[:, :num_own]
                observer.observe(which, mass, q.shape[2], last_weights)
            return done.output

        is_alike = others is None and storage.is_even and (sinks is None or per == 1)
        if columns is None and is_alike:
            return attend_in(None, queries).view(q.shape)
        # contiguous, unlike q, so that its segments are views of it
        output = q.new_zeros(q.shape)
        by_segments = by_segment(storage, output)
        for segment in range(storage.num_segments):
            pick = None if columns is None else columns[segment // per]
            own = queries[segment, None]
            if pick is None:
                by_segments[segment] = attend_in(segment, own)[0]
            elif pick.shape[0]:
                by_segments[segment][:, pick] = attend_in(segment, own[:, :, pick])[0]
        return output

    def parts(self, storage: LayerStorage, which: Which) -> Sequence[Part]:
        """Return what `LayerStorage.parts` returns, in the form that this backend reads fastest."""
        return storage.parts(which)

    # ---- looking back

    def write_newest(
        self,
        storage: LayerStorage,
        segments: Sequence[int],
        *,
        keys: Tensor | None = None,
        values: Tensor | None = None,
        norms: Tensor | None = None,
    ) -> None:
        """Overwrite fields of the newest entry of some segments.

        Args:
            keys, values: (B, H, 1, D); None: they stay.
            norms: (B, H, 1, n); None: they stay.
        """
        dense = storage.dense
        fields = ((dense, KEYS, keys), (dense, VALUES, values), (storage.metadata, NORMS, norms))
        for table, field, x in fields:
            if x is None:
                continue
            for segment in segments:
                own = of_segment(storage, x, segment)
                table.entries(field, segment)[:, -1:].copy_(own)

    def log_sums(
        self, storage: LayerStorage, segment: int, q: Tensor, *, scale: float, sinks: Tensor | None
    ) -> Tensor:
        """Return the logarithm of the sum of exp(logit) over a segment's entries and its sink.

        Args:
            q: of one token, (1, W * G, 1, D), rotated.
            scale, sinks: as in `append_attend`; sinks of the segment's query heads.

        Returns:
            (W * G,) float32.
        """
        logits = _logits(storage, segment, q, scale)
        if sinks is not None:
            logits.append(sinks.to(torch.float32).view(*logits[0].shape[:2], 1))
        return torch.cat(logits, dim=2).logsumexp(dim=2).flatten()

    def largest_shares(
        self,
        cold: LayerStorage,
        segment: int,
        q: Tensor,
        *,
        lent: Sequence[int],
        scale: float,
        others: Tensor,
    ) -> Tensor:
        """Return the largest share of attention that one token gives each cold entry of a segment.

        The shares are over all entries of the segment, hot and cold.

        Args:
            q: (1, W * G, 1, D), rotated.
            lent: numbers of the cold entries that are hot as well; they have a share of 0.
            scale: factor on the logits before the softmax.
            others: what `log_sums` returns for the hot entries.

        Returns:
            (T,) float32.
        """
        [logits] = _logits(cold, segment, q, scale)
        logits[..., lent] = -torch.inf
        totals = torch.logaddexp(logits.logsumexp(dim=2), others.view(logits.shape[:2]))
        return (logits - totals.unsqueeze(2)).exp().amax(dim=(0, 1))

    def best_blocks(
        self,
        cold: LayerStorage,
        segment: int,
        scores: Tensor,
        *,
        lent: Sequence[int],
        oldest: int,
        blocks: int,
        block: int,
        least: float,
    ) -> Tensor:
        """Return the numbers (n,) of a segment's entries in its best blocks, in order of position.

        Args:
            scores: (T,) float32, none below 0.
            lent: as in `largest_shares`; they are left out.
            oldest, blocks, block, least: as in `look.best_blocks`.
        """
        hidden = torch.tensor(lent, dtype=torch.int64, device=cold.device)
        positions, wanted = cold.positions(segment), {"blocks": blocks, "block": block}
        return best_blocks(positions, scores, hidden, oldest=oldest, least=least, **wanted)

    def attend_again(
        self,
        storage: LayerStorage,
        segment: int,
        q: Tensor,
        *,
        scale: float,
        sinks: Tensor | None,
        others: Sequence[Part],
    ) -> Tensor:
        """Attend with the newest token of a segment over all its entries, and keep no statistic.

        Args:
            q: (1, W * G, 1, D), rotated.
            sinks: of the segment's query heads.
            others: further entries that it sees.

        Returns:
            As `q`.
        """
        parts = [*storage.parts(segment), *others]
        return attend(q, parts, scale=scale, sinks=sinks).output

    # ---- dropping

    def drop(self, evictions: Iterable[Eviction], *, tidies: bool = True) -> None:
        """Drop entries of some sequences and layers as the verdicts say, and return their memory.

        Args:
            tidies: False: their memory may be needed at once; the caller calls `tidy`.
        """
        verdicts: dict[LayerStorage, list[Selection | None]] = {}
        for eviction in evictions:
            for storage, verdict in by_storage(eviction):
                verdicts.setdefault(storage, [None] * storage.batch)[eviction.sequence] = verdict
        for storage, of_sequences in verdicts.items():
            dropped = [
                dropped_entries(of_sequences[i], j, storage.counts[segment])
                for i in range(storage.batch)
                for j, segment in enumerate(storage.segments(i))
            ]
            runs = [entries for entries in dropped if isinstance(entries, tuple)]
            if len(runs) == len(dropped):
                self.drop_runs(storage, runs)
            else:
                both = zip(dropped, storage.counts, strict=True)
                self.keep(
                    storage, [kept_entries(each, count, storage.device) for each, count in both]
                )

    def drop_runs(self, storage: LayerStorage, runs: Sequence[Run]) -> None:
        """Drop entries first..last - 1 of each segment, in storage order."""
        dense = runs
        if storage.codes is not None:
            split = list(zip(runs, storage.codes.counts, strict=True))
            dense = [(max(a - n, 0), max(b - n, 0)) for (a, b), n in split]
            storage.codes.drop([(min(a, n), min(b, n)) for (a, b), n in split])
            merge_blocks(storage)
        storage.dense.drop(dense)
        storage.metadata.drop(runs)

    def drop_span(self, storage: LayerStorage, ranges: Sequence[Run]) -> None:
        """Drop the entries of each segment whose position is first..last - 1 of its range."""
        if not storage.layout.is_by_position:
            gone = [_inside(storage.positions(i), each) for i, each in enumerate(ranges)]
            self.keep(storage, [(~inside).nonzero().squeeze(1) for inside in gone])
            return
        runs = []
        for segment, (first, last) in enumerate(ranges):
            positions = storage.positions(segment)
            if first >= last or not positions.shape[0] or int(positions[0]) >= last:
                runs.append((0, 0))
                continue
            start = int((positions < first).sum()) if first else 0
            runs.append((start, start + int(_inside(positions, (first, last)).sum())))
        self.drop_runs(storage, runs)

    def keep(self, storage: LayerStorage, picks: Sequence[Tensor | None]) -> None:
        """Keep only the entries of each segment with these numbers (n,), ascending; None: all."""
        dense = picks
        if storage.codes is not None:
            quantized, dense = [], []
            for pick, count in zip(picks, storage.codes.counts, strict=True):
                split = 0 if pick is None or not count else int((pick < count).sum())
                quantized.append(None if pick is None or split == count else pick[:split])
                dense.append(None if pick is None else pick[split:] - count)
            storage.codes.keep(quantized)
            merge_blocks(storage)
        storage.dense.keep(dense)
        storage.metadata.keep(picks)

    def tidy(self, storage: LayerStorage) -> None:
        """Return unused memory, and merge blocks of scales that serve few entries."""
        for table in (storage.metadata, storage.dense, storage.codes, storage.scales):
            if table is not None:
                table.trim()
        merge_blocks(storage)

    # ---- quantizing

    def quantize_oldest(self, storage: LayerStorage, recent: Sequence[int]) -> None:
        """Quantize the oldest dense entries in blocks of 64 while more than recent + 63 are dense.

        Args:
            recent: dense entries that each sequence keeps per segment.
        """
        counts = oldest_blocks(storage, recent)
        if not any(counts):
            return

        def oldest(field: int, segment: int) -> tuple[Tensor, bool]:
            return storage.dense.entries(field, segment)[:, : counts[segment]], False

        append_quantized(storage, counts, oldest)
        storage.dense.drop([(0, count) for count in counts])

    def copy_over(self, hot: LayerStorage, cold: LayerStorage, picks: Sequence[Tensor]) -> None:
        """Store copies of entries of one storage behind those of another, all in one format.

        Args:
            picks: per segment their numbers (n,) in storage order, ascending.
        """
        counts = [pick.shape[0] for pick in picks]
        cold.metadata.extend(counts)
        for segment, (pick, count) in enumerate(zip(picks, counts, strict=True)):
            for field in range(len(cold.metadata.fields)) if count else ():
                found = hot.metadata.entries(field, segment)[:, pick]
                cold.metadata.entries(field, segment)[:, -count:] = found

        def read(field: int, segment: int) -> tuple[Tensor, bool]:
            return hot.read(field, segment, picks[segment], cold.layout.dtype), True

        if cold.codes is not None:
            append_quantized(cold, counts, read)
            return
        cold.dense.extend(counts)
        for segment, count in enumerate(counts):
            for field in (KEYS, VALUES) if count else ():
                cold.dense.entries(field, segment)[:, -count:] = read(field, segment)[0]

    def quantize(self, storage: LayerStorage, picks: Sequence[Tensor]) -> None:
        """Quantize the entries of each segment with these numbers (n,), ascending, all dense so
        far.

        They follow the quantized ones in storage order.
        """
        if not any(pick.shape[0] for pick in picks):
            return
        assert storage.codes is not None
        orders, stays, num_quantized = [], [], storage.codes.counts
        for segment, pick in enumerate(picks):
            before, device = num_quantized[segment], pick.device
            others = torch.ones(storage.counts[segment], dtype=torch.bool, device=device)
            others[:before] = False
            others[pick] = False
            stay = others.nonzero().squeeze(1)
            orders.append(torch.cat([torch.arange(before, device=device), pick, stay]))
            stays.append(stay - before)

        def picked(field: int, segment: int) -> tuple[Tensor, bool]:
            pick = picks[segment] - num_quantized[segment]
            return storage.dense.entries(field, segment)[:, pick], True

        append_quantized(storage, [pick.shape[0] for pick in picks], picked)
        storage.dense.keep(stays)
        storage.metadata.keep(orders)


def oldest_blocks(storage: LayerStorage, recent: Sequence[int]) -> list[int]:
    """Return how many entries of each segment `Backend.quantize_oldest` quantizes."""
    per = storage.layout.segments_per_sequence
    older = [count - recent[i // per] for i, count in enumerate(storage.dense.counts)]
    return [max(0, count) // BLOCK * BLOCK for count in older]


def _logits(storage: LayerStorage, segment: int, q: Tensor, scale: float) -> list[Tensor]:
    """Return the logits (W, G, n) float32 of one token, part by part."""
    grouped = q.to(torch.float32).view(storage.layout.num_heads, -1, q.shape[3]) * scale
    return [grouped @ part.decode_keys()[0].mT for part in storage.parts(segment)]


def by_segment(storage: LayerStorage, x: Tensor) -> Tensor:
    """Return (B, S * w, ...) as (N, w, ...), a view if possible."""
    per = storage.layout.segments_per_sequence
    return x if per == 1 else x.reshape(x.shape[0] * per, x.shape[1] // per, *x.shape[2:])


def of_segment(storage: LayerStorage, x: Tensor, segment: int) -> Tensor:
    """Return the part (w, ...) of x (B, S * w, ...) that belongs to a segment, a view."""
    sequence, i = divmod(segment, storage.layout.segments_per_sequence)
    width = x.shape[1] // storage.layout.segments_per_sequence
    return x[sequence, i * width : (i + 1) * width]


def hand_out_mass(storage: LayerStorage, mass: Tensor, observer: MassObserver) -> None:
    """Hand out the mass (R,) of one new token as views: of all segments if they are even, else of
    each."""
    descriptor = storage.metadata.descriptor
    if storage.is_even:
        _, capacity, start, count = descriptor.extent(0)
        received = mass.view(-1, capacity)[:, start : start + count]
        observer.observe(None, received, 1, lambda count: received[:, None])
        return
    for segment in range(storage.num_segments):
        base, _, start, count = descriptor.extent(segment)
        own = mass[None, base + start : base + start + count]
        observer.observe(segment, own, 1, lambda count, own=own: own[:, None])  # type: ignore[misc]


def _inside(positions: Tensor, run: Run) -> Tensor:
    """Mark the positions that are first..last - 1, bool."""
    return (positions >= run[0]) & (positions < run[1])


def _write_last(entries: Tensor, x: Tensor, pick: Tensor | None) -> None:
    """Write x (W, t, F), or its entries `pick`, to the last of `entries` (W, T, F)."""
    num_new = x.shape[1] if pick is None else pick.shape[0]
    last = entries[:, entries.shape[1] - num_new :]
    if pick is None:
        last.copy_(x)
    else:
        torch.index_select(x, 1, pick, out=last)


def _query_positions(first: Sequence[int], q: Tensor) -> Tensor:
    """Return positions (n, Q) of new queries (n, heads, Q, D), given each one's first."""
    steps = torch.arange(q.shape[2], device=q.device)
    if first.count(first[0]) == len(first):
        return (steps + first[0]).expand(q.shape[0], -1)
    return steps + torch.tensor(first, device=q.device)[:, None]


@dataclass(frozen=True, slots=True)
class _EmaUpdate:
    """Updates the first tracked number of every entry."""

    storage: LayerStorage
    ema: Ema

    def num_queries(self, num_new: int) -> int:
        return num_new

    def observe(self, which: Which, mass: Tensor, num_new: int, last_weights: LastWeights) -> None:
        numbers = self.storage.metadata.view(TRACKED, which)[:, 0, :, 0]
        updated = self.ema.keep * numbers + self.ema.gain * mass
        if self.ema.starts_at_mass:
            updated[:, -1] = mass[:, -1]
        numbers.copy_(updated)


def _only(which: Which) -> int:
    assert isinstance(which, int)
    return which
