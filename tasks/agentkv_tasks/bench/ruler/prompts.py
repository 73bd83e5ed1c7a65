"""Cases as token ids of a model: contexts that fill a length, and questions."""

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path
from random import Random

from agentkv.dialog.prompt import Template
from agentkv_tasks.bench.errors import BenchError
from agentkv_tasks.bench.ruler.tasks import LONG, TASKS, Case, Draw, Question
from agentkv_tasks.bench.stream import MOST_CHARACTERS

SPARE_TOKENS = 16
"""Tokens of a reply beside twice those that are expected (our choice)."""


@dataclass(frozen=True, slots=True)
class AskedQuestion:
    """A question with its ids."""

    question: Question
    ids: tuple[int, ...]
    """The question, up to where the model continues the reply."""
    num_reply: int
    """Most tokens of a reply."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """A case with its ids."""

    opening: tuple[int, ...]
    """What stands before the context."""
    context: tuple[int, ...]
    questions: tuple[AskedQuestion, ...]

    @property
    def digest(self) -> str:
        """SHA-256 of all ids in decimal."""
        parts = (self.opening, self.context, *(each.ids for each in self.questions))
        text = "\n".join(",".join(map(str, part)) for part in parts)
        return hashlib.sha256(text.encode()).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class Spot:
    """What decides a case, beside the model that reads it."""

    task: str
    length: int
    """Most tokens of the context, all questions and all replies."""
    seed: int
    number: int
    """Number of the case among those that are alike."""
    num_questions: int


class Prompts:
    """Makes the cases of a measurement for the model of a template.

    Args:
        text: file of the text around needles; None: there are no such tasks.
        num_samples: cases of each task and length; every one has its own part of the text.

    Raises:
        BenchError: the file cannot be read.
    """

    def __init__(self, template: Template, *, text: Path | None, num_samples: int) -> None:
        self._template, self._num_samples, self._text = template, num_samples, text
        self._sentences = [] if text is None else sentences_of(text)

    def make(self, spot: Spot) -> Prompt:
        """Return the case with the largest context that `length` has tokens for.

        Raises:
            BenchError: the smallest case is longer, or the largest one shorter.
        """
        task = TASKS[spot.task]
        low, most = task.least, task.most
        if task.in_text:
            most = len(self._section(spot.number))
        self.require_room(spot)
        high = 2 * low
        while high <= most and self._drawn(spot, high)[1] <= spot.length:
            low, high = high, 2 * high
        if high > most:
            high = most + 1
        while high - low > 1:
            middle = (low + high) // 2
            if self._drawn(spot, middle)[1] <= spot.length:
                low = middle
            else:
                high = middle
        prompt, num_tokens = self._drawn(spot, low)
        if low == most:
            raise self._too_long(spot, num_tokens)
        return prompt

    def require_room(self, spot: Spot) -> None:
        """Check that the smallest case has room.

        Raises:
            BenchError: it has not; the message says what it needs.
        """
        _, num_tokens = self._drawn(spot, TASKS[spot.task].least)
        if num_tokens > spot.length:
            raise BenchError(
                f"--lengths {spot.length}: {spot.task} with its questions and replies takes at "
                f"least {num_tokens} tokens; give a longer one, fewer --questions, or other --tasks"
            )

    def require_text(self, length: int) -> None:
        """Check that the text has `length` tokens for each sample.

        Raises:
            BenchError: it has not; the message says how many samples fit.
        """
        counts = [
            self._template.count(" ".join(self._section(number))[: length * MOST_CHARACTERS])
            for number in range(self._num_samples)
        ]
        if min(counts) < length:
            fit = sum(counts) // length
            raise BenchError(
                f"--text {self._text} is too short for {self._num_samples} samples of {length} "
                f"tokens that do not overlap: about {fit} fit; give fewer --samples, shorter "
                "--lengths, or a longer file"
            )

    def _too_long(self, spot: Spot, num_tokens: int) -> BenchError:
        return BenchError(
            f"--lengths {spot.length}: {spot.task} has different words for {num_tokens} tokens "
            "only; give a shorter one, or other --tasks"
        )

    def _section(self, number: int) -> list[str]:
        """Return the part of the text that belongs to a sample."""
        count, total = self._num_samples, len(self._sentences)
        return self._sentences[number * total // count : (number + 1) * total // count]

    def _drawn(self, spot: Spot, size: int) -> tuple[Prompt, int]:
        """Return a case of a size, and its tokens with those of all replies."""
        task = TASKS[spot.task]
        draw = Draw(
            rng=Random(f"{spot.seed} {spot.task} {spot.length} {spot.number}"),
            size=size,
            num_questions=spot.num_questions,
            is_long=spot.length >= LONG,
            sentences=self._section(spot.number) if task.in_text else None,
        )
        prompt = self._encoded(task.draw(draw))
        num_asked = sum(
            len(each.ids) + each.num_reply + len(self._template.separator)
            for each in prompt.questions
        )
        return prompt, len(prompt.opening) + len(prompt.context) + num_asked

    def _encoded(self, case: Case) -> Prompt:
        template = self._template
        return Prompt(
            opening=tuple(template.opening(case.intro)),
            context=tuple(template.encode(f"{case.context}\n\n")),
            questions=tuple(map(self._asked, case.questions)),
        )

    def _asked(self, question: Question) -> AskedQuestion:
        template = self._template
        ids = template.encode(question.asks) + template.turn("") + template.encode(question.starts)
        num_expected = sum(map(template.count, question.expected))
        return AskedQuestion(question, tuple(ids), SPARE_TOKENS + 2 * num_expected)


_SENTENCE_END = re.compile(r"(?<=[.!?])\s+")


def sentences_of(path: Path) -> list[str]:
    """Return the sentences of a text file, without headings such as those of WikiText.

    Raises:
        BenchError: the file cannot be read.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BenchError(f"--text {path} cannot be read: {error}") from error
    lines = [line.strip() for line in text.splitlines()]
    return [
        sentence
        for line in lines
        if line and not line.startswith(("=", "#"))
        for sentence in _SENTENCE_END.split(line)
    ]
