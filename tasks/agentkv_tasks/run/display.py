"""Terminal output of a run: progress by policy and the final table.

Progress is a live table, or plain lines if the output is not a terminal.
"""

import time
from collections import Counter
from collections.abc import Mapping, Sequence

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from agentkv.files import WriteError
from agentkv.terminal import human_bytes
from agentkv_tasks.report.live import LivePage, Playing, RunProgress
from agentkv_tasks.report.parts import part_times
from agentkv_tasks.report.summary import baseline_name, percent, stored_baseline, summarize
from agentkv_tasks.report.tables import policy_lines, seem_to_disagree
from agentkv_tasks.results import FAILURES, Row, unreset_warning
from agentkv_tasks.run.plan import Job
from agentkv_tasks.run.worker import Stepped
from agentkv_tasks.task import Task

_RECENT = 20  # episodes that estimate the remaining time


class RunDisplay:
    """Shows the progress of a run; a context manager.

    Args:
        rows: rows that an earlier start of the run finished.
        page: shows the same in a browser; None: no page.
    """

    def __init__(
        self,
        console: Console,
        *,
        title: str,
        totals: Mapping[str, int],
        rows: Sequence[Row],
        workers: int,
        page: LivePage | None = None,
    ) -> None:
        self._console = console
        self._title = title
        self._workers = workers
        self._page = page
        self._progress = {name: RunProgress(total) for name, total in totals.items()}
        self._running: dict[str, tuple[Job, Stepped | None]] = {}
        self._seconds: list[float] = []
        self._num_begun = len(rows)
        self._live: Live | None = None
        self._preparing = ""
        self._began = time.monotonic()
        for row in rows:
            if row.policy in self._progress:
                self._progress[row.policy].add(row)

    def __enter__(self) -> "RunDisplay":
        if self._console.is_terminal and not self._console.quiet:
            self._live = Live(self._view(), console=self._console, refresh_per_second=4)
            self._live.start()
        else:
            self._console.print(Text(self._title), soft_wrap=True)
        self._write_page()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.update(self._view())
            self._live.stop()
        self._write_page(has_ended=True)  # a report takes its place, unless there is no row

    def preparing(self, what: str) -> None:
        self._preparing = what
        if self._live is None:
            self._console.print(Text(f"{what} ({_duration(self._elapsed)})"), soft_wrap=True)

    def started(self, job: Job) -> None:
        self._preparing = ""
        self._running[job.key] = (job, None)

    def stepped(self, job: Job, step: Stepped) -> None:
        self._running[job.key] = (job, step)

    def retried(self, job: Job, row: Row) -> None:
        self._running.pop(job.key, None)
        if self._live is None:
            what = f"task {row.task_id:03} {row.policy}: {row.status}, played again; {row.error}"
            self._console.print(Text(what), soft_wrap=True)

    def finished(self, job: Job, row: Row) -> None:
        self._running.pop(job.key, None)
        self._progress[row.policy].add(row)
        self._seconds.append(row.seconds)
        if self._page is not None:
            self._page.finished(row, job.task.intent)
        if self._live is None:
            self._console.print(Text(self._line(row)), soft_wrap=True)

    def tick(self) -> None:
        if self._live is not None:
            self._live.update(self._view())
        if self._page is not None and self._page.is_due:
            self._write_page()

    def _write_page(self, *, has_ended: bool = False) -> None:
        if self._page is None:
            return
        playing = [
            Playing(job.task.task_id, job.policy.row_name, job.task.intent, step.num_steps)
            if step
            else Playing(job.task.task_id, job.policy.row_name, job.task.intent, 0)
            for job, step in self._running.values()
        ]
        left = sum(each.total - each.done for each in self._progress.values())
        try:
            self._page.write(self._progress, playing, self._seconds_left(left), has_ended=has_ended)
        except WriteError as lost:  # rows matter more than the page
            self._page = None
            self._console.print(Text(f"no live page: {lost}", style="yellow"), soft_wrap=True)

    def _line(self, row: Row) -> str:
        done = sum(progress.done for progress in self._progress.values())
        total = sum(progress.total for progress in self._progress.values())
        outcome = "success" if row.success else "failure"
        if row.status != "stopped":
            outcome += f" ({row.status})"
        cache = "" if row.kv_peak_bytes is None else f", cache {human_bytes(row.kv_peak_bytes)}"
        if row.renumberings:
            cache += f", positions renumbered {row.renumberings}x"
        seed = f" seed {row.seed}" if row.seed else ""
        left = self._time_left(total - done)
        ends = left if left == "done" else f"{left} left"
        line = (
            f"[{done:>{len(str(total))}}/{total}] task {row.task_id:03} {row.policy}{seed}: "
            f"{outcome}, {row.steps} steps{cache}, {row.seconds:.1f} s "
            f"({_duration(self._elapsed)} so far, {ends})"
        )
        return f"{line}; {row.error}" if row.status in FAILURES and row.error else line

    def _view(self) -> Group:
        table = Table(box=None, padding=(0, 1, 0, 0), header_style="bold")
        table.add_column("policy", no_wrap=True, max_width=22)
        for name in ("done", "solved", "hot", "cold", "all", "time left"):
            table.add_column(name, justify="right", no_wrap=True)
        for name, progress in self._progress.items():
            done = progress.done
            table.add_row(
                Text(name),
                f"{done}/{progress.total}",
                f"{progress.successes} {100 * progress.successes / done:.0f} %" if done else "-",
                human_bytes(progress.hot_bytes),
                human_bytes(progress.cold_bytes or None),
                human_bytes(progress.all_bytes),
                self._time_left(progress.total - done),
            )
        lines: list[Text | Table] = [Text(self._title, style="bold", overflow="ellipsis"), table]
        if self._preparing:
            waiting = f"  {self._preparing}, {_duration(self._elapsed)}"
            lines.append(Text(waiting, style="dim", no_wrap=True, overflow="ellipsis"))
        for job, step in self._running.values():
            steps = step.num_steps if step else 0
            what = f"  task {job.task.task_id:03} {job.policy.row_name}, step {steps}: "
            line = Text(what + job.task.intent, style="dim", no_wrap=True, overflow="ellipsis")
            lines.append(line)
        return Group(*lines)

    def _time_left(self, episodes: int) -> str:
        seconds = self._seconds_left(episodes)
        return "done" if episodes == 0 else "-" if seconds is None else _duration(seconds)

    def _seconds_left(self, episodes: int) -> float | None:
        """Estimate the time for `episodes` from the duration of recent ones; None without any."""
        recent = self._seconds[-_RECENT:]
        return episodes * sum(recent) / len(recent) / self._workers if recent else None

    @property
    def _elapsed(self) -> float:
        return time.monotonic() - self._began


def _duration(seconds: float) -> str:
    """Format seconds as `04:10`, or `1:04:10` and more hours."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes:02}:{rest:02}"


_LEGEND = (
    "95 %: interval from a bootstrap over tasks. won/lost: episodes that only this policy solved, "
    "and that only {baseline} solved. p: sign-flip test over tasks, corrected for the number of "
    "policies.{unequal} hot, cold, all: {unit} of the cache, mean over episodes: entries that "
    "every token attends to, at the peak; evicted ones that may come back; both. {where} smaller: "
    "all bytes of {stored} divided by all bytes of this policy."
)
_ONE_MEMORY = "On a CPU all of them lie in one memory."
_INT4 = f"{_ONE_MEMORY} int4 needs fewer in all than a cold tier in 8 bits."
_UNEQUAL = (
    " An interval asks how far figures move with other tasks, p whether chance explains the "
    "difference: they may disagree."
)
_UNITS = (("GiB", 2.0**30), ("MiB", 2.0**20), ("KiB", 2.0**10))


def _caption(rows: Sequence[Row], text: str) -> Text:
    """Return what stands below a table: a warning if its rows need one, and `text`."""
    warning = unreset_warning(rows)
    return Text.assemble((f"{warning}\n" * bool(warning), "yellow"), text)


def _p_value(value: float) -> str:
    return "<0.001" if value < 0.001 else f"{value:.3f}"


def result_table(rows: Sequence[Row]) -> Table:
    """Return success and cache bytes by policy, paired with the baseline; fits 80 columns."""
    summaries = summarize(rows)
    most = max((each.all_bytes or 0.0 for each in summaries), default=0.0)
    unit, size = next((each for each in _UNITS if most >= 2 * each[1]), _UNITS[-1])
    legend = _LEGEND.format(
        baseline=baseline_name(summaries),
        unequal=_UNEQUAL * seem_to_disagree(policy_lines(summaries)),
        unit=unit,
        where=_INT4 if any(each.cold_bytes for each in summaries) else _ONE_MEMORY,
        stored=stored_baseline(summaries),
    )
    table = Table(
        box=None,
        padding=(0, 1, 0, 0),
        header_style="bold",
        caption=_caption(rows, legend),
        caption_justify="left",
    )
    table.add_column("policy", overflow="fold", max_width=18)
    for name in ("success", "95 %", "won/lost", "p", "hot", "cold", "all", "smaller"):
        table.add_column(name, justify="right", no_wrap=True)
    for summary in summaries:
        against = summary.against
        low, high = summary.interval
        hot, cold, both = (
            "-" if not count else f"{count / size:.1f}"
            for count in (summary.hot_bytes, summary.cold_bytes, summary.all_bytes)
        )
        table.add_row(
            Text(summary.label),
            f"{summary.success.num_successes}/{summary.success.num_episodes} "
            f"{100 * summary.success.value:.0f} %",
            f"{100 * low:.0f}-{100 * high:.0f}",
            "-" if against is None else f"{against.only_second}/{against.only_first}",
            "-" if summary.p_value is None else _p_value(summary.p_value),
            hot,
            cold,
            both,
            "-" if summary.all_ratio is None else f"{summary.all_ratio:.1f}x",
        )
    return table


def parts_table(rows: Sequence[Row]) -> Table | None:
    """Return where the time of the episodes went; None if no row was profiled. Fits 80 columns."""
    times = part_times(rows)
    if not times:
        return None
    num = sum(row.parts is not None for row in rows)
    table = Table(
        box=None,
        padding=(0, 1, 0, 0),
        header_style="bold",
        caption=_caption(
            rows,
            f"mean of {num} episode{'s' * (num != 1)}, {sum(t.seconds for t in times):.2f} s",
        ),
        caption_justify="left",
    )
    table.add_column("part", overflow="fold", max_width=40)
    table.add_column("s/episode", justify="right", no_wrap=True)
    table.add_column("share", justify="right", no_wrap=True)
    for part in times:
        table.add_row(Text(part.name), f"{part.seconds:.3f}", percent(part.share))
    return table


def failure_lines(rows: Sequence[Row]) -> list[str]:
    """Describe the episodes that the harness ended, one line per policy that has any."""
    lines = []
    for summary in summarize(rows):
        if summary.failures:
            counts = ", ".join(f"{count} {status}" for status, count in summary.failures.items())
            lines.append(f"{summary.label}: {counts} (counted as failures)")
    return lines


def interruption_lines(rows: Sequence[Row]) -> list[str]:
    """Say which policies have episodes that were interrupted or played again, a line for each."""
    lines = []
    for summary in summarize(rows):
        again = [row for row in summary.rows if row.attempts]
        if again:
            counts = Counter(attempt.status for row in again for attempt in row.attempts)
            causes = ", ".join(f"{count} {status}" for status, count in sorted(counts.items()))
            lines.append(
                f"{summary.label}: {len(again)} episode{'s' * (len(again) != 1)} played again "
                f"after {causes}"
            )
        if num_resumed := sum(row.resumed_steps > 0 for row in summary.rows):
            lines.append(
                f"{summary.label}: {num_resumed} episode{'s' * (num_resumed != 1)} resumed from a "
                "checkpoint"
            )
    return lines


def position_lines(rows: Sequence[Row]) -> list[str]:
    """Say which policies continued past the model's context length, one line for each."""
    lines = []
    for summary in summarize(rows):
        own = [row.renumberings for row in summary.rows if row.renumberings]
        if own:
            lines.append(
                f"{summary.label}: {len(own)} episode{'s' * (len(own) != 1)} continued past the "
                f"model's context length; positions were renumbered {sum(own)} "
                f"time{'s' * (sum(own) != 1)}"
            )
    return lines


def scoring_lines(rows: Sequence[Row]) -> list[str]:
    """Say how many episodes the other scoring scores differently; nothing if it is none."""
    own = [row for row in rows if row.other_score is not None and row.other_score != row.score]
    if not own:
        return []
    chosen = own[0].settings.get("scoring", "compat")
    other = "mended" if chosen == "compat" else "compat"
    tasks = sorted({row.task_id for row in own})
    return [
        f"{other} scoring scores {len(own)} episode{'s' * (len(own) != 1)} differently, of task"
        f"{'s' * (len(tasks) != 1)} {', '.join(map(str, tasks))}"
    ]


def task_table(tasks: Sequence[Task]) -> Table:
    """Return the tasks of a suite: id, category, steps of the solution and goal."""
    table = Table(box=None, padding=(0, 1, 0, 0), header_style="bold")
    for name in ("id", "category", "steps", "goal"):
        table.add_column(name, justify="right" if name in ("id", "steps") else "left")
    for task in tasks:
        steps = str(len(task.solution)) if task.solution else "-"
        mark = " (image)" if task.reads_image else ""
        table.add_row(str(task.task_id), (task.category or "-") + mark, steps, Text(task.intent))
    return table
