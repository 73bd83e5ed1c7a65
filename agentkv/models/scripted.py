"""Models that follow a script, to check tasks and the harness, and to record training episodes."""

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass

from agentkv.dialog.reply import find_quotation, shown_name, write_reply
from agentkv.models.model import Reply
from agentkv_env.actions import Action, ActionError, parse
from agentkv_env.page import Node, Page

CLICKABLE = frozenset(
    "link button checkbox radio tab menuitem option combobox switch image summary".split()
)

_NAMED = re.compile(
    r"^(?P<verb>click|hover|clear|type)\s+"
    r"\[(?P<role>[a-z]+): (?P<name>[^\[\]]*?)(?: #(?P<nth>\d+))?\](?P<rest>.*)$",
    re.DOTALL,
)


class SolutionStuck(ValueError):
    """A step of a solution fits nothing on the page it met."""


@dataclass(frozen=True, slots=True)
class Solution:
    """Replays a task's own solution, one step a turn.

    Steps are actions in which elements are named, not numbered: `click [link: Blue Kayak]`,
    `type [textbox: Search] [kayak] [1]`, `click [button: Add to cart #2]` for the second such
    element in reading order, `scroll [down]`, `stop [42]`. Role and name must read exactly as in
    the page's text.

    A conversation raises `SolutionStuck` when a step names no element of the page, when the action
    before it failed (the note says so), or when the steps are used up.
    """

    steps: Sequence[str]
    name: str = "solution"

    def begin(self, goal: str, *, seed: int = 0) -> "SolutionConversation":
        return SolutionConversation(tuple(self.steps), goal)


class SolutionConversation:
    """One episode of a `Solution`."""

    def __init__(self, steps: tuple[str, ...], goal: str = "") -> None:
        self._steps = steps
        self._num_done = 0
        self._goal = goal
        self._pages: list[Page] = []

    def reply(self, page: Page, note: str = "", deadline: float | None = None) -> Reply:
        self._pages.append(page)
        if note:
            done = self._steps[self._num_done - 1] if self._num_done else "(none)"
            raise SolutionStuck(f"step {self._num_done} `{done}` did not work: {note}")
        if self._num_done == len(self._steps):
            raise SolutionStuck(
                f"all {len(self._steps)} steps are done and none was a stop; the page is {page.url}"
            )
        step = self._steps[self._num_done]
        self._num_done += 1
        return Reply(
            text=resolve(
                step, page, number=self._num_done, goal=self._goal, before=self._pages[:-1]
            )
        )


@dataclass(frozen=True, slots=True)
class Stop:
    """Stops at once: what an agent that does nothing scores."""

    answer: str = ""
    name: str = "stop"

    def begin(self, goal: str, *, seed: int = 0) -> SolutionConversation:
        return SolutionConversation((f"stop [{self.answer}]",))


@dataclass(frozen=True, slots=True)
class RandomClicks:
    """Clicks anything, scrolls when there is nothing, never stops. Equal seeds, equal clicks."""

    seed: int = 0
    name: str = "random"

    def begin(self, goal: str, *, seed: int = 0) -> "RandomConversation":
        return RandomConversation(random.Random(f"{self.seed}/{seed}"))


class RandomConversation:
    """One episode of `RandomClicks`."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    def reply(self, page: Page, note: str = "", deadline: float | None = None) -> Reply:
        choices = [node for node in page.nodes if node.id is not None and node.role in CLICKABLE]
        if not choices:
            return Reply(text=write_reply(Action(kind="scroll", direction="down"), page))
        node = self._rng.choice(choices)
        return Reply(text=write_reply(Action(kind="click", element_id=node.id), page))


def resolve(
    step: str, page: Page, *, number: int = 1, goal: str = "", before: Sequence[Page] = ()
) -> str:
    """The reply that carries out the solution line `step` on `page`.

    Args:
        goal, before: what else was read, for the line that quotes.

    Raises:
        SolutionStuck: no such element, fewer of them than asked for, or no action at all; the
            message names the step (its `number`) and the elements of that role on the page.
    """
    named = _NAMED.match(step.strip())
    line = step.strip()
    if named is not None:
        node = _find(named, page, f"step {number} `{line}`")
        line = f"{named['verb']} [{node.id}]{named['rest']}"
    try:
        action = parse(line)
    except ActionError as error:
        raise SolutionStuck(f"step {number} `{step}` is no action: {error}") from error
    return write_reply(action, page, quote=find_quotation(action, goal, [*before, page]))


def _find(named: re.Match[str], page: Page, step: str) -> Node:
    role, name, nth = named["role"], shown_name(named["name"]), int(named["nth"] or 1)
    of_role = [node for node in page.nodes if node.id is not None and node.role == role]
    fitting = [node for node in of_role if shown_name(node.name) == name]
    if len(fitting) < nth:
        known = ", ".join(repr(shown_name(node.name)) for node in of_role) or "none"
        found = f"only {len(fitting)} elements fit" if fitting else "no such element"
        raise SolutionStuck(f"{step}: {found} on {page.url}; {role}s there: {known}")
    return fitting[nth - 1]
