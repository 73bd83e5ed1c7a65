"""The thread that answers requests: it owns the model, the sessions and the batch."""

import bisect
import concurrent.futures
import logging
import queue
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

import torch

from agentkv.cache.cache import Cache
from agentkv.cache.checkpoint.file import CacheFileError
from agentkv.cache.hf.forward import COMPILED, decoding
from agentkv.dialog.calls import Call
from agentkv.dialog.grammar import GrammarError, Matcher
from agentkv.dialog.messages import Chat, MessageTemplate, TemplateError
from agentkv.dialog.reply_parts import Part, ReplyParts
from agentkv.models.batch import Batch
from agentkv.models.generation import Generation
from agentkv.models.local import LocalModel
from agentkv.models.model import Cancelled, ContextLimit
from agentkv.models.rules import TextRule
from agentkv.models.sampling import LogProbability, Sampler
from agentkv.models.saved import ConversationFileError
from agentkv.plan import CachePlan, plan_cache
from agentkv.policies.entries import PolicyError
from agentkv.serve.session import (
    CacheSettings,
    History,
    Place,
    Session,
    chat_history,
    message_digest,
    usage,
)
from agentkv.serve.sessions import Found, NoSuchSession, SessionConflict, Sessions, Wanted

_log = logging.getLogger(__name__)
T = TypeVar("T")

REFUSALS = (
    CacheFileError,
    ContextLimit,
    ConversationFileError,
    GrammarError,
    NoSuchSession,
    PolicyError,
    SessionConflict,
    TemplateError,
)
"""Errors of a request that the client can correct."""


class QueueFull(RuntimeError):
    """A request that finds as many others waiting as the server lets wait."""


class Stopping(RuntimeError):
    """A request that reaches a server which is about to stop."""


class MemoryLimit(ValueError):
    """A request whose cache would be larger than the memory for all sessions."""


@dataclass(frozen=True, slots=True)
class Ask:
    """What a client asks for."""

    wanted: Wanted
    prompt: Chat | str
    """Messages, or a raw prompt."""
    prompt_ids: tuple[int, ...] | None = None
    """Ids of a raw prompt that was given as such; they are read where its text is new."""
    function_names: frozenset[str] = frozenset()
    """Functions whose calls are taken out of the text."""
    max_tokens: int | None = None
    """Maximum number of tokens in the reply; None: as many as the server allows."""
    temperature: float = 0.0
    top_p: float = 1.0
    seed: int | None = None
    stops: tuple[str, ...] = ()
    grammar: str | None = None
    """Lark grammar of the reply; None for free text."""
    num_logprobs: int | None = None
    """Likeliest ids noted per token; None notes no log-probabilities."""


@dataclass(frozen=True, slots=True)
class Token:
    """A token of a reply, for log-probabilities."""

    id: int
    start: int
    """Where its text begins in the decoded reply."""
    text: str
    logprob: LogProbability | None
    """None for a token that the grammar forced."""
    top: tuple[tuple[str, float], ...] = ()
    """The likeliest tokens in its place with their log-probabilities, likeliest first."""


@dataclass(frozen=True, slots=True)
class Wrote:
    """A reply has grown."""

    parts: tuple[Part | Call, ...]
    tokens: tuple[Token, ...] = ()


@dataclass(frozen=True, slots=True)
class Finished:
    """A reply is complete."""

    reason: Literal["stop", "length", "tool_calls"]
    num_prompt: int
    """Tokens before the reply, those of earlier requests included."""
    num_cached: int
    """Those of them that were not read for this request."""
    num_written: int
    num_thought: int
    """Tokens of the reply that belong to a thought."""
    session: str
    slot: int
    cache: Mapping[str, Any]
    """What the cache holds; see `agentkv.serve.session.usage`."""


@dataclass(frozen=True, slots=True)
class Failed:
    """A request failed."""

    error: Exception


Event = Wrote | Finished | Failed


@dataclass(slots=True, eq=False)
class Job:
    """A request on its way; `send` is called from the engine's thread."""

    ask: Ask
    send: Callable[[Event], None]
    deadline: float
    """`time.monotonic()` at which it ends unanswered."""
    is_cancelled: bool = False
    """Set it to let the request end at the next token."""
    asked_at: float = field(default_factory=time.monotonic)
    history: History = ""
    """What the stream holds before the reply."""
    matcher: Matcher | None = None
    """Matcher of the grammar; None for free text."""
    has_begun: bool = False
    """True once the two fields above are set."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What the server grants to requests."""

    max_tokens: int = 4096
    """Maximum number of tokens in a reply."""
    max_running: int = 16
    """Maximum number of replies in the batch."""
    max_waiting: int = 64
    """Maximum number of requests that wait for a place."""


@dataclass(slots=True)
class Counters:
    """Numbers for the metrics; sums are since the start."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    written_tokens: int = 0
    spills: int = 0
    loads: int = 0
    sessions: int = 0
    sessions_in_memory: int = 0
    session_bytes: int = 0
    peak_bytes: int = 0
    _first_token_s: deque[float] = field(default_factory=lambda: deque(maxlen=100_000))

    def note_first_token(self, seconds: float) -> None:
        """Note the seconds from a request to the first token of its reply."""
        self._first_token_s.append(seconds)

    def take_first_token_s(self) -> list[float]:
        """Return the seconds that were noted since the last call."""
        return [self._first_token_s.popleft() for _ in range(len(self._first_token_s))]


_Stage = tuple[list[int], Place | None]
"""Ids that are read in one go, and the place after them, of which a snapshot is kept."""


class _Running:
    """A job with its session, and the reply in progress."""

    def __init__(
        self,
        job: Job,
        session: Session,
        stages: "list[_Stage]",
        rule: TextRule,
        parts: ReplyParts,
        place: Place | None,
    ) -> None:
        self.job, self.session, self.rule, self.parts = job, session, rule, parts
        self.stages = stages
        """What is still to be read."""
        self.num_cached = 0 if place is None else place.seen
        self.num_unread = 0 if place is None else len(place.unread)
        """Ids at the beginning of the first stage that belong to the reply before it."""
        self.num_prompt = self.num_cached + sum(len(ids) for ids, _ in stages)
        self.generation: Generation | None = None
        self.num_shown, self.num_tokens = 0, 0
        """Characters and tokens that the client has been sent."""
        self.num_thought = 0
        self.said = {"content": "", "reasoning": ""}
        self.calls: list[Call] = []


class Engine:
    """Answers requests in one continuous batch, from a thread of its own.

    Args:
        local: the model.
        template: its chat template.
        sessions: the sessions; only the engine's thread uses them once it has started.
    """

    def __init__(
        self, local: LocalModel, template: MessageTemplate, sessions: Sessions, limits: Limits
    ) -> None:
        self._local, self._template, self.sessions = local, template, sessions
        self._limits = limits
        self._new: queue.SimpleQueue[Job | Callable[[], None] | None] = queue.SimpleQueue()
        self._waiting: list[Job] = []
        self._running: list[_Running] = []
        self._batch = Batch(local.model)
        self._empty: dict[CacheSettings, Cache] = {}
        """Empty caches, for plans."""
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._is_stopping = False
        self._may_start = False
        """True if waiting jobs may find a place: something came or ended since they last looked."""
        self._num_queued = 0
        self._lock = threading.Lock()
        self.counters = Counters()

    # ---- from other threads

    def start(self) -> None:
        """Begin to answer."""
        self._thread.start()

    def stop(self) -> None:
        """End all replies, put the sessions on disk, and return when the thread has ended."""
        with self._lock:
            self._is_stopping = True
        self._new.put(None)
        self._thread.join()

    def submit(self, job: Job) -> None:
        """Queue a job.

        Raises:
            QueueFull, Stopping: the client may try again.
        """
        with self._lock:
            if self._is_stopping:
                raise Stopping(_STOPPING)
            if self._num_queued >= self._limits.max_waiting + self._limits.max_running:
                raise QueueFull(
                    f"{self._num_queued} requests are being answered or wait; try again later"
                )
            self._num_queued += 1
            self._new.put(job)

    def call(self, work: Callable[[], T]) -> "concurrent.futures.Future[T]":
        """Let the engine's thread do `work` between two tokens; return its result to come.

        Raises:
            Stopping: the server is about to stop.
        """
        future: concurrent.futures.Future[T] = concurrent.futures.Future()

        def do() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                future.set_result(work())
            except BaseException as error:  # it belongs to the caller
                future.set_exception(error)

        with self._lock:
            if self._is_stopping:
                raise Stopping(_STOPPING)
            self._new.put(do)
        return future

    @property
    def is_alive(self) -> bool:
        """True while requests are answered."""
        return self._thread.is_alive() and not self._is_stopping

    @property
    def num_running(self) -> int:
        """Replies in progress."""
        return len(self._running)

    @property
    def num_waiting(self) -> int:
        """Requests that wait for a place."""
        return max(0, self._num_queued - len(self._running))

    def count_sessions(self) -> None:
        """Count the sessions and their bytes; for the engine's thread (`call`)."""
        sessions, counters = self.sessions, self.counters
        counters.sessions = len(list(sessions))
        counters.sessions_in_memory = sum(each.cache is not None for each in sessions)
        counters.session_bytes, counters.peak_bytes = sessions.nbytes, sessions.peak_nbytes
        counters.spills, counters.loads = sessions.num_spills, sessions.num_loads

    # ---- the thread

    def _run(self) -> None:
        while not self._is_stopping:
            try:
                self._advance()
            except Exception:  # a mistake of ours must not leave every client waiting
                _log.exception("the engine failed; all replies in progress are lost")
                for running in list(self._running):
                    self._break(running, RuntimeError("the engine failed"))
        for running in list(self._running):
            self._end(running, Stopping(_STOPPING))
        self._take(waits=False)
        for job in self._waiting:
            job.send(Failed(Stopping(_STOPPING)))
        self.sessions.close()

    def _advance(self) -> None:
        """Take what is new, start what may start, and write one token of every reply."""
        self._take(waits=not self._running and not self._waiting)
        if self._is_stopping:
            return
        for running in [each for each in self._running if each.job.is_cancelled]:
            self._end(running, Cancelled("the client left"))
        self._drop_waiting()
        if self._may_start:
            self._may_start = False
            self._start_waiting()
        if self._running:
            self._step()
        elif self._waiting:
            time.sleep(_PAUSE_S)  # a session is busy without a reply, which should not happen
            self._may_start = True

    def _take(self, *, waits: bool) -> None:
        """Take new jobs and work; wait for the first if nothing is to be done."""
        try:
            new: Job | Callable[[], None] | None = self._new.get(block=waits)
            while True:
                self._may_start = True
                if isinstance(new, Job):
                    self._waiting.append(new)
                elif new is not None:
                    new()
                new = self._new.get_nowait()
        except queue.Empty:
            return

    def _drop_waiting(self) -> None:
        """End waiting jobs whose client left or whose time is over."""
        for job in list(self._waiting):
            if job.is_cancelled:
                self._forget(job)
                job.send(Failed(Cancelled("the client left")))
            elif time.monotonic() > job.deadline:
                self._forget(job)
                job.send(Failed(TimeoutError("the time of the request is over")))

    def _forget(self, job: Job) -> None:
        if job in self._waiting:
            self._waiting.remove(job)
        with self._lock:
            self._num_queued -= 1

    def _start_waiting(self) -> None:
        """Start waiting jobs in their order, as far as places and memory suffice."""
        for job in list(self._waiting):
            if len(self._running) >= self._limits.max_running:
                return
            try:
                running = self._prepare(job)
            except _NoRoom:
                return  # those behind it wait as well, so that it comes to its turn
            except Exception as error:  # one request must not stop the others
                if not isinstance(error, (*REFUSALS, MemoryLimit)):
                    _log.exception("a request failed before its reply")
                self._forget(job)
                job.send(Failed(error))
                continue
            if running is not None:
                self._waiting.remove(job)
                self._running.append(running)
                try:
                    self._next_stage(running, running.num_unread)
                except Exception as error:  # one request must not stop the others
                    _log.exception("a request failed before its reply")
                    self._break(running, error)

    def _prepare(self, job: Job) -> "_Running | None":
        """Find the session of a job and what is new for it; return None if the session is busy.

        Raises:
            _NoRoom: other replies must end first.
        """
        ask = job.ask
        if not job.has_begun:
            self._require_readable(ask)
            job.history = chat_history(ask.prompt) if isinstance(ask.prompt, Chat) else ask.prompt
            if ask.grammar is not None:
                job.matcher = self._local.grammar.match(ask.grammar)
            job.has_begun = True
        found = self.sessions.find(ask.wanted, job.history)
        if found is None:
            return None
        stages, place = self._new_ids(ask, found.place)
        found = found if place is not None else Found(found.session, None)
        num_prompt = self._num_prompt(place, stages)
        settings = self._settings_of(found, ask.wanted)
        max_tokens = self._reply_tokens(ask.max_tokens, num_prompt)
        max_tokens = self._within_memory(settings, num_prompt, max_tokens)
        bound = self._bound(settings, num_prompt + max_tokens)
        if self._running and bound + self._bounds > self.sessions.memory:
            raise _NoRoom
        session, begun = self.sessions.begin(found, ask.wanted, job.history, bound)
        try:
            if begun is None and place is not None:  # its files are lost
                stages, _ = self._new_ids(ask, None)
            rule = TextRule(
                self._template.decode_reply,
                end_ids=self._template.end_ids,
                max_tokens=max_tokens,
                stops=ask.stops,
                matcher=job.matcher,
            )
            parts = ReplyParts(None)
            if isinstance(ask.prompt, Chat):
                parts = self._template.parts(stages[-1][0], function_names=ask.function_names)
            return _Running(job, session, stages, rule, parts, begun)
        except BaseException:
            session.is_busy = False
            self.sessions.erase(session)
            raise

    @property
    def _bounds(self) -> int:
        """The most bytes that all caches of replies in progress will have."""
        return sum(running.session.bound for running in self._running)

    def _require_readable(self, ask: Ask) -> None:
        """Refuse a prompt that is far longer than what the model can read, before it is encoded."""
        limit, prompt = self._local.max_positions, ask.prompt
        texts = [prompt] if isinstance(prompt, str) else [m["content"] for m in prompt.messages]
        num_characters = sum(len(text or "") for text in texts)
        if limit is not None and num_characters > limit * _MOST_CHARACTERS:
            raise ContextLimit(
                f"the model has {limit} positions, and this conversation has {num_characters} "
                "characters"
            )

    def _settings_of(self, found: Found, wanted: Wanted) -> CacheSettings:
        if found.session is not None:
            return found.session.settings
        return wanted.settings or self.sessions.settings

    @staticmethod
    def _num_prompt(place: Place | None, stages: "list[_Stage]") -> int:
        return (0 if place is None else place.seen) + sum(len(ids) for ids, _ in stages)

    def _within_memory(self, settings: CacheSettings, num_prompt: int, max_tokens: int) -> int:
        """Return how many of `max_tokens` fit into the memory after a prompt.

        Raises:
            MemoryLimit: the prompt itself does not.
        """
        memory = self.sessions.memory
        least = self._bound(settings, num_prompt)
        if least > memory:
            raise MemoryLimit(
                f"the cache of this conversation would take {least} bytes and all sessions "
                f"together have {memory}; send less, or let the server have more memory or a "
                "smaller budget"
            )
        if self._bound(settings, num_prompt + max_tokens) <= memory:
            return max_tokens
        counts = range(max_tokens + 1)
        return (
            bisect.bisect_right(counts, memory, key=lambda n: self._bound(settings, num_prompt + n))
            - 1
        )

    def _reply_tokens(self, wanted: int | None, num_prompt: int) -> int:
        """Return the maximum length of a reply. Raises ContextLimit if there are too few positions
        for what the client wants, or for any reply."""
        granted = self._limits.max_tokens
        max_tokens = granted if wanted is None else min(granted, wanted)
        limit = self._local.max_positions
        if limit is None:
            return max_tokens
        least = 1 if wanted is None else max_tokens
        if limit - num_prompt < least:
            raise ContextLimit(
                f"the model has {limit} positions; this conversation takes {num_prompt}, and the "
                f"reply at least {least}"
            )
        return min(max_tokens, limit - num_prompt)

    def _new_ids(self, ask: Ask, place: Place | None) -> "tuple[list[_Stage], Place | None]":
        """Return the ids to read from a place on, in stages, and the place.

        The place becomes None if the template cannot go on from it, or nothing would be read.

        Raises:
            TemplateError: there is nothing to read, or the template refuses the messages.
        """
        found: tuple[list[_Stage], Place | None]
        if isinstance(ask.prompt, str):
            found = self._new_ids_of_text(ask.prompt, ask.prompt_ids, place)
        else:
            found = self._new_ids_of_chat(ask.prompt, place, at_once=ask.grammar is not None)
        if not found[0][-1][0]:
            raise TemplateError("the prompt is empty; the model needs something to read")
        return found

    def _new_ids_of_text(
        self, prompt: str, prompt_ids: tuple[int, ...] | None, place: Place | None
    ) -> "tuple[list[_Stage], Place | None]":
        if place is not None:
            ids = self._template.encode_prompt(prompt[place.length :], begins=False)
            if place.unread or ids:
                return [([*place.unread, *ids], None)], place
        if prompt_ids is not None:
            return [(list(prompt_ids), None)], None
        return [(self._template.encode_prompt(prompt, begins=True), None)], None

    def _new_ids_of_chat(
        self, chat: Chat, place: Place | None, *, at_once: bool
    ) -> "tuple[list[_Stage], Place | None]":
        if place is not None and place.num_read:
            try:
                ids = self._template.following(chat, place.num_read, at_once=at_once)
                return [([*place.unread, *ids], None)], place
            except TemplateError:
                place = None  # the opening says what is wrong, or has no trouble
        first, rest = self._template.opening(chat, at_once=at_once)
        if not first:
            return [(rest, None)], None
        after_first = Place(1 + chat.num_leading, len(first))
        if place is not None and place.length == after_first.length:
            return [(rest, None)], place
        return [(first, after_first), (rest, None)], None

    def _bound(self, settings: CacheSettings, num_tokens: int) -> int:
        """Return the most bytes that a cache with these settings has at rest after so many tokens,
        its cold tier included."""
        plan = self._plan(settings, num_tokens)
        return plan.resting_nbytes + plan.cold_nbytes

    def _plan(self, settings: CacheSettings, num_tokens: int) -> CachePlan:
        cache = self._empty.get(settings)
        if cache is None:
            cache = self._empty[settings] = self.sessions.new_cache(settings)
        return plan_cache(
            cache.policy, settings.budget, cache.geometry, num_tokens=num_tokens, chunk=cache.chunk
        )

    def _label(self, running: _Running, num_unread: int) -> None:
        """Label what a stage reads, for policies that tell spans apart, and pin the instructions.

        Functions and system messages are pinned if they take no more than half of what the policy
        keeps (our choice: a policy needs room to choose in).

        Args:
            num_unread: ids at the beginning of the stage that belong to the reply before it.
        """
        cache, (ids, after) = running.session.cache, running.stages[0]
        assert cache is not None
        start, num_new = cache.seen + num_unread, len(ids) - num_unread
        number = len(cache.spans())
        if after is not None:
            kept = self._plan(running.session.settings, 4 * num_new).num_entries
            try:
                cache.label("system", num_new, start=start, pinned=2 * num_new <= kept)
            except PolicyError:  # the policy protects so much that the pins do not fit
                cache.label("system", num_new, start=start)
        elif num_new:
            cache.label(f"turn {number}", num_new, start=start)
        if len(running.stages) == 1:
            cache.label(f"reply {number}")

    def _next_stage(self, running: _Running, num_unread: int = 0) -> None:
        """Let the batch read the next ids of a job."""
        self._label(running, num_unread)
        ids, _ = running.stages[0]
        is_last = len(running.stages) == 1
        ask, cache, device = running.job.ask, running.session.cache, self._local.model.device
        assert cache is not None
        seed = secrets.randbits(63) if ask.seed is None else ask.seed % 2**63
        random = torch.Generator(device=device).manual_seed(seed)
        nothing = TextRule(self._template.decode, end_ids=(), max_tokens=0)
        running.generation = Generation(
            cache,
            ids,
            running.rule if is_last else nothing,
            sampler=Sampler(ask.temperature, random, ask.top_p),
            deadline=running.job.deadline,
            max_positions=self._local.max_positions,
            is_compiled=decoding(self._local.model) == COMPILED,
            num_logprobs=ask.num_logprobs if is_last else None,
        )
        self._batch.add(running.generation)

    def _step(self) -> None:
        ended = set(map(id, self._batch.step()))
        for running in list(self._running):
            generation = running.generation
            assert generation is not None
            try:
                if generation.rule is running.rule:
                    self._show(running)
                if id(generation) not in ended:
                    continue
                if generation.error is not None:
                    self._end(running, generation.error)
                elif len(running.stages) > 1:
                    _, place = running.stages.pop(0)
                    if place is not None:
                        self.sessions.note(running.session, place)
                    self._next_stage(running)
                else:
                    self._end(running, None)
            except Exception as error:  # one reply must not stop the others
                _log.exception("a reply failed")
                if running in self._running:
                    self._break(running, error)

    def _show(self, running: _Running, *, is_last: bool = False) -> None:
        """Send what a reply has grown by."""
        rule = running.rule
        parts = running.parts.feed(rule.text[running.num_shown :])
        running.num_shown = len(rule.text)
        if is_last:
            parts += running.parts.finish()
        num_new = len(rule.ids) - running.num_tokens
        if num_new and not running.num_tokens:
            self.counters.note_first_token(time.monotonic() - running.job.asked_at)
        tokens = self._tokens(running) if running.job.ask.num_logprobs is not None else ()
        running.num_tokens = len(rule.ids)
        for part in parts:
            if isinstance(part, Call):
                running.calls.append(part)
            else:
                running.said[part.kind] += part.text
        if any(isinstance(part, Part) and part.kind == "reasoning" for part in parts):
            running.num_thought += num_new
        if parts or tokens:
            running.job.send(Wrote(tuple(parts), tokens))

    def _tokens(self, running: _Running) -> tuple[Token, ...]:
        """Return the new tokens with their log-probabilities."""
        rule, generation = running.rule, running.generation
        assert generation is not None
        first = bisect.bisect_left(rule.sampled, running.num_tokens)
        sampled, noted = rule.sampled[first:], generation.logprobs[first : len(rule.sampled)]
        logprobs = dict(zip(sampled, noted, strict=True))
        decode = self._template.decode
        found = []
        for i in range(running.num_tokens, len(rule.ids)):
            own = logprobs.get(i)
            top = () if own is None else tuple((decode([id]), value) for id, value in own.top)
            start = rule.ends[i - 1] if i else 0
            found.append(Token(rule.ids[i], start, decode([rule.ids[i]]), own, top))
        return tuple(found)

    def _end(self, running: _Running, error: Exception | None) -> None:
        """Take a reply out of the batch and put its session to rest.

        A reply that was cancelled or ran out of time stays in the stream as far as it was written.
        Any other error may have left the cache in between, so the session is erased.
        """
        generation, session, rule = running.generation, running.session, running.rule
        assert generation is not None
        if not generation.is_over:
            self._batch.remove(generation)
            generation.fail(error or Cancelled("ended"))
        if error is not None and not isinstance(error, TimeoutError | Cancelled | Stopping):
            self._break(running, error)
            return
        if generation.rule is rule:
            self._show(running, is_last=True)
        if error is None:
            unread = rule.pending
        else:
            later = [id for ids, _ in running.stages[1:] for id in ids]
            unread = [*generation.unread, *later]
        self._settle(running, unread)
        finished = self._finished(running)
        running.job.send(finished if error is None else Failed(error))
        self._leave(running)
        session.bound = 0
        self.sessions.note(session, session.end)
        self.sessions.end(session)

    def _settle(self, running: _Running, unread: list[int]) -> None:
        """Write down what the stream of a session holds after a reply."""
        ask, session = running.job.ask, running.session
        assert session.cache is not None
        history: History
        num_read = 0
        if isinstance(ask.prompt, Chat):
            reply = reply_message(running.said["content"], running.calls)
            assert isinstance(running.job.history, tuple)
            history = (*running.job.history, message_digest(reply))
            num_read = len(ask.prompt.messages) + 1
        else:
            # a stop text was read too: a client that goes on with it goes on with the stream
            history = ask.prompt + running.rule.decoded
        session.history = history
        session.end = Place(len(history), session.cache.seen, num_read, tuple(unread))

    def _finished(self, running: _Running) -> Finished:
        session, cache = running.session, running.session.cache
        assert cache is not None
        num_written = len(running.rule.ids)
        has_called = bool(running.calls) and running.rule.ended_by == "stop"
        self.counters.prompt_tokens += running.num_prompt
        self.counters.cached_tokens += running.num_cached
        self.counters.written_tokens += num_written
        return Finished(
            reason="tool_calls" if has_called else running.rule.ended_by,
            num_prompt=running.num_prompt,
            num_cached=running.num_cached,
            num_written=num_written,
            num_thought=running.num_thought,
            session=session.label,
            slot=session.slot,
            cache=usage(cache),
        )

    def _break(self, running: _Running, error: Exception) -> None:
        """End a job whose cache may be broken."""
        generation = running.generation
        if generation is not None and not generation.is_over:
            self._batch.remove(generation)
        running.job.send(Failed(error))
        self._leave(running)
        running.session.is_busy = False
        self.sessions.erase(running.session)

    def _leave(self, running: _Running) -> None:
        self._running.remove(running)
        self._may_start = True
        with self._lock:
            self._num_queued -= 1


class _NoRoom(Exception):
    """Other replies must end before this one fits into memory."""


_PAUSE_S = 0.01
_MOST_CHARACTERS = 32
"""Characters per token beyond which a text is refused unread (our choice: text has about four)."""
_STOPPING = "the server is stopping; send the request again when it is back"


def reply_message(content: str, calls: list[Call]) -> dict[str, Any]:
    """Return a reply as a message in OpenAI's form, calls without their ids."""
    return {
        "role": "assistant",
        "content": content or None,
        "tool_calls": [
            {"function": {"name": call.name, "arguments": call.arguments}} for call in calls
        ],
    }
