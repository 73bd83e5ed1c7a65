"""Episodes as text, and as the rows of token ids a model is trained on."""

import json
import lzma
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from agentkv.dialog.prompt import PlainTemplate
from agentkv_env.page import Box, Node, Page
from agentkv_env.serialize import serialize


@dataclass(frozen=True, slots=True)
class Turn:
    """One page, and what should be written on seeing it."""

    page: Page
    reply: str
    note: str = ""
    """The harness's word before the page: the error of the last action."""
    counts: bool = True
    """Whether the reply is to be learnt; a mistake that is put right afterwards is not."""


@dataclass(frozen=True, slots=True)
class Episode:
    """A goal and the turns that reach it."""

    goal: str
    turns: tuple[Turn, ...]
    name: str = ""
    """Which template and world it comes from."""


@dataclass(slots=True)
class Row:
    """One row for the model. Lists are of equal length, one entry per token."""

    ids: list[int]
    weights: list[float]
    """How much the prediction *of* this token counts; 0 for most of what is read."""
    positions: list[int]
    """Where the token stands; may skip ahead, never goes back."""
    kind: str = ""
    """What it was drawn as: `mixture.STAGES` has the names."""
    task: str = ""
    """Of a recorded episode, which task it solves, of whatever world: its category and number."""


def encode(
    template: PlainTemplate,
    episode: Episode,
    *,
    budget: int | None = None,
    page_weight: float = 0.0,
    known: dict[tuple[int, str], list[int]] | None = None,
) -> Row:
    """`episode` as the agent would feed it: goal, then page and reply in turn.

    Args:
        budget: tokens a page may take, as the agent's observations are cut.
        page_weight: weight of predicting the tokens of goal and pages; replies count 1.
        known: the ids of pages encoded before, by `id(page)` and note; mutated. For who encodes an
            episode several times, each time with fewer pages.
    """
    known = {} if known is None else known
    ids = template.opening(episode.goal)
    weights = [page_weight] * len(ids)
    for turn in episode.turns:
        seen = known.get((id(turn.page), turn.note))
        if seen is None:
            seen = encode_page(template, turn.page, note=turn.note, budget=budget)
            known[id(turn.page), turn.note] = seen
        said = template.reply(turn.reply)
        ids += seen + said
        weights += [page_weight] * len(seen) + [float(turn.counts)] * len(said)
    return Row(ids, weights, list(range(len(ids))))


def encode_page(
    template: PlainTemplate, page: Page, *, note: str = "", budget: int | None = None
) -> list[int]:
    """The ids of one page, up to where a reply begins."""
    text = serialize(page, layout="after", budget=budget, count=template.count).text
    return template.turn(text, note)


def stretch(row: Row, page_id: int, gaps: Iterable[int]) -> Row:
    """`row` with the k-th `gaps` entry added to the positions from the k-th page on.

    So short rows teach long distances: what is skipped stands for pages that are not there.
    """
    gap = iter(gaps)
    positions, offset = [], 0
    for token, position in zip(row.ids, row.positions, strict=True):
        if token == page_id:
            offset += next(gap, 0)
        positions.append(position + offset)
    return replace(row, positions=positions)


def texts(episode: Episode) -> list[str]:
    """Every different text in `episode`."""
    found: list[str] = []

    def keep(text: str) -> str:
        found.append(text)
        return text

    mapped(episode, keep)
    return found


def mapped(episode: Episode, change: Callable[[str], str]) -> Episode:
    """`episode` with `change` applied to every text in it; once to each, for pages are alike."""
    change = cache(change)

    def node(old: Node) -> Node:
        return replace(
            old,
            name=change(old.name),
            value=change(old.value),
            options=tuple(map(change, old.options)),
        )

    def page(old: Page) -> Page:
        return replace(
            old,
            url=change(old.url),
            title=change(old.title),
            nodes=tuple(map(node, old.nodes)),
            tabs=tuple(map(change, old.tabs)),
            notices=tuple(map(change, old.notices)),
        )

    turns = tuple(
        replace(turn, page=page(turn.page), reply=change(turn.reply), note=change(turn.note))
        for turn in episode.turns
    )
    return replace(episode, goal=change(episode.goal), turns=turns)


# ---- on disk: one JSON object a line, packed: pages of a world are much alike ----------------


def save(episodes: Iterable[Episode], path: Path) -> None:
    """Write `episodes` to `path` (`.jsonl.xz`), replacing it."""
    with lzma.open(path, "wt", encoding="utf-8", preset=9 | lzma.PRESET_EXTREME) as file:
        for episode in episodes:
            file.write(json.dumps(to_json(episode), ensure_ascii=False) + "\n")


def load(path: Path) -> Iterator[Episode]:
    """The episodes in `path`, in order."""
    with lzma.open(path, "rt", encoding="utf-8") as file:
        for line in file:
            yield from_json(json.loads(line))


def to_json(episode: Episode) -> dict[str, Any]:
    """`episode` as plain JSON values; fields at their defaults are left out of nodes."""
    return {
        "goal": episode.goal,
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


def from_json(values: dict[str, Any]) -> Episode:
    """The episode `to_json` wrote."""
    turns = tuple(
        Turn(_page_from_json(turn["page"]), turn["reply"], turn["note"], turn["counts"])
        for turn in values["turns"]
    )
    return Episode(values["goal"], turns, values["name"])


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
