"""Rows of token ids to train on: recordings as an agent feeds them, and general text."""

import random
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from agentkv.dialog.prompt import Template
from agentkv.dialog.reply import find_sources, rewritten
from agentkv.models.prompts import EpisodePrompt
from agentkv.recordings import Recording
from agentkv.settings import ActingSettings

IGNORED = -100
"""Label of an id that nobody learns to predict, as torch's cross entropy has it."""
_PADDED = (64, 256)
"""Padded rows have a multiple of a length between these, which grows with theirs."""


class TrainError(ValueError):
    """Nothing can be trained from these recordings or settings; the message says what to change."""


@dataclass(frozen=True, slots=True)
class Row:
    """A sequence of ids, and for each the label that the ids before it predict."""

    ids: list[int]
    labels: list[int]

    @property
    def num_counted(self) -> int:
        """Number of labels that count."""
        return sum(label != IGNORED for label in self.labels)


@dataclass(frozen=True, slots=True)
class EpisodeRow(Row):
    """A recorded episode, or a part of one."""

    replies: tuple[tuple[int, int], ...]
    """Start and stop of the labels of each reply that counts."""


@dataclass(frozen=True, slots=True)
class EpisodeRows:
    """The rows of a recorded episode."""

    rows: tuple[EpisodeRow, ...]
    """Each has a reply that counts."""
    num_lost: int
    """Replies that count and are in no row, because they do not fit into one."""


@dataclass(frozen=True, slots=True)
class _Turn:
    """The ids of a turn, as an agent feeds them."""

    shown: list[int]
    """Those of the page, up to where the reply begins."""
    blank: list[int]
    """The same without the page."""
    written: list[int]
    """Those of the reply and of what closes it."""
    counts: bool
    sources: tuple[int, ...]
    """Numbers of the earlier turns whose pages hold what the reply types or answers and neither the
    goal nor the turn's own page does."""

    @property
    def size(self) -> int:
        return len(self.shown) + len(self.written)

    @property
    def blank_size(self) -> int:
        return len(self.blank) + len(self.written)


def episode_rows(
    recording: Recording, template: Template, settings: ActingSettings, *, most: int
) -> EpisodeRows:
    """Return a recording as an agent feeds it: the opening, then pages and replies in turn.

    The labels are the replies that count, each with the id that ends it. An episode of more than
    `most` ids becomes several rows, and each reply is learned in one of them. A row then begins
    with the opening and the earlier replies without their pages, as after an eviction of pages. A
    page stays if a reply of the row takes its text from there. The oldest replies are left out if
    all of them take more than half of a row.

    Args:
        settings: those of observations count.
    """
    prompt = EpisodePrompt(template, settings, recording.goal, seed=0)
    opening = prompt.opening(recording.goal)
    turns = _turns(recording, template, prompt)
    rows: list[EpisodeRow] = []
    start = num_lost = 0
    while start < len(turns):
        stop = start
        while stop < len(turns) and _size(opening, turns, start, stop + 1, most) <= most:
            stop += 1
        if stop > start:
            row = _row(opening, turns, start, stop, most, template)
            rows += [row] if row.replies else []
        else:  # not even this turn fits
            num_lost += turns[start].counts
            stop += 1
        start = stop
        if settings.observations == "changes":  # from pages that the next row does not show
            prompt.known = None
            turns[start:] = _turns(recording, template, prompt, start)
    return EpisodeRows(tuple(rows), num_lost)


def _turns(
    recording: Recording, template: Template, prompt: EpisodePrompt, first: int = 0
) -> list[_Turn]:
    turns: list[_Turn] = []
    pages = [step.page for step in recording.steps]
    for number, step in enumerate(recording.steps[first:], start=first):
        actions = prompt.further_actions(step.page)
        shown = prompt.turn(prompt.observation(step.page), step.note, actions=actions)
        text, sources, read = step.reply, tuple[int, ...](), pages[: number + 1]
        if step.counts:
            if recording.thoughts != template.thoughts:
                text = rewritten(text, template.thoughts, goal=recording.goal, pages=read)
            sources = find_sources(text, recording.goal, read)
        blank = prompt.turn("", step.note)
        turns.append(_Turn(shown, blank, template.reply(text), step.counts, sources))
    return turns


def _kept(turns: Sequence[_Turn], start: int, stop: int) -> set[int]:
    """Return the numbers of the turns before `start` whose pages a row needs."""
    return {source for turn in turns[start:stop] for source in turn.sources if source < start}


def _first(opening: Sequence[int], turns: Sequence[_Turn], start: int, most: int) -> int:
    """Return the number of the first turn before `start` whose reply is in a row."""
    left, first = (most - len(opening)) // 2, start
    while first and (left := left - turns[first - 1].blank_size) >= 0:
        first -= 1
    return first


def _size(opening: Sequence[int], turns: Sequence[_Turn], start: int, stop: int, most: int) -> int:
    """Return the number of ids of the row that learns the replies of some turns."""
    first, kept = _first(opening, turns, start, most), _kept(turns, start, stop)
    before = sum(turns[number].size for number in kept)
    before += sum(turns[n].blank_size for n in range(first, start) if n not in kept)
    return len(opening) + before + sum(turn.size for turn in turns[start:stop])


def _row(
    opening: Sequence[int],
    turns: Sequence[_Turn],
    start: int,
    stop: int,
    most: int,
    template: Template,
) -> EpisodeRow:
    """Return the row that learns the replies of some turns."""
    ids, labels = list(opening), [IGNORED] * len(opening)
    replies: list[tuple[int, int]] = []
    first, kept = _first(opening, turns, start, most), _kept(turns, start, stop)
    for number in sorted({*kept, *range(first, stop)}):
        turn = turns[number]
        shown = turn.shown if number >= start or number in kept else turn.blank
        begin = len(ids) + len(shown)
        ids += [*shown, *turn.written]
        labels += [IGNORED] * (len(shown) + len(turn.written))
        if number >= start and turn.counts:
            num_text = len(turn.written) - len(template.separator)
            end = begin + num_text
            labels[begin : end + 1] = [*turn.written[:num_text], _end_of(template)]
            replies.append((begin, end + 1))
    return EpisodeRow(ids, labels, tuple(replies))


def _end_of(template: Template) -> int:
    """Return the id with which a model ends a reply: what the agent feeds then may be another."""
    first = template.separator[0]
    return first if first in template.end_ids else min(template.end_ids)


def split_held_out(
    recordings: Sequence[Recording], held_out: int | None
) -> tuple[list[Recording], list[Recording]]:
    """Return the recordings to learn and those to measure, which no order of files changes.

    Args:
        held_out: how many are measured; None: a tenth, and at least one.

    Raises:
        TrainError: nothing would be left to learn.
    """
    count = max(1, len(recordings) // 10) if held_out is None else held_out
    if count >= len(recordings):
        raise TrainError(
            f"{len(recordings)} recordings, and {count} of them are measured and not learned; "
            "record more, or lower --held-out"
        )
    ordered = sorted(recordings, key=lambda each: (zlib.crc32(each.key.encode()), each.key))
    return ordered[count:], ordered[:count]


def text_rows(path: Path, template: Template, *, length: int) -> tuple[list[Row], list[Row]]:
    """Return rows of a text to learn, and its last tenth to measure.

    Raises:
        TrainError: the file cannot be read as UTF-8, or is shorter than two rows.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise TrainError(f"--replay {path} cannot be read as UTF-8 text: {error}") from None
    ids = template.encode(text)
    rows = [
        Row(part, [IGNORED, *part[1:]])
        for part in (ids[start : start + length] for start in range(0, len(ids), length))
        if len(part) == length
    ]
    if len(rows) < 2:
        raise TrainError(
            f"--replay {path} has {len(ids)} tokens; expected {2 * length}, two rows, or more"
        )
    count = max(1, len(rows) // 10)
    return rows[:-count], rows[-count:]


def padded_length(length: int) -> int:
    """Return the length that a row is padded to: a multiple of a quarter of the power of two below,
    at least of 64 and at most of 256.

    Shapes are few because a CPU plans products in 16 bits anew for each, which takes seconds, and
    many enough that rows of 2,000 tokens have 6 % of padding, and of 300 tokens 10 % (our choice).
    """
    finest, coarsest = _PADDED
    step = min(max((1 << (length - 1).bit_length()) // 8, finest), coarsest)
    return -(-length // step) * step


def batch(
    rows: Sequence[Row], device: torch.device, *, first: int = 0, most: int | None
) -> tuple[Tensor, Tensor]:
    """Return ids and labels of some rows (rows, length), padded at their ends.

    Args:
        first: number of ids that are left out at the beginning of each row.
        most: positions of the model; None: any number.
    """
    length = padded_length(max(len(row.ids) for row in rows) - first)
    length = length if most is None else min(length, most - first)
    ids = torch.zeros(len(rows), length, dtype=torch.int64)
    labels = torch.full((len(rows), length), IGNORED)
    for number, row in enumerate(rows):
        size = len(row.ids) - first
        ids[number, :size] = torch.tensor(row.ids[first:])
        labels[number, :size] = torch.tensor(row.labels[first:])
    return ids.to(device), labels.to(device)


@dataclass(frozen=True, slots=True)
class Order:
    """The rows of each step, the same however often a training is stopped."""

    episodes: Sequence[Row]
    texts: Sequence[Row]
    num_rows: int
    """Rows of a step."""
    text_share: float
    seed: int

    def step(self, number: int) -> list[Row]:
        """Return the rows of a step."""
        first, rows = number * self.num_rows, []
        for index in range(first, first + self.num_rows):
            num_texts = int((index + 1) * self.text_share) if self.texts else 0
            is_text = num_texts > (int(index * self.text_share) if self.texts else 0)
            source, place = (
                (self.texts, num_texts - 1) if is_text else (self.episodes, index - num_texts)
            )
            rows.append(self._at(source, place))
        return rows

    def _at(self, source: Sequence[Row], place: int) -> Row:
        """Return the row at a place in the endless order: pass after pass, each shuffled."""
        turn, index = divmod(place, len(source))
        order = list(range(len(source)))
        random.Random(f"{self.seed}/{turn}").shuffle(order)
        return source[order[index]]


def in_batches(rows: Sequence[Row], device: torch.device) -> Iterator[list[Row]]:
    """Cut rows into what one forward takes: one row on a CPU, elsewhere all of them."""
    size = 1 if device.type == "cpu" else max(1, len(rows))
    for start in range(0, len(rows), size):
        yield list(rows[start : start + size])
