"""Tasks in VisualWebArena's schema, with a few additional fields of our own.

All 910 official tasks load unchanged, except that sequences become tuples. Unknown fields are
refused, because a misspelled key in an evaluation block would otherwise score every episode 1.
"""

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)
from pydantic_core import PydanticSerializationError

Category = Literal["shopping", "navigation", "information", "form"]
CATEGORIES: tuple[Category, ...] = ("shopping", "navigation", "information", "form")

EvalType = Literal["string_match", "url_match", "program_html", "page_image_query"]


MAX_STEPS = 30
"""Actions of a task that gives no other number, as in VisualWebArena."""


MAX_PIXELS = 16_384
"""Longest side of a window; Chromium paints nothing beyond it."""


WINDOW = (1280, 1024)
"""Width and height of a window that a task does not choose."""


MAX_FILE_BYTES = 64_000_000
"""Largest size of a task file; all of VisualWebArena's tasks take 2 MB."""

INEQUALITY = re.compile(r"\s*(<=|>=|==|<|>)\s*([+-]?(?:\d+\.?\d*|\.\d+))\s*")
"""Pattern of a value in `required_values`: a comparison and a number."""


class TaskError(ValueError):
    """An invalid task file; the message names the file, the task and the field."""


class _Schema(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class References(_Schema):
    """References for an answer or a part of a page; each field is a kind of comparison."""

    exact_match: str | None = None
    """Text that must be equal after cleaning (without outer quotes, in lower case)."""
    must_include: tuple[str, ...] | None = None
    """Texts that must all occur; ` |OR| ` separates alternatives of one text."""
    must_exclude: tuple[str, ...] | None = None
    """Texts that must not occur."""
    one_of: tuple[str, ...] | None = None
    """Texts of which at least one must occur; only string_match reads them."""
    required_values: tuple[str, ...] | None = None
    """Inequalities such as `>= 300` that the number must satisfy."""
    fuzzy_match: str | tuple[str, ...] | None = None
    """`N/A` for impossible tasks; any other text needs a judge model."""

    @field_validator("required_values")
    @classmethod
    def _are_inequalities(cls, value: tuple[str, ...] | None) -> tuple[str, ...] | None:
        for entry in value or ():
            for option in entry.split(" |OR| "):
                if not INEQUALITY.fullmatch(option):
                    raise ValueError(
                        f"cannot read {option[:40]!r}; expected an inequality such as '>= 300'"
                    )
        return value

    @model_validator(mode="after")
    def _compares_something(self) -> "References":
        if not self.model_dump(exclude_none=True):
            raise ValueError(f"no comparison; expected one of {', '.join(self.comparisons())}")
        return self

    @classmethod
    def comparisons(cls) -> tuple[str, ...]:
        """Return the names of all comparisons, in the order in which page checks try them."""
        return ("exact_match", "must_include", "must_exclude", "required_values", "fuzzy_match",
                "one_of")  # fmt: skip


class PageCheck(_Schema):
    """A target of program_html: a page, a part of it, and the required contents of that part."""

    url: str
    """`last` for the agent's last page, an address, or `func:` and a call that returns one."""
    locator: str
    """Empty for the whole page, JavaScript (`document...`, `lambda:...`) or `func:` and a call."""
    required_contents: References
    prep_actions: tuple[str, ...] | None = None
    """JavaScript run on the page before the locator."""


class Question(_Schema):
    """A question about an image and a word that its answer must contain."""

    question: str
    answer: str


class ImageCheck(_Schema):
    """A target of page_image_query; scoring it needs a captioner or the reference image."""

    eval_image_url: str
    eval_image_class: str
    eval_vqa: tuple[Question, ...] | None = None
    eval_fuzzy_image_match: str | None = None
    ssim_threshold: float | None = None


class Evaluation(_Schema):
    """Scoring of an episode: the product of the evaluators named in `eval_types`."""

    eval_types: tuple[EvalType, ...] = Field(min_length=1)
    reference_answers: References | None = None
    reference_url: str | None = None
    url_note: Literal["EXACT", "GOLD in PRED"] | None = None
    program_html: tuple[PageCheck, ...] | None = None
    page_image_query: tuple[ImageCheck, ...] | None = None
    string_note: str | None = None
    """Reason why the task is impossible."""
    reference_answer_raw_annotation: str | None = None

    @field_validator("reference_url")
    @classmethod
    def _can_be_taken_apart(cls, value: str | None) -> str | None:
        for option in (value or "").split(" |OR| "):
            urlsplit(option)  # raises ValueError for a host such as `[bad`
        return value

    @model_validator(mode="after")
    def _has_what_its_types_need(self) -> "Evaluation":
        needs = {
            "string_match": ("reference_answers", self.reference_answers),
            "url_match": ("reference_url", self.reference_url),
            "program_html": ("program_html", self.program_html),
            "page_image_query": ("page_image_query", self.page_image_query),
        }
        for kind in self.eval_types:
            field, value = needs[kind]
            if not value:
                raise ValueError(f"eval_types names {kind} but {field} is empty")
        return self


class Viewport(_Schema):
    """Window size in pixels; a missing side keeps the default."""

    width: int | None = Field(default=None, ge=1, le=MAX_PIXELS)
    height: int | None = Field(default=None, ge=1, le=MAX_PIXELS)


class Task(_Schema):
    """A task: its start, its goal, its scoring, and (ours) its solution."""

    sites: tuple[str, ...]
    task_id: int
    require_login: bool = False
    """Whether the task begins logged in; read only with sites of one's own."""
    storage_state: str | None = None
    """Key of the account to log in, or a file as in VisualWebArena, which is not read."""
    start_url: str
    """One address or several joined by ` |AND| `, each in its own tab; the first tab is current."""
    geolocation: dict[str, float] | None = None
    intent_template: str
    intent_template_id: int
    instantiation_dict: dict[str, str | int] = {}
    intent: str
    require_reset: bool = False
    eval: Evaluation
    reasoning_difficulty: str = ""
    visual_difficulty: str = ""
    overall_difficulty: str = ""
    image: str | tuple[str, ...] | None = None
    """Images that belong to the intent."""
    comments: str | None = None
    viewport_size: Viewport | None = None
    reference_url: str | None = None
    """Stray copy found in twenty official shopping tasks; only `eval.reference_url` is read."""

    category: Category | None = None
    """Ours. Kind of work."""
    intent_element: str = ""
    """Ours. CSS selector of the element of the start page whose text is the goal; `intent` then
    only names the task."""
    paraphrases: tuple[str, ...] = ()
    """Ours. Other goals that ask for the same; nano's training uses them."""
    max_steps: int = Field(default=MAX_STEPS, ge=1)
    """Ours. Maximum number of actions; VisualWebArena allows 30."""
    solution: tuple[str, ...] = ()
    """Ours. Actions that solve the task, with elements by role and name instead of number:
    `click [link: Blue Kayak]`, `type [textbox: Search] [kayak] [1]`, `stop [42]`."""
    reads_image: bool = False
    """Ours. True if the solution needs text inside an image."""
    turns_on: str = ""
    """Ours. Text inside the image that the solution needs; required with `reads_image`."""
    memory_distance_pages: int = Field(default=0, ge=0)
    """Ours. Distance in pages between the furthest needed fact and its use."""
    needs: tuple[str, ...] = ()
    """Ours. Texts that the solution takes from pages, not from the goal, in order of use."""

    @model_validator(mode="after")
    def _names_the_text_it_reads(self) -> "Task":
        if self.reads_image and not self.turns_on:
            raise ValueError("reads_image needs turns_on, the text inside the image")
        return self

    @model_validator(mode="after")
    def _uses_what_it_needs(self) -> "Task":
        solution = " ".join(self.solution)
        if unused := [text for text in self.needs if not text or text not in solution]:
            raise ValueError(f"needs {unused[0]!r}, which occurs in no step of the solution")
        return self

    @property
    def start_urls(self) -> tuple[str, ...]:
        """Addresses of all tabs at the start."""
        return tuple(self.start_url.split(" |AND| "))

    @property
    def window(self) -> tuple[int, int]:
        """Width and height of the window in pixels."""
        size = self.viewport_size or Viewport()
        return (size.width or WINDOW[0], size.height or WINDOW[1])


def parse_tasks(items: Iterable[object], *, source: str) -> list[Task]:
    """Parse tasks from decoded JSON objects.

    Raises:
        TaskError: a task is invalid or a task_id occurs twice; the message names `source`, the
            task and the field.
    """
    tasks: list[Task] = []
    for position, item in enumerate(items):
        label = item.get("task_id", "?") if isinstance(item, dict) else "?"
        try:
            tasks.append(Task.model_validate(item))
            tasks[-1].model_dump_json()
        except PydanticSerializationError:
            raise TaskError(
                f"{source}: task {label} (number {position}): a text is not valid Unicode: it "
                "holds half of a surrogate pair"
            ) from None
        except ValidationError as error:
            first = error.errors()[0]
            field = ".".join(str(part) for part in first["loc"]) or "task"
            more = f" (and {error.error_count() - 1} more)" if error.error_count() > 1 else ""
            raise TaskError(
                f"{source}: task {label} (number {position}): {field}: {first['msg']}{more}"
            ) from None
    seen: set[int] = set()
    for task in tasks:
        if task.task_id in seen:
            raise TaskError(f"{source}: task {task.task_id}: task_id occurs twice")
        seen.add(task.task_id)
    return tasks


def read_tasks(path: Path) -> list[Task]:
    """Read tasks from a JSON file that holds one task or a list of tasks.

    Raises:
        TaskError: the file is unreadable, not JSON, or holds an invalid task.
    """
    try:
        with path.open("rb") as file:
            text = file.read(MAX_FILE_BYTES + 1)
        if len(text) > MAX_FILE_BYTES:
            raise TaskError(f"{path}: is longer than {MAX_FILE_BYTES} bytes; expected tasks")
        content = json.loads(text.decode("utf-8"))
    except OSError as error:
        raise TaskError(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise TaskError(f"{path}: is not UTF-8 text; expected JSON") from None
    except TaskError:
        raise
    except json.JSONDecodeError as error:
        raise TaskError(f"{path}: line {error.lineno}: not JSON: {error.msg}") from None
    except RecursionError:
        raise TaskError(f"{path}: is nested too deeply; expected a list of tasks") from None
    except ValueError as error:  # a number of thousands of digits
        raise TaskError(f"{path}: not JSON: {error}") from None
    return parse_tasks(content if isinstance(content, list) else [content], source=str(path))
