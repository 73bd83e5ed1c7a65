"""Continuous batching: the replies that are being written share every forward of their model."""

from typing import Any

import torch

from agentkv.cache.packed import PackedForward, can_share
from agentkv.models.generation import Generation
from agentkv.models.sampling import choose

LONG = 64
"""Tokens from which on a piece is a part of a page, of which a forward takes one: the others' next
tokens then wait for one such part at most, and its memory is bounded."""


class Batch:
    """The replies that `model` is writing. They come and go between steps.

    A step feeds each one's next piece, long ones in turn, and so mixes pages that are being read
    with replies that are being written. Each reply has its own cache, policy, grammar, temperature,
    seed and deadline, and is the same alone but for the rounding of sums.
    """

    def __init__(self, model: Any) -> None:
        self._model = model
        self._generations: list[Generation] = []

    def __len__(self) -> int:
        return len(self._generations)

    def add(self, generation: Generation) -> None:
        self._generations.append(generation)

    def drop(self, generation: Generation) -> None:
        """Let go of one that nobody waits for any more."""
        self._generations.remove(generation)

    @torch.inference_mode()
    def step(self) -> list[Generation]:
        """Take every reply one piece further; those that ended, well or not, leave and are given
        back. What goes wrong in one is its `error` and no other's; what goes wrong in the model is
        everyone's who took part."""
        for generation in self._generations:
            generation.end_if_late()
        for members in self._forwards():
            try:
                self._forward(members)
            except Exception as error:  # the edge of these replies
                for generation in members:
                    generation.fail(error)
        ended = [each for each in self._generations if each.is_over]
        self._generations = [
            generation for generation in self._generations if not generation.is_over
        ]
        return ended

    def _forwards(self) -> list[list[Generation]]:
        joint: list[Generation] = []
        forwards = [joint]
        has_long = False
        for generation in self._generations:
            num_tokens = 0 if generation.is_over else len(generation.piece)
            if not num_tokens or (num_tokens > LONG and has_long):
                continue
            has_long = has_long or num_tokens > LONG
            if can_share(generation.cache, num_tokens):
                joint.append(generation)
            else:
                forwards.append([generation])
        return [members for members in forwards if members]

    def _forward(self, members: list[Generation]) -> None:
        device = self._model.device
        together = PackedForward(
            self._model,
            [generation.cache for generation in members],
            [torch.tensor([generation.piece], device=device) for generation in members],
        )
        logits = together.read()
        # on the host, while the device is still at the forward
        allowed = [
            generation.rule.allowed() if generation.chooses else None for generation in members
        ]
        ids = choose(logits, allowed, [generation.sampler for generation in members])
        # the only point of a step that waits for the device; float32 holds ids up to 2**24
        numbers = torch.cat([ids.to(torch.float32), together.confidences(logits)]).tolist()
        together.apply_gates_at(numbers[len(members) :])
        for generation, error, id in zip(members, together.errors, numbers, strict=False):
            if error is not None:
                generation.fail(error)
            else:
                generation.has_read(int(id) if generation.chooses else None)
