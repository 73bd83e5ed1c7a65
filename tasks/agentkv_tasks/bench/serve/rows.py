"""Rows of `agentkv bench serve`: one for every contender and turn."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from agentkv_tasks.bench.rows import BenchRow


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeRow(BenchRow):
    """One turn of a conversation with one contender, over all rounds."""

    BENCH: ClassVar[str] = "serve"
    SUMMARY: ClassVar[tuple[str, ...]] = (
        "label", "turn", "num_prompt", "num_read", "first_token_s", "first_token_ratio",
        "peak_bytes", "bytes_ratio",
    )  # fmt: skip

    label: str
    """`re-read`, or the policy of the server."""
    parameters: Mapping[str, Any]
    """All parameters of the policy, and the budget; empty for `re-read`."""
    model: str
    source: str
    """Origin of the messages."""
    turn: int
    """Number of the turn, from 1."""
    num_prompt: int
    """Tokens before the reply."""
    num_read: int
    """Tokens of them that were read in this turn."""
    num_written: int
    """Tokens of the reply."""
    first_token_s: float
    """Seconds from the request to the first token of the reply, median over rounds."""
    first_token_rounds_s: Sequence[float]
    """The same, per round."""
    reply_s: float
    """Seconds from the request to the last token, median over rounds."""
    first_token_ratio: float
    """Median over rounds of the seconds relative to `re-read` in the same round."""
    peak_bytes: int
    """The most bytes of the cache up to the end of the turn; of a full cache, in 16 bits."""
    bytes_ratio: float
    """Those bytes relative to `re-read`."""
    cold_bytes: int
    """Bytes of the cold tier at the end of the turn."""
    threads: int
    command: str = ""
    schema: int = 1
