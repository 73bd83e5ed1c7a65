"""What `agentkv bench needle` finds: a row for every policy, length and depth."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

SCHEMA = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class NeedleRow:
    """One policy, and so many needles of one length at one depth."""

    label: str
    parameters: Mapping[str, Any]
    """All of the policy's, with the budget."""
    model: str
    weights: str
    """Equal for equal weights; see `weights_digest`."""
    length: int
    """Tokens of goal and page, at most."""
    depth: int
    """Per cent of the page above the line that answers."""
    seed: int
    num_needles: int
    pages_sha256: str
    """Of all goals and pages: equal ones may be paired."""

    num_found: int
    share: float
    """Of the needles that were found."""
    interval: Sequence[float]
    """Wilson's for the share, 95 %."""
    found: Sequence[bool]
    """Of each needle."""
    values: Sequence[str]
    """What each needle's answer is."""
    answers: Sequence[str | None]
    """What was answered; None where the reply was no answer."""
    mean_tokens: float
    """That were read, goal and page."""
    peak_bytes: int
    """The most that any needle's cache held at any moment."""
    end_bytes: float
    """Held at the end, mean over needles."""
    kept_rows: float
    """Rows held at the end, mean over needles, layers and heads."""
    read_seconds: float
    """What reading took, mean over needles."""
    reply_seconds: float
    settings: Mapping[str, Any] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    device: str = ""
    threads: int = 1
    commit: str = ""
    command: str = ""
    finished_at: str = ""
    """UTC, ISO 8601."""
    schema: int = SCHEMA

    def to_json(self) -> str:
        return json.dumps(asdict(self), ensure_ascii=False)


SHORT = (
    "label", "length", "depth", "num_needles", "num_found", "share", "interval", "peak_bytes",
    "kept_rows",
)  # fmt: skip
"""What a row says in the line that ends the output."""


def summary(rows: Sequence[NeedleRow], out: str) -> str:
    """All rows in short, as one line of JSON."""
    short = [{name: _rounded(getattr(row, name)) for name in SHORT} for row in rows]
    return json.dumps({"bench": "needle", "out": out, "rows": short}, ensure_ascii=False)


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return round(value, 4)
    return [_rounded(each) for each in value] if isinstance(value, list | tuple) else value
