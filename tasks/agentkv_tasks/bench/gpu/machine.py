"""What a machine has that the parts of `make gpu` need.

Imports the standard library alone, because any package may be missing here.
"""

import importlib.metadata
import importlib.util
import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass

DISTRIBUTIONS: Mapping[str, str] = {
    "torch": "torch",
    "triton": "triton",
    "numpy": "numpy",
    "transformers": "transformers",
    "huggingface_hub": "huggingface_hub",
    "safetensors": "safetensors",
    "tokenizers": "tokenizers",
    "pydantic": "pydantic",
    "typer": "typer",
    "rich": "rich",
    "pytest": "pytest",
    "llguidance": "llguidance",
    "playwright": "playwright",
    "pytesseract": "pytesseract",
    "PIL": "pillow",
    "starlette": "starlette",
    "uvicorn": "uvicorn",
    "jinja2": "jinja2",
}
"""Packages that some part needs: the name to import, and the name to install."""

BROWSERS = ("chromium-headless-shell", "chromium")
"""Executables that a run looks for, after $AGENTKV_BROWSER (`agentkv_env.browser`)."""

ASK_S = 90.0
"""Seconds that torch may take to say what it sees; the first import from a cold disk is slow."""

_ASK = """
import json, torch
found = {"built": torch.version.cuda, "seen": torch.cuda.is_available()}
if found["seen"]:
    torch.ones(8, device="cuda").sum().item()
    about = torch.cuda.get_device_properties(0)
    found |= {"name": about.name, "memory": about.total_memory}
    found |= {"units": about.multi_processor_count, "capability": [about.major, about.minor]}
print(json.dumps(found))
"""


@dataclass(frozen=True, slots=True)
class Device:
    """The first CUDA device, on which a sum was computed."""

    name: str
    memory_bytes: int
    units: int
    """Multiprocessors."""
    capability: tuple[int, int]
    cuda: str
    """Version that torch is built for."""
    driver: str
    """Version, as nvidia-smi says it; empty where it does not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What the parts are planned by."""

    versions: Mapping[str, str]
    """By import name, of the packages that are installed."""
    device: Device | None
    no_device: str = ""
    """Why there is none."""
    browser: str | None
    """Path of the browser that a run would use."""
    cores: int
    python: str


def look() -> Machine:
    """The machine this runs on, through the Python this runs in. Takes seconds: torch is started in
    a process of its own, so that a crash or a hang in it ends nothing else."""
    found = versions()
    device, reason = _device(found)
    return Machine(
        versions=found,
        device=device,
        no_device=reason,
        browser=_browser(),
        cores=os.cpu_count() or 1,
        python=platform.python_version(),
    )


def versions() -> dict[str, str]:
    """By import name, the packages of `DISTRIBUTIONS` that are installed; nothing is imported."""
    found = {}
    for name, distribution in DISTRIBUTIONS.items():
        if importlib.util.find_spec(name) is None:
            continue
        try:
            found[name] = importlib.metadata.version(distribution)
        except importlib.metadata.PackageNotFoundError:
            found[name] = "of unknown version"
    return found


def _device(found: Mapping[str, str]) -> tuple[Device | None, str]:
    """The device; or None, and why."""
    if "torch" not in found:
        return None, "torch is not installed"
    torch = f"torch {found['torch']}"
    try:
        done = subprocess.run(
            [sys.executable, "-c", _ASK], capture_output=True, text=True, timeout=ASK_S, check=False
        )
    except subprocess.TimeoutExpired:
        return None, f"{torch} did not answer within {ASK_S:.0f} s"
    if done.returncode:
        said = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
        return None, f"{torch} fails: {said[-1]}"
    answer = json.loads(done.stdout.splitlines()[-1])
    if answer["built"] is None:
        there = "; this machine has an NVIDIA driver: install a build of torch for CUDA"
        return None, f"{torch} is built without CUDA" + there * (
            shutil.which("nvidia-smi") is not None
        )
    if not answer["seen"]:
        return None, f"{torch}, built for CUDA {answer['built']}, sees no device"
    return Device(
        name=answer["name"],
        memory_bytes=answer["memory"],
        units=answer["units"],
        capability=(answer["capability"][0], answer["capability"][1]),
        cuda=answer["built"],
        driver=_driver(),
    ), ""


def _driver() -> str:
    ask = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(ask, capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip().partition("\n")[0] if done.returncode == 0 else ""


def _browser() -> str | None:
    named = os.environ.get("AGENTKV_BROWSER")
    if named:
        return shutil.which(named)
    return next(filter(None, map(shutil.which, BROWSERS)), None)
