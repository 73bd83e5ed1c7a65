"""What `make gpu` runs on a machine, and what it leaves out there, each with its reason.

Imports the standard library alone, because any package may be missing here.
"""

import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from agentkv_tasks.bench.gpu.machine import DISTRIBUTIONS, Machine

TRITONS = ("3.6.0", "3.7.1")
"""As `agentkv_kernels.device.TRITONS`, which cannot be imported without torch."""
OLDEST_CAPABILITY = (8, 0)
"""As `agentkv_kernels.device.OLDEST_CAPABILITY`."""
TRANSFORMERS = ((4, 57), (6, 0))
"""From the first of these versions on, and before the second; as pyproject.toml has it."""

SHAPES = ("qwen3-0.6b", "llama-3.1-8b")
"""Beside nano: two query heads per KV head, whose products are sums; and four, whose products run
on matrix units, in a model whose 16 GB of weights in 16 bits fit a card of 24 GB."""

NUM_TASKS = 20

INTERPRETER = (
    "tests/kernels/test_triton_interpreted.py",
    "tests/kernels/test_triton_builds.py",
)
"""What shows of the kernels without a device: in Triton's interpreter, and by its compiler."""

BROWSER = "a browser"
"""Among what a part needs, beside packages."""

_CACHE = ("torch", "transformers", "safetensors", "pydantic")
_BENCH = (*_CACHE, "huggingface_hub", "tokenizers", "typer", "rich", "numpy")
_RUN = (*_BENCH, "llguidance", "playwright", "pytesseract", "PIL", "starlette", "uvicorn", "jinja2")


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One command, in a process of its own."""

    name: str
    arguments: tuple[str, ...]
    """Of the Python this runs in."""
    weight: float
    """Its share of the time, beside those of the parts after it: about the seconds it takes."""
    is_test: bool = False
    """Whether the output is pytest's, of which verdicts are counted."""
    out: Path | None = None
    """The file of the rows that it writes, relative to the source tree."""
    kept_as: str = ""
    """What that file is called among the results."""

    @property
    def shown(self) -> str:
        """The command as a person types it."""
        if self.arguments[:2] == ("-m", "agentkv"):
            return shlex.join(["agentkv", *self.arguments[2:]])
        return shlex.join(["python", *self.arguments])


@dataclass(frozen=True, slots=True)
class Skip:
    """A part that cannot run here."""

    name: str
    reason: str


def plan(machine: Machine, root: Path, folder: Path, work: Path) -> tuple[list[Part], list[Skip]]:
    """What to run on a machine, in this order, and what not.

    Args:
        root: the source tree, in which the commands will run.
        folder: for result files, relative to `root`.
        work: for what is too large to keep, such as traces of episodes, relative to `root`.
    """
    parts: list[Part] = []
    skips: list[Skip] = []
    candidates = _on_device(machine, root, folder, work) if machine.device else _interpreted()
    for part, needs in candidates:
        if lacks := [*_missing(machine, part, needs)]:
            skips.append(Skip(part.name, "; ".join(lacks)))
        else:
            parts.append(part)
    return parts, skips


Candidate = tuple[Part, Sequence[str]]
"""A part, and what it needs: packages by import name, and perhaps a browser."""


def _on_device(machine: Machine, root: Path, folder: Path, work: Path) -> Iterator[Candidate]:
    yield (
        _tests("tests", marked_files(root), weight=130, only="gpu"),
        ("pytest", "triton", "numpy", "torch", "transformers"),
    )
    for model, weight in zip(("nano", *SHAPES), (45, 55, 75), strict=True):
        out = folder / f"speed-{model}.jsonl"
        arguments: tuple[str, ...] = (
            *("bench", "speed", *_model(model), "--policies", "full,window,h2o,conf-kv-int8"),
            *("--seen", "512,8192", "--tokens", "32", "--rounds", "3", "--split-rounds", "1"),
            *("--device", "cuda", "--out", str(out)),
        )
        yield _ours(f"speed {model}", arguments, weight=weight, out=out), _BENCH
    for model, weight in zip(("nano", *SHAPES), (45, 50, 60), strict=True):
        out = folder / f"memory-{model}.jsonl"
        arguments = (
            *("bench", "memory", *_model(model), "--policies", "conf-kv-int8"),
            *("--seen", "2048,16384", "--tokens", "32", "--device", "cuda", "--out", str(out)),
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
    """Files with tests marked `gpu`, relative to `root`; found by their text, because others cannot
    even be collected where a package is missing."""
    found = sorted((root / "tests").rglob("test_*.py"))
    return tuple(
        str(path.relative_to(root))
        for path in found
        if re.search(r"^\s*@pytest\.mark\.gpu$", path.read_text(encoding="utf-8"), re.MULTILINE)
    )


def _tests(name: str, files: Sequence[str], *, weight: float, only: str) -> Part:
    # another version of a package may warn of something; here that is no failure
    how = ("-v", "--no-header", "-p", "no:cacheprovider", "-o", "filterwarnings=default")
    arguments = ("-m", "pytest", "-m", only, *how, *files)
    return Part(name=name, arguments=arguments, weight=weight, is_test=True)


def _ours(
    name: str, arguments: Sequence[str], *, weight: float, out: Path, kept_as: str = ""
) -> Part:
    command = ("-m", "agentkv", *arguments)
    return Part(name=name, arguments=command, weight=weight, out=out, kept_as=kept_as or out.name)


def _model(name: str) -> tuple[str, str]:
    return ("--model" if name == "nano" else "--shape"), name


def _missing(machine: Machine, part: Part, needs: Sequence[str]) -> Iterator[str]:
    """Why a part cannot run, in words; nothing if it can."""
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
    """What works less well on this machine than it could, though it runs."""
    lack = _other_triton(machine) or _old_device(machine)
    if machine.device is None or not lack:
        return []
    return [f"speed, memory and tasks run in plain torch, without kernels: {lack}"]


def _other_triton(machine: Machine) -> str:
    """Why Triton does not serve here; empty if it does."""
    found = machine.versions.get("triton")
    if found in TRITONS:
        return ""
    tested = " and ".join(TRITONS)
    if found is None:
        return f"Triton is not installed; the kernels are tested with {tested}"
    return f"Triton {found} is installed; the kernels are tested with {tested}"


def _old_device(machine: Machine) -> str:
    """Why kernels cannot be built for this device; empty if they can, or if there is none."""
    device = machine.device
    if device is None or device.capability >= OLDEST_CAPABILITY:
        return ""
    has, needed = (".".join(map(str, x)) for x in (device.capability, OLDEST_CAPABILITY))
    return f"the device has compute capability {has}; the kernels need {needed}"


def _number(version: str) -> tuple[int, ...]:
    """5.17.0 as (5, 17)."""
    return tuple(int(digits) for digits in re.findall(r"\d+", version)[:2])
