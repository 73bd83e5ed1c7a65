"""The part of a benchmark's row that all benchmarks share."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Any, ClassVar


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchRow:
    """One measurement with its provenance."""

    BENCH: ClassVar[str]
    """Name of the benchmark."""
    PROGRAM: ClassVar[str] = "agentkv bench"
    """Program that has the benchmark as a command."""
    SUMMARY: ClassVar[tuple[str, ...]] = ()
    """Fields in the line of JSON that ends the output."""

    settings: Mapping[str, Any] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    device: str = ""
    commit: str = ""
    finished_at: str = field(default_factory=_now)
    """UTC, ISO 8601."""
    schema: int

    def to_json(self) -> str:
        """Return the row as a line of JSON."""
        return json.dumps(asdict(self), ensure_ascii=False)


def summary(kind: type[BenchRow], rows: Sequence[BenchRow], out: str) -> str:
    """Return the rows in short, as one line of JSON."""
    short = [{name: _rounded(getattr(row, name)) for name in kind.SUMMARY} for row in rows]
    return json.dumps({"bench": kind.BENCH, "out": out, "rows": short}, ensure_ascii=False)


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return round(value, 4)
    if isinstance(value, Mapping):
        return {name: _rounded(each) for name, each in value.items()}
    return [_rounded(each) for each in value] if isinstance(value, list | tuple) else value
