"""Provenance of results: versions, commit and machine."""

import importlib.metadata
import platform
import subprocess
from pathlib import Path

_DISTRIBUTIONS = {
    "agentkv": "agentkv-web",
    **{name: name for name in ("torch", "transformers", "tokenizers", "playwright")},
}


def versions(**more: str) -> dict[str, str]:
    """Return the versions of Python and of the packages that results depend on, and `more`."""
    found = {"python": platform.python_version()}
    for package, distribution in _DISTRIBUTIONS.items():
        try:
            found[package] = importlib.metadata.version(distribution)
        except importlib.metadata.PackageNotFoundError:
            continue  # agentkv may run from its source tree
    return {**found, **{name: version for name, version in more.items() if version}}


def commit() -> str:
    """Return the commit of the source tree, with `+` if files have changed; '' outside of git."""
    folder = Path(__file__).parent
    head = _git(folder, "rev-parse", "--short=12", "HEAD")
    if not head:
        return ""
    changed = _git(folder, "status", "--porcelain", "--untracked-files=no")
    return head + ("+" if changed else "")


def processor() -> str:
    """Return the name of the CPU."""
    name = platform.processor() or platform.machine()
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                name = line.partition(":")[2].strip()
                break
    except OSError:
        pass
    return name


def _git(folder: Path, *arguments: str) -> str:
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments],
            capture_output=True,
            text=True,
            timeout=10,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
