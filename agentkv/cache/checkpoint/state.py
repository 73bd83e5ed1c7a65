"""State of a cache besides its tensors: values that are written as JSON and validated when read."""

from itertools import pairwise
from typing import Annotated, Any, Literal

import torch
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    FiniteFloat,
    JsonValue,
    ValidationError,
    field_validator,
    model_validator,
)

from agentkv.cache.budget import Budget, Share
from agentkv.cache.storage.table import Extent

MOST = 2**31
"""Upper bound of every count."""

Count = Annotated[int, Field(ge=0, lt=MOST)]
NumBytes = Annotated[int, Field(ge=0, lt=2**63)]
NonNegative = Annotated[FiniteFloat, Field(ge=0)]
Energies = dict[str, tuple[Annotated[int, Field(ge=1)], tuple[NonNegative, ...]]]
"""Number of contexts and mean energy of every layer, by key."""


class _StateModel(BaseModel):
    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, ser_json_inf_nan="constants"
    )


Dtype = Literal["float64", "float32", "float16", "bfloat16"]
"""Dtypes of dense entries."""


class LayerState(_StateModel):
    """State of one layer."""

    dtype: Dtype
    """Dtype of dense entries."""
    scale: FiniteFloat
    """Factor on the layer's logits."""
    extents: dict[str, tuple[Extent, ...]]
    """Extents of the segments, by table; see `EntryTable.extents`."""
    num_steps: Count
    """Forwards of a single token that the policy has seen."""
    qualities: dict[Count, NonNegative]
    """Quality of each sequence that has one; see `Ranks`."""


Position = Count
Stop = Count | None
"""Position after the last token; None for the newest token."""


class SpansState(_StateModel):
    """Labels and pins of one sequence."""

    labelled: tuple[tuple[str, Position, Stop], ...]
    """Label, start and stop of each span."""
    pinned: tuple[tuple[Position, Stop], ...]
    """Start and stop of each pinned range."""

    @model_validator(mode="after")
    def _check(self) -> "SpansState":
        for ranges in ([each[1:] for each in self.labelled], self.pinned):
            last: int | None = 0
            for start, stop in ranges:
                if last is None or start < last or (stop is not None and stop <= start):
                    raise ValueError(f"found positions {start} to {stop} after {last}")
                last = stop
        return self


class CacheState(_StateModel):
    """State of a cache. Before the first forward, `fed` and `layers` are empty."""

    seen: Count
    """Columns that were fed."""
    fed: tuple[Count, ...]
    """Tokens that each sequence was fed."""
    num_new: Count
    """Columns of the latest forward."""
    peak: NumBytes
    confidences: tuple[float, ...] | None
    turns: tuple[tuple[FiniteFloat, Count], ...]
    """Sum of the confidences of each sequence's turn, and number of its tokens; empty before the
    first, and for a gate that does not decide between turns."""
    pending: list[list[int]] | None
    layers: tuple[LayerState, ...]
    learned: Energies
    """Energies that the allocator has learned so far."""
    used: Energies
    """Energies that the present context uses: everything learned before it."""
    spans: tuple[SpansState, ...]
    """Labels and pins of each sequence; before the first forward one for all."""
    alarms: tuple[Count | None, ...]
    """Position of each sequence's latest alarm; empty for a policy that does not look back."""
    num_looks: Count
    """Tokens that have looked back."""
    num_changing_looks: Count
    """Looks after which another token was the likeliest."""
    fetched: dict[str, Count]
    """Entries that looks have fetched, by the label of their tokens."""
    look_nbytes: NumBytes
    """Bytes that looks have read."""
    cold_peak: NumBytes
    numberings: tuple[tuple[Count, tuple[Count, ...]], ...] = ()
    """Rotary positions of each sequence, as `Numbering` has them: `end` and `starts`; empty while
    all are those of the stream."""
    num_renumberings: Count = 0
    """Number of renumberings of all sequences."""
    heard: tuple[tuple[tuple[Count, FiniteFloat], ...], ...] = ()
    """Position and confidence of each sequence's latest tokens, as `LookRecord` has them; empty for
    a policy that ranks none."""

    @model_validator(mode="after")
    def _check(self) -> "CacheState":
        batch = len(self.fed)
        if batch and not min(1, self.seen) <= self.num_new <= self.seen:
            raise ValueError(f"found {self.num_new} new tokens among {self.seen} seen")
        if self.confidences is not None and len(self.confidences) != batch:
            raise ValueError(f"found {len(self.confidences)} confidences for {batch} sequences")
        if len(self.turns) not in (0, batch):
            raise ValueError(f"found turns of {len(self.turns)} sequences, not {batch}")
        if len(self.alarms) not in (0, batch):
            raise ValueError(f"found alarms of {len(self.alarms)} sequences, not {batch}")
        if len(self.heard) not in (0, batch):
            raise ValueError(f"found confidences of {len(self.heard)} sequences, not {batch}")
        if len(self.spans) != max(1, batch):
            raise ValueError(f"found spans of {len(self.spans)} sequences, not {max(1, batch)}")
        if len(self.numberings) not in (0, batch):
            raise ValueError(f"found numberings of {len(self.numberings)} sequences, not {batch}")
        for num_seen, (end, starts) in zip(self.fed, self.numberings, strict=False):
            ascends = all(one < other for one, other in pairwise((-1, *starts, end)))
            if end > num_seen or (starts and not ascends):
                raise ValueError(f"found a numbering up to {end} of {num_seen} tokens, or unsorted")
        for i, layer in enumerate(self.layers):
            if layer.num_steps > self.seen:
                raise ValueError(f"found {layer.num_steps} steps for {self.seen} tokens, layer {i}")
            if max(layer.qualities, default=-1) >= batch:
                raise ValueError(f"found a quality of sequence {max(layer.qualities)} of {batch}")
        return self


class SavedCache(_StateModel):
    """Everything that a file says about a cache, tensors aside."""

    model: dict[str, JsonValue]
    """Identity of its model; see `identity`."""
    policy: str
    """Policy as `written` returned it."""
    budget: Budget
    prefill: Literal["chunked", "whole"]
    chunk: Annotated[int, Field(ge=1)]
    dtype: Dtype | None = None
    """Dtype of dense entries as requested; None for the model's."""
    state: CacheState

    @field_validator("budget")
    @classmethod
    def _check_budget(cls, budget: Budget) -> Budget:
        if isinstance(budget, Share) and not (0 < budget.of_seen < 1 and 0 <= budget.floor < MOST):
            raise ValueError(f"found {budget}, expected a share between 0 and 1")
        return budget


def first_error(error: ValidationError) -> str:
    """Return the place of the first invalid value, what was expected and what was found."""
    first = error.errors()[0]
    where, found = ".".join(map(str, first["loc"])), first["input"]
    message = first["msg"].removeprefix("Value error, ")
    # an object is long, and the message names what is wrong in it
    return f"{where}: {message}" + ("" if isinstance(found, dict) else f"; found {found!r:.80}")


def dtype_name(dtype: torch.dtype) -> Dtype:
    """Return the name of a dtype of dense entries."""
    name: Any = str(dtype).removeprefix("torch.")
    return name  # type: ignore[no-any-return]
