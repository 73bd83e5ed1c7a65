"""What a wheel holds: the packages with all files that they read, and nothing of the laboratory.

hatchling packs the files of the packages that git does not ignore.
"""

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "lab/results/make-run_cpu-2-cores_2026-11-27"
IN_WHEEL = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]
USE = """
import sys, urllib.request
from agentkv_tasks.cli.app import cli
from agentkv_env.sites.server import Server
from agentkv_env.sites.world import World

opened = []
sys.addaudithook(lambda event, given: opened.append(str(given[0])) if event == "open" else None)
for suite in ("vwa75", "vwa-long", "vwa-unseen", "vwa-horizon"):
    cli(["tasks", "list", suite], standalone_mode=False)
for command in (["tasks", "new", "mine"], ["plan", "nano"], ["policies"], ["report", "kept"]):
    cli(command, standalone_mode=False)
with Server(World(75)) as server:
    for site, origin in server.origins.items():
        there = {"Host": f"{site}.localhost:{server.port}"}
        local = f"http://127.0.0.1:{server.port}/"
        assert urllib.request.urlopen(urllib.request.Request(local, headers=there)).status == 200
modules = [found for each in sys.modules.values() if (found := getattr(each, "__file__", None))]
print(*opened, *modules, sep="\\n", file=sys.stderr)
"""


def packed() -> set[Path]:
    """The files of the packages that git does not ignore, relative to the source tree."""
    done = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", *packages()],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return {Path(name) for name in done.stdout.splitlines()}


def packages() -> list[str]:
    found: list[str] = IN_WHEEL["wheel"]["packages"]
    return found


def test_the_wheel_holds_the_four_packages_whole_and_no_laboratory() -> None:
    assert set(IN_WHEEL["wheel"]) == {"packages", "dev-mode-dirs"}, "nothing is added or left out"
    names = {Path(package).name for package in packages()}
    assert names == {"agentkv", "agentkv_env", "agentkv_kernels", "agentkv_tasks"}
    assert not [path for path in packed() if path.suffix == ".xz" or "results" in path.parts]
    for package in packages():
        files = {path for path in (ROOT / package).rglob("*") if path.is_file()}
        needed = {path.relative_to(ROOT) for path in files if "__pycache__" not in path.parts}
        assert needed <= packed()


@pytest.mark.slow
def test_the_packages_of_the_wheel_read_nothing_from_the_source_tree(tmp_path: Path) -> None:
    for path in packed():
        (package,) = (Path(each) for each in packages() if path.is_relative_to(each))
        place = tmp_path / "wheel" / path.relative_to(package.parent)
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / path, place)
    (tmp_path / "kept").mkdir()
    shutil.copy(RESULTS / "results.jsonl.xz", tmp_path / "kept")
    done = subprocess.run(
        [sys.executable, "-P", "-c", USE],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(tmp_path / "wheel")},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "kept/report.html").exists() and (tmp_path / "mine").is_dir()
    paths = [Path(line) for line in done.stderr.splitlines() if line.startswith("/")]
    ours = [path for path in paths if path.is_relative_to(ROOT)]
    assert {path for path in ours if ROOT / ".venv" not in path.parents} == set()
    assert sum(path.is_relative_to(tmp_path / "wheel") for path in paths) > 300
