"""Progress of a measurement where nobody looks at a terminal."""

import io

import pytest
from rich.console import Console
from rich.progress import Progress

from agentkv_tasks.progress import Lines, progress_on


def test_lines_say_what_is_done_at_once_and_then_at_intervals() -> None:
    said: list[str] = []
    with Lines(said.append, every=0) as progress:
        bar = progress.add_task("", total=3)
        progress.update(bar, description="full, 512 tokens")
        progress.advance(bar)
    assert [line.split("s: ")[1] for line in said] == [
        "0 of 3, full, 512 tokens",
        "1 of 3, full, 512 tokens",
    ]
    said.clear()
    with Lines(said.append, every=1e9) as progress:
        bar = progress.add_task("", total=300)
        for _ in range(300):
            progress.advance(bar)
    assert len(said) == 1


def test_without_a_terminal_progress_goes_to_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    results = io.StringIO()
    with progress_on(Console(file=results)) as progress:
        progress.update(progress.add_task("", total=2), description="reading")
    out, err = capsys.readouterr()
    assert (results.getvalue(), out) == ("", "") and err.endswith("0 of 2, reading\n")
    shown = Console(file=io.StringIO(), force_terminal=True)
    assert type(progress_on(shown)) is Progress
