"""Choice of a layer's layout, which its policy needs, and of the backend that serves it."""

from dataclasses import replace

import torch

from agentkv.cache.geometry import LayerShape
from agentkv.cache.storage.backend import Backend
from agentkv.policies.policy import Policy
from agentkv.policies.slots import Phased
from agentkv_kernels.device import choice_for, unsupported_by_triton
from agentkv_kernels.formats import format_of
from agentkv_kernels.layout import DTYPES, EMPTY, FORMAT_NUMBERS, Field, Layout

TORCH = Backend()


def layout_for(
    layer: LayerShape, policy: Policy | None, *, dtype: torch.dtype, num_q_heads: int
) -> Layout:
    """Return the layout that `policy` needs in a layer.

    Args:
        policy: None for a layer that keeps whatever its window shows.
        dtype: of keys and values.
        num_q_heads: query heads of a sequence.
    """
    heads = layer.num_heads
    if policy is None:
        return Layout(1, heads, layer.head_dim, dtype, None, EMPTY, 0, False)
    # a policy that evicts by age alone evicts the same entries of all heads
    is_shared = policy.allocator.shared or policy.scorer.by_age
    tracker, form = policy.scorer.tracker, policy.precision.format
    query_window = max(policy.scorer.window, policy.recall.num_queries)
    return Layout(
        segments_per_sequence=1 if is_shared else heads,
        num_heads=heads if is_shared else 1,
        head_dim=layer.head_dim,
        dtype=dtype,
        format=None if form is None else format_of(form),
        tracked=EMPTY if tracker is None else Field(1, (tracker.size,), tracker.dtype),
        num_norms={None: 0, "mean": 1, "each": num_q_heads // heads}[policy.selector.norms],
        by_rank=policy.precision.by_rank,
        promotes=policy.recall.promotes,
        query_window=query_window,
        num_query_heads=num_q_heads if query_window else 0,
        by_phase=isinstance(policy.scorer, Phased),
    )


def cold_layout_for(hot: Layout, format: str) -> Layout:
    """Return the layout of the cold tier beside a layer.

    Args:
        format: of all entries; "dense" for the dtype of the layer's dense ones.
    """
    return replace(
        hot,
        format=None if format == "dense" else format_of(format),
        by_rank=True,
        promotes=True,
        query_window=0,
        num_query_heads=0,
        by_phase=False,
    )


def backend_for(layout: Layout, num_q_heads: int, device: torch.device) -> Backend:
    """Return the fastest backend that serves a layout on a device.

    Args:
        num_q_heads: query heads of a sequence.
    """
    wanted = choice_for(device).implementation
    form = None if layout.format is None else layout.format.name
    if wanted == "numba" and layout.dtype in DTYPES and form in FORMAT_NUMBERS:
        # imported here because Numba takes half a second, and is optional
        from agentkv.cache.storage.numba_backend import NUMBA

        return NUMBA
    if wanted != "triton" or form not in (None, "int8"):
        return TORCH
    group = num_q_heads // (layout.segments_per_sequence * layout.num_heads)
    if not unsupported_by_triton(layout.dtype, group, layout.head_dim):
        from agentkv.cache.storage.triton_backend import TRITON

        return TRITON
    return TORCH
