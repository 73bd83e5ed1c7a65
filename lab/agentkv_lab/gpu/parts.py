"""The parts of `make gpu`: which ones run on a machine, and why others are skipped.

This module imports only the standard library, because any package may be missing on the machine.
"""

import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from agentkv_lab.gpu.machine import DISTRIBUTIONS, Machine

TRITONS = ("3.6.0", "3.7.1")
"""A copy of `agentkv_kernels.device.TRITONS`, which cannot be imported without torch."""
OLDEST_CAPABILITY = (8, 0)
"""A copy of `agentkv_kernels.device.OLDEST_CAPABILITY`."""
TRANSFORMERS = ((4, 57), (6, 0))
"""First supported and first unsupported version, as in pyproject.toml."""

SHAPES = ("qwen3-0.6b", "llama-3.1-8b")
"""Shapes besides nano: one with two query heads per KV head, whose products are sums, and one with
four, whose products run on matrix units and whose 16 GB of 16-bit weights fit a card of 24 GB."""

POLICIES = "full,window,int8,int4,conf-kv-int8,lookback-int8"
"""Policies whose speed is measured."""

NUM_TASKS = 20

INTERPRETER = (
    "tests/kernels/test_triton_interpreted.py",
    "tests/kernels/test_triton_builds.py",
)
"""Tests of the kernels without a device: Triton's interpreter and compiler."""

BROWSER = "a browser"
"""Requirement of a part besides packages."""

_CACHE = ("torch", "transformers", "safetensors", "pydantic")
_BENCH = (*_CACHE, "huggingface_hub", "tokenizers", "typer", "rich", "numpy")
_RUN = (*_BENCH, "llguidance", "playwright", "pytesseract", "PIL", "starlette", "uvicorn", "jinja2")


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuPart:
    """A command that runs in its own process."""

    name: str
    arguments: tuple[str, ...]
    """Arguments of the current Python."""
    weight: float
    """Weight of the part when the remaining time is divided: about the seconds it takes."""
    is_test: bool = False
    """True if the output is pytest's, so that its verdicts can be counted."""
    out: Path | None = None
    """File of its rows, relative to the source tree."""
    kept_as: str = ""
    """Name of that file in the results."""

    @property
    def shown(self) -> str:
        """The command as a user types it."""
        if self.arguments[:2] == ("-m", "agentkv"):
            return shlex.join(["agentkv", *self.arguments[2:]])
        return shlex.join(["python", *self.arguments])


@dataclass(frozen=True, slots=True)
class Skip:
    """A part that cannot run here."""

    name: str
    reason: str


def plan(
    machine: Machine, root: Path, folder: Path, work: Path
) -> tuple[list[GpuPart], list[Skip]]:
    """Return the parts to run on a machine, in order, and the skipped parts.

    Args:
        root: source tree in which the commands run.
        folder: folder of the results, relative to `root`.
        work: folder of large temporary files such as traces, relative to `root`.
    """
    parts: list[GpuPart] = []
    skips: list[Skip] = []
    candidates = _on_device(machine, root, folder, work) if machine.device else _interpreted()
    for part, needs in candidates:
        if lacks := [*_missing(machine, part, needs)]:
            skips.append(Skip(part.name, "; ".join(lacks)))
        else:
            parts.append(part)
    return parts, skips


Candidate = tuple[GpuPart, Sequence[str]]
"""A part and its requirements: packages by import name, and `BROWSER`."""


def _on_device(machine: Machine, root: Path, folder: Path, work: Path) -> Iterator[Candidate]:
    yield (
        _tests("tests", marked_files(root), weight=110, only="gpu", workers=_test_workers(machine)),
        ("pytest", "triton", "numpy", "torch", "transformers"),
    )
    for model, weight in zip(("nano", *SHAPES), (100, 100, 120), strict=True):
        out = folder / f"speed-{model}.jsonl"
        arguments: tuple[str, ...] = (
            *("bench", "speed", *_model(model), "--policies", POLICIES),
            *("--against", "static,hqq int4,hqq int8", "--seen", "512,8192", "--page", "306"),
            *("--tokens", "32", "--rounds", "3", "--split-rounds", "0"),
            *("--device", "cuda", "--out", str(out)),
        )
        yield _ours(f"speed {model}", arguments, weight=weight, out=out), _BENCH
    for model, weight in zip(("nano", *SHAPES), (50, 55, 65), strict=True):
        out = folder / f"memory-{model}.jsonl"
        arguments = (
            *("bench", "memory", *_model(model), "--policies", "full,lookback-int8"),
            *("--seen", "16384", "--tokens", "32", "--device", "cuda", "--out", str(out)),
        )
        yield _ours(f"memory {model}", arguments, weight=weight, out=out), _BENCH
    arguments = (
        *("run", "--tasks", "vwa75", "--limit", str(NUM_TASKS), "--device", "cuda"),
        *("--workers", str(max(1, min(6, machine.cores // 2)))),
        *("--no-screenshots", "--out", str(work / "vwa75")),
    )
    out = work / "vwa75" / "results.jsonl"
    part = _ours("tasks", arguments, weight=80, out=out, kept_as="vwa75.jsonl")
    yield part, (*_RUN, BROWSER)


def _interpreted() -> Iterator[Candidate]:
    needs = ("pytest", "triton", "numpy", *_CACHE)
    yield _tests("interpreter", INTERPRETER, weight=1, only="not gpu"), needs


def marked_files(root: Path) -> tuple[str, ...]:
    """Return the files with tests marked `gpu`, relative to `root`.

    A text search finds them, because other files cannot even be collected if a package is missing.
    """
    found = sorted((root / "tests").rglob("test_*.py"))
    return tuple(
        str(path.relative_to(root))
        for path in found
        if re.search(r"^\s*@pytest\.mark\.gpu$", path.read_text(encoding="utf-8"), re.MULTILINE)
    )


def _tests(
    name: str, files: Sequence[str], *, weight: float, only: str, workers: int = 0
) -> GpuPart:
    # another version of a package may warn, which is no failure here
    how = ["-v", "--no-header", "-p", "no:cacheprovider", "-o", "filterwarnings=default"]
    if workers:
        how += ["-n", str(workers)]
    arguments = ("-m", "pytest", "-m", only, *how, *files)
    return GpuPart(name=name, arguments=arguments, weight=weight, is_test=True)


def _test_workers(machine: Machine) -> int:
    """Return how many processes share the tests, most of which wait for Triton's compiler."""
    return min(8, machine.cores // 2) if "xdist" in machine.versions else 0


def _ours(
    name: str, arguments: Sequence[str], *, weight: float, out: Path, kept_as: str = ""
) -> GpuPart:
    command = ("-m", "agentkv", *arguments)
    return GpuPart(
        name=name, arguments=command, weight=weight, out=out, kept_as=kept_as or out.name
    )


def _model(name: str) -> tuple[str, str]:
    return ("--model" if name == "nano" else "--shape"), name


def _missing(machine: Machine, part: GpuPart, needs: Sequence[str]) -> Iterator[str]:
    """Yield the reasons why a part cannot run."""
    packages = [name for name in needs if name in DISTRIBUTIONS]
    absent = [DISTRIBUTIONS[name] for name in packages if name not in machine.versions]
    if absent:
        yield f"not installed: {', '.join(absent)}"
    if "triton" in packages and "triton" in machine.versions and (lack := _other_triton(machine)):
        yield lack
    found = machine.versions.get("transformers")
    if "transformers" in packages and found is not None:
        first, end = TRANSFORMERS
        if not first <= _number(found) < end:
            span = f"from {first[0]}.{first[1]} to below {end[0]}"
            yield f"transformers {found} is installed, {span} is needed"
    if part.name == "tests" and (lack := _old_device(machine)):
        yield lack
    if BROWSER in needs and machine.browser is None:
        yield "no browser: neither $AGENTKV_BROWSER nor chromium-headless-shell nor chromium"


def notes(machine: Machine) -> list[str]:
    """Return what runs on this machine in a degraded way, with the reason."""
    lack = _other_triton(machine) or _old_device(machine)
    if machine.device is None or not lack:
        return []
    return [f"speed, memory and tasks run in plain torch, without kernels: {lack}"]


def _other_triton(machine: Machine) -> str:
    """Return why Triton cannot be used; empty if it can."""
    found = machine.versions.get("triton")
    if found in TRITONS:
        return ""
    tested = " and ".join(TRITONS)
    if found is None:
        return f"Triton is not installed; the kernels are tested with {tested}"
    return f"Triton {found} is installed; the kernels are tested with {tested}"


def _old_device(machine: Machine) -> str:
    """Return why kernels cannot be built for the device; empty if they can, or without a device."""
    device = machine.device
    if device is None or device.capability >= OLDEST_CAPABILITY:
        return ""
    has, needed = (".".join(map(str, x)) for x in (device.capability, OLDEST_CAPABILITY))
    return f"the device has compute capability {has}; the kernels need {needed}"


def _number(version: str) -> tuple[int, ...]:
    """Return the first two numbers of a version: (5, 17) for 5.17.0."""
    return tuple(int(digits) for digits in re.findall(r"\d+", version)[:2])
