"""Continuous batching: the replies that are being written share every forward of their model."""

from typing import Any

import torch

from agentkv.cache.packed import PackedForward, can_share
from agentkv.models.choose import choose
from agentkv.models.writing import Writing

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
        self._writings: list[Writing] = []

    def __len__(self) -> int:
        return len(self._writings)

    def add(self, writing: Writing) -> None:
        self._writings.append(writing)

    def drop(self, writing: Writing) -> None:
        """Let go of one that nobody waits for any more."""
        self._writings.remove(writing)

    @torch.inference_mode()
    def step(self) -> list[Writing]:
        """Take every reply one piece further; those that ended, well or not, leave and are given
        back. What goes wrong in one is its `error` and no other's; what goes wrong in the model is
        everyone's who took part."""
        for writing in self._writings:
            writing.end_if_late()
        for members in self._forwards():
            try:
                self._forward(members)
            except Exception as error:  # the edge of these replies
                for writing in members:
                    writing.fail(error)
        ended = [writing for writing in self._writings if writing.is_over]
        self._writings = [writing for writing in self._writings if not writing.is_over]
        return ended

    def _forwards(self) -> list[list[Writing]]:
        joint: list[Writing] = []
        forwards = [joint]
        has_long = False
        for writing in self._writings:
            num_tokens = 0 if writing.is_over else len(writing.piece)
            if not num_tokens or (num_tokens > LONG and has_long):
                continue
            has_long = has_long or num_tokens > LONG
            if can_share(writing.cache, num_tokens):
                joint.append(writing)
            else:
                forwards.append([writing])
        return [members for members in forwards if members]

    def _forward(self, members: list[Writing]) -> None:
        device = self._model.device
        together = PackedForward(
            self._model,
            [writing.cache for writing in members],
            [torch.tensor([writing.piece], device=device) for writing in members],
        )
        logits = together.read()
        # on the host, while the device is still at the forward
        allowed = [writing.rule.allowed() if writing.chooses else None for writing in members]
        ids = choose(logits, allowed, [writing.sampler for writing in members])
        # the only point of a step that waits for the device; float32 holds ids up to 2**24
        numbers = torch.cat([ids.to(torch.float32), together.confidences(logits)]).tolist()
        together.apply_gates_at(numbers[len(members) :])
        for writing, error, id in zip(members, together.errors, numbers, strict=False):
            if error is not None:
                writing.fail(error)
            else:
                writing.has_read(int(id) if writing.chooses else None)
