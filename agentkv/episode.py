"""Run one episode: observe, reply and act, until the agent stops or a limit is reached."""

import time
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol, runtime_checkable
from urllib.parse import urlsplit, urlunsplit

from agentkv.answer_form import AnswerForm, AnswerInvalid
from agentkv.files import make_folder, write_atomic
from agentkv.models.model import (
    Asking,
    CacheUse,
    Cancelled,
    ContextLimit,
    Conversation,
    LastingConversation,
    OutOfMemory,
    Reply,
)
from agentkv.progress import Listener, Phase, Progress
from agentkv.trace import Episode, Status, Step
from agentkv_env.actions import Action, ActionError, extract, parse, render
from agentkv_env.errors import ActionFailed, BrowserGone
from agentkv_env.masking import Secrets
from agentkv_env.named_secrets import without_names
from agentkv_env.page import Page
from agentkv_env.serialize import neutralize

MAX_NOTE_CHARS = 200
"""Maximum length of an error shown to the model, in characters; errors may quote long texts."""

CHANGED_NOTE = "the user did something else instead of the last action"
"""Shown to the model after a hook changed its action. It does not say what was done, because a hook
may have filled in a password."""


class ActionRefused(Exception):
    """Raised in a hook to refuse an action. The model is shown the message and goes on."""


BeforeAction = Callable[[Page, Action], Action | None]
"""A hook that sees each action before it is carried out; see `Session.do`."""


Approve = Callable[[Page, Action], bool]
"""Decides whether an action that may change something is carried out; see `Session.do`."""

REFUSED_NOTE = "the user did not allow the last action; do something else, or stop"
"""Shown to the model after `Approve` refused its action."""


@runtime_checkable
class Environment(Protocol):
    """A page that the agent observes and acts on, such as an `agentkv_env.session.Session`."""

    def observe(self) -> Page:
        """Return the current page.

        Raises:
            BrowserGone: the browser was lost.
        """
        ...

    def act(self, action: Action) -> None:
        """Carry out `action`.

        Raises:
            ActionFailed: the action failed; the model is shown the message.
            BrowserGone: the browser was lost.
        """
        ...

    def screenshot(self) -> bytes:
        """Return a JPEG of the viewport, or empty bytes if the page cannot be drawn.

        Raises:
            BrowserGone: the browser was lost.
        """
        ...


@dataclass(frozen=True, slots=True)
class EpisodeLimits:
    """Limits, hooks and files of one episode; see `Agent` and `Session.do` for each field."""

    strict: bool
    max_steps: int
    max_parse_failures: int
    max_repeats: int
    timeout_s: float
    on_step: Callable[[Step], None] | None
    before_action: BeforeAction | None
    screenshots: Path | None
    secrets: Secrets
    """Secrets to mask; the episode adds those that it finds."""
    is_cancelled: Callable[[], bool]
    """Asked between steps; True ends the episode."""
    approve: Approve | None = None
    on_progress: Listener | None = None
    goal: str = ""
    """The goal, which is asked for again if the answer has a form."""
    form: AnswerForm[Any] | None = None


def run_episode(
    conversation: Conversation, environment: Environment, limits: EpisodeLimits
) -> Episode[Any]:
    """Run one episode on `environment`.

    Args:
        conversation: has been given the goal.

    Raises:
        AnswerInvalid: a ValueError; the answer is none of `limits.form`.
        Exception: any error of the model, of `limits.on_step` or of `limits.before_action`, except
            `TimeoutError`, `ContextLimit`, `OutOfMemory` and `Cancelled` of the model, which end
            the episode, and `ActionRefused` of the hook.
        WriteError: a screenshot could not be written.
    """
    return _EpisodeLoop(conversation, environment, limits).run()


@dataclass(frozen=True, slots=True)
class _Turn:
    """The model's input in one turn, and its reply."""

    page: Page
    screenshot: str
    note: str
    reply: Reply


class _EpisodeOver(Exception):
    """Raised to end the episode with a status."""

    def __init__(self, status: Status, *, answer: Any = None, error: str = "") -> None:
        super().__init__(status)
        self.status: Status = status
        self.answer = answer
        self.error = error


class _EpisodeLoop:
    """The loop of one episode. `_take_turn` raises `_EpisodeOver` to leave it."""

    def __init__(
        self, conversation: Conversation, environment: Environment, limits: EpisodeLimits
    ) -> None:
        self._conversation = conversation
        self._environment = environment
        self._limits = limits
        self._started = time.monotonic()
        self._steps: list[Step] = []
        self._note = ""
        self._num_parse_failures = 0
        """Parse failures in a row."""
        self._num_repeats = 0
        """Equal actions in a row on an unchanged page."""
        self._last: tuple[Page, Action] | None = None
        self._secrets = limits.secrets

    def run(self) -> Episode[Any]:
        try:
            while len(self._steps) < self._limits.max_steps:
                self._take_turn()
            raise _EpisodeOver("step_limit")
        except _EpisodeOver as end:
            nothing = "" if self._limits.form is None else None
            return Episode(
                status=end.status,
                answer=nothing if end.answer is None else end.answer,
                steps=self._masked_steps(),
                seconds=time.monotonic() - self._started,
                error=self._secrets.mask(end.error),
                secrets=self._secrets,
            )

    def _masked_steps(self) -> tuple[Step, ...]:
        # later steps may have shown secrets of earlier ones
        return tuple(step.masked(self._secrets) for step in self._steps)

    def _take_turn(self) -> None:
        started = time.monotonic()
        page = self._observe()
        wait = self._ask(page)
        screenshot = self._take_screenshot()  # beside the model, where it works elsewhere
        turn = _Turn(page, screenshot, self._note, self._get_reply(wait))

        def record(action: Action | None, error: str = "") -> None:
            self._record(turn, action, error, seconds=time.monotonic() - started)

        try:
            strict = self._limits.strict
            action = parse(extract(turn.reply.text, strict=strict), strict=strict)
        except ActionError as error:
            record(None, str(error))
            self._count_parse_failure(error)
            return
        self._num_parse_failures = 0
        written = action
        try:
            action = self._allowed(page, action)
        except ActionRefused as refusal:
            if self._limits.is_cancelled():
                record(action, "not done: cancelled")
                raise _EpisodeOver("cancelled") from refusal
            reason = str(refusal) or "this action is not allowed"
            record(action, f"refused: {reason}")
            if self._is_stuck(page, action):
                raise _EpisodeOver("repetition") from refusal
            self._note = error_note(neutralize(reason))
            return
        if self._limits.is_cancelled():  # while the hook was deciding
            record(action, "not done: cancelled")
            raise _EpisodeOver("cancelled")
        if action.kind == "stop":
            record(action)
            raise _EpisodeOver("stopped", answer=self._final_answer(action.answer))
        if self._is_stuck(page, action):
            record(action, "not done: repeated without effect")
            raise _EpisodeOver("repetition")
        self._note = "" if action == written else CHANGED_NOTE
        self._tell("acting")
        try:
            self._environment.act(action)
        except ActionFailed as error:
            # The error may quote the page, whose brackets and fences must not reach the note.
            self._note = error_note(neutralize(str(error)))
            record(action, str(error))
        except BrowserGone as error:
            record(action, str(error))
            raise _EpisodeOver("env_error", error=str(error)) from error
        else:
            record(action)

    def _allowed(self, page: Page, action: Action) -> Action:
        """Return the action to carry out in place of `action`, as the hook decides.

        Raises:
            ActionRefused: the hook refused it, or nobody approved it.
            TypeError: the hook returned something else than an action or None.
        """
        hook = self._limits.before_action
        chosen = None if hook is None else hook(page, action)
        if chosen is not None and not isinstance(chosen, Action):
            raise TypeError(
                f"before_action returned {chosen!r}; expected an Action to carry out, or None to "
                "allow the one it was given; to refuse it, raise agentkv.ActionRefused"
            )
        action = action if chosen is None else chosen
        approve = self._limits.approve
        if approve is None or action.kind == "stop" or action.only_looks:
            return action
        is_approved = approve(page, action)
        if not isinstance(is_approved, bool):  # such as a coroutine, which is true
            raise TypeError(f"approve returned {is_approved!r}; expected True or False")
        if not is_approved:
            raise ActionRefused(REFUSED_NOTE)
        return action

    def _tell(self, phase: Phase) -> None:
        if self._limits.on_progress is not None:
            self._limits.on_progress(Progress(phase))

    def _observe(self) -> Page:
        if self._limits.is_cancelled():
            raise _EpisodeOver("cancelled")
        if time.monotonic() > self._started + self._limits.timeout_s:
            raise _EpisodeOver(
                "timeout", error=f"the limit of {self._limits.timeout_s:g} s was reached"
            )
        self._tell("looking")
        try:
            page = self._environment.observe()
            return page.without_uses() if self._limits.strict else page
        except BrowserGone as error:
            raise _EpisodeOver("env_error", error=str(error)) from error

    def _take_screenshot(self) -> str:
        """Write a screenshot of the page, and return its file name, empty for none."""
        folder = self._limits.screenshots
        if folder is None:
            return ""
        try:
            image = self._environment.screenshot()
        except BrowserGone as error:
            raise _EpisodeOver("env_error", error=str(error)) from error
        if not image:
            return ""
        name = f"{len(self._steps):03}.jpg"
        make_folder(folder)
        write_atomic(folder / name, image)
        return name

    def _ask(self, page: Page) -> Callable[[], Reply]:
        """Show the page to the model, and return a function that waits for its reply."""
        deadline = self._started + self._limits.timeout_s
        conversation = self._conversation
        if isinstance(conversation, Asking):
            return conversation.ask(page, self._note, deadline)
        return partial(conversation.reply, page, self._note, deadline)

    def _get_reply(self, wait: Callable[[], Reply]) -> Reply:
        try:
            return wait()
        except TimeoutError as error:
            raise _EpisodeOver("timeout", error=str(error)) from error
        except ContextLimit as error:
            raise _EpisodeOver("context_limit", error=str(error)) from error
        except OutOfMemory as error:
            raise _EpisodeOver("out_of_memory", error=str(error)) from error
        except Cancelled as error:
            raise _EpisodeOver("cancelled") from error

    def _final_answer(self, written: str) -> Any:
        """Return what the stop says, or the answer to the goal in the form that is asked for."""
        form, conversation = self._limits.form, self._conversation
        if form is None:
            return written
        assert isinstance(conversation, LastingConversation), "checked before the episode"
        deadline = self._started + self._limits.timeout_s
        reply = self._get_reply(
            lambda: conversation.answer(self._limits.goal, None, deadline, schema=form.schema)
        )
        try:
            return form.read(reply.text)
        except AnswerInvalid as invalid:
            invalid.steps = self._masked_steps()
            raise

    def _count_parse_failure(self, error: ActionError) -> None:
        self._note = error_note(neutralize(str(error)))
        self._last = None
        self._num_parse_failures += 1
        if self._num_parse_failures == self._limits.max_parse_failures:
            raise _EpisodeOver("parse_limit")

    def _is_stuck(self, page: Page, action: Action) -> bool:
        """Count repetitions of `action`, and return whether they reach the limit."""
        now = (replace(page, notices=(), may_change=False), action)
        self._num_repeats = self._num_repeats + 1 if self._last == now else 1
        self._last = now
        return self._num_repeats == self._limits.max_repeats

    def _record(self, turn: _Turn, action: Action | None, error: str, seconds: float) -> None:
        page, reply = turn.page, turn.reply
        for secret in typed_secrets(page, action):
            self._secrets.add(secret)
        self._secrets.add_credentials(page.url)
        if action is not None:
            self._secrets.add_credentials(action.url)
        cache = reply.cache or CacheUse()
        step = Step(
            index=len(self._steps),
            url=_without_credentials(page.url),
            note=turn.note,
            reply=reply.text,
            action=render(action) if action is not None else "",
            error=error,
            cache_bytes=cache.live_bytes,
            cache_peak_bytes=cache.peak_bytes,
            seconds=seconds,
            screenshot=turn.screenshot,
            boxes=_boxes(page) if turn.screenshot else (),
            **_fields_of_step(reply),
            **_fields_of_step(cache),
        ).masked(self._secrets)
        self._steps.append(step)
        if self._limits.on_step is not None:
            self._limits.on_step(step)


def error_note(text: str) -> str:
    """Return an error as the model is shown it."""
    return "error: " + (text if len(text) <= MAX_NOTE_CHARS else text[: MAX_NOTE_CHARS - 3] + "...")


def typed_secrets(page: Page, action: Action | None) -> set[str]:
    """Return the text that `action` types into a password field of `page`, without names of
    secrets (`<secret:name>`)."""
    if action is None or action.kind not in ("type", "append", "insert") or not action.text:
        return set()
    if action.element_id is None:
        return set()
    node = page.element(action.element_id)
    if node is None or "password" not in node.states:
        return set()
    return set(without_names(action.text))


def _fields_of_step(value: Reply | CacheUse) -> dict[str, Any]:
    """Return the fields that a step has under the same names."""
    names = {field.name for field in fields(Step)} & {field.name for field in fields(value)}
    return {name: getattr(value, name) for name in names}


def _boxes(page: Page) -> tuple[tuple[int, int, int, int, int], ...]:
    return tuple(
        (node.id, node.box.x, node.box.y, node.box.width, node.box.height)
        for node in page.nodes
        if node.id is not None
    )


def _without_credentials(url: str) -> str:
    parts = urlsplit(url)
    if "@" not in parts.netloc:
        return url
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))
