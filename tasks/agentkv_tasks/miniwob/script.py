"""A model that plays a function: one action per page, until the function returns."""

from collections.abc import Callable, Generator
from dataclasses import dataclass

from agentkv.dialog.reply import find_quotation, write_reply
from agentkv.models.model import Reply
from agentkv.models.scripted import SolutionStuck
from agentkv_env.actions import Action
from agentkv_env.page import Page

Steps = Generator[Action, Page, None]
"""Yields actions; receives the page after each."""
Play = Callable[[str, Page], Steps]
"""Plays an episode: takes the goal and the first page."""


@dataclass(frozen=True, slots=True)
class Script:
    """A `Model` that carries out the actions of `play` and then stops.

    Its conversations raise `SolutionStuck` when an action failed, and pass on the one that `play`
    raises when the page lacks what it looks for.
    """

    play: Play
    name: str = "solution"
    """Name in result rows."""

    def begin(self, goal: str, *, seed: int = 0) -> "ScriptConversation":
        """Begin an episode. `seed` has no effect."""
        return ScriptConversation(self.play, goal)


class ScriptConversation:
    """One episode of a `Script`."""

    def __init__(self, play: Play, goal: str) -> None:
        self._play = play
        self._goal = goal
        self._steps: Steps | None = None
        self._pages: list[Page] = []

    def reply(self, page: Page, note: str = "", deadline: float | None = None) -> Reply:
        """Return the next action as a reply for `page`. `deadline` has no effect.

        Raises:
            SolutionStuck: see `Script`.
        """
        self._pages.append(page)
        if note:
            raise SolutionStuck(f"action {len(self._pages) - 1} failed: {note}")
        action = self._next(page)
        quote = find_quotation(action, self._goal, self._pages)
        return Reply(text=write_reply(action, page, quote=quote))

    def _next(self, page: Page) -> Action:
        try:
            if self._steps is None:
                self._steps = self._play(self._goal, page)
                return next(self._steps)
            return self._steps.send(page)
        except StopIteration:
            return Action("stop")
