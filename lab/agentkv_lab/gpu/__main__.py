"""`make gpu`, or `python -m agentkv_lab gpu`: run the tests, benchmarks and tasks that need
a CUDA device, within twelve minutes.

Parts that cannot run on this machine are skipped with the reason. Results go to a folder named by
device and date. Without a device, Triton's interpreter runs the kernels, its compiler builds them,
and nothing is kept. Exit status: 0 if every part that ran passed, 1 if a part failed or none could
run, 130 after an interrupt.

This module imports only the standard library, because any package may be missing on the machine.
"""

import argparse
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType

from agentkv_lab.gpu.machine import Machine, look
from agentkv_lab.gpu.parts import GpuPart, Skip, notes, plan
from agentkv_lab.gpu.results import folder_name, gather, page, unused
from agentkv_lab.gpu.run import TOTAL_S, PartOutcome, run_all
from agentkv_tasks.provenance import commit, processor

ROOT = Path(__file__).resolve().parents[3]
RESULTS = Path("lab/results")
SHOWN = 15
"""Last lines of a failed part's output that the terminal shows."""


def main(arguments: list[str] | None = None) -> int:
    """Run the command line and return the exit status."""
    began = time.monotonic()
    parser = argparse.ArgumentParser(
        prog="python -m agentkv_lab gpu",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "parts", nargs="*", metavar="PART", help="parts to run, such as 'speed nano' (default: all)"
    )
    parser.add_argument(
        "--seconds", type=float, default=TOTAL_S, help="total time limit (default: %(default)g)"
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=RESULTS,
        help="parent of the results folder (default: %(default)s)",
    )
    chosen = parser.parse_args(arguments)
    # a part has its own session, which a signal to this process alone would leave running
    signal.signal(signal.SIGTERM, _interrupt)
    machine = look()
    with tempfile.TemporaryDirectory() as scratch:
        folder = _folder(machine, ROOT / chosen.out) or Path(scratch)
        parts, skips = plan(machine, ROOT, _from_root(folder), Path("runs") / folder.name)
        known = [part.name for part in parts] + [skip.name for skip in skips]
        if unknown := [name for name in chosen.parts if name not in known]:
            parser.error(f"no part {', '.join(unknown)}; known here: {', '.join(known)}")
        wanted = chosen.parts or known
        return run_parts(
            machine,
            [part for part in parts if part.name in wanted],
            [skip for skip in skips if skip.name in wanted],
            folder=folder,
            began=began,
            total_s=chosen.seconds,
        )


def run_parts(
    machine: Machine,
    parts: Sequence[GpuPart],
    skips: Sequence[Skip],
    *,
    folder: Path,
    began: float,
    total_s: float,
) -> int:
    """Run the parts, print their outcomes, and write the page of results if there is a device.

    Args:
        folder: folder of logs and results.
        began: start of `total_s`, in monotonic seconds.

    Returns:
        The exit status.
    """
    _introduce(machine, skips)
    outcomes: list[PartOutcome] = []
    for outcome in run_all(parts, root=ROOT, logs=folder, ends_at=began + total_s, begin=_announce):
        outcomes.append(outcome)
        _report(outcome)
        if machine.device is not None:
            # after every part, so that a killed process leaves its results so far
            gather(outcomes, ROOT, folder)
            text = page(
                machine,
                outcomes,
                skips,
                date=_today(),
                commit=commit(),
                processor=processor(),
                total_s=total_s,
            )
            (folder / "README.md").write_text(text, encoding="utf-8")
    endings = Counter(outcome.ending for outcome in outcomes)
    counts = [f"{number} {ending}" for ending, number in endings.items()]
    counts += [f"{len(skips)} skipped"] * bool(skips)
    print(f"{', '.join(counts) or 'nothing to do'}, in {time.monotonic() - began:.0f} s")
    if machine.device is not None and outcomes:
        print(f"results: {_from_root(folder)}")
    if endings["interrupted"]:
        return 130
    return 0 if outcomes and endings["passed"] == len(outcomes) else 1


def _folder(machine: Machine, parent: Path) -> Path | None:
    if machine.device is None:
        return None
    return unused(parent, folder_name(machine.device.name, _today()))


def _today() -> str:
    return datetime.now(UTC).date().isoformat()


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _from_root(path: Path) -> Path:
    """Return `path` relative to the source tree, if it is inside."""
    return path.relative_to(ROOT) if path.is_relative_to(ROOT) else path


def _introduce(machine: Machine, skips: Sequence[Skip]) -> None:
    device = machine.device
    if device is None:
        print(f"no CUDA device: {machine.no_device}")
        print("Triton's interpreter runs the kernels and its compiler builds them instead")
    else:
        print(f"{device.name}, {device.memory_bytes / 2**30:.0f} GiB, CUDA {device.cuda}")
    for skip in skips:
        print(f"skipped: {skip.name}: {skip.reason}")
    for note in notes(machine):
        print(f"note: {note}")
    sys.stdout.flush()


def _announce(part: GpuPart, limit_s: float) -> None:
    print(f"{part.name}: at most {limit_s:.0f} s: {part.shown}", flush=True)


def _report(outcome: PartOutcome) -> None:
    detail = f": {outcome.detail}" if outcome.detail else ""
    print(f"  {outcome.ending} after {outcome.seconds:.0f} s{detail}", flush=True)
    if outcome.ending != "passed":
        lines = outcome.log.read_text(encoding="utf-8", errors="replace").splitlines()
        print("\n".join(f"    {line}" for line in lines[-SHOWN:]), flush=True)


if __name__ == "__main__":
    sys.exit(main())
