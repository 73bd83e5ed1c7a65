"""Threads that turn requests into ids, which takes seconds for a long prompt, so that replies in
progress go on."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from agentkv.dialog.grammar import Grammar
from agentkv.dialog.messages import Chat
from agentkv.models.model import Cancelled
from agentkv.serve.job import Job
from agentkv.serve.prompts import Prompts, Stage
from agentkv.serve.session import Place, chat_history

T = TypeVar("T")
_NUM_THREADS = 2
"""Our choice: a long prompt does not hold a short one up, and many take no more of the machine."""


class Reading:
    """What is known of a request's prompt. Only the engine's thread uses it.

    Args:
        job: receives its history and its matcher.
        wake: called from another thread whenever more is known.
    """

    def __init__(
        self,
        job: Job,
        prompts: Prompts,
        grammar: Grammar,
        pool: ThreadPoolExecutor,
        wake: Callable[[], None],
    ) -> None:
        self._job, self._prompts, self._grammar = job, prompts, grammar
        self._pool, self._wake = pool, wake
        self._begun = self._in_pool(self._begin)
        self._found: Future[tuple[list[Stage], Place | None]] | None = None
        self._asked: Place | None = None
        """The place that `_found` goes on from."""

    @property
    def is_ahead(self) -> bool:
        """True while a thread works on it, or will."""
        return not (self._found or self._begun).done()

    def has_begun(self) -> bool:
        """Return whether the job has its history and its matcher.

        Raises:
            ContextLimit, GrammarError: the prompt is too long, or the grammar none.
        """
        return self._begun.done() and self._begun.result() is None

    def new_ids(self, place: Place | None) -> tuple[list[Stage], Place | None] | None:
        """Return what `Prompts.new_ids` does; None as long as it is not known.

        Raises:
            TemplateError: as there.
        """
        if self._found is None or (self._found.done() and not _is_same(place, self._asked)):
            # the session may have changed since the last call
            self._asked = place
            self._found = self._in_pool(lambda: self._prompts.new_ids(self._job.ask, place))
        if not self._found.done():
            return None
        stages, goes_on = self._found.result()
        return stages, None if goes_on is None else place

    def _begin(self) -> None:
        job, ask = self._job, self._job.ask
        self._prompts.require_readable(ask)
        job.history = chat_history(ask.prompt) if isinstance(ask.prompt, Chat) else ask.prompt
        if ask.grammar is not None:
            job.matcher = self._grammar.match(ask.grammar)

    def _in_pool(self, work: Callable[[], T]) -> Future[T]:
        def do() -> T:
            if self._job.is_cancelled:
                raise Cancelled("the client left")
            return work()

        future = self._pool.submit(do)
        future.add_done_callback(lambda _: self._wake())
        return future


def reading_threads() -> ThreadPoolExecutor:
    """Return the threads for all readings of an engine."""
    return ThreadPoolExecutor(_NUM_THREADS, thread_name_prefix="agentkv reading")


def _is_same(one: Place | None, other: Place | None) -> bool:
    """Return True if a prompt goes on alike from two places, whose snapshots may differ."""
    if one is None or other is None:
        return one is other
    return (one.length, one.num_read, one.unread) == (other.length, other.num_read, other.unread)
