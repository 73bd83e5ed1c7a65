"""A conversation that its client has edited, as changes of the session's stream.

A host removes or shortens earlier messages, or changes a line of the instructions. A plan compares
the session and the request token by token: removed tokens leave the cache, new tokens are read in
their place, and everything else stays.
"""

import bisect
from collections import defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from agentkv.cache.cache import Cache
from agentkv.dialog.messages import Chat
from agentkv.models.stream import common_start
from agentkv.serve.session import EMPTY, History, Place, ResumePoint, ServedSession
from agentkv.serve.settings import EditMode
from agentkv.serve.token_notes import TokenNote

MAX_READ = 1024
"""Most tokens that are read in the middle of a stream (our choice): other replies wait meanwhile,
and where this much is new, little is saved."""
_MOST_PAIRS = 50_000
"""Most pairs of equal messages that are compared between two common ends (our choice): a client may
repeat one message thousands of times, and other replies wait meanwhile."""


@dataclass(frozen=True, slots=True)
class EditBasis:
    """The state of a session before edits. It never changes, so that any thread may read it."""

    session: str
    """Id of the session."""
    history: History
    places: tuple[Place, ...]
    """Places of all messages but the last reply."""
    ids: tuple[int, ...]
    """Ids of the stream, with `EMPTY` for each token that has left."""
    end: ResumePoint
    can_replace: bool
    """Whether the cache can read new tokens in the middle of the stream."""
    can_grow: bool
    """Whether there may be more new tokens than old ones."""
    mode: EditMode

    @classmethod
    def of(cls, session: ServedSession, cache: Cache, mode: EditMode) -> "EditBasis | None":
        """Return the present state of a session; None if it cannot be edited.

        Args:
            cache: the session's cache, or an empty one of its kind.
        """
        end = session.end
        is_known = len(session.places) == end.num_read - 1 and len(session.ids) == end.seen
        if cache.recurrent or not is_known or not session.places:
            return None
        if session.places[-1].stop > end.seen:  # a cancelled request was not read to its end
            return None
        return cls(
            session.id,
            session.history,
            tuple(session.places),
            tuple(session.ids),
            end,
            can_replace=cache.why_not_replaced() is None,
            can_grow=cache.why_not_replaced(1) is None,
            mode=mode,
        )


@dataclass(frozen=True, slots=True)
class Edit:
    """A change of a stream."""

    span: range
    """Positions that the edit replaces, counted before all edits."""
    ids: tuple[int, ...]
    """Ids of the new tokens; empty for a removal."""
    num_gone: int
    """Number of old tokens in the span; its other positions are empty."""

    @property
    def num_more(self) -> int:
        """Number of positions by which later tokens move."""
        return max(0, len(self.ids) - len(self.span))


@dataclass(frozen=True, slots=True)
class EditPlan:
    """Changes that make a session's stream what a request asks for, up to a reply."""

    edits: tuple[Edit, ...]
    """Edits in the order of their spans."""
    places: tuple[Place, ...]
    """Places of all messages but the last reply after the edits."""
    history: History
    """History of the stream after the edits."""
    point: ResumePoint
    """End of the stream after the edits."""
    num_same: int
    """Number of items of the history before the first edit."""

    @property
    def num_dropped(self) -> int:
        """Number of tokens that the edits remove."""
        return sum(edit.num_gone for edit in self.edits)

    @property
    def num_read(self) -> int:
        """Number of tokens that the edits read in the middle of the stream."""
        return sum(len(edit.ids) for edit in self.edits)


def reply_of(held: History, asked: History) -> int | None:
    """Return the number of the item in `asked` that is the last reply in `held`; None if it has
    none, or is a raw prompt."""
    if isinstance(held, str) or isinstance(asked, str) or len(held) < 3:
        return None
    # of several equal replies the last one: what follows it is mostly one message
    places = [number for number, item in enumerate(asked) if item == held[-1]]
    return places[-1] if places else None


def num_kept(held: History, asked: History) -> int:
    """Return how many items of a session an edited request has, in their order; 0 if it lacks the
    session's last reply."""
    reply = reply_of(held, asked)
    if reply is None:
        return 0
    return 1 + sum(size for _, _, size in common_blocks(held[:-1], asked[:reply]))


def belongs(held: History, asked: History, num_kept: int) -> bool:
    """Return whether a request edits the conversation of a session (our choice): it has half of the
    session, or three quarters of what the request has after their common beginning are the
    session's, up to its last reply.

    Args:
        num_kept: items of the session that the request has; see `num_kept`.
    """
    reply = reply_of(held, asked)
    if reply is None or 2 * num_kept >= len(held):
        return reply is not None
    assert not isinstance(held, str) and not isinstance(asked, str)
    shared = common_start(held, asked)
    # instructions and one equal reply make no conversation
    return num_kept - shared > 1 and 4 * (num_kept - shared) >= 3 * (reply + 1 - shared)


def common_blocks(old: Sequence[Hashable], new: Sequence[Hashable]) -> list[tuple[int, int, int]]:
    """Return where two sequences have a longest common subsequence: places in `old` and `new`, and
    sizes. The last block is their ends, of size 0.

    Between what both begin and end with, nothing is common if too many pairs of items are equal
    (Hunt and Szymanski 1977, whose time grows with these pairs).
    """
    first = common_start(old, new)
    most = min(len(old), len(new)) - first
    last = common_start(old[::-1][:most], new[::-1][:most])
    places: defaultdict[Hashable, list[int]] = defaultdict(list)
    for j in reversed(range(first, len(new) - last)):
        places[new[j]].append(j)
    middle = range(first, len(old) - last)
    pairs: list[tuple[int, int]] = []
    if sum(len(places.get(old[i], ())) for i in middle) <= _MOST_PAIRS:
        pairs = _longest_chain([(i, j) for i in middle for j in places.get(old[i], ())])
    blocks = [(0, 0, first)] if first else []
    for i, j in [*pairs, *((len(old) - n, len(new) - n) for n in range(last, 0, -1))]:
        if blocks and (i, j) == (blocks[-1][0] + blocks[-1][2], blocks[-1][1] + blocks[-1][2]):
            blocks[-1] = (*blocks[-1][:2], blocks[-1][2] + 1)
        else:
            blocks.append((i, j, 1))
    return [*blocks, (len(old), len(new), 0)]


_Chain = tuple[int, int, "_Chain | None"]


def _longest_chain(pairs: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return most pairs whose both numbers rise, of some that are sorted by their first number, and
    downwards by their second one."""
    ends: list[int] = []
    chains: list[_Chain] = []
    for i, j in pairs:
        place = bisect.bisect_left(ends, j)
        ends[place : place + 1] = [j]
        chains[place : place + 1] = [(i, j, chains[place - 1] if place else None)]
    found: list[tuple[int, int]] = []
    chain = chains[-1] if chains else None
    while chain is not None:
        i, j, chain = chain
        found.append((i, j))
    return found[::-1]


def plan_edits(
    basis: EditBasis, chat: Chat, asked: History, pieces: Sequence[Sequence[int]]
) -> EditPlan | None:
    """Return the changes that make a stream what a chat asks for.

    Args:
        asked: the chat's history.
        pieces: ids of each of the chat's messages, as `MessageTemplate.by_message` returns them.

    Returns:
        None if the request must read again: it has another last reply, something new where the
        mode allows none or the cache cannot read it, or nothing has changed.
    """
    held, reply = basis.history, reply_of(basis.history, asked)
    if reply is None:
        return None
    assert not isinstance(held, str) and not isinstance(asked, str)
    # the functions are rendered with the first message
    old = [(held[0], held[1]), *held[2:-1]]
    new = [(asked[0], asked[1]), *asked[2:reply]]
    if reply < 2 or len(old) != len(basis.places):
        return None
    edits: list[Edit] = []
    places: list[Place] = []
    moved = 0
    ends = [(0, 0, 0), *common_blocks(old, new)]
    for (i, j, size), (next_i, next_j, next_size) in pairwise(ends):
        gone = _span(basis.places[i + size : next_i], _start(basis, i + size))
        added = [tuple(pieces[number]) for number in range(j + size, next_j)]
        moved += _replace(basis, gone, added, edits, places, moved)
        for k in range(next_size):
            place, number = basis.places[next_i + k], next_j + k
            is_written = chat.messages[number]["role"] == "assistant"
            own = tuple(pieces[number])
            if is_written or _held(basis, place) == own:
                places.append(Place(place.start + moved, place.stop + moved))
            else:  # the template renders it in another way where it stands now
                gone = range(place.start, place.stop)
                moved += _replace(basis, gone, [own], edits, places, moved)
    return _checked(basis, edits, places, asked[: reply + 1], moved)


def _start(basis: EditBasis, number: int) -> int:
    """Return where the tokens of an old message begin, or those of the last reply."""
    if number < len(basis.places):
        return basis.places[number].start
    return basis.places[-1].stop if basis.places else 0


def _held(basis: EditBasis, place: Place) -> tuple[int, ...]:
    return tuple(id for id in basis.ids[place.start : place.stop] if id != EMPTY)


def _span(places: Sequence[Place], start: int) -> range:
    return range(places[0].start, places[-1].stop) if places else range(start, start)


def _replace(
    basis: EditBasis,
    gone: range,
    added: Sequence[tuple[int, ...]],
    edits: list[Edit],
    places: list[Place],
    moved: int,
) -> int:
    """Note an edit and the places of the new messages; return by how much later ones move.

    Tokens at the beginning and the end of both texts stay where they are.
    """
    positions = [place for place in gone if basis.ids[place] != EMPTY]
    before = tuple(basis.ids[place] for place in positions)
    after = tuple(id for ids in added for id in ids)
    first = common_start(before, after)
    most = min(len(before), len(after)) - first
    last = common_start(before[::-1][:most], after[::-1][:most])
    start = positions[first - 1] + 1 if first else gone.start
    stop = positions[len(before) - last] if last else gone.stop
    edit = Edit(range(start, stop), after[first : len(after) - last], len(before) - first - last)
    if edit.num_gone or edit.ids:
        edits.append(edit)
    here = [*positions[:first], *range(start, start + len(edit.ids))]
    here += [place + edit.num_more for place in positions[len(before) - last :]]
    at = 0
    for ids in added:
        own = here[at : at + len(ids)]
        at += len(ids)
        begin, end = (own[0], own[-1] + 1) if own else (gone.start, gone.start)
        places.append(Place(begin + moved, end + moved))
    return edit.num_more


def _checked(
    basis: EditBasis,
    edits: list[Edit],
    places: list[Place],
    history: History,
    moved: int,
) -> EditPlan | None:
    """Return the plan, if the mode and the cache allow it, and it changes something."""
    num_read = sum(len(edit.ids) for edit in edits)
    if not edits or num_read > MAX_READ:
        return None
    if num_read and (basis.mode != "keep" or not basis.can_replace):
        return None
    if moved and not basis.can_grow:
        return None
    end, first = basis.end, edits[0].span.start
    num_same = 1 + sum(place.stop <= first for place in basis.places)
    point = ResumePoint(
        length=len(history),
        seen=end.seen + moved,
        num_read=len(history) - 1,
        unread=end.unread,
        num_empty=end.num_empty + moved + sum(edit.num_gone - len(edit.ids) for edit in edits),
    )
    return EditPlan(
        edits=tuple(edits),
        places=tuple(places),
        history=history,
        point=point,
        num_same=min(num_same, common_start(basis.history, history)),
    )


def apply_plan(session: ServedSession, plan: EditPlan, model: Any) -> None:
    """Edit the stream of a session; no earlier state that lacks an edit can be returned to.

    Raises:
        Misuse: a ValueError; the cache cannot be edited in this way.
    """
    cache, moved = session.cache, 0
    assert cache is not None
    for edit in plan.edits:
        span = range(edit.span.start + moved, edit.span.stop + moved)
        cache.replace(model, span, edit.ids)
        moved += edit.num_more
    read_from = [edit.span.start for edit in plan.edits if edit.ids]
    if read_from and (session.num_exact is None or read_from[0] < session.num_exact):
        session.num_exact = read_from[0]
    session.ids, session.places = _edited_ids(session.ids, plan.edits), list(plan.places)
    session.notes = _moved_notes(session.notes, plan.edits)
    session.snapshots = [each for each in session.snapshots if each.length <= plan.num_same]
    session.marks = [each for each in session.marks if each.length <= plan.num_same]
    session.history, session.end = plan.history, plan.point


def _moved_notes(notes: Sequence[TokenNote], edits: Sequence[Edit]) -> list[TokenNote]:
    """Return notes where their tokens are after edits, without those of replaced tokens."""
    kept = [note for note in notes if not any(note.position in edit.span for edit in edits)]
    return [
        note._replace(
            position=note.position
            + sum(edit.num_more for edit in edits if edit.span.stop <= note.position)
        )
        for note in kept
    ]


def _edited_ids(ids: Sequence[int], edits: Sequence[Edit]) -> list[int]:
    """Return the ids of a stream after edits, with `EMPTY` where a token is gone."""
    made: list[int] = []
    at = 0
    for edit in edits:
        made += ids[at : edit.span.start]
        made += edit.ids
        made += [EMPTY] * (len(edit.span) - len(edit.ids))
        at = edit.span.stop
    return [*made, *ids[at:]]
