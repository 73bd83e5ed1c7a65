"""Rules for one reply: the tokens it may continue with, and when it is complete."""

from collections.abc import Callable, Collection, Sequence
from typing import Literal, Protocol

import torch
from torch import Tensor

from agentkv.dialog.call_forms.arriving import overlap
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


class _WholeReply:
    """Ids of a reply without a thought before it."""

    def __init__(self) -> None:
        self.ids: list[int] = []
        self.pending: list[int] = []
        self.is_complete = False

    @property
    def answer(self) -> list[int]:
        """All ids."""
        return self.ids


class GrammarRule(_WholeReply):
    """A `Rule` that admits only the replies of a page's grammar.

    Ids that the grammar forces are neither sampled nor fed in forwards of their own: they are
    pending together with the sampled id before them.

    Args:
        matcher: a fresh matcher; it is advanced.
        stopwatch: charged with `grammar`.
    """

    def __init__(self, matcher: Matcher, *, stopwatch: Stopwatch | None = None) -> None:
        super().__init__()
        self._matcher, self._stopwatch = matcher, stopwatch
        self._extend([])

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


class FreeRule(_WholeReply):
    """A `Rule` that allows every id. An end token or `max_tokens` end the reply.

    Args:
        is_action: a second fence, after which the parser reads nothing, ends the reply as well.
    """

    def __init__(self, template: Template, *, max_tokens: int, is_action: bool = True) -> None:
        super().__init__()
        self._template, self._max_tokens, self._is_action = template, max_tokens, is_action

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


class TextRule(_WholeReply):
    """A `Rule` for a reply in text, free or within a grammar, which is decoded as it is written.

    It ends with an end token, after `max_tokens` tokens, or with a stop text.

    Args:
        decode: decodes ids with their control tokens.
        end_ids: ids that end the reply; they are no part of it.
        max_tokens: maximum number of tokens in the reply; 0 writes nothing.
        stops: texts that end the reply; they are no part of its text.
        matcher: a fresh matcher of the grammar, which is advanced; None allows every id.
        before: ids whose text the reply continues; none if it begins a text, at whose beginning
            some decoders drop a space.
        min_tokens: tokens before which no end token may be sampled, unless the grammar allows
            nothing else.
        num_ids: largest id of the tokenizer, plus one; used with `min_tokens`.
    """

    def __init__(
        self,
        decode: Callable[[Sequence[int]], str],
        *,
        end_ids: Collection[int],
        max_tokens: int,
        stops: Sequence[str] = (),
        matcher: Matcher | None = None,
        before: Sequence[int] = (),
        min_tokens: int = 0,
        num_ids: int = 0,
    ) -> None:
        super().__init__()
        self._decode, self._end_ids, self._max_tokens = decode, end_ids, max_tokens
        self._stops, self._matcher = [stop for stop in stops if stop], matcher
        self.is_complete = max_tokens == 0
        self.ended_by: Literal["stop", "length"] = "length" if max_tokens == 0 else "stop"
        """What ended the reply: an end token or a stop text, or its maximum length."""
        self.stop: str | None = None
        """The stop text that cut the reply."""
        self.text = ""
        """Decoded text of the reply, without what may still turn out to be part of a character or
        of a stop text."""
        self.sampled: list[int] = []
        """Places of the ids that were sampled; the grammar forced the others."""
        self.ends: list[int] = []
        """Per id, the length of the decoded text up to it, a stop text included."""
        self.decoded = ""
        """Decoded text of all complete characters, a stop text included."""
        self._before = list(before[-_MAX_WAITING:])
        self._min_tokens = min_tokens
        self._goes_on = torch.ones(num_ids if min_tokens else 0, dtype=torch.bool)
        """Mask of the ids that do not end the reply."""
        self._goes_on[[id for id in end_ids if id < len(self._goes_on)]] = False
        self._first, self._num_decoded = 0, 0
        """The first id that the decoder is given, and the number of ids that are decoded."""
        if matcher is not None and not self.is_complete:
            self._extend([])

    def allowed(self) -> Tensor | None:
        """Return the grammar's mask, without end tokens as long as none may come; None if every
        id is allowed."""
        mask = None if self._matcher is None else self._matcher.allowed()
        if len(self.ids) >= self._min_tokens:
            return mask
        if mask is None:
            return self._goes_on
        size = min(len(mask), len(self._goes_on))
        longer = mask[:size] & self._goes_on[:size]
        return longer if longer.any() else mask

    def accept(self, id: int) -> None:
        """Append `id`, unless it is an end token, and the ids that the grammar then forces."""
        if id in self._end_ids:
            self._finish([])
            return
        self.sampled.append(len(self.ids))
        if self._matcher is not None:
            self._matcher.consume([id])
        self._extend([id])

    def decode_at(self, number: int, id: int) -> str:
        """Return the text that `id` has in place of the `number`th id of the reply, before which
        there is no text."""
        before = [*self._before, *self.ids[:number]]
        return self._decode([*before, id])[len(self._decode(before)) :]

    def _extend(self, new: list[int]) -> None:
        """Append `new` and all ids that the grammar then forces, up to where the reply ends."""
        matcher = self._matcher
        while matcher is not None and not matcher.has_ended and (forced := matcher.forced()):
            matcher.consume(forced)
            new += forced
        taken: list[int] = []
        for id in new:
            taken.append(id)
            self.ids.append(id)
            self._decode_more()
            if self._has_stopped():
                self._finish(taken)
                return
            if len(self.ids) == self._max_tokens:
                self.ended_by = "length"
                self._finish(taken)
                return
        if matcher is not None and matcher.has_ended:
            self._finish(taken)
            return
        self.pending = taken

    def _decode_more(self, *, is_last: bool = False) -> None:
        """Decode the newest id, as soon as it completes a character.

        Decoders see the ids from the last complete text on, because some treat the first id in
        another way.
        """
        known = [] if self._first else self._before
        before = self._decode([*known, *self.ids[self._first : self._num_decoded]])
        after = self._decode([*known, *self.ids[self._first :]])
        waits = after.endswith("\ufffd") and len(self.ids) - self._num_decoded < _MAX_WAITING
        if len(after) > len(before) and (is_last or not waits):
            self.decoded += after[len(before) :]
            self._first, self._num_decoded = self._num_decoded, len(self.ids)
        self.ends += [len(self.decoded)] * (len(self.ids) - len(self.ends))

    def _has_stopped(self) -> bool:
        """Move what is decoded into the text; return True if a stop text ends it."""
        longest = max(map(len, self._stops), default=0)
        tail = max(0, len(self.text) - longest)
        at = {stop: self.decoded.find(stop, tail) for stop in self._stops}
        found = {stop: start for stop, start in at.items() if start >= 0}
        if found:
            self.stop = min(found, key=found.__getitem__)
            self.text = self.decoded[: found[self.stop]]
            return True
        held = max((overlap(self.decoded, stop) for stop in self._stops), default=0)
        self.text = self.decoded[: len(self.decoded) - held]
        return False

    def _finish(self, pending: list[int]) -> None:
        self.pending, self.is_complete = pending, True
        if self._num_decoded < len(self.ids):
            self._decode_more(is_last=True)
        if not self._has_stopped():
            self.text = self.decoded


_MAX_WAITING = 8
"""Ids that may wait for the rest of a character; more are no text."""
