"""Lanes without a model, and how far their rows may be from what was stored."""

import torch

from agentkv.cache.shape import NOTHING, LaneShape
from agentkv.cache.table import Field
from agentkv_kernels.formats import powers
from agentkv_kernels.ops import format_of

CPU = torch.device("cpu")
DIM = 4
TRACKED = [NOTHING, Field(1, (1,), torch.float32), Field(1, (3,), torch.uint8)]
WIDEST_GAP = {"int4": 1 / 7, "nf4": 1 - 0.6961928009986877}


def shape(form="int8", *, lanes=1, heads=2, tracked=NOTHING, norms=0, by_rank=False):
    return LaneShape(
        per_sequence=lanes,
        num_heads=heads,
        head_dim=DIM,
        dtype=torch.float32,
        format=None if form is None else format_of(form),
        tracked=tracked,
        num_norms=norms,
        by_rank=by_rank,
    )


def contents(lanes, lane):
    """Keys and values (W, T, D) of a lane as attention reads them."""
    parts = [part.whole(torch.float32) for part in lanes.parts(lane)]
    return [torch.cat([part[i][0] for part in parts], dim=1) for i in range(2)]


def most_off(part, which, original):
    """How far quantised rows (W, T, D) may be from what they were made of."""
    scales = (part.key_scales, part.value_scales)[which][0]
    if part.format.name == "int8":
        # half a scale when made, less than half of the present one over all later merges
        return powers(scales)[:, part.block_ids[0].long()]
    if part.format.name == "fp8":
        return torch.maximum(original.abs() / 16, powers(scales) / 1024)
    # half a gap between levels, and a scale that has 8 bits itself
    gap = WIDEST_GAP[part.format.name] / 2 + 2**-7
    return scales.float().repeat_interleave(32, dim=-1)[..., :DIM] * gap
