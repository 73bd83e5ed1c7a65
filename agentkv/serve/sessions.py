"""All sessions of the server, kept within bytes of memory."""

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from agentkv.cache.cache import Cache
from agentkv.cache.forks import group_nbytes
from agentkv.cache.misuse import Misuse
from agentkv.serve.edits import EditPlan, apply_plan
from agentkv.serve.matching import SessionConflict, SessionFinder, SessionMatch, SessionQuery
from agentkv.serve.named_files import NamedFolder, NoSuchSession
from agentkv.serve.reuse import How, Reuse
from agentkv.serve.session import (
    CacheSettings,
    History,
    ResumePoint,
    ServedSession,
    growth,
    growth_of_fork,
    needed,
    staying,
)
from agentkv.serve.session_files import RestoredFile, SessionFiles
from agentkv.serve.settings import EditMode

_log = logging.getLogger(__name__)
SpanChange = Literal["drop", "pin", "unpin"]


class SessionStore:
    """The sessions of all owners, for one thread.

    A session that is not in memory has its files in the folder.

    Args:
        model: the transformers model that reads.
        new_cache: returns an empty cache with given settings.
        policies: settings of caches that requests may choose among; the first is the default.
        folder: where sessions are put on disk; what lies there from an earlier server is found.
        named: where sessions lie that clients save by name.
        memory: bytes of all caches and snapshots in memory.
        outlives: whether another server may use the folder later.
        max_sessions: number of an owner's sessions, on disk too. A further one erases the owner's
            least recently used idle one, those without a name first.
        max_snapshots: number of snapshots of a session.
        edits: what becomes of edited messages, unless a request says otherwise.
        group_memory: bytes in memory of a session and all its forks; None: those of all.
    """

    def __init__(
        self,
        model: Any,
        new_cache: Callable[[CacheSettings], Cache],
        policies: Sequence[CacheSettings],
        folder: Path,
        named: NamedFolder,
        *,
        memory: int,
        outlives: bool = True,
        max_sessions: int = 1024,
        max_snapshots: int = 4,
        edits: EditMode = "removals",
        group_memory: int | None = None,
    ) -> None:
        self._model, self.new_cache, self.policies = model, new_cache, policies
        self.memory = memory
        self.group_memory = memory if group_memory is None else min(memory, group_memory)
        self._outlives = outlives
        self._max_sessions, self._max_snapshots = max_sessions, max_snapshots
        self.finder = SessionFinder(self.of, policies, new_cache, edits)
        self._sessions: list[ServedSession] = []
        self.num_spills = self.num_loads = 0
        """Sessions that went to disk, and that came back."""
        self.peak_nbytes = 0
        """The most bytes that all sessions had between two requests or tokens."""
        self.counted_nbytes = 0
        """Bytes of all sessions when they were last counted, which takes a millisecond or two."""
        self._files = SessionFiles(model, new_cache, folder, named)
        for saved in self._files.stored():
            session = self._add(saved.owner, saved.settings, saved.name, saved.slot)
            session.id, session.origin, session.is_stored = saved.id, saved.origin, True
            saved.fill(session)

    def __iter__(self) -> Iterator[ServedSession]:
        return iter(self._sessions)

    @property
    def nbytes(self) -> int:
        """Bytes of all sessions in memory; what several share counts once."""
        return group_nbytes(cache for session in self._sessions for cache in session.caches)

    def count(self) -> int:
        """Count the bytes of all sessions in memory, and return them."""
        self.counted_nbytes = self.nbytes
        self.peak_nbytes = max(self.peak_nbytes, self.counted_nbytes)
        return self.counted_nbytes

    def at(self, owner: str, slot: int) -> ServedSession:
        """Return an owner's session by its number.

        Raises:
            NoSuchSession: there is none.
        """
        found = self.finder.in_slot(owner, slot)
        if found is None:
            numbers = ", ".join(str(each.slot) for each in self.of(owner)) or "none"
            raise NoSuchSession(f"there is no slot {slot}; the slots in use: {numbers}")
        return found

    def of(self, owner: str) -> list[ServedSession]:
        """Return an owner's sessions, oldest first."""
        return [session for session in self._sessions if session.owner == owner]

    def _add(
        self, owner: str, settings: CacheSettings, name: str | None, slot: int | None
    ) -> ServedSession:
        self._keep(owner, self._max_sessions - 1)
        taken = {session.slot for session in self.of(owner)}
        if slot is None or slot in taken:
            slot = next(i for i in range(len(taken) + 1) if i not in taken)
        session = ServedSession(owner, name, slot, settings)
        self._sessions.append(session)
        return session

    def _keep(self, owner: str, most: int, but: ServedSession | None = None) -> None:
        """Erase an owner's least recently used idle sessions beyond `most`, but not one of them."""
        own = self.of(owner)
        idle = [session for session in own if not session.is_busy and session is not but]
        idle.sort(key=lambda session: (session.name is not None, session.used_at))
        for session in idle[: max(0, len(own) - most)]:
            self.erase(session)

    # ---- using

    def needed_beside(
        self, busy: Sequence[ServedSession], match: SessionMatch, bound: int, plan: EditPlan | None
    ) -> int:
        """Return the most bytes that busy sessions and one more request come to need, once idle
        sessions are on disk and snapshots have left.

        What caches share counts once, and what one of them may come to copy of it once more.

        Args:
            match: where the request goes on.
            bound: the most bytes that its cache will have.
            plan: edits of the session.
        """
        alone = bound + sum(each.bound for each in busy)
        session, point, source = match.session, match.point, match.source
        caches = [each.cache for each in busy if each.cache is not None]
        more = sum(each.growth for each in busy)
        if source is not None and point is not None:
            origin = source.origin_of(point)
            caches.append(origin)
            copies = _copies(origin, point)
            # an idle source goes to disk if need be, and the fork takes what it had
            more += (growth_of_fork if source.is_busy else growth)(origin, bound, copies=copies)
        elif session is None or session.cache is None:
            more += bound
        else:
            caches.append(session.cache)
            bound += session.copied_on_the_way(point, is_edited=plan is not None)
            more += growth(session.cache, bound, copies=not session.cache.keeps_all)
        # snapshots share too, but none of that is copied once they have left
        return min(alone, group_nbytes(caches) + more)

    def begin(
        self,
        match: SessionMatch,
        query: SessionQuery,
        history: History,
        bound: int,
        plan: EditPlan | None = None,
    ) -> tuple[ServedSession, ResumePoint | None, Reuse]:
        """Make room, and bring a session into memory and to a point; it is busy from now on.

        Args:
            history: what the request asks for.
            bound: the most bytes that the cache will have when the request is answered.
            plan: edits of the session, whose point is that of the match.

        Returns:
            The session; the point, None if everything must be read, as where the session's files
            cannot be; and what is kept.
        """
        session, point, source = match.session, match.point, match.source
        end = ResumePoint(0) if session is None else session.end
        difference = self.finder.difference(match, query, history)
        if session is None:
            name = query.name or query.key
            with staying(source):
                session = self._add(query.owner, match.settings, name, query.slot)
        session.is_busy, session.used_at = True, time.monotonic()
        session.is_last, session.ttl = query.release, query.ttl or session.ttl
        try:
            if source is not None and point is not None:
                self._begin_as_fork(session, source, point, bound)
            session.bound = bound
            if source is None:
                session.bound += session.copied_on_the_way(point, is_edited=plan is not None)
            self.make_room()
            session.bound = bound
            if point is not None and source is None and session.cache is None:
                session.cache = self._load(session)
                point = None if session.cache is None else point
            if plan is not None and point is not None:
                point = self._edit(session, plan)
            if point is None:
                self._files.discard(session)
                session.forget()
                session.cache = self.new_cache(session.settings)
            elif source is None:
                session.return_to(point)
        except BaseException:
            session.is_busy = False
            self.erase(session)
            raise
        if point is None:
            how: How = "new" if match.point is None else "lost"
        elif plan is not None:
            return session, point, Reuse("edited", plan.num_dropped, difference, plan.num_read)
        elif source is not None:
            how = "forked"
        else:
            how = "continued" if point is end else "returned"
        num_kept = 0
        if point is not None and source is None:
            num_kept = point.kept - point.num_empty
        return session, point, Reuse(how, end.seen - end.num_empty - num_kept, difference)

    def _begin_as_fork(
        self, session: ServedSession, source: ServedSession, point: ResumePoint, bound: int
    ) -> None:
        """Make room for what a fork does not share, and make it. Where there is none, the source
        goes to disk, and the fork takes what it had in memory."""
        self._files.discard(session)
        session.forget()
        session.origin = source.group
        origin = source.origin_of(point)
        session.bound = growth_of_fork(origin, bound, copies=_copies(origin, point))
        with staying(source):
            self.make_room()
        if source.is_busy or not self._exceeds(session):
            session.begin_as_fork(source, point, origin.fork())
            return
        before = replace(source)
        self.spill(source)
        session.begin_as_fork(before, point, origin)

    def _edit(self, session: ServedSession, plan: EditPlan) -> ResumePoint | None:
        """Edit a session; return its end, or None if it must be read again."""
        try:
            apply_plan(session, plan, self._model)
        except Misuse as error:
            _log.warning("session %r cannot be edited and is read again: %s", session.label, error)
            return None
        return plan.point

    def end(self, session: ServedSession) -> None:
        """Let a session rest with a snapshot of its end, and put others on disk until all fit into
        memory; erase one whose request was its last."""
        session.bound = 0
        if not session.is_last:
            self.take_snapshot(session, session.end)
        session.is_busy, session.used_at = False, time.monotonic()
        if session.is_last:
            self.erase(session)
        self._keep(session.owner, self._max_sessions, session)
        self.make_room()

    def expire(self) -> float | None:
        """Erase idle sessions whose time is over; return the seconds until the next one's is, None
        if none has a time."""
        now, rest = time.monotonic(), []
        for session in [each for each in self._sessions if each.ttl is not None]:
            assert session.ttl is not None
            left = session.used_at + session.ttl - now
            if left <= 0 and not session.is_busy:
                self.erase(session)
            else:
                rest.append(max(left, 0.0))
        return min(rest, default=None)

    def take_snapshot(self, session: ServedSession, point: ResumePoint) -> None:
        """Keep a snapshot at a point, if memory has room for it."""
        assert session.cache is not None
        more = session.cache_nbytes - session.cache.shared_nbytes
        if self._exceeds(session, more, held=self.count()):
            return
        try:
            session.take_snapshot(point, limit=self._max_snapshots)
        except Exception as error:  # such as a device without memory: there is no snapshot then
            _log.warning("no snapshot of session %r could be taken: %s", session.label, error)

    def make_room(self) -> None:
        """Drop snapshots and spill idle sessions until the rest fits into memory, with the growth
        of busy sessions, and so do a session and its forks into theirs.

        The least recently used goes first. Busy sessions lose their snapshots last. Sessions whose
        time is over are erased before.
        """
        self.expire()
        held: int | None = self.count()
        by_use = sorted(self._sessions, key=lambda session: (session.is_busy, session.used_at))
        if self.group_memory < self.memory:
            for group in {session.group for session in by_use}:
                members = [each for each in by_use if each.group == group]
                if self._shrink(members, self.group_memory):
                    held = None
        if self._shrink(by_use, self.memory, held) or held is None:
            self.counted_nbytes = self.nbytes

    def _shrink(
        self, sessions: Sequence[ServedSession], memory: int, held: int | None = None
    ) -> bool:
        """Drop snapshots and spill idle sessions, in their order, until all fit into `memory`;
        return whether anything was done.

        Args:
            held: bytes of the sessions, if they were just counted.
        """
        total, is_done = needed(sessions, held), False
        for session in sessions:
            if total <= memory:
                break
            if session.snapshots:
                session.snapshots, is_done = [], True
                total = needed(sessions)
            if total > memory and not session.is_busy and session.cache is not None:
                self.spill(session)
                total, is_done = needed(sessions), True
        return is_done

    def _exceeds(self, session: ServedSession, more: int = 0, *, held: int | None = None) -> bool:
        """Return whether all sessions, or those of the session's group, need more than their memory
        if one takes more bytes.

        Args:
            held: bytes of all sessions, if they were just counted.
        """
        if needed(self._sessions, held) + more > self.memory:
            return True
        group = [each for each in self._sessions if each.group == session.group]
        return self.group_memory < self.memory and needed(group) + more > self.group_memory

    def spill(self, session: ServedSession) -> None:
        """Put an idle session on disk. One that cannot be written is erased."""
        if session.cache is None:
            return
        if not session.history:
            session.forget()
            return
        try:
            self._files.put(session)
        except Exception as error:  # one session must not cost the others
            _log.warning(
                "session %s could not be put on disk and is erased: %s", session.name, error
            )
            self.erase(session)
            return
        session.cache, session.snapshots, session.is_stored = None, [], True
        self.num_spills += 1

    def close(self) -> None:
        """Put all sessions on disk, for the next server, if there may be one."""
        for session in list(self._sessions) if self._outlives else ():
            self.spill(session)

    def erase(self, session: ServedSession) -> int:
        """Erase a session, its files too; return the ids that its stream had."""
        num_ids = session.num_ids
        self._files.discard(session)
        session.forget()
        self._sessions.remove(session)
        return num_ids

    def erase_slot(self, owner: str, slot: int) -> int:
        """Erase an owner's idle session; return the ids that its stream had.

        Raises:
            NoSuchSession: there is no such slot.
            SessionConflict: it is busy.
        """
        session = self.at(owner, slot)
        _require_idle(session)
        return self.erase(session)

    def fork(self, source: ServedSession, name: str | None) -> ServedSession:
        """Return a new session that holds what an idle one does and shares its entries.

        Raises:
            SessionConflict: the session is busy.
            NoSuchSession: it is empty or lost.
        """
        _require_idle(source)
        if self.bring(source) is None:
            raise NoSuchSession(f"slot {source.slot} is empty; there is nothing to fork")
        with staying(source):
            session = self._add(source.owner, source.settings, name, None)
        session.is_busy = True
        try:
            self._begin_as_fork(session, source, source.end, source.cache_nbytes)
        except BaseException:
            session.is_busy = False
            self.erase(session)
            raise
        session.is_busy, session.bound = False, 0
        self._keep(session.owner, self._max_sessions, session)
        self.make_room()
        return session

    # ---- spans

    def bring(self, session: ServedSession) -> Cache | None:
        """Return a session's cache, from disk if it is there; None of an empty session.

        Raises:
            NoSuchSession: its files cannot be read, and the session is erased.
        """
        if session.cache is None and session.history:
            session.cache = self._load(session)
            if session.cache is None:
                self.erase(session)
                raise NoSuchSession(f"slot {session.slot} was lost: its files cannot be read")
        return session.cache

    def change_span(self, session: ServedSession, label: str, how: SpanChange) -> int:
        """Drop, pin or unpin what has a label in an idle session; return its number of tokens.

        The session goes on as before: its history still counts as held. What is dropped leaves its
        snapshots and its own files too, where it would come back from; those that were saved by
        name keep it.

        Raises:
            SessionConflict: the session is busy.
            NoSuchSession: the session is empty or lost.
            Misuse, PolicyError: ValueErrors; nothing has this label, its tokens have left, or the
                pins do not fit into the budget.
        """
        _require_idle(session)
        cache = self.bring(session)
        if cache is None:
            raise NoSuchSession(f"slot {session.slot} is empty; it has no labels")
        {"drop": cache.drop, "pin": cache.pin, "unpin": cache.unpin}[how](label)
        named = [each for each in cache.spans() if each.label == label and each.start < cache.seen]
        if how == "drop":
            session.note_dropped([range(each.start, each.stop or cache.seen) for each in named])
            if session.is_stored:
                try:
                    self._files.put(session)
                except (OSError, RuntimeError, ValueError) as error:
                    _log.warning("the files of session %r are removed: %s", session.label, error)
                    self._files.discard(session)
        self.take_snapshot(session, session.end)
        self.make_room()
        return sum(min(each.stop or cache.seen, cache.seen) - each.start for each in named)

    # ---- saving by name

    def save(self, session: ServedSession, file_name: str) -> tuple[int, int]:
        """Save an idle session by name; return its ids and the bytes written.

        Raises:
            NoSuchSession: the session is empty, or the name is not one.
            SessionConflict: the session is busy.
            FilesFull: the files of clients have no room for it; nothing was written.
            OSError, WriteError, CacheFileError: it could not be written.
        """
        self.require_name(session.owner, file_name)
        _require_idle(session)
        if not session.history:
            raise NoSuchSession(f"slot {session.slot} is empty; there is nothing to save")
        self.bring(session)
        num_bytes = self._files.save(session, file_name)
        self.make_room()
        return session.num_ids, num_bytes

    def require_name(self, owner: str, file_name: str) -> None:
        """Raise NoSuchSession if an owner cannot save a session by this name."""
        self._files.named.for_saving(owner, file_name)

    def require_room(self, owner: str, file_name: str, num_bytes: int) -> None:
        """Raise FilesFull if the files of clients have no room for a session of so many bytes, or
        more."""
        named = self._files.named
        named.require_room(named.for_saving(owner, file_name), num_bytes)

    def save_reply(self, session: ServedSession, file_name: str) -> int | None:
        """Save a session whose reply has ended by name; return the bytes written, None if it cannot
        be written."""
        try:
            return self._files.save(session, file_name)
        except (OSError, RuntimeError, ValueError) as error:
            _log.warning("session %r could not be saved by name: %s", session.label, error)
            return None

    def read_file(self, owner: str, file_name: str) -> RestoredFile:
        """Return what was saved by name. Any thread may call it: no session is touched.

        Raises:
            NoSuchSession: no session was saved by that name.
            ConversationFileError: a ValueError; the files are damaged, or belong to another model
                or policy.
        """
        return self._files.restore(owner, file_name)

    def restored_for(self, query: SessionQuery, file: RestoredFile) -> SessionQuery:
        """Restore the session that a request names a file of; return the query with its slot.

        Raises:
            SessionConflict: the slot is busy, or the session has another policy or budget than the
                request wants.
        """
        if query.settings not in (None, file.saved.settings):
            raise SessionConflict(
                f"{query.restore!r} has the policy {file.saved.policy} and the budget "
                f"{file.saved.budget}; leave out policy and budget"
            )
        session = self.restore(query.owner, query.slot, file)
        session.name = query.name or query.key
        return replace(query, restore=None, slot=session.slot, name=None, key=None)

    def restore(self, owner: str, slot: int | None, file: RestoredFile) -> ServedSession:
        """Put a session that was read from a file into a slot, in place of what is there.

        Args:
            slot: None takes one that is free.

        Raises:
            SessionConflict: the slot is busy.
        """
        saved = file.saved
        if slot is not None and (old := self.finder.in_slot(owner, slot)) is not None:
            _require_idle(old)
            self.erase(old)
        session = self._add(owner, saved.settings, saved.name, slot)
        saved.fill(session)
        session.cache = file.cache
        self.make_room()
        return session

    def _load(self, session: ServedSession) -> Cache | None:
        """Return the cache of a session on disk; None if its files are of no use."""
        cache = self._files.load(session)
        self.num_loads += cache is not None
        return cache


def _copies(origin: Cache, point: ResumePoint) -> bool:
    """Return whether a fork of a cache at a point may come to copy what it shares: it evicts,
    quantizes, or forgets what came after the point."""
    return not origin.keeps_all or origin.seen != point.kept


def _require_idle(session: ServedSession) -> None:
    if session.is_busy:
        raise SessionConflict(f"slot {session.slot} is busy; try again when it has answered")
