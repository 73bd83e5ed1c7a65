"""Records of an episode's steps, and the trace file that keeps them through a crash.

A trace is a JSON Lines file: a head, the steps, an end. Each line is synced to the disk as soon as
it is written. A trace without an end belongs to an episode that crashed; it holds all steps before
the crash.
"""

import functools
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from reprlib import repr as short_repr
from typing import Any, Generic, Literal, Self

from pydantic import BaseModel, TypeAdapter, ValidationError
from typing_extensions import TypeVar

from agentkv.advice import ADVICE
from agentkv.files import AppendedFile, json_line, write_atomic
from agentkv_env.masking import Secrets, ends_in_masked
from agentkv_env.serialize import element_in

SCHEMA = 1
"""Version of the trace format, incremented when older readers would misread new traces."""

A = TypeVar("A", default=str)
"""Type of an episode's answer."""

Status = Literal[
    "stopped",
    "step_limit",
    "parse_limit",
    "repetition",
    "timeout",
    "context_limit",
    "out_of_memory",
    "cancelled",
    "env_error",
]
"""Final status of an episode.

* `stopped`: the agent stopped.
* `step_limit`, `timeout`: the episode ran out of actions or seconds.
* `parse_limit`: too many replies in a row could not be parsed.
* `repetition`: too many equal actions in a row on an unchanged page.
* `context_limit`: the model ran out of positions.
* `out_of_memory`: the model's device, or the host, ran out of memory; the cache was freed.
* `cancelled`: somebody cancelled the episode.
* `env_error`: the browser was lost.
"""


class TraceError(ValueError):
    """A file is not a trace, or has another schema version."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheStatistics:
    """What a cache has done since it was begun, in a session for earlier goals too; all 0 for
    models without a cache."""

    seen_tokens: int = 0
    """Tokens fed, kept or not."""
    cold_bytes: int = 0
    """Bytes of the evicted entries that may come back; not part of the stored keys and values."""
    index_bytes: int = 0
    """Bytes of what looks scan instead of those entries' keys; part of neither."""
    num_looks: int = 0
    """Tokens that have looked back."""
    num_changing_looks: int = 0
    """Looks after which another token was the likeliest one, whatever the grammar."""
    look_bytes: int = 0
    """Bytes that looks have read: keys or digests to choose by, and what they fetched."""
    fetched: Mapping[str, int] = field(default_factory=dict)
    """Entries that looks have fetched, over all layers, by the label of their tokens: `page 3`,
    `reply 2`, `goal`."""
    num_renumberings: int = 0
    """How often the cache's rotary positions were renumbered, because the model's had run out."""
    num_evicted: int = 0
    """Entries that have left, over the layers that the policy bounds."""


@dataclass(frozen=True, slots=True, repr=False, kw_only=True)
class Step(CacheStatistics):
    """One turn of an episode: the page, the reply, and the result of the action.

    Secrets appear as `***` in every text.
    """

    index: int
    """Number of the step, from 0."""
    url: str
    """Address of the page, without credentials."""
    observation: str
    """The page text that the model was shown; empty for models that read the `Page` itself."""
    note: str
    """The harness's message before the page; empty for none."""
    reply: str
    """The model's reply."""
    action: str
    """The action in canonical form; empty if the reply could not be parsed."""
    error: str
    """The reason for a parse failure or a failed action; empty for a successful step."""
    num_tokens_in: int
    """Tokens of this turn's prompt."""
    num_tokens_out: int
    """Tokens of the reply, and of the thought before it."""
    cache_bytes: int
    """Bytes of the stored keys and values after this turn; 0 for models without a cache."""
    cache_peak_bytes: int
    """Largest number of these bytes since the cache was begun."""
    prefill_s: float
    """Seconds spent on reading the prompt."""
    decode_s: float
    """Seconds spent on writing the reply."""
    seconds: float
    """Seconds of the whole turn: observation, reply and action."""
    thinking: str = ""
    """Text of the thought before the reply; empty if there is none."""
    screenshot: str = ""
    """File name of the page's screenshot; empty if there is none."""
    boxes: tuple[tuple[int, int, int, int, int], ...] = ()
    """Per element in the screenshot: its number, left, top, width and height in pixels."""
    turn: int = 0
    """Number of the turn in the conversation, from 0: the page is the cache's span `page 3`, the
    reply its span `reply 3`. In a session it counts the turns of earlier goals too."""
    token_ends: tuple[int, ...] = ()
    """Per token of the reply, the number of characters of `reply` up to its end. Empty for models
    without tokens and in older traces, as are the three fields below."""
    confidences: tuple[float | None, ...] = ()
    """Per token of the reply, the probability that the model gave it before the grammar and the
    temperature changed anything, from the logits that the gate reads; None if the grammar forced
    the token."""
    token_looks: tuple[int, ...] = ()
    """Per token of the reply, the entries that were fetched by the look after which it was sampled,
    over all layers and heads; 0 for no look. Empty if no token looked back, and in older traces."""
    piece_ends: tuple[int, ...] = ()
    """Per piece of the page, a line or a part of a long one, the number of characters of
    `observation` up to its end."""
    held: Mapping[str, str] = field(default_factory=dict)
    """Levels of the spans that lost or regained entries in this turn, by label. A page has a digit
    for each piece, any other span has one digit: 4 if the cache holds all entries, 0 if it holds
    none. The cache holds all of a span that no step names."""

    def __repr__(self) -> str:
        return f"<Step {self.index + 1}: {self.action[:80] or '(no readable action)'}>"

    def masked(self, secrets: Secrets) -> Self:
        """Return the step with `***` in place of every secret."""
        texts: dict[str, Any] = {name: secrets.mask(getattr(self, name)) for name in _STEP_TEXTS}
        ends: dict[str, Any] = {
            name: ends_in_masked(getattr(self, text), texts[text], getattr(self, name))
            for name, text in ENDS.items()
        }
        return replace(self, **texts, **ends)

    @property
    def element_id(self) -> int | None:
        """Number of the element that the action is on; None if it is on none."""
        found = re.match(r"(?:click|hover|type|clear) \[(\d{1,9})\]", self.action)
        return None if found is None else int(found[1])

    @property
    def element(self) -> str:
        """Line of the element that the action is on, without its number and its box; in a row, its
        part of the row and then the row. Empty if the action is on none, or the model was not
        shown its line in this turn."""
        if self.element_id is None:
            return ""
        return element_in(self.observation, self.element_id)


@dataclass(frozen=True, slots=True, repr=False)
class Episode(Generic[A]):
    """A finished episode."""

    status: Status
    """The reason for the end."""
    answer: A
    """The answer of the stop action, unmasked; empty for every other status. If the caller asked
    for the answer as an instance of a pydantic model, that instance; None for every other status.
    """
    steps: tuple[Step, ...]
    """The steps in order, with secrets masked."""
    seconds: float
    """Duration of the episode."""
    error: str = ""
    """The error of `env_error`, `timeout`, `context_limit` or `out_of_memory`; otherwise empty."""
    secrets: Secrets = field(default_factory=Secrets, repr=False, compare=False)
    """Secrets of the episode. `answer` is not masked, because it is yet to be scored; show
    `secrets.mask(answer)` instead."""
    success: bool | None = None
    """True if an evaluator accepted the episode, False if it did not. None: no evaluator scored it,
    so nobody knows whether the answer is right, even if `status` is `stopped`."""

    def __repr__(self) -> str:
        count = f"{len(self.steps)} step{'s' * (len(self.steps) != 1)}"
        answer = f", answer {short_repr(self.answer_text)}" if self.answer else ""
        return f"<Episode {self.status} after {count}{answer}>"

    @property
    def answer_text(self) -> str:
        """The answer as text, with secrets masked: an instance of a pydantic model as JSON."""
        answer: object = self.answer
        text = answer.model_dump_json() if isinstance(answer, BaseModel) else str(answer or "")
        return self.secrets.mask(text)

    @property
    def advice(self) -> str:
        """What to try after an episode that ended before the agent stopped; empty if there is no
        advice for its status."""
        return ADVICE.get(self.status, "")

    @property
    def num_tokens_in(self) -> int:
        """Prompt tokens of all steps."""
        return sum(step.num_tokens_in for step in self.steps)

    @property
    def num_tokens_out(self) -> int:
        """Tokens of all replies and thoughts."""
        return sum(step.num_tokens_out for step in self.steps)

    @property
    def num_parse_failures(self) -> int:
        """Number of steps whose reply could not be parsed."""
        return sum(not step.action for step in self.steps)

    @property
    def kv_peak_bytes(self) -> int:
        """Largest number of bytes that the cache stored at any time, in a session for earlier goals
        too."""
        return max((step.cache_peak_bytes for step in self.steps), default=0)

    @property
    def kv_mean_bytes(self) -> float:
        """Bytes that the cache stored after each step, averaged over the steps."""
        return sum(step.cache_bytes for step in self.steps) / max(1, len(self.steps))


class TraceWriter:
    """Writes one episode to a new trace file; every line is on the disk when its call returns.

        with TraceWriter(path, head={"goal": goal, "model": name}) as trace:
            episode = agent.run(page, goal, on_step=trace.step)
            trace.end(episode)

    Only the owner can read the file. Secrets appear as `***`. If a secret becomes known only after
    it was written, the whole file is replaced atomically.

    Args:
        path: the file to create.
        head: values that identify the episode; only `goal` and `task` are masked.
        secrets: the episode's secrets; more may be added while it runs. `end` adds those of the
            `Episode`.
        num_kept: None begins a new file; a number continues the trace at `path` after that many
            steps, and drops the later ones.

    Raises:
        FileExistsError: `path` exists and `num_kept` is None; nothing is overwritten.
        WriteError: the file could not be written; all methods raise it as well.
        TraceError, OSError: there is no trace to go on with; see `read_trace`.
    """

    def __init__(
        self,
        path: Path,
        *,
        head: Mapping[str, Any],
        secrets: Secrets | None = None,
        num_kept: int | None = None,
    ) -> None:
        self._path = path
        self._secrets = Secrets() if secrets is None else secrets
        self._num_masked = 0
        self._rows: list[dict[str, Any]] = []
        if num_kept is None:
            self._file = AppendedFile(path, must_be_new=True)
            self._write("head", head)
            return
        rows = [row for row in _read_rows(path) if row.get("kind") != "end"]
        steps = [place for place, row in enumerate(rows) if row.get("kind") == "step"]
        self._rows = rows[: steps[num_kept]] if num_kept < len(steps) else rows
        write_atomic(path, b"".join(map(json_line, self._rows)))
        self._file = AppendedFile(path)

    def goal(self, goal: str) -> None:
        """Append a goal that was read on the start page; it takes the place of the head's."""
        self._write("goal", {"goal": goal})

    def step(self, step: Step) -> None:
        """Append a step."""
        self._write("step", asdict(step))

    def end(self, episode: Episode[Any]) -> None:
        """Append the end: status, answer, error, duration and number of steps."""
        self._secrets.update(episode.secrets)
        answer = episode.answer
        if not isinstance(answer, str):
            answer = episode.answer_text
        end = {"status": episode.status, "answer": answer, "error": episode.error}
        self._write("end", {**end, "seconds": episode.seconds, "num_steps": len(episode.steps)})

    def close(self) -> None:
        """Mask secrets that became known since the last write, and close the file."""
        try:
            self._mask_late_secrets()
        finally:
            self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _write(self, kind: str, values: Mapping[str, Any]) -> None:
        self._mask_late_secrets()
        row = self._masked({"schema": SCHEMA, "kind": kind, **values})
        self._file.append(json_line(row))
        self._rows.append(row)

    def _mask_late_secrets(self) -> None:
        if len(self._secrets) == self._num_masked:
            return
        self._num_masked = len(self._secrets)
        rows = [self._masked(row) for row in self._rows]
        if rows != self._rows:
            self._rows = rows
            self._file.close()
            write_atomic(self._path, b"".join(map(json_line, rows)))
            self._file = AppendedFile(self._path)

    def _masked(self, row: Mapping[str, Any]) -> dict[str, Any]:
        texts = {name: row[name] for name in _TEXT_FIELDS if name in row}
        masked = self._secrets.mask_within(texts, keep=_UNMASKED_KEYS)
        ends = {
            name: ends_in_masked(row[text], masked[text], row[name])
            for name, text in ENDS.items()
            if row.get(name)
        }
        return {**row, **masked, **ends}


ENDS = {"token_ends": "reply", "piece_ends": "observation"}
"""Fields of a step with numbers of characters, and the text that they count in."""
_STEP_TEXTS = ("url", "observation", "note", "thinking", "reply", "action", "error")
_TEXT_FIELDS = ("goal", "task", "answer", *_STEP_TEXTS)
"""Fields with text from pages, models and people; all other fields identify the row."""
_UNMASKED_KEYS = frozenset(
    {"category", "eval_types", "url_note", "sites", "eval_fuzzy_image_match"}
)
"""Fields of a task that hold one of a few words defined by its schema."""


@dataclass(frozen=True, slots=True)
class Trace:
    """The content of a trace file."""

    head: Mapping[str, Any]
    """Values that identify the episode."""
    steps: tuple[Step, ...]
    """The steps in order."""
    end: Mapping[str, Any] | None
    """Status, answer, error, duration and number of steps; None if the episode crashed."""


def read_trace(path: Path) -> Trace:
    """Read a trace. A crash may leave a partial last line, which is ignored.

    Raises:
        TraceError: no head, another schema version, or a malformed line other than the last.
        OSError: the file cannot be read.
    """
    rows = _read_rows(path)
    steps = tuple(_step(row, path) for row in rows if row.get("kind") == "step")
    head = _without_tags(rows[0])
    for row in rows:
        if row.get("kind") == "goal":
            head["goal"] = row.get("goal", "")
    return Trace(
        head=head,
        steps=steps,
        end=next((_without_tags(row) for row in rows if row.get("kind") == "end"), None),
    )


def _read_rows(path: Path) -> list[dict[str, Any]]:
    """Return the rows of a trace, the head first; raises as `read_trace` does."""
    lines = path.read_text(encoding="utf-8", errors="replace").split("\n")
    rows: list[dict[str, Any]] = []
    for number, line in enumerate(lines, start=1):
        try:
            row = json.loads(line) if line else None
        except json.JSONDecodeError as error:
            if number == len(lines):  # without a line break: the writer crashed here
                continue
            raise TraceError(f"{path}, line {number}: not valid JSON ({error.msg})") from error
        except (RecursionError, ValueError) as error:  # nesting or a number beyond the limits
            raise TraceError(f"{path}, line {number}: not valid JSON ({error})") from error
        if row is None:
            continue
        if not isinstance(row, dict) or row.get("schema") != SCHEMA:
            raise TraceError(f"{path}, line {number}: expected a row of trace schema {SCHEMA}")
        rows.append(row)
    if not rows or rows[0].get("kind") != "head":
        raise TraceError(f"{path} does not begin with the head of a trace")
    return rows


def _step(row: Mapping[str, Any], path: Path) -> Step:
    known = {field.name for field in fields(Step)}
    try:
        return _step_adapter().validate_python({name: row[name] for name in known & set(row)})
    except ValidationError as error:
        first = error.errors()[0]
        name = ".".join(str(part) for part in first["loc"])
        raise TraceError(f"{path}: malformed step: {name}: {first['msg']}") from None


@functools.cache
def _step_adapter() -> TypeAdapter[Step]:
    return TypeAdapter(Step)


def _without_tags(row: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in row.items() if key not in ("schema", "kind")}
