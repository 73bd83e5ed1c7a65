"""What happened in an episode, step by step: frozen records, and a file that a crash cannot empty.

A trace is JSON lines, appended and flushed one by one: a head, the steps, an end. A file without an
end is an episode that died; its steps are all there.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self, TextIO

SCHEMA = 1
"""Goes up when a reader of old traces would misread new ones."""

Status = Literal[
    "stopped",
    "step_limit",
    "parse_limit",
    "repetition",
    "timeout",
    "context_limit",
    "env_error",
]
"""How an episode ended. `stopped`: the agent said so. The limits: actions, unreadable replies in a
row, equal actions in a row on an unchanged page, seconds, positions of the model. `env_error`: the
browser was lost."""


class TraceError(ValueError):
    """A file that is no trace, or one of another schema."""


@dataclass(frozen=True, slots=True)
class Step:
    """One turn: what was seen, what was answered, what came of it. Typed passwords read `***`."""

    index: int
    """From 0."""
    url: str
    observation: str
    """The text the model was shown; empty for models that read the page itself."""
    note: str
    """The harness's word that came before the page."""
    reply: str
    action: str
    """The action in canonical form; empty if the reply held none that could be read."""
    error: str
    """Why the reply could not be read or the action not be done; empty if all went well."""
    num_tokens_in: int
    num_tokens_out: int
    seen_tokens: int
    """Tokens of the episode so far; 0 for models without a cache, as are the bytes."""
    cache_bytes: int
    """Keys and values held after this turn."""
    cache_peak_bytes: int
    """The most they took since the episode began."""
    prefill_s: float
    decode_s: float
    seconds: float
    """The whole turn: looking, thinking, acting."""
    screenshot: str = ""
    """File name of the page's picture, beside the trace; empty if none was taken."""


@dataclass(frozen=True, slots=True)
class Episode:
    """A finished episode."""

    status: Status
    answer: str
    """What the stop action said; empty for every other end."""
    steps: tuple[Step, ...]
    seconds: float
    error: str = ""
    """What went wrong, for `env_error`, `timeout` and `context_limit`."""

    @property
    def num_tokens_in(self) -> int:
        return sum(step.num_tokens_in for step in self.steps)

    @property
    def num_tokens_out(self) -> int:
        return sum(step.num_tokens_out for step in self.steps)

    @property
    def num_parse_failures(self) -> int:
        return sum(not step.action for step in self.steps)

    @property
    def kv_peak_bytes(self) -> int:
        return max((step.cache_peak_bytes for step in self.steps), default=0)

    @property
    def kv_mean_bytes(self) -> float:
        """Mean over steps of the bytes held after each."""
        return sum(step.cache_bytes for step in self.steps) / max(1, len(self.steps))


class TraceWriter:
    """Appends one episode to a file, which must not exist yet; every line is on disk when written.

        with TraceWriter(path, head={"goal": goal, "model": name}) as trace:
            episode = agent.run(page, goal, on_step=trace.step)
            trace.end(episode)

    Raises:
        FileExistsError: `path` holds a trace already; nothing is overwritten.
    """

    def __init__(self, path: Path, *, head: Mapping[str, Any]) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file: TextIO = path.open("x", encoding="utf-8", errors="backslashreplace")
        self._write("head", head)

    def step(self, step: Step) -> None:
        self._write("step", asdict(step))

    def end(self, episode: Episode) -> None:
        end = {"status": episode.status, "answer": episode.answer, "error": episode.error}
        self._write("end", {**end, "seconds": episode.seconds, "num_steps": len(episode.steps)})

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        where: TracebackType | None,
    ) -> None:
        self.close()

    def _write(self, kind: str, values: Mapping[str, Any]) -> None:
        row = {"schema": SCHEMA, "kind": kind, **values}
        self._file.write(json.dumps(row, ensure_ascii=False) + "\n")
        self._file.flush()
        os.fsync(self._file.fileno())


@dataclass(frozen=True, slots=True)
class Trace:
    """A trace read back."""

    head: Mapping[str, Any]
    steps: tuple[Step, ...]
    end: Mapping[str, Any] | None
    """None if the episode died before its end."""


def read_trace(path: Path) -> Trace:
    """Read a trace; a last line cut short by a crash is left out.

    Raises:
        TraceError: another schema, a broken line that is not the last, or no head.
    """
    lines = path.read_text(encoding="utf-8", errors="replace").split("\n")
    rows: list[dict[str, Any]] = []
    for number, line in enumerate(lines, start=1):
        try:
            row = json.loads(line) if line else None
        except json.JSONDecodeError as error:
            if number == len(lines):  # no line break after it: the writer died there
                continue
            raise TraceError(f"{path}, line {number}: no JSON ({error.msg})") from error
        if row is None:
            continue
        if not isinstance(row, dict) or row.get("schema") != SCHEMA:
            raise TraceError(f"{path}, line {number}: not a row of trace schema {SCHEMA}")
        rows.append(row)
    if not rows or rows[0].get("kind") != "head":
        raise TraceError(f"{path} does not begin with the head of a trace")
    steps = tuple(_step(row) for row in rows if row["kind"] == "step")
    return Trace(
        head=_bare(rows[0]),
        steps=steps,
        end=next((_bare(row) for row in rows if row["kind"] == "end"), None),
    )


def _step(row: Mapping[str, Any]) -> Step:
    return Step(**{field.name: row[field.name] for field in fields(Step)})


def _bare(row: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in row.items() if key not in ("schema", "kind")}
