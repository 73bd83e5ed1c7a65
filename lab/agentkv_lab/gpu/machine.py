"""The machine of `make gpu`: its packages, device and browser.

This module imports only the standard library, because any package may be missing on the machine.
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
    "xdist": "pytest-xdist",
    "llguidance": "llguidance",
    "playwright": "playwright",
    "pytesseract": "pytesseract",
    "PIL": "pillow",
    "starlette": "starlette",
    "uvicorn": "uvicorn",
    "jinja2": "jinja2",
}
"""Packages that parts need: import name to distribution name."""

BROWSERS = ("chromium-headless-shell", "chromium")
"""Executables that a run tries after $AGENTKV_BROWSER (`agentkv_env.browser`)."""

ASK_S = 90.0
"""Time limit of the query of torch, in seconds; the first import from a cold disk is slow."""

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
    """The first CUDA device; a test computation on it succeeded."""

    name: str
    memory_bytes: int
    units: int
    """Number of multiprocessors."""
    capability: tuple[int, int]
    cuda: str
    """CUDA version of the torch build."""
    driver: str
    """Driver version from nvidia-smi; empty if unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """Everything that the plan of the parts depends on."""

    versions: Mapping[str, str]
    """Versions of the installed packages by import name."""
    device: Device | None
    no_device: str = ""
    """Reason why there is no device."""
    browser: str | None
    """Path of the browser that a run would use; None without a browser."""
    cores: int
    python: str


def look() -> Machine:
    """Examine this machine. It takes seconds: torch runs in its own process, so that its crash or
    hang has no effect here."""
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
    """Return the versions of the installed packages of `DISTRIBUTIONS`, without importing them."""
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
    """Return the device, or None and the reason."""
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
        lines = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
        return None, f"{torch} fails: {lines[-1]}"
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
