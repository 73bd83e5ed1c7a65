"""Python blocks of the README and of the documentation's pages run as they are written."""

import re
from pathlib import Path

import pytest

from agentkv.build import make_policy
from agentkv.policies.registry import DECLARED
from agentkv.settings import PolicySettings
from agentkv_env.sites.world import World
from tests.own_thread import in_own_thread

ROOT = Path(__file__).parents[2]
PAGES = (
    *("README.md", "docs/index.md", "docs/agent.md", "docs/cache.md", "docs/suites.md"),
    "docs/adapters.md",
)
BLOCKS = [
    pytest.param(
        page,
        block,
        id=f"{page}, block {number}",
        # tests/tasks/test_from_python.py makes a run and a report as well,
        # tests/agentkv/agent/test_async_session.py drives a page of the asynchronous API,
        # and the README has the blocks of the first page
        marks=[pytest.mark.slow]
        * (page == "docs/index.md" or "agentkv.run(" in block or "AsyncSession(" in block),
    )
    for page in PAGES
    for number, block in enumerate(
        re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.S)
    )
]


@pytest.mark.parametrize("page", PAGES)
def test_every_page_has_a_snippet(page: str) -> None:
    assert any(param.values[0] == page for param in BLOCKS)


@pytest.mark.browser
@pytest.mark.parametrize("page, block", BLOCKS)
def test_a_snippet_runs_as_written_and_prints_what_it_says(
    page: str,
    block: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    in_own_thread(exec, compile(block, page, "exec"), {})
    printed = capsys.readouterr().out.splitlines()
    assert [line for line in re.findall(r"# -> (.+)", block) if line not in printed] == []


@pytest.mark.parametrize("page", ["README.md", "docs/index.md", "docs/agent.md"])
def test_the_first_agent_answers_what_its_page_says(page: str) -> None:
    motto = World(75).wiki.town("Kalburg").motto
    agents = [param.values[1] for param in BLOCKS if param.values[0] == page]
    first = next(block for block in agents if "agentkv.Agent(" in str(block))
    assert "coat of arms of Kalburg?" in str(first) and f"# -> stopped {motto}\n" in str(first)


def test_the_policies_page_names_every_policy() -> None:
    page = (ROOT / "docs/policies.md").read_text(encoding="utf-8")
    assert [name for name in DECLARED if f"`{name}`" not in page] == []


def test_the_policy_files_of_the_policies_page_are_read(tmp_path: Path) -> None:
    page = (ROOT / "docs/policies.md").read_text(encoding="utf-8")
    files = re.findall(r"```toml\n(.*?)```", page, re.S)
    assert len(files) >= 3
    for number, text in enumerate(files):
        path = tmp_path / f"{number}.toml"
        path.write_text(text)
        policy = make_policy(PolicySettings(name=str(path)))
        assert f'name = "{policy.name}"' in text


def test_relative_links_of_the_readme_lead_somewhere() -> None:
    targets = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", (ROOT / "README.md").read_text())
    assert targets and [target for target in targets if not (ROOT / target).exists()] == []
