"""The file of a measurement: rows are added as they come, and a run goes on where it stands."""

import json
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path

from agentkv.files import append_line, require_file
from agentkv_tasks.bench.needle.page import NeedleError
from agentkv_tasks.bench.needle.rows import SCHEMA, NeedleRow

Cell = tuple[int, int, str]
"""Length, depth and the policy's label."""

_NAMES = {each.name for each in fields(NeedleRow)}


class NeedleFile:
    """The rows of a file: one of each policy, length and depth.

    Args:
        path: nothing is written until there is a row.
        fresh: begin without those that are there.

    Raises:
        NeedleError: it holds something else; the message names the line.
        OutputPathError: it cannot be written.
    """

    def __init__(self, path: Path, *, fresh: bool) -> None:
        self.path, self._is_fresh = path, fresh
        require_file(path)
        self._rows: dict[Cell, NeedleRow] = {}
        if path.is_file() and not fresh:
            content = path.read_text(encoding="utf-8", errors="replace")
            for number, line in enumerate(content[: content.rfind("\n") + 1].splitlines(), 1):
                self._keep(_read(line, f"{path}: line {number}"))

    @property
    def rows(self) -> list[NeedleRow]:
        """By length, then policy, then depth, whatever their order in the file."""
        labels = list(dict.fromkeys(label for _, _, label in self._rows))
        return sorted(
            self._rows.values(),
            key=lambda row: (row.length, labels.index(row.label), row.depth),
        )

    @property
    def cells(self) -> frozenset[Cell]:
        return frozenset(self._rows)

    def require(
        self, *, parameters: Mapping[str, Mapping[str, object]], alike: Mapping[str, object]
    ) -> None:
        """Refuse rows to which more could not be compared.

        Args:
            parameters: of the policies of now, by label; others may be there.
            alike: what all rows of a file have in common, by field.

        Raises:
            NeedleError: the message names the field that differs.
        """
        for row in self._rows.values():
            wanted = {**alike, "parameters": parameters.get(row.label, row.parameters)}
            for name, now in wanted.items():
                before = getattr(row, name)
                if json.dumps(before, sort_keys=True) != json.dumps(now, sort_keys=True):
                    whose = f" of {row.label}" * (name == "parameters")
                    raise self._other(f"{name}{whose} were {before!r}, now {now!r}")

    def require_pages(self, length: int, depth: int, digest: str) -> None:
        """Refuse rows of other pages at the same place. Raises NeedleError."""
        for row in self._rows.values():
            if (row.length, row.depth) == (length, depth) and row.pages_sha256 != digest:
                raise self._other(f"pages of {length} tokens at depth {depth} are no longer alike")

    def add(self, row: NeedleRow) -> None:
        """Write it at once. Raises WriteError."""
        append_line(self.path, row.to_json().encode() + b"\n", fresh=self._is_fresh)
        self._is_fresh = False
        self._keep(row)

    def _keep(self, row: NeedleRow) -> None:
        self._rows[row.length, row.depth, row.label] = row

    def _other(self, what: str) -> NeedleError:
        return NeedleError(f"{self.path}: {what}; give another --out, or --fresh to overwrite it")


def _read(line: str, place: str) -> NeedleRow:
    """Raises NeedleError, beginning with `place`."""
    try:
        values = json.loads(line)
    except ValueError:
        values = None
    if not isinstance(values, dict) or values.get("schema") != SCHEMA or set(values) != _NAMES:
        raise NeedleError(
            f"{place} is no row of `agentkv bench needle` as it is now; give another --out, or "
            "--fresh to overwrite it"
        )
    return NeedleRow(**values)
