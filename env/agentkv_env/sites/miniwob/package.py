"""Find the pages of the package `miniwob` without importing it.

Importing it would need gymnasium and selenium, which the pages do without.
"""

import importlib.metadata
from importlib.util import find_spec
from pathlib import Path

VERSION = "1.1.0"
"""The version whose pages are served; in another one, equal seeds may give other contents."""


class MiniwobMissing(ValueError):
    """The package `miniwob` is missing or of another version; the message says what to do."""


def find_pages() -> Path:
    """Return the folder of the package's pages, which holds `miniwob/`, `core/` and `common/`.

    Raises:
        MiniwobMissing: the package is not installed, or not in the version `VERSION`.
    """
    spec = find_spec("miniwob")
    if spec is None:
        raise _missing("the package miniwob is not installed")
    for place in spec.submodule_search_locations or ():
        folder = Path(place) / "html"
        if not (folder / "core" / "core.js").is_file():
            continue
        if (version := importlib.metadata.version("miniwob")) != VERSION:
            raise _missing(f"found miniwob {version}, expected {VERSION}")
        return folder
    raise _missing(f"the package miniwob at {spec.origin} has no pages")


def _missing(found: str) -> MiniwobMissing:
    return MiniwobMissing(
        f"MiniWoB++'s pages are missing: {found}; run: pip install --no-deps miniwob=={VERSION}"
    )
