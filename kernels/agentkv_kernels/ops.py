"""The public functions: each picks the implementation for where the tensors are.

On the CPU that is `reference`; a step whose logits fit in a few megabytes takes the path with the
fewest calls, which yields the attention mass for free.
"""

from collections.abc import Sequence

from torch import Tensor

from agentkv_kernels.formats import BLOCK, FORMATS, Format, format_of, merge
from agentkv_kernels.parts import Coded, Dense, Part
from agentkv_kernels.reference import Attended, weights
from agentkv_kernels.reference import attend as _attend_in_blocks
from agentkv_kernels.reference import attend_at_once as _attend_at_once

__all__ = [
    "BLOCK",
    "FORMATS",
    "Attended",
    "Coded",
    "Dense",
    "Format",
    "Part",
    "attend",
    "format_of",
    "merge",
    "weights",
]

MAX_LOGITS_AT_ONCE = 1 << 22
"""16 MiB of float32 (our choice): 512 new tokens over 2,048 rows in 4 heads."""


def attend(
    q: Tensor,
    parts: Sequence[Part],
    *,
    scale: float,
    q_positions: Tensor | None = None,
    window: int | None = None,
    sinks: Tensor | None = None,
    num_mass_queries: int = 0,
) -> Attended:
    """Attention of new tokens over stored rows; see `reference.attend` for shapes and meaning.

    Queries must see at least one row each unless a part is padded.
    """
    num_rows = sum(part.num_rows for part in parts)
    num_logits = q.shape[0] * q.shape[1] * q.shape[2] * num_rows
    if num_logits <= MAX_LOGITS_AT_ONCE and not any(part.is_padded for part in parts):
        return _attend_at_once(
            q,
            parts,
            scale=scale,
            q_positions=q_positions,
            window=window,
            sinks=sinks,
            num_mass_queries=num_mass_queries,
        )
    return _attend_in_blocks(
        q,
        parts,
        scale=scale,
        q_positions=q_positions,
        window=window,
        sinks=sinks,
        num_mass_queries=num_mass_queries,
    )
