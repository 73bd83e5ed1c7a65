"""Python blocks of the README's and the documentation's first pages run as they are written."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BLOCKS = [
    (path.name, number, block)
    for path in (ROOT / "docs" / "index.md",)
    for number, block in enumerate(re.findall(r"```python\n(.*?)```", path.read_text(), re.S))
]


def test_the_first_page_has_snippets() -> None:
    assert len(BLOCKS) >= 2


@pytest.mark.browser
@pytest.mark.parametrize("page, number, block", BLOCKS, ids=lambda value: str(value)[:12])
def test_a_snippet_runs_as_written(page: str, number: int, block: str) -> None:
    exec(compile(block, f"{page}, block {number}", "exec"), {})


@pytest.mark.browser
def test_the_readmes_agent_runs_as_written() -> None:
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.S)
    exec(compile(blocks[0], "README.md", "exec"), {})
