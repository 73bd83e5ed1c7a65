"""The walk-through of `docs/own-sites.md` does what the page says."""

import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from agentkv_tasks.cli.app import cli
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


@pytest.fixture
def agentkv(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """Runs a command in that folder."""
    rooms = os.pathsep.join(str(ROOT / room) for room in (".", "env", "kernels", "tasks"))
    monkeypatch.chdir(folder)
    for name, value in (
        ("PYTHONPATH", rooms),
        ("ROUNDUP_PASSWORD", PASSWORD),
        ("COLUMNS", "200"),
    ):
        monkeypatch.setenv(name, value)
    return lambda *arguments: CliRunner().invoke(cli, arguments)


@pytest.mark.slow  # tests/tasks/test_own_sites.py checks and plays a site that starts at once
@pytest.mark.browser
def test_the_check_prints_what_the_page_shows(agentkv: Callable[..., Result]) -> None:
    done = agentkv("tasks", "check", "roundup.toml")
    (expected,) = re.findall(r"```text\n(.*?)```", SECTION, re.S)
    assert done.stdout == expected, done.stderr
    assert done.exit_code == 0


@pytest.mark.slow  # tests/tasks/test_own_sites.py checks and plays a site that starts at once
@pytest.mark.browser
def test_the_tasks_run_and_write_no_password(folder: Path, agentkv: Callable[..., Result]) -> None:
    done = agentkv("run", "--tasks", "roundup.toml", "--model", "solution", "--out", "out")
    assert "2/2" in done.stdout, done.stdout + done.stderr
    files = [path for path in (folder / "out").rglob("*") if path.is_file()]
    assert [path for path in files if PASSWORD.encode() in path.read_bytes()] == []


def test_the_page_names_every_key_of_the_file() -> None:
    keys = {key for schema in (OwnSite, Login, Account) for key in schema.model_fields}
    assert [key for key in keys if f"`{key}`" not in PAGE and f".{key}" not in PAGE] == []
