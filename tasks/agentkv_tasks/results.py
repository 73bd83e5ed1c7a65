"""Result rows: one JSON line per episode, appended and flushed to disk, never rewritten.

A run can be killed at any moment and continued later: an unfinished line is cut off, an episode
with a row does not run again, and no key counts twice.
"""

import fcntl
import functools
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Self

from pydantic import ConfigDict, TypeAdapter, ValidationError

from agentkv.files import AppendedFile, json_line, read_stored, stored, write_atomic
from agentkv.trace import Trace, TraceError, read_trace

SCHEMA = 1

FAILURES = ("crash", "env_error", "timeout", "out_of_memory", "unjudged")
"""Statuses of episodes that the harness ended, not the agent; they count as failures."""

RETRIED = ("crash", "env_error")
"""Statuses of episodes that a run plays again. A timeout would take as long again."""

UNRECORDED: Mapping[str, Any] = {
    "observations": "whole",
    "pins": False,
    "deterministic": False,
    "thinking": 0,
    "weights": "",
    "cache_dtype": "model",
    "adapter": None,
    "merge_adapter": True,
    "unreset": [],
    "judge": "",
}
"""Settings missing from older rows, with the values in effect at the time."""

DECISIVE = ("agentkv", "torch", "transformers", "tokenizers", "playwright")
"""Packages whose versions can change results. Python's version does not change them, and the commit
also changes with the documentation."""

_MAX_DIGITS = 18


class ResultsError(ValueError):
    """A results file that is unreadable or belongs to another run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """An attempt at an episode that the harness ended, and after which it was played again."""

    status: str
    error: str
    steps: int
    seconds: float
    trace: str = ""
    """Path of its trace, relative to the folder of the results; empty if it has none."""


class Unit(NamedTuple):
    """An episode without its policy: what the episodes of several policies have in common."""

    suite: str
    world_seed: int
    task_id: int
    seed: int
    repeat: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One episode: its settings, its outcome and its cost."""

    suite: str
    world_seed: int
    task_id: int
    category: str
    memory_distance_pages: int | None = None
    """Distance in pages between the furthest needed fact and its use; None in older rows."""
    policy: str
    policy_parameters: Mapping[str, Any]
    """All parameters of the policy, and its budget."""
    model: str
    seed: int

    status: str
    """stopped, step_limit, parse_limit, repetition or context_limit: the agent's own end. timeout,
    out_of_memory, env_error, crash or unjudged: see `error`."""
    success: bool
    score: float | None
    """None if the episode could not be scored."""
    other_score: float | None = None
    """Score by the scoring that the run did not choose, compat or mended; None if it cannot be
    computed, and in older rows."""
    reason: str = ""
    """Evaluator that failed, and why."""
    answer: str = ""
    error: str = ""
    steps: int = 0
    parse_failures: int = 0
    action_failures: int = 0
    tokens_in: int | None = None
    tokens_out: int | None = None
    kv_peak_bytes: int | None = None
    """Peak bytes of the cache at any moment; None for models without a cache."""
    kv_mean_bytes: int | None = None
    """Mean over the steps of the bytes after each step."""
    kv_cold_bytes: int | None = None
    """Bytes of the evicted entries that could come back, at the end; no other byte counts hold
    them. None in older rows."""
    kv_index_bytes: int | None = None
    """Bytes of what looks scan instead of the cold keys, at the end; in no other byte counts. None
    in older rows."""
    looks: int | None = None
    """Tokens that looked back; None in older rows."""
    changing_looks: int | None = None
    """Looks after which another token was the likeliest one; None in older rows."""
    look_bytes: int | None = None
    """Bytes that looks read: keys or digests to choose by, and what they fetched. None in older
    rows."""
    kv_seen_tokens: int | None = None
    renumberings: int | None = None
    """How often the cache's rotary positions were renumbered, because the model's had run out; None
    in older rows."""
    allocator_peak_bytes: int | None = None
    """Peak of the CUDA allocator in the model's process during the episode; None on a CPU, if
    another episode shared the process, and if the episode was resumed."""
    rss_peak_bytes: int | None = None
    """Peak resident memory, during the episode, of the process that holds the model and its caches,
    or of the worker for a script; the browser is not included. None if another episode shared the
    process, which `--workers 1` prevents, and if the episode was resumed."""
    seconds: float = 0.0
    prefill_s: float = 0.0
    decode_s: float = 0.0
    parts: Mapping[str, float] | None = None
    """Seconds of the episode by part, `--profile` only: `browser`, `walk`, `screenshots`, `OCR`,
    `tokenizer`, `grammar`, `reading`, `decoding`, `scoring` and `the rest`. They add up to the
    episode's time. What runs while the model works is charged only for what it adds."""

    trace: str = ""
    """Path of the trace, relative to the folder of the results."""
    attempts: tuple[Attempt, ...] = ()
    """Earlier attempts at the episode, in order; nothing else in the row is about them. Empty in
    older rows."""
    resumed_steps: int = 0
    """Number of steps of an earlier process that were played again before the episode resumed from
    its checkpoint; 0 for an uninterrupted episode, and in older rows."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Other settings that decide the outcome; equal in all rows of one folder."""
    versions: Mapping[str, str] = field(default_factory=dict)
    device: str = ""
    commit: str = ""
    finished_at: str = ""
    """UTC, ISO 8601."""
    repeat: int = 0
    """How many earlier runs of the same episode are pooled with this one (`read_runs`). A file does
    not hold it: there every row is the only one of its key."""
    schema: int = SCHEMA

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(strict=True)

    @property
    def key(self) -> str:
        """Identity of the episode: rows with equal keys are the same measurement."""
        key = key_of(
            suite=self.suite,
            world_seed=self.world_seed,
            task_id=self.task_id,
            policy=self.policy,
            policy_parameters=self.policy_parameters,
            model=self.model,
            seed=self.seed,
        )
        return f"{key} {self.repeat}" if self.repeat else key

    @property
    def set_parameters(self) -> dict[str, Any]:
        """Parameters of the policy that are not None. Rows of an earlier version lack parameters
        that came later, and None is their value where nobody sets them."""
        return {name: each for name, each in self.policy_parameters.items() if each is not None}

    @property
    def unit(self) -> Unit:
        """Unit that pairs episodes of different policies."""
        return Unit(self.suite, self.world_seed, self.task_id, self.seed, self.repeat)

    @property
    def kv_all_bytes(self) -> int | None:
        """Bytes that the episode needed for its cache, wherever they lay: the peak of the hot
        entries, and the cold tier with its index at the end, when they are largest. None for models
        without a cache."""
        if self.kv_peak_bytes is None:
            return None
        return self.kv_peak_bytes + self.kv_stored_cold_bytes

    @property
    def kv_stored_cold_bytes(self) -> int:
        """Bytes of the cold tier and its index at the end; 0 without one, and in older rows."""
        return (self.kv_cold_bytes or 0) + (self.kv_index_bytes or 0)

    def to_json(self) -> str:
        """Return the row as a JSON line."""
        values = asdict(self)
        del values["repeat"]
        return json_line(values).decode().rstrip("\n")


def key_of(
    *,
    suite: str,
    world_seed: int,
    task_id: int,
    policy: str,
    policy_parameters: Mapping[str, Any],
    model: str,
    seed: int,
) -> str:
    """Return the key of an episode, which need not have run yet."""
    parts = [suite, world_seed, task_id, policy, policy_parameters, model, seed]
    return json.dumps(parts, sort_keys=True, ensure_ascii=False)


def read_rows(path: Path) -> list[Row]:
    """Read the complete rows of a file or of its compressed form, the last row of each key.

    An unfinished last line is ignored, and the file is not changed.

    Raises:
        ResultsError: a line is not a row; the message names file and line.
    """
    content = _read(path)
    rows: dict[str, Row] = {}
    for number, line in enumerate(content[: _complete_length(content)].splitlines(), start=1):
        if not line.strip():
            continue
        row = _row(line, f"{path}: line {number}")
        rows.pop(row.key, None)  # a repeated episode moves to the end
        rows[row.key] = row
    return list(rows.values())


def _read(path: Path) -> bytes:
    try:
        return read_stored(path)
    except OSError as error:
        raise ResultsError(f"{path}: cannot be read: {error.strerror}") from None


def trace_of(row: Row, folder: Path) -> Trace | None:
    """Read the trace of an episode; None if it has none that can be read.

    A foreign results file may name a path outside of `folder`, which is not opened.
    """
    path = folder / row.trace
    if not row.trace or not path.resolve().is_relative_to(folder.resolve()):
        return None
    try:
        return read_trace(path)
    except (OSError, TraceError):
        return None


class Results:
    """The results file of a run, locked until it is closed.

    Args:
        path: created if it does not exist, with the rows of its compressed form; an unfinished last
            line is cut off.
        fresh: discard existing rows.

    Raises:
        ResultsError: another run holds the file, or a line is not a row.
        WriteError: the file cannot be opened.
    """

    def __init__(self, path: Path, *, fresh: bool = False) -> None:
        if not fresh and stored(path) != path:
            write_atomic(path, _read(path))
        self._file = AppendedFile(path)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._file.close()
            raise ResultsError(f"{path}: another run is writing here; give another --out") from None
        try:
            self._file.truncate(0 if fresh else _complete_length(path.read_bytes()))
            self._rows = {row.key: row for row in read_rows(path)}
        except BaseException:
            self._file.close()
            raise

    @property
    def rows(self) -> tuple[Row, ...]:
        """The latest row of each key."""
        return tuple(self._rows.values())

    def has(self, key: str, *, retry_failures: bool = False) -> bool:
        """Return True if the episode has a row.

        With `retry_failures`, a row of an episode that the harness ended does not count.
        """
        row = self._rows.get(key)
        return row is not None and not (retry_failures and row.status in FAILURES)

    def append(self, row: Row) -> None:
        """Append `row` and flush it to disk.

        Raises:
            WriteError: the row was lost; earlier rows are complete.
        """
        known = self._rows.get(row.key)
        assert known is None or known.status in FAILURES, f"{row.key} was counted already"
        self._file.append(row.to_json().encode() + b"\n")
        self._rows[row.key] = row

    def close(self) -> None:
        """Close the file and release its lock."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def refuse_other_settings(rows: Iterable[Row], settings: Mapping[str, Any], path: Path) -> None:
    """Refuse to continue a run that was made under other settings.

    Raises:
        ResultsError: the settings differ; the message names them.
    """
    for row in rows:
        different = [
            f"{name} was {_setting(row, name)!r}, now {value!r}"
            for name, value in settings.items()
            if _setting(row, name) != value
        ]
        if different:
            raise ResultsError(
                f"{path}: holds a run with other settings ({'; '.join(different)}); "
                "use --fresh to start over, or give another --out"
            )


def _setting(row: Row, name: str) -> object:
    return row.settings.get(name, UNRECORDED.get(name))


def refuse_other_versions(rows: Iterable[Row], versions: Mapping[str, str], path: Path) -> None:
    """Refuse to continue a run that was made with other versions of `DECISIVE` packages.

    Raises:
        ResultsError: the versions differ; the message names them.
    """
    for row in rows:
        different = [
            f"{name} was {row.versions.get(name, 'unknown')}, now {versions.get(name, 'unknown')}"
            for name in DECISIVE
            if row.versions.get(name) != versions.get(name)
        ]
        if different:
            raise ResultsError(
                f"{path}: holds rows of other versions ({'; '.join(different)}); use --fresh to "
                "start over, give another --out, or install those versions"
            )


def mixed_versions(rows: Iterable[Row]) -> list[str]:
    """Return a warning for each `DECISIVE` package, and for the commit, that differs among rows."""
    found: dict[str, set[str]] = {name: set() for name in (*DECISIVE, "commit")}
    for row in rows:
        for name in DECISIVE:
            found[name].add(row.versions.get(name, "unknown"))
        found["commit"].add(row.commit or "unknown")
    return [
        f"these rows come from several versions of {name}: {', '.join(sorted(each))}"
        for name, each in found.items()
        if len(each) > 1
    ]


def unreset_warning(rows: Iterable[Row]) -> str:
    """Return the warning that every table of `rows` carries if a task ran more than once on sites
    that nothing resets; otherwise an empty text."""
    by_task: dict[tuple[str, int, int], list[Row]] = {}
    for row in rows:
        by_task.setdefault((row.suite, row.world_seed, row.task_id), []).append(row)
    sites = {
        site
        for of_task in by_task.values()
        if len(of_task) > 1
        for row in of_task
        for site in row.settings.get("unreset", ())
    }
    if not sites:
        return ""
    return (
        f"warning: nothing reset {', '.join(sorted(sites))} between the episodes. Later ones found "
        "what earlier ones left, so the policies did not solve the same tasks."
    )


def _complete_length(content: bytes) -> int:
    """Return the number of bytes in complete lines of `content`."""
    return content.rfind(b"\n") + 1


def _row(line: bytes, where: str) -> Row:
    try:
        values = json.loads(line, parse_int=_integer, parse_float=_finite, parse_constant=_finite)
    except RecursionError:
        raise ResultsError(f"{where}: nested too deeply to be a row") from None
    except _NumberError as error:
        raise ResultsError(f"{where}: {error}") from None
    except ValueError:
        raise ResultsError(f"{where}: not JSON") from None
    known = {entry.name for entry in fields(Row)} - {"repeat"}
    if not isinstance(values, dict) or not isinstance(values.get("schema"), int):
        raise ResultsError(f"{where}: not a row of schema {SCHEMA}")
    if values["schema"] != SCHEMA:
        found = f"not a row of schema {SCHEMA}, but of schema {values['schema']}"
        raise ResultsError(f"{where}: {found}; {_OTHER_VERSION}")
    if set(values) - known:
        unknown = ", ".join(sorted(set(values) - known))
        raise ResultsError(f"{where}: unknown fields {unknown[:200]}; {_OTHER_VERSION}")
    try:
        return _adapter().validate_json(line)
    except ValidationError as error:
        first = error.errors()[0]
        name = ".".join(str(part) for part in first["loc"])
        found = repr(first["input"])[:80] if first["type"] != "missing" else "nothing"
        raise ResultsError(f"{where}: {name}: {first['msg']}; found {found}") from None


_OTHER_VERSION = (
    "another version of agentkv wrote it: use that version; or run with --fresh to start over, or "
    "with another --out"
)


@functools.cache
def _adapter() -> TypeAdapter[Row]:
    return TypeAdapter(Row)


class _NumberError(ValueError):
    """A number that no row may hold."""


def _integer(digits: str) -> int:
    if len(digits) > _MAX_DIGITS:
        raise _NumberError(f"a number of {len(digits)} digits; expected at most {_MAX_DIGITS}")
    return int(digits)


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise _NumberError(f"{text[:40]} is not a finite number")
    return value
