"""While a run goes on, a page in the place of its report shows what is done and what is left."""

import io
import re
from collections.abc import Callable
from pathlib import Path

from rich.console import Console

from agentkv_tasks.report.live import LivePage, Playing, RunProgress
from agentkv_tasks.results import Row
from agentkv_tasks.run.display import RunDisplay

MakeRow = Callable[..., Row]
REFRESH = '<meta http-equiv="refresh"'
HOSTILE = "</title><script>alert(1)</script>"


def text_of(path: Path) -> str:
    return " ".join(re.sub(r"<[^>]+>", " ", path.read_text()).split())


def test_the_page_says_what_is_done_and_what_is_left(tmp_path: Path, row: MakeRow) -> None:
    path = tmp_path / "report.html"
    page = LivePage(path, title=f"small {HOSTILE}")
    progress = {"full": RunProgress(4), HOSTILE: RunProgress(4)}
    done = [
        row(kv_peak_bytes=4096, kv_cold_bytes=1024, steps=4, seconds=2.0),
        row(success=False, status="crash", kv_peak_bytes=2048, steps=1, error=HOSTILE),
    ]
    for each in done:
        progress["full"].add(each)
        page.finished(each, HOSTILE)
    assert page.is_due
    page.write(progress, [Playing(7, HOSTILE, HOSTILE, 3)], 5400.0)
    assert not page.is_due
    text = text_of(path)
    assert "2 of 8 episodes are done; about 1 h 30 min are left." in text
    assert "full 2/4 1 50 % 3.0 KiB 512 B 3.5 KiB 0.40" in text
    assert "1 episode ended for a reason outside the agent" in text
    assert REFRESH in path.read_text() and "<script" not in path.read_text()


def test_a_run_that_ends_without_a_row_leaves_a_page_that_does_not_reload(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    page = LivePage(path, title="small")
    console = Console(file=io.StringIO())
    with RunDisplay(console, title="small", totals={"full": 2}, rows=(), workers=1, page=page):
        assert REFRESH in path.read_text() and "sites are starting" in path.read_text()
    assert REFRESH not in path.read_text()
    assert "0 of 2 episodes are done; the run is over." in text_of(path)
