"""A model that gives the replies it was made with, and pages that no action changes."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from agentkv.models.model import Reply
from agentkv.models.scripted import resolve
from agentkv_env.actions import Action
from agentkv_env.page import Page


@dataclass
class FixedReplies:
    """Replies with one line per turn and then repeats the last; resolves named elements."""

    lines: Sequence[str]
    notes: list[str] = field(default_factory=list)
    name: str = "fixed"

    def begin(self, goal: str, *, seed: int = 0) -> "FixedReplies":
        self.notes.clear()
        return self

    def reply(self, page: Page, note: str = "", deadline: float | None = None) -> Reply:
        line = self.lines[min(len(self.notes), len(self.lines) - 1)]
        self.notes.append(note)
        return Reply(text=resolve(line, page) if ": " in line else line)


class Still:
    """An environment whose pages follow each other, whatever is done; `done` lists it."""

    def __init__(self, *pages: Page) -> None:
        self._pages, self._number = pages, 0
        self.done: list[Action] = []

    def observe(self) -> Page:
        self._number += 1
        return self._pages[(self._number - 1) % len(self._pages)]

    def act(self, action: Action) -> None:
        self.done.append(action)

    def screenshot(self) -> bytes:
        return b""
