"""The report in a browser: it filters tasks, fits the screen, and can be read without scripts."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from agentkv.trace import Episode, TraceWriter
from agentkv_env.browser import find_executable
from agentkv_tasks.report.write import write_report
from agentkv_tasks.results import Results, Row
from tests.tasks.test_report import STEP

MakeRow = Callable[..., Row]
Look = Callable[[Callable[[Browser], object]], object]

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def look() -> Iterator[Look]:
    """A function that calls another one with a browser, in the thread that owns the browser."""
    with ThreadPoolExecutor(1) as pool:  # another test may hold Playwright's loop in this thread
        playwright = pool.submit(sync_playwright().start).result()
        browser = pool.submit(
            playwright.chromium.launch, executable_path=find_executable()
        ).result()
        yield lambda do: pool.submit(do, browser).result()
        pool.submit(browser.close).result()
        pool.submit(playwright.stop).result()


POLICIES = ("full", "int4", "int8", "window", "streaming-int8", "lookback-int8", "h2o", "snapkv")


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory, row: MakeRow) -> Path:
    """The report of four tasks under eight policies; `window` fails task 1 and crashes on task 2,
    and all fail task 3."""
    out = tmp_path_factory.mktemp("report")
    with Results(out / "results.jsonl") as results:
        for policy in POLICIES:
            for task in range(4):
                fails = task == 3 or (policy == "window" and task > 0)
                status = "crash" if fails and task == 2 else "stopped"
                trace = f"traces/{task}-{policy}.jsonl"
                head = {"goal": f"Buy the {'red Tent' if task == 1 else 'kayak'}. <b>&amp;{task}"}
                with TraceWriter(out / trace, head=head) as writer:
                    writer.step(STEP)
                    writer.end(Episode("stopped", "", (STEP,), seconds=1.0))
                results.append(
                    row(
                        policy=policy,
                        task_id=task,
                        success=not fails,
                        status=status,
                        trace=trace,
                        steps=1,
                        kv_peak_bytes=123 * 2**20,
                        kv_mean_bytes=100 * 2**20,
                        kv_cold_bytes=2**20 if policy == "lookback-int8" else 0,
                        rss_peak_bytes=999 * 2**20,
                        looks=3,
                        look_bytes=10**6,
                        tokens_in=12345,
                        tokens_out=500,
                    )
                )
    return write_report(out)


def shown(page: Page) -> list[str]:
    return page.locator("table.tasks tbody tr:visible td:first-child").all_inner_texts()


def test_tasks_are_filtered_by_text_outcome_and_policy(look: Look, report: Path) -> None:
    def filtered(browser: Browser) -> list[list[str]]:
        page = browser.new_page()
        page.goto(report.as_uri())
        text, outcome, policy = page.locator(".filter input, .filter select").all()
        found = [shown(page)]
        text.fill("RED tent")
        found.append(shown(page))
        text.fill("<b>&amp;2")
        found.append(shown(page))
        text.fill("")
        for value in ("no", "broken", "differ"):
            outcome.select_option(value)
            found.append(shown(page))
        outcome.select_option("yes")
        policy.select_option("window")
        found.append(shown(page))
        found.append(page.locator("table.tasks thead th:visible").all_inner_texts())
        found.append([page.locator(".filter output").inner_text()])
        page.close()
        return found

    assert look(filtered) == [
        ["0", "1", "2", "3"],
        ["1"],
        ["2"],
        ["1", "3"],
        ["2"],
        ["1", "2"],
        ["0"],
        ["task", "goal", "window"],
        ["1 of 4 tasks"],
    ]


def test_no_column_is_cut_off_at_1280_pixels_and_narrow_screens_scroll_in_frames(
    look: Look, report: Path
) -> None:
    def measured(browser: Browser) -> list[tuple[int, int]]:
        found = []
        for width in (1280, 390):
            page = browser.new_page(viewport={"width": width, "height": 800})
            page.goto(report.as_uri())
            beyond = page.evaluate("document.documentElement.scrollWidth - innerWidth")
            cut = page.evaluate(
                "[...document.querySelectorAll('.wide')]"
                ".filter((each) => each.scrollWidth > each.clientWidth).length"
            )
            found.append((beyond, cut))
            page.close()
        return found

    wide, narrow = look(measured)  # type: ignore[misc]
    assert wide == (0, 0)
    assert narrow[0] == 0 and narrow[1] > 0


def test_without_scripts_the_report_shows_all_tasks_and_no_filter(look: Look, report: Path) -> None:
    def looked(browser: Browser) -> tuple[list[str], bool]:
        context = browser.new_context(java_script_enabled=False)
        page = context.new_page()
        page.goto(report.as_uri())
        found = shown(page), page.locator(".filter").is_visible()
        context.close()
        return found

    assert look(looked) == (["0", "1", "2", "3"], False)


def test_the_policy_of_a_page_lets_only_its_own_script_run(look: Look, report: Path) -> None:
    foreign = "<script>document.title = 'hit'</script><img src=x onerror=\"document.title='hit'\">"
    changed = report.with_name("changed.html")
    changed.write_text(report.read_text().replace("</main>", f"{foreign}</main>"))

    def title(browser: Browser) -> tuple[str, bool]:
        page = browser.new_page()
        page.goto(changed.as_uri())
        found = page.title(), page.locator(".filter").is_visible()
        page.close()
        return found

    assert look(title) == ("agentkv: small", True)
