"""The rows of a run: one JSON line per episode, appended and flushed to disk, never rewritten.

A run that was killed at any moment can be started again: a line that was not finished is cut off,
an episode whose line is there is not run again, and no key is ever counted twice.
"""

import fcntl
import functools
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, ClassVar, Self

from pydantic import ConfigDict, TypeAdapter, ValidationError

from agentkv.files import AppendedFile, json_line

SCHEMA = 1

FAILURES = ("crash", "env_error", "timeout", "unjudged")
"""Statuses that say the harness, not the agent, ended the episode; they count as failures."""


UNRECORDED: Mapping[str, Any] = {"observations": "whole", "deterministic": False, "weights": ""}
"""Settings that older rows do not have, and what those rows were made with."""

DECISIVE = ("agentkv", "torch", "transformers", "tokenizers", "playwright")
"""Packages of which another version may give other rows. Python's own version decides nothing, and
the commit says too much: it also changes with the documentation."""

_MOST_DIGITS = 18


class ResultsError(ValueError):
    """A results file that cannot be read, or that belongs to another run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One episode: what was run, how it ended, what it cost."""

    suite: str
    world_seed: int
    task_id: int
    category: str
    memory_distance_pages: int | None = None
    """How many pages before its use the furthest needed fact was seen; None in rows of old."""
    policy: str
    policy_parameters: Mapping[str, Any]
    """All of them, with the budget."""
    model: str
    seed: int

    status: str
    """stopped, step_limit, parse_limit, repetition: the agent's own end. timeout, env_error,
    crash, unjudged: see `error`."""
    success: bool
    score: float | None
    """None where none could be had."""
    reason: str = ""
    """Which evaluator said no."""
    answer: str = ""
    error: str = ""
    steps: int = 0
    parse_failures: int = 0
    action_failures: int = 0
    tokens_in: int | None = None
    tokens_out: int | None = None
    kv_peak_bytes: int | None = None
    """Most bytes the cache held at any moment; None for models without one."""
    kv_mean_bytes: int | None = None
    """Mean over the steps of what the cache held after each."""
    kv_seen_tokens: int | None = None
    allocator_peak_bytes: int | None = None
    """CUDA's own figure of the model's process during the episode; None on a CPU, where there is
    none, and where another episode shared that process: the figure would be neither's."""
    rss_peak_bytes: int | None = None
    """Peak resident memory of the process with the model and its caches during the episode, of the
    worker's own for a script, without the browser's; None where another episode shared it. With
    `--workers 1` none does."""
    seconds: float = 0.0
    prefill_s: float = 0.0
    decode_s: float = 0.0

    trace: str = ""
    """The episode's trace, relative to the folder of the results."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """What else decides the outcome; the same in all rows of one folder."""
    versions: Mapping[str, str] = field(default_factory=dict)
    device: str = ""
    commit: str = ""
    finished_at: str = ""
    """UTC, ISO 8601."""
    schema: int = SCHEMA

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(strict=True)

    @property
    def key(self) -> str:
        """What identifies the episode: two rows with the same key are the same measurement."""
        return key_of(
            suite=self.suite,
            world_seed=self.world_seed,
            task_id=self.task_id,
            policy=self.policy,
            policy_parameters=self.policy_parameters,
            model=self.model,
            seed=self.seed,
        )

    @property
    def unit(self) -> tuple[str, int, int, int]:
        """What episodes of different policies are paired by: suite, world, task and seed."""
        return self.suite, self.world_seed, self.task_id, self.seed

    def to_json(self) -> str:
        return json_line(asdict(self)).decode().rstrip("\n")


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
    """The key of an episode, also of one that has not been run."""
    parts = [suite, world_seed, task_id, policy, policy_parameters, model, seed]
    return json.dumps(parts, sort_keys=True, ensure_ascii=False)


def read_rows(path: Path) -> list[Row]:
    """All complete rows of the file at `path`, the last one of each key; an unfinished last line
    is left out. The file is not changed.

    Raises:
        ResultsError: a line is no row; the message names file and line.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ResultsError(f"{path}: cannot be read: {error.strerror}") from None
    rows: dict[str, Row] = {}
    for number, line in enumerate(content[: _complete(content)].splitlines(), start=1):
        if not line.strip():
            continue
        row = _row(line, f"{path}: line {number}")
        rows.pop(row.key, None)  # a retried episode stands where it was run last
        rows[row.key] = row
    return list(rows.values())


class Results:
    """The results file of a run in progress; holds a lock on it until closed.

    Args:
        path: made if it is not there; an unfinished last line is cut off.
        fresh: begin with no rows, whatever is there.

    Raises:
        ResultsError: another run holds the file, or it has a line that is no row.
        NotWritten: it cannot be opened.
    """

    def __init__(self, path: Path, *, fresh: bool = False) -> None:
        self._file = AppendedFile(path)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._file.close()
            raise ResultsError(f"{path}: another run is writing here; give another --out") from None
        try:
            self._file.cut(0 if fresh else _complete(path.read_bytes()))
            self._rows = {row.key: row for row in read_rows(path)}
        except BaseException:
            self._file.close()
            raise

    @property
    def rows(self) -> tuple[Row, ...]:
        """One row per key, the latest."""
        return tuple(self._rows.values())

    def has(self, key: str, *, retry_failures: bool = False) -> bool:
        """Whether the episode is done; a failure of the harness may be asked to be run again."""
        row = self._rows.get(key)
        return row is not None and not (retry_failures and row.status in FAILURES)

    def append(self, row: Row) -> None:
        """Write `row` so that it survives the next moment's power cut.

        Raises:
            NotWritten: it was lost; the rows before it are whole.
        """
        known = self._rows.get(row.key)
        assert known is None or known.status in FAILURES, f"{row.key} was counted already"
        self._file.append(row.to_json().encode() + b"\n")
        self._rows[row.key] = row

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def refuse_other_settings(rows: Iterable[Row], settings: Mapping[str, Any], path: Path) -> None:
    """Refuse to add to rows that were made under other settings: they could not be compared.

    Raises:
        ResultsError: naming what differs.
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
                "use --fresh to begin anew or give another --out"
            )


def _setting(row: Row, name: str) -> object:
    return row.settings.get(name, UNRECORDED.get(name))


def refuse_other_versions(rows: Iterable[Row], versions: Mapping[str, str], path: Path) -> None:
    """Refuse to add to rows that other versions made: a difference could be theirs.

    Raises:
        ResultsError: naming what differs of `DECISIVE`.
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
                "begin anew, give another --out, or go on with those versions"
            )


def mixture(rows: Iterable[Row]) -> list[str]:
    """A line for each package of `DECISIVE`, and for the commit, of which there are several."""
    found: dict[str, set[str]] = {name: set() for name in (*DECISIVE, "commit")}
    for row in rows:
        for name in DECISIVE:
            found[name].add(row.versions.get(name, "unknown"))
        found["commit"].add(row.commit or "unknown")
    return [
        f"these rows were made with several versions of {name}: {', '.join(sorted(each))}"
        for name, each in found.items()
        if len(each) > 1
    ]


def _complete(content: bytes) -> int:
    """How many bytes of `content` are complete lines."""
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
    known = {entry.name for entry in fields(Row)}
    if not isinstance(values, dict) or values.get("schema") != SCHEMA:
        raise ResultsError(f"{where}: not a row of schema {SCHEMA}")
    if set(values) - known:
        unknown = ", ".join(sorted(set(values) - known))
        raise ResultsError(f"{where}: unknown fields {unknown[:200]}")
    try:
        return _adapter().validate_json(line)
    except ValidationError as error:
        first = error.errors()[0]
        name = ".".join(str(part) for part in first["loc"])
        found = repr(first["input"])[:80] if first["type"] != "missing" else "nothing"
        raise ResultsError(f"{where}: {name}: {first['msg']}; found {found}") from None


@functools.cache
def _adapter() -> TypeAdapter[Row]:
    return TypeAdapter(Row)


class _NumberError(ValueError):
    """A number that no row of ours has."""


def _integer(digits: str) -> int:
    if len(digits) > _MOST_DIGITS:
        raise _NumberError(f"a number of {len(digits)} digits")
    return int(digits)


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise _NumberError(f"{text[:40]} is no finite number")
    return value
