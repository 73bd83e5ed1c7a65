"""State of a cache besides its tensors, as values that go to a file and are validated on return."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat

from agentkv.cache.budget import Budget, Bytes, Share
from agentkv.policies.entries import PolicyError

Count = Annotated[int, Field(ge=0, lt=2**31)]
NumBytes = Annotated[int, Field(ge=0, lt=2**63)]
NonNegative = Annotated[FiniteFloat, Field(ge=0)]
Energies = dict[str, tuple[Annotated[int, Field(ge=1)], tuple[NonNegative, ...]]]
"""Number of contexts and mean energy of every layer, by key."""


class _State(BaseModel):
    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, ser_json_inf_nan="constants"
    )


class Settings(_State):
    """Arguments of `Cache.for_model` besides the policy."""

    kind: Literal["tokens", "share", "bytes", "none"]
    """Kind of the budget."""
    number: float | int | None
    """The budget."""
    floor: Count = 0
    """Tokens that a share allows at least."""
    prefill: Literal["chunked", "whole"]
    chunk: Annotated[int, Field(ge=1)]

    @classmethod
    def of(cls, budget: Budget, prefill: Literal["chunked", "whole"], chunk: int) -> "Settings":
        """Return the settings of a cache."""
        if isinstance(budget, Share):
            return cls(
                kind="share",
                number=budget.of_seen,
                floor=budget.floor,
                prefill=prefill,
                chunk=chunk,
            )
        if isinstance(budget, Bytes):
            return cls(kind="bytes", number=budget.count, prefill=prefill, chunk=chunk)
        kind: Literal["none", "tokens"] = "none" if budget is None else "tokens"
        return cls(kind=kind, number=budget, prefill=prefill, chunk=chunk)

    @property
    def budget(self) -> Budget:
        """The budget as `parse_budget` returned it. Raises PolicyError."""
        number = self.number
        if self.kind == "none" and number is None:
            return None
        if self.kind == "share" and isinstance(number, float) and 0 < number < 1:
            return Share(number, self.floor)
        if isinstance(number, int) and number > 0 and self.kind in ("tokens", "bytes"):
            return number if self.kind == "tokens" else Bytes(number)
        raise PolicyError(f"{number!r} is no budget of the kind {self.kind!r}")


class PolicyState(_State):
    """State of the policy for one layer."""

    num_steps: Count
    """Forwards of a single token."""
    qualities: tuple[NonNegative | None, ...]
    """Quality of each sequence; see `Ranks`."""


class LayerState(_State):
    """State of one layer."""

    dtype: Literal["float64", "float32", "float16", "bfloat16"]
    """Dtype of dense entries."""
    scale: FiniteFloat
    """Factor on the layer's logits."""
    extents: dict[str, tuple[tuple[Count, Count, Count], ...]]
    """Extents of the segments, by table; see `Table.extents`."""
    policy: PolicyState | None


class LearnedState(_State):
    """State of an allocator that learns."""

    latest: Energies
    """Everything learned so far."""
    used: Energies
    """Energies that the present context uses: everything learned before it."""


class CacheState(_State):
    """State of a cache."""

    batch: Annotated[int, Field(ge=1)] | None
    """Sequences; None before the first forward."""
    sharing: Annotated[int, Field(ge=1)]
    """Sequences that share a budget in bytes."""
    seen: Count
    """Columns that were fed."""
    fed: tuple[Count, ...]
    """Tokens that each sequence was fed."""
    num_new: Count
    """Columns of the latest forward."""
    peak: NumBytes
    has_ids: bool
    """True if the token ids are known."""
    confidences: tuple[float, ...] | None
    pending: tuple[tuple[int, ...], ...] | None
    layers: tuple[LayerState, ...]
    """Empty before the first forward."""
    learned: LearnedState | None
