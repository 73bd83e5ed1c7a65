"""The results folder of `make gpu`: its name, its files and its page.

This module imports only the standard library, because any package may be missing on the machine.
"""

import re
import shutil
from collections.abc import Sequence
from pathlib import Path

from agentkv_lab.gpu.machine import DISTRIBUTIONS, Machine
from agentkv_lab.gpu.parts import Skip, notes
from agentkv_lab.gpu.run import PartOutcome


def folder_name(device: str, date: str) -> str:
    """Return a folder name such as gpu_nvidia-h200_2026-11-23."""
    slug = re.sub(r"[^a-z0-9]+", "-", device.lower()).strip("-")
    return f"gpu_{slug or 'device'}_{date}"


def unused(parent: Path, name: str) -> Path:
    """Return `parent / name`, with the first free number from 2 on if the folder exists."""
    number, path = 2, parent / name
    while path.exists():
        number, path = number + 1, parent / f"{name}-{number}"
    return path


def gather(outcomes: Sequence[PartOutcome], root: Path, folder: Path) -> None:
    """Copy rows that were written elsewhere into the results folder."""
    for part in (outcome.part for outcome in outcomes):
        if part.out is None or not (root / part.out).exists():
            continue
        if (root / part.out).resolve() != (folder / part.kept_as).resolve():
            shutil.copyfile(root / part.out, folder / part.kept_as)


def page(
    machine: Machine,
    outcomes: Sequence[PartOutcome],
    skips: Sequence[Skip],
    *,
    date: str,
    commit: str,
    processor: str,
    total_s: float,
) -> str:
    """Return the README.md of the folder."""
    device = machine.device
    assert device is not None, "results are kept only with a device"
    seconds = sum(outcome.seconds for outcome in outcomes)
    lines = [
        f"# {device.name}, {date}: `make gpu`",
        "",
        f"{len(outcomes)} parts ran, in {seconds:.0f} of {total_s:.0f} seconds, and {len(skips)} "
        "were skipped. Each part ran in its own process; its output is in a `.log` file beside "
        "its rows. A part that ran out of time was interrupted and kept its finished rows.",
        "",
        "| part | ending | seconds | limit | | rows | command |",
        "|---|---|---|---|---|---|---|",
    ]
    for outcome in outcomes:
        part = outcome.part
        rows = f"`{part.kept_as}`" if part.kept_as else ""
        lines.append(
            f"| {part.name} | {outcome.ending} | {outcome.seconds:.0f} | {outcome.limit_s:.0f} "
            f"| {_cell(outcome.detail)} | {rows} | `{_cell(part.shown)}` |"
        )
    lines += ["", "## Skipped", ""]
    lines += [f"* {skip.name}: {skip.reason}" for skip in skips] or ["Nothing."]
    lines += [f"* {note}" for note in notes(machine)]
    notable = [line for outcome in outcomes for line in outcome.notable]
    if notable:
        lines += ["", "## Tests that failed or were skipped", "", "```", *notable, "```"]
    capability = ".".join(map(str, device.capability))
    memory = f"{device.memory_bytes / 2**30:.1f} GiB"
    installed = [f"{DISTRIBUTIONS[name]} {found}" for name, found in machine.versions.items()]
    lines += [
        "",
        "## Machine",
        "",
        f"{device.name}: compute capability {capability}, {device.units} multiprocessors, "
        f"{memory}; driver {device.driver or 'of unknown version'}, CUDA {device.cuda}. "
        f"{processor}, {machine.cores} cores. Commit {commit or 'unknown'}. "
        f"Python {machine.python}; {', '.join(installed)}.",
    ]
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
