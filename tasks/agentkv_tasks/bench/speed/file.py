"""The file of a measurement: rows are added as they come, and a run goes on where it stands."""

import json
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path

from agentkv.files import append_line, require_file
from agentkv_tasks.bench.speed.machine import SpeedError
from agentkv_tasks.bench.speed.rows import SCHEMA, SpeedRow

_NAMES = {each.name for each in fields(SpeedRow)}


class RowFile:
    """The rows of a file: the last one of each cache, batch and length.

    Args:
        path: nothing is written until there is a row.
        fresh: begin without those that are there.

    Raises:
        SpeedError: it holds something else; the message names the line.
        OutputPathError: it cannot be written.
    """

    def __init__(self, path: Path, *, fresh: bool) -> None:
        self.path, self._is_fresh = path, fresh
        require_file(path)
        self._rows: dict[tuple[int, int, str], SpeedRow] = {}
        if path.is_file() and not fresh:
            content = path.read_text(encoding="utf-8", errors="replace")
            for number, line in enumerate(content[: content.rfind("\n") + 1].splitlines(), 1):
                self._keep(_row(line, f"{path}: line {number}"))

    @property
    def rows(self) -> list[SpeedRow]:
        return list(self._rows.values())

    def add(self, row: SpeedRow) -> None:
        """Write it at once. Raises WriteError."""
        append_line(self.path, row.to_json().encode() + b"\n", fresh=self._is_fresh)
        self._is_fresh = False
        self._keep(row)

    def whole_cells(
        self,
        *,
        parameters: Mapping[str, Mapping[str, object]],
        alike: Mapping[str, object],
        num_rounds: int,
    ) -> set[tuple[int, int]]:
        """Batches and lengths of which each contender has all its rounds.

        Args:
            parameters: of the contenders of now, by label.
            alike: what all rows of a file have in common, by field.

        Raises:
            SpeedError: there are rows of other contenders or settings, to which more could not be
                compared.
        """
        done: dict[tuple[int, int], set[str]] = {}
        for row in self._rows.values():
            now = {**alike, "parameters": parameters.get(row.label)}
            for name, value in now.items():
                before = getattr(row, name)
                if json.dumps(before, sort_keys=True) != json.dumps(value, sort_keys=True):
                    whose = f" of {row.label}" * (name == "parameters")
                    raise SpeedError(
                        f"{self.path}: {name}{whose} were {before!r}, now {value!r}; give another "
                        "--out, or --fresh to overwrite it"
                    )
            if row.num_rounds >= num_rounds:
                done.setdefault((row.batch, row.seen), set()).add(row.label)
        return {cell for cell, labels in done.items() if labels == set(parameters)}

    def _keep(self, row: SpeedRow) -> None:
        key = row.batch, row.seen, row.label
        self._rows.pop(key, None)  # measured again, it stands where it was last
        self._rows[key] = row


def _row(line: str, place: str) -> SpeedRow:
    """Raises SpeedError, beginning with `place`."""
    try:
        values = json.loads(line)
    except ValueError:
        values = None
    if not isinstance(values, dict) or values.get("schema") != SCHEMA or set(values) != _NAMES:
        raise SpeedError(
            f"{place} is no row of `agentkv bench speed` as it is now; give another --out, or "
            "--fresh to overwrite it"
        )
    return SpeedRow(**values)
