"""Pool several runs, such as one suite in three worlds, after checking that they are comparable.

Runs that hold the same episodes under the same settings are repeats of each other.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from agentkv_tasks.results import UNRECORDED, ResultsError, Row, read_rows

_PER_WORLD = ("suite_digest", "sites")
"""Settings that may differ between pooled runs: they identify the tasks and the sites."""


def read_runs(folders: Sequence[Path]) -> dict[Path, list[Row]]:
    """Read the rows of the runs in `folders`.

    Raises:
        ResultsError: a folder holds no row or a broken one; the runs differ in a setting that
            decides outcomes, or in the tasks of one suite and world; two folders hold the same
            row, so that one is a copy.
    """
    runs: dict[Path, list[Row]] = {}
    for folder in folders:
        rows = read_rows(folder / "results.jsonl")
        if not rows:
            raise ResultsError(f"{folder / 'results.jsonl'}: no finished episode yet")
        if folder in runs:
            raise ResultsError(f"{folder} is given twice")
        runs[folder] = rows
    _refuse_other_settings(runs)
    _refuse_copies(runs)
    return runs


def _refuse_other_settings(runs: dict[Path, list[Row]]) -> None:
    first: dict[tuple[object, ...], tuple[Path, object]] = {}
    for folder, rows in runs.items():
        for row in rows:
            for name, value in {**UNRECORDED, **row.settings}.items():
                if name == "suite_digest":
                    place: tuple[object, ...] = (name, row.suite, row.world_seed)
                elif name in _PER_WORLD:
                    continue
                else:
                    place = (name,)
                other, known = first.setdefault(place, (folder, value))
                if known != value and other != folder:
                    raise ResultsError(
                        f"{folder} and {other} cannot be pooled: "
                        f"{name} is {value!r} in one and {known!r} in the other"
                    )


def pooled(runs: Mapping[Path, Sequence[Row]]) -> dict[Path, list[Row]]:
    """Return the rows of `read_runs` with `repeat` set, so that no two of them have one key.

    The first run with an episode has repeat 0, the next one with the same episode repeat 1.
    """
    held: Counter[str] = Counter()
    found: dict[Path, list[Row]] = {}
    for folder, rows in runs.items():
        found[folder] = [replace(row, repeat=held[_episode(row)]) for row in rows]
        held.update(map(_episode, rows))
    return found


def _episode(row: Row) -> str:
    """Return the key of a row's episode, which rows of several versions share."""
    return replace(row, policy_parameters=row.set_parameters).key


def _refuse_copies(runs: Mapping[Path, Sequence[Row]]) -> None:
    held: dict[str, list[tuple[Path, Row]]] = {}
    for folder, rows in runs.items():
        for row in rows:
            for other, known in held.setdefault(row.key, []):
                if known == row:
                    raise ResultsError(
                        f"{folder} and {other} both hold one row, of task {row.task_id} of "
                        f"{row.suite} in world {row.world_seed} under {row.policy}, seed "
                        f"{row.seed}; a copy would count twice, and a repeated run has rows of its "
                        "own"
                    )
            held[row.key].append((folder, row))
