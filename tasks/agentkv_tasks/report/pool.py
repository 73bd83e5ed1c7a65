"""Pool several runs, such as one suite in three worlds, after checking that they are comparable."""

from collections.abc import Sequence
from pathlib import Path

from agentkv_tasks.results import UNRECORDED, ResultsError, Row, read_rows

_PER_WORLD = ("suite_digest", "sites")
"""Settings that may differ between pooled runs: they identify the tasks and the sites."""


def read_runs(folders: Sequence[Path]) -> dict[Path, list[Row]]:
    """Read the rows of the runs in `folders`.

    Raises:
        ResultsError: a folder holds no row or a broken one; the runs differ in a setting that
            decides outcomes, or in the tasks of one suite and world; two runs hold the same
            episode.
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
    _refuse_duplicates(runs)
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


def _refuse_duplicates(runs: dict[Path, list[Row]]) -> None:
    holders: dict[str, Path] = {}
    for folder, rows in runs.items():
        for row in rows:
            other = holders.setdefault(row.key, folder)
            if other != folder:
                raise ResultsError(
                    f"{folder} and {other} both hold task {row.task_id} of {row.suite} in world "
                    f"{row.world_seed} under {row.policy}, seed {row.seed}; it would count twice"
                )
