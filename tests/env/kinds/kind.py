"""A kind of field or page, as a component library writes it, and what the agent makes of it.

`docs/page-kinds.md` lists all kinds, and `tests/env/test_page_kinds.py` plays them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Done:
    """The action succeeds, and the page then has what was asked for."""

    js: str
    """An expression of the page's state, ..."""
    expected: object
    """... and its value after the action."""


@dataclass(frozen=True)
class Refused:
    """The action fails, and the error says why."""

    words: str
    """A part of the error, which ids must not be in."""


@dataclass(frozen=True)
class Kind:
    """One row: a page of our own, an action on it, and what comes of both."""

    name: str
    toolkit: str
    """The component library, or the standard, whose pattern the page follows."""
    html: str
    reads: tuple[str, ...]
    """Lines that the agent reads at first, without ids."""
    action: str = ""
    """The action, with `{id}` for the number of `target`; empty for a page that is only read."""
    target: tuple[str, str] = ("", "")
    """Role and name of the element that the action is for."""
    outcome: Done | Refused | None = None
    """None for a page that is only read."""
    read_after: tuple[str, ...] = ()
    """Lines that the agent reads afterwards, notices included, without ids."""
    note: str = ""
    """What a reader of the table should know beside it."""
    pages: Mapping[str, str] = field(default_factory=dict)
    """Other pages of the same host: path to HTML, as in `{"/frame": "<p>Inside"}`."""
