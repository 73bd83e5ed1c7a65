"""Sessions on disk: those that left the memory, and those that were saved by name."""

import logging
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from pydantic import Field, model_validator

from agentkv.cache.cache import Cache
from agentkv.cache.checkpoint.file import CacheFileError, FileLimit
from agentkv.files import make_folder
from agentkv.models.saved import (
    ConversationFileError,
    SavedState,
    load_cache,
    new_cache_name,
    read,
    save,
)
from agentkv.policies.entries import PolicyError
from agentkv.serve.named_files import NamedFolder, NoSuchSession, is_file
from agentkv.serve.session import (
    EMPTY,
    CacheSettings,
    History,
    Place,
    ResumePoint,
    Said,
    ServedSession,
)

_log = logging.getLogger(__name__)

Count = Annotated[int, Field(ge=0)]
SessionId = Annotated[str, Field(pattern="^[0-9a-f]{16}$")]


class SavedSession(SavedState):
    """Everything about a session but its cache."""

    owner: str
    id: SessionId
    origin: SessionId | None = None
    """Session that it descends from as a fork; a copy by name, which shares nothing, ignores it."""
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
    num_exact: Count | None = None

    @model_validator(mode="after")
    def _require_consistency(self) -> "SavedSession":
        num_ids, num_items = self.seen + len(self.unread), len(self.history)
        if len(self.ids) not in (0, self.seen) or self.num_empty > self.seen:
            raise ValueError("the ids are not those of the tokens that were read")
        if self.num_read and (isinstance(self.history, str) or self.num_read >= num_items):
            raise ValueError("more messages were read than there are")
        if any(not 0 <= start <= stop <= num_ids for start, stop in self.places):
            raise ValueError("a message is where no tokens are")
        return self

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
            origin=session.origin,
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
            num_exact=session.num_exact,
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
        session.num_exact = self.num_exact


class RestoredFile(NamedTuple):
    """A session that a client saved by name, read from its file and not yet attached."""

    saved: SavedSession
    cache: Cache
    num_bytes: int


class SessionFiles:
    """The files of sessions in a folder.

    Args:
        model: the transformers model that reads.
        new_cache: returns an empty cache with given settings.
        named: where sessions lie that were saved by name.
    """

    def __init__(
        self,
        model: Any,
        new_cache: Callable[[CacheSettings], Cache],
        folder: Path,
        named: NamedFolder,
    ) -> None:
        self._model, self._new_cache, self._folder = model, new_cache, folder
        self.named = named
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
            FilesFull: it would take more bytes than are left; nothing was written.
            OSError, WriteError, CacheFileError: it could not be written. What was saved by this
                name before is intact, and nothing else is left.
        """
        assert session.cache is not None
        folder = self.named.for_saving(session.owner, file_name)
        room = self.named.room(folder)
        try:
            save(SavedSession.of(session), session.cache, folder, most_bytes=room)
        except BaseException as error:
            self.named.remove_empty(folder)
            if isinstance(error, FileLimit) and room is not None:
                raise self.named.full(room) from None
            raise
        return _size(folder)

    def restore(self, owner: str, file_name: str) -> RestoredFile:
        """Return what was saved by name. Any thread may call it.

        Raises:
            NoSuchSession: no session was saved by that name.
            ConversationFileError: a ValueError; the files are damaged, or belong to another model
                or policy.
        """
        folder = self.named.for_restoring(owner, file_name)
        try:
            saved = read(SavedSession, folder)
            if saved.owner != owner:
                raise NoSuchSession(f"no session was saved as {file_name!r}")
            if not is_file(folder / saved.cache):
                raise ConversationFileError(f"it is incomplete: {saved.cache} is no file")
            self._require_known(saved)
            cache = load_cache(self._model, self._new_cache(saved.settings), folder, saved)
        except (ConversationFileError, CacheFileError, PolicyError) as error:
            # clients need not know where the folder is
            reason = str(error).replace(f"{folder}/", "").replace(str(folder), "it")
            raise ConversationFileError(
                f"{file_name!r} cannot be restored: {reason[:1000]}"
            ) from None
        return RestoredFile(saved, cache, _size(folder))

    def _require_known(self, saved: SavedSession) -> None:
        """Refuse ids that the model does not have, which may come from a file of a client."""
        num_ids = self._model.get_input_embeddings().num_embeddings
        if any(not EMPTY <= id < num_ids for id in (*saved.ids, *saved.unread)):
            raise ConversationFileError("it is damaged: it has ids that this model does not have")

    def _of(self, session: ServedSession) -> Path:
        return self._folder / "sessions" / session.id


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.iterdir())
