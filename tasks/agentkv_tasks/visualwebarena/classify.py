"""The kind of work of official tasks, which VisualWebArena does not record.

The rules are our choice. Most templates hold tasks of one kind; all tasks of a template get the
most frequent one. A task that cannot be done is scored by its answer alone, so it does not count.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Sequence

from agentkv_tasks.task import CATEGORIES, Category, Task
from agentkv_tasks.visualwebarena.official import OfficialTask

_SHOPS = re.compile(r"\bcart\b|wish ?list|compar|order", re.IGNORECASE)
_WRITES = re.compile(
    r"comment|vote|subscri|(?<!num_)review|address|newsletter|message|write|upload|sell"
    r"|\b(make|create|submit) (me )?a(nother)? (new )?post\b|\bpost (it|this|a)\b|re-?post",
    re.IGNORECASE,
)


def classify(official: Sequence[OfficialTask]) -> dict[int, Category]:
    """Return the category of each task by its number among the tasks of all sites.

    The first rule that holds decides: an answer without a check of a page is `information`; a cart,
    a wish list, a comparison or an order of the shop is `shopping`; a check of what the agent wrote
    is `form`; whatever else is reached is `navigation`.
    """
    votes: dict[tuple[str, int], Counter[Category]] = defaultdict(Counter)
    for each in official:
        if is_possible(each.task):
            votes[each.template][_category(each)] += 1
    return {each.task.task_id: _winner(votes[each.template], each) for each in official}


def is_possible(task: Task) -> bool:
    """Return False if the right answer of `task` is that it cannot be done."""
    references = task.eval.reference_answers
    return references is None or references.fuzzy_match != "N/A"


def _winner(votes: Counter[Category], each: OfficialTask) -> Category:
    if not votes:
        return _category(each)
    return max(CATEGORIES, key=lambda category: votes[category])


def _category(official: OfficialTask) -> Category:
    task, check = official.task, official.task.eval
    has_page_check = {"program_html", "page_image_query"} & set(check.eval_types)
    if "string_match" in check.eval_types and not has_page_check:
        return "information"
    places = [f"{target.url} {target.locator}" for target in check.program_html or ()]
    places += [
        f"{query.eval_image_url} {query.eval_image_class}" for query in check.page_image_query or ()
    ]
    words = " ".join((task.intent_template, check.reference_url or "", *places))
    if official.site == "shopping" and _SHOPS.search(words):
        return "shopping"
    is_elsewhere = any(not place.startswith("last ") for place in places)
    if has_page_check and (is_elsewhere or _WRITES.search(words)):
        return "form"
    return "navigation"
