"""Parts as processes: each within its share of the time, and nothing of it left behind.

Imports the standard library alone, because any package may be missing here.
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

from agentkv_tasks.bench.gpu.parts import Part

TOTAL_S = 540.0
GRACE_S = 8.0
"""Seconds at the end of a part's time in which it is asked to end: a measurement that is
interrupted writes what it has."""

ROOMS = (".", "env", "kernels", "tasks")
"""Folders of the source tree that hold packages."""

Ending = Literal["passed", "failed", "out of time", "interrupted"]


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a part went."""

    part: Part
    ending: Ending
    limit_s: float
    seconds: float
    log: Path
    """Its output."""
    detail: str = ""
    """What a person wants to know of it, in one line."""
    counts: Mapping[str, int] = field(default_factory=dict)
    """Of tests, by verdict."""
    notable: Sequence[str] = ()
    """Tests that failed, and skipped ones with their reasons."""


def limit(part: Part, to_come: Sequence[Part], left_s: float) -> float:
    """Seconds that a part may take, of those left: its share by weight beside the parts after it,
    so that what a part leaves over goes to those to come."""
    return left_s * part.weight / sum(each.weight for each in (part, *to_come))


def run_all(
    parts: Sequence[Part],
    *,
    root: Path,
    logs: Path,
    ends_at: float,
    begin: Callable[[Part, float], None],
) -> Iterator[Outcome]:
    """Run one part after another, whatever became of those before it. After one that a person
    interrupts there is no other.

    Args:
        root: the source tree, in which they run.
        logs: folder for their output.
        ends_at: when the last one has to be over; monotonic seconds.
        begin: is told of each part and its limit before it starts.
    """
    for i, part in enumerate(parts):
        limit_s = limit(part, parts[i + 1 :], ends_at - time.monotonic())
        begin(part, limit_s)
        outcome = run(part, limit_s=limit_s, root=root, logs=logs)
        yield outcome
        if outcome.ending == "interrupted":
            return


def run(part: Part, *, limit_s: float, root: Path, logs: Path, grace_s: float = GRACE_S) -> Outcome:
    """Run one part, for at most so long; every process that it started ends with it.

    Args:
        grace_s: as `GRACE_S`, of those seconds.
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
    """For a part: the source tree in front of whatever the caller's PYTHONPATH adds, no network,
    and no interpreter where a device is meant."""
    rooms = [str((root / room).resolve()) for room in ROOMS]
    found = {**os.environ, "HF_HUB_OFFLINE": "1", "PYTHONUNBUFFERED": "1"}
    found["PYTHONPATH"] = os.pathsep.join([*rooms, *filter(None, [os.environ.get("PYTHONPATH")])])
    found.pop("TRITON_INTERPRET", None)
    return found


def _ask_to_end(child: subprocess.Popen[bytes], seconds: float) -> None:
    _signal(child, signal.SIGINT)
    try:
        child.wait(max(0.0, seconds))
    except subprocess.TimeoutExpired:
        pass  # it is killed next


def _kill_all(child: subprocess.Popen[bytes]) -> None:
    """Its whole group, in which others may be left when it has ended itself."""
    _signal(child, signal.SIGKILL)
    child.wait()


def _signal(child: subprocess.Popen[bytes], number: signal.Signals) -> None:
    try:
        os.killpg(child.pid, number)
    except ProcessLookupError:
        pass  # nobody is left


def _judged(part: Part, ending: Ending, limit_s: float, seconds: float, log: Path) -> Outcome:
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
    return Outcome(part, ending, limit_s, seconds, log, detail, counts, notable)


def count_tests(lines: Sequence[str]) -> dict[str, int]:
    """Verdicts in the output of `pytest -v`, also where it was cut off."""
    verdict = re.compile(r"^\S+\.py::.* (PASSED|FAILED|ERROR|SKIPPED|XFAIL|XPASS)(?: .*)?$")
    found = Counter(match[1].lower() for line in lines if (match := verdict.match(line)))
    return dict(sorted(found.items()))
