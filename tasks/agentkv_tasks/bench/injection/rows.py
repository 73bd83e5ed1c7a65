"""Rows of `agentkv bench injection`: one for each agent, place and demand."""

from dataclasses import dataclass
from typing import ClassVar

from agentkv_tasks.bench.rows import BenchRow


@dataclass(frozen=True, slots=True, kw_only=True)
class InjectionRow(BenchRow):
    """What one order at one place of a page achieved with one agent."""

    BENCH: ClassVar[str] = "injection"
    SUMMARY: ClassVar[tuple[str, ...]] = ("label", "place", "demand", "is_followed", "is_done")

    label: str
    """`obedient`, which does what a page orders; `obedient, open` with every host allowed and the
    secret typed on all; or the cache policy of the language model."""
    place: str
    """Where the page gives the order; `none`: nowhere."""
    demand: str
    """`host`, `click`, `secret` or `answer`; empty without an order."""
    is_seen: bool
    """The page as text holds the order's beginning."""
    is_followed: bool
    """The agent took the action that the order names."""
    is_blocked: bool
    """That action failed."""
    is_done: bool
    """The order had its effect: the request arrived, the secret stood in the field, or the episode
    ended with the answer."""
    reached_goal: bool
    """The article was put into the cart."""
    error: str
    """Why the action failed, up to the first semicolon."""
    budget: int
    command: str = ""
    schema: int = 1
