"""What a cache knows besides its tensors, as values that go to a file and come back checked."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat

from agentkv.cache.budget import Budget, Bytes, Share
from agentkv.policies.rows import PolicyError

Count = Annotated[int, Field(ge=0, lt=2**31)]
NumBytes = Annotated[int, Field(ge=0, lt=2**63)]
Least = Annotated[FiniteFloat, Field(ge=0)]


class _Note(BaseModel):
    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, ser_json_inf_nan="constants"
    )


class Settings(_Note):
    """What a cache was asked for besides its policy, as in `Cache.for_model`."""

    kind: Literal["tokens", "share", "bytes", "none"]
    number: float | int | None
    """The budget, of this kind."""
    prefill: Literal["chunked", "whole"]
    chunk: Annotated[int, Field(ge=1)]

    @classmethod
    def of(cls, budget: Budget, prefill: Literal["chunked", "whole"], chunk: int) -> "Settings":
        if isinstance(budget, Share):
            return cls(kind="share", number=budget.of_seen, prefill=prefill, chunk=chunk)
        if isinstance(budget, Bytes):
            return cls(kind="bytes", number=budget.count, prefill=prefill, chunk=chunk)
        kind: Literal["none", "tokens"] = "none" if budget is None else "tokens"
        return cls(kind=kind, number=budget, prefill=prefill, chunk=chunk)

    @property
    def budget(self) -> Budget:
        """As `parse_budget` gave it. Raises PolicyError."""
        number = self.number
        if self.kind == "none" and number is None:
            return None
        if self.kind == "share" and isinstance(number, float) and 0 < number < 1:
            return Share(number)
        if isinstance(number, int) and number > 0 and self.kind in ("tokens", "bytes"):
            return number if self.kind == "tokens" else Bytes(number)
        raise PolicyError(f"{number!r} is no budget of the kind {self.kind!r}")


class KeeperNote(_Note):
    """Of a layer that the policy acts on."""

    num_steps: Count
    """Forwards of a single token."""
    qualities: tuple[Least | None, ...]
    """Of each sequence; see `Keeper` and `Ranks`."""


class LayerNote(_Note):
    """Of one layer."""

    dtype: Literal["float64", "float32", "float16", "bfloat16"]
    """Of the rows that are not quantised."""
    scale: FiniteFloat
    """By which the layer's attention multiplies its logits."""
    tables: dict[str, tuple[tuple[Count, Count, Count], ...]]
    """By name, how each lies in memory; see `Table.layout`."""
    keeper: KeeperNote | None


class Learned(_Note):
    """Of a policy whose allocator learns."""

    remembered: dict[str, tuple[Annotated[int, Field(ge=1)], tuple[Least, ...]]]
    """As the allocator has it."""
    gone_by: dict[str, tuple[Annotated[int, Field(ge=1)], tuple[Least, ...]]]
    """As it was when the context began that is going on."""


class Notes(_Note):
    """Of a cache."""

    batch: Annotated[int, Field(ge=1)] | None
    """Sequences; None before the first forward."""
    shared_by: Annotated[int, Field(ge=1)]
    """Sequences that share a budget in bytes."""
    seen: Count
    """Columns that were fed."""
    fed: tuple[Count, ...]
    """Tokens of each sequence that were fed."""
    num_new: Count
    """Columns of the latest forward."""
    peak: NumBytes
    has_ids: bool
    """Whether the tokens that were fed are known."""
    confidences: tuple[float, ...] | None
    pending: tuple[tuple[int, ...], ...] | None
    layers: tuple[LayerNote, ...]
    """None before the first forward."""
    learned: Learned | None
