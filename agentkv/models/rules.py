"""What a reply may say next and when it is over: held to its page's grammar, or free."""

from typing import Protocol

from torch import Tensor

from agentkv.dialog.grammar import Matcher
from agentkv.dialog.prompt import Template


class Rule(Protocol):
    """Follows one reply, token by token."""

    ids: list[int]
    """The reply so far."""
    unread: list[int]
    """Those at its end that came with the latest choice, or before the first."""
    is_over: bool

    def allowed(self) -> Tensor | None:
        """Which ids may come next: bool, (some vocabulary,), on the CPU; None: any."""
        ...

    def take(self, id: int) -> None:
        """Go on past a chosen id."""
        ...


class Constrained:
    """A reply that its page's grammar allows. What the grammar forces needs no choice, and no
    forward of its own: it is read with what was chosen before it."""

    def __init__(self, matcher: Matcher) -> None:
        self._matcher = matcher
        self.ids: list[int] = []
        self.unread: list[int] = []
        self.is_over = False
        self._go_on([])

    def allowed(self) -> Tensor:
        return self._matcher.allowed()

    def take(self, id: int) -> None:
        self._matcher.consume([id])
        self._go_on([id])

    def _go_on(self, new: list[int]) -> None:
        while not self._matcher.is_complete and (forced := self._matcher.forced()):
            self._matcher.consume(forced)
            new += forced
        self.ids += new
        self.unread, self.is_over = new, self._matcher.is_complete


class Free:
    """Anything, up to an end token, the second fence or the most tokens there may be."""

    def __init__(self, template: Template, *, most: int) -> None:
        self._template, self._most = template, most
        self.ids: list[int] = []
        self.unread: list[int] = []
        self.is_over = False

    def allowed(self) -> None:
        return None

    def take(self, id: int) -> None:
        if id in self._template.end_ids:
            self.unread, self.is_over = [], True
            return
        self.ids.append(id)
        self.unread = [id]
        self.is_over = len(self.ids) == self._most or self._is_closed(id)

    def _is_closed(self, id: int) -> bool:
        # A second fence closes the action; whatever a chatty model adds is never read.
        decode = self._template.decode
        return "`" in decode([id]) and decode(self.ids).count("```") >= 2
