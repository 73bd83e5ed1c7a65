"""One episode: look, answer, act, until something ends it."""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol, runtime_checkable
from urllib.parse import urlsplit, urlunsplit

from agentkv.files import make_folder, write_whole
from agentkv.masking import Secrets
from agentkv.models.model import ContextLimit, Model, Reply
from agentkv.trace import Episode, Status, Step
from agentkv_env.actions import Action, ActionError, extract, parse, render
from agentkv_env.errors import ActionFailed, BrowserGone
from agentkv_env.page import Page
from agentkv_env.serialize import neutralize

MAX_NOTE = 200
"""Characters of an error that the model is told; it may quote the page or the model at length."""


@runtime_checkable
class Environment(Protocol):
    """What the loop needs of the web; `agentkv_env.browser.Session` is one."""

    def observe(self) -> Page:
        """The current page. Raises `BrowserGone` when there is no telling."""
        ...

    def act(self, action: Action) -> None:
        """Do it. Raises `ActionFailed` for what the model should hear of, or `BrowserGone`."""
        ...

    def screenshot(self) -> bytes:
        """A JPEG of the viewport; empty where the page cannot be drawn. Raises `BrowserGone`."""
        ...


@dataclass(frozen=True, slots=True)
class Limits:
    """What an episode is to do and when it must end; `agentkv.agent.Agent` says what each means."""

    goal: str
    seed: int
    strict: bool
    max_steps: int
    max_parse_failures: int
    max_repeats: int
    timeout_s: float
    on_step: Callable[[Step], None] | None
    screenshots: Path | None
    secrets: Secrets


def run_episode(model: Model, environment: Environment, limits: Limits) -> Episode:
    """Run one episode of `model` on `environment`. Raises what `Agent.run` raises."""
    return _EpisodeLoop(model, environment, limits).episode()


@dataclass(frozen=True, slots=True)
class _Shown:
    """What the model met in one turn, and its reply."""

    page: Page
    screenshot: str
    note: str
    reply: Reply


class _Ended(Exception):
    """The episode is over."""

    def __init__(self, status: Status, *, answer: str = "", error: str = "") -> None:
        super().__init__(status)
        self.status: Status = status
        self.answer = answer
        self.error = error


class _EpisodeLoop:
    """One episode. Every way out of `_turn` but the next turn is an `_Ended`."""

    def __init__(self, model: Model, environment: Environment, limits: Limits) -> None:
        self._environment = environment
        self._limits = limits
        self._started = time.monotonic()
        self._talk = model.begin(limits.goal, seed=limits.seed)
        self._steps: list[Step] = []
        self._note = ""
        self._num_unread = 0
        self._num_repeats = 0
        self._last: tuple[Page, Action] | None = None
        self._secrets = limits.secrets

    def episode(self) -> Episode:
        try:
            while len(self._steps) < self._limits.max_steps:
                self._turn()
            raise _Ended("step_limit")
        except _Ended as end:
            return Episode(
                status=end.status,
                answer=end.answer,
                steps=tuple(self._masked(step) for step in self._steps),
                seconds=time.monotonic() - self._started,
                error=self._secrets.mask(end.error),
                secrets=self._secrets,
            )

    def _turn(self) -> None:
        began = time.monotonic()
        page, screenshot = self._look()
        reply = self._ask(page)

        shown = _Shown(page, screenshot, self._note, reply)

        def record(action: Action | None, error: str = "") -> None:
            self._record(shown, action, error, seconds=time.monotonic() - began)

        try:
            strict = self._limits.strict
            action = parse(extract(reply.text, strict=strict), strict=strict)
        except ActionError as error:
            record(None, str(error))
            self._unread(error)
            return
        self._num_unread = 0
        if action.kind == "stop":
            record(action)
            raise _Ended("stopped", answer=action.answer)
        if self._is_stuck(page, action):
            record(action, "not done: repeated without effect")
            raise _Ended("repetition")
        self._note = ""
        try:
            self._environment.act(action)
        except ActionFailed as error:
            # It may quote the page, and the page must not write numbers or fences in our name.
            self._note = _note(neutralize(str(error)))
            record(action, str(error))
        except BrowserGone as error:
            record(action, str(error))
            raise _Ended("env_error", error=str(error)) from error
        else:
            record(action)

    def _look(self) -> tuple[Page, str]:
        """The page, and the name of its picture."""
        if time.monotonic() > self._started + self._limits.timeout_s:
            raise _Ended("timeout", error=f"{self._limits.timeout_s:g} s are over")
        try:
            page = self._environment.observe()
            folder = self._limits.screenshots
            if folder is None:
                return page, ""
            picture = self._environment.screenshot()
        except BrowserGone as error:
            raise _Ended("env_error", error=str(error)) from error
        if not picture:
            return page, ""
        name = f"{len(self._steps):03}.jpg"
        make_folder(folder)
        write_whole(folder / name, picture)
        return page, name

    def _ask(self, page: Page) -> Reply:
        try:
            return self._talk.reply(page, self._note, self._started + self._limits.timeout_s)
        except TimeoutError as error:
            raise _Ended("timeout", error=str(error)) from error
        except ContextLimit as error:
            raise _Ended("context_limit", error=str(error)) from error

    def _unread(self, error: ActionError) -> None:
        self._note = _note(neutralize(str(error)))
        self._last = None
        self._num_unread += 1
        if self._num_unread == self._limits.max_parse_failures:
            raise _Ended("parse_limit")

    def _is_stuck(self, page: Page, action: Action) -> bool:
        now = (replace(page, notices=()), action)
        self._num_repeats = self._num_repeats + 1 if self._last == now else 1
        self._last = now
        return self._num_repeats == self._limits.max_repeats

    def _record(self, shown: _Shown, action: Action | None, error: str, seconds: float) -> None:
        page, reply = shown.page, shown.reply
        for secret in _typed_secrets(page, action):
            self._secrets.add(secret)
        self._secrets.add_credentials(page.url)
        if action is not None:
            self._secrets.add_credentials(action.url)
        cache = reply.cache
        step = Step(
            index=len(self._steps),
            url=_without_credentials(page.url),
            observation=reply.observation,
            note=shown.note,
            reply=reply.text,
            action=render(action) if action is not None else "",
            error=error,
            num_tokens_in=reply.num_tokens_in,
            num_tokens_out=reply.num_tokens_out,
            seen_tokens=cache.seen_tokens if cache else 0,
            cache_bytes=cache.live_bytes if cache else 0,
            cache_peak_bytes=cache.peak_bytes if cache else 0,
            prefill_s=reply.prefill_s,
            decode_s=reply.decode_s,
            seconds=seconds,
            screenshot=shown.screenshot,
        )
        step = self._masked(step)
        self._steps.append(step)
        if self._limits.on_step is not None:
            self._limits.on_step(step)

    def _masked(self, step: Step) -> Step:
        mask = self._secrets.mask
        return replace(
            step,
            url=mask(step.url),
            observation=mask(step.observation),
            note=mask(step.note),
            reply=mask(step.reply),
            action=mask(step.action),
            error=mask(step.error),
        )


def _note(text: str) -> str:
    """An error as the model hears of it."""
    return "error: " + (text if len(text) <= MAX_NOTE else text[: MAX_NOTE - 3] + "...")


def _typed_secrets(page: Page, action: Action | None) -> set[str]:
    """What `action` types into a password field of `page`, if that is what it does."""
    if action is None or action.kind != "type" or action.element_id is None or not action.text:
        return set()
    node = page.element(action.element_id)
    return {action.text} if node is not None and "password" in node.states else set()


def _without_credentials(url: str) -> str:
    parts = urlsplit(url)
    if "@" not in parts.netloc:
        return url
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))
