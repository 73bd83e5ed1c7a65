"""`Agent`: a model with a cache policy that pursues goals on web pages."""

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
    """A model with a cache policy, ready for any number of episodes.

    Args:
        model: a `LocalModel`, a name for `agentkv.load_model`, or any other `Model`, such as a
            scripted one.
        policy, budget, decoding, temperature, max_new_tokens, observation_tokens, observations,
        cache_dtype, pins, last_pages, notes_only, rebuild:
            as in `LocalModel.with_cache`; without effect on any other `Model`.
        strict: parse replies exactly as VisualWebArena does; False also accepts common deviations.
        max_parse_failures: an episode ends after this many replies in a row that cannot be parsed.
        max_repeats: an episode ends after this many identical actions in a row on an unchanged
            page; the last one is not carried out. Actions are compared with their text, pages with
            everything the agent can observe except notices. (Our choice. VisualWebArena compares
            only element numbers, and for `type` even across pages, which ends episodes that still
            make progress.)

    Raises:
        ModelError: `model` is a name, and no such model can be loaded.
        ValueError: unknown policy or option, or a budget that the policy cannot keep.
    """

    def __init__(
        self,
        model: Model | CachedModel | str,
        policy: Any = POLICY,
        *,
        budget: int | str | None = None,
        decoding: Decoding = "constrained",
        temperature: float = 0.0,
        max_new_tokens: int = 512,
        observation_tokens: int | None = 3840,
        observations: Observations = "whole",
        cache_dtype: str | None = None,
        pins: bool = True,
        last_pages: int | None = None,
        notes_only: bool = False,
        rebuild: bool = False,
        strict: bool = False,
        max_parse_failures: int = 3,
        max_repeats: int = 5,
    ) -> None:
        if isinstance(model, str):
            from agentkv.models.load import load_model  # imports take seconds

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
                cache_dtype=cache_dtype,
                pins=pins,
                last_pages=last_pages,
                notes_only=notes_only,
                rebuild=rebuild,
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
        """Run one episode: pursue `goal`, beginning at the current state of `page`.

        Args:
            page: a `Session` or another `Environment`, or a Playwright page (sync API), which stays
                open afterwards.
            goal: the task in plain words.
            max_steps: maximum number of actions.
            timeout_s: time limit in seconds, checked between tokens and between steps.
            seed: equal seeds give equal episodes on equal pages.
            on_step: called with every step as soon as it is over.
            screenshots: folder for a screenshot of each page, `000.jpg` onwards; None for none.
            hosts: for a Playwright page: the only hosts that the agent may reach; None allows just
                the page's own host. A Session has its own hosts.
            ocr: for a Playwright page: read the text in images, if Tesseract is installed.
            secrets: texts to mask in all steps; text typed into password fields is added to them.

        Returns:
            The episode, whatever its status; `Episode.secrets` holds all secrets.

        Raises:
            TypeError: `page` is neither an `Environment` nor a Playwright page.
            Exception: any error of the model or of `on_step`, except `TimeoutError` and
                `ContextLimit` of the model, which end the episode.
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
