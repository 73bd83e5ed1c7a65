"""All sessions of the server: found for a request, kept within bytes of memory, put on disk."""

import logging
import re
import shutil
import time
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from agentkv.cache.cache import Cache
from agentkv.cache.checkpoint.file import CacheFileError
from agentkv.files import make_folder
from agentkv.models.saved import (
    INDEX,
    ConversationFileError,
    SavedState,
    load_cache,
    new_cache_name,
    read,
    save,
)
from agentkv.models.stream import common_start
from agentkv.serve.reuse import Difference, How, Reuse, first_difference
from agentkv.serve.session import CacheSettings, History, ResumePoint, Said, ServedSession

_log = logging.getLogger(__name__)
SpanChange = Literal["drop", "pin", "unpin"]

_FILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


class SessionConflict(ValueError):
    """A request names a session that it cannot continue."""


class NoSuchSession(ValueError):
    """A slot or a file holds no session of this owner."""


class _SavedSession(SavedState):
    """Everything about a session but its cache."""

    owner: str
    id: Annotated[str, Field(pattern="^[0-9a-f]{16}$")]
    name: str | None
    slot: Annotated[int, Field(ge=0)]
    policy: str
    budget: int | str | None
    history: list[str] | str
    num_read: Annotated[int, Field(ge=0)]
    unread: list[Annotated[int, Field(ge=0)]]

    @property
    def settings(self) -> CacheSettings:
        return CacheSettings(self.policy, self.budget)

    @property
    def stream(self) -> History:
        history = self.history
        return history if isinstance(history, str) else tuple(Said(each) for each in history)


@dataclass(frozen=True, slots=True)
class SessionQuery:
    """The session that a request asks for."""

    owner: str
    settings: CacheSettings | None = None
    """None: those of the session, or the server's first ones."""
    key: str | None = None
    """Name of the sessions among which the one with most of the conversation is taken."""
    name: str | None = None
    """Name of the one session that is taken, whatever it holds."""
    slot: int | None = None
    """Number of the one session that is taken, whatever it holds."""


@dataclass(frozen=True, slots=True)
class SessionMatch:
    """The session that a request continues, and from where."""

    settings: CacheSettings
    session: ServedSession | None
    """None makes a new one."""
    point: ResumePoint | None = None
    """None reads everything."""
    source: ServedSession | None = None
    """Another session that has the point; None if `session` has it."""


class SessionStore:
    """The sessions of all owners, for one thread.

    A session that is not in memory has its files in the folder; sessions that were saved by name
    lie beside them.

    Args:
        model: the transformers model that reads.
        new_cache: returns an empty cache with given settings.
        policies: settings of caches that requests may choose among; the first is the default.
        folder: where sessions are put on disk; what lies there from an earlier server is found.
        memory: bytes of all caches and snapshots in memory.
        outlives: whether another server may use the folder later.
        max_sessions: number of an owner's sessions, on disk too. A further one erases the owner's
            least recently used idle one, those without a name first.
        max_snapshots: number of snapshots of a session.
    """

    def __init__(
        self,
        model: Any,
        new_cache: Callable[[CacheSettings], Cache],
        policies: Sequence[CacheSettings],
        folder: Path,
        *,
        memory: int,
        outlives: bool = True,
        max_sessions: int = 1024,
        max_snapshots: int = 4,
    ) -> None:
        self._model, self.new_cache, self.policies = model, new_cache, policies
        self.folder, self.memory = folder, memory
        self._outlives = outlives
        self._max_sessions, self._max_snapshots = max_sessions, max_snapshots
        self._sessions: list[ServedSession] = []
        self.num_spills = self.num_loads = 0
        """Sessions that went to disk, and that came back."""
        self.peak_nbytes = 0
        """The most bytes that all sessions had between two requests or tokens."""
        make_folder(folder)
        self._find_stored()

    def __iter__(self) -> Iterator[ServedSession]:
        return iter(self._sessions)

    @property
    def nbytes(self) -> int:
        """Bytes of all sessions in memory."""
        return sum(session.nbytes for session in self._sessions)

    # ---- finding

    def find(self, query: SessionQuery, history: History) -> SessionMatch | None:
        """Return where a request goes on. Nothing changes.

        A session that was asked for by name or slot is taken as it is. Otherwise the request
        continues the idle session that has most of `history`, among those with the request's key,
        or those without any. If they have no reply in common, or less than half of the session, it
        is another conversation: the request gets a new session, with a copy of what any session of
        the owner has in common with it.

        Returns:
            None if the session that was asked for is busy.

        Raises:
            SessionConflict: the session that was asked for has another policy or budget.
        """
        settings = query.settings or self.policies[0]
        exact = self._exact(query)
        if exact is not None:
            if exact.is_busy:
                return None
            if query.settings not in (None, exact.settings):
                raise SessionConflict(
                    f"session {exact.label!r} has the policy {exact.settings.policy} and the "
                    f"budget {exact.settings.budget}; give another session, or erase its slot "
                    "first"
                )
            settings = exact.settings
            if (point := exact.nearest(history)) is not None:
                return SessionMatch(settings, exact, point)
        others = [each for each in self.of(query.owner) if each.settings == settings]
        if query.name is None and query.slot is None:
            idle = [each for each in others if each.name == query.key and not each.is_busy]
            same = _furthest(idle, lambda session: session.nearest(history))
            if same is not None and _continues(*same):
                return SessionMatch(settings, *same)
        begun = _furthest(others, lambda session: session.nearest(history, only_snapshots=True))
        if begun is None:
            return SessionMatch(settings, exact)
        source, point = begun
        return SessionMatch(settings, exact, point, source)

    def _exact(self, query: SessionQuery) -> ServedSession | None:
        """Return the session that is asked for by slot or name; None if there is none yet."""
        if query.slot is not None:
            return self._at(query.owner, query.slot)
        own = self.of(query.owner) if query.name is not None else ()
        named = [each for each in own if each.name == query.name]
        return max(named, key=lambda session: session.used_at, default=None)

    def _at(self, owner: str, slot: int) -> ServedSession | None:
        return next((each for each in self.of(owner) if each.slot == slot), None)

    def turn(self, query: SessionQuery) -> Hashable:
        """Return what requests share that are answered in the order in which they came; None for a
        request that waits for no other."""
        session = self._exact(query)
        if session is not None:
            return session.id
        if query.slot is None and query.name is None:
            return None
        return query.owner, query.slot, query.name

    def at(self, owner: str, slot: int) -> ServedSession:
        """Return an owner's session by its number.

        Raises:
            NoSuchSession: there is none.
        """
        found = self._at(owner, slot)
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
        own = self.of(owner)
        idle = [session for session in own if not session.is_busy]
        if len(own) >= self._max_sessions and idle:
            self.erase(min(idle, key=lambda s: (s.name is not None, s.used_at)))
        taken = {session.slot for session in self.of(owner)}
        if slot is None or slot in taken:
            slot = next(i for i in range(len(taken) + 1) if i not in taken)
        session = ServedSession(owner, name, slot, settings)
        self._sessions.append(session)
        return session

    # ---- using

    @property
    def reserved(self) -> int:
        """Bytes by which the caches of busy sessions may still grow."""
        return sum(session.growth for session in self._sessions if session.is_busy)

    def begin(
        self, match: SessionMatch, query: SessionQuery, history: History, bound: int
    ) -> tuple[ServedSession, ResumePoint | None, Reuse]:
        """Make room, and bring a session into memory and to a point; it is busy from now on.

        Args:
            history: what the request asks for.
            bound: the most bytes that the cache will have when the request is answered.

        Returns:
            The session; the point, None if everything must be read, as where the session's files
            cannot be; and what is kept.
        """
        session, point, source = match.session, match.point, match.source
        end = ResumePoint(0) if session is None else session.end
        difference = self._difference(match, query, history)
        if session is None:
            name = query.name or query.key
            session = self._add(query.owner, match.settings, name, query.slot)
        session.is_busy, session.bound, session.used_at = True, bound, time.monotonic()
        self.make_room()
        try:
            if point is not None and source is None and session.cache is None:
                session.cache = self._load(session)
                point = None if session.cache is None else point
            if point is None or source is not None:
                self._discard_files(session)
                session.forget()
                session.cache = self.new_cache(session.settings)
            if source is not None and point is not None:
                assert session.cache is not None and point.snapshot is not None
                session.cache.origin = point.snapshot.origin
                session.history, session.snapshots = history[: point.length], [point]
            if point is not None:
                session.return_to(point)
        except BaseException:
            session.is_busy = False
            self.erase(session)
            raise
        if point is None:
            how: How = "new" if match.point is None else "lost"
        elif source is not None:
            how = "copied"
        else:
            how = "continued" if point is end else "returned"
        num_kept = point.seen if point is not None and source is None else 0
        return session, point, Reuse(how, end.seen - num_kept, difference)

    def _difference(
        self, match: SessionMatch, query: SessionQuery, history: History
    ) -> Difference | None:
        """Return where a request first differs from its session; without a point in one of its own,
        from the session that is most like it."""
        compared = match.session if match.point is not None and match.source is None else None
        if compared is None:
            compared = self._most_alike(query, match.settings, history)
        return None if compared is None else first_difference(compared.history, history)

    def _most_alike(
        self, query: SessionQuery, settings: CacheSettings, history: History
    ) -> ServedSession | None:
        """Return the session that shares most of a history; of several, the one with the request's
        name, or the latest."""
        others = [
            each
            for each in self.of(query.owner)
            if each.settings == settings and each.history and type(each.history) is type(history)
        ]
        name = query.name or query.key

        def rank(one: ServedSession) -> tuple[int, bool, float]:
            return common_start(one.history, history), one.name == name, one.used_at

        return max(others, key=rank, default=None)

    def end(self, session: ServedSession) -> None:
        """Let a session rest, and put others on disk until all fit into memory."""
        session.is_busy, session.bound, session.used_at = False, 0, time.monotonic()
        self.make_room()

    def take_snapshot(self, session: ServedSession, point: ResumePoint) -> None:
        """Keep a snapshot at a point, if memory has room for it."""
        self.peak_nbytes = max(self.peak_nbytes, self.nbytes)
        if self.nbytes + session.cache_nbytes + self.reserved > self.memory:
            return
        try:
            session.take_snapshot(point, limit=self._max_snapshots)
        except Exception as error:  # such as a device without memory: there is no snapshot then
            _log.warning("no snapshot of session %r could be taken: %s", session.label, error)
        self.peak_nbytes = max(self.peak_nbytes, self.nbytes)

    def make_room(self) -> None:
        """Drop snapshots and spill idle sessions until the rest fits into memory, with the growth
        of busy sessions.

        The least recently used goes first. Busy sessions lose their snapshots last.
        """
        self.peak_nbytes = max(self.peak_nbytes, self.nbytes)
        by_use = sorted(self._sessions, key=lambda session: (session.is_busy, session.used_at))
        for session in by_use:
            if self.nbytes + self.reserved <= self.memory:
                return
            session.snapshots = []
            if self.nbytes + self.reserved > self.memory and not session.is_busy:
                self.spill(session)

    def spill(self, session: ServedSession) -> None:
        """Put an idle session on disk. One that cannot be written is erased."""
        if session.cache is None:
            return
        if not session.history:
            session.forget()
            return
        try:
            self._write(session, self._folder_of(session))
        except (OSError, RuntimeError, ValueError) as error:
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
        self._discard_files(session)
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
            first = min(each.start for each in named)
            session.snapshots = [each for each in session.snapshots if each.seen <= first]
            if session.is_stored:
                try:
                    self._write(session, self._folder_of(session))
                except (OSError, RuntimeError, ValueError) as error:
                    _log.warning("the files of session %r are removed: %s", session.label, error)
                    self._discard_files(session)
        self.take_snapshot(session, session.end)
        self.make_room()
        return sum(min(each.stop or cache.seen, cache.seen) - each.start for each in named)

    # ---- saving by name

    def save(self, session: ServedSession, file_name: str) -> tuple[int, int]:
        """Save an idle session by name; return its ids and the bytes written.

        Raises:
            NoSuchSession: the session is empty, or the name is not one.
            SessionConflict: the session is busy.
            OSError, WriteError, CacheFileError: it could not be written.
        """
        folder = self._named_folder(session.owner, file_name)
        _require_idle(session)
        if not session.history:
            raise NoSuchSession(f"slot {session.slot} is empty; there is nothing to save")
        self.bring(session)
        self._write(session, folder)
        self.make_room()
        return session.num_ids, _size(folder)

    def restore(self, owner: str, slot: int, file_name: str) -> tuple[ServedSession, int]:
        """Put a saved session into a slot, in place of what is there; return it and the bytes read.

        Raises:
            NoSuchSession: no session was saved by that name.
            SessionConflict: the slot is busy.
            ConversationFileError, CacheFileError: ValueErrors; the files are damaged, or belong to
                another model.
        """
        folder = self._named_folder(owner, file_name)
        if not (folder / INDEX).exists():
            raise NoSuchSession(f"no session was saved as {file_name!r}")
        saved = read(_SavedSession, folder)
        if saved.owner != owner:
            raise NoSuchSession(f"no session was saved as {file_name!r}")
        cache = load_cache(self._model, self.new_cache(saved.settings), folder, saved)
        if (old := self._at(owner, slot)) is not None:
            _require_idle(old)
            self.erase(old)
        session = self._add(owner, saved.settings, saved.name, slot)
        _fill(session, saved)
        session.cache = cache
        self.make_room()
        return session, _size(folder)

    # ---- files

    def _named_folder(self, owner: str, file_name: str) -> Path:
        if not _FILE_NAME.fullmatch(file_name):
            raise NoSuchSession(
                f"{file_name!r} cannot name a saved session; a name has at most 128 letters, "
                "digits, dots, hyphens and underscores, and begins with a letter or a digit"
            )
        return self.folder / "saved" / owner / file_name

    def _folder_of(self, session: ServedSession) -> Path:
        return self.folder / "sessions" / session.id

    def _write(self, session: ServedSession, folder: Path) -> None:
        assert session.cache is not None
        history = session.history
        saved = _SavedSession(
            cache=new_cache_name(),
            seen=session.cache.seen,
            owner=session.owner,
            id=session.id,
            name=session.name,
            slot=session.slot,
            policy=session.settings.policy,
            budget=session.settings.budget,
            history=history if isinstance(history, str) else [str(each) for each in history],
            num_read=session.end.num_read,
            unread=list(session.end.unread),
        )
        save(saved, session.cache, folder)

    def _load(self, session: ServedSession) -> Cache | None:
        folder = self._folder_of(session)
        try:
            saved = read(_SavedSession, folder)
            if (saved.owner, saved.id) != (session.owner, session.id):
                raise ConversationFileError(f"{folder} holds another session")
            if saved.stream != session.history:
                raise ConversationFileError(f"{folder} holds another state of the session")
            cache = load_cache(self._model, self.new_cache(session.settings), folder, saved)
        except (ConversationFileError, CacheFileError) as error:
            _log.warning("session %r is lost and read again: %s", session.label, error)
            return None
        self.num_loads += 1
        return cache

    def _discard_files(self, session: ServedSession) -> None:
        """Remove the files of a session that is erased or whose stream begins anew.

        A session that goes on keeps its files: after a crash it returns to what they hold.
        """
        if session.is_stored:
            shutil.rmtree(self._folder_of(session), ignore_errors=True)
            session.is_stored = False

    def _find_stored(self) -> None:
        """Find the sessions that an earlier server has put on disk."""
        for folder in sorted((self.folder / "sessions").glob("*")):
            try:
                saved = read(_SavedSession, folder)
                self.new_cache(saved.settings)  # refuses a policy that this server does not have
            except ValueError as error:
                _log.warning("a stored session is left out: %s", error)
                continue
            if saved.id != folder.name:
                _log.warning("a stored session is left out: %s is the folder of another", folder)
                continue
            session = self._add(saved.owner, saved.settings, saved.name, saved.slot)
            session.id = saved.id
            _fill(session, saved)
            session.is_stored = True


def _continues(session: ServedSession, point: ResumePoint) -> bool:
    """Return whether a request that resumes at a point belongs to the session's conversation."""
    shares_reply = point.num_read > 0 or isinstance(session.history, str)
    return shares_reply and 2 * point.length >= len(session.history)


def _furthest(
    sessions: list[ServedSession], nearest: Callable[[ServedSession], ResumePoint | None]
) -> tuple[ServedSession, ResumePoint] | None:
    """Return the session with the point that is furthest along, and the point."""
    found = [(session, point) for session in sessions if (point := nearest(session)) is not None]
    return max(found, key=lambda pair: pair[1].length, default=None)


def _fill(session: ServedSession, saved: _SavedSession) -> None:
    session.history = saved.stream
    session.end = ResumePoint(
        len(saved.history), saved.seen, num_read=saved.num_read, unread=tuple(saved.unread)
    )


def _require_idle(session: ServedSession) -> None:
    if session.is_busy:
        raise SessionConflict(f"slot {session.slot} is busy; try again when it has answered")


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.iterdir())
