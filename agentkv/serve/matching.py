"""Finds the session that a request continues."""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace

from agentkv.cache.cache import Cache
from agentkv.models.stream import common_start
from agentkv.serve.edits import EditBasis, EditPlan, belongs, num_kept
from agentkv.serve.reuse import Difference, first_difference
from agentkv.serve.session import CacheSettings, History, ResumePoint, ServedSession
from agentkv.serve.settings import EditMode


class SessionConflict(ValueError):
    """A request names a session that it cannot continue."""


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
    edits: EditMode | None = None
    """What becomes of edited messages; None: the server decides."""
    fork: bool = False
    """Whether the answer gets a session of its own, which begins as a fork of the one that has most
    of the conversation. `name` and `key` then name the new one."""
    ttl: float | None = None
    """Seconds of rest after which the session is erased; None: as before."""
    release: bool = False
    """Whether the session is erased after the answer."""
    restore: str | None = None
    """Name of a saved session that is restored for the request, which continues it."""
    save: str | None = None
    """Name by which the session is saved after the answer."""


LEAST_SHARED = 32
"""Fewest shared ids for which a fork begins after a snapshot, or a new conversation as a fork of
another one (our choice). A fork of a snapshot copies nothing. A fork that forgets more than half of
what it shares copies the rest."""

MOST_COMPARED = 4096
"""Characters of a message that are compared to find the session that begins most like a request
(our choice)."""


@dataclass(frozen=True, slots=True)
class Held:
    """Ids that a session has read after a point. A request keeps them as far as it has the same."""

    ids: list[int]
    after: ResumePoint | None
    """The point; None for the beginning of the session."""
    least: int
    """A request keeps this many or none."""


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
    edited: ServedSession | None = None
    """A session that may be edited to what the request asks for; more of it is kept then."""
    basis: EditBasis | None = None
    """What edits of `edited` start from."""

    def with_plan(self, plan: EditPlan) -> "SessionMatch":
        """Return the match of a request whose session is edited."""
        return replace(self, session=self.edited, point=plan.point, source=None)

    def at(self, point: ResumePoint | None) -> "SessionMatch":
        """Return the match with the point from which its request goes on; None reads everything."""
        return replace(self, point=point, source=None if point is None else self.source)


class SessionFinder:
    """Finds sessions for requests. It changes none of them.

    Args:
        of: returns an owner's sessions.
        policies: settings of caches that requests may choose among; the first is the default.
        new_cache: returns an empty cache with given settings.
        edits: what becomes of edited messages, unless a request says otherwise.
    """

    def __init__(
        self,
        of: Callable[[str], list[ServedSession]],
        policies: Sequence[CacheSettings],
        new_cache: Callable[[CacheSettings], Cache],
        edits: EditMode,
    ) -> None:
        self._of, self._policies, self._new_cache, self._edits = of, policies, new_cache, edits
        self._empty: dict[CacheSettings, Cache] = {}
        """Empty caches, which know what caches on disk can do."""

    def find(self, query: SessionQuery, history: History) -> SessionMatch | None:
        """Return where a request goes on. Nothing changes.

        A session that was asked for by name or slot is taken as it is. Otherwise the request
        continues the idle session that has most of `history`, among those with the request's key,
        or those without any. If they have no reply in common, or less than half of the session, it
        is another conversation: the request gets a new session, a fork of what any session of the
        owner has in common with it. A request that asks for a fork always does.

        A session whose last reply the request has may be edited, if that keeps more of it.

        Returns:
            None if the session that was asked for is busy.

        Raises:
            SessionConflict: the session that was asked for has another policy or budget.
        """
        settings, mode = query.settings or self._policies[0], query.edits or self._edits
        exact = None if query.fork else self._exact(query)
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
            if (point := exact.nearest(history, mode=mode)) is not None:
                match = SessionMatch(settings, exact, point)
                return self._with_edits(match, query, history, [exact])
        others = [each for each in self._of(query.owner) if each.settings == settings]
        idle = [] if exact is None else [exact]
        if query.name is None and query.slot is None and not query.fork:
            idle = [each for each in others if each.name == query.key and not each.is_busy]
            same = _furthest(idle, history, lambda session: session.nearest(history, mode=mode))
            if same is not None and _continues(*same):
                return self._with_edits(SessionMatch(settings, *same), query, history, idle)
        begun = _furthest(
            others, history, lambda session: session.nearest(history, mode=mode, for_another=True)
        )
        if begun is None:
            return self._with_edits(SessionMatch(settings, exact), query, history, idle)
        source, point = begun
        match = SessionMatch(settings, exact, point, source)
        return self._with_edits(match, query, history, idle)

    def _with_edits(
        self,
        match: SessionMatch,
        query: SessionQuery,
        history: History,
        sessions: Sequence[ServedSession],
    ) -> SessionMatch:
        """Return a match with the session that keeps most if it is edited, if that is more than
        the match keeps, and the session is of the same conversation."""
        mode = query.edits or self._edits
        if mode == "exact" or isinstance(history, str):
            return match
        most, best, known = 0 if match.point is None else match.point.length, None, set(history)
        for session in sessions:
            if sum(map(known.__contains__, session.history)) <= most:
                continue
            kept = num_kept(session.history, history)
            if kept > most and belongs(session.history, history, kept):
                most, best = kept, session
        if best is None or (basis := EditBasis.of(best, self._cache_like(best), mode)) is None:
            return match
        return replace(match, edited=best, basis=basis)

    def with_held(
        self, match: SessionMatch, query: SessionQuery, history: History
    ) -> tuple[SessionMatch, Held]:
        """Return a match and what its session has read after the point.

        If a match has no point, the request keeps the beginning of its session. If that is empty or
        missing, the source becomes the session that begins most like the request.
        """
        point, own = match.point, match.session
        if point is None and (own is None or not own.history):
            match = replace(match, source=self._begins_alike(query, match.settings, history))
        owner = match.source or own
        ids = [] if owner is None else owner.ids_after(point, query.edits or self._edits)
        is_far = point is None or (match.source is not None and point.snapshot is not None)
        return match, Held(ids, point, LEAST_SHARED if is_far else 1)

    def _exact(self, query: SessionQuery) -> ServedSession | None:
        """Return the session that is asked for by slot or name; None if there is none yet."""
        if query.slot is not None:
            return self.in_slot(query.owner, query.slot)
        own = self._of(query.owner) if query.name is not None else ()
        named = [each for each in own if each.name == query.name]
        return max(named, key=lambda session: session.used_at, default=None)

    def in_slot(self, owner: str, slot: int) -> ServedSession | None:
        """Return an owner's session by its number; None if there is none."""
        return next((each for each in self._of(owner) if each.slot == slot), None)

    def turn(self, query: SessionQuery) -> Hashable:
        """Return what requests share that are answered in the order in which they came; None for a
        request that waits for no other."""
        session = None if query.fork else self._exact(query)
        if session is not None:
            return session.id
        if query.fork or query.slot is None and query.name is None:
            return None
        return query.owner, query.slot, query.name

    def difference(
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
        others, name = self._others(query, settings, history), query.name or query.key

        def rank(one: ServedSession) -> tuple[int, bool, float]:
            return common_start(one.history, history), one.name == name, one.used_at

        return max(others, key=rank, default=None)

    def _begins_alike(
        self, query: SessionQuery, settings: CacheSettings, history: History
    ) -> ServedSession | None:
        """Return the session in memory, and idle, that begins with most of a history's text."""
        others = self._others(query, settings, history)
        idle = [each for each in others if each.cache is not None and not each.is_busy]
        shared = [common_start(each.history, history) for each in idle]
        most = max(shared, default=0)
        best = [each for each, count in zip(idle, shared, strict=True) if count == most]
        text = _text(history, most)
        return max(
            best, key=lambda each: common_start(_text(each.history, most), text), default=None
        )

    def _others(
        self, query: SessionQuery, settings: CacheSettings, history: History
    ) -> list[ServedSession]:
        """Return an owner's sessions that could hold a history."""
        return [
            each
            for each in self._of(query.owner)
            if each.settings == settings and each.history and type(each.history) is type(history)
        ]

    def _cache_like(self, session: ServedSession) -> Cache:
        """Return a session's cache, or an empty one of its kind if it is on disk."""
        if session.cache is not None:
            return session.cache
        if session.settings not in self._empty:
            self._empty[session.settings] = self._new_cache(session.settings)
        return self._empty[session.settings]


def _text(history: History, number: int) -> str:
    """Return the beginning of the text of an item; empty if there is none, or it is not known."""
    if isinstance(history, str) or number >= len(history):
        return ""
    return (history[number].text or "")[:MOST_COMPARED]


def _continues(session: ServedSession, point: ResumePoint) -> bool:
    """Return whether a request that resumes at a point belongs to the session's conversation."""
    shares_reply = point.num_read > 0 or isinstance(session.history, str)
    return shares_reply and 2 * point.length >= len(session.history)


def _furthest(
    sessions: list[ServedSession],
    history: History,
    nearest: Callable[[ServedSession], ResumePoint | None],
) -> tuple[ServedSession, ResumePoint] | None:
    """Return the session with the point that is furthest along, and the point; of several, the
    session that shares most of a history."""
    found = [(session, point) for session in sessions if (point := nearest(session)) is not None]

    def rank(pair: tuple[ServedSession, ResumePoint]) -> tuple[int, int]:
        session, point = pair
        return point.length, common_start(session.history, history)

    return max(found, key=rank, default=None)
