"""Hybrids: decoders whose layers do not all attend, or keep a recurrent state beside attention.

What `reading` finds by running a decoder is declared here, because such layers end elsewhere.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple

from torch import nn
from transformers import PreTrainedModel

from agentkv.cache.geometry import Geometry, Hybrid, LayerShape
from agentkv.cache.hf.layer_kinds import WINDOWED
from agentkv.cache.hf.reading import (
    CHANGES,
    CHANGING,
    UnsupportedModel,
    candidates,
    frequencies_of,
    new_rotary,
    rope_type,
)


@dataclass(frozen=True, slots=True)
class HybridFamily:
    """Names of the modules of a family."""

    attention: str = "self_attn"
    """Attention, in a decoder layer."""
    projection: str = "o_proj"
    """Output projection, in the attention."""
    scales_attention: bool = False
    """True if a layer adds a multiple of what its attention returns."""


HYBRIDS: Mapping[str, HybridFamily] = MappingProxyType(
    {
        "falcon_h1": HybridFamily(scales_attention=True),
        "granitemoehybrid": HybridFamily(scales_attention=True),
        "jamba": HybridFamily(),
        "lfm2": HybridFamily(projection="out_proj"),
        "lfm2_moe": HybridFamily(projection="out_proj"),
        "lfm3": HybridFamily(),
        "nemotron_h": HybridFamily(attention="mixer"),
        "olmo_hybrid": HybridFamily(),
        "qwen3_5_moe_text": HybridFamily(),
        "qwen3_5_text": HybridFamily(),
        "qwen3_next": HybridFamily(),
    }
)
"""Families that are served, by `config.model_type`."""


def hybrid_family(config: Any) -> HybridFamily:
    """Return the family of a model's configuration. Raises UnsupportedModel."""
    found = HYBRIDS.get(str(config.model_type))
    if found is None:
        raise UnsupportedModel(
            f"this {config.model_type} model is not supported: some of its layers do not attend; "
            f"known families of this kind: {', '.join(HYBRIDS)}"
        )
    return found


def describe_hybrid(model: PreTrainedModel, inner: PreTrainedModel, hybrid: Hybrid) -> Geometry:
    """Read the geometry of the layers that attend.

    Args:
        inner: the decoder of `model`.

    Raises:
        UnsupportedModel: no such family is known.
    """
    config: Any = inner.config
    family, kinds = hybrid_family(model.config), config.layer_types
    num_q_heads = config.num_attention_heads
    num_heads = getattr(config, "num_key_value_heads", None) or num_q_heads
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // num_q_heads
    window = getattr(config, "sliding_window", None)
    attending = [kind for kind in kinds if kind in WINDOWED]
    rotations = {kind: _rotation(inner, kind, head_dim) for kind in dict.fromkeys(attending)}
    shapes = {
        kind: LayerShape(
            num_heads,
            head_dim,
            window if WINDOWED[kind] else None,
            rotation.frequencies,
            rotation.order,
            family.projection,
        )
        for kind, rotation in rotations.items()
    }
    max_positions = getattr(config, "max_position_embeddings", None)
    if all(shape.frequencies == () for shape in shapes.values()):
        max_positions = None  # its recurrent layers tell it the order of tokens
    return Geometry(
        family=str(model.config.model_type),
        layers=tuple(shapes[kind] for kind in attending),
        num_q_heads=num_q_heads,
        dtype=model.dtype,
        max_positions=max_positions,
        why_not_turned=next(
            (each.why_not_turned for each in rotations.values() if each.why_not_turned), None
        ),
        hybrid=hybrid,
        why_not_watched=f"{model.config.model_type} adds a multiple of what its attention returns"
        if family.scales_attention
        else None,
    )


def _rotation(inner: nn.Module, kind: str, head_dim: int) -> "_Rotation":
    """Return the rotation of keys in layers of a kind."""
    found = frequencies_of(inner)
    path = next((p for p in found if p.endswith(f"{kind}_inv_freq")), next(iter(found), None))
    if path is None:
        return _Rotation((), None)
    if rope_type(inner, path) in CHANGING:
        return _Rotation(None, None, CHANGES)
    angles = found[path]
    if angles.device.type == "meta":
        owner, _, name = path.rpartition(".")
        angles = new_rotary(inner.get_submodule(owner)).get_buffer(name)
    # the first of them is what transformers calls the default: channels i and i + r / 2
    return _Rotation(*next(candidates(angles, head_dim)))


class _Rotation(NamedTuple):
    """Fields of `LayerShape` and `Geometry`."""

    frequencies: tuple[float, ...] | None
    order: tuple[int, ...] | None
    why_not_turned: str | None = None
