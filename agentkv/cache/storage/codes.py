"""Codes of quantized entries: encoding entries, and merging the blocks of scales that entries left.

Shapes: W heads of a segment, T entries, D head size.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from agentkv.cache.storage.layer_storage import LayerStorage, max_blocks
from agentkv.cache.storage.table import EntryTable
from agentkv_kernels.formats import BLOCK, merge
from agentkv_kernels.layout import BLOCK_IDS, KEYS, VALUES


def append_quantized(
    storage: LayerStorage,
    counts: Sequence[int],
    read: Callable[[int, int], tuple[Tensor, bool]],
) -> None:
    """Encode entries and append them to the codes of `storage`, which is mutated.

    Codes are made once, from entries in the model's dtype.

    Args:
        counts: number of entries per segment.
        read: field and segment to the entries (W, T, D), and whether they are a copy.
    """
    codes, scales, form = storage.codes, storage.scales, storage.layout.format
    assert codes is not None and form is not None
    meter, first_blocks = codes.meter, extend_codes(storage, counts)
    table, *scale_fields = storage.scale_fields
    for segment, count in enumerate(counts):
        if not count:
            continue
        for field, scale_field in zip((KEYS, VALUES), scale_fields, strict=True):
            x, is_copy = read(field, segment)
            with meter.counting(*([x] if is_copy else [])):
                new_codes, new_scales = form.encode(x)
                with meter.counting(new_codes, new_scales):
                    codes.entries(field, segment)[:, -count:] = new_codes
                    last = table.entries(scale_field, segment)[:, -new_scales.shape[1] :]
                    last.copy_(new_scales)
                    del new_codes, new_scales, last
                del x
        if scales is not None:
            ids = torch.arange(count, device=storage.device) // BLOCK + first_blocks[segment]
            codes.entries(BLOCK_IDS, segment)[0, -count:] = ids
    merge_blocks(storage)


def extend_codes(storage: LayerStorage, counts: Sequence[int]) -> list[int]:
    """Lengthen the codes of each segment, and its scales by blocks of their own; return the first
    of these per segment, nothing where each entry has its own scales."""
    codes, scales = storage.codes, storage.scales
    assert codes is not None
    codes.extend(counts)
    if scales is None:
        return []
    first_blocks = scales.counts
    scales.extend([-(-count // BLOCK) for count in counts])
    return first_blocks


def merge_blocks(storage: LayerStorage) -> None:
    """Merge the blocks of segments that have more than `max_blocks`; mutates `storage`.

    Merging shifts integers and decodes nothing.
    """
    codes, scales = storage.codes, storage.scales
    if codes is None or scales is None:
        return
    counts, blocks = codes.counts, scales.counts
    sparse = [have > max_blocks(count) for have, count in zip(blocks, counts, strict=True)]
    if not any(sparse):
        return
    runs = [(0, 0)] * len(counts)
    for table in (codes, scales):
        table.own()
    for segment in (i for i, is_sparse in enumerate(sparse) if is_sparse):
        # scales of merged blocks replace the first ones, and the others are dropped
        num_merged = -(-counts[segment] // BLOCK)
        runs[segment] = (num_merged, blocks[segment])
        if num_merged:
            _merge_segment(codes, scales, segment, num_merged)
    scales.drop(runs)


def _merge_segment(codes: EntryTable, scales: EntryTable, segment: int, num_merged: int) -> None:
    """Merge a segment's blocks into `num_merged`, whose scales come first."""
    meter, ids = codes.meter, codes.entries(BLOCK_IDS, segment)[0]
    old_ids = ids.clone()
    with meter.counting(old_ids):
        for field in (KEYS, VALUES):
            own_codes, own_scales = (table.entries(field, segment) for table in (codes, scales))
            new_codes, new_scales, new_ids = merge(own_codes, own_scales, old_ids)
            with meter.counting(new_codes, new_scales, new_ids):
                own_codes.copy_(new_codes)
                own_scales[:, :num_merged] = new_scales
                ids.copy_(new_ids)
                del new_codes, new_scales, new_ids
