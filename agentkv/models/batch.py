"""Continuous batching: replies in progress share every forward of their model."""

from typing import Any

import torch
from torch import Tensor

from agentkv.cache.packed import PackedForward, why_alone
from agentkv.models.generation import Generation, TokenLook
from agentkv.models.sampling import LogProbability, log_probability, sample

LONG_CHUNK = 64
"""Chunks of more tokens than this belong to a page. A step takes at most one of them, which bounds
its memory and the time that the other replies wait for their next token (our choice)."""


class Batch:
    """The replies that one model is writing; replies join and leave between steps.

    Each step feeds the next chunk of every reply, long chunks in turn, so prefill and decoding mix
    in one forward. Every reply has its own cache, policy, grammar, temperature, seed and deadline.
    Sharing a batch changes a reply only through the rounding of sums.

    Args:
        model: a transformers model attached to our attention.
    """

    def __init__(self, model: Any) -> None:
        self._model = model
        self._generations: list[Generation] = []

    def __len__(self) -> int:
        return len(self._generations)

    def add(self, generation: Generation) -> None:
        """Include `generation` from the next step on."""
        self._generations.append(generation)

    def remove(self, generation: Generation) -> None:
        """Drop a generation whose reply is no longer needed. It stays unfinished."""
        self._generations.remove(generation)

    @torch.inference_mode()
    def step(self) -> list[Generation]:
        """Advance every reply by one chunk; remove and return the generations that ended.

        An error in one reply is stored in its `error` and affects no other reply. An error in the
        model ends every reply of that forward.
        """
        for generation in self._generations:
            generation.check_deadline()
        self._begin_new()
        for members in self._plan_forwards():
            try:
                self._forward(members)
            except Exception as error:  # contain it: other replies go on
                for generation in members:
                    generation.fail(error)
        ended = [generation for generation in self._generations if generation.is_over]
        self._generations = [
            generation for generation in self._generations if not generation.is_over
        ]
        return ended

    def _begin_new(self) -> None:
        """Begin new replies. One with a long input to repair begins alone, as long chunks are read:
        the others wait for the next step."""
        has_long = False
        for generation in self._generations:
            if generation.has_begun or generation.is_over:
                continue
            is_long = generation.repairs and generation.num_prompt_tokens > LONG_CHUNK
            if is_long and has_long:
                continue
            has_long = has_long or is_long
            try:
                generation.begin(self._model)
            except Exception as error:  # contain it: other replies go on
                generation.fail(error)

    def _plan_forwards(self) -> list[list[Generation]]:
        """Group the replies: those with one new token, which take a step of decoding together,
        those with several, and one forward for each that must be fed alone."""
        single: list[Generation] = []
        several: list[Generation] = []
        forwards = [single, several]
        has_long = False
        for generation in self._generations:
            is_ready = generation.has_begun and not generation.is_over
            num_tokens = len(generation.next_chunk) if is_ready else 0
            if not num_tokens or (num_tokens > LONG_CHUNK and has_long):
                continue
            has_long = has_long or num_tokens > LONG_CHUNK
            generation.cache.may_look_back = generation.may_look_back
            if why_alone(generation.cache, num_tokens) is not None:
                forwards.append([generation])
            elif num_tokens == 1:
                single.append(generation)
            else:
                several.append(generation)
        return [members for members in forwards if members]

    def _forward(self, members: list[Generation]) -> None:
        device = self._model.device
        forward = PackedForward(
            self._model,
            [generation.cache for generation in members],
            [torch.tensor([generation.next_chunk], device=device) for generation in members],
        )
        before = [_num_looks(generation) for generation in members]
        logits = forward.read()
        # Compute the masks on the host while the device is still busy with the forward.
        allowed = [_allowed(generation) for generation in members]
        ids = sample(logits, allowed, [generation.sampler for generation in members])
        # The step's only wait for the device, unless a reply wants the likeliest ids as well.
        # float32 represents ids up to 2**24 exactly.
        confidences = forward.confidences(logits)
        is_noted = any(generation.num_logprobs == 0 for generation in members)
        noted = _logprobs(logits, ids) if is_noted else confidences[:0]
        parts = [ids.to(torch.float32), noted, confidences]
        numbers = torch.cat(parts).tolist()
        forward.apply_gates_at(numbers[len(members) + len(noted) :])
        for i, (generation, error) in enumerate(zip(members, forward.errors, strict=True)):
            if error is not None:
                generation.fail(error)
            if generation.is_over:
                continue
            try:
                look = _look_since(generation, before[i])
                logprob = numbers[len(members) + i] if is_noted else None
                _advance(generation, logits[i], int(numbers[i]), logprob, look)
            except Exception as failure:  # such as a grammar's: other replies go on
                generation.fail(failure)


def _allowed(generation: Generation) -> Tensor | None:
    """Return the mask of the next id. An error of the rule ends this reply alone."""
    try:
        return generation.rule.allowed() if generation.samples_next else None
    except Exception as error:  # other replies go on
        generation.fail(error)
        return None


def _logprobs(logits: Tensor, ids: Tensor) -> Tensor:
    """Return the log-probability (R,) of one id per row of `logits` (R, V)."""
    rows = logits.to(torch.float32)
    return rows.gather(1, ids[:, None])[:, 0] - rows.logsumexp(dim=1)


def _num_looks(generation: Generation) -> tuple[int, int]:
    """Return the looks of a reply's cache so far, and those that changed the likeliest token."""
    return generation.cache.num_looks, generation.cache.num_changing_looks


def _look_since(generation: Generation, before: tuple[int, int]) -> TokenLook | None:
    """Return the look of the latest forward, before which there were so many; None for none."""
    looks, changing = _num_looks(generation)
    if looks == before[0]:
        return None
    return TokenLook(generation.cache.looks.latest, changing > before[1])


def _advance(
    generation: Generation, logits: Tensor, id: int, logprob: float | None, look: TokenLook | None
) -> None:
    """Move a reply past its chunk, given the logits (V,), the sampled id with its probability's
    logarithm if a reply notes that alone, and the look that the logits come from."""
    if not generation.samples_next:
        generation.advance(None)
        return
    if generation.num_logprobs is not None:
        num_top = generation.num_logprobs
        if num_top:
            noted = log_probability(logits, id, num_top)
        else:
            assert logprob is not None
            noted = LogProbability(id, logprob, ())
        generation.logprobs.append(noted)
        generation.looks.append(look)
        generation.sampled_at.append(len(generation.rule.ids))
    generation.advance(id)
