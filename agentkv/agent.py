"""The loop: look, answer, act, until something ends the episode."""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol, runtime_checkable
from urllib.parse import urlsplit, urlunsplit

from agentkv.config import Decoding
from agentkv.models.model import CachedModel, ContextLimit, Model, Reply
from agentkv.trace import Episode, Status, Step
from agentkv_env.actions import Action, ActionError, extract, parse, render
from agentkv_env.errors import ActionFailed, BrowserGone
from agentkv_env.ocr import Ocr
from agentkv_env.page import Page
from agentkv_env.serialize import neutral
from agentkv_env.session import Session

MAX_NOTE = 200
"""Characters of an error that the model is told; it may quote the page or the model at length."""


@runtime_checkable
class Surface(Protocol):
    """What the loop needs of the web; `agentkv_env.browser.Session` is one."""

    def observe(self) -> Page:
        """The current page. Raises `BrowserGone` when there is no telling."""
        ...

    def act(self, action: Action) -> None:
        """Do it. Raises `ActionFailed` for what the model should hear of, or `BrowserGone`."""
        ...

    def screenshot(self) -> bytes:
        """A JPEG of the viewport."""
        ...


class Agent:
    """A model with a way of keeping its cache, ready for any number of episodes.

    Args:
        model: a `LocalModel`, the name of one (`agentkv.load_model`), or any `Model`, such as a
            scripted one.
        policy, budget, decoding, temperature, max_new_tokens, observation_tokens: as
            `LocalModel.under` has them; of no effect on any other `Model`.
        strict: read replies bit for bit as VisualWebArena does; False mends its known traps.
        max_parse_failures: so many unreadable replies in a row end an episode.
        max_repeats: so many equal actions in a row, all answered to one unchanged page, end an
            episode; the last of them is not carried out. Equal is the whole action, typed text
            included, and unchanged is all that the agent may know of the page, notices aside.
            (Ours, stricter than VisualWebArena's, which compares element numbers only, across
            pages for `type`, and so ends episodes that were getting on.)
    """

    def __init__(
        self,
        model: Model | CachedModel | str,
        policy: Any = "conf-kv-int8",
        *,
        budget: int | str | None = None,
        decoding: Decoding = "constrained",
        temperature: float = 0.0,
        max_new_tokens: int = 256,
        observation_tokens: int | None = 3840,
        strict: bool = False,
        max_parse_failures: int = 3,
        max_repeats: int = 5,
    ) -> None:
        if isinstance(model, str):
            from agentkv.models.local import load_model  # seconds of imports, only where needed

            model = load_model(model)
        if isinstance(model, CachedModel):
            model = model.under(
                policy,
                budget=budget,
                decoding=decoding,
                temperature=temperature,
                max_new_tokens=max_new_tokens,
                observation_tokens=observation_tokens,
            )
        self.model: Model = model
        self._strict = strict
        self._max_parse_failures = max_parse_failures
        self._max_repeats = max_repeats

    def run(
        self,
        page: Any,
        goal: str,
        *,
        max_steps: int = 30,
        timeout_s: float = 900.0,
        seed: int = 0,
        on_step: Callable[[Step], None] | None = None,
        screenshots: Path | None = None,
        hosts: Sequence[str] | None = None,
        ocr: bool = True,
    ) -> Episode:
        """Pursue `goal` from where `page` is now.

        Args:
            page: a Session (any `Surface`), or a Playwright page (sync API) of the caller's, which
                stays open afterwards.
            goal: the task in plain words.
            max_steps: actions at most.
            timeout_s: seconds at most; checked between tokens and between steps.
            seed: equal seeds give equal episodes on equal pages.
            on_step: called with every step as soon as it is over.
            screenshots: folder for a picture of each page, `000.jpg` onwards.
            hosts: for a page of the caller's: the only hosts the agent may reach; None: the one
                the page is on. A Session brings its own.
            ocr: for a page of the caller's: read text in images, where Tesseract is installed.

        Raises:
            Whatever the model or `on_step` raises, but for `TimeoutError` and `ContextLimit`,
            which end the episode.
        """
        if isinstance(page, Surface):
            return self._run(page, goal, max_steps, timeout_s, seed, on_step, screenshots)
        reader = Ocr.find() if ocr else None
        with Session.on(page, hosts=hosts, ocr=reader) as session:
            return self._run(session, goal, max_steps, timeout_s, seed, on_step, screenshots)

    def _run(
        self,
        surface: Surface,
        goal: str,
        max_steps: int,
        timeout_s: float,
        seed: int,
        on_step: Callable[[Step], None] | None,
        screenshots: Path | None,
    ) -> Episode:
        started = time.monotonic()
        deadline = started + timeout_s
        steps: list[Step] = []
        conversation = self.model.begin(goal, seed=seed)
        num_unread, num_repeats = 0, 0
        before: tuple[Page, Action] | None = None
        note = ""

        def over(status: Status, answer: str = "", error: str = "") -> Episode:
            seconds = time.monotonic() - started
            return Episode(status, answer, tuple(steps), seconds=seconds, error=error)

        def record(step: Step) -> None:
            steps.append(step)
            if on_step is not None:
                on_step(step)

        try:
            while len(steps) < max_steps:
                turn = _Turn(len(steps), note)
                if time.monotonic() > deadline:
                    return over("timeout", error=f"{timeout_s:g} s are over")
                page = surface.observe()
                if screenshots is not None:
                    turn.keep(surface.screenshot(), screenshots)
                reply = conversation.reply(page, note, deadline)
                try:
                    action = parse(extract(reply.text, strict=self._strict), strict=self._strict)
                except ActionError as error:
                    record(turn.over(page, reply, None, str(error)))
                    num_unread, before, note = num_unread + 1, None, _note(error)
                    if num_unread == self._max_parse_failures:
                        return over("parse_limit")
                    continue
                num_unread = 0
                if action.kind == "stop":
                    record(turn.over(page, reply, action))
                    return over("stopped", answer=action.answer)
                now = (replace(page, notices=()), action)
                num_repeats = num_repeats + 1 if before == now else 1
                before = now
                if num_repeats == self._max_repeats:
                    record(turn.over(page, reply, action, "not done: repeated without effect"))
                    return over("repetition")
                note = ""
                try:
                    surface.act(action)
                except ActionFailed as error:
                    note = _note(error)
                    record(turn.over(page, reply, action, str(error)))
                except BrowserGone as error:
                    record(turn.over(page, reply, action, str(error)))
                    raise
                else:
                    record(turn.over(page, reply, action))
        except BrowserGone as error:
            return over("env_error", error=str(error))
        except TimeoutError as error:
            return over("timeout", error=str(error))
        except ContextLimit as error:
            return over("context_limit", error=str(error))
        return over("step_limit")


class _Turn:
    """Gathers what becomes a `Step`."""

    def __init__(self, index: int, note: str) -> None:
        self._index = index
        self._note = note
        self._started = time.monotonic()
        self._screenshot = ""

    def keep(self, picture: bytes, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._screenshot = f"{self._index:03}.jpg"
        (folder / self._screenshot).write_bytes(picture)

    def over(self, page: Page, reply: Reply, action: Action | None, error: str = "") -> Step:
        secret = _secret(page, action)
        cache = reply.cache

        def masked(text: str) -> str:
            return text.replace(secret, "***") if secret else text

        return Step(
            index=self._index,
            url=_without_credentials(page.url),
            observation=masked(reply.observation),
            note=masked(self._note),
            reply=masked(reply.text),
            action=masked(render(action)) if action is not None else "",
            error=masked(error),
            num_tokens_in=reply.num_tokens_in,
            num_tokens_out=reply.num_tokens_out,
            seen_tokens=cache.seen_tokens if cache else 0,
            cache_bytes=cache.live_bytes if cache else 0,
            cache_peak_bytes=cache.peak_bytes if cache else 0,
            prefill_s=reply.prefill_s,
            decode_s=reply.decode_s,
            seconds=time.monotonic() - self._started,
            screenshot=self._screenshot,
        )


def _note(error: Exception) -> str:
    """An error as the model hears of it: one line that can forge neither an id nor a fence."""
    text = neutral(str(error))
    return "error: " + (text if len(text) <= MAX_NOTE else text[: MAX_NOTE - 3] + "...")


def _secret(page: Page, action: Action | None) -> str:
    """What `action` types into a password field of `page`, if that is what it does."""
    if action is None or action.kind != "type" or action.element_id is None:
        return ""
    node = page.element(action.element_id)
    return action.text if node is not None and "password" in node.states else ""


def _without_credentials(url: str) -> str:
    parts = urlsplit(url)
    if "@" not in parts.netloc:
        return url
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))
