"""Supported models: where their parts are, their geometry, and what rules a model out."""

from dataclasses import replace
from typing import Any

from torch import nn
from transformers import PreTrainedModel

from agentkv.cache.geometry import Geometry, Hybrid, LayerShape
from agentkv.cache.hf.hybrids import describe_hybrid, hybrid_family
from agentkv.cache.hf.layer_kinds import hybrid_of, unserved_entries, unserved_kind
from agentkv.cache.hf.reading import LayerReading, layers_of, read_layers
from agentkv.cache.hf.reading import UnsupportedModel as UnsupportedModel


def describe(model: PreTrainedModel) -> Geometry:
    """Read a model's geometry; where its weights are does not matter.

    Raises:
        UnsupportedModel: the model has a part that is not supported, which the text names.
    """
    config: Any = model.config
    hybrid = _hybrid(model)
    if hybrid is not None:
        _check(model)
        return describe_hybrid(model, decoder(model), hybrid)
    readings = _read(model)
    layers = [each for each in readings if each.source is None]
    shapes = tuple(_with_own_frequencies(layer, decoder(model)) for layer in layers)
    num_streams = layers[0].num_streams
    return Geometry(
        family=str(config.model_type),
        layers=shapes,
        num_q_heads=layers[0].num_q_heads,
        dtype=model.dtype,
        max_positions=getattr(decoder(model).config, "max_position_embeddings", None),
        why_not_turned=next((each.why_not_turned for each in layers if each.why_not_turned), None),
        sources=tuple(each.source for each in readings if each.source is not None),
        why_not_watched=None
        if num_streams == 1
        else f"{config.model_type} mixes {num_streams} residual streams in each layer",
    )


def decoder(model: PreTrainedModel) -> PreTrainedModel:
    """Return the part of a model that runs its layers."""
    inner = model.get_decoder()  # type: ignore[no-untyped-call]
    if inner is model:  # transformers 4.57 knows no decoder of some models
        inner = model.base_model
    assert isinstance(inner, PreTrainedModel)
    return inner


def attending_layers(model: PreTrainedModel) -> list[nn.Module]:
    """Return the decoder layers of a supported model that attend to keys of their own."""
    layers, hybrid = list(layers_of(decoder(model))), _hybrid(model)
    if hybrid is not None:
        return [layers[i] for i in hybrid.attending]
    return layers[: len(_storing(model))]


def attentions(model: PreTrainedModel, *, with_sharing: bool = False) -> list[nn.Module]:
    """Return the attention module of each of `attending_layers`.

    Args:
        with_sharing: whether modules follow that attend to the keys of another layer.
    """
    if _hybrid(model) is not None:
        name = hybrid_family(model.config).attention
        return [layer.get_submodule(name) for layer in attending_layers(model)]
    return [
        layer.get_submodule(each.attention)
        for layer, each in zip(layers_of(decoder(model)), _read(model), strict=True)
        if with_sharing or each.source is None
    ]


def _hybrid(model: PreTrainedModel) -> Hybrid | None:
    kinds = getattr(decoder(model).config, "layer_types", None)
    return hybrid_of(kinds or ())


def _check(model: PreTrainedModel) -> None:
    """Raise UnsupportedModel if a configuration says that the cache cannot serve a model."""
    config: Any = model.config
    obstacle = _obstacle(config) or _obstacle(config.get_text_config(decoder=True))
    if obstacle is not None:
        raise UnsupportedModel(f"this {config.model_type} model is not supported: {obstacle}")


def _storing(model: PreTrainedModel) -> list[LayerReading]:
    """Return the layers that do not share the keys of another one."""
    return [each for each in _read(model) if each.source is None]


def _read(model: PreTrainedModel) -> tuple[LayerReading, ...]:
    config: Any = model.config
    _check(model)
    try:
        inner = decoder(model)
        key = type(inner), inner.config.to_json_string(use_diff=False)
        if key not in _READINGS:
            _READINGS[key] = read_layers(type(inner), inner.config)
        return _READINGS[key]
    except UnsupportedModel as error:
        raise UnsupportedModel(
            f"this {config.model_type} model is not supported: {error}"
        ) from error.__cause__


_READINGS: dict[tuple[type[PreTrainedModel], str], tuple[LayerReading, ...]] = {}
"""Readings by decoder class and configuration: every new cache needs one."""


def _with_own_frequencies(layer: LayerReading, inner: nn.Module) -> LayerShape:
    """Return the shape of a layer with the frequencies that a decoder itself holds."""
    own = None if layer.rotary is None else inner.get_buffer(layer.rotary)
    if own is None or own.device.type == "meta":
        return layer.shape
    known = layer.shape.frequencies
    assert known is not None
    direction = -1 if known[0] < 0 else 1
    angles = (*(direction * own).tolist(), *known[own.numel() :])
    return replace(layer.shape, frequencies=angles)


def _obstacle(config: Any) -> str | None:
    """Return what a configuration says that the cache cannot serve; None for nothing."""
    if getattr(config, "is_encoder_decoder", False) or getattr(
        config, "add_cross_attention", False
    ):
        return "it attends to a second input (add_cross_attention, is_encoder_decoder)"
    if getattr(config, "use_bidirectional_attention", False):
        return "its tokens see what follows them (use_bidirectional_attention)"
    if getattr(config, "attn_logit_softcapping", None) is not None:
        return "its attention soft-caps its logits (attn_logit_softcapping)"
    kinds = getattr(config, "layer_types", None)
    return unserved_entries(config) or (unserved_kind(kinds) if kinds else None)
