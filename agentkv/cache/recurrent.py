"""Recurrent states: what layers of linear attention, short convolutions and state spaces keep.

A state has the same size whatever the number of tokens, so a policy has nothing to evict from it.
It cannot forget single tokens either: a cache goes back to its snapshots only.

Shapes: B sequences, C channels.
"""

from collections.abc import Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from agentkv.cache.storage.table import Meter

WHY_NOT_BACK = (
    "layers of this model keep a recurrent state, which cannot forget single tokens; take a "
    "`snapshot` before, and `restore` it"
)
"""Why a cache with recurrent states refuses to forget tokens."""


class RecurrentLayer:
    """The recurrent states of every sequence in one decoder layer.

    Args:
        meter: counts the bytes.
    """

    def __init__(self, meter: Meter) -> None:
        self._meter = meter
        self._states: dict[str, Tensor] = {}

    @property
    def nbytes(self) -> int:
        """Bytes of all states."""
        return sum(state.untyped_storage().nbytes() for state in self._states.values())

    def state(self, name: str) -> Tensor | None:
        """Return the state (B, ...) of a name, which a model may change in place; None before the
        first forward."""
        state = self._states.get(name)
        return None if state is None else state.detach()

    @torch.no_grad()
    def put(self, name: str, state: Tensor) -> Tensor:
        """Store a copy of a state (B, ...) and return it."""
        held = self._states.get(name)
        if held is None or held.shape != state.shape or held.dtype != state.dtype:
            with torch.inference_mode(False):  # or nothing could be written outside of that mode
                held = torch.empty(state.shape, dtype=state.dtype, device=state.device)
            self._meter.add(held.untyped_storage().nbytes())
            self._drop(name)
            self._states[name] = held
        return held.copy_(state)

    def put_columns(self, name: str, columns: Tensor, num_kept: int | None) -> Tensor:
        """Append columns (B, C, n) to the state of a convolution, and keep the latest.

        Args:
            num_kept: width of the state; None: the number of the first columns.

        Returns:
            (B, C, columns before + n), the ones before being zeros in the first forward.
        """
        before = self._states.get(name)
        if before is None:
            num_kept = columns.shape[-1] if num_kept is None else num_kept
            seen = F.pad(columns, (max(0, num_kept - columns.shape[-1]), 0))
        else:
            num_kept, seen = before.shape[-1], torch.cat([before, columns], dim=-1)
        self.put(name, seen[..., -num_kept:])
        return seen

    def copies(self) -> dict[str, Tensor]:
        """Return copies of all states by name."""
        return {name: state.clone() for name, state in self._states.items()}

    def fill(self, states: Mapping[str, Tensor], batch: int) -> None:
        """Take copies of the states of `batch` sequences.

        Raises:
            ValueError: there are none, or they belong to another number of sequences.
        """
        if not states or any(state.shape[:1] != (batch,) for state in states.values()):
            raise ValueError(f"found no recurrent states of {batch} sequences")
        for name, state in states.items():
            self.put(name, state)

    def reorder(self, index: Sequence[int]) -> None:
        """Make sequence i a copy of what sequence index[i] was."""
        for name, state in list(self._states.items()):
            taken = state[list(index)]
            with self._meter.counting(taken):
                self.put(name, taken)

    @classmethod
    def joined(cls, layers: Sequence["RecurrentLayer"]) -> "RecurrentLayer":
        """Return copies of the states of several caches, one after another, which none counts."""
        joined = cls(Meter())
        for name in layers[0]._states:
            joined.put(name, torch.cat([layer._states[name] for layer in layers]))
        return joined

    def take(self, joined: "RecurrentLayer", rows: slice) -> None:
        """Take over what a forward has made of this layer's part of `joined`."""
        for name, state in joined._states.items():
            self.put(name, state[rows])

    def reset(self) -> None:
        """Forget everything and return the memory."""
        for name in list(self._states):
            self._drop(name)

    def _drop(self, name: str) -> None:
        state = self._states.pop(name, None)
        if state is not None:
            self._meter.add(-state.untyped_storage().nbytes())


def misplaced_padding(is_token: Tensor, fed: Sequence[int]) -> str | None:
    """Return why recurrent layers cannot skip the padding of a forward; None if they can.

    transformers writes zeros where padding is, which change a state that has begun. It takes the
    only column of a forward for a token.

    Args:
        is_token: (B or 1, n) bool on the CPU.
        fed: tokens that each sequence was fed before.
    """
    rows = is_token.expand(len(fed), -1)
    begun = torch.tensor([num_seen > 0 for num_seen in fed])[:, None]
    after_token = (rows.cumsum(dim=1) > 0) | begun
    if rows.shape[1] > 1 and not (after_token & ~rows).any():
        return None
    return (
        "layers of this model keep a recurrent state, which padding leaves alone only before the "
        "first token of a sequence, in a forward of several columns; pad on the left, in the "
        "first turn"
    )
