"""Recorded episodes, as rows: drawn, varied, and cut to a length."""

import hashlib
import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from agentkv.dialog.prompt import PlainTemplate
from agentkv_env.page import Page
from agentkv_env.serialize import neutralize
from train_nano.annotate import annotated
from train_nano.augment import vary
from train_nano.episode import Episode, Row, encode, load

_EASIEST = 0.05
"""How often a task is drawn of which everything is right; one of which nothing is right, once."""


class Recordings:
    """All episodes in a folder's `*.jsonl.xz`, by file name. False when there is none."""

    def __init__(self, folder: Path) -> None:
        self.tasks: list[Episode] = []
        self.strolls: list[Episode] = []
        digest = hashlib.sha256()
        for path in sorted(folder.glob("*.jsonl.xz")):
            digest.update(path.read_bytes())
            into = self.strolls if path.name.startswith("stroll") else self.tasks
            into += filter(is_founded, load(path))
        self.digest = digest.hexdigest()
        """SHA-256 of the files' bytes."""

    def __len__(self) -> int:
        return len(self.tasks) + len(self.strolls)

    def has(self, kind: str) -> bool:
        """Whether there are any of `kind`: "task" or "stroll"."""
        return bool(self.tasks if kind == "task" else self.strolls)

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
        """A variant of one episode of `kind`, of at most about `max_tokens` tokens.

        Args:
            wrong: by task, the share of its replies that came out wrong lately. Of what is all but
                learnt less is drawn.
        """
        episodes = self.tasks if kind == "task" else self.strolls
        odds = [_EASIEST + wrong.get(task_of(episode), 1.0) for episode in episodes]
        [drawn] = rng.choices(episodes, odds)
        episode = vary(drawn, rng, thinned=thinned)
        seen: dict[tuple[int, str], list[int]] = {}
        kept = [episode]  # `seen` goes by identity
        while len(encode(template, kept[-1], known=seen).ids) > max_tokens:
            shorter = shorten(kept[-1], rng)
            if shorter is None:
                break
            kept.append(shorter)
        row = encode(template, annotated(kept[-1]), known=seen)
        return replace(row, task=task_of(drawn))

    def page(self, rng: random.Random) -> tuple[str, Page]:
        """The goal and one page of a variant of some episode."""
        episode = vary(rng.choice(self.tasks or self.strolls), rng, thinned=0.0)
        return episode.goal, rng.choice(episode.turns).page


def task_of(episode: Episode) -> str:
    """The task that `episode` solves, in whatever world: its category and number."""
    return episode.name.partition("/")[2]


def is_founded(episode: Episode) -> bool:
    """Whether all that is typed and answered was read before, in the goal or on a page.

    OCR misses some of what solutions know; who learns from such an episode learns to guess.
    """
    read = neutralize(episode.goal).lower()
    for turn in episode.turns:
        nodes = turn.page.nodes
        read += "\n" + "\n".join(
            neutralize(" ".join((node.name, node.value, *node.options))) for node in nodes
        )
        read = read.lower()
        for part in _copied("", turn.reply).split(", "):
            text = neutralize(part).lower()
            if text != "n/a" and text not in read and any(w not in read for w in text.split()):
                return False
    return True


def shorten(episode: Episode, rng: random.Random) -> Episode | None:
    """`episode` with one page emptied that no later reply needs; None when there is none left."""
    said = [_copied(episode.goal, turn.reply) for turn in episode.turns]
    free = [
        index
        for index, turn in enumerate(episode.turns[:-1])
        if turn.page.nodes and not _holds(turn.page.nodes, said[index + 1 :])
    ]
    if not free:
        return None
    chosen = rng.choice(free)
    turns = list(episode.turns)
    # Its reply names what can no longer be seen, so it is not learnt from.
    page = replace(turns[chosen].page, nodes=())
    turns[chosen] = replace(turns[chosen], page=page, counts=False)
    return replace(episode, turns=tuple(turns))


def _copied(goal: str, reply: str) -> str:
    """What `reply` types or answers that the goal does not say; empty for none."""
    match = re.search(r"```(?:type \[\d+\]|stop) \[(.*?)\](?: \[[01]\])?```", reply)
    return match[1] if match and match[1] not in goal else ""


def _holds(nodes: Sequence[object], texts: Sequence[str]) -> bool:
    names = [getattr(node, "name", "") for node in nodes]
    return any(text and any(text in name or name in text for name in names) for text in texts)
