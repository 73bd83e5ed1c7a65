"""A scorer made from a function."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from agentkv.policies.entries import Entries, PolicyError
from agentkv.policies.parameters import require_count
from agentkv.policies.slots import Tracker


@dataclass(frozen=True, slots=True)
class Function:
    """Scores entries with a given function.

    `scores` raises PolicyError if the function returns a wrong shape or NaN.
    """

    name: str
    function: Callable[[Entries], Tensor]
    """Maps entries to scores (H, T) or (S, T); larger is better."""
    window: int = 0
    """Number of last queries that `Entries.attention` covers."""
    comparable: bool = False
    tracker: ClassVar[Tracker | None] = None
    by_age: ClassVar[bool] = False
    segmentwise: ClassVar[bool] = False

    def __post_init__(self) -> None:
        require_count("window", self.window)

    def scores(self, entries: Entries) -> Tensor:
        found = self.function(entries)
        num_entries = entries.positions.shape[1]
        shapes = ((entries.num_heads, num_entries), tuple(entries.positions.shape))
        what = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
        if what not in shapes:
            raise PolicyError(
                f"scorer {self.name!r} returned {what}; it must be a tensor of shape "
                f"{' or '.join(map(str, sorted(set(shapes))))}, a score for every entry"
            )
        found = found.to(torch.float32)
        if bool((found.isnan() & entries.present).any()):
            raise PolicyError(f"scorer {self.name!r} returned NaN for an entry")
        # -inf means "no entry" from here on
        return found.clamp_min(torch.finfo(torch.float32).min)
