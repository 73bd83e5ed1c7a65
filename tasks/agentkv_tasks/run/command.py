"""A run from beginning to end: check what was asked for, run what is not done, report."""

import contextlib
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console
from rich.text import Text

from agentkv.build import SCRIPTED, check_model
from agentkv.config import RunSettings
from agentkv.files import NotWritten, require_folder
from agentkv_env.hosts import is_web_address
from agentkv_env.sites.registry import SITES
from agentkv_tasks.addresses import Addresses
from agentkv_tasks.evaluate import Scoring
from agentkv_tasks.provenance import commit, versions
from agentkv_tasks.report.write import write_report
from agentkv_tasks.results import (
    Results,
    Row,
    mixture,
    refuse_other_settings,
    refuse_other_versions,
)
from agentkv_tasks.run.display import RunDisplay, failure_lines, result_table
from agentkv_tasks.run.plan import Plan, default_threads, make_plan, total
from agentkv_tasks.run.preflight import find_browser, tesseract_version
from agentkv_tasks.run.scheduler import run_jobs
from agentkv_tasks.suites import load_suite
from agentkv_tasks.task import TaskError

_WRITTEN = ("report.html", "traces", "logs")


class OptionError(ValueError):
    """An option of a run that cannot be used; the message says what can."""


@dataclass(frozen=True, slots=True)
class Run:
    """A run that has passed all checks and may start."""

    plan: Plan
    notices: tuple[str, ...]
    """What works less well than it could, and why."""
    fresh: bool
    retry_failures: bool


def prepare(
    settings: RunSettings,
    *,
    sites: Mapping[str, str],
    scoring: Scoring,
    step_timeout_s: float,
    fresh: bool = False,
    retry_failures: bool = False,
) -> Run:
    """Check everything that can be checked without starting anything.

    Raises:
        ValueError: an option, a task or a policy is wrong; the message says what can be used.
        BrowserMissing: there is no browser.
    """
    suite = load_suite(settings.tasks, world_seed=settings.world_seed)
    known = {site.placeholder: f"http://{site.name}.localhost" for site in SITES}
    addresses = Addresses({**known, **sites}, {})
    for task in suite.tasks[: settings.limit]:
        missing = addresses.missing(task.model_dump_json(include={"start_url", "eval"}))
        if missing:
            raise TaskError(
                f"{suite.name}: task {task.task_id} needs {', '.join(missing)}, and no site is "
                f"known for it; known: {', '.join(sorted(addresses.placeholders))}"
            )
        if settings.model == "solution" and not task.solution:
            raise OptionError(f"task {task.task_id} has no solution for the model 'solution'")
        for url in task.start_urls:
            if not is_web_address(addresses.fill(url)):
                raise TaskError(f"{suite.name}: task {task.task_id}: start_url: '{url}' is no URL")
    check_model(settings)
    notices = []
    if settings.ocr and tesseract_version() is None:
        notices.append("no Tesseract: text inside images stays unread (install tesseract-ocr)")
        settings = settings.model_copy(update={"ocr": False})
    threads = default_threads(settings.workers, os.cpu_count() or 1)
    plan = make_plan(
        settings,
        suite,
        sites=sites,
        scoring=scoring,
        step_timeout_s=step_timeout_s,
        threads=threads,
    )
    find_browser(settings.browser_path)
    return Run(plan, tuple(notices), fresh, retry_failures)


def run(prepared: Run, console: Console) -> Path:
    """Run what is not done yet, show it, and return the path of the report.

    Interrupted, it prints what there is and writes the report before it passes the interrupt on.

    Raises:
        Unwritable: nothing can be written in the folder.
        NotWritten: a row or the report was lost, as on a full disk; what was written is whole.
        ResultsError: the folder holds other results, or another run is writing there.
        CannotStart: nobody can work as asked; the message says what to mend.
        RunError: workers or the model's process die again and again; the message says why.
    """
    plan, out = prepared.plan, prepared.plan.settings.out
    for folder in (out, out / "traces", out / "logs"):
        is_ours = folder != out or (out / "results.jsonl").exists()
        require_folder(folder)
        if is_ours:  # of a run of old it may be open to others
            with contextlib.suppress(PermissionError):
                folder.chmod(0o700)
    with Results(out / "results.jsonl", fresh=prepared.fresh) as results:
        if prepared.fresh:
            _clear(out)
        refuse_other_settings(results.rows, plan.row_settings, out)
        refuse_other_versions(results.rows, versions(), out)
        wanted = {job.key for job in plan.jobs}
        jobs = [
            job
            for job in plan.jobs
            if not results.has(job.key, retry_failures=prepared.retry_failures)
        ]
        undone = {job.key for job in jobs}
        done = [row for row in results.rows if row.key in wanted - undone]
        for notice in prepared.notices:
            console.print(Text(notice, style="yellow"), soft_wrap=True)
        for line in mixture([*results.rows, *_of_now(results.rows)]):
            console.print(Text(f"{out}: {line}", style="yellow"), soft_wrap=True)
        if done:
            note = f"{out}: {len(done)} of {len(plan.jobs)} episodes are done; going on"
            console.print(Text(note), soft_wrap=True)
        workers = min(plan.settings.workers, max(1, len(jobs)))
        display = RunDisplay(
            console, title=_title(plan), totals=total(plan.jobs), rows=done, workers=workers
        )
        try:
            if jobs:
                with display:
                    run_jobs(plan, results, display, jobs=jobs)
        except BaseException:
            try:
                _conclude(results, wanted, out, console)
            except NotWritten as lost:  # what broke the run off is what people must hear of
                console.print(Text(f"no report: {lost}", style="yellow"), soft_wrap=True)
            raise
        path = _conclude(results, wanted, out, console)
    assert path is not None, "a plan has at least one episode"
    return path


def _of_now(rows: Sequence[Row]) -> list[Row]:
    """A row as this run will write it, if there are others to go beside it."""
    return [replace(row, commit=commit()) for row in rows[:1]]


def _title(plan: Plan) -> str:
    settings, suite = plan.settings, plan.suite
    script = " (a script: nothing is measured)" if settings.model in SCRIPTED else ""
    num = len(plan.jobs)
    episodes = f"{num} episode{'s' * (num != 1)}"
    return f"{suite.name}, world {suite.world_seed}, model {settings.model}{script}: {episodes}"


def _conclude(results: Results, wanted: set[str], out: Path, console: Console) -> Path | None:
    """The table so far and the report; None where there is no row yet."""
    if not results.rows:
        return None
    rows = [row for row in results.rows if row.key in wanted]
    if rows:
        console.print()
        console.print(result_table(rows))
        for line in failure_lines(rows):
            console.print(Text(line, style="yellow"), soft_wrap=True)
    path = write_report(out)
    console.print(Text(f"report: {path}"), soft_wrap=True)
    return path


def _clear(out: Path) -> None:
    """Remove what an earlier run wrote beside its rows, and nothing else."""
    for name in _WRITTEN:
        path = out / name
        if path.is_dir():
            shutil.rmtree(path)
            path.mkdir(mode=0o700)
        else:
            path.unlink(missing_ok=True)
