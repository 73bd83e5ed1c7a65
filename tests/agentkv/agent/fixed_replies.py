"""A model that gives the replies it was made with."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from agentkv.models.model import Reply
from agentkv.models.scripted import resolve
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
