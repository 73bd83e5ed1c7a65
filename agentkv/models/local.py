"""A model in memory and its conversations: the model reads pages as text and writes replies."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from tokenizers import Tokenizer

from agentkv.cache.cache import Cache
from agentkv.config import Decoding, Observations
from agentkv.defaults import POLICY
from agentkv.dialog.grammar import Grammar
from agentkv.dialog.prompt import Template
from agentkv.models.batch import Batch
from agentkv.models.generation import Generation, no_room
from agentkv.models.model import CacheUse, Reply
from agentkv.models.rules import Constrained, Free, Rule
from agentkv.models.sampling import Sampler
from agentkv_env.changes import Known, serialize_changes
from agentkv_env.page import Page


@dataclass(frozen=True, slots=True)
class LocalModel:
    """A model, its tokenizer and how it is spoken to; all that act with it share the weights."""

    name: str
    model: Any = field(repr=False)
    """The transformers model, in evaluation mode, attached to our attention."""
    tokenizer: Tokenizer = field(repr=False)
    template: Template = field(repr=False)
    grammar: Grammar = field(repr=False)
    max_positions: int | None
    """Tokens an episode may have; None if the architecture sets no end."""

    def with_cache(
        self,
        policy: Any = POLICY,
        *,
        budget: int | str | None = None,
        decoding: Decoding = "constrained",
        temperature: float = 0.0,
        max_new_tokens: int = 256,
        observation_tokens: int | None = 3840,
        observations: Observations = "whole",
        **cache_options: Any,
    ) -> "ActingModel":
        """This model with its cache kept by `policy`.

        Args:
            policy, budget: as `agentkv.Cache.for_model` takes them; so are `cache_options`, such as
                `prefill` and `chunk`.
            decoding: `constrained` masks every token that the page's grammar does not allow;
                `free` masks nothing.
            temperature: 0 takes the likeliest token; above it one is drawn, seeded by the episode.
            max_new_tokens: tokens a reply may have.
            observation_tokens: tokens of a page that are shown; None shows all.
            observations: `whole` shows every page in full; `changes` shows of a page that is looked
                at again only the lines that are new or changed (`agentkv_env.changes`).

        Raises:
            ValueError: an unknown policy or option, or a budget that cannot be kept.
        """

        def new_cache() -> Cache:
            return Cache.for_model(self.model, policy=policy, budget=budget, **cache_options)

        new_cache()  # an unknown policy is an error now, not in the first episode
        return ActingModel(
            self,
            new_cache,
            decoding=decoding,
            temperature=temperature,
            max_new_tokens=max_new_tokens,
            observation_tokens=observation_tokens,
            observations=observations,
        )


@dataclass(frozen=True, slots=True)
class ActingModel:
    """A `Model`: a `LocalModel` under one policy. Made by `LocalModel.with_cache`."""

    local: LocalModel
    new_cache: Callable[[], Cache]
    decoding: Decoding = field(kw_only=True)
    temperature: float = field(kw_only=True)
    max_new_tokens: int = field(kw_only=True)
    observation_tokens: int | None = field(kw_only=True)
    observations: Observations = field(kw_only=True)

    @property
    def name(self) -> str:
        return self.local.name

    def begin(self, goal: str, *, seed: int = 0) -> "LocalConversation":
        return LocalConversation(self, goal, seed)


@dataclass(frozen=True, slots=True)
class Asked:
    """A turn whose reply is being written."""

    observation: str
    """What the model is shown of the page."""
    generation: Generation


class LocalConversation:
    """One episode: an append-only stream of ids and the cache that has read it.

    `cache` may be looked into (kept positions, bytes); changing it is the turns' business.
    """

    def __init__(self, acting: ActingModel, goal: str, seed: int) -> None:
        self._acting = acting
        self._local = acting.local
        self.cache = acting.new_cache()
        self._goal = goal
        # Reproducible, and still not to be guessed by a page that does not know the goal.
        self._nonce = hashlib.sha256(f"{seed}\n{goal}".encode()).hexdigest()[:8]
        self._unread = self._local.template.opening(goal, self._nonce)
        random = torch.Generator(device=self._local.model.device).manual_seed(seed)
        self._sampler = Sampler(acting.temperature, random)
        self._known: Known | None = None

    def reply(self, page: Page, note: str = "", deadline: float | None = None) -> Reply:
        """As `Conversation.reply`.

        Raises:
            ContextLimit: the page and a reply no longer fit the model's positions.
            TimeoutError: `deadline` passed between two tokens. The conversation is then over.
        """
        asked = self.ask(page, note, deadline)
        batch = Batch(self._local.model)
        batch.add(asked.generation)
        while len(batch):
            batch.step()
        return self.answer(asked)

    def ask(self, page: Page, note: str = "", deadline: float | None = None) -> Asked:
        """Begin a reply, to be written in a `Batch` of this model. Raises ContextLimit."""
        acting, template = self._acting, self._local.template
        seen, known = serialize_changes(
            page,
            self._known,
            layout=template.layout,
            boxes=template.boxes,
            budget=acting.observation_tokens,
            count=template.count,
        )
        self._known = known if acting.observations == "changes" else None
        observation = seen.text
        turn = [*self._unread, *template.turn(observation, note, self._nonce)]
        limit, used = self._local.max_positions, self.cache.seen
        if limit is not None and used + len(turn) + acting.max_new_tokens > limit:
            raise no_room(limit, used, len(turn) + acting.max_new_tokens)
        generation = Generation(
            self.cache,
            turn,
            self._rule(page),
            sampler=self._sampler,
            deadline=deadline,
            max_positions=limit,
        )
        return Asked(observation, generation)

    def answer(self, asked: Asked) -> Reply:
        """The reply whose generation has ended. Raises what ended it early."""
        generation, cache, template = asked.generation, self.cache, self._local.template
        if generation.error is not None:
            raise generation.error
        assert generation.read is not None and generation.ended is not None, "it is not written yet"
        self._unread = [*generation.rule.unread, *template.between]
        return Reply(
            text=template.decode(generation.rule.ids),
            observation=asked.observation,
            num_tokens_in=generation.num_prompt,
            num_tokens_out=len(generation.rule.ids),
            prefill_s=generation.read - generation.began,
            decode_s=generation.ended - generation.read,
            cache=CacheUse(cache.seen, cache.nbytes, cache.peak_nbytes),
        )

    def _rule(self, page: Page) -> Rule:
        acting, local = self._acting, self._local
        if acting.decoding == "free":
            return Free(local.template, most=acting.max_new_tokens)
        thoughts, most = local.template.thoughts, acting.max_new_tokens
        return Constrained(local.grammar.start(page, self._goal, thoughts=thoughts, most=most))
