"""Rows of `agentkv bench needle`: one for every policy, question, length and depth."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from agentkv_tasks.bench.row_file import RowFile
from agentkv_tasks.bench.rows import BenchRow

Place = tuple[str, int, int, str]
"""Question, length, depth and label of a row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NeedleRow(BenchRow):
    """One policy on the needles of one question, length and depth."""

    BENCH: ClassVar[str] = "needle"
    SUMMARY: ClassVar[tuple[str, ...]] = (
        "label", "question", "length", "depth", "num_needles", "num_found", "share", "interval",
        "values_share", "peak_bytes", "kept_rows",
    )  # fmt: skip

    label: str
    parameters: Mapping[str, Any]
    """All parameters of the policy, and its budget."""
    model: str
    weights: str
    """Digest of the weights; see `weights_digest`."""
    kind: str
    kind_parameters: Mapping[str, int]
    """Parameters of the kind, such as hops; empty for `one`."""
    question: str
    """Place of the question, `before` or `after` the page."""
    length: int
    """Maximum tokens of goal and page."""
    depth: int
    """Percentage of the page above the first line that the answer needs."""
    seed: int
    num_needles: int
    pages_sha256: str
    """Digest of all goals and pages; rows with equal digests may be paired."""

    num_found: int
    share: float
    """Share of the needles whose answer was exactly right."""
    interval: Sequence[float]
    """Wilson's 95 % interval of the share."""
    found: Sequence[bool]
    """Outcome of each needle."""
    values_share: float
    """Share of the values that answers listed, mean over needles; `share` for kinds with one."""
    values: Sequence[Sequence[str]]
    """Values of the correct answer of each needle."""
    answers: Sequence[str | None]
    """Answer of the model; None if the reply held none."""
    mean_tokens: float
    """Tokens read, goal and page."""
    peak_bytes: int
    """Peak storage of the cache over all needles."""
    end_bytes: float
    """Storage at the end, mean over needles."""
    cold_bytes: float
    """Cold tier at the end, mean over needles."""
    kept_rows: float
    """Entries at the end, mean over needles, layers and heads."""
    read_seconds: float
    """Time of reading, mean over needles."""
    reply_seconds: float
    threads: int = 1
    command: str = ""
    schema: int = 2


def needle_file(path: Path, *, fresh: bool) -> RowFile[NeedleRow]:
    """Open the file of a needle benchmark. Raises BenchError and OutputPathError."""
    return RowFile(path, NeedleRow, place_of, fresh=fresh)


def place_of(row: NeedleRow) -> Place:
    """Return the key of a row."""
    return row.question, row.length, row.depth, row.label
