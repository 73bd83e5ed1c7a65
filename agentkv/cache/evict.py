"""Rows that go: the policy's verdict on all layers and sequences at once, where it can be so.

Units (a sequence in a layer) with as many rows and as many to leave are shown to the policy
together, so that a step of a small model is not spent on calls. A scorer that looks beyond a lane,
and a policy that wants to know something of each layer, is shown one after another.
"""

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any

from torch import Tensor

from agentkv.cache.closing import Closing
from agentkv.cache.lanes import Lanes
from agentkv.cache.layer import LayerStore
from agentkv.cache.view import View
from agentkv.policies.policy import Policy
from agentkv.policies.rows import Drop, DropOne, Rows, Verdict
from agentkv.policies.slots import Unpooled
from agentkv_kernels.index import Rack
from agentkv_kernels.ops import drop_rows, keep_rows

_Shown = dict[tuple[int, int], tuple[View, Rows]]
"""By layer's store and sequence: what was looked at already in this eviction."""


def evict(
    stores: Sequence[LayerStore], confidences: Sequence[float] | None, *, num_new: int
) -> None:
    """Drop rows of each sequence and layer down to what the policy allows; after a forward, that is
    without confidences, also quantise by age.

    Args:
        stores: layers that the policy acts on, all of one cache.
        confidences: per sequence; None: go by the most the gate ever allows.
        num_new: tokens of the latest forward.
    """
    keeper, fed = stores[0].keeper, stores[0].fed
    assert keeper is not None
    allowance = keeper.allowance
    shown: _Shown = {}
    if allowance.policy.allocator.learns and confidences is None and num_new > 1:
        shown = _measure(stores)
    going: _Going | None = None
    for sequence, num_seen in enumerate(fed if allowance.policy.gate.evicts else ()):
        sure = None if confidences is None else confidences[sequence]
        policy = allowance.at(num_seen)
        if sure is not None and policy.gate.budget(sure) == policy.gate.ceiling:
            continue  # the most is what the end of the forward has left
        shares = allowance.layers(num_seen, sure)
        due = () if shares is None else _due(policy, stores, sequence, shares, num_new)
        for num_rows, of_group in due:
            verdict = _decide(policy, of_group, sequence, num_rows, shown)
            going = _Going() if going is None else going
            going.note(of_group, sequence, verdict)
    if going is not None:
        going.go()
    precision = allowance.policy.precision
    if confidences is None and precision.format is not None and not precision.by_rank:
        recent = [allowance.at(num_seen).precision.recent or 0 for num_seen in fed]
        for store in stores:
            assert store.lanes is not None
            store.lanes.quantise_to(recent)


def _measure(stores: Sequence[LayerStore]) -> _Shown:
    """Sum up the scores that an allocator learns from, of every layer and sequence, whether rows
    have to go or not; what was looked at is given back, so that it is read once."""
    shown: _Shown = {}
    for store in stores:
        keeper, lanes = store.keeper, store.lanes
        assert keeper is not None and lanes is not None
        for sequence, num_seen in enumerate(store.fed):
            policy = keeper.allowance.at(num_seen)
            if policy.gate.evicts and lanes.num_rows(sequence):
                view, rows = shown[id(store), sequence] = _show(policy, [store], sequence)
                scorer = policy.scorer
                if isinstance(scorer, Unpooled):
                    scores = _by_lane(scorer.unpooled(rows), rows.positions.shape[0])
                else:
                    scores = _scores(policy, rows)
                keeper.energies[sequence] = float(scores.where(rows.candidates, 0).sum())
    return shown


def _show(policy: Policy, stores: Sequence[LayerStore], sequence: int) -> tuple[View, Rows]:
    """One sequence in some layers, as the policy is to see it."""
    protected = policy.selector.protected
    assert isinstance(protected, int)
    view = View([store.unit(sequence) for store in stores])
    num_seen, sinks = stores[0].fed[sequence], policy.selector.sinks
    return view, view.rows(num_seen=num_seen, sinks=sinks, protected=protected)


def _due(
    policy: Policy,
    stores: Sequence[LayerStore],
    sequence: int,
    shares: Sequence[int],
    num_new: int,
) -> Sequence[tuple[int, list[LayerStore]]]:
    """Layers that hold too much of a sequence, those that are shown together in one list; with the
    rows per head that are to be left."""
    by_itself = not policy.scorer.lanewise or policy.precision.by_rank or policy.allocator.learns
    groups: dict[Hashable, tuple[int, list[LayerStore]]] = {}
    for i, store in enumerate(stores):
        lanes, keeper = store.lanes, store.keeper
        assert lanes is not None and keeper is not None
        num_rows = keeper.rows_to_leave(policy, lanes, sequence, shares, num_new)
        if num_rows is not None:
            per = lanes.shape.per_sequence
            most = max(lanes.counts[sequence * per : (sequence + 1) * per])
            device = lanes.device
            # lanes of different lengths are filled up, which only pays where all are different
            alike = None if policy.allocator.pools and not policy.scorer.by_age else most
            key: Hashable = i if by_itself else (num_rows, alike, device)
            groups.setdefault(key, (num_rows, []))[1].append(store)
    return tuple(groups.values())


def _decide(
    policy: Policy,
    stores: Sequence[LayerStore],
    sequence: int,
    num_rows: int,
    shown: _Shown,
) -> Verdict:
    """The verdict on one sequence in some layers, in storage order."""
    selector, scorer, first = policy.selector, policy.scorer, stores[0]
    # what goes by age goes for all that have as many rows alike
    units = stores[:1] if scorer.by_age else stores
    view, rows = shown.get((id(first), sequence)) or _show(policy, units, sequence)
    scores = None if scorer.by_age else _scores(policy, rows)
    found = selector.select(rows, scores, num_rows, policy.allocator)
    verdict = view.in_storage_order(found)
    keeper = first.keeper
    assert keeper is not None
    if scores is not None and policy.precision.by_rank:
        quality = keeper.ranks.qualities.get(sequence)
        if quality is None or not policy.precision.estimates_once:
            quality = _quality(policy, rows)
        keeper.ranks.note(sequence, view.back(scores), verdict, quality)
    return verdict


def estimate(stores: Sequence[LayerStore], sequences: Iterable[int]) -> None:
    """See to it that each layer has a quality for these sequences, where it is estimated once; a
    layer without one has let no row go. One without a row before the window has none still."""
    for store in stores:
        keeper, lanes = store.keeper, store.lanes
        if keeper is None or lanes is None or not keeper.policy.precision.estimates_once:
            continue
        for sequence in sequences:
            policy = keeper.allowance.at(store.fed[sequence])
            if sequence in keeper.ranks.qualities or not lanes.num_rows(sequence):
                continue
            _, rows = _show(policy, [store], sequence)
            if rows.positions.shape[1] > rows.protected:
                keeper.ranks.qualities[sequence] = _quality(policy, rows)


def _quality(policy: Policy, rows: Rows) -> float:
    past = rows.attention()[..., : rows.positions.shape[1] - rows.protected]
    return policy.precision.quality(past)


def _scores(policy: Policy, rows: Rows) -> Tensor:
    """(S, T) float32."""
    return _by_lane(policy.scorer.scores(rows), rows.positions.shape[0])


def _by_lane(scores: Tensor, num_lanes: int) -> Tensor:
    """Scores (H, T) or (S, T) as (S, T)."""
    if scores.shape[0] > num_lanes:
        return scores.view(num_lanes, -1, scores.shape[1]).mean(dim=1)
    return scores


class _Going:
    """The verdicts of one eviction, carried out together."""

    __slots__ = ("_closing", "_held", "_masks", "_others", "_rows", "_stores")

    def __init__(self) -> None:
        self._closing = Closing()
        """What kernels for devices let go."""
        self._stores: dict[int, LayerStore] = {}
        self._rows: dict[int, list[Sequence[int]]] = {}
        """By layer: of each lane the one row that goes, if one does."""
        self._masks: dict[int, list[int]] = {}
        """By layer that compiled code serves: where each lane's verdict is; 0 for none."""
        self._held: list[Tensor] = []
        """What is there."""
        self._others: dict[int, list[Verdict | None]] = {}
        """By layer and sequence: verdicts of any other kind."""

    def note(self, stores: Sequence[LayerStore], sequence: int, verdict: Verdict) -> None:
        """Take in a verdict on one sequence in some layers, which are alike."""
        first = stores[0].lanes
        assert first is not None
        if isinstance(verdict, DropOne) and all(map(_goes_unseen, stores)):
            layers = [store.lanes for store in stores if store.lanes is not None]
            self._closing.choose(layers, sequence, verdict.rows)
            return
        per, num_lanes = first.shape.per_sequence, first.num_lanes
        rows, is_mask = _one_of_each(verdict, len(stores) * per), False
        if isinstance(verdict, Tensor):
            is_mask = all(store.rack is not None for store in stores)
            verdict = verdict.contiguous()
            self._held.append(verdict)
        for i, store in enumerate(stores):
            key, at, mine = id(store), sequence * per, slice(i * per, (i + 1) * per)
            self._stores[key] = store
            if rows is not None:
                self._rows.setdefault(key, [()] * num_lanes)[at : at + per] = rows[mine]
            elif is_mask:
                assert store.lanes is not None and isinstance(verdict, Tensor)
                width, start = verdict.shape[1], verdict.data_ptr()
                # a shorter lane is filled up at its front
                self._masks.setdefault(key, [0] * num_lanes)[at : at + per] = [
                    start + (i * per + j + 1) * width - count
                    for j, count in enumerate(store.lanes.counts[at : at + per])
                ]
            else:
                others = self._others.setdefault(key, [None] * len(store.fed))
                others[sequence] = verdict[mine] if isinstance(verdict, Tensor) else verdict

    def go(self) -> None:
        """Let the rows go."""
        for key, verdicts in self._others.items():
            lanes = self._stores[key].lanes
            assert lanes is not None
            lanes.apply(verdicts)
        loose: set[int] = set()
        ways: list[tuple[Mapping[int, Sequence[Any]], Callable[..., bool]]]
        ways = [(self._rows, drop_rows), (self._masks, keep_rows)]
        for of_layers, let_go in ways:
            racks: list[Rack] = []
            said: list[Any] = []
            for key, of_lanes in of_layers.items():
                if (rack := self._stores[key].rack) is not None:
                    racks.append(rack)
                    said.extend(of_lanes)
            if racks and let_go(racks, said):
                loose.update(of_layers)
        for key, rows in self._rows.items():
            store = self._stores[key]
            if store.rack is None:
                assert store.lanes is not None
                if store.uses_kernels:
                    self._closing.rows(store.lanes, rows)
                    continue
                store.lanes.drop([(row[0], row[0] + 1) if row else (0, 0) for row in rows])
        for key in loose:
            store = self._stores[key]
            if store.rack is not None:
                assert store.lanes is not None
                _tidy(store.lanes)
        for lanes in self._closing.go():
            _tidy(lanes)


def _goes_unseen(store: LayerStore) -> bool:
    """Whether a row may go without the host knowing which: none could be a quantised one."""
    return store.uses_kernels and store.lanes is not None and not any(store.lanes.num_coded)


def _one_of_each(verdict: Verdict, num_lanes: int) -> Sequence[Sequence[int]] | None:
    """Of every lane the row that goes, in storage order, where it is one; else None."""
    if isinstance(verdict, DropOne):
        return [(row,) for row in verdict.rows.tolist()]
    if isinstance(verdict, Drop) and verdict.stop - verdict.start == 1:
        return [(verdict.start,)] * num_lanes
    return None


def _tidy(lanes: Lanes) -> None:
    """Give memory back where rows have gone, and merge blocks that have become small."""
    for table in lanes.tables[:3]:
        table.trim()
    if lanes.coded is not None:
        lanes.coded.tidy()
