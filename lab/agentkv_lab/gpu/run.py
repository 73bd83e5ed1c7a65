"""Run the parts of `make gpu` as processes with time limits.

This module imports only the standard library, because any package may be missing on the machine.
"""

import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from agentkv_lab.gpu.parts import GpuPart

TOTAL_S = 720.0
GRACE_S = 8.0
"""Seconds before the limit of a part at which it is interrupted, so that it can write its rows."""

PACKAGE_FOLDERS = (".", "env", "kernels", "tasks", "lab")
"""Folders of the source tree that hold packages."""

Ending = Literal["passed", "failed", "out of time", "interrupted"]


@dataclass(frozen=True, slots=True)
class PartOutcome:
    """Result of a part."""

    part: GpuPart
    ending: Ending
    limit_s: float
    seconds: float
    log: Path
    """File with its output."""
    detail: str = ""
    """One line for the user."""
    counts: Mapping[str, int] = field(default_factory=dict)
    """Number of tests by verdict."""
    notable: Sequence[str] = ()
    """Lines of pytest on failed tests, and on skipped tests with their reasons."""


def limit(part: GpuPart, to_come: Sequence[GpuPart], left_s: float) -> float:
    """Return the time limit of a part in seconds: its share by weight of the remaining time.

    Time that a part leaves unused goes to the parts after it.
    """
    return left_s * part.weight / sum(each.weight for each in (part, *to_come))


def run_all(
    parts: Sequence[GpuPart],
    *,
    root: Path,
    logs: Path,
    ends_at: float,
    begin: Callable[[GpuPart, float], None],
) -> Iterator[PartOutcome]:
    """Run the parts one after another and yield their outcomes; an interrupt ends the series.

    Args:
        root: source tree in which the parts run.
        logs: folder of their output.
        ends_at: end of the last part, in monotonic seconds.
        begin: called with each part and its limit before it starts.
    """
    for i, part in enumerate(parts):
        limit_s = limit(part, parts[i + 1 :], ends_at - time.monotonic())
        begin(part, limit_s)
        outcome = run(part, limit_s=limit_s, root=root, logs=logs)
        yield outcome
        if outcome.ending == "interrupted":
            return


def run(
    part: GpuPart, *, limit_s: float, root: Path, logs: Path, grace_s: float = GRACE_S
) -> PartOutcome:
    """Run one part for at most `limit_s` seconds; all its processes end with it.

    Args:
        grace_s: seconds before the limit at which the part is interrupted.
    """
    logs.mkdir(parents=True, exist_ok=True)
    log, began = logs / f"{part.name.replace(' ', '-')}.log", time.monotonic()
    ending: Ending
    with log.open("wb") as output:
        child = subprocess.Popen(
            [sys.executable, *part.arguments],
            cwd=root,
            env=environment(root),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            status = child.wait(max(0.0, limit_s - grace_s))
            ending = "failed" if status else "passed"
        except subprocess.TimeoutExpired:
            ending = "out of time"
            _ask_to_end(child, began + limit_s - time.monotonic())
        except KeyboardInterrupt:
            ending = "interrupted"
            _ask_to_end(child, grace_s)
        finally:
            _kill_all(child)
    return _judged(part, ending, limit_s, time.monotonic() - began, log)


def environment(root: Path) -> dict[str, str]:
    """Return the environment of a part: the source tree before the caller's PYTHONPATH, no network,
    and no Triton interpreter."""
    rooms = [str((root / room).resolve()) for room in PACKAGE_FOLDERS]
    found = {**os.environ, "HF_HUB_OFFLINE": "1", "PYTHONUNBUFFERED": "1"}
    found["PYTHONPATH"] = os.pathsep.join([*rooms, *filter(None, [os.environ.get("PYTHONPATH")])])
    found.pop("TRITON_INTERPRET", None)
    return found


def _ask_to_end(child: subprocess.Popen[bytes], seconds: float) -> None:
    _signal(child, signal.SIGINT)
    try:
        child.wait(max(0.0, seconds))
    except subprocess.TimeoutExpired:
        pass  # the caller kills it


def _kill_all(child: subprocess.Popen[bytes]) -> None:
    """Kill the whole process group, which may outlive its leader."""
    _signal(child, signal.SIGKILL)
    child.wait()


def _signal(child: subprocess.Popen[bytes], number: signal.Signals) -> None:
    try:
        os.killpg(child.pid, number)
    except ProcessLookupError:
        pass  # the group has ended


def _judged(
    part: GpuPart, ending: Ending, limit_s: float, seconds: float, log: Path
) -> PartOutcome:
    text = log.read_text(encoding="utf-8", errors="replace")
    lines = [line for line in text.splitlines() if line.strip()]
    counts: dict[str, int] = {}
    notable: list[str] = []
    if part.is_test:
        counts = count_tests(lines)
        notable = [x for x in lines if re.match(r"(FAILED|ERROR) |SKIPPED \[\d+\] ", x)]
        detail = ", ".join(f"{number} {verdict}" for verdict, number in counts.items())
        if ending == "passed" and not counts.get("passed"):
            ending, detail = "failed", detail or "no test ran"
    else:
        detail = "" if ending == "passed" or not lines else lines[-1].strip()
    return PartOutcome(part, ending, limit_s, seconds, log, detail, counts, notable)


def count_tests(lines: Sequence[str]) -> dict[str, int]:
    """Count the verdicts in the output of `pytest -v`, also with `-n`, which may be cut off."""
    verdicts = "(PASSED|FAILED|ERROR|SKIPPED|XFAIL|XPASS)"
    alone = re.compile(rf"^\S+\.py::.* {verdicts}(?: .*)?$")
    by_worker = re.compile(rf"^\[gw\d+\] (?:\[ *\d+%\] )?{verdicts} ")
    matches = (alone.match(line) or by_worker.match(line) for line in lines)
    found = Counter(match[1].lower() for match in matches if match)
    return dict(sorted(found.items()))
