"""The README's commands are what the command line takes, and the first ones run as typed."""

import re
import shlex
import subprocess
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from agentkv_tasks.cli.app import cli
from tests.docs.first_hour import NEEDS_MODEL, ROOT, commands, is_run

README = (ROOT / "README.md").read_text(encoding="utf-8")
COMMANDS = [line for line in commands(README) if line.startswith("agentkv ")]
MAKE = re.findall(r"`(make [^`]+)`", README) + [
    line for line in commands(README) if line.startswith("make ")
]


@pytest.mark.parametrize("line", COMMANDS)
def test_a_command_of_the_readme_has_only_options_that_exist(line: str) -> None:
    _, *words = shlex.split(line)
    command = typer.main.get_command(cli)
    context = command.make_context("agentkv", list(words))
    while hasattr(command, "commands"):
        name, command, rest = command.resolve_command(
            context, [*context._protected_args, *context.args]
        )
        context = command.make_context(name, list(rest), parent=context)
    assert context.args == []


@pytest.mark.parametrize("line", sorted(set(MAKE)))
def test_a_target_of_the_readme_exists(line: str) -> None:
    done = subprocess.run(
        ["make", "--dry-run", *shlex.split(line)[1:]], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def test_a_folder_of_runs_is_written_by_an_earlier_command() -> None:
    written: set[str] = set()
    for line in COMMANDS:
        words = shlex.split(line)
        named = {word for word in words if word.startswith("runs/")}
        assert named <= written, line
        if words[1] == "run" and "--tasks" in words and NEEDS_MODEL not in words:
            world = words[words.index("--world-seed") + 1] if "--world-seed" in words else "75"
            written.add(f"runs/{words[words.index('--tasks') + 1]}-{world}")


@pytest.mark.browser
def test_the_cheap_commands_of_the_readme_run_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # a new file of sites is checked and played in tests/tasks/test_own_sites.py
    cheap = ("agentkv policies", "agentkv tasks new", "agentkv plan ", "agentkv act ")
    lines = [line for line in COMMANDS if line.startswith(cheap) and is_run(line)]
    assert len(lines) >= 4
    monkeypatch.chdir(tmp_path)
    for line in lines:
        result = CliRunner().invoke(cli, shlex.split(line)[1:])
        assert result.exit_code == 0, f"{line}\n{result.output}"
        if line.startswith("agentkv act"):
            assert "answer: WATER AND TRUTH" in result.output


def test_the_page_of_the_first_hour_has_every_command_of_the_readme() -> None:
    page = (ROOT / "docs/first-hour.md").read_text(encoding="utf-8")
    assert [line for line in commands(README) if f"## `{line}`\n" not in page] == []


def test_the_table_at_the_top_of_the_readme_is_what_the_run_printed() -> None:
    page = (ROOT / "docs/first-hour.md").read_text(encoding="utf-8")
    block = re.search(r"^    \$ (agentkv run[^#\n]*?) *(#.*)?\n((?:    .+\n)+)", README, re.M)
    assert block is not None and f"## `{block[1]}`" in page
    table = page.partition(f"## `{block[1]}`")[2].partition("\n## ")[0].splitlines()
    assert [line.strip() for line in block[3].splitlines() if line.strip() not in table] == []
