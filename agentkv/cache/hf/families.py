"""Supported model families: where their parts are, their geometry, and what rules a model out.

Shapes: H query heads, D head size, d hidden size.
"""

from collections.abc import Mapping
from importlib import import_module
from pkgutil import iter_modules
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from agentkv.cache.geometry import Geometry, LayerShape, LowRank, Projection
from agentkv.cache.hf import family as declared
from agentkv.cache.hf.family import Family
from agentkv.cache.hf.layer_kinds import WINDOWED, hybrid_of, unserved_entries, unserved_kind


class UnsupportedModel(ValueError):
    """The model belongs to no supported family, or has a part that is not supported."""


FAMILIES: Mapping[str, Family] = MappingProxyType(
    {
        module.name: import_module(f"{declared.__name__}.{module.name}").FAMILY
        for module in iter_modules(declared.__path__)
    }
)
"""Supported families, by `config.model_type`: those that the modules of `agentkv.cache.hf.family`
declare."""

INSTEAD: Mapping[str, str] = MappingProxyType(
    {
        "gemma2": "its attention soft-caps its logits",
        "gemma3": "tokens of an image see each other in both directions; its text part alone, "
        "Gemma3ForCausalLM with the family gemma3_text, can be used",
    }
)
"""Similar families that are not supported, and why."""

CHANGING = ("dynamic", "longrope")
"""Kinds of rotary embedding whose frequencies change with the length of the sequence."""

DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


def describe(model: PreTrainedModel) -> Geometry:
    """Read a model's geometry from its configuration; where its weights are does not matter.

    Raises:
        UnsupportedModel: the family is not known, or this model of it has a part that is not.
    """
    config: Any = model.config
    family = str(config.model_type)
    if family not in FAMILIES:
        why = INSTEAD.get(family) or unserved_entries(config)
        if why is None and getattr(config, "is_encoder_decoder", False):
            why = "an encoder-decoder attends to a second input"
        raise UnsupportedModel(
            f"model family {family!r} is not supported{'' if why is None else f' ({why})'}; "
            f"supported: {', '.join(FAMILIES)}"
        )
    num_layers, num_q_heads = config.num_hidden_layers, config.num_attention_heads
    num_heads = getattr(config, "num_key_value_heads", None) or num_q_heads
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // num_q_heads
    window = getattr(config, "sliding_window", None)
    kinds = getattr(config, "layer_types", None)
    if kinds is None:
        kinds = ["full_attention" if window is None else "sliding_attention"] * num_layers
    obstacle = _obstacle(config, kinds)
    if obstacle is not None:
        raise UnsupportedModel(f"this {family} model is not supported: {obstacle}")
    attending, hybrid = [kind for kind in kinds if kind in WINDOWED], hybrid_of(kinds)
    shapes = {
        kind: LayerShape(
            num_heads,
            head_dim,
            window if WINDOWED[kind] else None,
            _frequencies(decoder(model), kind),
        )
        for kind in dict.fromkeys(attending)
    }
    max_positions = getattr(config, "max_position_embeddings", None)
    if hybrid is not None and all(shape.frequencies == () for shape in shapes.values()):
        max_positions = None  # its recurrent layers tell it the order of tokens
    return Geometry(
        family=family,
        layers=tuple(shapes[kind] for kind in attending),
        num_q_heads=num_q_heads,
        dtype=model.dtype,
        max_positions=max_positions,
        changes_frequencies=any(_rope_type(decoder(model), kind) in CHANGING for kind in shapes),
        hybrid=hybrid,
    )


def decoder(model: PreTrainedModel) -> nn.Module:
    """Return the part of a supported model that runs its layers."""
    base: nn.Module = model.base_model
    if hasattr(base, FAMILIES[str(model.config.model_type)].layers):
        return base
    # before 5.0, the text-only Gemma 3 is its own base
    inner = base.model
    assert isinstance(inner, nn.Module)
    return inner


def layers_of(model: PreTrainedModel) -> list[nn.Module]:
    """Return the decoder layers of a supported model."""
    return list(getattr(decoder(model), FAMILIES[str(model.config.model_type)].layers))


def attending_layers(model: PreTrainedModel) -> list[nn.Module]:
    """Return the decoder layers of a supported model that attend."""
    layers = layers_of(model)
    hybrid = hybrid_of(getattr(model.config, "layer_types", None) or ())
    return layers if hybrid is None else [layers[i] for i in hybrid.attending]


def attentions(model: PreTrainedModel) -> list[nn.Module]:
    """Return the attention module of each layer that attends."""
    name = FAMILIES[str(model.config.model_type)].attention
    return [getattr(layer, name) for layer in attending_layers(model)]


def _frequencies(inner: nn.Module, kind: str) -> tuple[float, ...] | None:
    """Return `LayerShape.frequencies` of layers of a kind in a decoder.

    Every supported family with rotary embedding turns channel i with channel i + D / 2.
    """
    rotary = _rotary(inner, kind)
    if rotary is None:
        return ()
    name = f"{kind}_inv_freq"
    angles: Tensor = getattr(rotary, name) if hasattr(rotary, name) else rotary.inv_freq
    if _rope_type(inner, kind) in CHANGING or angles.device.type == "meta":
        return None
    return tuple(angles.tolist())


def _rope_type(inner: nn.Module, kind: str) -> str | None:
    """Return the kind of rotary embedding of layers of a kind; None for none."""
    rotary = _rotary(inner, kind)
    if rotary is None:
        return None
    form = rotary.rope_type
    return str(form[kind] if isinstance(form, dict) else form)


def _rotary(inner: nn.Module, kind: str) -> Any:
    """Return the rotary embedding of layers of a kind; None for none."""
    rotary: Any = getattr(inner, "rotary_emb", None)
    # before 5.0, Gemma 3 has a second embedding for its windowed layers
    return getattr(inner, "rotary_emb_local", rotary) if WINDOWED[kind] else rotary


def _obstacle(config: Any, kinds: list[str]) -> str | None:
    if getattr(config, "is_encoder_decoder", False) or getattr(
        config, "add_cross_attention", False
    ):
        return "it attends to a second input (add_cross_attention, is_encoder_decoder)"
    if getattr(config, "use_bidirectional_attention", False):
        return "its tokens see what follows them (use_bidirectional_attention)"
    if getattr(config, "attn_logit_softcapping", None) is not None:
        return "its attention soft-caps its logits (attn_logit_softcapping)"
    return unserved_entries(config) or unserved_kind(kinds)


def output_projection(module: nn.Module) -> Projection:
    """Return the output projection of an attention module, as views of its weights.

    A head's output (T, D) times its (D, d), plus its product with the two matrices of each active
    adapter, is what the head adds to the stream, apart from biases. Views, because a copy per step
    would cost more than the projection itself.

    Raises:
        ValueError: the projection cannot be read: it is quantized, offloaded, or has an adapter
            that is more than a LoRA.
    """
    known = sorted({family.projection for family in FAMILIES.values()})
    names = [name for name in known if hasattr(module, name)]
    if not names:
        raise ValueError(
            f"{type(module).__name__} has no output projection; expected one of {', '.join(known)}"
        )
    found: Any = getattr(module, names[0])
    what = f"the {names[0]} of {type(module).__name__}"
    head_dim: Any = module.head_dim
    is_adapted = all(hasattr(found, part) for part in ("base_layer", "lora_A", "lora_B", "scaling"))
    weights: Any = _weights(found.base_layer if is_adapted else found, what)
    names = _active(found, what) if is_adapted else []
    down: dict[str, Any] = {name: _weights(found.lora_A[name], f"{what}, lora_A") for name in names}
    adapters = tuple(
        LowRank(
            down[name].unflatten(0, (-1, head_dim)),
            _weights(found.lora_B[name], f"{what}, lora_B"),
            float(found.scaling[name]),
        )
        for name in names
    )
    return Projection(weights.unflatten(0, (-1, head_dim)), adapters)


def _active(adapted: Any, what: str) -> list[str]:
    """Return the names of the active adapters of a LoRA layer, as PEFT makes it."""
    if adapted.disable_adapters or adapted.merged:
        return []  # not added, or in the base layer's weights
    names = [name for name in adapted.active_adapters if name in adapted.lora_A]
    for name in names:
        more = (
            getattr(adapted, "use_dora", {}).get(name, False),
            name in getattr(adapted, "lora_variant", ()),
            name in getattr(adapted, "lora_magnitude_vector", ()),
        )
        if any(more):
            raise ValueError(
                f"{what}: adapter {name!r} is more than two matrices (DoRA, or another variant of "
                "LoRA); merge it into the weights, or take a policy that does not read them"
            )
    return names


def _weights(layer: Any, what: str) -> Tensor:
    """Return the weights of a linear layer as a view (inputs, outputs)."""
    weight = getattr(layer, "weight", None)
    if not isinstance(layer, nn.Linear | Conv1D) or weight is None:
        raise ValueError(
            f"{what} is a {type(layer).__name__}; expected nn.Linear or Conv1D, or a LoRA of one. "
            "Load the model unquantized, with other adapters merged, or take a policy that does "
            "not read it"
        )
    # a quantised weight is a tensor of a kind of its own, or of another dtype
    if type(weight) not in (nn.Parameter, Tensor) or weight.dtype not in DTYPES:
        raise ValueError(
            f"{what} holds {type(weight).__name__} of {weight.dtype}; expected floating "
            "point. Load the model unquantized, or take a policy that does not read it"
        )
    if weight.device.type == "meta":
        raise ValueError(
            f"{what} has no weights at hand (device meta): it is offloaded. Place the layer on a "
            "device, or take a policy that does not read it"
        )
    weights: Tensor = weight.detach()
    return weights if isinstance(layer, Conv1D) else weights.T
