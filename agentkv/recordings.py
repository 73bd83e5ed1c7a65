"""Recordings: episodes to train on, a JSON Lines file with one of them in each line.

A line holds the pages as they were observed, not their text, because every model reads them in its
own format, and the replies that led to the goal.
"""

import functools
import io
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from pydantic import TypeAdapter, ValidationError

from agentkv.dialog.prompt import Thoughts
from agentkv.files import AppendedFile, json_line, read_stored, stored
from agentkv_env.page import Page
from agentkv_env.sites.names import FIRST_TRAINING_SEED

VERSION = 1
"""Version of the format, incremented when older readers would misread new recordings."""


class RecordingError(ValueError):
    """A file is no file of recordings, or holds one that nothing may be trained on."""


@dataclass(frozen=True, slots=True)
class RecordedStep:
    """A page and the reply to it."""

    page: Page
    reply: str
    note: str = ""
    """The agent's message before the page, such as the error of the last action."""
    counts: bool = True
    """Whether a model is trained to write the reply; False for one that failed."""


@dataclass(frozen=True, slots=True)
class Recording:
    """An episode that reached its goal."""

    key: str
    """Identity of the episode; no key is twice in a file."""
    goal: str
    steps: tuple[RecordedStep, ...]
    suite: str = ""
    """Name of the suite or of the file of tasks."""
    task_id: int | None = None
    """Number of the task in the suite."""
    world_seed: int | None = None
    """Seed of the embedded world; None for an episode on other sites."""
    thoughts: Thoughts = "named"
    """What the lines before an action are: see `Thoughts`."""

    def to_json(self) -> dict[str, Any]:
        """Return the values of the line that holds the recording."""
        values = _adapter().dump_python(self, mode="json", exclude_defaults=True)
        return {"version": VERSION, **values}


def require_training_seed(seed: int, what: str) -> None:
    """Check that a world is not one that measures.

    Args:
        what: names the world's origin in the message.

    Raises:
        RecordingError: models are evaluated in this world.
    """
    if seed < FIRST_TRAINING_SEED:
        raise RecordingError(
            f"{what} world {seed}, and worlds below {FIRST_TRAINING_SEED} evaluate models; give "
            f"--world-seed {FIRST_TRAINING_SEED} or higher"
        )


def read_recordings(path: Path) -> Iterator[Recording]:
    """Yield the recordings of `path` in order, or of `path`.xz if only that exists; an unfinished
    last line is ignored.

    Raises:
        RecordingError: the file cannot be read, a line is no recording or one of another version,
            none of its replies counts, or its world evaluates models; the message names the line.
    """
    try:
        is_plain = stored(path) == path
        with path.open("rb") if is_plain else io.BytesIO(read_stored(path)) as file:
            for number, line in enumerate(file, start=1):
                if line.endswith(b"\n") and line.strip():
                    yield _recording(line, f"{path}, line {number}")
    except OSError as error:
        raise RecordingError(f"{path}: cannot be read: {error.strerror}") from None


def _recording(line: bytes, where: str) -> Recording:
    try:
        values = json.loads(line)
    except (ValueError, RecursionError):
        raise RecordingError(f"{where}: not JSON; expected a recording") from None
    version = values.pop("version", None) if isinstance(values, dict) else None
    if version is None:
        raise RecordingError(
            f"{where}: no recording; `agentkv tasks record` and `agentkv record` write some"
        )
    if version != VERSION:
        raise RecordingError(
            f"{where}: a recording of version {version!r:.20}, and this agentkv reads version "
            f"{VERSION}; record it again"
        )
    try:
        found = _adapter().validate_python(values)
    except ValidationError as error:
        first = error.errors()[0]
        name = ".".join(str(part) for part in first["loc"])
        raise RecordingError(f"{where}: {name}: {first['msg']}") from None
    if not any(step.counts for step in found.steps):
        raise RecordingError(f"{where}: none of its {len(found.steps)} replies counts; remove it")
    if found.world_seed is not None:
        require_training_seed(found.world_seed, f"{where}: recorded in")
    return found


@functools.cache
def _adapter() -> TypeAdapter[Recording]:
    return TypeAdapter(Recording)


class RecordingFile:
    """A file to which recordings are appended, each on the disk when its call returns.

    A context manager. A file that exists is continued, after its last complete line.

    Raises:
        RecordingError: it holds something else.
        WriteError: it cannot be opened or written.
    """

    def __init__(self, path: Path) -> None:
        self.keys = {each.key for each in read_recordings(path)} if path.exists() else set()
        """Keys of all recordings of the file."""
        self._file = AppendedFile(path)
        self._file.truncate(path.read_bytes().rfind(b"\n") + 1 if path.is_file() else 0)

    def append(self, recording: Recording) -> None:
        """Append a recording; its key is not in the file yet."""
        assert recording.key not in self.keys, recording.key
        self._file.append(json_line(recording.to_json()))
        self.keys.add(recording.key)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._file.close()
