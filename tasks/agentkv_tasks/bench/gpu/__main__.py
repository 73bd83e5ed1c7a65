"""`make gpu`, or `python -m agentkv_tasks.bench.gpu`: the tests, measurements and tasks that need a
CUDA device, each with a time limit; nine minutes in all.

What cannot run on this machine is skipped aloud. Results go to a folder named by device and date.
Without a device the kernels are tried in Triton's interpreter and built by its compiler instead,
and nothing is kept. Exit status: 0 if every part that ran passed, 1 if one failed or none could
run, 130 if a person interrupted it.

Imports the standard library alone, because any package may be missing here.
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

from agentkv_tasks.bench.gpu.machine import Machine, look
from agentkv_tasks.bench.gpu.parts import Part, Skip, notes, plan
from agentkv_tasks.bench.gpu.results import folder_name, gather, page, unused
from agentkv_tasks.bench.gpu.run import TOTAL_S, Outcome, run_all
from agentkv_tasks.provenance import commit, processor

ROOT = Path(__file__).resolve().parents[4]
RESULTS = Path("tasks/results")
SHOWN = 15
"""Last lines of the output of a part that failed, for the terminal."""


def main(arguments: list[str] | None = None) -> int:
    """Returns the exit status."""
    began = time.monotonic()
    parser = argparse.ArgumentParser(
        prog="python -m agentkv_tasks.bench.gpu",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "parts", nargs="*", metavar="PART", help="only these, such as 'speed nano'; all if none"
    )
    parser.add_argument(
        "--seconds", type=float, default=TOTAL_S, help="for everything (default: %(default)g)"
    )
    parser.add_argument(
        "--out", type=Path, default=RESULTS, help="where the folder goes (default: %(default)s)"
    )
    chosen = parser.parse_args(arguments)
    # a part is in a session of its own, which a signal to this one alone would leave running
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
    parts: Sequence[Part],
    skips: Sequence[Skip],
    *,
    folder: Path,
    began: float,
    total_s: float,
) -> int:
    """Run the parts, tell a person of each, and write the page of results where there is a device.

    Args:
        folder: for logs and results.
        began: since when `total_s` counts; monotonic seconds.

    Returns:
        The exit status.
    """
    _introduce(machine, skips)
    outcomes: list[Outcome] = []
    for outcome in run_all(parts, root=ROOT, logs=folder, ends_at=began + total_s, begin=_announce):
        outcomes.append(outcome)
        _report(outcome)
        if machine.device is not None:
            # after every part: whoever ends this process from outside leaves what there is
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
    said = [f"{number} {ending}" for ending, number in endings.items()]
    said += [f"{len(skips)} skipped"] * bool(skips)
    print(f"{', '.join(said) or 'nothing to do'}, in {time.monotonic() - began:.0f} s")
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
    """As commands that run in the source tree are given it."""
    return path.relative_to(ROOT) if path.is_relative_to(ROOT) else path


def _introduce(machine: Machine, skips: Sequence[Skip]) -> None:
    device = machine.device
    if device is None:
        print(f"no CUDA device: {machine.no_device}")
        print("the kernels are tried in Triton's interpreter and built by its compiler instead")
    else:
        print(f"{device.name}, {device.memory_bytes / 2**30:.0f} GiB, CUDA {device.cuda}")
    for skip in skips:
        print(f"skipped: {skip.name}: {skip.reason}")
    for note in notes(machine):
        print(f"note: {note}")
    sys.stdout.flush()


def _announce(part: Part, limit_s: float) -> None:
    print(f"{part.name}: at most {limit_s:.0f} s: {part.shown}", flush=True)


def _report(outcome: Outcome) -> None:
    detail = f": {outcome.detail}" if outcome.detail else ""
    print(f"  {outcome.ending} after {outcome.seconds:.0f} s{detail}", flush=True)
    if outcome.ending != "passed":
        lines = outcome.log.read_text(encoding="utf-8", errors="replace").splitlines()
        print("\n".join(f"    {line}" for line in lines[-SHOWN:]), flush=True)


if __name__ == "__main__":
    sys.exit(main())
