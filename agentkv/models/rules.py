"""Rules for one reply: the tokens it may continue with, and when it is complete."""

from typing import Protocol

import torch
from torch import Tensor

from agentkv.dialog.grammar import Matcher
from agentkv.dialog.prompt import Template, Thinking
from agentkv_env.timing import Stopwatch, timed


class Rule(Protocol):
    """Constrains one reply, token by token, and collects its ids."""

    @property
    def ids(self) -> list[int]:
        """The reply so far."""
        ...

    @property
    def pending(self) -> list[int]:
        """The last ids of the reply, added by the latest `accept` (or before the first): the model
        has not read them yet."""
        ...

    @property
    def is_complete(self) -> bool:
        """True once the reply takes no more ids."""
        ...

    def allowed(self) -> Tensor | None:
        """Return a mask of the ids that may come next: bool, (some vocabulary,), on the CPU.

        None allows every id.
        """
        ...

    @property
    def answer(self) -> list[int]:
        """The reply so far, without a thought before it."""
        ...

    def accept(self, id: int) -> None:
        """Append a sampled id, which must be allowed. Updates all three attributes."""
        ...


class GrammarRule:
    """A `Rule` that admits only the replies of a page's grammar.

    Ids that the grammar forces are neither sampled nor fed in forwards of their own: they are
    pending together with the sampled id before them.

    Args:
        matcher: a fresh matcher; it is advanced.
        stopwatch: charged with `grammar`.
    """

    def __init__(self, matcher: Matcher, *, stopwatch: Stopwatch | None = None) -> None:
        self._matcher, self._stopwatch = matcher, stopwatch
        self.ids: list[int] = []
        self.pending: list[int] = []
        self.is_complete = False
        self._extend([])

    @property
    def answer(self) -> list[int]:
        """All ids."""
        return self.ids

    def allowed(self) -> Tensor:
        """Return the grammar's mask: bool, (vocabulary of the tokenizer,), on the CPU."""
        with timed(self._stopwatch, "grammar"):
            return self._matcher.allowed()

    def accept(self, id: int) -> None:
        """Append `id`, which must be allowed, and the ids that the grammar then forces."""
        with timed(self._stopwatch, "grammar"):
            self._matcher.consume([id])
            self._extend([id])

    def _extend(self, new: list[int]) -> None:
        """Append `new` and all ids that the grammar then forces."""
        while not self._matcher.is_complete and (forced := self._matcher.forced()):
            self._matcher.consume(forced)
            new += forced
        self.ids += new
        self.pending, self.is_complete = new, self._matcher.is_complete


class FreeRule:
    """A `Rule` that allows every id. An end token or `max_tokens` end the reply.

    Args:
        is_action: a second fence, after which the parser reads nothing, ends the reply as well.
    """

    def __init__(self, template: Template, *, max_tokens: int, is_action: bool = True) -> None:
        self._template, self._max_tokens, self._is_action = template, max_tokens, is_action
        self.ids: list[int] = []
        self.pending: list[int] = []
        self.is_complete = False

    @property
    def answer(self) -> list[int]:
        """All ids."""
        return self.ids

    def allowed(self) -> None:
        """Return None: every id is allowed."""

    def accept(self, id: int) -> None:
        """Append `id`, unless it is an end token."""
        if id in self._template.end_ids:
            self.pending, self.is_complete = [], True
            return
        self.ids.append(id)
        self.pending = [id]
        closes = self._is_action and self._closes_action(id)
        self.is_complete = closes or len(self.ids) == self._max_tokens

    def _closes_action(self, id: int) -> bool:
        # The parser stops at the second fence, so any text after it would be wasted.
        decode = self._template.decode
        return "`" in decode([id]) and decode(self.ids).count("```") >= 2


class ThinkingRule:
    """A `Rule` that lets the model think before the reply that another rule constrains.

    A thought may have any text. It ends with the template's end of thoughts, sampled or after
    `max_tokens` tokens, and is no part of the answer.

    Args:
        reply: the rule of the reply; it is advanced.
        thinking: how the model of the template thinks.
        max_tokens: maximum number of tokens in the thought, without its end.
    """

    def __init__(self, reply: Rule, thinking: Thinking, *, max_tokens: int) -> None:
        self._reply, self._thinking, self._max_tokens = reply, thinking, max_tokens
        self.thought: list[int] = []
        """The thought and its end."""
        self.pending: list[int] = []
        self._is_thinking = True
        self._allowed = torch.ones(thinking.num_ids, dtype=torch.bool)
        self._allowed[list(thinking.forbidden)] = False

    @property
    def ids(self) -> list[int]:
        """Thought and reply so far."""
        return self.thought if self._is_thinking else [*self.thought, *self._reply.ids]

    @property
    def answer(self) -> list[int]:
        """The reply so far."""
        return [] if self._is_thinking else self._reply.answer

    @property
    def is_complete(self) -> bool:
        """True once the reply takes no more ids."""
        return not self._is_thinking and self._reply.is_complete

    def allowed(self) -> Tensor | None:
        """Return a mask of the ids that may come next; see `Rule`."""
        return self._allowed if self._is_thinking else self._reply.allowed()

    def accept(self, id: int) -> None:
        """Append a sampled id; the end of a thought brings the beginning of the reply with it."""
        if not self._is_thinking:
            self._reply.accept(id)
            self.pending = self._reply.pending
            return
        first, *others = self._thinking.end
        new = [id]
        if id == first:
            new += others
        elif len(self.thought) + 1 == self._max_tokens:
            new += self._thinking.end
        self.thought += new
        self._is_thinking = len(new) == 1 and id != first
        self.pending = new if self._is_thinking else [*new, *self._reply.pending]
