"""Spans of the token stream: labels, and pins, which keep tokens from eviction.

Positions count a sequence's own tokens from 0, without padding.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from agentkv.cache.misuse import Misuse
from agentkv.policies.entries import Span

Range = tuple[int, int | None]
"""Positions start..stop - 1; with None, start and everything after it."""

Found = tuple[int, int, int]
"""A sequence, and positions start..stop - 1 of it."""


@dataclass(frozen=True, slots=True)
class Pins:
    """Pinned positions of one sequence: disjoint ranges in ascending order."""

    ranges: tuple[Range, ...] = ()

    @property
    def is_open(self) -> bool:
        """True if the cache pins every token that comes next."""
        return bool(self.ranges) and self.ranges[-1][1] is None

    def leading(self, num_seen: int) -> int:
        """Return how many positions are pinned from the first one on without a gap.

        Args:
            num_seen: tokens of the sequence; an open range ends with them.
        """
        if not self.ranges or self.ranges[0][0]:
            return 0
        stop = self.ranges[0][1]
        return num_seen if stop is None else stop

    def count(self, num_seen: int) -> int:
        """Return how many positions are pinned, those of tokens that will come included."""
        return sum(
            max(0, (num_seen if stop is None else stop) - start) for start, stop in self.ranges
        )

    def mask(self, positions: Tensor) -> Tensor:
        """Mark pinned positions; same shape as `positions`, bool."""
        marked = torch.zeros_like(positions, dtype=torch.bool)
        for start, stop in self.ranges:
            inside = positions >= start
            marked |= inside if stop is None else inside & (positions < stop)
        return marked

    def with_range(self, start: int, stop: int | None) -> "Pins":
        """Return these pins and one more range, merged with those that it touches."""
        merged: list[Range] = []
        for first, last in sorted((*self.ranges, (start, stop)), key=lambda each: each[0]):
            before = merged[-1] if merged else None
            if before is not None and (before[1] is None or first <= before[1]):
                end = None if before[1] is None or last is None else max(before[1], last)
                merged[-1] = (before[0], end)
            else:
                merged.append((first, last))
        return Pins(tuple(merged))

    def without_range(self, start: int, stop: int | None) -> "Pins":
        """Return these pins without a range."""
        left: list[Range] = []
        for first, last in self.ranges:
            if first < start:
                left.append((first, start if last is None else min(last, start)))
            if stop is not None and (last is None or last > stop):
                left.append((max(first, stop), last))
        return Pins(tuple(left))


NO_PINS = Pins()


@dataclass(frozen=True, slots=True)
class SequenceSpans:
    """Labelled spans and pins of one sequence; a value."""

    labelled: tuple[Span, ...] = ()
    """Disjoint, in ascending order; only the last one may be open."""
    pins: Pins = NO_PINS

    def with_label(self, span: Span, *, num_seen: int, pinned: bool) -> "SequenceSpans":
        """Return these spans and one more, at which an open last one ends.

        Tokens that were not fed lose other labels to the span. If the label that they lose is the
        span's own, both spans become one.

        Args:
            num_seen: tokens of the sequence.

        Raises:
            Misuse: a ValueError; the span overlaps another one.
        """
        known, pins, named = list(self.labelled), self.pins, span
        if known and known[-1].stop is None and known[-1].start <= span.start:
            last = known.pop()
            if last.start < span.start:
                known.append(replace(last, stop=span.start))
            if pins.is_open:
                pins = pins.without_range(span.start, None)
        for other in [each for each in known if _overlap(each, span)]:
            first = max(other.start, span.start)
            if first < num_seen:
                raise Misuse(f"{_text(span)} overlaps {_text(other)}; a token has one label")
            known.remove(other)
            pins = pins.without_range(first, other.stop)
            if other.start < first and other.label == span.label:
                named = replace(span, start=other.start)
            elif other.start < first:
                known.append(replace(other, stop=first))
        known = sorted((*known, named), key=lambda each: each.start)
        if pinned:
            pins = pins.with_range(span.start, span.stop)
        return SequenceSpans(tuple(known), pins)

    @property
    def end(self) -> int:
        """Position after the last labelled token; where the last span is open, its start."""
        if not self.labelled:
            return 0
        last = self.labelled[-1]
        return last.start if last.stop is None else last.stop


class Spans:
    """Labels and pins of all sequences of a cache. Sequences are independent.

    Before the first forward one value stands for all sequences.
    """

    def __init__(self) -> None:
        self.sequences: list[SequenceSpans] = [SequenceSpans()]

    def set_batch(self, batch: int) -> None:
        """Give each of the first forward's sequences what was said before it."""
        self.sequences = [self.sequences[0]] * batch

    def reorder(self, index: Sequence[int]) -> None:
        """Make sequence i a copy of what sequence index[i] was."""
        self.sequences = [self.sequences[i] for i in index]

    def labelled(
        self,
        label: str,
        num_tokens: int | None,
        *,
        start: int | None,
        pinned: bool,
        fed: Sequence[int],
        sequence: int | None,
    ) -> list[SequenceSpans]:
        """Return what all sequences have with one more label; see `Cache.label`.

        Args:
            fed: tokens of each sequence.
        """
        if not isinstance(label, str) or not label:
            raise Misuse(f"a label is a text of at least one character; found {label!r}")
        if num_tokens is not None and num_tokens < 1:
            raise Misuse(f"a span has at least one token; found tokens={num_tokens}")
        changed = list(self.sequences)
        for i in self._chosen(sequence):
            first = max(fed[i], changed[i].end) if start is None else start
            if first < 0:
                raise Misuse(f"positions count from 0; found start={first}")
            span = Span(label, first, None if num_tokens is None else first + num_tokens)
            changed[i] = changed[i].with_label(span, num_seen=fed[i], pinned=pinned)
        return changed

    def with_pins(
        self, found: Iterable[Found], change: Callable[[Pins, int, int], Pins]
    ) -> list[SequenceSpans]:
        """Return what all sequences have once their pins are changed: by `Pins.with_range`, or by
        `Pins.without_range`."""
        changed = list(self.sequences)
        for i, start, stop in found:
            changed[i] = replace(changed[i], pins=change(changed[i].pins, start, stop))
        return changed

    def pins(self, sequence: int) -> Pins:
        """Return the pins of a sequence."""
        return self.sequences[sequence].pins

    def find(
        self, span: str | range | Span, fed: Sequence[int], sequence: int | None
    ) -> list[Found]:
        """Return the places that `span` names: all spans of a label, or positions.

        Args:
            fed: tokens of each sequence.
            sequence: the only one to look at; None: all.

        Raises:
            Misuse: a ValueError; no span has this label, or a position was not seen.
        """
        chosen = self._chosen(sequence)
        found = [(i, each) for i in chosen for each in self._named(span, i, fed[i])]
        if not found:
            known = (each.label for i in chosen for each in self.sequences[i].labelled)
            labels = ", ".join(dict.fromkeys(known)) or "none"
            raise Misuse(f"no token that was fed has the label {span!r}; labels: {labels}")
        places = []
        for i, each in found:
            stop = fed[i] if each.stop is None else each.stop
            if not 0 <= each.start < stop <= fed[i]:
                raise Misuse(
                    f"positions {each.start} to {stop} are not among the {fed[i]} tokens that "
                    f"sequence {i} was fed; label tokens before they are fed with "
                    "cache.label(..., pinned=True)"
                )
            places.append((i, each.start, stop))
        return places

    def _named(self, span: str | range | Span, sequence: int, fed: int) -> Sequence[Span]:
        if isinstance(span, Span):
            return [span]
        if isinstance(span, range):
            if span.step != 1:
                raise Misuse(f"a range of positions has step 1; found {span}")
            return [Span("", span.start, span.stop)]
        labelled = self.sequences[sequence].labelled
        return [each for each in labelled if each.label == span and each.start < fed]

    def _chosen(self, sequence: int | None) -> Sequence[int]:
        """Return the numbers of the sequences that `sequence` names, all for None.

        Raises:
            Misuse: a ValueError; there is no such sequence.
        """
        if sequence is None:
            return range(len(self.sequences))
        if not 0 <= sequence < len(self.sequences):
            raise Misuse(f"there are {len(self.sequences)} sequences; found number {sequence}")
        return [sequence]


def _overlap(one: Span, other: Span) -> bool:
    return (one.stop is None or other.start < one.stop) and (
        other.stop is None or one.start < other.stop
    )


def _text(span: Span) -> str:
    stop = "the newest token" if span.stop is None else span.stop
    return f"{span.label!r} (positions {span.start} to {stop})"
