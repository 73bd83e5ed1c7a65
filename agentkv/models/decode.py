"""One episode with a language model: an append-only stream of ids, and the cache that read it."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

from agentkv.cache.cache import Cache
from agentkv.config import Decoding, Observations
from agentkv.models.batch import Batch
from agentkv.models.choose import Sampler
from agentkv.models.model import CacheUse, Reply
from agentkv.models.rules import Constrained, Free, Rule
from agentkv.models.writing import Writing, no_room
from agentkv_env.changes import Known, serialize_changes
from agentkv_env.page import Page

if TYPE_CHECKING:
    from agentkv.models.local import LocalModel


@dataclass(frozen=True, slots=True)
class ActingModel:
    """A `Model`: a `LocalModel` under one policy. Made by `LocalModel.under`."""

    local: "LocalModel"
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
    writing: Writing


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
        batch.add(asked.writing)
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
        writing = Writing(
            self.cache,
            turn,
            self._rule(page),
            sampler=self._sampler,
            deadline=deadline,
            max_positions=limit,
        )
        return Asked(observation, writing)

    def answer(self, asked: Asked) -> Reply:
        """The reply whose writing has ended. Raises what ended it early."""
        writing, cache, template = asked.writing, self.cache, self._local.template
        if writing.error is not None:
            raise writing.error
        assert writing.read is not None and writing.ended is not None, "it is not written yet"
        self._unread = [*writing.rule.unread, *template.between]
        return Reply(
            text=template.decode(writing.rule.ids),
            observation=asked.observation,
            num_tokens_in=writing.num_prompt,
            num_tokens_out=len(writing.rule.ids),
            prefill_s=writing.read - writing.began,
            decode_s=writing.ended - writing.read,
            cache=CacheUse(cache.seen, cache.nbytes, cache.peak_nbytes),
        )

    def _rule(self, page: Page) -> Rule:
        acting, local = self._acting, self._local
        if acting.decoding == "free":
            return Free(local.template, most=acting.max_new_tokens)
        thoughts, most = local.template.thoughts, acting.max_new_tokens
        return Constrained(local.grammar.start(page, self._goal, thoughts=thoughts, most=most))
