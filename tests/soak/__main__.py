"""Run all cases of hostile input: `make soak`, or `python -m tests.soak PART ... --out FILE`.

The test suite runs a fixed sample of these cases. The result file has
one entry per part with its counts, and lists every broken or unproven case.
"""

import argparse
import importlib
import json
import platform
import sys
import time
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from agentkv_tasks.provenance import commit, processor, versions
from tests.soak.part import Part

MODULES = (
    "fence",
    "pages",
    "actions",
    "commands",
    "task_files",
    "model_folders",
    "toml_files",
)
"""Modules of this folder with a `PART`, in the order of the run."""

SHOWN = 20
"""Number of broken cases printed during the run; the file has all of them."""


def run(part: Part) -> dict[str, Any]:
    """Run all cases of `part`, showing progress; return its entry of the result file."""
    started = time.monotonic()
    counts: Counter[str] = Counter()
    notable: dict[str, list[dict[str, str]]] = {"broken": [], "unproven": []}
    for verdict in part.run():
        counts[verdict.outcome] += 1
        if verdict.outcome != "held":
            notable[verdict.outcome].append({"case": verdict.case, "detail": verdict.detail})
        if verdict.outcome == "broken" and counts["broken"] <= SHOWN:
            print(f"\n  broken: {verdict.case}: {verdict.detail[:200]!r}", flush=True)
        if sum(counts.values()) % 50 == 0:
            print(f"\r{part.name}: {sum(counts.values())} cases", end="", flush=True)
    seconds = time.monotonic() - started
    print(f"\r{part.name}: {counts['held']} of {sum(counts.values())} held, {seconds:.0f} s")
    return {
        "about": part.about,
        "cases": sum(counts.values()),
        "held": counts["held"],
        **notable,
        "seconds": round(seconds, 1),
    }


def main(arguments: list[str] | None = None) -> int:
    parts = {name: f"tests.soak.{name}" for name in MODULES}
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(parts)}")
    parser.add_argument("--out", type=Path, help="result file, JSON; none is written without it")
    chosen = parser.parse_args(arguments)
    unknown = sorted(set(chosen.parts) - set(parts))
    if unknown:
        parser.error(f"no part {', '.join(unknown)}; known: {', '.join(parts)}")
    found = {
        name: run(importlib.import_module(parts[name]).PART)
        for name in parts
        if name in (chosen.parts or parts)
    }
    if chosen.out is not None:
        head = {
            "command": " ".join(["python -m tests.soak", *chosen.parts]),
            "finished_at": datetime.now(UTC).isoformat(timespec="seconds"),
            "device": processor(),
            "python": platform.python_version(),
            "versions": versions(),
            "commit": commit(),
        }
        chosen.out.parent.mkdir(parents=True, exist_ok=True)
        chosen.out.write_text(json.dumps({**head, "parts": found}, indent=1) + "\n")
    return 1 if any(part["broken"] for part in found.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
