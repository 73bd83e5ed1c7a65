"""The walk-through of `docs/own-sites.md` does what the page says."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from agentkv_tasks.own_sites.schema import Account, Login, OwnSite

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/own-sites.md").read_text(encoding="utf-8")
SECTION = PAGE.partition("## A site from a package")[2].partition("\n## ")[0]
PASSWORD = "quiet-otter-12"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The three files of the walk-through."""
    for name, language in (
        ("serve.py", "python"),
        ("roundup.toml", "toml"),
        ("tasks.json", "json"),
    ):
        (block,) = re.findall(rf"```{language}\n(.*?)```", SECTION, re.S)
        (tmp_path / name).write_text(block)
    return tmp_path


def agentkv(folder: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    rooms = os.pathsep.join(str(ROOT / room) for room in (".", "env", "kernels", "tasks"))
    return subprocess.run(
        [sys.executable, "-m", "agentkv", *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": rooms, "ROUNDUP_PASSWORD": PASSWORD, "COLUMNS": "200"},
        capture_output=True,
        text=True,
    )


@pytest.mark.browser
def test_the_check_prints_what_the_page_shows(folder: Path) -> None:
    done = agentkv(folder, "tasks", "check", "roundup.toml")
    (expected,) = re.findall(r"```text\n(.*?)```", SECTION, re.S)
    assert done.stdout == expected, done.stderr
    assert done.returncode == 0


@pytest.mark.browser
def test_the_tasks_run_and_write_no_password(folder: Path) -> None:
    done = agentkv(folder, "run", "--tasks", "roundup.toml", "--model", "solution", "--out", "out")
    assert "2/2" in done.stdout, done.stdout + done.stderr
    files = [path for path in (folder / "out").rglob("*") if path.is_file()]
    assert [path for path in files if PASSWORD.encode() in path.read_bytes()] == []


def test_the_page_names_every_key_of_the_file() -> None:
    keys = {key for schema in (OwnSite, Login, Account) for key in schema.model_fields}
    assert [key for key in keys if f"`{key}`" not in PAGE and f".{key}" not in PAGE] == []
