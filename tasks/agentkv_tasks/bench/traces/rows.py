"""Rows of `agentkv bench traces`: one for every policy, way of edits and kind of session."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from agentkv_tasks.bench.rows import BenchRow


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceRow(BenchRow):
    """All requests of one kind of session, under one policy and way of edits."""

    BENCH: ClassVar[str] = "traces"
    SUMMARY: ClassVar[tuple[str, ...]] = (
        "policy", "edits", "kind", "num_requests", "num_prompt", "num_read", "num_prefix_read",
    )  # fmt: skip

    policy: str
    edits: str
    """What became of edited messages; see the server's `--edits`."""
    kind: str
    """What the hosts did with earlier messages."""
    parameters: Mapping[str, Any]
    """All parameters of the policy, and the budget."""
    model: str
    source: str
    """Origin of the trace."""
    num_sessions: int
    num_requests: int
    num_prompt: int
    """Tokens of all prompts."""
    num_read: int
    """Tokens of them that were read."""
    num_prefix_read: int
    """Tokens that a server would read that keeps every prompt with its reply, and goes on from the
    longest one that a prompt begins with."""
    ways: Mapping[str, int]
    """Requests by how they found their session; see `usage.agentkv.reuse`."""
    first_token_s: float
    """Seconds from a request to the first token of its reply, median."""
    first_token_p95_s: float
    threads: int
    command: str = ""
    schema: int = 1
