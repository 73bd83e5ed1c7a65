"""Storage without a model, and how far its entries may be from what was appended."""

import torch

from agentkv.cache.storage.backend import Backend
from agentkv.cache.storage.evictions import Eviction
from agentkv.cache.storage.layer_storage import LayerStorage
from agentkv.cache.storage.table import Meter
from agentkv_kernels.formats import format_of, powers
from agentkv_kernels.layout import EMPTY, Field, Layout

CPU = torch.device("cpu")
DIM = 4
TRACKED = [EMPTY, Field(1, (1,), torch.float32), Field(1, (3,), torch.uint8)]
WIDEST_GAP = {"int4": 1 / 7, "nf4": 1 - 0.6961928009986877}
TORCH = Backend()


def layout(form="int8", *, segments=1, heads=2, tracked=EMPTY, norms=0, by_rank=False):
    return Layout(
        segments_per_sequence=segments,
        num_heads=heads,
        head_dim=DIM,
        dtype=torch.float32,
        format=None if form is None else format_of(form),
        tracked=tracked,
        num_norms=norms,
        by_rank=by_rank,
    )


def storage_for(shape, batch=1, meter=None):
    return LayerStorage(shape, batch=batch, device=CPU, meter=meter or Meter())


def drop(backend, storage, verdicts):
    """Apply one verdict per sequence; None: all entries stay."""
    evictions = [
        Eviction([storage], sequence, verdict)
        for sequence, verdict in enumerate(verdicts)
        if verdict is not None
    ]
    backend.drop(evictions)


def contents(storage, segment):
    """Keys and values (W, T, D) of a segment as attention reads them."""
    parts = [part.decode(torch.float32) for part in storage.parts(segment)]
    return [torch.cat([part[i][0] for part in parts], dim=1) for i in range(2)]


def most_off(part, which, original):
    """Return the largest distance of quantized entries (W, T, D) from the original ones."""
    scales = (part.key_scales, part.value_scales)[which][0]
    if part.format.name == "int8":
        # half a scale when made, less than half of the present one over all later merges
        return powers(scales)[:, part.block_ids[0].long()]
    if part.format.name == "fp8":
        return torch.maximum(original.abs() / 16, powers(scales) / 1024)
    # half a gap between levels, and a scale that has 8 bits itself
    gap = WIDEST_GAP[part.format.name] / 2 + 2**-7
    return scales.float().repeat_interleave(32, dim=-1)[..., :DIM] * gap
