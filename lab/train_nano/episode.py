"""Episodes, their files, and their encoding as rows of token ids."""

import json
import lzma
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from agentkv.dialog.prompt import PlainTemplate
from agentkv_env.page import Box, Node, Page
from agentkv_env.serialize import serialize
from train_nano.wording import is_polite_request


@dataclass(frozen=True, slots=True)
class RecordedTurn:
    """A page and the reply to it."""

    page: Page
    reply: str
    note: str = ""
    """The agent's message before the page: the error of the last action."""
    counts: bool = True
    """Whether the model is trained on the reply; false for a mistake that is corrected later."""


@dataclass(frozen=True, slots=True)
class RecordedEpisode:
    """A goal and the turns that achieve it."""

    goal: str
    turns: tuple[RecordedTurn, ...]
    name: str = ""
    """World, suite, category and number of the template."""
    paraphrases: tuple[str, ...] = ()
    """Other goals that ask for the same; training draws one of them or `goal`."""

    @property
    def goals(self) -> tuple[str, ...]:
        """The goal and its paraphrases."""
        return self.goal, *self.paraphrases


@dataclass(slots=True)
class TrainingRow:
    """A training row; the sequences have one entry per token."""

    ids: Sequence[int]
    weights: Sequence[float]
    """Loss weight of predicting this token; 0 for most tokens of goals and pages."""
    positions: Sequence[int]
    """Position of each token; increasing, with possible gaps."""
    kind: str = ""
    """Kind of data, a key of `mixture.Stage.shares`."""
    task: str = ""
    """Suite, category and number of the task that a recorded episode solves, without the world."""


def encode(
    template: PlainTemplate,
    episode: RecordedEpisode,
    *,
    budget: int | None = None,
    page_weight: float = 0.0,
    known: dict[tuple[int, str], list[int]] | None = None,
) -> TrainingRow:
    """Encode `episode` as the agent feeds it: the goal, then pages and replies in turn.

    Args:
        budget: maximum tokens of a page, as for the agent's observations.
        page_weight: loss weight of the tokens of goal and pages; replies have weight 1.
        known: cache of encoded pages, keyed by `id(page)` and note; mutated. It saves time when
            several versions of an episode share pages.
    """
    known = {} if known is None else known
    ids = template.opening(episode.goal)
    weights = [page_weight] * len(ids)
    for turn in episode.turns:
        page = known.get((id(turn.page), turn.note))
        if page is None:
            page = encode_page(template, turn.page, note=turn.note, budget=budget)
            known[id(turn.page), turn.note] = page
        reply = template.reply(turn.reply)
        ids += page + reply
        weights += [page_weight] * len(page) + [float(turn.counts)] * len(reply)
    return TrainingRow(ids, weights, list(range(len(ids))))


def encode_page(
    template: PlainTemplate, page: Page, *, note: str = "", budget: int | None = None
) -> list[int]:
    """Encode one page up to the start of the reply."""
    text = serialize(page, layout="after", budget=budget, count=template.count).text
    return template.turn(text, note)


def stretch(row: TrainingRow, page_id: int, gaps: Iterable[int]) -> TrainingRow:
    """Increase all positions from the k-th page on by the k-th of `gaps`.

    The gaps stand for missing pages, so short rows train long distances.

    Args:
        page_id: the token that starts a page.
    """
    gap = iter(gaps)
    positions, offset = [], 0
    for token, position in zip(row.ids, row.positions, strict=True):
        if token == page_id:
            offset += next(gap, 0)
        positions.append(position + offset)
    return replace(row, positions=positions)


def all_texts(episode: RecordedEpisode) -> list[str]:
    """Return the distinct texts of `episode`, those of pages and replies before the goals."""
    found: dict[str, None] = {}
    for turn in episode.turns:
        page = turn.page
        found.update(dict.fromkeys((page.url, page.title)))
        for node in page.nodes:
            texts = (*node.options, *node.reveals, *node.cells)
            found.update(dict.fromkeys((node.name, node.value, *texts)))
        found.update(dict.fromkeys((*page.tabs, *page.notices, turn.reply, turn.note)))
    found.update(dict.fromkeys(episode.goals))
    return list(found)


def map_texts(episode: RecordedEpisode, change: Callable[[str], str]) -> RecordedEpisode:
    """Apply `change` to every text of `episode`, once per distinct text because pages repeat."""
    change = cache(change)

    def page(old: Page) -> Page:
        return replace(old.with_texts(change), url=change(old.url))

    turns = tuple(
        replace(turn, page=page(turn.page), reply=change(turn.reply), note=change(turn.note))
        for turn in episode.turns
    )
    goal, *paraphrases = map(change, episode.goals)
    return replace(episode, goal=goal, paraphrases=tuple(paraphrases), turns=turns)


# ---- files: one JSON object per line, compressed because the pages of a world are similar ------


def refuse_unseen_goals(episode: RecordedEpisode) -> None:
    """Raise an error if a goal is of the kind that only measures.

    Raises:
        ValueError: a goal is a polite request; the message quotes it.
    """
    for goal in filter(is_polite_request, episode.goals):
        raise ValueError(
            f"episode {episode.name!r} has the goal {goal!r}, a polite request; training must not "
            "see goals of this kind, so leave the episode out or reword its goal"
        )


def save(episodes: Iterable[RecordedEpisode], path: Path) -> None:
    """Write `episodes` to `path` (`.jsonl.xz`), replacing an existing file.

    Raises:
        ValueError: a goal is of the kind that training must not see.
    """
    episodes = list(episodes)
    for episode in episodes:
        refuse_unseen_goals(episode)
    with lzma.open(path, "wt", encoding="utf-8", preset=9 | lzma.PRESET_EXTREME) as file:
        for episode in episodes:
            file.write(json.dumps(to_json(episode), ensure_ascii=False) + "\n")


def load(path: Path) -> Iterator[RecordedEpisode]:
    """Yield the episodes in `path` in order."""
    with lzma.open(path, "rt", encoding="utf-8") as file:
        for line in file:
            yield from_json(json.loads(line))


def to_json(episode: RecordedEpisode) -> dict[str, Any]:
    """Convert `episode` to JSON values. Nodes omit fields with default values."""
    return {
        "goal": episode.goal,
        "paraphrases": episode.paraphrases,
        "name": episode.name,
        "turns": [
            {
                "page": _page_to_json(turn.page),
                "reply": turn.reply,
                "note": turn.note,
                "counts": turn.counts,
            }
            for turn in episode.turns
        ],
    }


def from_json(values: dict[str, Any]) -> RecordedEpisode:
    """Convert the JSON values of `to_json` back to an episode."""
    turns = tuple(
        RecordedTurn(_page_from_json(turn["page"]), turn["reply"], turn["note"], turn["counts"])
        for turn in values["turns"]
    )
    paraphrases = tuple(values.get("paraphrases", ()))  # absent in older files
    return RecordedEpisode(values["goal"], turns, values["name"], paraphrases)


def _page_to_json(page: Page) -> dict[str, Any]:
    nodes = []
    for node in page.nodes:
        box = node.box
        entry: dict[str, Any] = {
            "kind": node.kind,
            "role": node.role,
            "name": node.name,
            "box": [box.x, box.y, box.width, box.height],
        }
        if node.id is not None:
            entry["id"] = node.id
        if node.value:
            entry["value"] = node.value
        if node.options:
            entry["options"] = node.options
        if node.states:
            entry["states"] = node.states
        nodes.append(entry)
    return {
        "url": page.url,
        "title": page.title,
        "nodes": nodes,
        "tabs": page.tabs,
        "tab": page.tab,
        "pixels_above": page.pixels_above,
        "pixels_below": page.pixels_below,
        "notices": page.notices,
    }


def _page_from_json(values: dict[str, Any]) -> Page:
    nodes = tuple(
        Node(
            kind=entry["kind"],
            role=entry["role"],
            name=entry["name"],
            box=Box(*entry["box"]),
            id=entry.get("id"),
            value=entry.get("value", ""),
            options=tuple(entry.get("options", ())),
            states=tuple(entry.get("states", ())),
        )
        for entry in values["nodes"]
    )
    return Page(
        url=values["url"],
        title=values["title"],
        nodes=nodes,
        tabs=tuple(values["tabs"]),
        tab=values["tab"],
        pixels_above=values["pixels_above"],
        pixels_below=values["pixels_below"],
        notices=tuple(values["notices"]),
    )
