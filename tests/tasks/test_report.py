"""The report shows the figures of the rows, escapes foreign text, and has valid links."""

import io
import json
import re
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

import pytest
from PIL import Image
from rich.console import Console

from agentkv.terminal import human_bytes
from agentkv.trace import Episode, Step, TraceWriter
from agentkv_tasks.bench.tables import bytes_cells
from agentkv_tasks.report.html import template_environment
from agentkv_tasks.report.parts import part_times
from agentkv_tasks.report.summary import summarize
from agentkv_tasks.report.tables import markdown, policy_lines
from agentkv_tasks.report.write import write_report
from agentkv_tasks.results import Results, ResultsError, Row, read_rows
from agentkv_tasks.run.display import failure_lines, parts_table, position_lines, result_table

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
    """Collects tags and links."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.links += [value for name, value in attrs if name in ("href", "src") and value]


OURS = str(template_environment().from_string("<script>{{ script }}</script>").render())
"""The only script of a report."""


def read(path: Path) -> Reader:
    """Read a page without the script of the reports, which pages of episodes do not have."""
    reader = Reader()
    text = path.read_text()
    assert text.count(OURS) == (path.name == "report.html")
    reader.feed(text.replace(OURS, ""))
    return reader


@pytest.fixture
def out(tmp_path: Path, row: MakeRow) -> Path:
    """A folder with four episodes of two policies; one crashed, all contain hostile text."""
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


def test_text_from_pages_and_models_is_escaped(out: Path) -> None:
    write_report(out)
    pages = [out / "report.html", *out.glob("traces/*.html")]
    assert len(pages) == 5
    for page in pages:
        found = read(page)
        assert "script" not in found.tags
        assert not [link for link in found.links if "evil" in link or link.startswith("http")]
        assert "{{ 7*7 }}" in page.read_text()


def test_every_link_of_the_report_leads_to_an_existing_file(out: Path) -> None:
    write_report(out)
    for page in [out / "report.html", *out.glob("traces/*.html")]:
        links = read(page).links
        assert links
        assert all((page.parent / link).resolve().is_file() for link in links)


def test_the_report_identifies_its_tasks_and_shows_the_figures_of_the_rows(out: Path) -> None:
    text = re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", write_report(out).read_text()))
    assert "vwa75 is our own set of 75 tasks" in text
    assert "2/2" in text and "1/2" in text
    assert "4.0 KiB" in text and "1.0 KiB" in text and "4.0×" in text
    assert "Ended by the harness" in text


def test_the_report_plots_cache_bytes_over_steps(out: Path) -> None:
    text = write_report(out).read_text()
    assert "svg" in read(out / "report.html").tags
    assert "hot bytes, KiB" in text and "2.0 KiB after step 1" in text
    assert "seconds per step" in text and "0.50 s after step 1" in text


def test_a_report_of_several_runs_links_to_the_episodes_of_each(
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
    full, window = summarize(list(reversed(rows)))
    assert (full.label, window.label) == ("full", "window")  # the baseline is first
    assert full.against is None and window.against is not None
    assert (window.against.both, window.against.only_first) == (1, 1)
    assert window.hot_ratio == window.all_ratio == 4.0
    assert window.failures == {"crash": 1}
    assert failure_lines(rows) == ["window: 1 crash (counted as failures)"]


def test_policies_that_continued_past_the_context_length_are_named(row: MakeRow) -> None:
    numbers = {"full": (None, 0), "window": (0, 2), "streaming": (1, 4)}
    rows = [
        row(task_id=task, policy=policy, renumberings=number)
        for policy, of_tasks in numbers.items()
        for task, number in enumerate(of_tasks)
    ]
    assert position_lines(rows) == [
        "window: 1 episode continued past the model's context length; positions were renumbered 2 "
        "times",
        "streaming: 2 episodes continued past the model's context length; positions were "
        "renumbered 5 times",
    ]


def test_labels_show_the_parameters_that_distinguish_policies_of_one_name(row: MakeRow) -> None:
    rows = [row(policy="window", policy_parameters={"budget": b, "slack": 0}) for b in (256, 512)]
    assert [s.label for s in summarize(rows)] == ["window (budget=256)", "window (budget=512)"]


def test_a_summary_has_macro_and_micro_averages(row: MakeRow) -> None:
    rows = [row(task_id=number, category="form", success=False) for number in range(3)]
    rows.append(row(task_id=9, category="shopping"))
    (summary,) = summarize(rows)
    assert (summary.success.num_successes, summary.success.num_episodes) == (1, 4)
    assert summary.macro == 0.5


def test_the_final_table_fits_80_columns(out: Path) -> None:
    from agentkv_tasks.results import read_rows

    rows = read_rows(out / "results.jsonl")
    long = [replace(r, policy="critical-ada-snapkv") for r in rows if r.policy == "window"]
    console = Console(width=80, record=True, quiet=False, file=open("/dev/null", "w"))  # noqa: SIM115
    with console.file:
        console.print(result_table([*rows, *long]))
    output = console.export_text()
    assert all(len(line) <= 80 for line in output.splitlines())
    assert "critical-ada-" in output and "4.0x" in output


def test_the_final_table_counts_hot_cold_and_all_bytes(row: MakeRow) -> None:
    rows = [
        row(kv_peak_bytes=9 * 2**20),
        row(policy="lookback-int8", kv_peak_bytes=3 * 2**20, kv_cold_bytes=3 * 2**20),
        row(policy="int4", kv_peak_bytes=3 * 2**20),
    ]
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(result_table(rows))
    lines = console.export_text().splitlines()
    assert lines[0].split()[-4:] == ["hot", "cold", "all", "smaller"]
    assert lines[1].split()[-4:] == ["9.0", "-", "9.0", "-"]
    assert lines[2].split()[-4:] == ["3.0", "3.0", "6.0", "1.5x"]
    assert lines[3].split()[-4:] == ["3.0", "-", "3.0", "3.0x"]
    text = " ".join(" ".join(lines[4:]).split())
    assert "all: MiB of the cache" in text and "On a CPU all of them lie in one memory." in text
    assert bytes_cells(1024 * 812, 2**21) == ("812K", "2.0M", "2.8M")
    assert bytes_cells(None, 0) == ("-", "-", "-")


def test_the_report_shows_where_the_time_went_if_the_rows_say_it(out: Path, row: MakeRow) -> None:
    assert "Where the time goes" not in write_report(out).read_text()
    with Results(out / "results.jsonl", fresh=True) as results:
        results.append(row(task_id=0, seconds=4.0, parts={"browser": 1.0, "reading": 3.0}))
        results.append(row(task_id=1, seconds=2.0, parts={"browser": 2.0}))
        results.append(row(task_id=2, seconds=9.0))
    page = write_report(out).read_text()
    assert "Where the time goes" in page
    assert page.index("1.500 s") > page.index("browser</th>")
    assert [
        (part.name, part.seconds, part.share)
        for part in part_times(read_rows(out / "results.jsonl"))
    ] == [
        ("browser", 1.5, 0.5),
        ("reading", 1.5, 0.5),
    ]


def test_the_table_of_parts_fits_80_columns(row: MakeRow) -> None:
    console = Console(width=80, record=True, file=io.StringIO())
    table = parts_table([row(parts={"browser": 1.0, "x" * 99: 3.0})])
    assert table is not None and parts_table([row()]) is None
    console.print(table)
    output = console.export_text()
    assert all(len(line) <= 80 for line in output.splitlines())
    assert "75.0 %" in output or "75 %" in output


def test_a_folder_without_results_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(ResultsError, match="cannot be read"):
        write_report(tmp_path)


@pytest.mark.parametrize(
    ("count", "text"),
    [(None, "-"), (0, "0 B"), (999, "999 B"), (2048, "2.0 KiB"), (4_400_000, "4.2 MiB")],
)
def test_bytes_are_formatted_in_a_fitting_unit(count: int | None, text: str) -> None:
    assert human_bytes(count) == text


def test_every_field_of_a_row_is_escaped(tmp_path: Path, row: MakeRow) -> None:
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


def test_the_page_of_an_episode_says_what_its_steps_looked_at(tmp_path: Path, row: MakeRow) -> None:
    steps = [
        STEP,
        replace(STEP, num_looks=7, num_changing_looks=2, fetched={"page 0": 1200, "goal": 8}),
        replace(STEP, num_looks=8, num_changing_looks=2, fetched={"page 0": 1210, "goal": 8}),
        replace(STEP, num_looks=8, num_changing_looks=2, fetched={"page 0": 1210, "goal": 8}),
    ]
    (tmp_path / "traces").mkdir()
    with TraceWriter(tmp_path / "traces" / "a.jsonl", head={"goal": "x"}) as trace:
        for step in steps:
            trace.step(step)
        trace.end(Episode("stopped", "", tuple(steps), seconds=1.0))
    with Results(tmp_path / "results.jsonl") as results:
        results.append(row(trace="traces/a.jsonl", looks=8, changing_looks=2, tokens_out=90))
    write_report(tmp_path)
    page = " ".join((tmp_path / "traces" / "a.html").read_text().split())
    assert "7 tokens looked back, 2 of them changed the likeliest token; " in page
    assert "entries fetched over all layers: 1,200 of page 1, 8 of goal<" in page
    assert "1 token looked back, 0 of them" in page and ": 10 of page 1<" in page
    assert page.count("looked back") == 2 and "8 of 90 tokens" in page


def test_a_cold_tier_and_looks_back_have_columns_of_their_own(tmp_path: Path, row: MakeRow) -> None:
    costs = {"kv_peak_bytes": 4096, "kv_mean_bytes": 2048, "tokens_out": 200}
    rows = [
        row(**costs, kv_cold_bytes=0, looks=0),
        row(
            **costs
            | {"policy": "lookback", "kv_cold_bytes": 1024, "looks": 25, "look_bytes": 409600}
        ),
    ]
    table = markdown(policy_lines(summarize(rows)))
    head, _, full, lookback, *_ = table.splitlines()
    assert "| hot (of full) | cold (of full) | all (of full) |" in head
    assert "| looks and bytes they read, per reply token |" in head
    assert "| 4.0 KiB | - | 4.0 KiB |" in full and "| 12.5 %, 2.0 KiB |" in lookback
    assert "| 4.0 KiB (100.0 %) | 1.0 KiB (25.0 %) | 5.0 KiB (125.0 %) |" in lookback
    with Results(tmp_path / "results.jsonl") as results:
        for each in rows:
            results.append(each)
    page = write_report(tmp_path).read_text()
    assert "it does not save memory in all" in page and "12.5 %" in page
    assert "looks" not in markdown(policy_lines(summarize([row(**costs), row(**costs | {
        "policy": "window"})])))  # fmt: skip


EXPLAINED = replace(
    STEP,
    url="http://shop.localhost/",
    observation="title Shop\nlink Kayak [3]\n",
    note="",
    error="",
    reply="link Kayak\n```click [3]```",
    action="click [3]",
    token_ends=(4, 10, 26),
    confidences=(None, 0.25, 0.95),
    piece_ends=(11, 26),
    boxes=((3, 10, 20, 30, 40), (4, 0, 0, 0, 9)),
)


def record(folder: Path, stem: str, steps: tuple[Step, ...], row: Row) -> Row:
    """Write a trace with a screenshot per step, and return the row of its episode."""
    with TraceWriter(folder / "traces" / f"{stem}.jsonl", head={"goal": "x"}) as trace:
        for step in steps:
            trace.step(step)
        trace.end(Episode("stopped", "", steps, seconds=1.0))
    for step in steps:
        picture = folder / "traces" / stem / step.screenshot
        picture.parent.mkdir(exist_ok=True)
        Image.new("RGB", (64, 48)).save(picture, format="JPEG")
    return replace(row, trace=f"traces/{stem}.jsonl")


def test_the_page_of_an_episode_explains_its_steps(tmp_path: Path, row: MakeRow) -> None:
    steps = (
        EXPLAINED,
        replace(EXPLAINED, index=1, turn=1, num_evicted=900, held={"page 0": "02", "goal": "0"}),
        replace(EXPLAINED, index=2, turn=2, num_evicted=950, held={"page 0": "01", "page 2": "04"}),
    )
    with Results(tmp_path / "results.jsonl") as results:
        results.append(record(tmp_path, "a", steps, row()))
    write_report(tmp_path)
    page = (tmp_path / "traces" / "a.html").read_text()
    assert '<span title="forgotten in step 2">title Shop' in page  # held in its own step
    assert '<span class="gone" title="forgotten in step 3">title Shop' in page
    assert '<span title="forced by the grammar">link</span>' in page
    assert '<span class="sure0" title="probability 0.250"> Kayak</span>' in page
    assert "page 1: 1 in part" in page and '<span class="gone">title Shop' in page
    assert "; 900 entries evicted" in page and "; 50 entries evicted" in page
    assert ">entries evicted<" in page and page.count("<polyline") == 3  # and one in the legend
    assert page.count('viewBox="0 0 64 48"') == 3
    assert page.count('<g class="acted"><rect x="10" y="20" width="30" height="40"/>') == 3
    assert 'height="9"' not in page  # an element without an area is not seen


def test_the_pages_of_one_task_name_the_step_at_which_they_part(
    tmp_path: Path, row: MakeRow
) -> None:
    other = (EXPLAINED, replace(EXPLAINED, index=1, action="go_back", observation="title Other"))
    with Results(tmp_path / "results.jsonl") as results:
        same = (EXPLAINED, replace(EXPLAINED, index=1))
        results.append(record(tmp_path, "a", same, row()))
        results.append(record(tmp_path, "b", other, row(policy="window", success=False)))
        results.append(record(tmp_path, "c", same, row(policy="window", seed=1)))
    write_report(tmp_path)
    pages = {stem: (tmp_path / "traces" / f"{stem}.html").read_text() for stem in "abc"}
    text = " ".join(re.sub(r"<[^>]+>", "", pages["a"]).split())
    assert "window (not solved): the actions part at step 2 (there); the pages differ first" in text
    assert 'href="b.html#step-1"' in pages["a"] and 'href="#step-1"' in pages["a"]
    assert 'href="a.html#step-1"' in pages["b"]
    assert "Against other policies" not in pages["c"]


def test_what_explains_a_step_is_escaped(tmp_path: Path, row: MakeRow) -> None:
    half = len(HOSTILE) // 2
    hostile = replace(
        STEP,
        reply=HOSTILE,
        token_ends=(half, len(HOSTILE)),
        confidences=(0.1, None),
        piece_ends=(half, len(HOSTILE)),
        held={"page 0": "01", HOSTILE: "0"},
        boxes=((1, -5, 10**9, 10**9, 3),),
    )
    names = ("a", "b")
    with Results(tmp_path / "results.jsonl") as results:
        for name in names:
            steps = (hostile, replace(hostile, index=1, turn=1, action=f"stop [{name}{HOSTILE}]"))
            made = row(policy=f"{HOSTILE}{name}")
            results.append(record(tmp_path, name, steps, made))
    write_report(tmp_path)
    for name in names:
        found = read(tmp_path / "traces" / f"{name}.html")
        assert "script" not in found.tags and {"svg", "rect"} <= found.tags
        assert not [link for link in found.links if "evil" in link]


@pytest.mark.parametrize("name", ["../../secret.jpg", "/etc/passwd", "000.jpg\0", "no.jpg"])
def test_only_a_screenshot_next_to_its_trace_is_opened(
    tmp_path: Path, row: MakeRow, name: str
) -> None:
    Image.new("RGB", (64, 48)).save(tmp_path / "secret.jpg", format="JPEG")
    with Results(tmp_path / "results.jsonl") as results:
        made = record(tmp_path, "a", (EXPLAINED,), row())
        results.append(made)
    path = tmp_path / "traces" / "a.jsonl"
    path.write_text(path.read_text().replace('"000.jpg"', json.dumps(name)))
    write_report(tmp_path)
    assert "<rect" not in (tmp_path / "traces" / "a.html").read_text()
