"""What a session's conversation is, for people: its text by what the cache still holds of it."""

import codecs
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from agentkv.dialog.messages import Chat, MessageTemplate
from agentkv.serve.session import History, ServedSession, chat_history, said_in
from agentkv.serve.token_notes import TokenNote

NEWEST = 4_000
"""Tokens that are shown unless a request asks for another number."""
MOST_TOKENS = 100_000
"""The most tokens that are shown."""
_ROLES = ("user", "assistant", "system", "developer", "tool")


@dataclass(frozen=True, slots=True)
class HeldStream:
    """Copies of what tells a stream's text and what its cache holds: no thread changes them."""

    num_seen: int
    """Tokens that the cache has read."""
    ids: Tensor
    """(n,) the newest of them."""
    hot: Tensor
    """(n,) share of the layers and KV heads that store each one."""
    is_cold: Tensor
    """(n,) bool: it was evicted somewhere and may come back there."""
    spans: tuple[tuple[str, int, int], ...]
    """Labels, with the positions that have them."""
    pins: tuple[tuple[int, int], ...]
    unread: tuple[int, ...]
    """Ids that follow and that the cache has not read."""
    notes: tuple[TokenNote, ...] = ()
    """Notes of reply tokens, including unread ones."""

    @classmethod
    def of(cls, session: ServedSession, newest: int) -> "HeldStream":
        """Copy what a session in memory holds of its newest tokens, for its own thread."""
        cache = session.cache
        unread = () if session.is_busy else session.end.unread
        ids = None if cache is None else cache.ids
        if cache is None or ids is None:
            nothing = torch.zeros(0)
            return cls(0, nothing.long(), nothing, nothing.bool(), (), (), unread)
        notes = tuple(session.notes)
        num_seen = ids.shape[1]
        counts, num_pairs = cache.num_holders()
        hot = counts[-newest:] / max(1, num_pairs)
        is_cold = torch.zeros(num_seen, dtype=torch.bool)
        for layer in cache.cache_layers:
            for segment in () if layer.cold is None else layer.cold.storage.segments(0):
                assert layer.cold is not None
                is_cold[layer.cold.storage.positions(segment).long()] = True
        spans = tuple(
            (each.label, each.start, num_seen if each.stop is None else min(each.stop, num_seen))
            for each in cache.spans()
            if each.start < num_seen
        )
        pins = tuple((each.start, min(each.stop, num_seen)) for each in cache.pins())
        # what is lent to the hot tier stays in the cold one, from which nothing is missing then
        is_cold = is_cold[-newest:] & (hot < 1)
        return cls(num_seen, ids[0, -newest:], hot, is_cold, spans, pins, unread, notes)

    def shown(self, template: MessageTemplate) -> dict[str, Any]:
        """Return the text in runs of equal state, which end where a label or a pin does. Each token
        with a note forms its own run.

        A character of several tokens belongs to the run in which it ends.
        """
        num_shown = len(self.ids)
        first = self.num_seen - num_shown
        hot = [round(each, 2) for each in self.hot.tolist()]
        states = list(zip(hot, self.is_cold.tolist(), strict=True))
        cuts = {place for _, *ends in self.spans for place in ends}
        cuts |= {place for ends in self.pins for place in ends}
        notes = {note.position: note for note in self.notes}
        cuts |= {place for position in notes for place in (position, position + 1)}
        starts = [
            place
            for place in range(num_shown)
            if not place or states[place] != states[place - 1] or first + place in cuts
        ]
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        ids, pieces = self.ids.tolist(), []
        for start, stop in pairwise([*starts, num_shown] if starts else []):
            share, is_cold = states[start]
            text = _text(template, ids[start:stop], decoder)
            pieces.append(
                {
                    "text": text,
                    "start": first + start,
                    "n_tokens": stop - start,
                    "hot": share,
                    "cold": is_cold,
                    **_described(notes.get(first + start)),
                }
            )
        unread = [
            {
                "text": _text(template, [id], decoder),
                **_described(notes.get(self.num_seen + place)),
            }
            for place, id in enumerate(self.unread)
        ]
        if rest := decoder.decode(b"", True):
            unread.append({"text": rest})
        return {
            "n_tokens": self.num_seen,
            "first": first,
            "pieces": pieces,
            "unread": unread,
            "spans": [
                {"label": label, "start": start, "stop": stop} for label, start, stop in self.spans
            ],
            "pins": [{"start": start, "stop": stop} for start, stop in self.pins if start < stop],
        }


def _described(note: TokenNote | None) -> dict[str, Any]:
    return {} if note is None else note.described()


def _text(template: MessageTemplate, ids: Sequence[int], decoder: codecs.IncrementalDecoder) -> str:
    """Return the text of ids whose first and last character may be cut."""
    texts = []
    for id in ids:
        data = template.bytes_of(id)
        texts.append(decoder.decode(template.decode([id]).encode() if data is None else data))
    return "".join(texts)


def messages_of(history: History) -> list[dict[str, str]] | None:
    """Return the messages that continue a chat; None if they are not known.

    They are not known of raw prompts, of chats with functions or calls, and of what was on disk
    when the server began. Thoughts are left out.
    """
    if isinstance(history, str):
        return None
    messages: list[dict[str, str]] = []
    for said in history[1:]:
        candidates = ({"role": role, "content": said.text or ""} for role in _ROLES)
        found = next((each for each in candidates if said_in(each) == said), None)
        if found is None:
            return None
        messages.append(found)
    return messages if chat_history(Chat(messages)) == history else None
