"""Arithmetic of a budget in bytes."""

import math
from dataclasses import dataclass

from agentkv.cache.geometry import Geometry, LayerShape
from agentkv.cache.storage.choose import layout_for
from agentkv.cache.storage.layer_storage import max_blocks
from agentkv.cache.storage.query_window import SPARE
from agentkv.policies.policy import Policy
from agentkv_kernels.formats import BLOCK
from agentkv_kernels.layout import Field, Layout


@dataclass(frozen=True, slots=True)
class EntrySize:
    """Bytes of one entry of a segment."""

    dense: int
    """Key and value in the model's dtype."""
    quantized: int
    """Key and value quantized, with scales or block id; shared scales excluded."""
    block: int
    """Scales that one block shares."""
    metadata: int
    """Position, statistic, norms."""

    @classmethod
    def of(cls, layout: Layout) -> "EntrySize":
        """Return the sizes for a layout."""
        tables = (layout.dense, layout.codes, layout.scales, layout.metadata)
        return cls(*(sum(map(_num_bytes, fields)) for fields in tables))

    def segment(self, *, num_dense: int, num_quantized: int) -> int:
        """Return the most bytes a segment takes, with a block of unused capacity per table."""
        count = num_dense + num_quantized
        total = (num_dense + BLOCK) * self.dense + (count + BLOCK) * self.metadata
        if self.quantized:
            total += (num_quantized + BLOCK) * self.quantized
            total += max_blocks(num_quantized) * self.block
        return total


def _num_bytes(field: Field) -> int:
    return field.heads * math.prod(field.inner) * field.dtype.itemsize


def resting_bytes(policy: Policy, geometry: Geometry, batch: int) -> int:
    """Return the most bytes that a full cache holds after an input under a fitted policy with a
    ceiling. While decoding, a policy that is not bounded adds to them.

    The split that an allocator chooses does not matter: the layers it acts on are alike, and bytes
    grow linearly with entries, or more slowly where old entries are quantized. Entries whose format
    depends on their rank count as dense.
    """
    assert policy.gate.ceiling is not None
    return batch * sum(bytes_by_layer(policy, geometry, policy.gate.ceiling + policy.gate.slack))


def bytes_by_layer(
    policy: Policy, geometry: Geometry, num_entries: int, *, num_seen: int | None = None
) -> list[int]:
    """Return the most bytes that each layer takes for one sequence.

    Args:
        policy: a fitted policy.
        num_entries: entries per head in the layers that the policy acts on.
        num_seen: tokens of the sequence, of which the other layers hold what their own window
            shows; None: at least as many as any window.
    """
    acted_on = set(geometry.policy_layers)
    sizes = []
    for i, layer in enumerate(geometry.layers):
        if i in acted_on:
            sizes.append(_layer_bytes(layer, policy, geometry, num_entries))
        else:
            assert layer.window is not None
            held = layer.window if num_seen is None else min(layer.window, num_seen)
            sizes.append(_layer_bytes(layer, None, geometry, held))
    return sizes


def _layer_bytes(
    layer: LayerShape, policy: Policy | None, geometry: Geometry, num_entries: int
) -> int:
    layout = layout_for(layer, policy, dtype=geometry.dtype, num_q_heads=geometry.num_q_heads)
    size = EntrySize.of(layout)
    count = num_entries if layer.window is None else min(num_entries, layer.window)
    if policy is None:
        return size.segment(num_dense=count, num_quantized=0)
    num_dense = count
    if (recent := policy.precision.recent) is not None:
        num_dense = min(count, recent + BLOCK - 1)
    per = layout.segments_per_sequence
    total = per * size.segment(num_dense=num_dense, num_quantized=count - num_dense)
    if layout.by_rank:
        # any entry may be quantized, and a segment's last block may be half empty
        total += per * max_blocks(count) * size.block
    window = (layout.query_window + SPARE + 1) * sum(map(_num_bytes, layout.queries))
    return total + (2 * window if layout.by_phase else window)
