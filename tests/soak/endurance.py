"""Play thousands of episodes and watch what grows: memory, open files, ports, contexts, temp files.

    python -m tests.soak.endurance --episodes 2000 --out runs/endurance.json

The model is `random`, on the embedded sites, with one worker. The result file has a sample after
every 20 episodes and is rewritten with each, so that an interrupted run leaves its samples. The
site server is a thread of the worker.
"""

import argparse
import json
import math
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from agentkv.files import write_atomic
from agentkv_tasks.provenance import commit, processor, versions
from agentkv_tasks.results import read_rows
from tests.tasks.runs import REPOSITORY, command_of, workers_of

NUM_TASKS = 75
"""Tasks of vwa75; with more episodes than tasks, every task has several seeds."""
SETTLED = 100
"""Episodes before which growth does not count: caches fill, and modules are imported."""
MOST_GROWTH = 0.10
LEAST_SAMPLES = 6
"""Samples after the first episodes that a verdict needs."""
_ANSWER_S = 10.0
_POLL_S = 0.5


@dataclass(frozen=True, slots=True)
class Sample:
    """What a run holds after a number of episodes."""

    episodes: int
    seconds: float
    """Seconds since the start."""
    rss_mib: dict[str, float]
    """Resident memory by kind of process, summed: the median since the sample before, because it
    depends on what a page shows. Pages that processes share count several times."""
    counts: dict[str, int]
    """Processes and open files by kind of process, listening ports, browser contexts, and files in
    the folder for temporary ones."""


def verdict(samples: Sequence[Sample], *, settled: int = SETTLED) -> tuple[bool, str]:
    """Return whether nothing grew, and one line that says so or names what did.

    The medians of the first third of the samples after `settled` episodes are compared with those
    of the last third, because a busy page takes memory and files for a moment. Growth by one unit
    is none.
    """
    kept = [sample for sample in samples if sample.episodes > settled]
    if len(kept) < LEAST_SAMPLES:
        return False, (
            f"no verdict: {len(kept)} samples after the first {settled} episodes; "
            f"{LEAST_SAMPLES} are needed"
        )
    third = len(kept) // 3
    first, last = kept[:third], kept[-third:]
    grown = []
    for name, unit in sorted({each for sample in kept for each in _values(sample)}):
        before, after = (
            statistics.median(_values(sample).get((name, unit), 0.0) for sample in part)
            for part in (first, last)
        )
        if after > max(before * (1 + MOST_GROWTH), before + 1):
            grown.append(f"{name} from {before:.0f} to {after:.0f}{unit}")
    span = f"from episode {kept[0].episodes} to {kept[-1].episodes}"
    if grown:
        return False, f"not flat {span}: {'; '.join(grown)}"
    return True, f"flat {span}: no measure grew by more than {MOST_GROWTH:.0%}"


def _values(sample: Sample) -> dict[tuple[str, str], float]:
    """Return every measure of a sample by its name and unit."""
    memory = {(f"memory of {kind}", " MiB"): size for kind, size in sample.rss_mib.items()}
    return {**memory, **{(name, ""): float(count) for name, count in sample.counts.items()}}


def kind_of(pid: int, runner: int) -> str:
    """Return the kind of a process in a run: its part of the browser, or its role."""
    line = " ".join(command_of(pid))
    if pid == runner:
        return "runner"
    if "run-driver" in line:
        return "driver"
    if found := re.search(r" --type=([a-z-]+)", line):
        return f"browser {found[1]}"
    if "--remote-debugging" in line:
        return "browser"
    return "worker" if _is_worker(pid) else "other"


def _is_worker(pid: int) -> bool:
    try:
        return Path(os.readlink(f"/proc/{pid}/fd/1")).name.startswith("worker-")
    except OSError:
        return False


def memory(runner: int) -> dict[str, float]:
    """Return the MiB of resident memory of a run by kind of process."""
    rss: Counter[str] = Counter()
    for pid in (runner, *workers_of(runner)):
        try:
            kind, pages = kind_of(pid, runner), Path(f"/proc/{pid}/statm").read_text().split()[1]
        except OSError:
            continue  # it has ended meanwhile
        rss[kind] += int(pages) * os.sysconf("SC_PAGE_SIZE")
    return {kind: size / 2**20 for kind, size in rss.items()}


def medians(found: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the median of every key, over the mappings that have it."""
    keys = sorted({key for each in found for key in each})
    return {
        key: round(statistics.median(each[key] for each in found if key in each), 1) for key in keys
    }


def count(runner: int, folder: Path, temporary: Path) -> dict[str, int]:
    """Return the counts of a `Sample`.

    Args:
        runner: process id of the run.
        folder: where `sitecustomize` writes the contexts of a process.
        temporary: the run's folder for temporary files.
    """
    counts: Counter[str] = Counter()
    inodes: set[str] = set()
    for pid in (runner, *workers_of(runner)):
        try:
            kind = kind_of(pid, runner)
            targets = [os.readlink(entry) for entry in Path(f"/proc/{pid}/fd").iterdir()]
        except OSError:
            continue  # it has ended meanwhile
        counts[f"processes of {kind}"] += 1
        counts[f"open files of {kind}"] += len(targets)
        inodes |= {target[8:-1] for target in targets if target.startswith("socket:[")}
        if kind == "worker":
            counts["browser contexts"] += _contexts(pid, folder)
    counts["listening ports"] = len(inodes & _listening())
    counts["temporary files"] = sum(1 for _ in temporary.rglob("*"))
    return dict(counts)


def _listening() -> set[str]:
    """Return the inodes of all sockets that listen."""
    found = set()
    for name in ("tcp", "tcp6"):
        try:
            lines = Path(f"/proc/net/{name}").read_text().splitlines()[1:]
        except OSError:
            continue
        found |= {line.split()[9] for line in lines if line.split()[3] == "0A"}
    return found


def _contexts(pid: int, folder: Path) -> int:
    path = folder / f"{pid}.contexts"
    path.unlink(missing_ok=True)
    try:
        os.kill(pid, signal.SIGUSR1)
    except ProcessLookupError:
        return 0
    until = time.monotonic() + _ANSWER_S
    while not path.exists():
        if time.monotonic() > until:
            return 0
        time.sleep(0.01)
    return int(path.read_text())


def _command(episodes: int, out: Path) -> list[str]:
    seeds = ",".join(map(str, range(math.ceil(episodes / NUM_TASKS))))
    return [
        *(sys.executable, "-m", "agentkv", "run", "--tasks", "vwa75", "--model", "random"),
        *("--workers", "1", "--max-steps", "10", "--no-screenshots", "--no-ocr"),
        *("--limit", str(min(episodes, NUM_TASKS)), "--seeds", seeds, "--out", str(out)),
    ]


def watch(episodes: int, every: int, settled: int, out: Path) -> bool:
    """Run the episodes, write the samples to `out`, and return whether nothing grew."""
    samples: list[Sample] = []
    with tempfile.TemporaryDirectory(prefix="agentkv-soak-") as name:
        place = Path(name)
        temporary, results = place / "tmp", place / "run"
        temporary.mkdir()
        rooms = (".", "env", "kernels", "tasks", "tests/soak/watched")
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(str(REPOSITORY / room) for room in rooms),
            "TMPDIR": str(temporary),
            "SOAK_FOLDER": str(place),
        }
        started = time.monotonic()
        with (place / "output").open("w+") as output:
            run = subprocess.Popen(
                _command(episodes, results),
                env=environment,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
            try:
                _sample_until_the_end(run, samples, every, settled, started, place, out)
            finally:
                run.terminate()
                run.wait()
            output.seek(0)
            if run.returncode != 0:
                print(output.read()[-2000:], file=sys.stderr)
        rows = read_rows(results / "results.jsonl")
        statuses = dict(Counter(row.status for row in rows))
        again = sum(bool(row.attempts) for row in rows)
    is_flat, line = verdict(samples, settled=settled)
    if run.returncode != 0:
        is_flat, line = False, f"the run ended with exit code {run.returncode}; {line}"
    _write(out, samples, line, statuses=statuses, played_again=again, seconds=_since(started))
    print(f"{len(rows)} episodes in {_since(started):.0f} s, {again} played again: {statuses}")
    print(line)
    return is_flat


def _sample_until_the_end(
    run: "subprocess.Popen[bytes]",
    samples: list[Sample],
    every: int,
    settled: int,
    started: float,
    place: Path,
    out: Path,
) -> None:
    results = place / "run" / "results.jsonl"
    following = every
    held: list[dict[str, float]] = []
    while run.poll() is None:
        time.sleep(_POLL_S)
        held.append(memory(run.pid))
        done = results.read_bytes().count(b"\n") if results.exists() else 0
        if done < following:
            continue
        following = (done // every + 1) * every
        counts = count(run.pid, place, place / "tmp")
        if run.poll() is not None or not counts.get("processes of browser"):
            continue  # it is ending, or another browser is being started
        samples.append(Sample(done, round(_since(started), 1), medians(held), counts))
        held = []
        _write(out, samples, verdict(samples, settled=settled)[1])


def _since(started: float) -> float:
    return time.monotonic() - started


def _write(out: Path, samples: Sequence[Sample], line: str, **more: object) -> None:
    head = {
        "command": " ".join(["python -m tests.soak.endurance", *sys.argv[1:]]),
        "finished_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "device": processor(),
        "versions": versions(),
        "commit": commit(),
        "verdict": line,
        **more,
    }
    rows = ",\n".join("  " + json.dumps(asdict(sample)) for sample in samples)
    text = json.dumps(head, indent=1)[:-2] + f',\n "samples": [\n{rows}\n ]\n}}\n'
    out.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(out, text)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.soak.endurance", description=__doc__)
    parser.add_argument("--episodes", type=int, default=2000)
    parser.add_argument("--every", type=int, default=20, help="episodes between two samples")
    parser.add_argument(
        "--settled", type=int, default=SETTLED, help="episodes before which growth does not count"
    )
    parser.add_argument("--out", type=Path, required=True, help="result file, JSON")
    chosen = parser.parse_args(arguments)
    return 0 if watch(chosen.episodes, chosen.every, chosen.settled, chosen.out) else 1


if __name__ == "__main__":
    sys.exit(main())
