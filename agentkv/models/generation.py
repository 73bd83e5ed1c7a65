"""One reply in progress: the chunks its model has yet to read, and the tokens sampled so far."""

import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

import torch

from agentkv.cache.cache import Cache
from agentkv.models.memory import as_out_of_memory
from agentkv.models.model import ContextLimit
from agentkv.models.rules import Rule
from agentkv.models.sampling import LogProbability, Sampler
from agentkv.progress import Progress
from agentkv_env.timing import Stopwatch

FEW_TOKENS = 8
"""Tokens that a compiled model reads sooner one by one than in one forward of transformers (nano on
two cores: 0.6 against 5 milliseconds)."""


@dataclass(frozen=True, slots=True)
class TokenLook:
    """A look back after which a token was sampled."""

    fetched: Mapping[str, int]
    """Entries that it fetched over all layers and heads, by the label of their tokens."""
    is_changing: bool
    """True if another token was the likeliest one after it."""


class Generation:
    """One reply, from its prompt to its last token. `Batch` runs the model for it.

    Args:
        cache: the episode's cache; `Batch` feeds it.
        prompt: ids that the cache has not seen.
        rule: the constraint on the reply; it collects the reply's ids.
        sampler: the temperature and random state of the episode.
        deadline: a `time.monotonic()` value, or None for no deadline.
        is_compiled: whether the model decodes one token in one compiled call. A few tokens that a
            rule adds at once then take as many steps, which are faster than one forward of
            transformers.
        num_logprobs: number of the likeliest ids whose log-probabilities are noted beside those of
            the sampled ids; 0 notes only the sampled ids, None notes none.
        stopwatch: charged with `reading` until the model has read the prompt, then with
            `decoding`; replies that share a forward are each charged with all of it.
    """

    def __init__(
        self,
        cache: Cache,
        prompt: Sequence[int],
        rule: Rule,
        *,
        sampler: Sampler,
        deadline: float | None,
        is_compiled: bool = False,
        num_logprobs: int | None = None,
        stopwatch: Stopwatch | None = None,
    ) -> None:
        self.cache, self.rule, self.sampler = cache, rule, sampler
        self.num_logprobs = num_logprobs
        self.logprobs: list[LogProbability] = []
        """Per sampled id, in order; empty unless they are noted."""
        self.looks: list[TokenLook | None] = []
        """Per log-probability, the look after which its id was sampled; None for none."""
        self.sampled_at: list[int] = []
        """Per log-probability, the place of its id in `rule.ids`. An end token has the place after
        the last id, and the grammar forced the ids at all other places."""
        self.num_prompt_tokens = len(prompt)
        self.has_begun = False
        """True once `begin` was called; the prompt may then be read."""
        self.error: Exception | None = None
        """The error that ended the reply early; None if there was none."""
        self.started_at = time.monotonic()
        self.prefilled_at: float | None = None
        """Time at which the model had read the whole prompt. All times are `time.monotonic()`."""
        self.ended_at: float | None = None
        self._deadline = deadline
        self._is_compiled = is_compiled
        self._stopwatch = stopwatch
        if stopwatch is not None:
            stopwatch.switch("reading")
        self._num_read = 0
        self._chunks: deque[list[int]] = deque()
        self._num_prompt_chunks = 0
        """Chunks of the prompt that are still to be read."""
        self.reads_singly = cache.reads_singly(len(prompt))
        """True if each prompt token may look back."""
        # a forward of one token, which compiled code reads faster, does not read the cold tier
        reads_cold = cache.reads_cold and any(cache.evictor.num_cold)
        self._enqueue(prompt, singly=self.reads_singly, may_step=not reads_cold)
        self._num_prompt_chunks = len(self._chunks)
        if not rule.is_complete:
            self._enqueue(rule.pending)

    @property
    def is_over(self) -> bool:
        """True once the reply is complete or has failed."""
        return self.ended_at is not None

    @property
    def progress(self) -> Progress:
        """The number of tokens read of the prompt or, after that, written of the reply."""
        if self.prefilled_at is None:
            return Progress("reading", self._num_read, self.num_prompt_tokens)
        return Progress("writing", len(self.rule.ids))

    @property
    def next_chunk(self) -> list[int]:
        """The ids to feed in the next forward."""
        return self._chunks[0]

    @property
    def unread(self) -> list[int]:
        """The ids of prompt and reply that the cache has not been fed."""
        return [id for chunk in self._chunks for id in chunk]

    @property
    def samples_next(self) -> bool:
        """True if a token must be sampled from the logits after `next_chunk`."""
        return len(self._chunks) == 1 and not self.rule.is_complete

    @property
    def repairs(self) -> bool:
        """True if evicted entries come back before the prompt is read; see `Cache.repairs`."""
        return self.cache.repairs(self.num_prompt_tokens)

    def begin(self, model: Any) -> None:
        """Let evicted entries come back that the prompt would attend to, before its first chunk is
        read, if the policy wants it; do nothing later. See `Cache.repairs`.

        Args:
            model: the transformers model that reads the prompt.
        """
        if self.has_begun:
            return
        self.has_begun = True
        if not self.repairs:
            return
        prompt = [id for chunk in self._chunks for id in chunk][: self.num_prompt_tokens]
        self.cache.repair(model, torch.tensor([prompt], device=model.device))

    def advance(self, sampled: int | None) -> None:
        """Move past `next_chunk`, which the model has read.

        Args:
            sampled: the id sampled after it; None if `samples_next` is False.
        """
        chunk = self._chunks.popleft()
        if self._num_prompt_chunks:
            self._num_read += len(chunk)
            self._num_prompt_chunks -= 1
            if not self._num_prompt_chunks:
                self.prefilled_at = time.monotonic()
                if self._stopwatch is not None:
                    self._stopwatch.switch("decoding")
        if sampled is not None:
            self.rule.accept(sampled)
            if not self.rule.is_complete:
                self._enqueue(self.rule.pending)
        if self.rule.is_complete and not self._chunks:
            self.ended_at = time.monotonic()

    def check_deadline(self) -> None:
        """End the reply with a `TimeoutError` if its deadline has passed."""
        if self._deadline is not None and time.monotonic() > self._deadline:
            self.fail(TimeoutError("the deadline passed while the model was writing its reply"))

    def fail(self, error: Exception) -> None:
        """End the reply with `error`, or with `OutOfMemory` if it says that no memory was left."""
        self.error, self.ended_at = as_out_of_memory(error), time.monotonic()

    @property
    def may_look_back(self) -> bool:
        """True if the token that `next_chunk` ends with may look back."""
        return self.samples_next or (self.reads_singly and self._num_prompt_chunks > 0)

    def _enqueue(self, ids: Sequence[int], *, singly: bool = False, may_step: bool = True) -> None:
        """Append `ids` in the pieces that a forward reads, or fail if they exceed the positions.

        Args:
            singly: each token alone.
            may_step: the same where that is faster.
        """
        cache = self.cache
        if not cache.has_positions(len(ids)):
            self.fail(context_limit_error(cache, len(ids)))
            return
        lengths = cache.forward_lengths(len(ids))
        is_stepped = may_step and self._is_compiled and len(ids) <= FEW_TOKENS
        if singly or (is_stepped and cache.can_step(1)):
            lengths = [1] * len(ids)
        ends = [0, *accumulate(lengths)]
        self._chunks += [list(ids[start:stop]) for start, stop in pairwise(ends)]


def context_limit_error(cache: Cache, needed: int) -> ContextLimit:
    """Return the error for `needed` further tokens that exceed the positions of a cache's model."""
    return ContextLimit(
        f"the model has {cache.geometry.max_positions} positions; {cache.num_positions} are used "
        f"and {needed} more are needed, and none becomes free: {cache.why_limited}"
    )
