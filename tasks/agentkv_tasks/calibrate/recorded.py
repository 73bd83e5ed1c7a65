"""Token streams of recorded episodes, or of a text, with the tokens that a model would write."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from agentkv.dialog.prompt import Template, nonce_of
from agentkv.trace import Trace
from agentkv_tasks.results import Row, read_rows, trace_of

READ, WRITTEN = 448, 64
"""Tokens of a text that are read at once, and that are then written one by one, in turn (our
choice: about a page and a reply of nano)."""


class CalibrationError(ValueError):
    """A calibration that cannot be made as requested; the message names what is possible."""


@dataclass(slots=True)
class Recording:
    """One stream of tokens."""

    ids: list[int] = field(default_factory=list)
    are_written: list[bool] = field(default_factory=list)
    """True for the tokens that the model wrote; it only read the others."""
    num_goal: int = 0
    """First tokens, which the cache pins."""

    def read(self, ids: Sequence[int]) -> None:
        """Append tokens that the model reads."""
        self._append(ids, is_written=False)

    def write(self, ids: Sequence[int]) -> None:
        """Append tokens that the model writes."""
        self._append(ids, is_written=True)

    def _append(self, ids: Sequence[int], *, is_written: bool) -> None:
        self.ids += ids
        self.are_written += [is_written] * len(ids)

    @property
    def parts(self) -> Iterator[tuple[int, int, bool]]:
        """Positions start..stop - 1 of each run of tokens, and whether the model wrote them."""
        start = 0
        for i in range(1, len(self.ids) + 1):
            if i == len(self.ids) or self.are_written[i] != self.are_written[start]:
                yield start, i, self.are_written[start]
                start = i


def of_runs(folders: Sequence[Path], template: Template, *, model: str) -> list[Recording]:
    """Return the episodes of some runs, one for each task, world and seed.

    Episodes under `full` come before those under other policies, because nothing was forgotten
    where they were written.

    Args:
        model: name of the model that is calibrated, which must have written them.

    Raises:
        ResultsError: a folder has no rows or broken ones.
        CalibrationError: no episode has a trace with what this model has read.
    """
    chosen: dict[object, tuple[Path, Row]] = {}
    for folder in folders:
        for row in read_rows(folder / "results.jsonl"):
            known = chosen.get(row.unit)
            is_better = known is None or (row.policy == "full" and known[1].policy != "full")
            if row.trace and row.model == model and is_better:
                chosen[row.unit] = folder, row
    found = []
    for folder, row in chosen.values():
        trace = trace_of(row, folder)
        if trace is not None and any(step.observation for step in trace.steps):
            found.append(_of_trace(trace, row.seed, template))
    if not found:
        names = ", ".join(map(str, folders))
        raise CalibrationError(
            f"{names}: no episode of {model} with a trace of what it has read; expected the --out "
            f"of `agentkv run --model {model}`, or give a --text"
        )
    return found


def _of_trace(trace: Trace, seed: int, template: Template) -> Recording:
    goal = str(trace.head.get("goal", ""))
    nonce = nonce_of(goal, seed)
    recording = Recording()
    recording.read(template.opening(goal, nonce))
    recording.num_goal = len(recording.ids)
    for step in trace.steps:
        recording.read(template.turn(step.observation, step.note, nonce))
        recording.write(template.reply(step.reply))
    return recording


def of_text(path: Path, template: Template) -> list[Recording]:
    """Return a text as one stream, `READ` tokens that are read and `WRITTEN` that are written in
    turn.

    Raises:
        CalibrationError: the file cannot be read or is too short.
    """
    try:
        ids = template.encode(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise CalibrationError(f"--text {path} cannot be read: {error}") from error
    if len(ids) < READ + WRITTEN:
        raise CalibrationError(
            f"--text {path} has {len(ids)} tokens for this model; expected at least "
            f"{READ + WRITTEN}, better ten times the budget"
        )
    recording = Recording()
    for start in range(0, len(ids), READ + WRITTEN):
        recording.read(ids[start : start + READ])
        recording.write(ids[start + READ : start + READ + WRITTEN])
    return [recording]
