"""`agentkv run`: check the settings, run the missing episodes, write the report."""

import contextlib
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from rich.console import Console
from rich.text import Text

from agentkv.advice import advice_lines
from agentkv.build import check_model, convert_model, ignored_budget, make_policy
from agentkv.files import WriteError, require_folder
from agentkv.settings import SCRIPTED
from agentkv.status_line import StatusLine
from agentkv.terminal import note
from agentkv_env.hosts import is_web_address
from agentkv_env.masking import Secrets
from agentkv_env.named_secrets import names_in, placeholder
from agentkv_tasks.addresses import Addresses
from agentkv_tasks.evaluate import Judge, asks_admin
from agentkv_tasks.miniwob import script_for
from agentkv_tasks.own_sites.sign_in import read_storage_state
from agentkv_tasks.own_sites.site_file import SiteFile
from agentkv_tasks.provenance import commit, versions
from agentkv_tasks.report.live import LivePage
from agentkv_tasks.report.write import write_report
from agentkv_tasks.results import (
    Results,
    Row,
    mixed_versions,
    refuse_other_settings,
    refuse_other_versions,
)
from agentkv_tasks.run.answering import require_answers
from agentkv_tasks.run.checkpoints import FOLDER as CHECKPOINTS
from agentkv_tasks.run.cluster.connect import require_ray
from agentkv_tasks.run.cluster.driver import cluster_for, refuse_one_machine
from agentkv_tasks.run.display import (
    RunDisplay,
    failure_lines,
    interruption_lines,
    parts_table,
    position_lines,
    result_table,
    scoring_lines,
)
from agentkv_tasks.run.plan import Job, Plan, default_threads, make_plan, total
from agentkv_tasks.run.preflight import find_browser, tesseract_version
from agentkv_tasks.run.scheduler import run_jobs
from agentkv_tasks.run.unreset import refuse_unreset, unreset_sites
from agentkv_tasks.settings import JUDGE_KEY, RunSettings
from agentkv_tasks.sites import sites_for
from agentkv_tasks.suites import load_suite
from agentkv_tasks.task import Task, TaskError

_OUTPUTS = ("report.html", "traces", "logs", CHECKPOINTS)


class RunOptionError(ValueError):
    """An unusable option of a run; the message names usable values."""


@dataclass(frozen=True, slots=True)
class Run:
    """A run that passed all checks and can start."""

    plan: Plan
    notices: tuple[str, ...]
    """Features that are degraded, and why; printed at the start."""
    limits: tuple[str, ...]
    """After how many tokens episodes end, where nothing is degraded; printed at the start."""
    fresh: bool
    retry_failures: bool


def prepare(
    settings: RunSettings,
    *,
    fresh: bool = False,
    retry_failures: bool = False,
) -> Run:
    """Check a run without starting anything.

    Args:
        fresh: delete the rows of an earlier run in the folder first.
        retry_failures: play episodes again that the harness ended, such as a crash or a timeout.

    Raises:
        ValueError: an option, a task or a policy is wrong, or Ray is missing; the message names
            usable values, or what to install.
        BrowserMissing: no browser was found.
    """
    if settings.executor == "ray":
        require_ray()
    settings, sites = settings.with_folder(), settings.sites
    suite = load_suite(settings.tasks, world_seed=settings.world_seed)
    tasks, notices = settings.selected(suite.tasks), list[str]()
    if settings.model == "solution":
        tasks, notices = _with_solutions(suite.name, tasks)
    own = suite.sites
    if own is None:
        known = {
            site.placeholder: f"http://{site.name}.localhost" for site in sites_for(suite.tasks)
        }
    else:
        known = own.placeholders
        _check_own(own, tasks, sites)
        if not any(site.admin for site in own.sites.values()):
            asking = sum(map(asks_admin, tasks))
            if asking:
                notices.append(f"{asking} tasks are unjudged: no site has an `admin` in {own.path}")
        if settings.workers > 1:
            workers, notice = _side_by_side(own, tasks, settings.workers)
            notices += [notice] if notice else []
            settings = settings.model_copy(update={"workers": workers})
    addresses = Addresses({**known, **sites}, {})
    for task in tasks:
        missing = addresses.missing(task.model_dump_json(include={"start_url", "eval"}))
        if missing:
            raise TaskError(
                f"{suite.name}: task {task.task_id} needs {', '.join(missing)}, and no "
                f"site is known for it; known: {', '.join(sorted(addresses.placeholders))}"
            )
        if own is None and (names := names_in(task.intent)):
            raise TaskError(
                f"{suite.name}: task {task.task_id} names {placeholder(names[0])}, and only a file "
                "of sites has secrets: the passwords of its accounts"
            )
        for url in task.start_urls:
            if not is_web_address(addresses.fill(url)):
                raise TaskError(
                    f"{suite.name}: task {task.task_id}: start_url: '{url}' is not a URL"
                )
    if settings.playwright_traces:
        _refuse_secrets(own, tasks, sites)
    unreset = unreset_sites(tasks, own=own, elsewhere=sites, addresses=addresses)
    num_plays = len(settings.policies) * len(settings.seeds)
    if settings.allow_unreset:
        notices += [f"nothing resets {name} between episodes" for name in unreset]
    else:
        refuse_unreset(unreset, own=own, num_plays=num_plays)
    check_model(settings)
    if settings.ocr and tesseract_version() is None:
        notices.append("Tesseract is missing: text in images is not read (install tesseract-ocr)")
        settings = settings.model_copy(update={"ocr": False})
    threads = default_threads(settings.workers, os.cpu_count() or 1)
    plan = make_plan(
        settings,
        suite,
        tasks,
        sites=sites if own is None else known,
        threads=threads,
        unreset=unreset,
        judge=_judge(settings),
    )
    if settings.executor == "ray":
        refuse_one_machine(plan)
    find_browser(settings.browser_path)
    limits = tuple(_position_limits(plan))
    return Run(plan, tuple(notices), limits, fresh, retry_failures)


def _judge(settings: RunSettings) -> Judge | None:
    """Return the judge of a run with the key from the environment; None if it has none."""
    if settings.judge is None or settings.judge_model is None:
        return None
    return Judge(settings.judge, settings.judge_model, os.environ.get(JUDGE_KEY, ""))


def _position_limits(plan: Plan) -> list[str]:
    """Say after how many tokens episodes end because the model has no more positions, and under
    which policies; nothing if they do not.

    Policies that drop older pages, or read the prompt again in every turn, are left out: their
    episodes may have more tokens than the model has positions. A model that cannot be read is
    reported by the process that loads it.
    """
    if plan.settings.model in SCRIPTED:
        return []
    from agentkv.cache.numbering import why_limited
    from agentkv.plan import plan_model

    try:
        geometry = plan_model(plan.settings).geometry
    except ValueError:
        return []
    reasons: dict[str, list[str]] = {}
    for policy in plan.settings.policies:
        if policy.last_pages is not None or policy.rebuild:
            continue
        reason = why_limited(make_policy(policy), geometry)
        if reason is not None:
            reasons.setdefault(reason, []).append(policy.row_name)
    return [
        f"{', '.join(names)}: an episode ends with context_limit after {geometry.max_positions:,} "
        f"tokens, because {reason}"
        for reason, names in reasons.items()
    ]


def _side_by_side(own: SiteFile, tasks: Sequence[Task], workers: int) -> tuple[int, str]:
    """Return how many of `workers` can play on the sites of a file, and a notice for the user."""
    if any(site.runs_once for site in own.sites.values()):
        return 1, (
            f"one episode at a time: the run starts a site of {own.path.name} at a fixed address; "
            "put {port} into the address to start a site for each worker"
        )
    reserved = [own.reserved_by(task) for task in tasks]
    shared = frozenset[str]().union(*reserved)
    if not shared:
        return workers, ""
    most = min(workers, len(shared)) if all(reserved) else workers
    return most, (
        f"one episode at a time on {', '.join(sorted(shared))}: set read_only = true for a site "
        "that no task changes, and all workers can use it"
    )


def _check_own(own: SiteFile, tasks: Sequence[Task], sites: Mapping[str, str]) -> None:
    """Check what sites of the user's own need, without starting them.

    Raises:
        ValueError: a password, a stored log-in, an account or a secret is missing, or an address
            is given twice.
    """
    if sites:
        raise RunOptionError(
            f"--site gives the address of {', '.join(sites)}, and {own.path} says where its sites "
            "are; write the address there"
        )
    own.passwords()
    for site in own.sites.values():
        for account in site.accounts.values():
            if account.storage_state:
                read_storage_state(own.folder / account.storage_state)
    own.tokens()
    for task in tasks:
        own.accounts_of(task)
        own.require_secrets(task)
    for site in own.sites.values():
        if site.admin is not None and any(map(asks_admin, tasks)):
            own.password(site.admin)


def _refuse_secrets(
    own: SiteFile | None, tasks: Sequence[Task], elsewhere: Mapping[str, str]
) -> None:
    """Check that a run has no secret that Playwright's traces would show.

    Raises:
        OptionError: it has one.
    """
    found = [
        f"{name} has an account"
        for name, site in (own.sites if own is not None else {}).items()
        if site.accounts or site.admin is not None
    ]
    credentials = Secrets()
    for url in (*elsewhere.values(), *(url for task in tasks for url in task.start_urls)):
        credentials.add_credentials(url)
    if credentials:
        found.append("an address holds credentials")
    if found:
        raise RunOptionError(
            f"--playwright-traces: {found[0]}, and Playwright's traces hold what is loaded and "
            "typed, unmasked; leave the option out, or give tasks without a log-in"
        )


def _with_solutions(name: str, tasks: Sequence[Task]) -> tuple[Sequence[Task], list[str]]:
    """Return the tasks of a suite that the model `solution` can play, and a notice of the others.

    Raises:
        OptionError: no task is left.
    """
    kept = tuple(task for task in tasks if task.solution or script_for(task))
    if not kept:
        raise RunOptionError(f"{name}: no task has a solution for the model 'solution'")
    if len(kept) == len(tasks):
        return kept, []
    return kept, [f"tasks without a solution, left out: {len(tasks) - len(kept)}"]


def run(prepared: Run, console: Console) -> Path:
    """Run the missing episodes with a live display, and return the path of the report.

    An interrupted run prints the table and writes the report before KeyboardInterrupt propagates.

    Raises:
        OutputPathError: the folder cannot be written.
        WriteError: a row or the report was lost, for example on a full disk. Earlier rows are
            complete.
        ResultsError: the folder holds other results, or another run is writing there.
        ModelError: a ValueError; a GGUF file cannot be served, or its copy cannot be written.
        CannotStart: the model, a policy, the browser or a port is unavailable; the message says
            what to correct.
        SiteError, JudgeError: ValueErrors; sites that run elsewhere, or the judge, do not answer.
        RunError: workers or the model's process die repeatedly, or no node is left; the message
            names the cause.
        ClusterError: a ValueError; the Ray cluster does not answer, or a node cannot play the run.
    """
    plan, out = prepared.plan, prepared.plan.settings.out
    for folder in (out, out / "traces", out / "logs"):
        is_ours = folder != out or (out / "results.jsonl").exists()
        require_folder(folder)
        if is_ours:  # an older version may have left it readable for others
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
        note(ignored_budget(plan.settings))
        for notice in (*prepared.notices, *prepared.limits):
            console.print(Text(notice, style="yellow"), soft_wrap=True)
        for line in mixed_versions([*results.rows, *_with_current_commit(results.rows)]):
            console.print(Text(f"{out}: {line}", style="yellow"), soft_wrap=True)
        if done:
            line = f"{out}: {len(done)} of {len(plan.jobs)} episodes are done; continuing"
            console.print(Text(line), soft_wrap=True)
        if jobs:
            require_answers(plan)
            if plan.settings.executor == "local":
                with StatusLine(Console(stderr=True)) as status:
                    convert_model(plan.settings, status)
        try:
            if jobs:
                with _player(prepared, console) as (play, num_places):
                    workers = min(plan.settings.workers * num_places, len(jobs))
                    totals, title = total(plan.jobs), _title(plan)
                    page = LivePage(out / "report.html", title=title)
                    console.print(Text(f"live report: {out / 'report.html'}"), soft_wrap=True)
                    with RunDisplay(
                        console, title=title, totals=totals, rows=done, workers=workers, page=page
                    ) as display:
                        play(plan, results, display, jobs=jobs)
        except BaseException:
            try:
                _finish(results, wanted, out, console)
            except WriteError as lost:  # the original error matters more than a lost report
                console.print(Text(f"no report: {lost}", style="yellow"), soft_wrap=True)
            raise
        path = _finish(results, wanted, out, console)
    assert path is not None, "a plan has at least one episode"
    return path


class _Play(Protocol):
    """Runs jobs of a plan and appends a row for each, as `run_jobs`."""

    def __call__(
        self, plan: Plan, results: Results, display: RunDisplay, *, jobs: Sequence[Job]
    ) -> None: ...


@contextlib.contextmanager
def _player(prepared: Run, console: Console) -> Iterator[tuple[_Play, int]]:
    """Yield what plays the jobs, and at how many places it plays at the same time."""
    if prepared.plan.settings.executor == "local":
        yield run_jobs, 1
        return
    with cluster_for(prepared.plan, prepared.plan.settings.ray_address) as cluster:
        for notice in cluster.notices:
            console.print(Text(notice, style="yellow"), soft_wrap=True)
        console.print(Text(f"on the Ray cluster: {', '.join(cluster.labels)}"), soft_wrap=True)
        try:
            yield cluster.run_jobs, len(cluster.labels)
        finally:
            played = ", ".join(f"{name} {count}" for name, count in sorted(cluster.played.items()))
            console.print(Text(f"episodes by node: {played or 'none'}"), soft_wrap=True)


def _with_current_commit(rows: Sequence[Row]) -> list[Row]:
    """Return a row with the commit of this run, or nothing if there is no row yet."""
    return [replace(row, commit=commit()) for row in rows[:1]]


def _title(plan: Plan) -> str:
    settings, suite = plan.settings, plan.suite
    script = " (scripted: measures no model)" if settings.model in SCRIPTED else ""
    num = len(plan.jobs)
    num_tasks = len({job.task.task_id for job in plan.jobs})
    part = "" if num_tasks == len(suite.tasks) else f"{num_tasks} of {len(suite.tasks)} tasks, "
    episodes = f"{part}{num} episode{'s' * (num != 1)}"
    title = f"{suite.name}, world {suite.world_seed}, model {settings.model}{script}: {episodes}"
    return f"{title}; nothing resets {', '.join(plan.unreset)}" if plan.unreset else title


def _finish(results: Results, wanted: set[str], out: Path, console: Console) -> Path | None:
    """Print the table and write the report; return its path, or None if there is no row yet."""
    if not results.rows:
        return None
    rows = [row for row in results.rows if row.key in wanted]
    if rows:
        console.print()
        console.print(result_table(rows))
        for line in (*position_lines(rows), *scoring_lines(rows), *interruption_lines(rows)):
            console.print(Text(line), soft_wrap=True)
        for line in (*failure_lines(rows), *advice_lines([row.status for row in rows])):
            console.print(Text(line, style="yellow"), soft_wrap=True)
        if (parts := parts_table(rows)) is not None:
            console.print()
            console.print(parts)
    planned = len(wanted) if len(rows) == len(results.rows) else None
    path = write_report(out, planned=planned)
    console.print(Text(f"report: {path}"), soft_wrap=True)
    return path


def _clear(out: Path) -> None:
    """Remove the report, traces and logs of an earlier run, and nothing else."""
    for name in _OUTPUTS:
        path = out / name
        if path.is_dir():
            shutil.rmtree(path)
            path.mkdir(mode=0o700)
        else:
            path.unlink(missing_ok=True)
