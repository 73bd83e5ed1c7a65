"""Optimizers: AdamW during the copy stage, then Muon for the matrices of the layers.

On this network, a model trained from scratch learns to copy after 1.3 million tokens with AdamW and
after 2.4 million with Muon. Later, on the same rows, Muon's loss is 6 % lower after a hundred
steps.
"""

from typing import Any

import torch
from torch import Tensor, nn

_BETAS = (0.9, 0.98)
_DECAY = 0.01


class Optimizer:
    """Optimizer with one learning rate for all weights.

    Args:
        matrices: the optimizer of the layers' matrices, "adamw" or "muon". All other weights use
            AdamW.
    """

    def __init__(self, model: nn.Module, *, rate: float, matrices: str) -> None:
        assert matrices in ("adamw", "muon")
        self.matrices = matrices
        inner, rest = _split_parameters(model)
        self._parts: list[torch.optim.Optimizer] = []
        if matrices == "muon":
            self._parts.append(
                torch.optim.Muon(
                    inner, lr=rate, weight_decay=_DECAY, adjust_lr_fn="match_rms_adamw"
                )
            )
        else:
            rest = [*rest, *inner]
        self._parts.append(
            torch.optim.AdamW(rest, lr=rate, betas=_BETAS, weight_decay=_DECAY, fused=True)
        )

    def step(self, rate: float) -> None:
        """Update all weights and reset their gradients."""
        for part in self._parts:
            for group in part.param_groups:
                group["lr"] = rate
            part.step()
            part.zero_grad()

    def state_dict(self) -> list[dict[str, Any]]:
        return [part.state_dict() for part in self._parts]

    def load_state_dict(self, states: list[dict[str, Any]]) -> None:
        for part, state in zip(self._parts, states, strict=True):
            part.load_state_dict(state)


def _split_parameters(model: nn.Module) -> tuple[list[Tensor], list[Tensor]]:
    """Return the matrices of the layers and all other weights."""
    inner, rest = [], []
    for name, parameter in model.named_parameters():
        (inner if ".layers." in name and parameter.dim() == 2 else rest).append(parameter)
    return inner, rest
