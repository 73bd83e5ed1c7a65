"""Play episodes in a browser, and append those that reach their goal to a file of recordings."""

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from playwright.sync_api import Error as PlaywrightError

from agentkv.agent import Agent
from agentkv.models.model import Conversation, Model, Reply
from agentkv.models.scripted import SolutionStuck
from agentkv.recordings import RecordedStep, Recording, RecordingFile
from agentkv.trace import Step
from agentkv_env.browser import Browser
from agentkv_env.errors import ActionFailed, BrowserGone
from agentkv_env.ocr import Ocr, default_cache
from agentkv_env.page import Page
from agentkv_tasks.evaluate import CannotScore, Graders
from agentkv_tasks.own_sites.serving import SiteError
from agentkv_tasks.own_sites.sign_in import SignInError
from agentkv_tasks.record.sources import Episode, Source
from agentkv_tasks.run.plan import make_plan
from agentkv_tasks.run.played_sites import PlayedSites, sites_of
from agentkv_tasks.run.played_task import EpisodeEnd, begun, first_line, score_of
from agentkv_tasks.settings import RunSettings
from agentkv_tasks.suites import Suite


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one episode."""

    key: str
    dropped: str = ""
    """Why it was not recorded; empty if it was."""


class Recorder:
    """A model that replies as another one, and keeps its pages and replies."""

    name = "recorder"

    def __init__(self, model: Model) -> None:
        self._model = model
        self._conversation: Conversation | None = None
        self.steps: list[RecordedStep] = []

    def begin(self, goal: str, *, seed: int = 0) -> "Recorder":
        self._conversation = self._model.begin(goal, seed=seed)
        return self

    def reply(self, page: Page, note: str = "", deadline: float | None = None) -> Reply:
        assert self._conversation is not None, "begin() comes first"
        reply = self._conversation.reply(page, note, deadline)
        self.steps.append(RecordedStep(page, reply.text, note))
        return reply


def record(
    sources: Sequence[Source],
    path: Path,
    *,
    browser_path: Path | None = None,
    on_episode: Callable[[Outcome], None],
) -> None:
    """Play the episodes of `sources` and append to `path` those that score 1.

    Episodes that the file holds are not played again. Each is played after a reset of its sites.

    Args:
        on_episode: told of each episode that was played.

    Raises:
        RecordingError: a ValueError; `path` is no file of recordings.
        WriteError: the file could not be written; earlier recordings are complete.
        BrowserMissing: no browser was found.
        ValueError: a password of the user's own sites is missing.
    """
    with RecordingFile(path) as file, _Browsers(browser_path) as browsers:
        ocr = Ocr.find(default_cache())
        for source in sources:
            missing = [each for each in source.episodes if each.key not in file.keys]
            if not missing:
                continue
            with _sites(source) as sites:
                for episode in missing:
                    try:
                        found = _played(source, episode, sites, browsers.running(), ocr)
                    except (SolutionStuck, ActionFailed, SiteError, SignInError) as error:
                        found = str(error)
                    except (BrowserGone, PlaywrightError, CannotScore) as error:
                        found = first_line(error)
                    if isinstance(found, Recording):
                        file.append(found)
                        on_episode(Outcome(episode.key))
                    else:
                        on_episode(Outcome(episode.key, found))


def _sites(source: Source) -> PlayedSites:
    """Return the sites of a source, not yet started."""
    suite = Suite(
        source.suite,
        source.world_seed or 0,
        tuple(each.task for each in source.episodes),
        "",
        source.sites,
    )
    elsewhere = {} if source.sites is None else source.sites.placeholders
    settings = RunSettings(model="solution")
    return sites_of(make_plan(settings, suite, suite.tasks, sites=elsewhere, threads=1))


def _played(
    source: Source, episode: Episode, sites: PlayedSites, browser: Browser, ocr: Ocr | None
) -> Recording | str:
    """Return the recording of an episode, or why it is none."""
    task = episode.task
    log_in = sites.begin(task, browser)
    with begun(
        task, browser, sites.addresses, ocr=ocr, log_in=log_in, secrets=sites.named_secrets
    ) as (session, goal):
        recorder = Recorder(episode.model(sites.addresses))
        most = task.max_steps if episode.replies is None else len(episode.replies.steps)
        played = Agent(recorder).run(session, goal, max_steps=most)
        if played.status != "stopped":
            return f"{played.status} after {len(played.steps)} steps{_because(played.error)}"
        end = EpisodeEnd.of(session, played.answer, browser, sites.addresses)
        graders = Graders(admin=sites.admin)
        score = score_of(task, end, browser, sites.addresses, graders=graders)
    if score.value < 1.0:
        return f"scored {score.value:g}{_because(score.reason)}"
    found = Recording(
        key=episode.key,
        goal=goal,
        steps=_counted(recorder.steps, played.steps),
        suite=source.suite,
        task_id=task.task_id,
        world_seed=source.world_seed,
        thoughts=episode.thoughts,
    )
    # Embedded sites have no secrets, whatever the agent types into their password fields.
    secrets = played.secrets
    if source.world_seed is None and secrets.mask(line := str(found.to_json())) != line:
        return "holds a secret; name it in the task as <secret:name>"
    return found


def _counted(recorded: Sequence[RecordedStep], steps: Sequence[Step]) -> tuple[RecordedStep, ...]:
    """Return the recorded steps, of which those count that did what they say."""
    return tuple(
        replace(each, counts=bool(step.action) and not step.error)
        for each, step in zip(recorded, steps, strict=True)
    )


def _because(reason: str) -> str:
    return f": {reason}" if reason else ""


class _Browsers:
    """Context manager for one browser, which is launched again after a crash."""

    def __init__(self, executable: Path | None) -> None:
        self._executable = None if executable is None else str(executable)
        self._stack = contextlib.ExitStack()
        self._browser: Browser | None = None

    def running(self) -> Browser:
        """Return the browser."""
        if self._browser is None or not self._browser.is_alive:
            self._browser = self._stack.enter_context(Browser.launch(executable=self._executable))
        return self._browser

    def __enter__(self) -> "_Browsers":
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()
