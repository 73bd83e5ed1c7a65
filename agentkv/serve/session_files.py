"""Sessions on disk: those that left the memory, and those that were saved by name."""

import logging
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
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
from agentkv.serve.session import CacheSettings, History, Place, ResumePoint, Said, ServedSession

_log = logging.getLogger(__name__)

_FILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")

Count = Annotated[int, Field(ge=0)]


class NoSuchSession(ValueError):
    """A slot or a file holds no session of this owner."""


class SavedSession(SavedState):
    """Everything about a session but its cache."""

    owner: str
    id: Annotated[str, Field(pattern="^[0-9a-f]{16}$")]
    name: str | None
    slot: Count
    policy: str
    budget: int | str | None
    history: list[str] | str
    num_read: Count
    unread: list[Count]
    num_empty: Count = 0
    places: list[tuple[int, int]] = []
    ids: list[int] = []

    @classmethod
    def of(cls, session: ServedSession) -> "SavedSession":
        """Return a session whose cache is in memory, as it is saved."""
        assert session.cache is not None
        history, end = session.history, session.end
        return cls(
            cache=new_cache_name(),
            seen=session.cache.seen,
            owner=session.owner,
            id=session.id,
            name=session.name,
            slot=session.slot,
            policy=session.settings.policy,
            budget=session.settings.budget,
            history=history if isinstance(history, str) else [str(each) for each in history],
            num_read=end.num_read,
            unread=list(end.unread),
            num_empty=end.num_empty,
            places=[(each.start, each.stop) for each in session.places],
            ids=session.ids,
        )

    @property
    def settings(self) -> CacheSettings:
        """Settings of its cache."""
        return CacheSettings(self.policy, self.budget)

    @property
    def stream(self) -> History:
        """What its stream holds."""
        history = self.history
        return history if isinstance(history, str) else tuple(Said(each) for each in history)

    def fill(self, session: ServedSession) -> None:
        """Give a session the stream that was saved."""
        session.history = self.stream
        session.end = ResumePoint(
            len(self.history),
            self.seen,
            num_read=self.num_read,
            unread=tuple(self.unread),
            num_empty=self.num_empty,
        )
        session.places, session.ids = [Place(*each) for each in self.places], list(self.ids)


class SessionFiles:
    """The files of sessions in a folder.

    Args:
        model: the transformers model that reads.
        new_cache: returns an empty cache with given settings.
    """

    def __init__(
        self, model: Any, new_cache: Callable[[CacheSettings], Cache], folder: Path
    ) -> None:
        self._model, self._new_cache, self._folder = model, new_cache, folder
        make_folder(folder)

    def stored(self) -> Iterator[SavedSession]:
        """Yield the sessions that an earlier server has put on disk; others are left out."""
        for folder in sorted((self._folder / "sessions").glob("*")):
            try:
                saved = read(SavedSession, folder)
                self._new_cache(saved.settings)  # refuses a policy that this server does not have
            except ValueError as error:
                _log.warning("a stored session is left out: %s", error)
                continue
            if saved.id != folder.name:
                _log.warning("a stored session is left out: %s is the folder of another", folder)
                continue
            yield saved

    def put(self, session: ServedSession) -> None:
        """Write a session. Raises OSError, RuntimeError or ValueError."""
        assert session.cache is not None
        save(SavedSession.of(session), session.cache, self._of(session))

    def load(self, session: ServedSession) -> Cache | None:
        """Return the cache of a session on disk; None if its files are of no use."""
        folder = self._of(session)
        try:
            saved = read(SavedSession, folder)
            if (saved.owner, saved.id) != (session.owner, session.id):
                raise ConversationFileError(f"{folder} holds another session")
            if saved.stream != session.history:
                raise ConversationFileError(f"{folder} holds another state of the session")
            return load_cache(self._model, self._new_cache(session.settings), folder, saved)
        except (ConversationFileError, CacheFileError) as error:
            _log.warning("session %r is lost and read again: %s", session.label, error)
            return None

    def discard(self, session: ServedSession) -> None:
        """Remove the files of a session that is erased or whose stream begins anew.

        A session that goes on keeps its files: after a crash it returns to what they hold.
        """
        if session.is_stored:
            shutil.rmtree(self._of(session), ignore_errors=True)
            session.is_stored = False

    def save(self, session: ServedSession, file_name: str) -> int:
        """Write a session by name; return the bytes.

        Raises:
            NoSuchSession: the name is not one.
            OSError, WriteError, CacheFileError: it could not be written.
        """
        assert session.cache is not None
        folder = self.named(session.owner, file_name)
        save(SavedSession.of(session), session.cache, folder)
        return _size(folder)

    def restore(self, owner: str, file_name: str) -> tuple[SavedSession, Cache, int]:
        """Return what was saved by name, its cache, and the bytes.

        Raises:
            NoSuchSession: no session was saved by that name.
            ConversationFileError, CacheFileError: ValueErrors; the files are damaged, or belong to
                another model.
        """
        folder = self.named(owner, file_name)
        if not (folder / INDEX).exists():
            raise NoSuchSession(f"no session was saved as {file_name!r}")
        saved = read(SavedSession, folder)
        if saved.owner != owner:
            raise NoSuchSession(f"no session was saved as {file_name!r}")
        cache = load_cache(self._model, self._new_cache(saved.settings), folder, saved)
        return saved, cache, _size(folder)

    def named(self, owner: str, file_name: str) -> Path:
        """Return the folder of a session that is saved by name. Raises NoSuchSession."""
        if not _FILE_NAME.fullmatch(file_name):
            raise NoSuchSession(
                f"{file_name!r} cannot name a saved session; a name has at most 128 letters, "
                "digits, dots, hyphens and underscores, and begins with a letter or a digit"
            )
        return self._folder / "saved" / owner / file_name

    def _of(self, session: ServedSession) -> Path:
        return self._folder / "sessions" / session.id


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.iterdir())
