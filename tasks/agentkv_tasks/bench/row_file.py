"""The file of a benchmark: every row is written at once, and a later run continues it."""

import json
from collections.abc import Callable, Hashable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, Generic, TypeVar

from agentkv.files import append_line, read_stored, require_file, stored, write_atomic
from agentkv_tasks.bench.errors import BenchError
from agentkv_tasks.bench.rows import BenchRow

RowT = TypeVar("RowT", bound=BenchRow)


class RowFile(Generic[RowT]):
    """The rows of a file, the last one of each key.

    Args:
        path: file; it is created with the first row, after the rows of its compressed form.
        kind: class of the rows.
        key: identity of a row; a row that is measured again replaces the earlier one.
        fresh: ignore and overwrite existing rows.

    Raises:
        BenchError: the file holds something else; the message names the line.
        OutputPathError: the file cannot be written.
    """

    def __init__(
        self, path: Path, kind: type[RowT], key: Callable[[RowT], Hashable], *, fresh: bool
    ) -> None:
        self.path, self.kind, self._key, self._is_fresh = path, kind, key, fresh
        require_file(path)
        self._rows: dict[Hashable, RowT] = {}
        if stored(path).is_file() and not fresh:
            content = read_stored(path).decode(errors="replace")
            for number, line in enumerate(content[: content.rfind("\n") + 1].splitlines(), 1):
                self._put(self._parse(line, f"{path}: line {number}"))

    @property
    def rows(self) -> list[RowT]:
        """The rows in the order of their last measurement."""
        return list(self._rows.values())

    @property
    def keys(self) -> frozenset[Hashable]:
        """Keys of the rows."""
        return frozenset(self._rows)

    def add(self, row: RowT) -> None:
        """Append a row and flush it to disk. Raises WriteError."""
        if not self._is_fresh and stored(self.path) != self.path:
            write_atomic(self.path, read_stored(self.path))
        append_line(self.path, row.to_json().encode() + b"\n", fresh=self._is_fresh)
        self._is_fresh = False
        self._put(row)

    def require_same(self, expected: Callable[[RowT], Mapping[str, object]]) -> None:
        """Refuse rows that cannot be compared with new ones.

        Args:
            expected: fields that a row must have, with their values.

        Raises:
            BenchError: a field differs; the message names it and both values.
        """
        for row in self._rows.values():
            for name, now in expected(row).items():
                before: Any = getattr(row, name)
                if json.dumps(before, sort_keys=True) != json.dumps(now, sort_keys=True):
                    whose = f" of {getattr(row, 'label', '')}" * (name == "parameters")
                    raise self.mismatch(f"{name}{whose} were {before!r}, now {now!r}")

    def mismatch(self, difference: str) -> BenchError:
        """Return the error for a file of another measurement."""
        return BenchError(
            f"{self.path}: {difference}; give another --out, or --fresh to overwrite it"
        )

    def _put(self, row: RowT) -> None:
        key = self._key(row)
        self._rows.pop(key, None)
        self._rows[key] = row

    def _parse(self, line: str, place: str) -> RowT:
        try:
            values = json.loads(line)
        except ValueError:
            values = None
        known = {each.name: each.default for each in fields(self.kind)}
        # a field that was added later has None, where nobody knows
        later = {name for name, default in known.items() if default is None}
        if (
            not isinstance(values, dict)
            or values.get("schema") != known["schema"]
            or not set(known) - later <= set(values) <= set(known)
        ):
            raise BenchError(
                f"{place} is not a row of today's `{self.kind.PROGRAM} {self.kind.BENCH}`; give "
                "another --out, or --fresh to overwrite it"
            )
        return self.kind(**values)
