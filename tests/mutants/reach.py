"""What each slow test adds: the lines of the product that no other test of the fast set reaches.

    pip install coverage
    python -m tests.mutants.reach --out reach.jsonl tests

The tests run once, twice as long as usual, with a record of the lines that each reaches, in its own
process and in those that it starts. Lines do not tell whether a test would notice a fault in them:
a test that reaches nothing alone is looked at, not deleted.
"""

import argparse
import json
import os
import sqlite3
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
SLOW_S = 0.5
"""Seconds from which on a test is asked what it adds."""
SETTINGS = """[run]
source = {sources}
parallel = true
data_file = {folder}/lines
context = ${{AGENTKV_TEST-}}
sigterm = true
disable_warnings = no-data-collected, module-not-measured, module-not-imported, trace-changed
"""


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, Any, Any]:
    """Name the test to what records lines, in this process and in those that the test starts."""
    import coverage  # only here: no other run needs it

    os.environ["AGENTKV_TEST"] = item.nodeid.replace("$", "S").replace("\n", " ")
    recording = coverage.Coverage.current()
    assert recording is not None
    recording.switch_context(os.environ["AGENTKV_TEST"])
    try:
        return (yield)
    finally:
        os.environ.pop("AGENTKV_TEST")
        recording.switch_context("")


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Write down how long each part of a test took."""
    with open(Path(os.environ["AGENTKV_SECONDS"]), "a") as file:
        name = report.nodeid.replace("$", "S").replace("\n", " ")
        file.write(json.dumps([name, report.duration]) + "\n")


def record(folder: Path, arguments: list[str]) -> None:
    """Run tests, and leave what they reach in `folder`."""
    sources = [ROOT / part for part in ("agentkv", "env", "kernels", "tasks", "lab")]
    listed = "".join(f"\n  {source}" for source in sources)
    (folder / "settings").write_text(SETTINGS.format(sources=listed, folder=folder))
    (folder / "sitecustomize.py").write_text("import coverage\ncoverage.process_startup()\n")
    environment = {
        **os.environ,
        "COVERAGE_PROCESS_START": str(folder / "settings"),
        "AGENTKV_SECONDS": str(folder / "seconds"),
        "PYTHONPATH": os.pathsep.join([str(folder), str(ROOT), os.environ.get("PYTHONPATH", "")]),
    }
    command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.mutants.reach"]
    command += ["-n", "auto", "-m", "not slow and not exhaustive", *arguments]
    subprocess.run(command, cwd=ROOT, env=environment, check=True)


def lines_of_tests(folder: Path) -> dict[str, set[tuple[str, int]]]:
    """Return the lines that each test reached, as path and number."""
    from coverage.numbits import numbits_to_nums

    reached = defaultdict(set)
    for path in folder.glob("lines.*"):
        with sqlite3.connect(path) as data:
            files = dict(data.execute("select id, path from file"))
            tests = dict(data.execute("select id, context from context"))
            for file, test, lines in data.execute(
                "select file_id, context_id, numbits from line_bits"
            ):
                name = tests[test].rpartition("|")[2] or tests[test].partition("|")[0]
                reached[name].update((files[file], line) for line in numbits_to_nums(lines))
    reached.pop("", None)
    return reached


def rows(reached: dict[str, set[tuple[str, int]]], seconds: dict[str, float]) -> list[Any]:
    """Return what each slow test adds, the longest first.

    A test `repeats` others if all its lines are reached without it and without the tests before it
    that repeat others.
    """
    times: dict[tuple[str, int], int] = defaultdict(int)
    for lines in reached.values():
        for line in lines:
            times[line] += 1
    alone = {name: sum(times[line] == 1 for line in lines) for name, lines in reached.items()}
    found = []
    for name in sorted(reached, key=lambda name: -seconds.get(name, 0)):
        if seconds.get(name, 0) < SLOW_S:
            continue
        repeats = all(times[line] > 1 for line in reached[name])
        if repeats:
            for line in reached[name]:
                times[line] -= 1
        row = {"test": name, "seconds": round(seconds[name], 1), "lines": len(reached[name])}
        found.append({**row, "only_here": alone[name], "repeats": repeats})
    return found


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants.reach", description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("arguments", nargs="*", help="for pytest, such as folders of tests")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        record(folder, given.arguments)
        seconds: dict[str, float] = defaultdict(float)
        for line in (folder / "seconds").read_text().splitlines():
            test, duration = json.loads(line)
            seconds[test] += duration
        found = rows(lines_of_tests(folder), seconds)
    given.out.write_text("".join(json.dumps(row) + "\n" for row in found))


if __name__ == "__main__":
    main()
