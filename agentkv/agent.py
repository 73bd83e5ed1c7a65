"""The front door to episodes: a model, how its cache is kept, and a page to act on."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from playwright.sync_api import Page as PlaywrightPage

from agentkv.config import Decoding, Observations
from agentkv.defaults import POLICY
from agentkv.episode import Environment, Limits, run_episode
from agentkv.masking import Secrets
from agentkv.models.model import CachedModel, Model
from agentkv.trace import Episode, Step
from agentkv_env.ocr import Ocr
from agentkv_env.session import Session


class Agent:
    """A model with a way of keeping its cache, ready for any number of episodes.

    Args:
        model: a `LocalModel`, the name of one (`agentkv.load_model`), or any `Model`, such as a
            scripted one.
        policy, budget, decoding, temperature, max_new_tokens, observation_tokens, observations:
            as `LocalModel.with_cache` has them; of no effect on any other `Model`.
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
        policy: Any = POLICY,
        *,
        budget: int | str | None = None,
        decoding: Decoding = "constrained",
        temperature: float = 0.0,
        max_new_tokens: int = 256,
        observation_tokens: int | None = 3840,
        observations: Observations = "whole",
        strict: bool = False,
        max_parse_failures: int = 3,
        max_repeats: int = 5,
    ) -> None:
        if isinstance(model, str):
            from agentkv.models.load import load_model  # seconds of imports, only where needed

            model = load_model(model)
        if isinstance(model, CachedModel):
            model = model.with_cache(
                policy,
                budget=budget,
                decoding=decoding,
                temperature=temperature,
                max_new_tokens=max_new_tokens,
                observation_tokens=observation_tokens,
                observations=observations,
            )
        self.model: Model = model
        self._strict = strict
        self._max_parse_failures = max_parse_failures
        self._max_repeats = max_repeats

    def run(
        self,
        page: Environment | PlaywrightPage,
        goal: str,
        *,
        max_steps: int = 30,
        timeout_s: float = 900.0,
        seed: int = 0,
        on_step: Callable[[Step], None] | None = None,
        screenshots: Path | None = None,
        hosts: Sequence[str] | None = None,
        ocr: bool = True,
        secrets: Secrets | None = None,
    ) -> Episode:
        """Pursue `goal` from where `page` is now.

        Args:
            page: a `Session` or another `Environment`, or the caller's own Playwright page (sync
                API), which stays open afterwards.
            goal: the task in plain words.
            max_steps: actions at most.
            timeout_s: seconds at most; checked between tokens and between steps.
            seed: equal seeds give equal episodes on equal pages.
            on_step: called with every step as soon as it is over.
            screenshots: folder for a picture of each page, `000.jpg` onwards.
            hosts: for a page of the caller's: the only hosts the agent may reach; None: the one
                the page is on. A Session brings its own.
            ocr: for a page of the caller's: read text in images, where Tesseract is installed.
            secrets: what must be masked in the steps from the beginning; what is typed into
                password fields is added to it. The episode has them all.

        Raises:
            Whatever the model or `on_step` raises, but for `TimeoutError` and `ContextLimit`,
            which end the episode.
        """

        limits = Limits(
            goal,
            seed=seed,
            strict=self._strict,
            max_steps=max_steps,
            max_parse_failures=self._max_parse_failures,
            max_repeats=self._max_repeats,
            timeout_s=timeout_s,
            on_step=on_step,
            screenshots=screenshots,
            secrets=Secrets() if secrets is None else secrets,
        )
        if isinstance(page, Environment):
            return run_episode(self.model, page, limits)
        with Session.on(page, hosts=hosts, ocr=Ocr.find() if ocr else None) as session:
            return run_episode(self.model, session, limits)
