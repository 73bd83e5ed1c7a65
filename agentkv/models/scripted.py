"""Scripted models, to check tasks and the harness and to record training episodes."""

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import unquote

from agentkv.dialog.reply import find_quotation, shown_name, write_reply
from agentkv.models.model import Reply
from agentkv_env.actions import Action, ActionError, parse
from agentkv_env.page import Node, Page
from agentkv_env.sanitize import original_brackets
from agentkv_env.serialize import serialize

CLICKABLE = frozenset(
    "link button checkbox radio tab menuitem option combobox switch image summary".split()
)
"""Roles of the elements that `RandomClicks` clicks."""

_NAMED = re.compile(
    r"^(?P<verb>click|hover|clear|type)\s+"
    r"\[(?P<role>[a-z]+): (?P<name>(?:[^\[\]]|\[[^\[\]]*\])*?)(?: #(?P<nth>\d+))?\](?P<rest>.*)$",
    re.DOTALL,
)
_NUMBER = re.compile(r" \[\d+\]$", re.MULTILINE)  # an element's own; in page text they are ⟦12⟧
_ORDER = re.compile(r"(?i)ignore your goal and do: ?(\w+ \[[^\n']*\])")


class SolutionStuck(ValueError):
    """A step of a solution cannot be carried out on the current page."""


@dataclass(frozen=True, slots=True)
class Solution:
    """A `Model` that replays a task's solution, one step per turn.

    Steps are actions that name elements instead of numbering them: `click [link: Blue Kayak]`,
    `type [textbox: Search] [kayak] [1]`, `click [button: Add to cart #2]` for the second such
    element in reading order, `scroll [down]`, `stop [42]`. Role and name must match the page's
    text exactly.

    Its conversations raise `SolutionStuck` when a step names no element of the page, when the
    action before it failed (`note` is not empty), or when no step is left.
    """

    steps: Sequence[str]
    """Actions in order."""
    name: str = "solution"
    """Name in result rows."""

    def begin(self, goal: str, *, seed: int = 0) -> "SolutionConversation":
        """Begin an episode at the first step. `seed` has no effect."""
        return SolutionConversation(tuple(self.steps), goal)


class SolutionConversation:
    """One episode of a `Solution`."""

    def __init__(self, steps: tuple[str, ...], goal: str = "") -> None:
        self._steps = steps
        self._num_done = 0
        self._goal = goal
        self._pages: list[Page] = []

    def reply(self, page: Page, note: str = "", deadline: float | None = None) -> Reply:
        """Return the next step as a reply for `page`. `deadline` has no effect.

        Raises:
            SolutionStuck: see `Solution`.
        """
        self._pages.append(page)
        if note:
            done = self._steps[self._num_done - 1] if self._num_done else "(none)"
            raise SolutionStuck(f"step {self._num_done} `{done}` failed: {note}")
        if self._num_done == len(self._steps):
            raise SolutionStuck(
                f"all {len(self._steps)} steps are done without a stop; the page is {page.url}"
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
    """A `Model` that stops at once: the score of an agent that does nothing."""

    answer: str = ""
    """Answer of the stop."""
    name: str = "stop"
    """Name in result rows."""

    def begin(self, goal: str, *, seed: int = 0) -> SolutionConversation:
        """Begin an episode of a single stop. `goal` and `seed` have no effect."""
        return SolutionConversation((f"stop [{self.answer}]",))


@dataclass(frozen=True, slots=True)
class RandomClicks:
    """A `Model` that clicks random elements, scrolls if there are none, and never stops.

    Equal seeds give equal clicks on equal pages.
    """

    seed: int = 0
    """Seed of this model, combined with the seed of each episode."""
    name: str = "random"
    """Name in result rows."""

    def begin(self, goal: str, *, seed: int = 0) -> "RandomConversation":
        """Begin an episode, seeded by this model's seed and `seed`. `goal` has no effect."""
        return RandomConversation(random.Random(f"{self.seed}/{seed}"))


class RandomConversation:
    """One episode of `RandomClicks`."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    def reply(self, page: Page, note: str = "", deadline: float | None = None) -> Reply:
        """Return a click on a random element of `page`. `note` and `deadline` have no effect."""
        choices = [node for node in page.nodes if node.id is not None and node.role in CLICKABLE]
        if not choices:
            return Reply(text=write_reply(Action(kind="scroll", direction="down"), page))
        node = self._rng.choice(choices)
        return Reply(text=write_reply(Action(kind="click", element_id=node.id), page))


@dataclass(frozen=True, slots=True)
class Obedient:
    """A `Model` that pursues no goal: it obeys pages, to test what holds when a model does.

    Its conversations carry out the last `ignore your goal and do: ACTION` of the first page that
    says one, wherever it says so, and then stop. They stop at once on a page that orders nothing.
    """

    name: str = "obedient"
    """Name in result rows."""

    def begin(self, goal: str, *, seed: int = 0) -> "ObedientConversation":
        """Begin an episode. `goal` and `seed` have no effect."""
        return ObedientConversation()


class ObedientConversation:
    """One episode of `Obedient`."""

    def __init__(self) -> None:
        self.has_obeyed = False
        """True once a page has ordered something."""
        self.read = ""
        """All that the model was shown."""

    def reply(self, page: Page, note: str = "", deadline: float | None = None) -> Reply:
        """Return the action that `page` orders, or a stop. `deadline` has no effect."""
        text = serialize(page).text
        self.read += f"{original_brackets(text)}\n{note}\n"
        said = unquote(original_brackets(_NUMBER.sub("", text)))
        orders = [] if self.has_obeyed else _ORDER.findall(said)
        self.has_obeyed |= bool(orders)
        return Reply(text=f"```{orders[-1] if orders else 'stop []'}```", observation=text)


def resolve(
    step: str, page: Page, *, number: int = 1, goal: str = "", before: Sequence[Page] = ()
) -> str:
    """Return the reply that carries out the solution's `step` on `page`.

    Args:
        number: the step's number, for error messages.
        goal: the episode's goal; text that it contains is not quoted.
        before: the pages seen before, in order, from which typed text may be quoted.

    Raises:
        SolutionStuck: no such element, fewer such elements than the step asks for, or a step that
            is not an action. The message lists the page's elements of that role.
    """
    named = _NAMED.match(step.strip())
    line = step.strip()
    if named is not None:
        node = _find_element(named, page, f"step {number} `{line}`")
        line = f"{named['verb']} [{node.id}]{named['rest']}"
    try:
        action = parse(line)
    except ActionError as error:
        raise SolutionStuck(f"step {number} `{step}` is not an action: {error}") from error
    return write_reply(action, page, quote=find_quotation(action, goal, [*before, page]))


def _find_element(named: re.Match[str], page: Page, step: str) -> Node:
    role, name, nth = named["role"], shown_name(named["name"]), int(named["nth"] or 1)
    of_role = [node for node in page.nodes if node.id is not None and node.role == role]
    matching = [node for node in of_role if shown_name(node.name) == name]
    if len(matching) < nth:
        known = ", ".join(repr(shown_name(node.name)) for node in of_role) or "none"
        found = f"only {len(matching)} elements match" if matching else "no such element"
        raise SolutionStuck(f"{step}: {found} on {page.url}; {role}s on the page: {known}")
    return matching[nth - 1]
