"""No content of a page or a task runs in a report that a browser shows."""

import json
import threading
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import sync_playwright

from agentkv_env.browser import find_executable
from tests.local_site import Handler, served
from tests.tasks.runs import SMALL, complete_rows, run

ATTACK = (
    "</pre></title></code>\"'><script>window.hit = 1</script><img src=x onerror='window.hit = 1'>"
    "<svg onload='window.hit = 1'></svg><a href='javascript:window.hit = 1'>x</a>"
)
"""Text that runs wherever it is not escaped."""
ESCAPED = ATTACK.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
AS_VALUE = ESCAPED.replace('"', "&quot;").replace("'", "&#39;")


class HostilePage(Handler):
    """A page whose title, text, image and fields are full of scripts."""

    def do_GET(self) -> None:
        self.send(
            f"<title>{ESCAPED}</title><h1>{ESCAPED}</h1><p>{ESCAPED}"
            f'<img alt="{AS_VALUE}" width=40 height=40 src="data:,x"><input value="{AS_VALUE}">'
            f'<select><option>{ESCAPED}</select><a href="/?{AS_VALUE}">{ESCAPED}</a>'.encode()
        )


@pytest.mark.browser
def test_no_content_of_a_page_or_a_task_runs_in_a_report(tmp_path: Path) -> None:
    with served(HostilePage) as origin:
        task: dict[str, Any] = json.loads(SMALL.read_text())[0]
        task |= {"start_url": f"{origin}/", "intent": ATTACK}
        task["eval"] |= {"reference_url": f"{origin}/{ATTACK}"}
        tasks = tmp_path / "hostile.json"
        tasks.write_text(json.dumps([task]))
        out = tmp_path / "out"
        options = ("--tasks", str(tasks), "--screenshots", "--workers", "1", "--policies", "full")
        output = run(out, *options, "--model", "random", "--max-steps", "2")
    assert complete_rows(out), output
    pages = [out / "report.html", *out.glob("traces/*.html")]
    assert len(pages) == 2 and "window.hit" in pages[1].read_text()

    hits: list[str] = []

    def look() -> None:  # another test of this process may hold Playwright's loop
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=find_executable())
            for path in pages:
                page = browser.new_page()
                page.on("dialog", lambda dialog: hits.append(dialog.message))
                page.on("request", lambda asked: hits.append(asked.url))
                page.goto(path.as_uri())
                for closed in page.locator("details:not([open]) > summary").all():
                    closed.click(timeout=2000)
                if page.evaluate("window.hit"):
                    hits.append(f"a script ran in {path.name}")
                links = page.locator("a[href^='javascript'], a[href^='http']").count()
                hits.extend(["a link leaves the report"] * links)
            browser.close()

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert hits and all(hit.startswith((f"{out.as_uri()}/", "data:image/")) for hit in hits), hits
