"""A reply in progress: what the client has been sent of it, and what it leaves in its session."""

import bisect
import time
from typing import Any

from agentkv.dialog.calls import Call
from agentkv.dialog.messages import Chat, MessageTemplate
from agentkv.dialog.reply_parts import Part, ReplyParts
from agentkv.models.generation import Generation
from agentkv.models.rules import TextRule
from agentkv.serve.job import Finished, Job, Token, TopToken, Wrote
from agentkv.serve.prompts import Stage
from agentkv.serve.session import History, Place, Session, message_digest, usage


class RunningReply:
    """A job with its session, and the reply in progress.

    Args:
        stages: what is to be read, in order.
        rule: the rule of the reply.
        parts: takes its text apart.
        place: where the session goes on; None if everything is read.
        template: the model's chat template, for the bytes of tokens.
    """

    def __init__(
        self,
        job: Job,
        session: Session,
        stages: list[Stage],
        rule: TextRule,
        parts: ReplyParts,
        place: Place | None,
        template: MessageTemplate,
    ) -> None:
        self.job, self.session, self.rule, self.parts = job, session, rule, parts
        self.stages = stages
        """What is still to be read."""
        self.num_cached = 0 if place is None else place.seen
        self.num_unread = 0 if place is None else len(place.unread)
        """Ids at the beginning of the first stage that belong to the reply before it."""
        self.num_prompt = self.num_cached + sum(len(ids) for ids, _ in stages)
        self.generation: Generation | None = None
        self.num_shown, self.num_tokens, self.num_noted = 0, 0, 0
        """Characters, tokens and log-probabilities that the client has been sent."""
        self.num_thought = 0
        self.said = ""
        """Text of the reply, without thoughts and calls."""
        self.calls: list[Call] = []
        self._template = template

    def show(self, *, is_last: bool = False) -> bool:
        """Send what the reply has grown by; return True if that is its first token."""
        rule = self.rule
        parts = self.parts.feed(rule.text[self.num_shown :])
        self.num_shown = len(rule.text)
        if is_last:
            parts += self.parts.finish(is_cut=rule.ended_by == "length")
        num_new = len(rule.ids) - self.num_tokens
        is_first = num_new > 0 and not self.num_tokens
        noted = self.job.ask.num_logprobs is not None
        tokens = self._new_tokens(is_last=is_last) if noted else ()
        self.num_tokens = len(rule.ids)
        for part in parts:
            if isinstance(part, Call):
                self.calls.append(part)
            elif part.kind == "content":
                self.said += part.text
        if any(isinstance(part, Part) and part.kind == "reasoning" for part in parts):
            self.num_thought += num_new
        if parts or tokens:
            self.job.send(Wrote(tuple(parts), tokens))
        return is_first

    def _new_tokens(self, *, is_last: bool) -> tuple[Token, ...]:
        """Return the tokens whose text is now shown, with their log-probabilities.

        Those that only make up a stop text are never shown. One that has text before it as well is.
        """
        rule, generation = self.rule, self.generation
        assert generation is not None
        is_whole = is_last and len(rule.text) == len(rule.decoded)
        begin = self.num_noted
        while self.num_noted < len(rule.ids) and (
            is_whole or self._start(self.num_noted) < len(rule.text)
        ):
            self.num_noted += 1
        first = bisect.bisect_left(rule.sampled, begin)
        sampled, noted = rule.sampled[first:], generation.logprobs[first : len(rule.sampled)]
        logprobs = dict(zip(sampled, noted, strict=True))
        found = []
        for i in range(begin, self.num_noted):
            own = logprobs.get(i)
            data, text = self._bytes(rule.ids[i], i)
            top = () if own is None else tuple(self._top(id, value, i) for id, value in own.top)
            found.append(Token(rule.ids[i], self._start(i), data, text, own, top))
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
        """Write down what the stream of a session holds after a reply."""
        ask, session = self.job.ask, self.session
        assert session.cache is not None
        history: History
        num_read = 0
        if isinstance(ask.prompt, Chat):
            reply = _reply_message((ask.prompt.prefix or "") + self.said, self.calls)
            assert isinstance(self.job.history, tuple)
            history = (*self.job.history, message_digest(reply))
            num_read = len(ask.prompt.messages) + 1
        else:
            # a stop text was read too: a client that goes on with it goes on with the stream
            history = ask.prompt + self.rule.decoded
        session.history = history
        session.end = Place(len(history), session.cache.seen, num_read, tuple(unread))

    def finished(self) -> Finished:
        """Return the event that ends the reply."""
        session, cache = self.session, self.session.cache
        assert cache is not None
        num_written, generation = len(self.rule.ids), self.generation
        assert generation is not None
        ended = generation.ended_at or time.monotonic()
        read = generation.prefilled_at or ended
        has_called = bool(self.calls) and self.rule.ended_by == "stop"
        return Finished(
            reason="tool_calls" if has_called else self.rule.ended_by,
            num_prompt=self.num_prompt,
            num_cached=self.num_cached,
            num_written=num_written,
            num_thought=self.num_thought,
            session=session.label,
            slot=session.slot,
            cache=usage(cache),
            read_s=read - self.job.asked_at,
            write_s=ended - read,
        )


def _reply_message(content: str, calls: list[Call]) -> dict[str, Any]:
    """Return a reply as a message in OpenAI's form, calls without their ids."""
    return {
        "role": "assistant",
        "content": content or None,
        "tool_calls": [
            {"function": {"name": call.name, "arguments": call.arguments}} for call in calls
        ],
    }
