"""What a request keeps of a session, and where the two first differ."""

from dataclasses import dataclass
from typing import Literal

from agentkv.models.stream import common_start
from agentkv.serve.session import History

How = Literal["continued", "edited", "returned", "forked", "new", "lost"]
"""Where a request begins to read: after all that its session holds; after that, once earlier
messages were edited as the request has them; after an earlier state of the
session; after a fork of another session; at its own beginning, as no session has that;
at its own beginning, as the session's state is of no use."""


@dataclass(frozen=True, slots=True)
class Difference:
    """The first place in a session's stream where a request says something else."""

    message: int | None = None
    """Number among the request's messages, from 0; None for the functions or in a raw prompt."""
    character: int | None = None
    """Place in its content, or in the raw prompt, from 0. None where the contents are equal, or the
    session's is not known any more."""
    is_end: bool = False
    """Whether the request ends here, and the stream goes on."""

    @property
    def told(self) -> str:
        """A clause for people."""
        if self.message is None and self.character is None:
            return "the functions differ"
        what = "the prompt" if self.message is None else f"message {self.message}"
        if self.is_end:
            return "the request ends " + ("early" if self.message is None else f"before {what}")
        if self.character is None:
            return f"{what} differs"
        return f"{what} differs from character {self.character} on"


def first_difference(held: History, asked: History) -> Difference | None:
    """Return where a request first differs from a stream; None if it has all of the stream."""
    if isinstance(held, str) or isinstance(asked, str):
        if not (isinstance(held, str) and isinstance(asked, str)):
            return None
        shared = common_start(held, asked)
        at_end = shared == len(asked)
        return None if shared == len(held) else Difference(character=shared, is_end=at_end)
    shared = common_start(held, asked)
    if shared == len(held):
        return None
    if shared == 0:
        return Difference()
    if shared == len(asked):
        return Difference(shared - 1, is_end=True)
    return Difference(shared - 1, _first_character(held[shared].text, asked[shared].text))


def _first_character(one: str | None, other: str | None) -> int | None:
    if one is None or other is None or one == other:
        return None
    return common_start(one, other)


@dataclass(frozen=True, slots=True)
class Reuse:
    """What a request keeps of a session, and why it keeps no more."""

    how: How
    num_forgotten: int
    """Tokens that the session had read and no longer holds."""
    difference: Difference | None
    """Where the session first differs, or the session that is most like a request without one."""
    num_inserted: int = 0
    """Tokens that were read in the middle of the session's stream."""

    def told(self, num_kept: int) -> str:
        """Return a sentence for people, without any text of the request.

        Args:
            num_kept: tokens of the prompt that were in the cache.
        """
        why = "" if self.difference is None else f": {self.difference.told}"
        forgot = f"; forgot {self.num_forgotten:,}" if self.num_forgotten else ""
        match self.how:
            case "continued":
                return f"continued; kept {num_kept:,} tokens"
            case "edited":
                inserted = f"; read {self.num_inserted:,} in their place" * bool(self.num_inserted)
                return f"edited{why}; kept {num_kept:,} tokens; dropped " + (
                    f"{self.num_forgotten:,}{inserted}"
                )
            case "returned":
                return f"returned to an earlier state{why}; kept {num_kept:,} tokens{forgot}"
            case "forked":
                return f"forked at {num_kept:,} tokens{why}{forgot}"
            case "lost":
                return f"read from the beginning, because the kept state is of no use{forgot}"
            case "new":
                return f"read from the beginning{why}{forgot}"
