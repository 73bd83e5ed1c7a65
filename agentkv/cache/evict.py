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
from agentkv_kernels.ops import drop_rows

FEW = 2
"""Rows of a lane, on average, that are dropped one by one (our choice: what a step adds)."""


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
    going = _Going()
    for sequence, num_seen in enumerate(fed if allowance.policy.gate.evicts else ()):
        sure = None if confidences is None else confidences[sequence]
        policy = allowance.at(num_seen)
        shares = allowance.layers(num_seen, sure)
        due = () if shares is None else _due(policy, stores, sequence, shares, num_new)
        for num_rows, of_group in due:
            verdict = _decide(policy, of_group, sequence, num_rows, learns=confidences is None)
            going.note(of_group, sequence, verdict)
    going.go()
    precision = allowance.policy.precision
    if confidences is None and precision.format is not None and not precision.by_rank:
        recent = [allowance.at(num_seen).precision.recent or 0 for num_seen in fed]
        for store in stores:
            assert store.lanes is not None
            store.lanes.quantise_to(recent)


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
        self._rows: dict[int, list[Sequence[int]]] = {}
        """By layer: the few rows of each lane that go."""
        self._others: dict[int, list[Verdict | None]] = {}
        """By layer and sequence: verdicts by which more goes."""

    def note(self, stores: Sequence[LayerStore], sequence: int, verdict: Verdict) -> None:
        """Take in a verdict on one sequence in some layers."""
        few = _few(stores, sequence, verdict)
        for i, store in enumerate(stores):
            lanes, key = store.lanes, id(store)
            assert lanes is not None
            self._stores[key] = store
            per = lanes.shape.per_sequence
            mine = slice(i * per, (i + 1) * per)
            if few is not None:
                of_lanes = self._rows.setdefault(key, [()] * lanes.num_lanes)
                of_lanes[sequence * per : (sequence + 1) * per] = few[mine]
                continue
            assert not isinstance(verdict, DropOne)
            others = self._others.setdefault(key, [None] * len(store.fed))
            others[sequence] = verdict if isinstance(verdict, Drop) else verdict[mine]

    def go(self) -> None:
        """Let the rows go."""
        for key, verdicts in self._others.items():
            lanes = self._stores[key].lanes
            assert lanes is not None
            lanes.apply(verdicts)
        compiled = {key: self._stores[key].rack for key in self._rows}
        racks = [rack for rack in compiled.values() if rack is not None]
        rows = [r for key, rack in compiled.items() if rack is not None for r in self._rows[key]]
        is_loose = bool(racks) and drop_rows(racks, rows)
        for key, rack in compiled.items():
            lanes = self._stores[key].lanes
            assert lanes is not None
            if rack is None:
                # elsewhere these are one row at most
                lanes.drop([(row[0], row[0] + 1) if row else (0, 0) for row in self._rows[key]])
            elif is_loose:
                _tidy(lanes)


def _few(
    stores: Sequence[LayerStore], sequence: int, verdict: Verdict
) -> Sequence[Sequence[int]] | None:
    """Of every lane the rows that go, in storage order, where they are few; else None."""
    of_stores = [store.lanes for store in stores if store.lanes is not None]
    per = of_stores[0].shape.per_sequence
    if isinstance(verdict, DropOne):
        return [(row,) for row in verdict.rows.tolist()]
    if isinstance(verdict, Drop):
        is_one = verdict.stop - verdict.start == 1
        return [(verdict.start,)] * (len(stores) * per) if is_one else None
    if any(store.rack is None for store in stores):
        return None
    counts = [
        count
        for lanes in of_stores
        for count in lanes.counts[sequence * per : (sequence + 1) * per]
    ]
    num_gone = sum(counts) - int(verdict.sum())
    if num_gone > FEW * len(counts):
        return None
    rows: list[list[int]] = [[] for _ in counts]
    for lane, column in verdict.logical_not().nonzero().tolist():
        # a shorter lane is filled up at its front
        row = column - (verdict.shape[1] - counts[lane])
        if row >= 0:
            rows[lane].append(row)
    return rows


def _tidy(lanes: Lanes) -> None:
    """Give memory back where rows have gone, and merge blocks that have become small."""
    for table in lanes.tables[:3]:
        table.trim()
    if lanes.coded is not None:
        lanes.coded.tidy()
