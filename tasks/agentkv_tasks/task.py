"""A task, in VisualWebArena's own schema plus a few fields of ours.

Every one of the 910 official tasks reads as it stands; the sequences become tuples and nothing else
changes. A field that neither they nor we know is refused, because a misspelt key in an evaluation
block would otherwise quietly score everything 1.
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


MAX_PIXELS = 16_384
"""The longest side of a window; Chromium paints nothing beyond."""


MAX_FILE_BYTES = 64_000_000
"""Of a task file; all of VisualWebArena's are 2 MB."""

INEQUALITY = re.compile(r"\s*(<=|>=|==|<|>)\s*([+-]?(?:\d+\.?\d*|\.\d+))\s*")
"""One of `required_values`: a comparison and a number."""


class TaskError(ValueError):
    """A task file that cannot be used; the message names the file, the task and the field."""


class _Schema(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class References(_Schema):
    """What an answer, or a part of a page, is compared with; the keys are the ways to compare."""

    exact_match: str | None = None
    """Equal after cleaning (outer quotes off, lower case)."""
    must_include: tuple[str, ...] | None = None
    """All of these occur; ` |OR| ` separates alternatives within one."""
    must_exclude: tuple[str, ...] | None = None
    """None of these occurs."""
    one_of: tuple[str, ...] | None = None
    """At least one of these occurs; read by string_match only."""
    required_values: tuple[str, ...] | None = None
    """Inequalities such as `>= 300` that the number must satisfy."""
    fuzzy_match: str | tuple[str, ...] | None = None
    """`N/A` for tasks that cannot be done; anything else needs a judge model."""

    @field_validator("required_values")
    @classmethod
    def _are_inequalities(cls, value: tuple[str, ...] | None) -> tuple[str, ...] | None:
        for entry in value or ():
            for option in entry.split(" |OR| "):
                if not INEQUALITY.fullmatch(option):
                    raise ValueError(f"cannot read {option[:40]!r}; expected such as '>= 300'")
        return value

    @model_validator(mode="after")
    def _compares_something(self) -> "References":
        if not self.model_dump(exclude_none=True):
            raise ValueError("names no way to compare; expected one of " + ", ".join(self.ways()))
        return self

    @classmethod
    def ways(cls) -> tuple[str, ...]:
        """Names of all comparisons, in the order in which page checks look for them."""
        return ("exact_match", "must_include", "must_exclude", "required_values", "fuzzy_match",
                "one_of")  # fmt: skip


class PageCheck(_Schema):
    """One target of program_html: a page, a part of it, and what that part must hold."""

    url: str
    """`last` for the page the agent ended on, an address, or `func:` and a call that gives one."""
    locator: str
    """Empty for the whole page, JavaScript (`document...`, `lambda:...`) or `func:` and a call."""
    required_contents: References
    prep_actions: tuple[str, ...] | None = None
    """JavaScript run on the page before the locator."""


class Question(_Schema):
    """One question about an image and the word its answer must contain."""

    question: str
    answer: str


class ImageCheck(_Schema):
    """One target of page_image_query; scoring it needs a captioner or the reference image."""

    eval_image_url: str
    eval_image_class: str
    eval_vqa: tuple[Question, ...] | None = None
    eval_fuzzy_image_match: str | None = None
    ssim_threshold: float | None = None


class Evaluation(_Schema):
    """How a finished episode is scored: the product of the evaluators named in `eval_types`."""

    eval_types: tuple[EvalType, ...] = Field(min_length=1)
    reference_answers: References | None = None
    reference_url: str | None = None
    url_note: Literal["EXACT", "GOLD in PRED"] | None = None
    program_html: tuple[PageCheck, ...] | None = None
    page_image_query: tuple[ImageCheck, ...] | None = None
    string_note: str | None = None
    """For tasks that cannot be done: the reason."""
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
    """One task: where it starts, what is wanted, how it is scored, and (ours) how it is solved."""

    sites: tuple[str, ...]
    task_id: int
    require_login: bool = False
    storage_state: str | None = None
    start_url: str
    """One or several addresses joined by ` |AND| `, one tab each; the first is current."""
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
    """Pictures that belong to the intent."""
    comments: str | None = None
    viewport_size: Viewport | None = None
    reference_url: str | None = None
    """Stray copy found in twenty official shopping tasks; only `eval.reference_url` is read."""

    category: Category | None = None
    """Ours. What kind of work it is."""
    max_steps: int = Field(default=30, ge=1)
    """Ours. Actions before the episode is stopped; 30 upstream."""
    solution: tuple[str, ...] = ()
    """Ours. Actions that solve it, elements named by role and name instead of numbered:
    `click [link: Blue Kayak]`, `type [textbox: Search] [kayak] [1]`, `stop [42]`."""
    reads_image: bool = False
    """Ours. Whether it can only be solved by reading text inside an image."""
    turns_on: str = ""
    """Ours. The text inside the image on which the task turns; given where `reads_image`."""
    memory_distance_pages: int = Field(default=0, ge=0)
    """Ours. How many pages before its use the furthest needed fact was seen."""
    needs: tuple[str, ...] = ()
    """Ours. The texts the solution takes from pages rather than from the goal, in order of use."""

    @model_validator(mode="after")
    def _names_the_text_it_reads(self) -> "Task":
        if self.reads_image and not self.turns_on:
            raise ValueError("reads_image needs turns_on, the text inside the image")
        return self

    @model_validator(mode="after")
    def _uses_what_it_needs(self) -> "Task":
        said = " ".join(self.solution)
        if unused := [text for text in self.needs if not text or text not in said]:
            raise ValueError(f"needs {unused[0]!r}, which no step of the solution says")
        return self

    @property
    def start_urls(self) -> tuple[str, ...]:
        """The addresses of all tabs the task starts with."""
        return tuple(self.start_url.split(" |AND| "))


def parse_tasks(items: Iterable[object], *, source: str) -> list[Task]:
    """Tasks from decoded JSON objects.

    Raises:
        TaskError: naming `source`, the task and the field, or a task_id that occurs twice.
    """
    tasks: list[Task] = []
    for position, item in enumerate(items):
        label = item.get("task_id", "?") if isinstance(item, dict) else "?"
        try:
            tasks.append(Task.model_validate(item))
            tasks[-1].model_dump_json()
        except PydanticSerializationError:
            raise TaskError(
                f"{source}: task {label} (number {position}): a text of it is no Unicode: it has "
                "half of a surrogate pair"
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
    """Tasks from a JSON file that holds one task or a list of tasks.

    Raises:
        TaskError: the file cannot be read, is not JSON, or holds a task that is wrong.
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
