"""Rows from recorded episodes: sampling, drawing a goal, augmentation and shortening."""

import gc
import hashlib
import random
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from agentkv.dialog.prompt import PlainTemplate
from agentkv_env.page import Page
from agentkv_env.serialize import neutralize
from train_nano.annotate import annotate
from train_nano.augment import vary
from train_nano.episode import (
    RecordedEpisode,
    TrainingRow,
    encode,
    encode_page,
    load,
    refuse_unseen_goals,
    stretch,
)
from train_nano.paraphrase import paraphrase

_KEPT_PLACES = 0.5
"""Share of the shortened rows whose pages keep the positions that they had in the whole row."""
_MIN_ODDS = 0.05
"""Sampling weight of a task without errors. The share of wrong replies is added to it."""
_PARAPHRASED = 0.5
"""Share of the rows of tasks whose goal is in other words than its template's."""


class Recordings:
    """All episodes of a folder's `*.jsonl.xz` files, in order of file name; false if empty.

    Args:
        folder: the folder; None for no episodes.

    Raises:
        ValueError: a goal is of the kind that training must not see.
    """

    def __init__(self, folder: Path | None) -> None:
        self.tasks: list[RecordedEpisode] = []
        self.random_walks: list[RecordedEpisode] = []
        digest = hashlib.sha256()
        # The collector would visit the nodes of all pages again and again, now and in training.
        gc.disable()
        try:
            for path in sorted(folder.glob("*.jsonl.xz") if folder else ()):
                digest.update(path.read_bytes())
                episodes = self.random_walks if path.name.startswith("stroll") else self.tasks
                for episode in filter(is_grounded, load(path)):
                    refuse_unseen_goals(episode)
                    episodes.append(episode)
            gc.freeze()
        finally:
            gc.enable()
        self.digest = digest.hexdigest()
        """SHA-256 of the content of all files."""
        self._by_task: dict[str, list[RecordedEpisode]] = {}
        for episode in self.tasks:
            self._by_task.setdefault(task_of(episode), []).append(episode)

    def __len__(self) -> int:
        return len(self.tasks) + len(self.random_walks)

    def has(self, kind: str) -> bool:
        """Return whether there are episodes of `kind`, "task" or "stroll" (a random walk)."""
        return bool(self.tasks if kind == "task" else self.random_walks)

    def row(
        self,
        kind: str,
        rng: random.Random,
        template: PlainTemplate,
        *,
        max_tokens: int,
        thinned: float,
        wrong: Mapping[str, float],
    ) -> TrainingRow:
        """Draw an episode of `kind` and encode a variant of at most about `max_tokens` tokens.

        Args:
            thinned: probability that the variant's pages lose elements.
            wrong: share of wrong replies by task. Tasks with few errors are drawn less often.
        """
        drawn = self._draw_task(rng, wrong) if kind == "task" else rng.choice(self.random_walks)
        episode = vary(draw_goal(drawn, rng), rng, thinned=thinned)
        if kind == "task" and rng.random() < _PARAPHRASED:
            other = paraphrase(episode, rng)
            episode = other if is_grounded(other) else episode
        encoded: dict[tuple[int, str], list[int]] = {}  # keyed by the identity of pages
        shortened = shorten(episode, rng, template, max_tokens=max_tokens, known=encoded)
        row = encode(template, annotate(shortened), known=encoded)
        if rng.random() < _KEPT_PLACES:
            row = _keep_places(row, template, episode, shortened, encoded)
        return replace(row, task=task_of(drawn))

    def _draw_task(self, rng: random.Random, wrong: Mapping[str, float]) -> RecordedEpisode:
        """Draw a task, then one of its episodes: suites differ in the number of recorded worlds."""
        odds = [_MIN_ODDS + wrong.get(task, 1.0) for task in self._by_task]
        [task] = rng.choices(list(self._by_task), odds)
        return rng.choice(self._by_task[task])

    def page(self, rng: random.Random) -> tuple[str, Page]:
        """Draw a variant of an episode and return its goal and one of its pages."""
        drawn = draw_goal(rng.choice(self.tasks or self.random_walks), rng)
        episode = vary(drawn, rng, thinned=0.0)
        return episode.goal, rng.choice(episode.turns).page


def _keep_places(
    row: TrainingRow,
    template: PlainTemplate,
    whole: RecordedEpisode,
    shortened: RecordedEpisode,
    encoded: Mapping[tuple[int, str], list[int]],
) -> TrainingRow:
    """Leave gaps in the positions where `shortened` has lost tokens of the pages of `whole`.

    Args:
        encoded: the encoded pages of both, as `encode` fills it.
    """
    gaps = [0]
    for before, after in zip(whole.turns, shortened.turns, strict=True):
        lengths = [len(encoded[id(turn.page), turn.note]) for turn in (before, after)]
        gaps.append(lengths[0] - lengths[1])
    return stretch(row, template.turn("")[0], gaps)


def draw_goal(episode: RecordedEpisode, rng: random.Random) -> RecordedEpisode:
    """Return `episode` with one of its goals and without paraphrases."""
    return replace(episode, goal=rng.choice(episode.goals), paraphrases=())


def task_of(episode: RecordedEpisode) -> str:
    """Return the suite, category and number of the task that `episode` solves."""
    return episode.name.partition("/")[2]


def is_grounded(episode: RecordedEpisode) -> bool:
    """Return whether every typed or answered text was in the goal or on a page before.

    OCR misses some texts that solutions know. Training on such an episode would teach guessing.
    """
    read = neutralize(episode.goal).lower()
    for turn in episode.turns:
        nodes = turn.page.nodes
        read += "\n" + "\n".join(
            neutralize(" ".join((node.name, node.value, *node.options))) for node in nodes
        )
        read = read.lower()
        for part in _copied_text("", turn.reply).split(", "):
            text = neutralize(part).lower()
            if text != "n/a" and text not in read and any(w not in read for w in text.split()):
                return False
    return True


def shorten(
    episode: RecordedEpisode,
    rng: random.Random,
    template: PlainTemplate,
    *,
    max_tokens: int,
    known: dict[tuple[int, str], list[int]],
) -> RecordedEpisode:
    """Empty random pages until `episode` has about `max_tokens` tokens.

    Pages whose annotated replies note a fact for a later step stay, and so does the last page.

    Args:
        known: cache of encoded pages, as for `encode`; mutated.
    """
    left = len(encode(template, episode, known=known).ids) - max_tokens
    unneeded = [
        index
        for index, turn in enumerate(annotate(episode).turns[:-1])
        if turn.page.nodes and not turn.reply.startswith("read ")
    ]
    rng.shuffle(unneeded)
    turns = list(episode.turns)
    while left > 0 and unneeded:
        index = unneeded.pop()
        turn = turns[index]
        # The reply names elements that are no longer visible, so it carries no weight.
        turns[index] = replace(turn, page=replace(turn.page, nodes=()), counts=False)
        known[id(turns[index].page), turn.note] = encode_page(
            template, turns[index].page, note=turn.note
        )
        left -= len(known[id(turn.page), turn.note]) - len(known[id(turns[index].page), turn.note])
    return replace(episode, turns=tuple(turns))


def _copied_text(goal: str, reply: str) -> str:
    """Return the text that `reply` types or answers, or an empty text if the goal contains it."""
    match = re.search(r"```(?:type \[\d+\]|stop) \[(.*?)\](?: \[[01]\])?```", reply)
    return match[1] if match and match[1] not in goal else ""
