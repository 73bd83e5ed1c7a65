"""A language model in memory, and the conversations in which it reads pages and writes replies."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from tokenizers import Tokenizer

from agentkv.cache.cache import Cache
from agentkv.cache.hf.forward import COMPILED, decoding
from agentkv.config import Decoding, Observations
from agentkv.defaults import POLICY
from agentkv.dialog.grammar import Grammar
from agentkv.dialog.prompt import Template
from agentkv.models.batch import Batch
from agentkv.models.generation import Generation, context_limit_error
from agentkv.models.model import CacheUse, Reply
from agentkv.models.rules import FreeRule, GrammarRule, Rule
from agentkv.models.sampling import Sampler
from agentkv_env.changes import Known, serialize_changes
from agentkv_env.page import Page
from agentkv_env.timing import Stopwatch, timed


@dataclass(frozen=True, slots=True)
class LocalModel:
    """A language model with its tokenizer, prompt template and grammar.

    All agents made from it share the weights. `with_cache` returns the `Model` that acts.
    """

    name: str
    """Name in result rows."""
    model: Any = field(repr=False)
    """The transformers model, in evaluation mode and attached to our attention."""
    tokenizer: Tokenizer = field(repr=False)
    """The model's fast tokenizer."""
    template: Template = field(repr=False)
    """The prompt format."""
    grammar: Grammar = field(repr=False)
    """Token masks for constrained decoding."""
    max_positions: int | None
    """Maximum number of tokens in an episode; None if the architecture sets no limit."""
    cache_dtype: str
    """Dtype in which caches store dense entries unless `with_cache` is given another."""

    def with_cache(
        self,
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
        **cache_options: Any,
    ) -> "ActingModel":
        """Return this model with a cache under `policy`, ready for episodes.

        Args:
            policy, budget: as in `agentkv.Cache.for_model`.
            decoding: `constrained` masks every token that the page's grammar does not allow;
                `free` masks nothing.
            temperature: 0 is greedy; a higher value samples, seeded per episode.
            max_new_tokens: maximum number of tokens per reply.
            observation_tokens: maximum number of page tokens shown per turn; None shows all.
            observations: `whole` shows every page in full; `changes` shows only the lines that are
                new or changed since the last visit (`agentkv_env.changes`).
            cache_dtype: in which the cache stores dense entries, such as "float32"; None: the
                model's `cache_dtype`, which has 16 bits whatever the model computes in.
            pins: keep the goal and the instructions before it in the cache, whatever the policy;
                they count in the budget. False: the policy alone decides, as in its paper.
            cache_options: further options of `agentkv.Cache.for_model`, such as `prefill` and
                `chunk`.

        Raises:
            ValueError: unknown policy or option, or a budget that the policy cannot keep.
        """

        dtype = cache_dtype or self.cache_dtype

        def new_cache() -> Cache:
            return Cache.for_model(
                self.model, policy=policy, budget=budget, dtype=dtype, **cache_options
            )

        new_cache()  # report a bad policy or budget now, not in the first episode
        return ActingModel(
            self,
            new_cache,
            decoding=decoding,
            temperature=temperature,
            max_new_tokens=max_new_tokens,
            observation_tokens=observation_tokens,
            observations=observations,
            pins=pins,
        )


@dataclass(frozen=True, slots=True)
class ActingModel:
    """A `Model` that runs a `LocalModel` under one policy.

    `LocalModel.with_cache` makes it and describes its settings.
    """

    local: LocalModel
    """The model; other agents may share it."""
    new_cache: Callable[[], Cache]
    """Returns an empty cache for each episode."""
    decoding: Decoding = field(kw_only=True)
    temperature: float = field(kw_only=True)
    max_new_tokens: int = field(kw_only=True)
    observation_tokens: int | None = field(kw_only=True)
    observations: Observations = field(kw_only=True)
    pins: bool = field(kw_only=True)

    @property
    def name(self) -> str:
        """The name of the local model."""
        return self.local.name

    def begin(self, goal: str, *, seed: int = 0) -> "LocalConversation":
        """Begin an episode with an empty cache.

        Raises:
            PolicyError: a ValueError; the goal is pinned and does not fit into the budget.
        """
        return LocalConversation(self, goal, seed)


@dataclass(frozen=True, slots=True)
class PendingReply:
    """A reply that a `Batch` is writing; see `LocalConversation.start_reply`."""

    observation: str
    """The page text that the model is shown."""
    generation: Generation
    """The reply in progress, to be added to a `Batch`."""
    stopwatch: Stopwatch | None


class LocalConversation:
    """One episode: an append-only stream of ids, and the cache that reads it.

    The cache has spans with the labels `goal`, `page 0`, `reply 0`, `page 1` and so on. Callers may
    inspect `cache` (kept positions, bytes) but must not change it.
    """

    def __init__(self, acting: ActingModel, goal: str, seed: int) -> None:
        self._acting = acting
        self._local = acting.local
        self.cache = acting.new_cache()
        self._goal = goal
        # Reproducible, yet unpredictable for a page that does not know the goal.
        self._nonce = hashlib.sha256(f"{seed}\n{goal}".encode()).hexdigest()[:8]
        self._pending = self._local.template.opening(goal, self._nonce)
        """Ids of the stream that the cache has not read."""
        self.cache.label("goal", len(self._pending), pinned=acting.pins)
        random = torch.Generator(device=self._local.model.device).manual_seed(seed)
        self._sampler = Sampler(acting.temperature, random)
        self._known: Known | None = None
        self._num_turns = 0

    def reply(self, page: Page, note: str = "", deadline: float | None = None) -> Reply:
        """Show `page` to the model and return its reply; see `Conversation.reply`.

        Raises:
            ContextLimit: the page and a reply do not fit the model's positions.
            TimeoutError: `deadline` passed between two tokens. The conversation cannot continue.
        """
        pending = self.start_reply(page, note, deadline)
        batch = Batch(self._local.model)
        batch.add(pending.generation)
        while len(batch):
            batch.step()
        return self.finish_reply(pending)

    def start_reply(
        self,
        page: Page,
        note: str = "",
        deadline: float | None = None,
        *,
        stopwatch: Stopwatch | None = None,
    ) -> PendingReply:
        """Begin a reply for a `Batch` of this model to write.

        Once its generation is over, pass the result to `finish_reply`, before the next turn.

        Args:
            stopwatch: charged with `tokenizer`, `grammar`, `reading` and `decoding`;
                `finish_reply` returns what it shows.

        Raises:
            ContextLimit: the page and a reply do not fit the model's positions.
        """
        acting, template = self._acting, self._local.template
        with timed(stopwatch, "tokenizer"):
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
            shown = template.turn(observation, note, self._nonce)
        turn = [*self._pending, *shown]
        limit, used = self._local.max_positions, self.cache.seen
        if limit is not None and used + len(turn) + acting.max_new_tokens > limit:
            raise context_limit_error(limit, used, len(turn) + acting.max_new_tokens)
        with timed(stopwatch, "grammar"):
            rule = self._new_rule(page, stopwatch)
        self._label_turn(len(shown))
        generation = Generation(
            self.cache,
            turn,
            rule,
            sampler=self._sampler,
            deadline=deadline,
            max_positions=limit,
            is_compiled=decoding(self._local.model) == COMPILED,
            stopwatch=stopwatch,
        )
        return PendingReply(observation, generation, stopwatch)

    def _label_turn(self, num_shown: int) -> None:
        """Label what the cache reads next: a page of `num_shown` tokens and its reply."""
        turn, start = self._num_turns, self.cache.seen + len(self._pending)
        self.cache.label(f"page {turn}", num_shown, start=start)
        self.cache.label(f"reply {turn}")
        self._num_turns += 1

    def finish_reply(self, pending: PendingReply) -> Reply:
        """Return the reply of a generation that is over. Raises the error that ended it early."""
        generation, cache, template = pending.generation, self.cache, self._local.template
        if generation.error is not None:
            raise generation.error
        prefilled_at, ended_at = generation.prefilled_at, generation.ended_at
        assert prefilled_at is not None and ended_at is not None, "the generation is not over"
        self._pending = [*generation.rule.pending, *template.separator]
        with timed(pending.stopwatch, "tokenizer"):
            text = template.decode(generation.rule.ids)
        return Reply(
            text=text,
            observation=pending.observation,
            num_tokens_in=generation.num_prompt_tokens,
            num_tokens_out=len(generation.rule.ids),
            prefill_s=prefilled_at - generation.started_at,
            decode_s=ended_at - prefilled_at,
            cache=CacheUse(
                seen_tokens=cache.seen,
                live_bytes=cache.nbytes,
                peak_bytes=cache.peak_nbytes,
                cold_bytes=cache.cold_nbytes,
                num_looks=cache.num_looks,
            ),
            parts=None if pending.stopwatch is None else pending.stopwatch.read(),
        )

    def _new_rule(self, page: Page, stopwatch: Stopwatch | None) -> Rule:
        acting, local = self._acting, self._local
        max_tokens = acting.max_new_tokens
        if acting.decoding == "free":
            return FreeRule(local.template, max_tokens=max_tokens)
        thoughts = local.template.thoughts
        matcher = local.grammar.start(page, self._goal, thoughts=thoughts, max_tokens=max_tokens)
        return GrammarRule(matcher, stopwatch=stopwatch)
