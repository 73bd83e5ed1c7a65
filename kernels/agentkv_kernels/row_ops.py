"""Rows that come and go: each function picks the implementation. `ops` is the door.

What is stored goes through Triton on CUDA and through plain torch elsewhere.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from agentkv_kernels import lanes, lanes_kept
from agentkv_kernels.boxes import Boxes, Int8Rows, Leaving, Stored
from agentkv_kernels.device import Implementation, chosen, current, lack_of_rows

Lacks = Mapping[Implementation, str | None]


def serves_rows(
    dtype: torch.dtype, head_dim: int, format: str | None, device: torch.device
) -> bool:
    """Whether kernels for devices store rows of this dtype, others being quantised in this
    format, and let them go (`append_row`, `close_rows`)."""
    lack = lack_of_rows(dtype, head_dim)
    return format in (None, "int8") and chosen(None, device, {"triton": lack}) == "triton"


def append_row(
    stored: Stored,
    keys: Tensor,
    values: Tensor,
    *,
    positions: Tensor,
    plus: int = 0,
    recent: int | None = None,
    numbers: Tensor | None = None,
    implementation: Implementation | None = None,
) -> Stored:
    """Add one row to every lane and quantise what became too old; see `lanes.append_row`.

    Raises:
        ValueError: an implementation is asked for and cannot serve.
    """
    serve: Callable[..., Stored] = lanes.append_row
    if _on_device(implementation, stored):
        from agentkv_kernels.triton import append

        serve = append.append_row
    with current(keys.device):
        return serve(
            stored, keys, values, positions=positions, plus=plus, recent=recent, numbers=numbers
        )


def compact(
    stored: Stored,
    picks: Tensor,
    *,
    counts: Sequence[int],
    coded_counts: Sequence[int],
    spare: int,
    carried: Sequence[Tensor] = (),
    implementation: Implementation | None = None,
) -> tuple[Stored, list[Tensor]]:
    """Only some rows of every lane, in memory that fits them; see `lanes_kept.compact`.

    Raises:
        ValueError: an implementation is asked for and cannot serve.
    """
    serve: Callable[..., tuple[Stored, list[Tensor]]] = lanes_kept.compact
    if _on_device(implementation, stored):
        from agentkv_kernels.triton import compact as on_devices

        serve = on_devices.compact
    with current(picks.device):
        return serve(
            stored, picks, counts=counts, coded_counts=coded_counts, spare=spare, carried=carried
        )


def merge_blocks(
    stored: Stored,
    merges: Sequence[bool],
    *,
    implementation: Implementation | None = None,
) -> Stored:
    """The quantised rows of some lanes in as few blocks as they fill; see
    `lanes_kept.merge_blocks`.

    Raises:
        ValueError: an implementation is asked for and cannot serve.
    """
    assert stored.coded is not None, "nothing is quantised"
    serve: Callable[..., Int8Rows] = lanes_kept.merge_blocks
    if _on_device(implementation, stored):
        from agentkv_kernels.triton import compact as on_devices

        serve = on_devices.merge_blocks
    with current(stored.positions.device):
        coded = serve(stored.coded, merges, num_heads=stored.num_heads)
    return replace(stored, coded=coded)


def close_rows(leaving: Sequence[Leaving], *, picks: Tensor | None = None) -> list[Boxes]:
    """Let rows of some tables of one device go, all in one launch; only where `serves_rows`.

    Rows are moved in place, and so are the tables of boxes on the device.

    Args:
        picks: (n,) int64 on the device, rows of lanes that the host does not know.

    Returns:
        The boxes of each table as they are now; the old ones are of no use any more.
    """
    device = leaving[0].boxes.table.device
    assert chosen(None, device, {"triton": None}) == "triton"
    from agentkv_kernels.triton import close

    with current(device):
        return close.close_rows(leaving, picks)


def _on_device(asked: Implementation | None, stored: Stored) -> bool:
    lacks: Lacks = {"triton": lack_of_rows(stored.dense.keys.dtype, stored.head_dim)}
    return chosen(asked, stored.positions.device, lacks) == "triton"
