"""Playwright's own trace of an episode, for `playwright show-trace`.

It holds all that the pages loaded, and everything that was typed. None of it can be masked, so a
run whose secrets are known refuses to record, and an episode that learns one keeps no recording.
"""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from playwright.sync_api import Error

from agentkv.files import WriteError, make_folder
from agentkv_env.browser import Browser
from agentkv_env.masking import Secrets
from agentkv_env.session import Session
from agentkv_tasks.run.plan import trace_path

_STOP_S = 120.0


def playwright_trace_path(out: Path, stem: str) -> Path:
    """Return where Playwright's trace of an episode is: beside our own."""
    return trace_path(out, stem).with_suffix(".zip")


@dataclass(frozen=True, slots=True)
class PlaywrightTrace:
    """Where Playwright's trace of an episode goes."""

    path: Path
    """ZIP file, which only its owner may read."""
    secrets: Secrets
    """Secrets of the episode. If it has any at its end, no file is written."""


@contextlib.contextmanager
def recorded(session: Session, browser: Browser, into: PlaywrightTrace | None) -> Iterator[None]:
    """Record what a session does, and write the trace at the end. None records nothing.

    Raises:
        WriteError: the file could not be written. A browser that has died writes none either,
            which is no error here.
    """
    if into is None:
        yield
        return
    session.page.context.tracing.start(screenshots=True, snapshots=True)
    try:
        yield
    finally:
        _stop(session, browser, None if into.secrets else into.path)


def _stop(session: Session, browser: Browser, path: Path | None) -> None:
    """Stop recording, and write what was recorded if there is a path."""
    part = None
    if path is not None:
        make_folder(path.parent)
        part = path.with_name(f".{path.name}.part")
    try:
        with browser.watchdog.limit(_STOP_S):
            session.page.context.tracing.stop(path=part)
        if part is not None and path is not None:
            part.chmod(0o600)
            part.replace(path)
    except (Error, OSError) as error:
        if part is not None:
            part.unlink(missing_ok=True)
        if path is not None and browser.is_alive:
            reason = str(error).splitlines()[0]
            raise WriteError(f"{path}: Playwright's trace was not written: {reason}") from error
