"""Traces of the attempts at an episode that failed before the one whose row counts."""

import contextlib
import shutil
from pathlib import Path

from agentkv.files import WriteError, make_folder
from agentkv_tasks.run.plan import trace_path
from agentkv_tasks.run.playwright_trace import playwright_trace_path

_FOLDER = "earlier"
"""Folder for them, beside the other traces; `agentkv replay` does not look there by itself."""


def set_aside(out: Path, stem: str, *, number: int) -> str:
    """Move the traces and the screenshots of a failed attempt to the folder of earlier attempts.

    Args:
        stem: file name of the episode's trace without suffix.
        number: number of the attempt, from 1.

    Returns:
        The new path of the trace, relative to `out`; empty if the attempt left none.

    Raises:
        WriteError: the trace could not be moved.
    """
    trace = trace_path(out, stem)
    if not trace.exists():
        return ""
    kept = trace.parent / _FOLDER / f"{stem}-{number}.jsonl"
    make_folder(kept.parent)
    pictures = trace.with_suffix("")
    try:
        trace.replace(kept)
        if pictures.is_dir():
            shutil.rmtree(kept.with_suffix(""), ignore_errors=True)
            pictures.rename(kept.with_suffix(""))
        with contextlib.suppress(FileNotFoundError):
            playwright_trace_path(out, stem).replace(kept.with_suffix(".zip"))
    except OSError as error:
        raise WriteError(
            f"{trace}: could not be moved to {kept.parent}: {error.strerror}; all rows are "
            "complete; mend the folder, then run the same command again"
        ) from error
    return str(kept.relative_to(out))


def traces_of(out: Path, stem: str) -> list[Path]:
    """Return the files of an episode: its traces and screenshots, and those of earlier attempts."""
    trace = trace_path(out, stem)
    earlier = (trace.parent / _FOLDER).glob(f"{stem}-*")
    found: list[Path] = []
    for path in (trace, trace.with_suffix(""), playwright_trace_path(out, stem), *earlier):
        found += path.rglob("*") if path.is_dir() else [path]
    return sorted(path for path in found if path.is_file())


def remove_traces(out: Path, stem: str) -> None:
    """Remove the traces and the screenshots of an episode that is about to be played.

    Raises:
        OSError: a trace cannot be removed.
    """
    trace = trace_path(out, stem)
    trace.unlink(missing_ok=True)
    playwright_trace_path(out, stem).unlink(missing_ok=True)
    shutil.rmtree(trace.with_suffix(""), ignore_errors=True)


def remove_attempts(out: Path, stem: str) -> None:
    """Remove what earlier attempts at an episode left; what cannot be removed stays."""
    folder = trace_path(out, stem).parent / _FOLDER
    for path in folder.glob(f"{stem}-*"):
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            with contextlib.suppress(OSError):
                path.unlink()
