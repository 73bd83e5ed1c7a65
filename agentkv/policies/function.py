"""A person's own scorer."""

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
    """A person's own score; PolicyError if what the function returns cannot rank the rows."""

    name: str
    function: Callable[[Entries], Tensor]
    """Entries to (H, T) or (S, T), larger is better."""
    window: int = 0
    """How many of the last queries it wants from `Entries.attention`."""
    comparable: bool = False
    tracker: ClassVar[Tracker | None] = None
    by_age: ClassVar[bool] = False
    segmentwise: ClassVar[bool] = False

    def __post_init__(self) -> None:
        require_count("window", self.window)

    def scores(self, rows: Entries) -> Tensor:
        found = self.function(rows)
        num_rows = rows.positions.shape[1]
        shapes = ((rows.num_heads, num_rows), tuple(rows.positions.shape))
        what = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
        if what not in shapes:
            raise PolicyError(
                f"scorer {self.name!r} returned {what}; it must be a tensor of shape "
                f"{' or '.join(map(str, sorted(set(shapes))))}, a score for every row"
            )
        found = found.to(torch.float32)
        if bool((found.isnan() & rows.there).any()):
            raise PolicyError(f"scorer {self.name!r} returned NaN for rows that are there")
        # -inf stands for "no row" from here on
        return found.clamp_min(torch.finfo(torch.float32).min)
