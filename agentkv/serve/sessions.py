"""All sessions of the server: found for a request, kept within bytes of memory, put on disk."""

import hashlib
import logging
import re
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from secrets import token_hex
from typing import Annotated, Any

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
from agentkv.serve.session import CacheSettings, History, Place, Session

_log = logging.getLogger(__name__)

_FILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


class SessionConflict(ValueError):
    """A request that names a session which it cannot continue."""


class NoSuchSession(ValueError):
    """A slot or a file that holds no session of this owner."""


class _SavedSession(SavedState):
    """Everything about a session but its cache."""

    owner: str
    name: str
    slot: Annotated[int, Field(ge=0)]
    policy: str
    budget: int | str | None
    history: list[str] | str
    num_read: Annotated[int, Field(ge=0)]
    unread: list[Annotated[int, Field(ge=0)]]


@dataclass(frozen=True, slots=True)
class Wanted:
    """The session that a request asks for."""

    owner: str
    settings: CacheSettings | None
    """None: those of the session, or the server's first ones."""
    name: str | None = None
    """Name that the client gave."""
    slot: int | None = None
    """Number that the client gave."""


@dataclass(frozen=True, slots=True)
class Found:
    """The session of a request."""

    session: Session
    place: Place | None
    """Where it goes on; None if everything must be read."""
    is_new: bool = False
    """True if it was made for the request, and is erased if that is not answered."""


class Sessions:
    """The sessions of all owners.

    Used by one thread. A session that is not in memory has its files in the folder; those that were
    saved by name lie beside them.

    Args:
        model: the transformers model that reads.
        new_cache: returns an empty cache with given settings.
        settings: those of a session whose request gives none.
        folder: where sessions are put on disk; what lies there from an earlier server is found.
        memory: bytes of all caches and snapshots that idle sessions may leave in memory.
        max_sessions: number of sessions, on disk too; the least recently used idle one is erased.
        max_snapshots: number of snapshots of a session.
    """

    def __init__(
        self,
        model: Any,
        new_cache: Callable[[CacheSettings], Cache],
        settings: CacheSettings,
        folder: Path,
        *,
        memory: int,
        max_sessions: int = 1024,
        max_snapshots: int = 4,
    ) -> None:
        self._model, self.new_cache, self._settings = model, new_cache, settings
        self.folder, self.memory = folder, memory
        self._max_sessions, self._max_snapshots = max_sessions, max_snapshots
        self._sessions: list[Session] = []
        self.num_spills = self.num_loads = 0
        """Sessions that went to disk, and that came back."""
        self.peak_nbytes = 0
        """The most bytes that all sessions had between two requests or tokens."""
        make_folder(folder)
        self._find_stored()

    def __iter__(self) -> Iterator[Session]:
        return iter(self._sessions)

    @property
    def nbytes(self) -> int:
        """Bytes of all sessions in memory."""
        return sum(session.nbytes for session in self._sessions)

    # ---- finding

    def find(self, wanted: Wanted, history: History) -> Found | None:
        """Return the session for a request, and the place from which it goes on.

        A session that was named is used as it is. Otherwise the owner's session without a name
        whose stream has most of `history` is: in place if it has at least half of the session's own
        history, else as a copy, which begins with the other one's snapshot.

        Returns:
            None if the session is busy.

        Raises:
            SessionConflict: the named session has another policy or budget.
            NoSuchSession: there is no such slot.
        """
        settings = wanted.settings or self._settings
        named = self._named(wanted)
        if named is not None:
            if named.is_busy:
                return None
            if wanted.settings not in (None, named.settings):
                raise SessionConflict(
                    f"session {named.name!r} has the policy {named.settings.policy} and the budget "
                    f"{named.settings.budget}; give another session, or erase its slot first"
                )
            place = named.nearest(history)
            if place is not None or named.history:
                return Found(named, place)
        others = [each for each in self._of(wanted.owner) if each.settings == settings]
        if named is None and wanted.name is None:
            idle = [each for each in others if each.is_unnamed and not each.is_busy]
            same = _most(idle, lambda session: session.nearest(history))
            if same is not None and 2 * same[1].length >= len(same[0].history):
                return Found(*same)
        begun = _most(others, lambda session: session.nearest(history, only_snapshots=True))
        new = named or self._add(wanted.owner, wanted.name, settings)
        if begun is None:
            return Found(new, None, is_new=True)
        source, place = begun
        assert place.snapshot is not None
        new.cache = self.new_cache(settings)
        new.cache.origin = place.snapshot.origin
        new.history, new.snapshots = source.history, [place]
        return Found(new, place, is_new=True)

    def _named(self, wanted: Wanted) -> Session | None:
        if wanted.slot is not None:
            return self.at(wanted.owner, wanted.slot)
        if wanted.name is None:
            return None
        return next((s for s in self._of(wanted.owner) if s.name == wanted.name), None)

    def at(self, owner: str, slot: int) -> Session:
        """Return an owner's session by its number.

        Raises:
            NoSuchSession: there is none.
        """
        found = next((each for each in self._of(owner) if each.slot == slot), None)
        if found is None:
            numbers = ", ".join(str(each.slot) for each in self._of(owner)) or "none"
            raise NoSuchSession(f"there is no slot {slot}; the slots in use: {numbers}")
        return found

    def of(self, owner: str) -> list[Session]:
        """Return an owner's sessions by number."""
        return sorted(self._of(owner), key=lambda session: session.slot)

    def _of(self, owner: str) -> list[Session]:
        return [session for session in self._sessions if session.owner == owner]

    def _add(
        self, owner: str, name: str | None, settings: CacheSettings, slot: int | None = None
    ) -> Session:
        if len(self._sessions) >= self._max_sessions:
            idle = [session for session in self._sessions if not session.is_busy]
            if idle:
                self.erase(min(idle, key=lambda s: (not s.is_unnamed, s.used_at)))
        taken = {session.slot for session in self._of(owner)}
        if slot is None:
            slot = next(i for i in range(len(taken) + 1) if i not in taken)
        session = Session(owner, name or f"auto-{token_hex(8)}", slot, settings)
        session.is_unnamed = name is None
        self._sessions.append(session)
        return session

    # ---- using

    def begin(self, session: Session, place: Place | None) -> Place | None:
        """Bring a session into memory and to a place, for a request.

        Returns:
            The place, or None if everything must be read: the session was erased because its files
            could not be read.
        """
        session.is_busy, session.used_at = True, time.monotonic()
        if place is None:
            self._discard_files(session)
            session.forget()
        elif session.cache is None:
            session.cache = self._load(session)
            if session.cache is None:
                session.forget()
                place = None
        if session.cache is None:
            session.cache = self.new_cache(session.settings)
        elif place is not None:
            session.return_to(place)
        return place

    def end(self, session: Session) -> None:
        """Let a session rest, and put others on disk until all fit into memory."""
        session.is_busy, session.used_at = False, time.monotonic()
        self.make_room(0)

    def note(self, session: Session, place: Place) -> None:
        """Keep a snapshot at a place, if memory has room for it."""
        if self.nbytes + session.cache_nbytes <= self.memory:
            session.note(place, limit=self._max_snapshots)
        self.peak_nbytes = max(self.peak_nbytes, self.nbytes)

    def make_room(self, nbytes: int) -> None:
        """Drop snapshots and put idle sessions on disk until `nbytes` more fit into memory.

        The least recently used goes first. Busy sessions lose their snapshots last.
        """
        self.peak_nbytes = max(self.peak_nbytes, self.nbytes)
        by_use = sorted(self._sessions, key=lambda session: (session.is_busy, session.used_at))
        for session in by_use:
            if self.nbytes + nbytes <= self.memory:
                return
            session.snapshots = []
            if self.nbytes + nbytes > self.memory and not session.is_busy:
                self.spill(session)

    def spill(self, session: Session) -> None:
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

    def spill_all(self) -> None:
        """Put all idle sessions on disk."""
        for session in list(self._sessions):
            if not session.is_busy:
                self.spill(session)

    def erase(self, session: Session) -> int:
        """Erase a session, its files too; return the ids that its stream had."""
        num_ids = session.end.seen + len(session.end.unread)
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

    # ---- saving by name

    def save(self, session: Session, file_name: str) -> tuple[int, int]:
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
        if session.cache is None:
            session.cache = self._load(session)
            if session.cache is None:
                self.erase(session)
                raise NoSuchSession(f"slot {session.slot} was lost: its files cannot be read")
        self._write(session, folder)
        self.make_room(0)
        return session.end.seen + len(session.end.unread), _size(folder)

    def restore(self, owner: str, slot: int, file_name: str) -> tuple[Session, int]:
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
        settings = CacheSettings(saved.policy, saved.budget)
        cache = load_cache(self._model, self.new_cache(settings), folder, saved)
        old = next((each for each in self._of(owner) if each.slot == slot), None)
        if old is not None:
            _require_idle(old)
            self.erase(old)
        names = {each.name for each in self._of(owner)}
        is_named = not saved.name.startswith("auto-") and saved.name not in names
        session = self._add(owner, saved.name if is_named else None, settings, slot)
        _fill(session, saved)
        session.cache = cache
        self.make_room(0)
        return session, _size(folder)

    # ---- files

    def _named_folder(self, owner: str, file_name: str) -> Path:
        if not _FILE_NAME.fullmatch(file_name):
            raise NoSuchSession(
                f"{file_name!r} is no name of a saved session: letters, digits, dots, hyphens and "
                "underscores, at most 128, the first one a letter or a digit"
            )
        return self.folder / "saved" / owner / file_name

    def _folder_of(self, session: Session) -> Path:
        name = hashlib.sha256(f"{session.owner}\0{session.name}".encode()).hexdigest()[:32]
        return self.folder / "sessions" / name

    def _write(self, session: Session, folder: Path) -> None:
        assert session.cache is not None
        history = session.history
        saved = _SavedSession(
            cache=new_cache_name(),
            seen=session.cache.seen,
            owner=session.owner,
            name=session.name,
            slot=session.slot,
            policy=session.settings.policy,
            budget=session.settings.budget,
            history=history if isinstance(history, str) else list(history),
            num_read=session.end.num_read,
            unread=list(session.end.unread),
        )
        save(saved, session.cache, folder)

    def _load(self, session: Session) -> Cache | None:
        folder = self._folder_of(session)
        try:
            saved = read(_SavedSession, folder)
            if (saved.owner, saved.name) != (session.owner, session.name):
                raise ConversationFileError(f"{folder} holds another session")
            cache = load_cache(self._model, self.new_cache(session.settings), folder, saved)
        except (ConversationFileError, CacheFileError) as error:
            _log.warning("session %s is lost: %s", session.name, error)
            return None
        self.num_loads += 1
        return cache

    def _discard_files(self, session: Session) -> None:
        """Remove the files of a session whose stream begins anew, or that is no more.

        Those of a session that goes on stay: after a crash it returns to what they hold.
        """
        if session.is_stored:
            shutil.rmtree(self._folder_of(session), ignore_errors=True)
            session.is_stored = False

    def _find_stored(self) -> None:
        """Find the sessions that an earlier server has put on disk."""
        for folder in sorted((self.folder / "sessions").glob("*")):
            try:
                saved = read(_SavedSession, folder)
                settings = CacheSettings(saved.policy, saved.budget)
                self.new_cache(settings)  # refuses a policy that this server does not have
            except ValueError as error:
                _log.warning("a stored session is left out: %s", error)
                continue
            if any(each.slot == saved.slot for each in self._of(saved.owner)):
                slot = None
            else:
                slot = saved.slot
            is_named = not saved.name.startswith("auto-")
            session = self._add(saved.owner, saved.name if is_named else None, settings, slot)
            session.name = saved.name
            _fill(session, saved)
            session.is_stored = True


def _most(
    sessions: list[Session], nearest: Callable[[Session], Place | None]
) -> tuple[Session, Place] | None:
    """Return the session with the place that is furthest along, and the place."""
    found = [(session, place) for session in sessions if (place := nearest(session)) is not None]
    return max(found, key=lambda pair: pair[1].length, default=None)


def _fill(session: Session, saved: _SavedSession) -> None:
    history = saved.history
    session.history = history if isinstance(history, str) else tuple(history)
    session.end = Place(
        len(session.history), saved.seen, num_read=saved.num_read, unread=tuple(saved.unread)
    )


def _require_idle(session: Session) -> None:
    if session.is_busy:
        raise SessionConflict(f"slot {session.slot} is busy; try again when it has answered")


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.iterdir())
