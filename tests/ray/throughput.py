"""Episodes per second on a Ray cluster of local nodes against one local run with as many workers.

    python -m tests.ray.throughput --pairs 3 --episodes 40 --out runs/ray.jsonl

Both run the same episodes of vwa75 under the model `solution`, in turns. The cluster has two nodes
with one worker each, the local run has two workers. The rate counts from the first row to the last:
starting Ray, its actors and the workers is reported apart. Two nodes on one machine share its
processors, so this measures what Ray costs, not what a second machine brings.
"""

import argparse
import os
import shlex
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from agentkv.files import append_line, json_line
from agentkv_tasks.provenance import commit, processor, versions
from tests.ray.conftest import local_cluster
from tests.tasks.runs import complete_rows, start

NODES = 2
_POLL_S = 0.05
_LONGEST_S = 900.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One run."""

    executor: str
    pair: int
    episodes: int
    nodes: int
    workers: int
    """Workers on all nodes."""
    start_s: float
    """Seconds from the command to the first row."""
    seconds: float
    """Seconds from the first row to the last."""
    episodes_per_s: float
    load: float
    """Load average of the last minute at the end; the processors also did other work if it is
    beyond what the workers and browsers take."""
    settings: dict[str, object]
    versions: dict[str, str] = field(default_factory=dict)
    device: str = ""
    commit: str = ""
    command: str = ""
    finished_at: str = ""
    schema: int = 1


def measure(executor: str, address: str, pair: int, episodes: int, command: str) -> Measured:
    """Run the episodes and time them.

    Raises:
        RuntimeError: the run failed, or took too long.
    """
    import ray

    options = ["--tasks", "vwa75", "--model", "solution", "--limit", str(episodes)]
    workers = NODES
    if executor == "ray":
        workers = 1
        options += ["--executor", "ray", "--ray-address", address]
    options += ["--workers", str(workers)]
    with tempfile.TemporaryDirectory() as name:
        out = Path(name) / "out"
        began = time.monotonic()
        process = start(out, *options)
        first = last = 0.0
        seen = 0
        try:
            while seen < episodes:
                path = out / "results.jsonl"
                lines = path.read_bytes().count(b"\n") if path.exists() else 0
                now = time.monotonic()
                if lines and not seen:
                    first, num_first = now, lines
                if lines > seen:
                    last, seen = now, lines
                if process.poll() is not None and lines < episodes or now - began > _LONGEST_S:
                    raise RuntimeError(f"{executor}: {seen} of {episodes} rows came")
                time.sleep(_POLL_S)
        except BaseException:
            process.kill()
            raise
        process.communicate(timeout=120)
        bad = [row for row in complete_rows(out) if not row.success or row.attempts]
    if process.returncode or bad:
        raise RuntimeError(f"{executor}: exit code {process.returncode}, {len(bad)} failures")
    return Measured(
        executor=executor,
        pair=pair,
        episodes=episodes,
        nodes=NODES if executor == "ray" else 1,
        workers=NODES,
        start_s=round(first - began, 3),
        seconds=round(last - first, 3),
        episodes_per_s=round((episodes - num_first) / (last - first), 4),
        load=round(os.getloadavg()[0], 2),
        settings={"tasks": "vwa75", "model": "solution", "limit": episodes},
        versions=versions(ray=ray.__version__),
        device=processor(),
        commit=commit(),
        command=command,
        finished_at=datetime.now(UTC).isoformat(timespec="seconds"),
    )


def verdict(rows: Sequence[Measured]) -> str:
    """Return the median ratio of Ray's rate to the local one over the pairs, and its spread."""
    rates = {(row.pair, row.executor): row.episodes_per_s for row in rows}
    pairs = sorted({row.pair for row in rows})
    ratios = [rates[pair, "ray"] / rates[pair, "local"] for pair in pairs]
    starts = {
        name: statistics.median(row.start_s for row in rows if row.executor == name)
        for name in ("local", "ray")
    }
    return (
        f"Ray / local: median {statistics.median(ratios):.2f} of {len(ratios)} pairs, "
        f"{min(ratios):.2f} to {max(ratios):.2f}; first row after {starts['ray']:.1f} s with Ray, "
        f"{starts['local']:.1f} s without"
    )


def main() -> None:
    """Measure and write a row for every run."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--episodes", type=int, default=40)
    parser.add_argument("--out", type=Path, default=Path("runs/ray.jsonl"))
    chosen = parser.parse_args()
    command = shlex.join(["python", "-m", "tests.ray.throughput", *sys.argv[1:]])
    rows: list[Measured] = []
    with local_cluster(NODES) as cluster:
        for pair in range(chosen.pairs):
            # each goes first as often as the other
            for executor in ("local", "ray") if pair % 2 == 0 else ("ray", "local"):
                row = measure(executor, cluster.address, pair, chosen.episodes, command)
                append_line(chosen.out, json_line(asdict(row)), fresh=not rows)
                rows.append(row)
                print(f"{executor}: {row.episodes_per_s:.3f} episodes/s", flush=True)
    print(verdict(rows))


if __name__ == "__main__":
    main()
