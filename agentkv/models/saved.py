"""A conversation in a folder: its stream of ids in a JSON file, and its cache in another file.

The JSON file names the cache file and is replaced last and atomically, so a crash while saving
leaves the conversation that was saved before.
"""

import re
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import Base64Bytes, BaseModel, ConfigDict, Field, ValidationError

from agentkv.cache.cache import Cache
from agentkv.files import make_folder, write_atomic
from agentkv.models.held import SavedHeld
from agentkv.models.model import CacheUse
from agentkv.models.stream import StreamTurn
from agentkv_env.changes import Known

INDEX = "conversation.json"
"""Name of the JSON file."""
VERSION: Literal[1] = 1
"""Version of the JSON file; other versions are refused."""

_CACHE_NAME = r"cache-[0-9a-f]{16}\.safetensors"

S = TypeVar("S", bound="SavedState")

Id = Annotated[int, Field(ge=0)]
Ids = list[Id]


class ConversationFileError(ValueError):
    """A folder that holds no conversation, or not one of this model and policy."""


class _SavedModel(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, strict=True)


class SavedState(_SavedModel):
    """What every saved conversation says about its cache."""

    version: Literal[1] = VERSION
    cache: Annotated[str, Field(pattern=f"^{_CACHE_NAME}$")]
    """Name of the cache file."""
    seen: Id
    """Tokens that the cache was fed."""


class SavedConversation(SavedState):
    """Everything about a conversation but its cache."""

    first_goal: str
    goal: str
    """The latest goal or question."""
    nonce: str
    next_goal: Ids
    """Ids of a goal that no page has followed yet."""
    pending: Ids
    """Ids of the stream that the cache has not read."""
    turns: list[StreamTurn]
    known: Known | None
    """Lines of the page that the model has read last."""
    earlier: CacheUse
    """Use of the caches before the present one."""
    held: SavedHeld = SavedHeld({}, {})
    """State of the `HeldSpans` after the last reply; empty in older files."""
    random: Base64Bytes
    """State of the random numbers."""
    settings: dict[str, str | int | float | bool | None]
    """Settings of the model that decide what it reads and writes."""


def save(saved: SavedState, cache: Cache, folder: Path, *, most_bytes: int | None = None) -> None:
    """Write a conversation and its cache to `folder`, which replaces the one saved there before.

    Only the owner can read the files.

    Args:
        saved: names a cache file that is not in the folder yet; see `new_cache_name`.
        most_bytes: bytes that both files may have together; None: any number.

    Raises:
        CacheFileError: a ValueError; the cache cannot be saved, or takes too many bytes
            (`FileLimit`).
        OSError, WriteError: a file could not be written; what was saved before is intact.
    """
    index = saved.model_dump_json()
    if most_bytes is not None:
        most_bytes -= len(index.encode(errors="replace"))
    make_folder(folder)
    try:
        cache.save(folder / saved.cache, most_bytes=most_bytes)
        write_atomic(folder / INDEX, index)
    except BaseException:
        (folder / saved.cache).unlink(missing_ok=True)
        raise
    for old in folder.iterdir():
        if re.fullmatch(_CACHE_NAME, old.name) and old.name != saved.cache:
            old.unlink(missing_ok=True)


def new_cache_name() -> str:
    """Return a name for a cache file that no other save has used."""
    return f"cache-{secrets.token_hex(8)}.safetensors"


def load(
    model: Any, fresh: Cache, folder: Path, settings: Mapping[str, Any]
) -> tuple[SavedConversation, Cache]:
    """Return the conversation in `folder`, and its cache.

    Args:
        model: the transformers model that the conversation was held with.
        fresh: an empty cache with the policy and budget that the saved cache must have.
        settings: those that the conversation must have been saved with.

    Raises:
        ConversationFileError: the folder holds no conversation, a damaged one, or one with another
            budget or other settings.
        CacheFileError: a ValueError; the cache file is damaged, or belongs to another model or
            policy.
    """
    saved = read(SavedConversation, folder)
    other = [
        f"{name} was {value!r} and is {settings.get(name)!r}"
        for name, value in saved.settings.items()
        if value != settings.get(name)
    ]
    if other:
        raise ConversationFileError(
            f"{folder} was saved with other settings: {'; '.join(other)}; give the agent the "
            "settings of the saved conversation"
        )
    return saved, load_cache(model, fresh, folder, saved)


def read(kind: type[S], folder: Path) -> S:
    """Return what a folder says about its conversation, without the cache.

    Raises:
        ConversationFileError: the folder holds no conversation, or a damaged one.
    """
    path = folder / INDEX
    try:
        saved = kind.model_validate_json(path.read_bytes())
    except OSError as error:
        raise ConversationFileError(
            f"{folder} holds no saved conversation: {path.name} cannot be read ({error.strerror}); "
            "give the folder that Session.save wrote"
        ) from error
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "the file"
        raise ConversationFileError(
            f"{path} is damaged, or another version of agentkv wrote it: {where}: {first['msg']}"
        ) from None
    return saved


def load_cache(model: Any, fresh: Cache, folder: Path, saved: SavedState) -> Cache:
    """Return the cache of a saved conversation; raises as `load` does."""
    try:
        cache = Cache.load(folder / saved.cache, model, policy=fresh.policy)
    except OSError as error:
        raise ConversationFileError(
            f"{folder} is incomplete: {saved.cache} cannot be read ({error.strerror})"
        ) from error
    if cache.budget != fresh.budget:
        raise ConversationFileError(
            f"{folder} was saved with the budget {cache.budget}; the agent has {fresh.budget}; "
            "give the agent the budget of the saved conversation"
        )
    if cache.seen != saved.seen:
        raise ConversationFileError(
            f"{folder} is damaged: its cache has read {cache.seen} tokens, not {saved.seen}"
        )
    return cache
