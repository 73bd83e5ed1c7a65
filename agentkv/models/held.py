"""Which parts of a conversation's pages and replies the cache still holds.

A page is divided into pieces: its lines, and parts of up to 72 characters of its long lines. After
every turn each piece has a level by the share of its entries that the cache holds, over all layers
and KV heads: 4 for all of them, 0 for none, and 1 to 3 for the thirds in between.
"""

import bisect
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

import torch
from torch import Tensor

from agentkv.dialog.prompt import EncodedText, Template
from agentkv.models.stream import Numbers, StreamTurn, TokenStream

WHOLE = 4
"""Level of a piece with all its entries."""

_PIECE = re.compile(r"[^\n]{0,71}(?:[ \n]|\Z)|[^\n]{72}")


def piece_ends(text: str) -> list[int]:
    """Return where the pieces of a page end, in characters."""
    return [found.end() for found in _PIECE.finditer(text) if found[0]]


def token_ends(template: Template, ids: Sequence[int], text: str) -> tuple[int, ...]:
    """Return, for each id of a reply, the number of characters of `text` up to its end.

    A character of several ids belongs to the last of them.

    Args:
        text: the decoded reply.
    """
    ends, at = [], 0
    for id in ids:
        part = template.decode([id])
        # decoders drop a space at the beginning of a text, and some control tokens
        start = text.find(part, at, at + len(part) + _MOST_SKIPPED) if part else -1
        at = at if start < 0 else start + len(part)
        ends.append(at)
    if ends:
        ends[-1] = len(text)
    return tuple(ends)


_MOST_SKIPPED = 4
"""Characters of a text that may belong to no decoded id."""


@dataclass(frozen=True, slots=True)
class SavedHeld:
    """The state of a `HeldSpans`, in a form that a file can store."""

    pieces: Mapping[int, Sequence[Numbers]]
    """By turn, the ranges of the ids in `StreamTurn.shown` that its pieces have."""
    levels: Mapping[str, str]
    """Levels of the spans that are not held whole, by label."""


class HeldSpans:
    """Follows what the cache holds of each span, and tells what changes from turn to turn."""

    def __init__(self) -> None:
        self._pieces: dict[int, Tensor] = {}
        """By turn, the ranges (n, 2) of the ids in `StreamTurn.shown` that its pieces have."""
        self._levels: dict[str, str] = {}

    def save(self) -> SavedHeld:
        """Return the state, from which `restore` continues."""
        pieces = {
            turn: [(start, stop) for start, stop in ranges.tolist()]
            for turn, ranges in self._pieces.items()
        }
        return SavedHeld(pieces, dict(self._levels))

    def restore(self, saved: SavedHeld) -> None:
        """Continue from a saved state."""
        self._pieces = {turn: torch.tensor(ranges) for turn, ranges in saved.pieces.items()}
        self._levels = dict(saved.levels)

    def note_page(self, number: int, turn: StreamTurn, observation: EncodedText) -> tuple[int, ...]:
        """Divide the page of a turn, and return where its pieces end, in characters.

        A piece's ids are exact where the prompt holds the page's text as it is, and a few ids off
        where the tokenizer joins it with what is around it.
        """
        ends = piece_ends(observation)
        if not ends:
            return ()
        pieces = [_tokens_between(observation.ends, *places) for places in pairwise([0, *ends])]
        first = _place(observation.ids, turn.shown)
        self._pieces[number] = (first + torch.tensor(pieces)).clamp_max(len(turn.shown))
        return tuple(ends)

    def changes(self, stream: TokenStream) -> dict[str, str]:
        """Return the levels of the spans whose levels have changed since the last call, by label.

        The cache of a stream that is rebuilt never reads what is forgotten.
        """
        places: dict[str, Tensor] = {}
        for number, turn in enumerate(stream.turns):
            shown, reply = turn.shown, turn.reply
            pieces = self._pieces.get(number)
            if pieces is None:
                pieces = torch.tensor([(0, len(shown))])
            if stream.is_rebuilt and turn.is_forgotten:
                shown, reply = turn.left, turn.left_reply
                pieces = pieces.clamp_max(turn.body[0])
            places[f"page {number}"] = pieces + turn.start
            written = turn.start + len(shown)
            places[f"reply {number}"] = torch.tensor([(written, written + len(reply))])
            if turn.goal:
                goal = (turn.start - len(turn.goal), turn.start)
                places[f"goal {number}"] = torch.tensor([goal])
        places["goal"] = torch.tensor([(0, stream.turns[0].start - len(stream.turns[0].goal))])
        counts, num_all = stream.cache.num_holders()
        changed = {}
        for label, levels in zip(places, _levels(counts, num_all, places.values()), strict=True):
            if levels != self._levels.get(label, str(WHOLE) * len(levels)):
                changed[label] = self._levels[label] = levels
        return changed


def _tokens_between(ends: Sequence[int], start: int, stop: int) -> Numbers:
    """Return the range of the tokens that have a character of a text from `start` to `stop`.

    Args:
        ends: number of characters up to the end of each token, ascending.
    """
    first = bisect.bisect_right(ends, start)
    last = max(bisect.bisect_right(ends, stop), bisect.bisect_left(ends, stop) + 1)
    return first, max(first, min(last, len(ends)))


def _place(ids: Sequence[int], shown: Sequence[int]) -> int:
    """Return where the ids of a page begin in its turn, exactly or nearly.

    The first ids and the last may be joined with what is around the page, and a template may change
    characters within it, so that either its beginning or its end has to be found.
    """
    last = len(shown) - len(ids)
    for start in (1, len(ids) - 1 - _ENOUGH):
        some = list(ids[max(1, start) : max(1, start) + _ENOUGH])
        for first in range(last, -1, -1):
            at = first + max(1, start)
            if shown[at : at + len(some)] == some:
                return first
    return max(0, last - 1)


_ENOUGH = 24
"""Ids by which the beginning or the end of a page is recognized (our choice)."""


def _levels(counts: Tensor, num_all: int, places: Collection[Tensor]) -> list[str]:
    """Return the levels of adjoining pieces, a text of digits per span.

    Args:
        counts: (tokens seen,) pairs of layer and head that hold each token.
        num_all: the number of all pairs.
        places: per span, the ranges (n, 2) of the positions of its pieces. What was not fed yet is
            held whole.
    """
    num_seen = len(counts)
    held = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
    first, last = torch.cat(list(places)).unbind(1)

    def held_before(positions: Tensor) -> Tensor:
        seen = positions.clamp_max(num_seen)
        return held[seen] + num_all * (positions - seen)

    num_held, most = held_before(last) - held_before(first), num_all * (last - first)
    thirds = 1 + 3 * num_held // most.clamp_min(1)
    levels = torch.where(num_held == 0, 0, torch.where(num_held == most, WHOLE, thirds))
    digits = bytes((levels + ord("0")).tolist()).decode()
    stops = accumulate(map(len, places))
    return [digits[stop - len(each) : stop] for each, stop in zip(places, stops, strict=True)]
