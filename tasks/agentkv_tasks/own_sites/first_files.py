"""`agentkv tasks new`: a first file of sites with tasks, for the small site of `notes`."""

import os
import secrets
from importlib import resources
from pathlib import Path

from agentkv.files import OutputPathError

SITES = "notes.toml"
"""Name of the file of sites."""
PASSWORD = "anna.password"


def write_first(folder: Path) -> list[Path]:
    """Write a file of sites, tasks, a README and a password into `folder`; return the paths.

    Raises:
        OutputPathError: one of the files exists already; nothing is written then.
        OSError: the folder or a file cannot be written.
    """
    source = resources.files("agentkv_tasks.own_sites") / "first"
    contents = {
        name: (source / name).read_text(encoding="utf-8")
        for name in (SITES, "tasks.json", "README.md")
    }
    contents[PASSWORD] = f"{secrets.token_urlsafe(12)}\n"
    contents[".gitignore"] = f"{PASSWORD}\n"
    paths = [folder / name for name in contents]
    if taken := [path for path in paths if os.path.lexists(path)]:
        raise OutputPathError(f"{taken[0]} exists already; give a folder without it")
    folder.mkdir(parents=True, exist_ok=True)
    for path, content in zip(paths, contents.values(), strict=True):
        mode = 0o600 if path.name == PASSWORD else 0o666
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(content)
    return paths
