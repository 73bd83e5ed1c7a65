"""The shop of `docs/own-sites.md`: `examples/shop` does what the page says."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from agentkv_tasks.results import read_rows

pytestmark = pytest.mark.browser

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/own-sites.md").read_text(encoding="utf-8")
SECTION = PAGE.partition("## A shop from a package")[2].partition("\n## ")[0]
POLICIES = "full,streaming-int8,conf-kv-l"
PASSWORD = "quiet-otter-12"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The files of the example, with the environment that `make test-shop` installs."""
    folder = tmp_path / "shop"
    shutil.copytree(ROOT / "examples/shop", folder, ignore=shutil.ignore_patterns(".venv", "runs"))
    (folder / ".venv").symlink_to(ROOT / ".venv-shop")
    return folder


def agentkv(folder: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    rooms = os.pathsep.join(str(ROOT / room) for room in (".", "env", "kernels", "tasks"))
    return subprocess.run(
        [sys.executable, "-m", "agentkv", *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": rooms, "SHOP_PASSWORD": PASSWORD, "COLUMNS": "200"},
        capture_output=True,
        text=True,
    )


def test_the_check_prints_what_the_page_shows(folder: Path) -> None:
    done = agentkv(folder, "tasks", "check", "shop.toml")
    (expected,) = re.findall(r"```text\n(.*?)```", SECTION, re.S)
    assert done.stdout == expected, done.stderr
    assert done.returncode == 0


def test_every_policy_finds_the_shop_as_new_and_no_file_holds_the_password(folder: Path) -> None:
    command = f"run --tasks shop.toml --model solution --policies {POLICIES}"
    assert f"    agentkv {command}\n" in SECTION
    done = agentkv(folder, *command.split(), "--out", "out")
    rows = read_rows(folder / "out/results.jsonl")
    assert len(rows) == 15 and all(row.success for row in rows), done.stdout + done.stderr
    files = [path for path in (folder / "out").rglob("*") if path.is_file()]
    assert [path for path in files if PASSWORD.encode() in path.read_bytes()] == []


def test_a_reset_that_does_nothing_is_found(folder: Path) -> None:
    tasks = json.loads((folder / "tasks.json").read_text())
    (folder / "tasks.json").write_text(json.dumps(tasks[1]))  # two mortars in the cart
    path = folder / "shop.toml"
    path.write_text(path.read_text().replace('{ post = "/reset" }', '["{python}", "-c", "pass"]'))
    done = agentkv(folder, "tasks", "check", "shop.toml")
    assert "task 1 solution          passes in 6 steps" in done.stdout, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1] == (
        "failed  task 1 reset             after the solution: passes for an agent that "
        "stops at once"
    )


def test_the_page_shows_the_site_file() -> None:
    (shown,) = re.findall(r"```toml\n(.*?)```", SECTION, re.S)
    assert shown == (ROOT / "examples/shop/shop.toml").read_text(encoding="utf-8")
