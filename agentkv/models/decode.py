"""One episode with a language model: an append-only stream, one forward per token in doubt."""

import hashlib
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

from agentkv.cache.cache import Cache
from agentkv.config import Decoding
from agentkv.models.model import CacheUse, ContextLimit, Reply
from agentkv_env.page import Page
from agentkv_env.serialize import serialize

if TYPE_CHECKING:
    from agentkv.models.local import LocalModel

RESERVE = 32
"""Tokens before the limit from which a constrained reply is brought to its end; most actions need
fewer, and a cut one would be no action."""


@dataclass(frozen=True, slots=True)
class ActingModel:
    """A `Model`: a `LocalModel` under one policy. Made by `LocalModel.under`."""

    local: "LocalModel"
    new_cache: Callable[[], Cache]
    decoding: Decoding = field(kw_only=True)
    temperature: float = field(kw_only=True)
    max_new_tokens: int = field(kw_only=True)
    observation_tokens: int | None = field(kw_only=True)

    @property
    def name(self) -> str:
        return self.local.name

    def begin(self, goal: str, *, seed: int = 0) -> "LocalConversation":
        return LocalConversation(self, goal, seed)


class LocalConversation:
    """One episode: an append-only stream of ids and the cache that has read it.

    `cache` may be looked into (kept positions, bytes); changing it is the turns' business.
    """

    def __init__(self, acting: ActingModel, goal: str, seed: int) -> None:
        self._acting = acting
        self._local = acting.local
        self.cache = acting.new_cache()
        # Reproducible, and still not to be guessed by a page that does not know the goal.
        self._nonce = hashlib.sha256(f"{seed}\n{goal}".encode()).hexdigest()[:8]
        self._unread = self._local.template.opening(goal, self._nonce)
        self._device = self._local.model.device
        self._random = torch.Generator(device="cpu").manual_seed(seed)

    @torch.inference_mode()
    def reply(self, page: Page, note: str = "", deadline: float | None = None) -> Reply:
        """As `Conversation.reply`.

        Raises:
            ContextLimit: the page and a reply no longer fit the model's positions.
            TimeoutError: `deadline` passed between two tokens. The conversation is then over.
        """
        acting, template = self._acting, self._local.template
        observation = serialize(
            page,
            layout=template.layout,
            boxes=template.boxes,
            budget=acting.observation_tokens,
            count=template.count,
        ).text
        turn = [*self._unread, *template.turn(observation, note, self._nonce)]
        self._check_room(len(turn) + acting.max_new_tokens)

        started = time.monotonic()
        logits = self._forward(turn)
        read = time.monotonic()
        ids, unread = self._decode(logits, page, deadline)
        self._unread = [*unread, *template.between]
        cache = self.cache
        return Reply(
            text=template.decode(ids),
            observation=observation,
            num_tokens_in=len(turn),
            num_tokens_out=len(ids),
            prefill_s=read - started,
            decode_s=time.monotonic() - read,
            cache=CacheUse(cache.seen, cache.nbytes, cache.peak_nbytes),
        )

    def _decode(
        self, logits: torch.Tensor, page: Page, deadline: float | None
    ) -> tuple[list[int], list[int]]:
        """The reply's ids, and those at its end that the model has not read yet."""
        if self._acting.decoding == "free":
            return self._decode_freely(logits, deadline)
        matcher = self._local.grammar.start(page, thoughts=self._local.template.thoughts)
        ids: list[int] = []
        while True:
            new = matcher.forced()
            if not new:
                hurry = len(ids) >= self._acting.max_new_tokens - RESERVE
                new = [self._choose(logits, matcher.allowed(hurry=hurry))]
            matcher.consume(new)
            ids += new
            # What the grammar forces needs no forward of its own: it is read with what was chosen.
            while not matcher.is_complete and (forced := matcher.forced()):
                matcher.consume(forced)
                ids += forced
                new += forced
            if matcher.is_complete:
                return ids, new
            _check_time(deadline)
            logits = self._forward(new)

    def _decode_freely(
        self, logits: torch.Tensor, deadline: float | None
    ) -> tuple[list[int], list[int]]:
        template = self._local.template
        ids: list[int] = []
        while True:
            id = self._choose(logits)
            if id in template.end_ids:
                return ids, []
            ids.append(id)
            # A second fence closes the action; whatever a chatty model adds is never read.
            if len(ids) == self._acting.max_new_tokens or template.decode(ids).count("```") >= 2:
                return ids, [id]
            _check_time(deadline)
            logits = self._forward([id])

    def _choose(self, logits: torch.Tensor, allowed: torch.Tensor | None = None) -> int:
        logits = logits[0]  # (vocabulary,)
        if allowed is not None:
            # Checkpoints are padded beyond the tokenizer, and tokenizers outgrow checkpoints.
            num_ids = min(len(logits), len(allowed))
            forbidden = ~allowed[:num_ids].to(logits.device)
            logits = logits[:num_ids].masked_fill(forbidden, -torch.inf)
        if self._acting.temperature == 0:
            return int(logits.argmax())
        chances = torch.softmax(logits.to(torch.float32) / self._acting.temperature, dim=-1)
        return int(torch.multinomial(chances.cpu(), 1, generator=self._random))

    def _forward(self, ids: list[int]) -> torch.Tensor:
        """Read `ids` into the cache, which then settles; logits after the last: (1, vocabulary)."""
        self._check_room(len(ids))
        return self.cache.feed(self._local.model, torch.tensor([ids], device=self._device))

    def _check_room(self, num_tokens: int) -> None:
        limit, used = self._local.max_positions, self.cache.seen
        if limit is not None and used + num_tokens > limit:
            raise ContextLimit(
                f"the model has {limit} positions; {used} are used, {num_tokens} more are needed"
            )


def _check_time(deadline: float | None) -> None:
    if deadline is not None and time.monotonic() > deadline:
        raise TimeoutError("the deadline passed while the model was writing")
