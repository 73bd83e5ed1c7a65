"""Turning stored keys and queries to other rotary positions, in place.

Keys are stored as rotary embedding has turned them. A further turn by the difference of two
positions leads from one to the other, whatever factor the model's attention scaling (YaRN) has put
on them.

Shapes: W heads of a segment, T entries, D head size.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from agentkv.cache.geometry import LayerShape
from agentkv.cache.storage.layer_storage import LayerStorage
from agentkv_kernels.formats import BLOCK, Format
from agentkv_kernels.layout import BLOCK_IDS, KEYS

Steps = Callable[[Tensor], Tensor]
"""Positions (n,) of entries to how many rotary positions each is turned on, (n,) int64 on the
CPU."""

AT_ONCE = 64
"""Blocks of entries that are turned at once, which bounds the work space (our choice)."""


def turn_entries(storage: LayerStorage, sequence: int, steps: Steps, shape: LayerShape) -> None:
    """Turn the keys and the window of queries of one sequence.

    Entries that do not move stay as they are, bit for bit, except for quantized ones that share
    their scales with others that move. Keys stored in 8, 4 or 16 bits are rounded once more.

    Args:
        shape: of the layer, whose frequencies are known.
    """
    storage.own()
    for segment in storage.segments(sequence):
        by_entry = steps(storage.positions(segment))
        num_quantized = storage.num_quantized[segment]
        if num_quantized:
            _turn_quantized(storage, segment, by_entry[:num_quantized], shape)
        entries = storage.dense.entries(KEYS, segment)
        _turn_rows(entries, by_entry[num_quantized:], shape)
    for window in (storage.queries, storage.queries_of_chunks):
        if window is not None:
            queries, positions = window.of(sequence)
            _turn_rows(queries, steps(positions), shape)


def turned(
    x: Tensor,
    steps: Tensor,
    frequencies: Sequence[float],
    order: Sequence[int] | None = None,
) -> Tensor:
    """Return keys (..., n, D), each turned on by `steps` (n,) rotary positions, on the CPU.

    Channels beyond the pairs that have a frequency are not rotary, and stay.

    Args:
        frequencies, order: as in `LayerShape`.
    """
    if order is not None:
        places = torch.tensor(order, device=x.device)
        return turned(x[..., places], steps, frequencies)[..., places.argsort()]
    # float32 would round the angles of distant positions, and not every device has float64
    angles = steps.to(torch.float64)[:, None] * torch.tensor(frequencies, dtype=torch.float64)
    wide = torch.promote_types(x.dtype, torch.float32)
    cosines, sines = (each.to(wide).to(x.device) for each in (angles.cos(), angles.sin()))
    half = len(frequencies)
    one, other, rest = torch.split(x.to(wide), [half, half, x.shape[-1] - 2 * half], dim=-1)
    return torch.cat([one * cosines - other * sines, other * cosines + one * sines, rest], dim=-1)


def _turned(x: Tensor, steps: Tensor, shape: LayerShape) -> Tensor:
    assert shape.frequencies is not None, "keys that cannot be turned"
    return turned(x, steps, shape.frequencies, shape.order)


def _turn_rows(entries: Tensor, steps: Tensor, shape: LayerShape) -> None:
    """Turn entries (W, T, D) by steps (T,)."""
    for moved in torch.split(steps.nonzero().squeeze(1), AT_ONCE * BLOCK):
        rows = moved.to(entries.device)
        entries[:, rows] = _turned(entries[:, rows], steps[moved], shape).to(entries.dtype)


def _turn_quantized(storage: LayerStorage, segment: int, steps: Tensor, shape: LayerShape) -> None:
    form, (table, field, _) = storage.layout.format, storage.scale_fields
    assert form is not None and storage.codes is not None
    codes, scales = storage.codes.entries(KEYS, segment), table.entries(field, segment)
    if form.by_block:
        ids = storage.codes.entries(BLOCK_IDS, segment)[0]
        _turn_blocks(form, codes, scales, ids, steps, shape)
        return
    for moved in torch.split(steps.nonzero().squeeze(1), AT_ONCE * BLOCK):
        rows = moved.to(codes.device)
        x = _turned(form.decode(codes[:, rows], scales[:, rows], None), steps[moved], shape)
        codes[:, rows], scales[:, rows] = form.encode(x)


def _turn_blocks(
    form: Format,
    codes: Tensor,
    scales: Tensor,
    ids: Tensor,
    steps: Tensor,
    shape: LayerShape,
) -> None:
    """Turn quantized entries whose scales belong to blocks: encode these blocks anew.

    Args:
        codes: (W, T, C), mutated.  scales: (W, N, S), mutated.  ids: (T,) block of each entry.
        steps: (T,) on the CPU.
    """
    moved = steps.nonzero().squeeze(1).to(ids.device)
    for blocks in torch.split(torch.unique(ids[moved]), AT_ONCE):
        rows = torch.isin(ids, blocks).nonzero().squeeze(1)
        rows = rows[ids[rows].argsort(stable=True)]
        x = form.decode(codes[:, rows], scales, ids[rows])
        x = _turned(x, steps[rows.to(steps.device)], shape)
        # `encode` wants blocks of 64 entries, and entries may have left these
        number = torch.searchsorted(blocks, ids[rows])
        counts = torch.bincount(number, minlength=blocks.shape[0])
        before = (counts.cumsum(0) - counts)[number]
        places = number * BLOCK + torch.arange(rows.shape[0], device=rows.device) - before
        whole = x.new_zeros(x.shape[0], blocks.shape[0] * BLOCK, x.shape[2])
        whole[:, places] = x
        new_codes, new_scales = form.encode(whole)
        codes[:, rows], scales[:, blocks.long()] = new_codes[:, places], new_scales
