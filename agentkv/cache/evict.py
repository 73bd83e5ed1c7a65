"""Rows that go: the policy's verdict on all layers and sequences at once, where it can be so.

Units (a sequence in a layer) with as many rows and as many to leave are shown to the policy
together, so that a step of a small model is not spent on calls. A scorer that looks beyond a lane,
and a policy that wants to know something of each layer, is shown one after another.
"""

from collections.abc import Hashable, Sequence

from torch import Tensor

from agentkv.cache.lanes import Lanes
from agentkv.cache.layer import LayerStore
from agentkv.cache.view import View
from agentkv.policies.policy import Policy
from agentkv.policies.rows import Drop, DropOne, Rows, Verdict
from agentkv_kernels.ops import drop_row


def evict(
    stores: Sequence[LayerStore], confidences: Sequence[float] | None, *, num_new: int
) -> None:
    """Drop rows of each sequence and layer down to what the policy allows, and quantise by age.

    Args:
        stores: layers that the policy acts on, all of one cache.
        confidences: per sequence; None: go by the most the gate ever allows.
        num_new: tokens of the latest forward.
    """
    keeper, fed = stores[0].keeper, stores[0].fed
    assert keeper is not None
    allowance = keeper.allowance
    going = _Going()
    for sequence, num_seen in enumerate(fed):
        sure = None if confidences is None else confidences[sequence]
        policy = allowance.at(num_seen)
        due = _due(policy, stores, sequence, sure, num_new)
        for num_rows, of_group in due:
            verdict = _decide(policy, of_group, sequence, num_rows, learns=confidences is None)
            going.note(of_group, sequence, verdict)
    going.go()
    precision = allowance.policy.precision
    if precision.format is not None and not precision.by_rank:
        recent = [allowance.at(num_seen).precision.recent or 0 for num_seen in fed]
        for store in stores:
            assert store.lanes is not None
            store.lanes.quantise_to(recent)


def _due(
    policy: Policy,
    stores: Sequence[LayerStore],
    sequence: int,
    confidence: float | None,
    num_new: int,
) -> list[tuple[int, list[LayerStore]]]:
    """Layers that hold too much of a sequence, those that are shown together in one list; with the
    rows per head that are to be left."""
    by_itself = not policy.scorer.lanewise or policy.precision.by_rank or policy.allocator.learns
    groups: dict[Hashable, tuple[int, list[LayerStore]]] = {}
    for i, store in enumerate(stores):
        lanes, keeper = store.lanes, store.keeper
        assert lanes is not None and keeper is not None
        num_rows = keeper.rows_to_leave(policy, lanes, sequence, confidence, num_new)
        if num_rows is not None:
            per = lanes.shape.per_sequence
            most = max(lanes.counts[sequence * per : (sequence + 1) * per])
            device = lanes.device
            key: Hashable = i if by_itself else (num_rows, most, device)
            groups.setdefault(key, (num_rows, []))[1].append(store)
    return list(groups.values())


def _decide(
    policy: Policy, stores: Sequence[LayerStore], sequence: int, num_rows: int, *, learns: bool
) -> Verdict:
    """The verdict on one sequence in some layers, in storage order."""
    selector, scorer = policy.selector, policy.scorer
    protected = selector.protected
    assert isinstance(protected, int)
    # what goes by age goes for all that have as many rows alike
    view = View([store.unit(sequence) for store in (stores[:1] if scorer.by_age else stores)])
    first = stores[0]
    rows = view.rows(num_seen=first.fed[sequence], sinks=selector.sinks, protected=protected)
    scores = None if scorer.by_age else _scores(policy, rows)
    found = selector.select(rows, scores, num_rows, policy.allocator)
    verdict = view.in_storage_order(found)
    keeper = first.keeper
    assert keeper is not None
    if scores is not None and policy.allocator.learns and learns:
        keeper.energies[sequence] = float(scores.where(rows.candidates, 0).sum())
    if scores is not None and policy.precision.by_rank:
        past = rows.attention()[..., : rows.positions.shape[1] - protected]
        quality = policy.precision.quality(past)
        keeper.ranks.note(sequence, view.back(scores), verdict, quality)
    return verdict


def _scores(policy: Policy, rows: Rows) -> Tensor:
    """(S, T) float32."""
    scores, num_lanes = policy.scorer.scores(rows), rows.positions.shape[0]
    if scores.shape[0] > num_lanes:
        return scores.view(num_lanes, -1, scores.shape[1]).mean(dim=1)
    return scores


class _Going:
    """The verdicts of one eviction, carried out together."""

    __slots__ = ("_others", "_rows", "_stores")

    def __init__(self) -> None:
        self._stores: dict[int, LayerStore] = {}
        self._rows: dict[int, list[int]] = {}
        """By layer: the one row that goes of each lane, -1 for none."""
        self._others: dict[int, list[Verdict | None]] = {}
        """By layer and sequence: verdicts by which more goes."""

    def note(self, stores: Sequence[LayerStore], sequence: int, verdict: Verdict) -> None:
        """Take in a verdict on one sequence in some layers."""
        rows: list[int] | None = None
        if isinstance(verdict, DropOne):
            rows = verdict.rows.tolist()
        elif isinstance(verdict, Drop) and verdict.stop - verdict.start == 1:
            rows = []
        for i, store in enumerate(stores):
            lanes, key = store.lanes, id(store)
            assert lanes is not None
            per = lanes.shape.per_sequence
            self._stores[key] = store
            if rows is not None:
                assert isinstance(verdict, Drop | DropOne)
                mine = [verdict.start] * per if isinstance(verdict, Drop) else rows[i * per :][:per]
                of_lanes = self._rows.setdefault(key, [-1] * lanes.num_lanes)
                of_lanes[sequence * per : (sequence + 1) * per] = mine
                continue
            others = self._others.setdefault(key, [None] * len(store.fed))
            if isinstance(verdict, Drop):
                others[sequence] = verdict
            else:
                assert not isinstance(verdict, DropOne)
                others[sequence] = verdict[i * per : (i + 1) * per]

    def go(self) -> None:
        """Let the rows go."""
        for key, verdicts in self._others.items():
            lanes = self._stores[key].lanes
            assert lanes is not None
            lanes.apply(verdicts)
        compiled = {key: self._stores[key].rack for key in self._rows}
        racks = [rack for rack in compiled.values() if rack is not None]
        rows = [r for key, rack in compiled.items() if rack is not None for r in self._rows[key]]
        is_loose = bool(racks) and drop_row(racks, rows)
        for key, rack in compiled.items():
            lanes = self._stores[key].lanes
            assert lanes is not None
            if rack is None:
                lanes.drop([(row, row + 1) if row >= 0 else (0, 0) for row in self._rows[key]])
            elif is_loose:
                _tidy(lanes)


def _tidy(lanes: Lanes) -> None:
    """Give memory back where rows have gone, and merge blocks that have become small."""
    for table in lanes.tables[:3]:
        table.trim()
    if lanes.coded is not None:
        lanes.coded.tidy()
