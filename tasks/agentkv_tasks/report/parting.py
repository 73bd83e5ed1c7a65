"""Where two episodes of one task part."""

from collections.abc import Sequence
from dataclasses import dataclass

from agentkv.trace import Step


@dataclass(frozen=True, slots=True)
class Parting:
    """The first differences between two episodes; places of steps, from 0."""

    action: int | None
    """First step with another action, or which only one episode has; None if all are equal."""
    page: int | None
    """First step that both have whose page was shown in another text; None if all are equal."""

    def lines(self) -> tuple[str, ...]:
        """Say both in words, with steps counted from 1."""
        action = (
            "the actions are equal"
            if self.action is None
            else f"the actions part at step {self.action + 1} (!)"
        )
        page = (
            "the pages of all common steps are equal"
            if self.page is None
            else f"the pages differ first at step {self.page + 1} (~)"
        )
        return action, page


def find_parting(one: Sequence[Step], other: Sequence[Step]) -> Parting:
    """Return where two episodes part."""
    both = list(zip(one, other, strict=False))
    actions = [place for place, (a, b) in enumerate(both) if a.action != b.action]
    pages = [place for place, (a, b) in enumerate(both) if a.observation != b.observation]
    shorter, longer = sorted((len(one), len(other)))
    if shorter < longer:
        actions.append(shorter)
    return Parting(actions[0] if actions else None, pages[0] if pages else None)
