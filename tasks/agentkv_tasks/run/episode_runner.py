"""What a worker keeps from one episode to the next, and how it runs one."""

import contextlib
import re
import shutil
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from playwright.sync_api import Error as PlaywrightError

from agentkv.build import make_agent
from agentkv.files import NotWritten
from agentkv.masking import Secrets
from agentkv.trace import Episode, Step, TraceWriter
from agentkv_env.browser import Browser
from agentkv_env.errors import ActionFailed, BrowserGone
from agentkv_env.ocr import Ocr, default_cache
from agentkv_env.session import Session
from agentkv_env.sites.server import Server
from agentkv_env.sites.world import World
from agentkv_tasks.addresses import Addresses
from agentkv_tasks.evaluate import Final, Unjudged, evaluate
from agentkv_tasks.peak_memory import peak_rss_bytes, reset_peaks
from agentkv_tasks.provenance import processor
from agentkv_tasks.results import Row
from agentkv_tasks.run.plan import Job, Plan, trace_path
from agentkv_tasks.run.remote import Connection, ModelGone, Peaks, RemoteActing, RemoteModel

_OUTSIDE_SETTLE_S = 3.0  # VisualWebArena's own wait before it reads a page it has opened

_EVALUATION_S = 60.0


class EpisodeRunner:
    """The things an episode needs, kept from one to the next: sites, browser, a line to the model.

    A context manager; after the browser was lost it is launched anew for the next episode.

    Args:
        line: to the process that holds the model; None for scripts, which need none.

    Raises:
        ValueError: the browser or a port cannot be had; the message says what to do.
        ModelGone: the model's process has ended, then or in an episode.
    """

    def __init__(self, plan: Plan, line: Connection | None) -> None:
        self._plan, self._line = plan, line
        self._settings = plan.settings
        self._stack = contextlib.ExitStack()
        self._browser_stack = contextlib.ExitStack()
        self._browser: Browser | None = None
        self._model: RemoteModel | None = None
        self._server: Server | None = None
        self._ocr: Ocr | None = None
        self.addresses = Addresses({}, {})

    def __enter__(self) -> "EpisodeRunner":
        try:
            self._server = self._stack.enter_context(Server(World(self._plan.suite.world_seed)))
            self.addresses = _addresses(self._server, self._plan)
            self._ocr = Ocr.find(default_cache()) if self._settings.ocr else None
            self._launch()
            if self._line is not None:
                self._model = RemoteModel(self._line)  # which is loaded by then, or soon
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._browser_stack.close()
        self._stack.close()

    @property
    def device(self) -> str:
        """Where the model computes: the GPU's name, or the processor's."""
        return processor() if self._model is None else self._model.device

    def run(self, job: Job, report: Callable[[Step], None]) -> Row:
        """One episode of `job`; whatever goes wrong inside becomes the row's status and error."""
        path = trace_path(self._settings.out, job.stem)
        steps: list[Step] = []
        secrets = Secrets()
        for text in (job.task.start_url, *self._plan.sites.values()):
            secrets.add_credentials(text)
        row = blank_row(self._plan, job, device=self.device)
        started = time.monotonic()
        reset_peaks()

        def on_step(step: Step) -> None:
            steps.append(step)
            trace.step(step)
            report(step)

        head = {
            "key": job.key,
            "goal": job.task.intent,
            "task": job.task.model_dump(mode="json"),
            "policy": job.policy.row_name,
            "policy_parameters": dict(job.policy_parameters),
            "model": self._settings.model,
            "seed": job.seed,
            "suite": self._plan.suite.name,
            "world_seed": self._plan.suite.world_seed,
        }
        try:
            path.unlink(missing_ok=True)  # left by a run that was killed in the middle
            shutil.rmtree(path.with_suffix(""), ignore_errors=True)
            with TraceWriter(path, head=head, secrets=secrets) as trace:
                pictures = path.with_suffix("")
                row = self._tried(job, row, trace, on_step, pictures, secrets)
        except (NotWritten, OSError) as error:  # of the trace itself
            row = _crashed(row, error)
        row = self._shown(row, secrets)
        if row.status == "env_error":
            self._close_browser()
        if self._model is not None:
            peaks = self._model.end()
        elif self._settings.deterministic:
            peaks = Peaks()
        else:
            peaks = Peaks(peak_rss_bytes())
        return replace(
            row,
            **_costs(steps),
            seconds=round(time.monotonic() - started, 3),
            allocator_peak_bytes=peaks.allocator_bytes,
            rss_peak_bytes=peaks.rss_bytes,
            finished_at=datetime.now(UTC).isoformat(timespec="seconds"),
        )

    def _tried(
        self,
        job: Job,
        row: Row,
        trace: TraceWriter,
        on_step: Callable[[Step], None],
        pictures: Path,
        secrets: Secrets,
    ) -> Row:
        try:
            return self._episode(job, row, trace, on_step, pictures, secrets)
        except Unjudged as error:
            return replace(row, status="unjudged", score=None, error=str(error))
        except (ActionFailed, BrowserGone, PlaywrightError) as error:
            return replace(row, status="env_error", error=_first_line(error))
        except ModelGone:
            raise
        except Exception as error:  # the episode's edge: one bad episode must not end the run
            with contextlib.suppress(OSError):  # a disk that is full takes no log either
                print(secrets.mask(traceback.format_exc()), file=sys.stderr, flush=True)
            return _crashed(row, error)

    def _shown(self, row: Row, secrets: Secrets) -> Row:
        """`row` as it may be written: no secrets, and nothing that differs from run to run."""

        def shown(text: str) -> str:
            text = secrets.mask(self.addresses.public(text))
            return _MEMORY.sub("at 0x...", text)

        return replace(
            row, answer=secrets.mask(row.answer), error=shown(row.error), reason=shown(row.reason)
        )

    def _episode(
        self,
        job: Job,
        row: Row,
        trace: TraceWriter,
        on_step: Callable[[Step], None],
        pictures: Path,
        secrets: Secrets,
    ) -> Row:
        task = job.task
        assert self._server is not None and self._browser is not None
        self._server.reset()
        if not self._browser.is_alive:
            self._close_browser()
            self._launch()
        with self._session(task.start_urls, task) as session:
            session.open(*(self.addresses.fill(url) for url in task.start_urls))
            solution = [self.addresses.fill(line) for line in task.solution]
            agent = make_agent(self._settings, model=self._acting(job), solution=solution)
            episode = agent.run(
                session,
                task.intent,
                max_steps=min(task.max_steps, self._settings.max_steps or task.max_steps),
                timeout_s=self._settings.timeout_s,
                seed=job.seed,
                on_step=on_step,
                screenshots=pictures if self._settings.screenshots else None,
                secrets=secrets,
            )
            trace.end(episode)
            row = replace(row, status=episode.status, answer=episode.answer, error=episode.error)
            if episode.status in ("env_error", "timeout"):
                return row
            return self._scored(task, row, episode, session)

    def _acting(self, job: Job) -> RemoteActing | None:
        if self._model is None:
            return None
        # A policy that keeps everything is given no budget, whatever the run's is.
        return self._model.with_cache(job.policy, job.policy_parameters["budget"])

    def _scored(self, task: Any, row: Row, episode: Episode, session: Session) -> Row:
        assert self._browser is not None
        with self._browser.watchdog.limit(_EVALUATION_S):  # a check runs scripts of the page's
            final = Final.of(session.page, episode.answer, self.addresses)
            score = evaluate(
                task,
                final,
                page=session.page,
                addresses=self.addresses,
                scoring=self._plan.scoring,
            )
        return replace(
            row, score=score.value, success=score.value == 1.0, reason=_short(score.reason)
        )

    def _session(self, urls: tuple[str, ...], task: Any) -> Session:
        assert self._browser is not None
        size = task.viewport_size
        width = (size and size.width) or 1280
        height = (size and size.height) or 1024
        return self._browser.session(
            hosts=self.addresses.hosts(*urls),
            addresses=dict(self.addresses.origins),
            viewport=(width, height),
            ocr=self._ocr,
        )

    def _launch(self) -> None:
        path = self._settings.browser_path
        launched = Browser.launch(executable=str(path) if path else None)
        self._browser = self._browser_stack.enter_context(launched)

    def _close_browser(self) -> None:
        """Let the browser go; the next episode launches another."""
        try:
            self._browser_stack.close()
        except (BrowserGone, PlaywrightError):
            pass  # what is gone cannot be closed
        self._browser_stack = contextlib.ExitStack()


def blank_row(plan: Plan, job: Job, *, device: str = "") -> Row:
    """The row of an episode of which nothing is known yet."""
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


def _addresses(server: Server, plan: Plan) -> Addresses:
    placeholders = {**server.placeholders, **plan.sites}
    settle = _OUTSIDE_SETTLE_S if plan.sites else 0.0
    return Addresses(placeholders, server.addresses, settle_s=settle)


def _costs(steps: list[Step]) -> dict[str, Any]:
    """The figures of a row that add up over steps; None where the model has no cache."""
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
            "kv_seen_tokens": cached[-1].seen_tokens,
            "prefill_s": round(sum(step.prefill_s for step in steps), 4),
            "decode_s": round(sum(step.decode_s for step in steps), 4),
        }
    return costs


def _crashed(row: Row, error: Exception) -> Row:
    kind = "" if isinstance(error, NotWritten) else f"{type(error).__name__}: "
    return replace(
        row, status="crash", success=False, score=0.0, error=f"{kind}{_first_line(error)}"
    )


_MEMORY = re.compile(r"\bat 0x[0-9a-f]{6,}")


def _first_line(error: BaseException) -> str:
    return _short(str(error).strip().partition("\n")[0] or type(error).__name__)


def _short(text: str, limit: int = 400) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"
