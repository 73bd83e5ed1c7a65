"""The score of one finished episode."""

from dataclasses import dataclass

from playwright.sync_api import Page

from agentkv_tasks.addresses import Addresses
from agentkv_tasks.evaluate.pages import program_html
from agentkv_tasks.evaluate.strings import Scoring, Unjudged, string_match, wording
from agentkv_tasks.evaluate.urls import url_match
from agentkv_tasks.task import References, Task


@dataclass(frozen=True, slots=True)
class Final:
    """How an episode ended: the answer given and the page it ended on, taken before any check."""

    answer: str
    url: str
    """In public form."""
    html: str
    """With addresses in public form."""

    @classmethod
    def of(cls, page: Page, answer: str, addresses: Addresses) -> "Final":
        """What `page` is now."""
        return cls(answer, addresses.public(page.url), addresses.public(page.content()))


@dataclass(frozen=True, slots=True)
class Score:
    """The product of a task's evaluators: 1.0 is success."""

    value: float
    reason: str
    """Which evaluator said no and why; empty on success."""


def evaluate(
    task: Task, final: Final, *, page: Page, addresses: Addresses, scoring: Scoring = "compat"
) -> Score:
    """Score an episode of `task` that ended as `final`; `page` is the tab it ended on.

    An episode that hit a limit is scored like any other: the state it left may be the right one.

    Raises:
        Unjudged: no evaluator says no, and one cannot be had here.
        playwright.sync_api.Error: the browser is gone.
    """
    unjudged: Unjudged | None = None
    for kind in task.eval.eval_types:
        try:
            value, reason = _one(kind, task, final, page, addresses, scoring)
        except Unjudged as error:
            unjudged = error
            continue
        if value != 1.0:
            return Score(value, reason)
    if unjudged is not None:
        raise unjudged
    return Score(1.0, "")


def _one(
    kind: str, task: Task, final: Final, page: Page, addresses: Addresses, scoring: Scoring
) -> tuple[float, str]:
    check = task.eval
    match kind:
        case "string_match":
            references = check.reference_answers
            assert references is not None, "the schema asks for them"
            filled = _filled(references, addresses)
            value = string_match(filled, final.answer, scoring=scoring)
            wanted = ", ".join(
                wording(way, reference)
                for way, reference in filled.model_dump(exclude_none=True).items()
            )
            return value, f'string_match: the answer "{final.answer}" {wanted}'
        case "url_match":
            assert check.reference_url is not None, "the schema asks for it"
            wanted_url = addresses.fill(check.reference_url)
            value = url_match(wanted_url, check.url_note, final.url, scoring=scoring)
            return value, f"url_match: ended at {final.url}, wanted {wanted_url}"
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
            )
        case _:
            raise Unjudged("page_image_query needs a captioner, or the reference images")


def _filled(references: References, addresses: Addresses) -> References:
    return References.model_validate_json(addresses.fill(references.model_dump_json()))
