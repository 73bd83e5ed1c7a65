"""One session of the server: a stream of ids, the cache that reads it, and points to resume at."""

import hashlib
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from secrets import token_hex
from typing import Any, NamedTuple

from agentkv.cache.cache import Cache
from agentkv.cache.forks import group_nbytes
from agentkv.dialog.messages import Chat
from agentkv.dialog.rendering import Message
from agentkv.models.stream import common_start
from agentkv.serve.settings import EditMode
from agentkv.serve.token_notes import MOST_NOTES, TokenNote, before


class Said(str):
    """A digest of a stream's functions or of one of its messages, which knows what it says.

    It is a string because a request is compared with all messages of all sessions.
    """

    __slots__ = ("text",)
    text: str | None
    """Content of a message; None where it is not known, such as after a time on disk."""

    def __new__(cls, digest: str, text: str | None = None) -> "Said":
        said = super().__new__(cls, digest)
        said.text = text
        return said


History = tuple[Said, ...] | str
"""What a stream holds, in the form in which requests are compared with it: its functions and each
message, or the text of raw prompts and replies."""


def chat_history(chat: Chat) -> tuple[Said, ...]:
    """Return the history that a chat asks for."""
    first = Said(_digest({"tools": list(chat.tools), "effort": chat.effort}))
    return (first, *(said_in(message) for message in chat.messages))


def said_in(message: Message) -> Said:
    """Return what a message says.

    Thoughts, the white space around a reply and the ids of calls do not count, because hosts drop
    or change them. The arguments of calls count as values.
    """
    content = message.get("content") or ""
    is_reply = message["role"] == "assistant"
    calls = [
        [call["function"]["name"], _value(call["function"].get("arguments"))]
        for call in message.get("tool_calls") or ()
    ]
    text = content.strip() if is_reply else content
    return Said(_digest([message["role"], text, calls, message.get("name")]), text)


def _digest(value: Any) -> str:
    text = json.dumps(value, sort_keys=True, ensure_ascii=True)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def _value(arguments: Any) -> Any:
    try:
        return json.loads(arguments) if isinstance(arguments, str) else arguments
    except (ValueError, RecursionError):
        return arguments


EMPTY = -1
"""Stands for an id in positions of a stream whose token is gone."""


class Place(NamedTuple):
    """Where the tokens of a message are in a stream."""

    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class ResumePoint:
    """A point in a stream where another message may follow."""

    length: int
    """Items of the history before it."""
    seen: int = 0
    """Ids that the cache has read at this point."""
    num_read: int = 0
    """Messages before it. 0 if the last one is no reply of the model's."""
    unread: tuple[int, ...] = ()
    """Ids before it that the cache has not read at this point."""
    num_empty: int = 0
    """Positions before it whose token is gone."""
    snapshot: Cache | None = field(default=None, repr=False)
    """A fork of the cache at this point, which is never fed; None where the cache itself is
    there."""
    num_shared: int = 0
    """Ids after it that the cache keeps, because the request that goes on from the point begins
    with them. 0 in the points of a session."""

    @property
    def kept(self) -> int:
        """Ids that the cache keeps when a request goes on from the point."""
        return self.seen + self.num_shared


@dataclass(frozen=True, slots=True)
class CacheSettings:
    """Settings of a session's cache."""

    policy: str
    budget: int | str | None


@dataclass(slots=True, eq=False)
class ServedSession:
    """A conversation with one client, whose cache is in memory or on disk."""

    owner: str
    """Whose session it is: no other owner's requests find it."""
    name: str | None
    """Name that the client gave; several may share one. None: requests without a name find it."""
    slot: int
    """Number among its owner's sessions."""
    settings: CacheSettings
    cache: Cache | None = field(default=None, repr=False)
    """None while it is on disk, and before the first request."""
    history: History = ()
    """What the stream holds."""
    end: ResumePoint = ResumePoint(0)
    """The end of the stream."""
    snapshots: list[ResumePoint] = field(default_factory=list)
    """Earlier points, in order."""
    marks: list[ResumePoint] = field(default_factory=list)
    """Earlier points without a snapshot, in order; a cache that keeps everything returns to them by
    forgetting what came later."""
    places: list[Place] = field(default_factory=list)
    """Where each message but the last reply is; fewer if they are not known."""
    ids: list[int] = field(default_factory=list, repr=False)
    """Ids of the stream that the cache has read, with `EMPTY` where a token is gone."""
    num_exact: int | None = None
    """Leading ids that were read one after the other; None: all. Later ones were read when another
    text stood before them."""
    notes: list[TokenNote] = field(default_factory=list, repr=False)
    """Notes of the newest tokens of replies, in order; a restart of the server loses them."""
    is_busy: bool = False
    """True while a request is answered."""
    is_stored: bool = False
    """True if it has files, which hold its state or an earlier one."""
    id: str = field(default_factory=lambda: token_hex(8))
    """Identifies it among all sessions, and its files."""
    bound: int = 0
    """The most bytes that the cache will have when the request is answered."""
    used_at: float = field(default_factory=time.monotonic)
    """Time of the latest use (`time.monotonic()`)."""
    ttl: float | None = None
    """Seconds after the latest use at which it is erased; None: never."""
    origin: str | None = None
    """Id of the session that a fork and its source descend from; None for one that is no fork."""
    is_last: bool = False
    """Whether it is erased once the request that is being answered has ended."""

    @property
    def label(self) -> str:
        """Its name, or its id if it has none."""
        return self.name or self.id

    @property
    def group(self) -> str:
        """Identifies the session and all its forks."""
        return self.origin or self.id

    @property
    def num_ids(self) -> int:
        """Ids of its stream."""
        return self.end.seen + len(self.end.unread)

    @property
    def growth(self) -> int:
        """Bytes by which the cache may still grow in the request that is being answered, what it
        shares and may have to copy included."""
        cache = self.cache
        return growth(cache, self.bound, copies=cache is not None and not cache.keeps_all)

    @property
    def nbytes(self) -> int:
        """Bytes in memory, snapshots included; what these share with the cache counts once."""
        return group_nbytes(self.caches)

    @property
    def caches(self) -> list[Cache]:
        """Its cache and its snapshots, as far as they are in memory."""
        found = [self.cache, *(point.snapshot for point in self.snapshots)]
        return [each for each in found if each is not None]

    @property
    def cache_nbytes(self) -> int:
        """Bytes of the cache, its cold tier included."""
        return 0 if self.cache is None else cache_nbytes(self.cache)

    def nearest(
        self, history: History, *, mode: EditMode = "exact", for_another: bool = False
    ) -> ResumePoint | None:
        """Return the point from which `history` needs the least reading.

        Args:
            mode: with `keep`, entries that the cache has quantized since a point may stay so.
            for_another: the point is one where another session can begin: only snapshots are while
                this one is busy or on disk.

        Returns:
            None if the history shares no point with this session, or asks for something else.
        """
        if type(history) is not type(self.history):
            return None
        shared = common_start(self.history, history)
        has_own = not for_another or (self.cache is not None and not self.is_busy)
        points = [self.end] if has_own else []
        if has_own and self.cache is not None:
            newest = next((each for each in reversed(self.marks) if each.length <= shared), None)
            forgets = self.cache.can_forget if mode == "keep" else self.cache.forgets_exactly
            # of two points in one place the first is taken: to forget copies nothing
            if newest is not None and forgets(self.cache.seen - newest.seen):
                points.append(newest)
        points += reversed(self.snapshots)
        fitting = [point for point in points if 0 < point.length <= shared]
        return max(fitting, key=lambda point: point.length, default=None)

    def ids_after(self, point: ResumePoint | None, mode: EditMode) -> list[int]:
        """Return the ids after a point. The cache can keep any number of them and forget the rest.

        There are none if the session is busy or on disk, or its cache cannot go back to the point.

        Args:
            point: None for the beginning.
            mode: as in `nearest`; unless it is `keep`, only exact ids are returned.
        """
        cache, seen = self.cache, 0 if point is None else point.seen
        if cache is None or self.is_busy or point is self.end:
            return []
        forgets = cache.can_forget if mode == "keep" else cache.forgets_exactly
        stop = None if mode == "keep" else self.num_exact
        return self.ids[seen:stop] if forgets(cache.seen - seen) else []

    def return_to(self, point: ResumePoint) -> None:
        """Restore the cache's state at `point`, and forget all that came after it."""
        if point is self.end:
            return
        assert self.cache is not None
        if point.snapshot is None:
            self.cache.crop(point.kept - self.cache.seen)
        else:
            self.cache = point.snapshot.fork()
        self.snapshots = [each for each in self.snapshots if each.length <= point.length]
        self.marks = [each for each in self.marks if each.length <= point.length]
        self.history, self.end = self.history[: point.length], _of_session(point)
        del self.places[max(0, point.num_read - 1) :], self.ids[point.kept :]
        self.num_exact = _within(self.num_exact, point.kept)
        self.notes = before(self.notes, max(point.seen + len(point.unread), point.kept))

    def origin_of(self, point: ResumePoint) -> Cache:
        """Return the cache that a fork at a point of this session is made of; the session is in
        memory and idle unless the point has a snapshot."""
        origin = self.cache if point.snapshot is None else point.snapshot
        assert origin is not None
        return origin

    def copied_on_the_way(self, point: ResumePoint | None, *, is_edited: bool) -> int:
        """Return the most bytes that the cache copies until it is at a point: one that forgets or
        drops much of what it shares copies the rest.

        Args:
            point: None begins anew.
            is_edited: whether edits of the stream lead to the point.
        """
        if self.cache is None or point is None:
            return 0
        forgets = is_edited or (point is not self.end and point.snapshot is None)
        return self.cache.shared_nbytes if forgets else 0

    def begin_as_fork(self, source: "ServedSession", point: ResumePoint, cache: Cache) -> None:
        """Hold what another session held at a point of it.

        Args:
            cache: holds that, or more; it is this session's from now on.
        """
        self.cache, self.history = cache, source.history[: point.length]
        self.end = _of_session(point)
        self.marks = [each for each in source.marks if each.length < point.length]
        # forks of this session need the point's snapshot while this session is busy
        self.snapshots = [
            each
            for each in source.snapshots
            if each.length == point.length and each.snapshot is not cache
        ]
        if cache.seen > point.kept:
            cache.crop(point.kept - cache.seen)
        self.places = source.places[: max(0, point.num_read - 1)]
        self.ids = source.ids[: point.kept]
        self.num_exact = _within(source.num_exact, point.kept)
        self.notes = before(source.notes, max(point.seen + len(point.unread), point.kept))

    def settle(
        self,
        history: History,
        end: ResumePoint,
        stops: Sequence[int] | None,
        notes: Sequence[TokenNote],
    ) -> None:
        """Write down what the stream holds after a reply.

        Args:
            notes: of the reply's tokens.
            stops: where the messages end that it has read: the reply before them, if there is one,
                and each message but the reply; None if that is not known.
        """
        self._extend_places(stops)
        assert self.cache is not None
        ids = self.cache.ids
        self.ids += [] if ids is None else ids[0, len(self.ids) :].tolist()
        self.marks = [each for each in self.marks if each.length < self.end.length]
        if 0 < self.end.length < end.length:
            self.marks.append(replace(self.end, snapshot=None))
        self.history, self.end = history, end
        self.notes = [*self.notes, *notes][-MOST_NOTES:]

    def note_dropped(self, spans: Sequence[range]) -> None:
        """Write down that tokens have left the stream; earlier states that have them leave too."""
        first = min(span.start for span in spans)
        self.snapshots = [each for each in self.snapshots if each.seen <= first]
        self.marks = [each for each in self.marks if each.seen <= first]
        num_held = sum(id != EMPTY for id in self.ids)
        for span in spans:
            for place in span[: max(0, len(self.ids) - span.start)]:
                self.ids[place] = EMPTY
        num_gone = num_held - sum(id != EMPTY for id in self.ids)
        self.end = replace(self.end, num_empty=self.end.num_empty + num_gone)

    def _extend_places(self, stops: Sequence[int] | None) -> None:
        if stops is None or len(self.places) < self.end.num_read - 1:
            self.places = []  # it stays unknown where the messages are
            return
        start = self.places[-1].stop if self.places else 0
        for stop in stops:
            self.places.append(Place(start, stop))
            start = stop

    def take_snapshot(self, point: ResumePoint, *, limit: int) -> None:
        """Keep a snapshot of the cache at `point`, of at most `limit` ones.

        The first and the latest stay; of the others, the one leaves that is nearest to its
        neighbors (our choice: what remains is spread over the stream).
        """
        if limit < 1:
            return
        assert self.cache is not None
        taken = replace(point, snapshot=self.cache.fork())
        self.snapshots = [each for each in self.snapshots if each.length != point.length] + [taken]
        while len(self.snapshots) > limit:
            if len(self.snapshots) < 3:
                del self.snapshots[0]
                continue
            seen = [each.seen for each in self.snapshots]
            del self.snapshots[
                min(range(1, len(seen) - 1), key=lambda i: seen[i + 1] - seen[i - 1])
            ]

    def forget(self) -> None:
        """Empty the session."""
        self.cache, self.history, self.end = None, (), ResumePoint(0)
        self.snapshots, self.marks, self.places, self.ids = [], [], [], []
        self.notes, self.origin, self.num_exact = [], None, None


def _within(num_exact: int | None, num_kept: int) -> int | None:
    """Return `num_exact` of a session that keeps its first ids only; None: all are exact."""
    return None if num_exact is None or num_kept <= num_exact else num_exact


def _of_session(point: ResumePoint) -> ResumePoint:
    """Return the point from which a request goes on as the end of its session."""
    return replace(point, snapshot=None, num_shared=0)


def cache_nbytes(cache: Cache) -> int:
    """Return the bytes of a cache, its cold tier included."""
    return cache.nbytes + cache.cold_nbytes + cache.index_nbytes


def growth(cache: Cache | None, bound: int, *, copies: bool) -> int:
    """Return the bytes by which a cache may grow until it has `bound`.

    Args:
        cache: None for one that is empty or on disk.
        copies: whether it may come to copy what it shares.
    """
    if cache is None:
        return bound
    own = cache_nbytes(cache) - (cache.shared_nbytes if copies else 0)
    return max(0, bound - own)


def growth_of_fork(origin: Cache, bound: int, *, copies: bool) -> int:
    """Return the bytes by which a fork of a cache may grow until it has `bound`, with those that
    are copied when it is made."""
    nbytes = cache_nbytes(origin)
    more = bound if copies else max(0, bound - nbytes)
    if origin.shared_nbytes:  # the rest may be put into another file with all that it shares
        more += nbytes - origin.shared_nbytes
    return more


def needed(sessions: Sequence[ServedSession], held: int | None = None) -> int:
    """Return the bytes of sessions in memory, with those by which busy ones may still grow; what
    several share counts once.

    Args:
        held: the bytes in memory, if they were just counted.
    """
    if held is None:
        held = group_nbytes(cache for session in sessions for cache in session.caches)
    return held + sum(session.growth for session in sessions if session.is_busy)


@contextmanager
def staying(source: ServedSession | None) -> Iterator[None]:
    """Keep a session in memory inside the context, in which another one comes to share with it."""
    if source is None:
        yield
        return
    was_busy, source.is_busy = source.is_busy, True
    try:
        yield
    finally:
        source.is_busy = was_busy


def usage(cache: Cache) -> Mapping[str, Any]:
    """Return what a cache holds, for `usage` in answers.

    Entries are those of one KV head, on average over the layers.
    """
    stores = [layer.storage for layer in cache.cache_layers if layer.is_filled]
    kept = [store.num_entries(0) / store.layout.segments_per_sequence for store in stores]
    return {
        "entries_kept": round(sum(kept) / len(kept)) if kept else 0,
        "live_bytes": cache.nbytes,
        "peak_bytes": cache.peak_nbytes,
        "cold_bytes": cache.cold_nbytes,
    }
