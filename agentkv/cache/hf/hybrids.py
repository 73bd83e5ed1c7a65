"""Hybrids: decoders whose layers do not all attend, or keep a recurrent state beside attention.

What `reading` finds by running a decoder is declared here, because such layers end elsewhere.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from torch import Tensor, nn
from transformers import PreTrainedModel

from agentkv.cache.geometry import Geometry, Hybrid, LayerShape
from agentkv.cache.hf.layer_kinds import WINDOWED
from agentkv.cache.hf.reading import CHANGES, CHANGING, UnsupportedModel


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
            f"its layers do not all attend, and of such models these are known: "
            f"{', '.join(HYBRIDS)}"
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
    shapes, why_not_turned = {}, None
    for kind in dict.fromkeys(attending):
        frequencies, order = _frequencies(inner, kind, head_dim)
        if _rope_type(inner, kind) in CHANGING:
            frequencies, why_not_turned = None, CHANGES
        shapes[kind] = LayerShape(
            num_heads,
            head_dim,
            window if WINDOWED[kind] else None,
            frequencies,
            order,
            family.projection,
        )
    max_positions = getattr(config, "max_position_embeddings", None)
    if all(shape.frequencies == () for shape in shapes.values()):
        max_positions = None  # its recurrent layers tell it the order of tokens
    return Geometry(
        family=str(model.config.model_type),
        layers=tuple(shapes[kind] for kind in attending),
        num_q_heads=num_q_heads,
        dtype=model.dtype,
        max_positions=max_positions,
        why_not_turned=why_not_turned,
        hybrid=hybrid,
    )


def _frequencies(
    inner: nn.Module, kind: str, head_dim: int
) -> tuple[tuple[float, ...] | None, tuple[int, ...] | None]:
    """Return `LayerShape.frequencies` and `LayerShape.order` of layers of a kind."""
    rotary: Any = getattr(inner, "rotary_emb", None)
    if rotary is None:
        return (), None
    name = f"{kind}_inv_freq"
    angles: Tensor = getattr(rotary, name) if hasattr(rotary, name) else rotary.inv_freq
    turned = 2 * angles.numel()
    order = None
    if turned < head_dim:  # the last channels are not turned
        middle = (turned + head_dim) // 2
        first = (*range(turned // 2), *range(turned, middle))
        order = (*first, *range(turned // 2, turned), *range(middle, head_dim))
    if angles.device.type == "meta":
        return None, order
    return (*angles.tolist(), *[0.0] * ((head_dim - turned) // 2)), order


def _rope_type(inner: nn.Module, kind: str) -> str | None:
    """Return the kind of rotary embedding of layers of a kind; None for none."""
    rotary: Any = getattr(inner, "rotary_emb", None)
    if rotary is None:
        return None
    form = rotary.rope_type
    return str(form[kind] if isinstance(form, dict) else form)
