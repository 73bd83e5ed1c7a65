"""Shows on stderr what is being done: one line that changes on a terminal, else plain lines."""

import contextlib
import time
from collections.abc import Iterator
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.live import Live
from rich.text import Text

from agentkv.progress import COMPILING, Phase, Progress
from agentkv.terminal import human_rate

_EVERY_S = 10.0
"""Seconds between two plain lines in one phase (our choice)."""
_LONG = 256
"""Tokens of a prompt that are announced at once in plain lines; fewer are read within a second."""


class StatusLine:
    """A listener of `Progress` for people; a context manager.

    Args:
        console: writes to stderr.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._now: Progress | None = None
        self._began = self._said = 0.0
        """Times when the phase began, and of the last plain line, in monotonic seconds."""
        self._has_compiled = False
        self._live = (
            Live(
                self,
                console=console,
                transient=True,
                refresh_per_second=4,
                redirect_stdout=False,
                redirect_stderr=False,
            )
            if console.is_terminal
            else None
        )

    def __call__(self, progress: Progress) -> None:
        """Show what is being done now; this takes microseconds."""
        before, now = self._now, time.monotonic()
        self._now = progress
        if before is None or _is_another(before, progress):
            self._began = self._said = now
            if self._live is None and self._is_announced(progress):
                self._say()
        elif self._live is None and now > self._said + _EVERY_S:
            self._said = now
            self._say()

    def rest(self) -> None:
        """Show nothing until there is something again."""
        self._now = None

    @contextlib.contextmanager
    def aside(self) -> Iterator[None]:
        """Take the line away while the block writes to the terminal or asks a question."""
        if self._live is None:
            yield
            return
        self._live.stop()
        try:
            yield
        finally:
            self._live.start()

    def __rich__(self) -> Text:
        return Text(self._words(), style="dim", no_wrap=True, overflow="ellipsis")

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._live is not None:
            self._now = None
            self._live.stop()

    def _is_announced(self, progress: Progress) -> bool:
        if progress.phase == "compiling":
            is_first, self._has_compiled = not self._has_compiled, True
            return is_first
        is_long = progress.total is not None and progress.total >= _LONG
        return progress.phase == "loading" or is_long

    def _say(self) -> None:
        self._console.print(Text(f"agentkv: {self._words()}"), soft_wrap=True)

    def _words(self) -> str:
        progress = self._now
        if progress is None:
            return ""
        seconds = time.monotonic() - self._began
        done, total = progress.done, progress.total
        rate = f", {human_rate(done, seconds)}" if done and seconds >= 1.0 else ""
        took = f", {seconds:.0f} s" if seconds >= 1.0 else ""
        match progress.phase:
            case "converting":
                return f"converting {progress.name}: {100 * done // (total or 1)} %{took}"
            case "loading":
                return f"loading {progress.name or 'the model'}{took}"
            case "compiling":
                many = f": {done} functions" if done else ""
                return f"{COMPILING}{many}{took}"
            case "reading" if total is not None and done:
                return f"reading {total:,} tokens: {done:,} read{rate}{took}"
            case "reading":
                return f"reading {total or 0:,} tokens{took}"
            case "writing":
                return f"writing the reply: {done:,} tokens{rate}{took}"
        return _WORDS[progress.phase] + took


def _is_another(before: Progress, now: Progress) -> bool:
    """Return whether other work has begun."""
    return (before.phase, before.total) != (now.phase, now.total) or before.done > now.done


_WORDS: dict[Phase, str] = {"looking": "looking at the page", "acting": "acting on the page"}
