"""What the model did at each token of its replies: how sure it was, and where it looked back."""

from collections.abc import Sequence
from math import exp
from typing import Any, NamedTuple

from agentkv.models.generation import Generation

MOST_NOTES = 2_000
"""The newest notes that a session keeps (our choice: some 400 KB)."""


class TokenNote(NamedTuple):
    """What is noted of one token of a reply."""

    position: int
    """In the stream of its session."""
    confidence: float | None
    """Probability that the model gave it, without temperature and grammar; None if the grammar
    forced it."""
    num_fetched: int = 0
    """Entries that were fetched, over all layers and heads, by the look after which it was sampled;
    0 if there was no look."""
    most_of: str = ""
    """Label of most of these entries' tokens; empty for tokens without one."""
    num_most: int = 0
    """Entries with that label."""
    is_changing: bool = False
    """True if another token was the likeliest one after the look."""

    def described(self) -> dict[str, Any]:
        """Return it as the page's addresses show it."""
        shown: dict[str, Any] = {"forced": True}
        if self.confidence is not None:
            shown = {"confidence": round(self.confidence, 4)}
        if self.num_fetched:
            shown["look"] = {
                "fetched": self.num_fetched,
                "most_of": self.most_of,
                "n_most": self.num_most,
                "changed": self.is_changing,
            }
        return shown


def notes_of(generation: Generation, start: int) -> list[TokenNote]:
    """Return a note for each id of a reply, whose first id has the position `start`."""
    sampled = zip(generation.sampled_at, generation.logprobs, generation.looks, strict=True)
    by_place = {place: (noted, look) for place, noted, look in sampled}
    notes = []
    for place in range(len(generation.rule.ids)):
        if place not in by_place:
            notes.append(TokenNote(start + place, None))
            continue
        noted, look = by_place[place]
        note = TokenNote(start + place, min(1.0, exp(noted.value)))
        if look is not None and look.fetched:
            label, count = max(look.fetched.items(), key=lambda each: each[1])
            fetched = sum(look.fetched.values())
            note = note._replace(
                num_fetched=fetched, most_of=label, num_most=count, is_changing=look.is_changing
            )
        notes.append(note)
    return notes


def before(notes: Sequence[TokenNote], position: int) -> list[TokenNote]:
    """Return the notes of tokens before a position."""
    return [note for note in notes if note.position < position]
