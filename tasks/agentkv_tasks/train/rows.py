"""Rows of token ids to train on: recordings as an agent feeds them, and general text."""

import random
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from agentkv.dialog.prompt import Template
from agentkv.dialog.reply import rewritten
from agentkv.models.prompts import EpisodePrompt
from agentkv.recordings import Recording
from agentkv.settings import ActingSettings
from agentkv_env.page import Page

IGNORED = -100
"""Label of an id that nobody learns to predict, as torch's cross entropy has it."""
_SHORTEST = 256
"""Length of the shortest padded row."""


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
    """A recorded episode."""

    replies: tuple[tuple[int, int], ...]
    """Start and stop of the labels of each reply that counts."""
    is_cut: bool
    """True if turns are left out at its end."""


def episode_row(
    recording: Recording, template: Template, settings: ActingSettings, *, most: int
) -> EpisodeRow:
    """Return a recording as an agent feeds it: the opening, then pages and replies in turn.

    The labels are the replies that count, each with the id that ends it. The episode ends after the
    last turn that fits into `most` ids.

    Args:
        settings: those of observations count.
    """
    prompt = EpisodePrompt(template, settings, recording.goal, seed=0)
    ids = prompt.opening(recording.goal)
    labels, pages = [IGNORED] * len(ids), list[Page]()
    replies: list[tuple[int, int]] = []
    for step in recording.steps:
        pages.append(step.page)
        actions = prompt.further_actions(step.page)
        shown = prompt.turn(prompt.observation(step.page), step.note, actions=actions)
        text = step.reply
        if step.counts and recording.thoughts != template.thoughts:
            text = rewritten(text, template.thoughts, goal=recording.goal, pages=pages)
        written = template.reply(text)
        num_text = len(written) - len(template.separator)
        start = len(ids) + len(shown)
        if start + num_text + 1 > most:
            return EpisodeRow(ids, labels, tuple(replies), is_cut=True)
        ids += [*shown, *written]
        labels += [IGNORED] * (len(shown) + len(written))
        if step.counts:
            stop = start + num_text
            labels[start : stop + 1] = [*written[:num_text], _end_of(template)]
            replies.append((start, stop + 1))
    return EpisodeRow(ids, labels, tuple(replies), is_cut=False)


def _end_of(template: Template) -> int:
    """Return the id with which a model ends a reply: what the agent feeds then may be another."""
    first = template.separator[0]
    return first if first in template.end_ids else min(template.end_ids)


def split_held_out(
    recordings: Sequence[Recording], held_out: int | None
) -> tuple[list[Recording], list[Recording]]:
    """Return the recordings to learn and those to measure, which no order of files changes.

    Raises:
        TrainError: nothing would be left to learn.
    """
    count = held_out or max(1, len(recordings) // 10)
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
    """Return the length that a row is padded to: 256, 384, 512, 768, 1,024 and so on.

    Shapes are few because products in 16 bits are planned anew for each (our choice).
    """
    size = _SHORTEST
    while size < length:
        if size * 3 // 2 >= length:
            return size * 3 // 2
        size *= 2
    return size


def batch(rows: Sequence[Row], device: torch.device) -> tuple[Tensor, Tensor]:
    """Return ids and labels of some rows (rows, length), padded at their ends."""
    length = padded_length(max(len(row.ids) for row in rows))
    ids = torch.zeros(len(rows), length, dtype=torch.int64)
    labels = torch.full((len(rows), length), IGNORED)
    for number, row in enumerate(rows):
        ids[number, : len(row.ids)] = torch.tensor(row.ids)
        labels[number, : len(row.labels)] = torch.tensor(row.labels)
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
    size = 1 if device.type == "cpu" else len(rows)
    for start in range(0, len(rows), size):
        yield list(rows[start : start + size])
