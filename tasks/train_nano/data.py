"""Rows from recorded episodes: sampling, drawing a goal, augmentation and shortening."""

import hashlib
import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from agentkv.dialog.prompt import PlainTemplate
from agentkv_env.page import Page
from agentkv_env.serialize import neutralize
from train_nano.annotate import annotate
from train_nano.augment import vary
from train_nano.episode import Episode, Row, encode, load, refuse_unseen_goals, stretch

_KEPT_PLACES = 0.5
"""Share of the shortened rows whose pages keep the positions that they had in the whole row."""
_MIN_ODDS = 0.05
"""Sampling weight of a task without errors. The share of wrong replies is added to it."""


class Recordings:
    """All episodes of a folder's `*.jsonl.xz` files, in order of file name; false if empty.

    Raises:
        ValueError: a goal is of the kind that training must not see.
    """

    def __init__(self, folder: Path) -> None:
        self.tasks: list[Episode] = []
        self.random_walks: list[Episode] = []
        digest = hashlib.sha256()
        for path in sorted(folder.glob("*.jsonl.xz")):
            digest.update(path.read_bytes())
            episodes = self.random_walks if path.name.startswith("stroll") else self.tasks
            for episode in filter(is_grounded, load(path)):
                refuse_unseen_goals(episode)
                episodes.append(episode)
        self.digest = digest.hexdigest()
        """SHA-256 of the content of all files."""

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
    ) -> Row:
        """Draw an episode of `kind` and encode a variant of at most about `max_tokens` tokens.

        Args:
            thinned: probability that the variant's pages lose elements.
            wrong: share of wrong replies by task. Tasks with few errors are drawn less often.
        """
        episodes = self.tasks if kind == "task" else self.random_walks
        odds = [_MIN_ODDS + wrong.get(task_of(episode), 1.0) for episode in episodes]
        [drawn] = rng.choices(episodes, odds)
        episode = vary(draw_goal(drawn, rng), rng, thinned=thinned)
        encoded: dict[tuple[int, str], list[int]] = {}
        # `encoded` is keyed by the identity of pages, so all versions must stay alive.
        versions = [episode]
        while len(encode(template, versions[-1], known=encoded).ids) > max_tokens:
            shorter = empty_page(versions[-1], rng)
            if shorter is None:
                break
            versions.append(shorter)
        row = encode(template, annotate(versions[-1]), known=encoded)
        if rng.random() < _KEPT_PLACES:
            row = _keep_places(row, template, episode, versions[-1], encoded)
        return replace(row, task=task_of(drawn))

    def page(self, rng: random.Random) -> tuple[str, Page]:
        """Draw a variant of an episode and return its goal and one of its pages."""
        drawn = draw_goal(rng.choice(self.tasks or self.random_walks), rng)
        episode = vary(drawn, rng, thinned=0.0)
        return episode.goal, rng.choice(episode.turns).page


def _keep_places(
    row: Row,
    template: PlainTemplate,
    whole: Episode,
    shortened: Episode,
    encoded: Mapping[tuple[int, str], list[int]],
) -> Row:
    """Leave gaps in the positions where `shortened` has lost tokens of the pages of `whole`.

    Args:
        encoded: the encoded pages of both, as `encode` fills it.
    """
    gaps = [0]
    for before, after in zip(whole.turns, shortened.turns, strict=True):
        lengths = [len(encoded[id(turn.page), turn.note]) for turn in (before, after)]
        gaps.append(lengths[0] - lengths[1])
    return stretch(row, template.turn("")[0], gaps)


def draw_goal(episode: Episode, rng: random.Random) -> Episode:
    """Return `episode` with one of its goals and without paraphrases."""
    return replace(episode, goal=rng.choice(episode.goals), paraphrases=())


def task_of(episode: Episode) -> str:
    """Return the suite, category and number of the task that `episode` solves."""
    return episode.name.partition("/")[2]


def is_grounded(episode: Episode) -> bool:
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


def empty_page(episode: Episode, rng: random.Random) -> Episode | None:
    """Empty a random page that no later reply needs; return None if no such page is left."""
    copied = [_copied_text(episode.goal, turn.reply) for turn in episode.turns]
    unneeded = [
        index
        for index, turn in enumerate(episode.turns[:-1])
        if turn.page.nodes and not _contains_any(turn.page.nodes, copied[index + 1 :])
    ]
    if not unneeded:
        return None
    chosen = rng.choice(unneeded)
    turns = list(episode.turns)
    # The reply names elements that are no longer visible, so it carries no weight.
    page = replace(turns[chosen].page, nodes=())
    turns[chosen] = replace(turns[chosen], page=page, counts=False)
    return replace(episode, turns=tuple(turns))


def _copied_text(goal: str, reply: str) -> str:
    """Return the text that `reply` types or answers, or an empty text if the goal contains it."""
    match = re.search(r"```(?:type \[\d+\]|stop) \[(.*?)\](?: \[[01]\])?```", reply)
    return match[1] if match and match[1] not in goal else ""


def _contains_any(nodes: Sequence[object], texts: Sequence[str]) -> bool:
    names = [getattr(node, "name", "") for node in nodes]
    return any(text and any(text in name or name in text for name in names) for text in texts)
