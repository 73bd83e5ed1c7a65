"""The report: figures as in the rows, everything foreign escaped, links that lead somewhere."""

import re
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

import pytest
from rich.console import Console

from agentkv.trace import Episode, Step, TraceWriter
from agentkv_tasks.report.summary import human_bytes, summarise
from agentkv_tasks.report.write import write_report
from agentkv_tasks.results import Results, ResultsError, Row
from agentkv_tasks.run.display import failure_lines, result_table

MakeRow = Callable[..., Row]
HOSTILE = "</pre><script>alert('x')</script><img src=http://evil.test/x onerror=alert(1)> {{ 7*7 }}"

STEP = Step(
    index=0,
    url=f"http://shop.localhost/?q={HOSTILE}",
    observation=HOSTILE,
    note=HOSTILE,
    reply=HOSTILE,
    action="click [1]",
    error=HOSTILE,
    num_tokens_in=10,
    num_tokens_out=2,
    seen_tokens=12,
    cache_bytes=2048,
    cache_peak_bytes=4096,
    prefill_s=0.1,
    decode_s=0.2,
    seconds=0.5,
    screenshot="000.jpg",
)


class Reader(HTMLParser):
    """Collects what a browser would act on."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.links += [value for name, value in attrs if name in ("href", "src") and value]


def read(path: Path) -> Reader:
    reader = Reader()
    reader.feed(path.read_text())
    return reader


@pytest.fixture
def out(tmp_path: Path, row: MakeRow) -> Path:
    """A folder with four episodes of two policies; one crashed, one has hostile text in it."""
    with Results(tmp_path / "results.jsonl") as results:
        for policy, task_id, success in (
            ("full", 0, True),
            ("full", 1, True),
            ("window", 0, True),
            ("window", 1, False),
        ):
            stem = f"{task_id:03}-{policy}-0-x"
            with TraceWriter(
                tmp_path / "traces" / f"{stem}.jsonl", head={"goal": HOSTILE}
            ) as trace:
                trace.step(STEP)
                trace.end(Episode("stopped", "", (STEP,), seconds=1.0))
            pictures = tmp_path / "traces" / stem
            pictures.mkdir()
            (pictures / "000.jpg").write_bytes(b"")
            made = row(
                policy=policy,
                task_id=task_id,
                success=success,
                category="shopping" if task_id else "form",
                kv_peak_bytes=4096 if policy == "full" else 1024,
                trace=f"traces/{stem}.jsonl",
                steps=1,
                answer=HOSTILE,
                suite="vwa75",
            )
            results.append(made if success else replace(made, status="crash", error=HOSTILE))
    return tmp_path


def test_text_from_pages_and_models_stays_text(out: Path) -> None:
    write_report(out)
    pages = [out / "report.html", *out.glob("traces/*.html")]
    assert len(pages) == 5
    for page in pages:
        found = read(page)
        assert "script" not in found.tags
        assert not [link for link in found.links if "evil" in link or link.startswith("http")]
        assert "{{ 7*7 }}" in page.read_text()


def test_every_link_of_the_report_leads_to_a_file_beside_it(out: Path) -> None:
    write_report(out)
    for page in [out / "report.html", *out.glob("traces/*.html")]:
        links = read(page).links
        assert links
        assert all((page.parent / link).resolve().is_file() for link in links)


def test_the_report_says_which_75_tasks_these_are_and_what_was_counted(out: Path) -> None:
    text = re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", write_report(out).read_text()))
    assert "vwa75 consists of 75 tasks of our own" in text
    assert "2/2" in text and "1/2" in text
    assert "4 KiB" in text and "1 KiB" in text and "4.0×" in text
    assert "Ended by the harness" in text


def test_the_report_draws_the_caches_over_steps(out: Path) -> None:
    text = write_report(out).read_text()
    assert "svg" in read(out / "report.html").tags
    assert "live cache, mean, KiB" in text and "2.0 KiB after 1 steps" in text
    assert text.count("<polyline") == 4  # two policies, each with a line and a key


def test_a_report_of_several_runs_links_into_each_of_them(
    out: Path, tmp_path: Path, row: MakeRow
) -> None:
    other = tmp_path / "world 76"
    with Results(other / "results.jsonl") as results:
        results.append(row(world_seed=76, suite="vwa75", trace="traces/a.jsonl"))
    with TraceWriter(other / "traces" / "a.jsonl", head={"goal": "x"}) as trace:
        trace.step(replace(STEP, screenshot=""))
    page = write_report(out, other, out=tmp_path / "both")
    links = [link for link in read(page).links if not link.startswith("#")]
    assert "../world%2076/traces/a.html" in links and len(links) == 5
    assert all((page.parent / unquote(link)).resolve().is_file() for link in links)


def test_policies_are_compared_in_pairs_with_the_full_cache(out: Path) -> None:
    from agentkv_tasks.results import read_rows

    rows = read_rows(out / "results.jsonl")
    full, window = summarise(list(reversed(rows)))
    assert (full.label, window.label) == ("full", "window")  # the baseline comes first
    assert full.against is None and window.against is not None
    assert (window.against.both, window.against.only_first) == (1, 1)
    assert window.peak_ratio == 4.0
    assert window.failures == {"crash": 1}
    assert failure_lines(rows) == ["window: 1 crash (counted as failures)"]


def test_policies_of_one_name_are_told_apart_by_what_differs(row: MakeRow) -> None:
    rows = [row(policy="window", policy_parameters={"budget": b, "slack": 0}) for b in (256, 512)]
    assert [s.label for s in summarise(rows)] == ["window (budget=256)", "window (budget=512)"]


def test_macro_and_micro_averages_are_both_given_with_counts(row: MakeRow) -> None:
    rows = [row(task_id=number, category="form", success=False) for number in range(3)]
    rows.append(row(task_id=9, category="shopping"))
    (summary,) = summarise(rows)
    assert (summary.success.num_successes, summary.success.num_episodes) == (1, 4)
    assert summary.macro == 0.5


def test_the_last_table_fits_80_columns(out: Path) -> None:
    from agentkv_tasks.results import read_rows

    rows = read_rows(out / "results.jsonl")
    long = [replace(r, policy="critical-ada-snapkv") for r in rows if r.policy == "window"]
    console = Console(width=80, record=True, quiet=False, file=open("/dev/null", "w"))  # noqa: SIM115
    with console.file:
        console.print(result_table([*rows, *long]))
    said = console.export_text()
    assert all(len(line) <= 80 for line in said.splitlines())
    assert "critical-ada-" in said and "4.0x" in said


def test_a_folder_without_results_is_named(tmp_path: Path) -> None:
    with pytest.raises(ResultsError, match="cannot be read"):
        write_report(tmp_path)


@pytest.mark.parametrize(
    ("count", "text"),
    [(None, "-"), (0, "0 B"), (999, "999 B"), (2048, "2.0 KiB"), (4_400_000, "4.2 MiB")],
)
def test_bytes_are_said_in_the_unit_that_fits(count: int | None, text: str) -> None:
    assert human_bytes(count) == text


def test_no_field_of_a_row_is_markup(tmp_path: Path, row: MakeRow) -> None:
    names = ("suite", "category", "model", "reason", "device", "commit")
    hostile = dict.fromkeys(names, HOSTILE)
    with Results(tmp_path / "results.jsonl") as results:
        for policy in ("full", HOSTILE):
            results.append(
                row(
                    policy=policy,
                    policy_parameters={HOSTILE: HOSTILE},
                    settings={HOSTILE: HOSTILE, "scoring": HOSTILE},
                    versions={HOSTILE: HOSTILE, "agentkv": HOSTILE},
                    trace=f"traces/{len(policy)}.jsonl",
                    status="crash",
                    success=False,
                    error=f"half a surrogate \ud83d {HOSTILE}",
                    **hostile,
                )
            )
            name = tmp_path / "traces" / f"{len(policy)}.jsonl"
            with TraceWriter(name, head={"goal": HOSTILE}) as trace:
                trace.step(replace(STEP, action=HOSTILE, screenshot=f"javascript:{HOSTILE}"))
    write_report(tmp_path)
    pages = [tmp_path / "report.html", *tmp_path.glob("traces/*.html")]
    assert len(pages) == 3
    for page in pages:
        found = read(page)
        assert "script" not in found.tags and "onerror" not in found.tags
        assert not [link for link in found.links if link.startswith(("http", "javascript", "//"))]
