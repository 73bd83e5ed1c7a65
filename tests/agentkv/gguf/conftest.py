from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.agentkv.gguf.tiny_files import make_model, write


@pytest.fixture(autouse=True)
def cache_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def written(tmp_path: Path) -> Callable[..., Path]:
    """Return a function that writes a small Llama, with changes to its metadata."""

    def write_llama(**changes: Any) -> Path:
        return write(make_model("llama"), "llama", tmp_path / "tiny.gguf", **changes)

    return write_llama
