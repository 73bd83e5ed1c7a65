"""Task templates: functions that draw tasks from a world.

    def buy_named_product(draw: Draw) -> Draft:
        product = draw.rng.choice(draw.world.shop.products)
        return Draft(
            wordings=("Put {{product}} into the cart.", "I need {{product}} in my cart.", ...),
            unseen_wording="I am out of {{product}}. Could you put one into my cart?",
            values={"product": product.name},
            start="__SHOPPING__",
            check=shows("__SHOPPING__/cart", "", must_include=[product.name]),
            solution=[f"type [textbox: Search] [{product.name}] [1]", ..., "stop []"],
        )

    TEMPLATES = (TaskTemplate(buy_named_product, 2), ...)

The number is the number of tasks. A plain pair `(buy_named_product, 2)` works as well.
"""

import random
import re
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, NamedTuple

from agentkv_tasks.task import CATEGORIES, Category, Evaluation, PageCheck, References, Task

if TYPE_CHECKING:
    from agentkv_env.sites.world import World

_SITES = {
    "__SHOPPING__": "shopping",
    "__CLASSIFIEDS__": "classifieds",
    "__REDDIT__": "reddit",
    "__WIKIPEDIA__": "wikipedia",
    "__HOMEPAGE__": "homepage",
}
Wording = Literal["seen", "unseen"]
"""`seen` draws one of `Draft.wordings`; `unseen` is `Draft.unseen_wording`."""

_MAX_DRAWS = 200  # more than enough for distinct draws from ten or more choices


@dataclass(frozen=True, slots=True)
class Draw:
    """Input of a template: the world and a random generator for this instance."""

    world: "World"
    rng: random.Random
    instance: int = 0
    """0 for the template's first task, 1 for its second, ..."""


@dataclass(frozen=True, slots=True)
class Draft:
    """Output of a template; `instantiate` numbers it and makes it a task."""

    wordings: Sequence[str]
    """Goals in plain English that all ask for the same; a task has one of them. `{{name}}` stands
    for `values["name"]`."""
    check: Evaluation
    solution: Sequence[str]
    """Steps; `stop []` follows where the last one is no `stop`."""
    start: str
    """Start address such as `__SHOPPING__/...`, or several joined by ` |AND| `."""
    values: Mapping[str, str | int] = field(default_factory=dict)
    unseen_wording: str = ""
    """A goal of a kind that training never sees: a polite request (`Could you ...?`)."""
    difficulty: Literal["easy", "medium", "hard"] = "easy"
    reads_image: bool = False
    turns_on: str = ""
    """Text inside an image that the solution needs; required with `reads_image`."""
    memory_distance_pages: int = 0
    needs: Sequence[str] = ()
    """Texts that the solution takes from pages, not from the goal, in order of use."""
    sites: Sequence[str] = ()
    """VisualWebArena's names of the sites; by default the sites in start, check and solution."""


class TaskTemplate(NamedTuple):
    """A function that makes a draft from a draw, and its number of tasks in a suite."""

    make: Callable[[Draw], Draft]
    num_instances: int = 1


# ---- evaluations ----------------------------------------------------------------------------


def says(
    *,
    exact_match: str | None = None,
    must_include: Sequence[str] | None = None,
    must_exclude: Sequence[str] | None = None,
    one_of: Sequence[str] | None = None,
    required_values: Sequence[str] | None = None,
    fuzzy_match: str | None = None,
) -> Evaluation:
    """Require comparisons of the final answer (string_match)."""
    references = References(
        exact_match=exact_match,
        must_include=_tuple(must_include),
        must_exclude=_tuple(must_exclude),
        one_of=_tuple(one_of),
        required_values=_tuple(required_values),
        fuzzy_match=fuzzy_match,
    )
    return Evaluation(eval_types=("string_match",), reference_answers=references)


def reaches(url: str, *, note: Literal["EXACT", "GOLD in PRED"] = "EXACT") -> Evaluation:
    """Require the episode to end at `url` (url_match); ` |OR| ` separates alternatives."""
    return Evaluation(eval_types=("url_match",), reference_url=url, url_note=note)


def shows(
    url: str,
    locator: str = "",
    *,
    exact_match: str | None = None,
    must_include: Sequence[str] | None = None,
    must_exclude: Sequence[str] | None = None,
    required_values: Sequence[str] | None = None,
) -> Evaluation:
    """Require contents of a page after the episode (program_html).

    VisualWebArena's scoring applies only the first comparison; use two checks for two comparisons.

    Args:
        url: address of the page, or `last` for the agent's last page.
        locator: selects a part of the page; the whole page by default.
    """
    contents = References(
        exact_match=exact_match,
        must_include=_tuple(must_include),
        must_exclude=_tuple(must_exclude),
        required_values=_tuple(required_values),
    )
    target = PageCheck(url=url, locator=locator, required_contents=contents)
    return Evaluation(eval_types=("program_html",), program_html=(target,))


def text(selector: str) -> str:
    """Return JavaScript for the text of the first element that matches `selector`."""
    return f"document.querySelector('{selector}').innerText"


def texts(selector: str, between: str = " | ") -> str:
    """Return JavaScript for the texts of all elements that match `selector`, joined."""
    return f"[...document.querySelectorAll('{selector}')].map(e => e.innerText).join('{between}')"


def all_of(*checks: Evaluation) -> Evaluation:
    """Require all of `checks`: any number of page checks, at most one answer and one address."""
    kinds = tuple(dict.fromkeys(kind for check in checks for kind in check.eval_types))
    answers = [check.reference_answers for check in checks if check.reference_answers]
    urls = [check for check in checks if check.reference_url]
    assert len(answers) <= 1 and len(urls) <= 1, "at most one answer and one address"
    pages = tuple(target for check in checks for target in check.program_html or ())
    return Evaluation(
        eval_types=kinds,
        reference_answers=answers[0] if answers else None,
        reference_url=urls[0].reference_url if urls else None,
        url_note=urls[0].url_note if urls else None,
        program_html=pages or None,
    )


def _tuple(values: Sequence[str] | None) -> tuple[str, ...] | None:
    assert not isinstance(values, str), f"expected a list of strings: {values!r}"
    return None if values is None else tuple(values)


# ---- instantiation --------------------------------------------------------------------------


def instantiate(
    world: "World",
    templates: Iterable[TaskTemplate | tuple[Callable[[Draw], Draft], int]],
    seed: int,
    *,
    category: Category | None = None,
    first_id: int = 0,
    first_template_id: int = 0,
    wording: Wording = "seen",
    max_steps: int = 30,
) -> list[Task]:
    """Make all tasks of `templates`, numbered in order from `first_id`.

    Each instance has its own random generator, seeded from `seed`, the template's name and the
    instance. Adding or reordering templates therefore does not change the tasks of the others. If
    two instances of a template have the same values, the later one is drawn again. The wording
    changes nothing but the goal.
    """
    tasks: list[Task] = []
    for template_id, (make, num_instances) in enumerate(templates, start=first_template_id):
        drafts: list[Draft] = []
        for instance in range(num_instances):
            draft, wordings = _draw_distinct(make, world, seed, instance, drafts)
            drafts.append(draft)
            if wording == "unseen":
                wordings = [draft.unseen_wording]
            task_id = first_id + len(tasks)
            tasks.append(_make_task(draft, wordings, task_id, template_id, category, max_steps))
    return tasks


Templates = Mapping[Category, Sequence[TaskTemplate | tuple[Callable[[Draw], Draft], int]]]
"""Templates by category; categories without templates may be omitted."""


@dataclass(frozen=True, slots=True)
class NamedSuite:
    """A suite of the package; its tasks are drawn from a world."""

    about: str
    tasks: Callable[["World"], list[Task]]
    is_held_out: bool = False
    """Training must not see the suite, and nano's recorder refuses it."""
    has_solutions: bool = True
    """Whether every task has a solution. MiniWoB++ has scripts instead."""


def suite(
    world: "World",
    templates: Templates,
    *,
    wording: Wording = "seen",
    max_steps: int = 30,
) -> list[Task]:
    """Make all tasks of a suite in `world`, category by category.

    Every world has the same templates, with its own names and values.
    """
    tasks: list[Task] = []
    num_templates = 0
    for category in CATEGORIES:
        of_category = templates.get(category, ())
        tasks += instantiate(
            world,
            of_category,
            world.seed,
            category=category,
            first_id=len(tasks),
            first_template_id=num_templates,
            wording=wording,
            max_steps=max_steps,
        )
        num_templates += len(of_category)
    return tasks


def _draw_distinct(
    make: Callable[[Draw], Draft],
    world: "World",
    seed: int,
    instance: int,
    taken: Sequence[Draft],
) -> tuple[Draft, list[str]]:
    """Draw a draft whose values differ from those in `taken`, and the order of its wordings."""
    name = f"{make.__module__.rpartition('.')[2]}.{make.__name__}"
    for attempt in range(_MAX_DRAWS):
        key = zlib.crc32(f"{seed} {name} {instance} {attempt}".encode())
        draft = make(Draw(world, random.Random(key), instance))
        if all(draft.values != other.values for other in taken):
            wordings = list(draft.wordings)
            random.Random(f"wording {key}").shuffle(wordings)
            return draft, wordings
    raise AssertionError(f"template {name} has fewer different tasks than requested")


def fill(intent: str, values: Mapping[str, str | int]) -> str:
    """Replace each `{{name}}` in `intent` by `values["name"]`."""

    def value(match: re.Match[str]) -> str:
        assert match[1] in values, f"the intent names {{{{{match[1]}}}}}, which values lacks"
        return str(values[match[1]])

    return re.sub(r"\{\{(\w+)\}\}", value, intent)


def _make_task(
    draft: Draft,
    wordings: Sequence[str],
    task_id: int,
    template_id: int,
    category: Category | None,
    max_steps: int,
) -> Task:
    """Make a task whose goal is the first of `wordings`."""
    solution = tuple(draft.solution)
    if not solution[-1].startswith("stop "):
        solution += ("stop []",)
    text = " ".join((draft.start, draft.check.model_dump_json(), *solution))
    goals = tuple(fill(wording, draft.values) for wording in wordings)
    sites = tuple(draft.sites) or tuple(name for mark, name in _SITES.items() if mark in text)
    return Task(
        sites=sites,
        task_id=task_id,
        start_url=draft.start,
        intent_template=wordings[0],
        intent_template_id=template_id,
        instantiation_dict=dict(draft.values),
        intent=goals[0],
        paraphrases=goals[1:],
        require_reset=draft.check.program_html is not None,
        eval=draft.check,
        visual_difficulty=draft.difficulty if draft.reads_image else "easy",
        reasoning_difficulty=draft.difficulty,
        overall_difficulty=draft.difficulty,
        category=category,
        max_steps=max_steps,
        solution=solution,
        reads_image=draft.reads_image,
        turns_on=draft.turns_on,
        memory_distance_pages=draft.memory_distance_pages,
        needs=tuple(draft.needs),
    )
