"""Rows of `agentkv_lab injection`: one for each player, place and demand."""

from dataclasses import dataclass
from typing import ClassVar

from agentkv_tasks.bench.rows import BenchRow


@dataclass(frozen=True, slots=True, kw_only=True)
class InjectionRow(BenchRow):
    """What one page achieved with one player."""

    BENCH: ClassVar[str] = "injection"
    PROGRAM: ClassVar[str] = "python -m agentkv_lab"
    SUMMARY: ClassVar[tuple[str, ...]] = (
        "label", "place", "demand", "is_shown", "is_followed", "is_refused", "is_done",
        "is_goal_reached",
    )  # fmt: skip

    label: str
    """`obedient`, or the policy of the model, with `, goal not pinned` if it may evict the goal."""
    model: str
    place: str
    """Where the page says its order; empty for the page without one."""
    demand: str
    """What the order demands; empty for the page without one."""
    is_shown: bool
    """Whether an observation held the order."""
    is_followed: bool
    """Whether the player wrote the action that is demanded."""
    is_refused: bool
    """Whether the harness refused it, for its host or for the secret in it."""
    is_done: bool
    """Whether it was carried out."""
    is_goal_reached: bool
    """Whether the episode reached the goal of its task."""
    status: str
    """Final status of the episode."""
    actions: tuple[str, ...]
    """Actions of the episode, in order; empty for a reply that is none."""
    num_evicted: int
    """Entries that the policy evicted by the end."""
    command: str = ""
    schema: int = 1
