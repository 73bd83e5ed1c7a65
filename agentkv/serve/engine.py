"""The thread that answers requests: it owns the model, the sessions and the batch."""

import logging
import queue
import secrets
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import TypeVar

import torch

from agentkv.cache.hf.forward import COMPILED, decoding
from agentkv.dialog.messages import MessageTemplate
from agentkv.models.batch import Batch
from agentkv.models.generation import Generation
from agentkv.models.local import LocalModel
from agentkv.models.model import Cancelled
from agentkv.models.rules import TextRule
from agentkv.models.sampling import Sampler
from agentkv.policies.entries import PolicyError
from agentkv.serve.counters import Counters
from agentkv.serve.job import (
    REFUSALS,
    EngineJob,
    Limits,
    MemoryLimit,
    QueueFull,
    ReplyEnd,
    ReplyFailure,
    SavedFile,
    Stopping,
)
from agentkv.serve.matching import SessionQuery
from agentkv.serve.running import RunningJob
from agentkv.serve.session_files import RestoredFile
from agentkv.serve.sessions import SessionStore
from agentkv.serve.waiting import Prompts, WaitingJob
from agentkv.terminal import human_rate

_log = logging.getLogger(__name__)
REQUESTS = logging.getLogger("agentkv.requests")
"""Gets lines of numbers, without any text, for each reply that ends: one at level INFO, and one
at DEBUG that says what was kept of its conversation."""
T = TypeVar("T")


class Engine:
    """Answers jobs in one continuous batch, in its own thread.

    Further threads turn prompts into ids meanwhile; see `WaitingJob`.

    Args:
        sessions: only the engine's thread uses them once it has started.
        keeps_notes: whether sessions keep notes of the tokens of replies, which the page shows.
    """

    def __init__(
        self,
        local: LocalModel,
        template: MessageTemplate,
        sessions: SessionStore,
        limits: Limits,
        *,
        keeps_notes: bool,
    ) -> None:
        self._local, self.template, self.sessions = local, template, sessions
        self.max_positions = local.max_positions
        """The model's context length in tokens; None if unlimited."""
        self._limits, self._keeps_notes = limits, keeps_notes
        self._new: queue.SimpleQueue[EngineJob | Callable[[], None] | None] = queue.SimpleQueue()
        self._waiting: list[WaitingJob] = []
        """Jobs without a place, in their order."""
        self._reading_threads = ThreadPoolExecutor(
            _READING_THREADS, thread_name_prefix="agentkv reading"
        )
        self._file_thread = ThreadPoolExecutor(1, thread_name_prefix="agentkv files")
        self._running: list[RunningJob] = []
        self._batch = Batch(local.model)
        self._prompts = Prompts(
            template,
            local.grammar,
            sessions,
            max_positions=local.max_positions,
            most_tokens=limits.max_tokens,
        )
        # no daemon: the interpreter must not end while it runs
        self._thread = threading.Thread(target=self._run, name="engine")
        self._is_stopping = False
        self._may_start = False
        """True if waiting jobs may find a place: something came or ended since they last looked."""
        self._num_queued = 0
        self._lock = threading.Lock()
        self.counters = Counters()
        self._counted_at = 0.0
        self._count_sessions()

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

    def submit(self, job: EngineJob) -> None:
        """Queue a job.

        Raises:
            QueueFull, Stopping: the client may try again.
        """
        with self._lock:
            self._queue()
            self._new.put(job)

    def call(self, work: Callable[[], T]) -> Future[T]:
        """Let the engine's thread do `work` between two tokens; return its result to come.

        Raises:
            Stopping: the server is about to stop.
        """
        future: Future[T] = Future()

        def do() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                done = work()
            except BaseException as error:  # it belongs to the caller
                future.set_exception(error)
                return
            self.sessions.count()
            self._count_sessions()
            future.set_result(done)

        with self._lock:
            if self._is_stopping:
                raise Stopping(_STOPPING)
            self._new.put(do)
        return future

    def act(self, work: Callable[[], T]) -> Future[T]:
        """Do as `call` does; the work counts among the requests that wait.

        Raises:
            QueueFull, Stopping: the client may try again.
        """
        with self._lock:
            self._queue()
        try:
            future = self.call(work)
        except BaseException:
            self._unqueue()
            raise
        future.add_done_callback(lambda _: self._unqueue())
        return future

    def restore(self, owner: str, file_name: str, attach: Callable[[RestoredFile], T]) -> Future[T]:
        """Read what was saved by name, in a thread that reads one file at a time, and let the
        engine's thread `attach` it; return its result to come. It counts among the requests that
        wait.

        Raises:
            QueueFull, Stopping: the client may try again.
        """
        with self._lock:
            self._queue()
            future = self._restoring(owner, file_name, attach)
        future.add_done_callback(lambda _: self._unqueue())
        return future

    def _restoring(
        self, owner: str, file_name: str, attach: Callable[[RestoredFile], T]
    ) -> Future[T]:
        """Begin what `restore` does, without counting it."""

        def do() -> T:
            if self._is_stopping:
                raise Stopping(_STOPPING)
            file = self.sessions.read_file(owner, file_name)
            # no file is read before this one belongs to a session, whose bytes count
            return self.call(lambda: attach(file)).result()

        return self._file_thread.submit(do)

    def count(self, job: EngineJob) -> Future[int]:
        """Return the number of tokens in the prompt of a job, to come. No session is touched.

        Raises:
            QueueFull, Stopping: the client may try again.
        """

        def do() -> int:
            self._prompts.begin(job)
            return self._prompts.num_ids(job)

        with self._lock:
            self._queue()
            future = self._reading_threads.submit(do)
        future.add_done_callback(lambda _: self._unqueue())
        return future

    def _queue(self) -> None:
        """Count a request in, under the lock. Raises QueueFull or Stopping."""
        if self._is_stopping:
            raise Stopping(_STOPPING)
        if self._num_queued >= self._limits.max_waiting + self._limits.max_running:
            raise QueueFull(f"{self._num_queued} requests run or wait; try again later")
        self._num_queued += 1

    def _unqueue(self) -> None:
        with self._lock:
            self._num_queued -= 1

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
        self._take(wait_s=0.0)
        for waiting in list(self._waiting):
            self._drop(waiting, Stopping(_STOPPING))
        self._reading_threads.shutdown()
        self._file_thread.shutdown()
        self.sessions.close()

    def _advance(self) -> None:
        """Take what is new, start what may start, and write one token of every reply."""
        wait_s: float | None = 0.0
        if not self._running:
            wait_s = _PAUSE_S if self._waiting else self.sessions.expire()
        self._take(wait_s=wait_s)
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
            if time.monotonic() > self._counted_at + _COUNT_S:
                self.sessions.count()
                self._count_sessions()

    def _take(self, *, wait_s: float | None) -> None:
        """Take new jobs and work. Wait `wait_s` seconds for the first one; None: forever."""
        try:
            new = self._new.get(block=wait_s != 0.0, timeout=wait_s or None)
            while True:
                self._may_start = True
                if isinstance(new, EngineJob):
                    waiting = WaitingJob(
                        new, self._prompts, self._reading_threads, lambda: self._new.put(None)
                    )
                    self._waiting.append(waiting)
                elif new is not None:
                    new()
                new = self._new.get_nowait()
        except queue.Empty:
            return

    def _drop_waiting(self) -> None:
        """End waiting jobs whose client left or whose time is over."""
        for waiting in list(self._waiting):
            if waiting.job.is_cancelled:
                self._drop(waiting, Cancelled("the client left"))
            elif time.monotonic() > waiting.job.deadline:
                self._drop(waiting, TimeoutError("the request ran out of time"))

    def _drop(self, waiting: WaitingJob, error: Exception) -> None:
        """End a waiting job with an error."""
        self._waiting.remove(waiting)
        self._unqueue()
        waiting.job.is_cancelled = True
        waiting.job.send(ReplyFailure(error))

    def _start_waiting(self) -> None:
        """Start waiting jobs in their order, as far as places and memory suffice.

        A job whose prompt is being read lets others pass, but not those for its session.
        """
        taken, num_ahead = set(), 0
        for waiting in list(self._waiting):
            if len(self._running) + num_ahead >= self._limits.max_running:
                return
            turn = self.sessions.finder.turn(waiting.job.session)
            if turn in taken:
                continue
            try:
                running = self._prepare(waiting)
            except _NoRoom:
                return  # later jobs wait as well, so that this one comes to its turn
            except Exception as error:  # one request must not stop the others
                if not isinstance(error, (*REFUSALS, MemoryLimit)):
                    _log.exception("a request failed before its reply")
                self._drop(waiting, error)
                continue
            if running is None:
                num_ahead += waiting.is_ahead
                if turn is not None:
                    taken.add(turn)
            else:
                self._waiting.remove(waiting)
                self._running.append(running)
                self._count_sessions()
                try:
                    self._next_stage(running, running.num_unread)
                except Exception as error:  # one request must not stop the others
                    _log.exception("a request failed before its reply")
                    self._break(running, error)

    def _prepare(self, waiting: WaitingJob) -> RunningJob | None:
        """Find the session of a job and its new ids; return None while the session is busy, or the
        ids are not known.

        Raises:
            _NoRoom: other replies must end first.
        """
        job, prompts = waiting.job, self._prompts
        if (begun := waiting.begun) is None:
            return None
        history, matcher = begun
        if (name := job.session.save) is not None:
            self.sessions.require_name(job.session.owner, name)
        if job.session.restore is not None:
            query = waiting.restored(self._restoring_for)
            if query is None:
                return None
            job.session = query
        match = self.sessions.finder.find(job.session, history)
        if match is None or (new := waiting.new_ids(match.point, match.basis)) is None:
            return None
        if new.plan is None:  # what sessions have read is compared once the ids are known
            match, held = self.sessions.finder.with_held(match, job.session, history)
            new = new.sharing(held)
        if new.point is not None and new.point.num_empty:
            new = prompts.within_positions(job, new)
        point, plan = new.point, new.plan
        is_refused = match.point is not None and point is None  # by the template
        match = match.with_plan(plan) if plan is not None else match.at(point)
        num_prompt = new.num_ids + (0 if point is None else point.seen)
        max_tokens = prompts.reply_tokens(job.max_tokens, num_prompt)
        max_tokens = prompts.within_memory(match.settings, num_prompt, max_tokens)
        bound = prompts.bound(match.settings, num_prompt + max_tokens)
        busy = [running.session for running in self._running]
        if busy and self.sessions.needed_beside(busy, match, bound, plan) > self.sessions.memory:
            raise _NoRoom
        relative = match.source or match.session
        own = [each for each in busy if relative is not None and each.group == relative.group]
        if own and self.sessions.needed_beside(own, match, bound, plan) > (
            self.sessions.group_memory
        ):
            return None
        if name is not None:
            most = prompts.bound(match.settings, num_prompt)
            self.sessions.require_room(job.session.owner, name, most)
        session, begun_at, reuse = self.sessions.begin(match, job.session, history, bound, plan)
        if is_refused:
            reuse = replace(reuse, how="lost")
        try:
            if begun_at is None and point is not None:  # its files are lost
                new = prompts.new_ids(job, None)
            return RunningJob(
                job,
                session,
                history,
                matcher,
                new,
                begun_at,
                self.template,
                max_tokens,
                reuse,
            )
        except BaseException:
            session.is_busy = False
            self.sessions.erase(session)
            raise

    def _restoring_for(self, job: EngineJob) -> Future[SessionQuery]:
        """Begin to restore the session that a job names a file of; return its query to come."""
        query = job.session
        assert query.restore is not None

        def attach(file: RestoredFile) -> SessionQuery:
            if job.is_cancelled:
                raise Cancelled("the client left")
            return self.sessions.restored_for(query, file)

        return self._restoring(query.owner, query.restore, attach)

    def _label(self, running: RunningJob, num_unread: int) -> None:
        """Label what a stage reads, for policies that tell spans apart, and pin the instructions.

        Functions and system messages are pinned if they take no more than half of what the policy
        keeps (our choice: a policy needs room to choose in).

        Args:
            num_unread: ids at the beginning of the stage that belong to the reply before it.
        """
        cache, (ids, after) = running.session.cache, running.stages[0]
        assert cache is not None
        start, num_new = cache.seen + num_unread, len(ids) - num_unread
        # labels of what was forgotten stay until others take their place, and what is shared is
        # the beginning of a span that goes on
        number = sum(
            each.start < start and (each.stop is None or each.stop <= start)
            for each in cache.spans()
        )
        if after is not None:
            kept = self._prompts.plan(running.session.settings, 4 * num_new).num_entries
            try:
                cache.label("system", num_new, start=start, pinned=2 * num_new <= kept)
            except PolicyError:  # the policy protects so much that the pins do not fit
                cache.label("system", num_new, start=start)
        elif num_new:
            cache.label(f"turn {number}", num_new, start=start)
        if len(running.stages) == 1:
            cache.label(f"reply {number}", start=start + num_new)

    def _next_stage(self, running: RunningJob, num_unread: int = 0) -> None:
        """Let the batch read the next ids of a job."""
        self._label(running, num_unread)
        ids, _ = running.stages[0]
        is_last = len(running.stages) == 1
        job, cache, device = running.job, running.session.cache, self._local.model.device
        assert cache is not None
        seed = secrets.randbits(63) if job.seed is None else job.seed % 2**63
        random = torch.Generator(device=device).manual_seed(seed)
        nothing = TextRule(self.template.decode, end_ids=(), max_tokens=0)
        num_logprobs = job.num_logprobs if is_last else None
        if is_last and self._keeps_notes:
            running.noted_from = cache.seen + len(ids)
            num_logprobs = num_logprobs or 0
        running.generation = Generation(
            cache,
            ids,
            running.rule if is_last else nothing,
            sampler=Sampler(job.temperature, random, job.top_p),
            deadline=job.deadline,
            is_compiled=decoding(self._local.model) == COMPILED,
            num_logprobs=num_logprobs,
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
                    _, point = running.stages.pop(0)
                    if point is not None:
                        self.sessions.take_snapshot(running.session, point)
                    self._next_stage(running)
                else:
                    self._end(running, None)
            except Exception as error:  # one reply must not stop the others
                _log.exception("a reply failed")
                if running in self._running:
                    self._break(running, error)

    def _show(self, running: RunningJob, *, is_last: bool = False) -> None:
        if running.show(is_last=is_last):
            self.counters.note_first_token(time.monotonic() - running.job.asked_at)

    def _end(self, running: RunningJob, error: Exception | None) -> None:
        """Take a reply out of the batch and put its session to rest.

        The stream keeps what was written of a reply that was cancelled or ran out of time. Any
        other error may have left the cache in the middle of a forward, so the session is erased.
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
        running.settle(unread)
        saved = None
        if error is None and (name := running.job.session.save) is not None:
            num_bytes = self.sessions.save_reply(session, name)
            saved = SavedFile(name, session.num_ids, num_bytes)
        end = running.finished(saved)
        self.counters.count(end)
        REQUESTS.info(_line(end, error))
        REQUESTS.debug("slot %d: %s", end.slot, end.reuse.told(end.num_cached))
        running.job.send(end if error is None else ReplyFailure(error))
        self.sessions.end(session)
        self._count_sessions()
        self._leave(running)  # last: a client that finds nothing running may read the session

    def _break(self, running: RunningJob, error: Exception) -> None:
        """End a job whose cache may be broken."""
        generation = running.generation
        if generation is not None and not generation.is_over:
            self._batch.remove(generation)
        running.job.send(ReplyFailure(error))
        self._leave(running)
        running.session.is_busy = False
        self.sessions.erase(running.session)
        self.sessions.count()
        self._count_sessions()

    def _count_sessions(self) -> None:
        """Note the sessions, and their bytes as they were last counted, for threads that want to
        know."""
        self._counted_at = time.monotonic()
        sessions, counters = self.sessions, self.counters
        counters.sessions = len(list(sessions))
        counters.sessions_in_memory = sum(each.cache is not None for each in sessions)
        counters.session_bytes, counters.peak_bytes = sessions.counted_nbytes, sessions.peak_nbytes
        counters.spills, counters.loads = sessions.num_spills, sessions.num_loads

    def _leave(self, running: RunningJob) -> None:
        self._running.remove(running)
        self._may_start = True
        self._unqueue()


def _line(end: ReplyEnd, error: Exception | None) -> str:
    """Describe a reply that has ended, in numbers."""
    how = end.reason if error is None else type(error).__name__
    num_new = end.num_prompt - end.num_cached
    rate = human_rate(end.num_written, end.write_s)
    return (
        f"slot {end.slot}: read {num_new:,} of {end.num_prompt:,} tokens in "
        f"{end.read_s:.2f} s, wrote {end.num_written:,} in {end.write_s:.2f} s "
        f"({rate}), {how}"
    )


class _NoRoom(Exception):
    """Other replies must end before this one fits into memory."""


_READING_THREADS = 2
"""Our choice: a long prompt does not hold a short one up, and many take no more of the machine."""
_PAUSE_S = 0.05
"""Seconds between two looks at the clients and deadlines of requests while none is answered."""
_COUNT_S = 1.0
"""Seconds between two counts of the sessions while replies are written (our choice)."""
_STOPPING = "the server is stopping; send the request again when it is back"
