"""A job whose reply is in progress: what the client was sent of it, and what its session keeps."""

import bisect
import time
from typing import Any

from agentkv.dialog.calls import Call
from agentkv.dialog.grammar import Matcher
from agentkv.dialog.messages import Chat, MessageTemplate
from agentkv.dialog.reply_parts import ReplyParts, TextPart
from agentkv.models.generation import Generation
from agentkv.models.rules import TextRule
from agentkv.serve.job import EngineJob, ReplyDelta, ReplyEnd, ReplyToken, SavedFile, TopToken
from agentkv.serve.reuse import Reuse
from agentkv.serve.session import History, ResumePoint, ServedSession, said_in, usage
from agentkv.serve.token_notes import notes_of
from agentkv.serve.waiting import NewIds


class RunningJob:
    """A job with its session, and the reply in progress.

    Args:
        history: what the stream holds before the reply.
        matcher: a fresh matcher of the job's grammar; None for free text.
        new: what is to be read.
        point: where the session goes on; None if everything is read.
        max_tokens: maximum number of tokens in the reply.
        reuse: how the session was found.
    """

    def __init__(
        self,
        job: EngineJob,
        session: ServedSession,
        history: History,
        matcher: Matcher | None,
        new: NewIds,
        point: ResumePoint | None,
        template: MessageTemplate,
        max_tokens: int,
        reuse: Reuse,
    ) -> None:
        self.job, self.session, self.stages = job, session, new.unshared
        """`stages` are what is still to be read."""
        self._stops = new.stops
        self._history, self._template = history, template
        before, chat = new.stages[-1][0], job.prompt
        # a space at its start counts if it continues a text, or the grammar tells each character
        begins = isinstance(chat, Chat) and chat.prefix is None and job.grammar is None
        self.rule = TextRule(
            template.decode_reply,
            end_ids=() if job.ignores_end else template.end_ids,
            max_tokens=max_tokens,
            stops=job.stops,
            matcher=matcher,
            before=() if begins else before,
            min_tokens=job.min_tokens,
            num_ids=template.num_ids,
        )
        self._parts = ReplyParts(None)
        if isinstance(chat, Chat):
            self._parts = template.parts(before, functions=job.functions)
        self._num_empty = 0 if point is None else point.num_empty
        self.num_cached = 0
        if point is not None:
            self.num_cached = point.kept - point.num_empty - reuse.num_inserted
        self.num_unread = 0 if point is None else max(0, len(point.unread) - point.num_shared)
        """Ids at the beginning of the first stage that belong to the reply before it."""
        num_new = sum(len(ids) for ids, _ in self.stages)
        self.num_prompt = self.num_cached + reuse.num_inserted + num_new
        self._reuse = reuse
        self.generation: Generation | None = None
        self.noted_from: int | None = None
        """Position of the reply's first token in the stream; None until the last stage begins, and
        if no notes are kept of the reply's tokens."""
        self._num_shown, self._num_tokens, self._num_noted = 0, 0, 0
        """Characters, tokens and log-probabilities that the client has been sent."""
        self._num_thought = 0
        self._said = ""
        """Text of the reply, without thoughts and calls."""
        self._calls: list[Call] = []

    def show(self, *, is_last: bool = False) -> bool:
        """Send what the reply has grown by; return True if that is its first token."""
        rule = self.rule
        parts = self._parts.feed(rule.text[self._num_shown :])
        self._num_shown = len(rule.text)
        if is_last:
            parts += self._parts.finish(is_cut=rule.ended_by == "length")
        num_new = len(rule.ids) - self._num_tokens
        is_first = num_new > 0 and not self._num_tokens
        noted = self.job.num_logprobs is not None
        tokens = self._new_tokens(is_last=is_last) if noted else ()
        self._num_tokens = len(rule.ids)
        for part in parts:
            if isinstance(part, Call):
                self._calls.append(part)
            elif part.kind == "content":
                self._said += part.text
        if any(isinstance(part, TextPart) and part.kind == "reasoning" for part in parts):
            self._num_thought += num_new
        if parts or tokens:
            self.job.send(ReplyDelta(tuple(parts), tokens, self.num_prompt, self.num_cached))
        return is_first

    def _new_tokens(self, *, is_last: bool) -> tuple[ReplyToken, ...]:
        """Return the tokens whose text is now shown, with their log-probabilities.

        A token that is part of a stop text is shown only if it has text before the stop as well.
        """
        rule, generation = self.rule, self.generation
        assert generation is not None
        is_whole = is_last and len(rule.text) == len(rule.decoded)
        begin = self._num_noted
        while self._num_noted < len(rule.ids) and (
            is_whole or self._start(self._num_noted) < len(rule.text)
        ):
            self._num_noted += 1
        first = bisect.bisect_left(rule.sampled, begin)
        sampled, noted = rule.sampled[first:], generation.logprobs[first : len(rule.sampled)]
        logprobs = dict(zip(sampled, noted, strict=True))
        found = []
        for i in range(begin, self._num_noted):
            own = logprobs.get(i)
            data, text = self._bytes(rule.ids[i], i)
            top = () if own is None else tuple(self._top(id, value, i) for id, value in own.top)
            found.append(ReplyToken(rule.ids[i], self._start(i), data, text, own, top))
        return tuple(found)

    def _start(self, number: int) -> int:
        """Return where the text of a token begins in the decoded reply."""
        return self.rule.ends[number - 1] if number else 0

    def _top(self, id: int, logprob: float, number: int) -> TopToken:
        return TopToken(*self._bytes(id, number), logprob)

    def _bytes(self, id: int, number: int) -> tuple[bytes | None, str]:
        """Return the bytes and the text of a token in a place of the reply.

        Where no text stands before it, a decoder may drop a space at its beginning.
        """
        data = self._template.bytes_of(id)
        if data is None:
            return None, self._template.decode([id])
        if data.startswith(b" ") and not self._start(number):
            data = self.rule.decode_at(number, id).encode()
        return data, data.decode("utf-8", "backslashreplace")

    def settle(self, unread: list[int]) -> None:
        """Write down what the stream of the session holds after the reply."""
        session, prompt, history = self.session, self.job.prompt, self._history
        assert session.cache is not None
        num_read = 0
        if isinstance(prompt, Chat):
            said = (prompt.prefix or "") + self._said
            calls = [{"function": {"name": c.name, "arguments": c.arguments}} for c in self._calls]
            reply: dict[str, Any] = {"role": "assistant", "content": said, "tool_calls": calls}
            history = (*history, said_in(reply))
            num_read = len(prompt.messages) + 1
        else:
            # a stop text was read too: a client that goes on with it goes on with the stream
            history = prompt + self.rule.decoded
        end = ResumePoint(
            len(history), session.cache.seen, num_read, tuple(unread), self._num_empty
        )
        notes = []
        if self.noted_from is not None and self.generation is not None:
            notes = notes_of(self.generation, self.noted_from)
        session.settle(history, end, self._stops, notes)

    def finished(self, saved: SavedFile | None) -> ReplyEnd:
        """Return the event that ends the reply, after which the session may have been saved."""
        session, generation = self.session, self.generation
        assert session.cache is not None and generation is not None
        ended = generation.ended_at or time.monotonic()
        read = generation.prefilled_at or ended
        has_called = bool(self._calls) and self.rule.ended_by == "stop"
        return ReplyEnd(
            reason="tool_calls" if has_called else self.rule.ended_by,
            num_prompt=self.num_prompt,
            num_cached=self.num_cached,
            num_written=len(self.rule.ids),
            num_thought=self._num_thought,
            session=session.label,
            slot=session.slot,
            cache=usage(session.cache),
            reuse=self._reuse,
            read_s=read - self.job.asked_at,
            write_s=ended - read,
            stop=self.rule.stop,
            saved=saved,
        )
