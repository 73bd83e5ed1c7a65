"""Settings of a server."""

from pathlib import Path
from typing import Literal

from pydantic import Field

from agentkv.defaults import POLICY
from agentkv.settings import LARGEST, YEAR_S, PoliciesSettings, Policy, PolicySettings

EditMode = Literal["exact", "removals", "keep"]
"""What becomes of a conversation whose earlier messages were edited: see `ServeSettings.edits`."""


class ServeSettings(PoliciesSettings):
    """A server: its model, the policies that requests may choose among, and its limits."""

    policies: tuple[Policy, ...] = (PolicySettings(name=POLICY),)
    """Cache policies: requests may choose among them, and the first is the default."""
    host: str = "127.0.0.1"
    """Address to listen on. Beyond this machine, keys are needed."""
    port: int = Field(default=8080, ge=0, le=65535)
    """Port to listen on; 0 takes a free one."""
    name: str | None = None
    """Name of the model in requests. The default is the last part of the model's own."""
    allow_host: tuple[str, ...] = ()
    """Further names by which the server may be addressed."""
    any_model: bool = False
    """Answer requests for any model's name with this model, for clients whose name cannot be
    set."""
    explain: bool = False
    """Say of each reply what was kept of its conversation, and where the request first differed
    from it."""
    page: bool = True
    """Serve a page at / that shows sessions and chats with them, and the addresses that give it
    their text."""
    memory: str | None = None
    """Bytes of all sessions in memory, such as 4GiB; the least recently used ones go to disk. The
    default is a quarter of the device's."""
    group_memory: str | None = None
    """Bytes in memory of a session and all its forks; the least recently used of them go to disk.
    The default is all of `memory`."""
    store: Path | None = None
    """Folder for sessions on disk; the next server finds them there. The default is a temporary
    folder."""
    client_files: Path | None = None
    """Folder in which clients save and restore sessions by file names of their own. The default is
    a part of the store."""
    client_quota: str | None = None
    """Bytes of all files that clients save, such as 10GiB; what would exceed them is refused. The
    default is no limit."""
    snapshots: int = Field(default=4, ge=0, le=LARGEST)
    """Earlier states kept per session, to which a changed conversation returns."""
    edits: EditMode = "removals"
    """What a session does when a client has edited earlier messages. `exact` returns to an earlier
    state, under `full` to any token, and reads the rest again. `removals` drops what was removed or
    shortened from the cache, keeps everything after it, and reads again only where text is new.
    `keep` reads new text in its place and keeps everything after it too, under policies that keep
    all entries as they are."""
    max_tokens: int = Field(default=4096, ge=1, le=LARGEST)
    """Maximum tokens of a reply."""
    parallel: int = Field(default=16, ge=1, le=LARGEST)
    """Replies at a time, in one batch."""
    queue: int = Field(default=64, ge=0, le=LARGEST)
    """Requests that may wait, those that save, restore or change a session among them."""
    timeout_s: float = Field(default=600.0, gt=0, le=YEAR_S)
    """Maximum seconds of a request."""
    max_body: int = Field(default=16 * 2**20, ge=1, le=LARGEST)
    """Maximum bytes of a request."""
