"""Run episodes one after another, keeping the sites, the browser and the model's connection."""

import contextlib
import functools
import re
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from playwright.sync_api import Error as PlaywrightError

from agentkv.build import make_agent
from agentkv.files import WriteError
from agentkv.models.model import Model
from agentkv.trace import Episode, Step, TraceWriter
from agentkv_env.browser import Browser
from agentkv_env.errors import ActionFailed, BrowserGone
from agentkv_env.masking import Secrets
from agentkv_env.ocr import Ocr, default_cache
from agentkv_env.session import Session
from agentkv_env.timing import Stopwatch, timed
from agentkv_tasks.addresses import Addresses
from agentkv_tasks.evaluate import SCORINGS, CannotScore, Graders
from agentkv_tasks.miniwob import script_for
from agentkv_tasks.miniwob.script import Script
from agentkv_tasks.own_sites.serving import SiteError
from agentkv_tasks.own_sites.sign_in import SignInError
from agentkv_tasks.peak_memory import peak_rss_bytes, reset_peaks
from agentkv_tasks.provenance import processor, versions
from agentkv_tasks.results import FAILURES, Row
from agentkv_tasks.run.attempts import remove_traces
from agentkv_tasks.run.checkpoints import (
    Checkpoint,
    Checkpointed,
    Diverged,
    checkpoint_folder,
    has_checkpoints,
    load_checkpoint,
    remove_checkpoint,
)
from agentkv_tasks.run.plan import Job, Plan, trace_path
from agentkv_tasks.run.played_sites import PlayedSites, sites_of
from agentkv_tasks.run.played_task import EpisodeEnd, begun, first_line, score_of
from agentkv_tasks.run.playwright_trace import PlaywrightTrace, playwright_trace_path
from agentkv_tasks.run.remote import Connection, ModelGone, Peaks, RemoteActing, RemoteModel
from agentkv_tasks.task import Task

EPISODES_PER_BROWSER = 100
"""Episodes after which another browser is launched (our choice): the renderer of one that lives on
grows by some 10 KiB an episode."""


class EpisodeRunner:
    """Runs episodes; keeps the sites, the browser and the connection to the model between them.

    A context manager. After an episode that the harness ended, and after `EPISODES_PER_BROWSER`,
    the browser is ended with all its processes, and the next episode launches another one.

    Args:
        connection: connection to the process that holds the model; None for scripts.

    Raises:
        ValueError: the browser or a port is unavailable; the message says what to do.
        ModelGone: the model's process has ended, at the start or during an episode.
    """

    def __init__(self, plan: Plan, connection: Connection | None) -> None:
        self._plan, self._connection = plan, connection
        self._settings = plan.settings
        self._versions = versions()
        self._stack = contextlib.ExitStack()
        self._browser_stack = contextlib.ExitStack()
        self._browser: Browser | None = None
        self._num_played = 0
        """Episodes that the browser has played."""
        self._model: RemoteModel | None = None
        self._ocr: Ocr | None = None
        self._stopwatch: Stopwatch | None = None
        """Times the current episode; None unless the run profiles."""
        self._sites: PlayedSites | None = None
        self.addresses = Addresses({}, {})

    def __enter__(self) -> "EpisodeRunner":
        try:
            self._sites = self._stack.enter_context(sites_of(self._plan))
            self.addresses = self._sites.addresses
            self._ocr = Ocr.find(default_cache()) if self._settings.ocr else None
            self._launch()
            if self._connection is not None:
                self._model = RemoteModel(self._connection)  # waits until the model is loaded
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._browser_stack.close()
        self._stack.close()

    @property
    def device(self) -> str:
        """Name of the GPU or processor that runs the model."""
        return processor() if self._model is None else self._model.device

    def run(self, job: Job, report: Callable[[Step], None]) -> Row:
        """Run one episode. Errors inside it become the status and error of the row.

        Raises:
            ModelGone: the model's process has ended.
            WriteError: the trace or a screenshot could not be written.
        """
        path = trace_path(self._settings.out, job.stem)
        playwright_path = playwright_trace_path(self._settings.out, job.stem)
        steps: list[Step] = []
        secrets = Secrets()
        if self._sites is not None:
            secrets.update(self._sites.secrets)
        secrets.add_credentials(job.task.start_url)
        row = blank_row(self._plan, job, device=self.device)
        head = self._head(job)
        resumed = self._checkpoint(job, head)
        started = time.monotonic()
        self._stopwatch = Stopwatch() if self._settings.profile else None
        reset_peaks()

        def play(resumed: Checkpoint | None) -> Row:
            if resumed is None:
                remove_checkpoint(self._settings.out, job.stem)
                remove_traces(self._settings.out, job.stem)  # a killed run may have left some
            playwright = None
            if self._settings.playwright_traces:
                playwright = PlaywrightTrace(playwright_path, secrets)
            steps[:] = () if resumed is None else resumed.steps
            num_kept = None if resumed is None else len(resumed.steps)

            def on_step(step: Step) -> None:
                if resumed is not None and step.index < len(resumed.steps):
                    resumed.require_same(step)
                else:
                    steps.append(step)
                    trace.step(step)
                if secrets:
                    remove_checkpoint(self._settings.out, job.stem)
                report(step)

            with TraceWriter(path, head=head, secrets=secrets, num_kept=num_kept) as trace:
                recording = _Recording(
                    trace, path.with_suffix(""), secrets, on_step, resumed, playwright
                )
                return self._guarded_episode(job, row, recording)

        try:
            try:
                row = play(resumed)
            except Diverged as difference:
                print(f"the episode starts over: {difference}", file=sys.stderr, flush=True)
                resumed = None
                row = play(None)
        except OSError as error:  # the trace itself failed
            row = _crash_row(row, error)
        is_ended_otherwise = row.status in ("env_error", "timeout", "out_of_memory")
        if not row.success and not is_ended_otherwise and self._sites is not None:
            if cause := self._sites.ended():  # the agent cannot have done better
                row = replace(
                    row,
                    status="env_error",
                    score=0.0,
                    other_score=None,
                    error=_short(cause),
                    reason="",
                )
        row = self._publishable(row, secrets)
        if row.status in ("env_error", "crash", "timeout"):
            self._close_browser()  # a page may still be busy
        if self._model is not None:
            peaks = self._model.end()
        elif self._settings.deterministic:
            peaks = Peaks()
        else:
            peaks = Peaks(peak_rss_bytes())
        return replace(
            row,
            **_totals(steps),
            parts=None if self._stopwatch is None else _rounded(self._stopwatch.read()),
            seconds=round(time.monotonic() - started + _spent_s(resumed), 3),
            resumed_steps=0 if resumed is None else len(resumed.steps),
            allocator_peak_bytes=peaks.allocator_bytes,
            rss_peak_bytes=peaks.rss_bytes,
            finished_at=datetime.now(UTC).isoformat(timespec="seconds"),
        )

    def _head(self, job: Job) -> dict[str, Any]:
        """Return the head of an episode's trace."""
        return {
            "key": job.key,
            "goal": job.task.intent,
            "task": job.task.model_dump(mode="json"),
            "policy": job.policy.row_name,
            "policy_parameters": dict(job.policy_parameters),
            "model": self._settings.model,
            "seed": job.seed,
            "suite": self._plan.suite.name,
            "world_seed": self._plan.suite.world_seed,
            "has_own_sites": self._plan.suite.sites is not None,
            "settings": self._plan.row_settings,
            "versions": self._versions,
        }

    def _checkpoint(self, job: Job, head: Mapping[str, Any]) -> Checkpoint | None:
        """Return the episode as an earlier run left it; None to begin a new one."""
        acting, out = self._model_for(job), self._settings.out
        if not has_checkpoints(self._plan) or not isinstance(acting, RemoteActing):
            return None
        folder = checkpoint_folder(out, job.stem)
        return load_checkpoint(folder, trace_path(out, job.stem), head, acting)

    def _guarded_episode(self, job: Job, row: Row, recording: "_Recording") -> Row:
        try:
            return self._episode(job, row, recording)
        except (ActionFailed, BrowserGone, PlaywrightError, SiteError, SignInError) as error:
            return replace(row, status="env_error", error=_short(first_line(error)))
        except (ModelGone, WriteError, Diverged):
            raise
        except Exception as error:  # one failed episode must not end the run
            with contextlib.suppress(OSError):  # a full disk takes no log either
                print(recording.secrets.mask(traceback.format_exc()), file=sys.stderr, flush=True)
            return _crash_row(row, error)

    def _publishable(self, row: Row, secrets: Secrets) -> Row:
        """Return `row` without secrets and without text that differs between equal runs."""

        def clean(text: str) -> str:
            text = secrets.mask(self.addresses.public(text))
            return _ADDRESS.sub("at 0x...", text)

        return replace(
            row, answer=secrets.mask(row.answer), error=clean(row.error), reason=clean(row.reason)
        )

    def _episode(self, job: Job, row: Row, recording: "_Recording") -> Row:
        task = job.task
        assert self._sites is not None and self._browser is not None
        if not self._browser.is_alive or self._num_played == EPISODES_PER_BROWSER:
            self._close_browser()
            self._launch()
        self._num_played += 1
        log_in = self._sites.begin(task, self._browser)
        own, out_of_bounds = self._plan.suite.sites, []
        if own is not None and self._settings.workers > 1:
            out_of_bounds = [own.public_address(name) for name in own.left_to_others(task)]
        with begun(
            task,
            self._browser,
            self.addresses,
            ocr=self._ocr,
            log_in=log_in,
            out_of_bounds=out_of_bounds,
            playwright_trace=recording.playwright,
            strict=self._settings.strict,
            secrets=self._sites.named_secrets,
            stopwatch=self._stopwatch,
        ) as (session, goal):
            trace, resumed = recording.trace, recording.resumed
            if goal != task.intent and resumed is None:
                trace.goal(goal)
            solution = [self.addresses.fill(line) for line in task.solution]
            model: Model | None = self._model_for(job)
            if has_checkpoints(self._plan) and isinstance(model, RemoteActing):
                model = Checkpointed(
                    model,
                    checkpoint_folder(self._settings.out, job.stem),
                    every_s=self._settings.checkpoint_s,
                    may_save=lambda: not recording.secrets,
                    resumed=resumed,
                )
            agent = make_agent(self._settings, model=model, solution=solution)
            episode = agent.run(
                session,
                goal,
                max_steps=min(task.max_steps, self._settings.max_steps or task.max_steps),
                timeout_s=max(1.0, self._settings.timeout_s - _spent_s(resumed)),
                seed=job.seed,
                on_step=recording.on_step,
                screenshots=recording.pictures if self._settings.screenshots else None,
                secrets=recording.secrets,
            )
            trace.end(episode)
            row = replace(row, status=episode.status, answer=episode.answer, error=episode.error)
            if episode.status in FAILURES:
                return row
            return self._score(task, row, episode, session)

    def _model_for(self, job: Job) -> RemoteActing | Script | None:
        """Return the acting model or the task's script; None for the scripts of all tasks."""
        if self._settings.model == "solution" and (play := script_for(job.task)):
            return Script(play)
        if self._model is None:
            return None
        # The resolved budget is None for a policy that keeps everything.
        return self._model.with_cache(
            job.policy, job.policy_parameters["budget"], stopwatch=self._stopwatch
        )

    def _score(self, task: Task, row: Row, episode: Episode, session: Session) -> Row:
        """Score an episode by the run's scoring, and by the other one for comparison."""
        assert self._browser is not None and self._sites is not None
        chosen, judge = self._plan.settings.scoring, self._plan.judge
        (other,) = set(SCORINGS) - {chosen}
        with timed(self._stopwatch, "scoring"):
            score = functools.partial(
                score_of,
                task,
                EpisodeEnd.of(session, episode.answer, self._browser, self.addresses),
                self._browser,
                self.addresses,
                graders=Graders(judge, self._sites.admin),
            )
            try:
                found = score(scoring=chosen)
                row = replace(
                    row,
                    score=found.value,
                    success=found.value == 1.0,
                    reason=_short(found.reason),
                )
            except CannotScore as error:
                row = replace(row, status="unjudged", score=None, error=str(error))
            try:
                row = replace(row, other_score=score(scoring=other).value)
            except Exception:  # the score that counts is there
                row = replace(row, other_score=None)
        if judge is not None:
            judge.forget()
        return row

    def _launch(self) -> None:
        path = self._settings.browser_path
        with timed(self._stopwatch, "browser"):
            launched = Browser.launch(executable=str(path) if path else None)
        self._browser = self._browser_stack.enter_context(launched)
        self._num_played = 0

    def _close_browser(self) -> None:
        """Close the browser; the next episode launches another one."""
        try:
            self._browser_stack.close()
        except (BrowserGone, PlaywrightError):
            pass  # the browser has died
        self._browser_stack = contextlib.ExitStack()


@dataclass(frozen=True, slots=True)
class _Recording:
    """The files of an episode, and the checkpoint from which it resumes."""

    trace: TraceWriter
    pictures: Path
    """Folder for screenshots."""
    secrets: Secrets
    on_step: Callable[[Step], None]
    resumed: Checkpoint | None
    playwright: PlaywrightTrace | None


def _spent_s(resumed: Checkpoint | None) -> float:
    """Return how long an episode has taken in an earlier process."""
    return 0.0 if resumed is None else sum(step.seconds for step in resumed.steps)


def blank_row(plan: Plan, job: Job, *, device: str = "") -> Row:
    """Return the row of an episode with an unknown outcome: a crash without any cost."""
    return Row(
        suite=plan.suite.name,
        world_seed=plan.suite.world_seed,
        task_id=job.task.task_id,
        category=job.task.category or "",
        memory_distance_pages=job.task.memory_distance_pages,
        policy=job.policy.row_name,
        policy_parameters=job.policy_parameters,
        model=plan.settings.model,
        seed=job.seed,
        status="crash",
        success=False,
        score=0.0,
        trace=f"traces/{job.stem}.jsonl",
        settings=plan.row_settings,
        device=device,
    )


def _totals(steps: list[Step]) -> dict[str, Any]:
    """Sum up the steps of an episode; models without a cache leave the cache's fields unset."""
    cached = [step for step in steps if step.seen_tokens]
    costs: dict[str, Any] = {
        "steps": len(steps),
        "parse_failures": sum(not step.action for step in steps),
        "action_failures": sum(bool(step.action and step.error) for step in steps),
    }
    if cached:
        costs |= {
            "tokens_in": sum(step.num_tokens_in for step in steps),
            "tokens_out": sum(step.num_tokens_out for step in steps),
            "kv_peak_bytes": max(step.cache_peak_bytes for step in cached),
            "kv_mean_bytes": round(sum(step.cache_bytes for step in cached) / len(cached)),
            "kv_cold_bytes": cached[-1].cold_bytes,
            "kv_index_bytes": cached[-1].index_bytes,
            "looks": cached[-1].num_looks,
            "changing_looks": cached[-1].num_changing_looks,
            "look_bytes": cached[-1].look_bytes,
            "kv_seen_tokens": cached[-1].seen_tokens,
            "renumberings": cached[-1].num_renumberings,
            "prefill_s": round(sum(step.prefill_s for step in steps), 4),
            "decode_s": round(sum(step.decode_s for step in steps), 4),
        }
    return costs


def _rounded(parts: Mapping[str, float]) -> dict[str, float]:
    return {name: round(seconds, 4) for name, seconds in parts.items()}


def _crash_row(row: Row, error: Exception) -> Row:
    text = f"{type(error).__name__}: {_short(first_line(error))}"
    return replace(row, status="crash", success=False, score=0.0, error=text)


_ADDRESS = re.compile(r"\bat 0x[0-9a-f]{6,}")


def _short(text: str, limit: int = 400) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"
