"""A short text for commands that measure on one."""

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def bees(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of some thousand tokens."""
    path = tmp_path_factory.mktemp("text") / "bees.txt"
    lines = (f"link Bee number {i * i % 97} of hive {i} [{i}]" for i in range(400))
    path.write_text("\n".join(lines), encoding="utf-8")
    return path
