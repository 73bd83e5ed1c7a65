"""Rows that kernels for devices let go: of all layers on a device in one launch.

Shapes: S lanes of a sequence.
"""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from agentkv.cache.lanes import Lanes
from agentkv.cache.table import Table
from agentkv_kernels.ops import Leaving, close_rows

Going = tuple[int, int, int]
"""As in `Leaving.runs`."""

NOTHING: Going = (0, 0, -1)


class Closing:
    """Rows that go, noted first and carried out together."""

    __slots__ = ("_chosen", "_layers", "_picks", "_rows")

    def __init__(self) -> None:
        self._layers: dict[int, Lanes] = {}
        self._rows: dict[int, Sequence[Sequence[int]]] = {}
        """By layer: of each lane the one row that goes, if one does."""
        self._chosen: dict[int, list[Going]] = {}
        """By layer: for each lane the number of a pick."""
        self._picks: list[Tensor] = []

    def rows(self, lanes: Lanes, rows: Sequence[Sequence[int]]) -> None:
        """Of each lane, this row is to go; none or one."""
        self._layers[id(lanes)] = lanes
        self._rows[id(lanes)] = rows

    def choose(self, layers: Sequence[Lanes], sequence: int, rows: Tensor) -> None:
        """One row of every lane of a sequence in some layers is to go, which the device knows.

        Args:
            rows: (layers * S,) int64, none of them quantised.
        """
        number = sum(picks.shape[0] for picks in self._picks)
        self._picks.append(rows)
        for lanes in layers:
            per, key = lanes.shape.per_sequence, id(lanes)
            self._layers[key] = lanes
            going = self._chosen.setdefault(key, [NOTHING] * lanes.num_lanes)
            for lane in range(sequence * per, (sequence + 1) * per):
                going[lane] = (0, 1, number)
                number += 1

    def go(self) -> Iterable[Lanes]:
        """Let the rows go, and give back the layers that lost some."""
        picks = torch.cat(self._picks) if self._picks else None
        chosen = [
            (table, going)
            for key, going in self._chosen.items()
            for table in self._layers[key].tables[:2]
        ]
        told = [
            found
            for key, rows in self._rows.items()
            for found in _of_tables(self._layers[key], rows)
        ]
        # as a rule only one of them is there; no table may be in a launch twice
        for tables in (chosen, told):
            for device in {table.tensors[0].device for table, _ in tables}:
                mine = [each for each in tables if each[0].tensors[0].device == device]
                _close(mine, None if picks is None else picks.to(device, non_blocking=True))
        return self._layers.values()


def _of_tables(lanes: Lanes, rows: Sequence[Sequence[int]]) -> list[tuple[Table, list[Going]]]:
    """What the rows of a layer that go mean for its tables."""
    about, dense, *others = lanes.tables
    found: list[tuple[Table, list[Going]]] = [(t, []) for t in (about, dense, *others[:1])]
    for of_lane, coded in zip(rows, lanes.num_coded, strict=True):
        row = of_lane[0] if of_lane else None
        in_codes = row is not None and row < coded
        of_tables = [
            row,
            None if row is None or in_codes else row - coded,
            row if in_codes else None,
        ]
        for (_, going), number in zip(found, of_tables, strict=False):
            going.append(NOTHING if number is None else (number, 1, -1))
    return [(table, going) for table, going in found if any(gap for _, gap, _ in going)]


def _close(tables: Sequence[tuple[Table, Sequence[Going]]], picks: Tensor | None) -> None:
    leaving = [Leaving(table.index, table.boxes, going) for table, going in tables]
    for (table, _), boxes in zip(tables, close_rows(leaving, picks=picks), strict=True):
        table.use(boxes)
