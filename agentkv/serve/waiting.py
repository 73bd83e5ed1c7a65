"""Jobs that wait: threads turn their prompts into ids, which must fit the model and the memory.

A long prompt takes seconds to encode; replies in progress go on meanwhile.
"""

import bisect
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import TypeVar

from agentkv.cache.cache import Cache
from agentkv.dialog.grammar import Grammar, Matcher
from agentkv.dialog.messages import Chat, MessageTemplate
from agentkv.dialog.rendering import TemplateError
from agentkv.models.model import Cancelled, ContextLimit
from agentkv.models.stream import common_start
from agentkv.plan import CachePlan, plan_cache
from agentkv.serve.edits import EditBasis, EditPlan, plan_edits
from agentkv.serve.job import EngineJob, MemoryLimit
from agentkv.serve.matching import Held, SessionQuery
from agentkv.serve.session import CacheSettings, History, ResumePoint, chat_history
from agentkv.serve.sessions import SessionStore

T = TypeVar("T")
Stage = tuple[list[int], ResumePoint | None]
"""Ids that are read in one go, and the point after them, of which a snapshot is kept."""


@dataclass(frozen=True, slots=True)
class NewIds:
    """What is read of a prompt, and after what."""

    stages: list[Stage]
    point: ResumePoint | None
    """The point after which the ids are read; None for a whole prompt. If it shares ids, the stages
    begin with them."""
    stops: tuple[int, ...] | None = None
    """Where messages end in the stream: those that are read, and the reply before them if there is
    one. None if that is not known."""
    plan: EditPlan | None = None
    """Edits of the session that the point is the end of; None for none."""

    @property
    def num_ids(self) -> int:
        """Ids of all stages."""
        return sum(len(ids) for ids, _ in self.stages)

    @property
    def unshared(self) -> list[Stage]:
        """The stages without the ids that the point shares."""
        num_shared = 0 if self.point is None else self.point.num_shared
        (first, after), *later = self.stages
        return [(first[num_shared:], after), *later]

    def sharing(self, held: Held) -> "NewIds":
        """Return these ids with a point that keeps those with which the first stage begins. At
        least one id is read."""
        if (self.point is None) != (held.after is None):  # the template refused the point
            return self
        ids = self.stages[0][0]
        num_shared = min(common_start(ids, held.ids), len(ids) - 1)
        if num_shared < held.least:
            return self
        # the cache itself goes back to there
        point = replace(self.point or ResumePoint(0), snapshot=None, num_shared=num_shared)
        return replace(self, point=point)


_MOST_CHARACTERS = 32
"""Characters per token beyond which a text is refused unread (our choice: text has about four)."""


class Prompts:
    """Turns prompts into ids, and refuses those that fit neither the model nor the memory.

    Args:
        sessions: give the memory and empty caches.
        max_positions: the model's context length in tokens; None if unlimited.
        most_tokens: maximum number of tokens in a reply.
    """

    def __init__(
        self,
        template: MessageTemplate,
        grammar: Grammar,
        sessions: SessionStore,
        *,
        max_positions: int | None,
        most_tokens: int,
    ) -> None:
        self._template, self._grammar, self._sessions = template, grammar, sessions
        self._max_positions, self._most_tokens = max_positions, most_tokens
        self._empty: dict[CacheSettings, Cache] = {}
        """Empty caches, for plans."""

    def begin(self, job: EngineJob) -> tuple[History, Matcher | None]:
        """Return what a job asks a stream to hold, and the matcher of its grammar.

        Raises:
            ContextLimit: the prompt is far longer than the model can read.
            GrammarError: llguidance rejected the grammar.
        """
        limit, prompt = self._max_positions, job.prompt
        texts: list[str | None]
        if isinstance(prompt, str):
            texts = [prompt]
        else:
            texts = [prompt.prefix, *(message["content"] for message in prompt.messages)]
        num_characters = sum(len(text or "") for text in texts)
        if limit is not None and num_characters > limit * _MOST_CHARACTERS:
            raise ContextLimit(
                f"the model has {limit} positions, and this conversation has {num_characters} "
                "characters"
            )
        history = chat_history(prompt) if isinstance(prompt, Chat) else prompt
        return history, None if job.grammar is None else self._grammar.match(job.grammar)

    def within_memory(self, settings: CacheSettings, num_prompt: int, max_tokens: int) -> int:
        """Return how many of `max_tokens` fit into the memory after a prompt.

        Raises:
            MemoryLimit: the prompt itself does not.
        """
        memory = self._sessions.group_memory
        least = self.bound(settings, num_prompt)
        if least > memory:
            raise MemoryLimit(
                f"the cache of this conversation would take {least} bytes and all sessions, or one "
                f"and its forks, together have {memory}; send less, or let the server have more "
                "memory or a smaller budget"
            )
        if self.bound(settings, num_prompt + max_tokens) <= memory:
            return max_tokens
        counts = range(max_tokens + 1)
        return (
            bisect.bisect_right(counts, memory, key=lambda n: self.bound(settings, num_prompt + n))
            - 1
        )

    def reply_tokens(self, wanted: int | None, num_prompt: int) -> int:
        """Return the maximum length of a reply.

        Raises:
            ContextLimit: too few positions are left for what the client wants, or for any reply.
        """
        granted = self._most_tokens
        max_tokens = granted if wanted is None else min(granted, wanted)
        limit = self._max_positions
        if limit is None:
            return max_tokens
        least = 1 if wanted is None else max_tokens
        if limit - num_prompt < least:
            raise ContextLimit(
                f"the model has {limit} positions; this conversation takes {num_prompt}, and the "
                f"reply at least {least}"
            )
        return min(max_tokens, limit - num_prompt)

    def new_ids(
        self, job: EngineJob, point: ResumePoint | None, basis: EditBasis | None = None
    ) -> NewIds:
        """Return the ids to read from a point on. Any thread may call it.

        The point becomes None if the template cannot go on from it, or nothing would be read.

        Args:
            basis: a session that is edited instead, if the request allows it.

        Raises:
            TemplateError: there is nothing to read, or the template refuses the messages.
        """
        if isinstance(job.prompt, str):
            found = self._of_text(job.prompt, job.prompt_ids, point)
        else:
            at_once, plan = job.grammar is not None, None
            if basis is not None:
                plan = self._edits(job.prompt, basis, at_once=at_once)
            if plan is not None:
                found = self._of_chat(job.prompt, plan.point, at_once=at_once)
                found = replace(found, plan=plan)
                # the template may be unable to go on from the reply
                plan = None if found.point is None else plan
            if plan is None:
                found = self._of_chat(job.prompt, point, at_once=at_once)
        if not found.stages[-1][0]:
            raise TemplateError("the prompt is empty; the model needs something to read")
        return found

    def num_ids(self, job: EngineJob) -> int:
        """Return the ids of a job's whole prompt. Any thread may call it; raises as `new_ids`."""
        if isinstance(job.prompt, str):
            return self.new_ids(job, None).num_ids
        # where the messages end takes longer to find, and does not count
        return sum(map(len, self._template.opening(job.prompt, at_once=job.grammar is not None)))

    def _of_text(
        self, prompt: str, prompt_ids: tuple[int, ...] | None, point: ResumePoint | None
    ) -> NewIds:
        if point is not None:
            ids = self._template.encode_prompt(prompt[point.length :], begins=False)
            if point.unread or ids:
                return NewIds([([*point.unread, *ids], None)], point)
        if prompt_ids is not None:
            return NewIds([(list(prompt_ids), None)], None)
        return NewIds([(self._template.encode_prompt(prompt, begins=True), None)], None)

    def _edits(self, chat: Chat, basis: EditBasis, *, at_once: bool) -> EditPlan | None:
        """Return the edits that make a session what a chat asks for; None if it is not edited."""
        try:
            first, rest = self._template.opening(chat, at_once=at_once)
        except TemplateError:
            return None
        pieces = self._template.by_message([*first, *rest], chat)
        return None if pieces is None else plan_edits(basis, chat, chat_history(chat), pieces)

    def _of_chat(self, chat: Chat, point: ResumePoint | None, *, at_once: bool) -> NewIds:
        if point is not None and point.num_read:
            try:
                ids = self._template.following(chat, point.num_read, at_once=at_once)
                stops = self._stops(ids, chat, point.num_read, point.seen + len(point.unread))
                return NewIds([([*point.unread, *ids], None)], point, stops)
            except TemplateError:
                point = None  # the opening says what is wrong, or has no trouble
        first, rest = self._template.opening(chat, at_once=at_once)
        stops = self._stops([*first, *rest], chat, 0, 0)
        if not first:
            return NewIds([(rest, None)], None, stops)
        after_first = ResumePoint(1 + chat.num_leading, len(first))
        if point is not None and point.length == after_first.length:
            return NewIds([(rest, None)], point, stops)
        return NewIds([(first, after_first), (rest, None)], None, stops)

    def _stops(
        self, ids: list[int], chat: Chat, num_read: int, start: int
    ) -> tuple[int, ...] | None:
        """Return where messages end whose ids begin at a position of the stream."""
        pieces = self._template.by_message(ids, chat, num_read)
        if pieces is None:
            return None
        return tuple(accumulate(map(len, pieces[:-1]), initial=start))[1:]

    def within_positions(self, job: EngineJob, new: NewIds) -> NewIds:
        """Return new ids that leave room for the reply: those of the whole prompt if tokens that
        were dropped from the stream take the positions that it needs."""
        assert new.point is not None
        try:
            self.reply_tokens(job.max_tokens, new.num_ids + new.point.seen)
        except ContextLimit:
            return self.new_ids(job, None)
        return new

    def bound(self, settings: CacheSettings, num_tokens: int) -> int:
        """Return the most bytes of a cache at rest after `num_tokens`, with its cold tier."""
        plan = self.plan(settings, num_tokens)
        return plan.resting_nbytes + plan.most_cold_nbytes

    def plan(self, settings: CacheSettings, num_tokens: int) -> CachePlan:
        """Return what a cache with these settings takes after `num_tokens`."""
        cache = self._empty.get(settings)
        if cache is None:
            cache = self._empty[settings] = self._sessions.new_cache(settings)
        return plan_cache(
            cache.policy, settings.budget, cache.geometry, num_tokens=num_tokens, chunk=cache.chunk
        )


class WaitingJob:
    """A job without a place in the batch, and what is known of its prompt.

    Only the engine's thread uses it.

    Args:
        wake: called from another thread whenever more is known.
    """

    def __init__(
        self, job: EngineJob, prompts: Prompts, pool: ThreadPoolExecutor, wake: Callable[[], None]
    ) -> None:
        self.job, self._prompts = job, prompts
        self._pool, self._wake = pool, wake
        self._begun = self._in_pool(lambda: prompts.begin(job))
        self._found: Future[NewIds] | None = None
        self._restored: Future[SessionQuery] | None = None
        self._asked: object = None
        """The point and the session to edit for which `_found` was begun."""

    @property
    def is_ahead(self) -> bool:
        """True while a thread works on it, or will."""
        works = (self._begun, self._restored, self._found)
        return not all(each is None or each.done() for each in works)

    @property
    def begun(self) -> tuple[History, Matcher | None] | None:
        """What `Prompts.begin` returns, or raises; None as long as it is not known."""
        return self._begun.result() if self._begun.done() else None

    def restored(self, begin: Callable[[EngineJob], Future[SessionQuery]]) -> SessionQuery | None:
        """Return the query of the job once the session that it names a file of is restored, which
        `begin` begins; or raise. None as long as it is not."""
        if self._restored is None:
            self._restored = begin(self.job)
            self._restored.add_done_callback(lambda _: self._wake())
        return self._restored.result() if self._restored.done() else None

    def new_ids(self, point: ResumePoint | None, basis: EditBasis | None) -> NewIds | None:
        """Return what `Prompts.new_ids` returns, or raises; None as long as it is not known."""
        asked = _key(point, basis)
        if self._found is not None and not self._found.done():
            return None
        if self._found is None or asked != self._asked:
            # the session may have changed since the last call
            self._asked = asked
            self._found = self._in_pool(lambda: self._prompts.new_ids(self.job, point, basis))
            return None
        found = self._found.result()
        # another snapshot may be at the same point now
        has_own = found.plan is not None or found.point is None
        return found if has_own else replace(found, point=point)

    def _in_pool(self, work: Callable[[], T]) -> Future[T]:
        def do() -> T:
            if self.job.is_cancelled:
                raise Cancelled("the client left")
            return work()

        future = self._pool.submit(do)
        future.add_done_callback(lambda _: self._wake())
        return future


def _key(point: ResumePoint | None, basis: EditBasis | None) -> object:
    """Return what decides how a prompt goes on from a point; snapshots do not."""
    edited = basis and replace(basis, end=replace(basis.end, snapshot=None))
    return point and (point.length, point.seen, point.num_read, point.unread), edited
