"""What the cache forgot in each step of an episode, and how sure the model was, from its trace.

Texts are slices of the masked texts of the trace. A foreign trace may hold any numbers, so that
every place and level is read leniently.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from agentkv.trace import Step

WHOLE = 4
"""Level of a piece with all its entries; 0 is the level of a piece without any."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A piece of a page or of a reply: a line, or a part of a long one."""

    text: str
    level: int
    """From 4 for all its entries to 0 for none, at the time that was asked for."""
    gone_in: int | None
    """Place of the step that forgot it for good; None if the cache held some of it at the end."""


@dataclass(frozen=True, slots=True)
class Forgotten:
    """What one step forgot of one span."""

    label: str
    """Label of the span, such as `page 3` of the fourth turn."""
    texts: tuple[str, ...]
    """Pieces of which the cache holds nothing any more. Empty for a span of an earlier goal or of
    the instructions, whose text the trace does not hold."""
    num_partly: int
    """Pieces that lost some of their entries and keep others."""


class Memory:
    """What the cache held after each step of an episode.

    Args:
        steps: the steps of a trace, in order.
    """

    def __init__(self, steps: Sequence[Step]) -> None:
        self._steps = steps
        self._texts: dict[str, tuple[str, ...]] = {}
        for step in steps:
            self._texts[f"page {step.turn}"] = _parts(step.observation, step.piece_ends)
            self._texts[f"reply {step.turn}"] = (step.reply,)
        self._held: list[Mapping[str, str]] = []
        for step in steps:
            self._held.append({**(self._held[-1] if self._held else {}), **step.held})

    @property
    def is_known(self) -> bool:
        """False for a trace without such data: of a script, or of an older version."""
        return any(step.piece_ends or step.confidences for step in self._steps)

    def page(self, number: int, *, after: int) -> tuple[Piece, ...]:
        """Return the page of a step in pieces, as the cache held it after another step.

        Args:
            number, after: places of the steps, from 0.
        """
        label = f"page {self._steps[number].turn}"
        history = [self._levels(label, place) for place in range(number, len(self._steps))]
        levels = history[after - number] if after >= number else ()
        gone_in: list[int | None] = []
        for piece in range(len(self._texts[label])):
            held = [place for place, each in enumerate(history) if each[piece]]
            last = held[-1] + 1 if held else 0
            gone_in.append(number + last if last < len(history) else None)
        pairs = zip(self._texts[label], levels, gone_in, strict=True)
        return tuple(Piece(text, level, gone) for text, level, gone in pairs)

    def texts(self, label: str) -> tuple[str, ...]:
        """Return the pieces of a span, one of no text for a span whose text is not recorded."""
        return self._texts.get(label, ("",))

    def changes(self, number: int) -> dict[str, tuple[int, ...]]:
        """Return the levels of the pieces of each span that lost or regained entries in a step."""
        return {label: self._levels(label, number) for label in self._steps[number].held}

    def forgotten(self, number: int) -> tuple[Forgotten, ...]:
        """Return what a step forgot, span by span, the earliest page first."""
        found = []
        for label in self._steps[number].held:
            texts = self._texts.get(label, ("",))
            levels = zip(self._levels(label, number - 1), self._levels(label, number), strict=True)
            changes = list(zip(texts, levels, strict=True))
            gone = [text for text, (before, now) in changes if before and not now]
            partly = sum(0 < now < before for _, (before, now) in changes)
            if gone or partly:
                found.append(Forgotten(label, tuple(filter(None, gone)), partly))
        return tuple(sorted(found, key=lambda each: _order(each.label)))

    def gone_before(self, number: int) -> tuple[Forgotten, ...]:
        """Return what the cache had lost before a step of everything that was shown until then."""
        found = []
        for step in self._steps[:number]:
            for label in (f"page {step.turn}", f"reply {step.turn}"):
                pieces = list(zip(self._texts[label], self._levels(label, number - 1), strict=True))
                gone = tuple(text for text, level in pieces if not level)
                partly = sum(0 < level < WHOLE for _, level in pieces)
                if gone or partly:
                    found.append(Forgotten(label, gone, partly))
        return tuple(found)

    def num_evicted(self, number: int) -> int:
        """Return how many entries left in a step.

        The first step of a later goal counts as 0: a trace does not tell how many left before.
        """
        step = self._steps[number]
        if not number:
            return 0 if step.turn else step.num_evicted
        return step.num_evicted - self._steps[number - 1].num_evicted

    def _levels(self, label: str, after: int) -> tuple[int, ...]:
        """Return the level of each piece of a span after a step; after none, all are whole."""
        num = len(self._texts.get(label, ("",)))
        digits = self._held[after].get(label, "") if after >= 0 else ""
        found = [int(digit) if digit in "01234" else WHOLE for digit in digits]
        if len(found) == num:
            return tuple(found)
        if len(found) == num - 1 > 1:  # of the rest of a text, the trace tells nothing
            return (*found, WHOLE)
        if not found:
            return (WHOLE,) * num
        # one level for a page that a resumed session cannot divide any more
        return (found[0] if len(set(found)) == 1 else 2,) * num


def reply_tokens(step: Step) -> tuple[tuple[str, float | None], ...]:
    """Return the tokens of a reply with their confidence, which is None where it was forced."""
    if len(step.token_ends) != len(step.confidences):
        return ()
    places = pairwise([0, *step.token_ends])
    return tuple(
        (step.reply[start:stop], confidence)
        for (start, stop), confidence in zip(places, step.confidences, strict=True)
    )


def span_name(label: str) -> str:
    """Return the label of a span with the number of its step, which people count from 1."""
    kind, _, number = label.rpartition(" ")
    is_turn = kind in ("page", "reply", "goal") and number.isdecimal() and len(number) < 9
    return f"{kind} {int(number) + 1}" if is_turn else label


def sureness(confidence: float) -> int:
    """Return the class of a confidence: 0 below a half, 1 below 0.9, 2 from there on."""
    return 0 if not confidence >= 0.5 else 1 if confidence < 0.9 else 2


def _parts(text: str, ends: Sequence[int]) -> tuple[str, ...]:
    """Return the parts of a text that end at these places, and the rest if there is one."""
    parts = [text[start:stop] for start, stop in pairwise([0, *ends])]
    rest = text[ends[-1] :] if ends else text
    return (*parts, rest) if rest else tuple(parts)


def _order(label: str) -> tuple[int, str]:
    """Sort labels by the number of their turn, and those without one first."""
    number = label.rpartition(" ")[2]
    return (int(number) if number.isdecimal() and len(number) < 9 else -1, label)
