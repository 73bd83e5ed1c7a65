"""The public functions: each picks the implementation for where the tensors are.

    tensors on     attend                        attend_lanes
    CUDA           plain torch                   triton
    a processor    numba for a single query      numba

Without Triton or Numba (`choice_for` says which and why), and for what they do not serve, plain
torch does all; there a step whose logits fit in a few megabytes takes the path with the fewest
calls, which yields the attention mass for free. `weights` is plain torch everywhere; `append_row`,
`compact` and `merge_blocks` are so everywhere but on CUDA.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib import import_module
from types import MappingProxyType, ModuleType

import torch
from torch import Tensor

from agentkv_kernels import lanes
from agentkv_kernels.boxes import Average, Boxes, DenseRows, Drawn, Int8Rows, Leaving, Stored
from agentkv_kernels.certainty import certainty
from agentkv_kernels.device import Choice, Implementation, choice_for, choice_here, chosen, current
from agentkv_kernels.device import lack_of_attention as _lack_of_attention
from agentkv_kernels.formats import BLOCK, FORMATS, Format, format_of, merge
from agentkv_kernels.index import Rack
from agentkv_kernels.numba.limits import lack_of_attention as _lack_of_lanes
from agentkv_kernels.numba.limits import lack_of_parts as _lack_of_parts
from agentkv_kernels.parts import Coded, Dense, Part
from agentkv_kernels.reference import Attended, weights
from agentkv_kernels.reference import attend as _attend_in_blocks
from agentkv_kernels.reference import attend_at_once as _attend_at_once
from agentkv_kernels.row_ops import append_row, close_rows, compact, merge_blocks, serves_rows

__all__ = [
    "BLOCK",
    "FORMATS",
    "Attended",
    "Average",
    "Boxes",
    "Choice",
    "Coded",
    "Dense",
    "DenseRows",
    "Drawn",
    "Format",
    "Int8Rows",
    "Leaving",
    "Part",
    "Stored",
    "append_row",
    "attend",
    "attend_lanes",
    "attend_row",
    "certainty",
    "choice_for",
    "choice_here",
    "close_rows",
    "compact",
    "drop_rows",
    "format_of",
    "keep_rows",
    "merge",
    "merge_blocks",
    "serves_rack",
    "serves_rows",
    "weights",
]

Lacks = Mapping[Implementation, str | None]

_NUMBA: Lacks = MappingProxyType({"numba": None})

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
    if q.shape[2] == 1 and q_positions is None:
        lacks: Lacks = {"numba": _lack_of_parts(q, parts)}
        if chosen(None, q.device, lacks) == "numba":
            from agentkv_kernels.numba import attend as on_processors

            return on_processors.attend(
                q, parts, scale=scale, sinks=sinks, num_mass_queries=num_mass_queries
            )
    num_logits = q.shape[:3].numel() * sum(part.num_rows for part in parts)
    is_small = num_logits <= MAX_LOGITS_AT_ONCE and not any(part.is_padded for part in parts)
    serve = _attend_at_once if is_small else _attend_in_blocks
    return serve(
        q,
        parts,
        scale=scale,
        q_positions=q_positions,
        window=window,
        sinks=sinks,
        num_mass_queries=num_mass_queries,
    )


def attend_lanes(
    q: Tensor,
    stored: Stored,
    *,
    scale: float,
    sinks: Tensor | None = None,
    with_mass: bool = False,
    average: Average | None = None,
    implementation: Implementation | None = None,
) -> Drawn:
    """Attention of one new token per lane; see `lanes.attend_lanes` for shapes and meaning.

    Raises:
        ValueError: an implementation is asked for and cannot serve.
    """
    serve: Callable[..., Drawn]
    lacks = _lacks(q, stored)
    match chosen(implementation, q.device, lacks):
        case "triton":
            from agentkv_kernels.triton import attend as on_devices

            serve = on_devices.attend_lanes
        case "numba":
            from agentkv_kernels.numba import attend as on_processors

            serve = on_processors.attend_lanes
        case "reference":
            serve = lanes.attend_lanes
    with current(q.device):
        return serve(q, stored, scale=scale, sinks=sinks, with_mass=with_mass, average=average)


def serves_rack(dtype: torch.dtype, format: str | None, device: torch.device) -> bool:
    """Whether `attend_row` and `drop_rows` serve rows of this dtype, others being quantised in this
    format, on this device."""
    is_known = dtype == torch.float32 and format in (None, "int8")
    return is_known and chosen(None, device, _NUMBA) == "numba"


def attend_row(
    rack: Rack,
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    *,
    scale: float,
    sinks: Tensor | None = None,
    mass: Tensor | None = None,
    motion: tuple[float, float, bool] = (1.0, 0.0, False),
) -> Tensor | None:
    """Store one new row in every lane and attend over all rows, its own included, in one go.

    The row's position is what `Rack.begin_row` said, and its statistic starts at 0. Of a layer that
    keeps its last queries, these are taken in. Only where `serves_rack`, and without gradients.

    Args:
        q: (B, S * W * G, 1, D) float32; query head h * G + g reads head h.
        keys, values: (B, S * W, 1, D) float32.
        scale, sinks: as in `attend_lanes`.
        mass: (R,) float32, what to write the mass into, in the boxes of the positions.
        motion: `keep`, `gain` and `starts_at_mass` of `Average`, for the first number of each row.

    Returns:
        As q; None, and nothing was done, where a table has no room for a row.
    """
    output: Tensor | None = _step().take_row(
        rack, q, keys, values, scale=scale, sinks=sinks, mass=mass, motion=motion
    )
    return output


def drop_rows(racks: Sequence[Rack], rows: Sequence[Sequence[int]]) -> bool:
    """Let a few rows of every lane of some layers go, where `serves_rack`.

    Args:
        rows: which, of every lane, in storage order; the lanes of a layer after those of another.

    Returns:
        Whether memory should be given back, or blocks be merged, which is left to the caller.
    """
    return bool(_step().drop_rows(racks, rows))


def keep_rows(racks: Sequence[Rack], masks: Sequence[int]) -> bool:
    """Of every lane of some layers only some rows stay, where `serves_rack`.

    Args:
        masks: of every lane, as in `drop_rows`, the address of a bool for each row in storage
            order, True for those that stay; 0 where all do.

    Returns:
        As `drop_rows`.
    """
    return bool(_step().keep_rows(racks, masks))


@cache
def _step() -> ModuleType:  # once: at every step even an import statement counts
    return import_module("agentkv_kernels.numba.step")


def serves_lanes(q: Tensor, stored: Stored) -> bool:
    """Whether kernels serve this in `attend_lanes`; the reference goes from lane to lane."""
    lacks = _lacks(q, stored)
    return chosen(None, q.device, lacks) != "reference"


def _lacks(q: Tensor, stored: Stored) -> Lacks:
    rows = stored.dense.keys.dtype
    if q.dtype != rows:
        both = f"rows are {rows}, queries {q.dtype}"
        return {"triton": both, "numba": both}
    if q.requires_grad and torch.is_grad_enabled():
        return dict.fromkeys(("triton", "numba"), "gradients are asked for")
    group = q.shape[1] // stored.num_heads
    return {
        "triton": _lack_of_attention(q.dtype, group, q.shape[-1]),
        "numba": _lack_of_lanes(q),
    }
