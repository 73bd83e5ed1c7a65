"""Where files are kept between runs."""

import os
from pathlib import Path


def user_cache(name: str) -> Path:
    """Return agentkv/NAME in the user's cache folder: XDG_CACHE_HOME, or ~/.cache without it."""
    root = os.environ.get("XDG_CACHE_HOME")
    return (Path(root) if root else Path.home() / ".cache") / "agentkv" / name
