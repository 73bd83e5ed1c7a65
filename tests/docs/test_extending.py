"""Every extension of `docs/extending.md` works, made from the page's own blocks."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SECTIONS = {
    title.strip(): text
    for title, text in re.findall(
        r"^## (.*?)$(.*?)(?=^## |\Z)", (ROOT / "docs" / "extending.md").read_text(), re.S | re.M
    )
}


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A copy of the packages, with the kernels that are compiled already."""
    ignored = shutil.ignore_patterns("results", "recordings")
    for name in ("agentkv", "env", "kernels", "tasks/agentkv_tasks"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=ignored)
    return tmp_path


@pytest.mark.slow
@pytest.mark.parametrize("section", SECTIONS)
def test_a_section_does_what_it_says(section: str, tree: Path) -> None:
    blocks = re.findall(r'```(\w+)(?: title="(.*?)")?\n(.*?)```', SECTIONS[section], re.S)
    assert any(language == "python" and not new_file for language, new_file, _ in blocks)
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(str(tree / part) for part in ("", "env", "kernels", "tasks"))
    }
    for language, new_file, block in blocks:
        if new_file:
            assert not (tree / new_file).exists()
            (tree / new_file).write_text(block)
            continue
        if language == "diff":
            command = ["git", "apply", "--recount", "--whitespace=nowarn", "-"]
            done = subprocess.run(command, cwd=tree, input=block, capture_output=True, text=True)
        elif language == "toml":
            (tree / "mine.toml").write_text(block)
            code = (
                "from agentkv.build import make_policy\n"
                "from agentkv.settings import PolicySettings\n"
                "assert make_policy(PolicySettings(name='mine.toml')).name == 'mine'"
            )
            done = subprocess.run(
                [sys.executable, "-c", code],
                cwd=tree,
                env=environment,
                capture_output=True,
                text=True,
            )
        else:
            done = subprocess.run(
                [sys.executable, "-"], cwd=tree, env=environment, input=block,
                capture_output=True, text=True,
            )  # fmt: skip
        assert done.returncode == 0, done.stderr
