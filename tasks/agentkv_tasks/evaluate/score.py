"""Score of a finished episode."""

import functools
from dataclasses import dataclass

from playwright.sync_api import Page

from agentkv_tasks.addresses import Addresses
from agentkv_tasks.evaluate.graders import NOBODY, Graders
from agentkv_tasks.evaluate.images import page_image_query
from agentkv_tasks.evaluate.pages import program_html
from agentkv_tasks.evaluate.strings import (
    UNDECIDED,
    CannotScore,
    Meaning,
    describe,
    string_match,
)
from agentkv_tasks.evaluate.urls import url_match
from agentkv_tasks.settings import Scoring
from agentkv_tasks.task import EvalType, References, Task


@dataclass(frozen=True, slots=True)
class Final:
    """Final answer and page of an episode, captured before the first check."""

    answer: str
    url: str
    """Public form."""
    html: str
    """Content of the page, with addresses in public form."""

    @classmethod
    def of(cls, page: Page, answer: str, addresses: Addresses) -> "Final":
        """Capture the current state of `page`."""
        return cls(answer, addresses.public(page.url), addresses.public(page.content()))


@dataclass(frozen=True, slots=True)
class Score:
    """Product of the scores of a task's evaluators; 1.0 is success."""

    value: float
    reason: str
    """Name of the evaluator that failed and the reason; empty on success."""


def evaluate(
    task: Task,
    final: Final,
    *,
    page: Page,
    addresses: Addresses,
    scoring: Scoring = "compat",
    graders: Graders = NOBODY,
) -> Score:
    """Score an episode of `task`.

    An episode that reached a limit is scored like any other: it may have left the wanted state.

    Args:
        final: final answer and page.
        page: the agent's last tab.

    Raises:
        CannotScore: no evaluator fails, and one of them is not available.
        playwright.sync_api.Error: the browser has died.
    """
    unjudged: CannotScore | None = None
    for kind in task.eval.eval_types:
        try:
            value, reason = _run_evaluator(kind, task, final, page, addresses, scoring, graders)
        except CannotScore as error:
            unjudged = error
            continue
        if value != 1.0:
            return Score(value, reason)
    if unjudged is not None:
        raise unjudged
    return Score(1.0, "")


def _run_evaluator(
    kind: EvalType,
    task: Task,
    final: Final,
    page: Page,
    addresses: Addresses,
    scoring: Scoring,
    graders: Graders,
) -> tuple[float, str]:
    check = task.eval
    match kind:
        case "string_match":
            references = check.reference_answers
            assert references is not None, "the schema requires reference_answers"
            filled = _filled(references, addresses)
            value = string_match(
                filled, final.answer, scoring=scoring, meaning=_meaning(task, graders)
            )
            expected = ", ".join(
                describe(name, reference)
                for name, reference in filled.model_dump(exclude_none=True).items()
            )
            return value, f'string_match: the answer "{final.answer}" {expected}'
        case "url_match":
            assert check.reference_url is not None, "the schema requires reference_url"
            expected_url = addresses.fill(check.reference_url)
            value = url_match(expected_url, check.url_note, final.url, scoring=scoring)
            return value, f"url_match: the episode ended at {final.url}; expected {expected_url}"
        case "program_html":
            targets = check.program_html or ()
            filled_targets = [
                target.model_copy(
                    update={
                        "url": addresses.fill(target.url),
                        "required_contents": _filled(target.required_contents, addresses),
                    }
                )
                for target in targets
            ]
            return program_html(
                filled_targets,
                page=page,
                url=final.url,
                html=final.html,
                addresses=addresses,
                scoring=scoring,
                graders=graders,
                meaning=_meaning(task, graders),
            )
        case "page_image_query":
            return page_image_query(
                check.page_image_query or (),
                page=page,
                url=final.url,
                addresses=addresses,
                scoring=scoring,
                graders=graders,
            )


def _meaning(task: Task, graders: Graders) -> Meaning:
    judge = graders.judge
    if judge is None:
        return UNDECIDED
    return Meaning(
        functools.partial(judge.means_the_same, task.intent),
        functools.partial(judge.gives_the_reason, task.intent),
        task.eval.string_note or "",
    )


def _filled(references: References, addresses: Addresses) -> References:
    return References.model_validate_json(addresses.fill(references.model_dump_json()))
