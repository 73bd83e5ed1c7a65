"""Where the weights of a model are in a GGUF file, and what becomes of them."""

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM

from agentkv.models.gguf.architectures import architecture_of
from agentkv.models.gguf.header import GgufError, GgufHeader, gguf_package
from agentkv.models.gguf.rotation import FACTORS, turned_dim
from agentkv.models.gguf.tensors import Array, read_tensor

Places = Mapping[str, tuple[str, ...]]
"""For each weight of a model the tensors of the file that it is made of."""

_RENAMED = {
    "e_score_correction_bias": ("e_score_correction.bias",),
    "gate.moe_statics.": ("moe_statics.",),
    "expert_bias": ("expert_bias.bias",),
    "down_proj_bias": ("down_proj.bias",),
    "gate_up_proj_bias": ("gate_up_proj.bias",),
    "dt_bias": ("dt_proj.bias",),
    "block_sparse_moe.": ("mlp.",),
    "mixer.experts.": ("mlp.experts.",),
    "shared_mlp.input_linear": ("mlp.shared_mlp.gate_up_proj", "mlp.gate_up_proj"),
    "shared_mlp.output_linear": ("mlp.shared_mlp.down_proj", "mlp.down_proj"),
}
"""Names of weights, and what the tables of the package gguf call them."""
_HALVES = {
    "gate_up_proj": ("gate_proj", "up_proj"),
    "in_proj_qkvz": ("in_proj_qkv", "in_proj_z"),
}
"""Names of weights that are several in a file."""
_ONE_OF_LIST = re.compile(r"\.norms\.(\d+)\.")
_PROJECTION = re.compile(r"\.([qkv])_proj\.")
_SINGLE = re.compile(r"\.attn_[qkv]\.")
_FUSED = ".attn_qkv."
"""In the names of tensors that have the rows of queries, keys and values."""
_LAYER = re.compile(r"\.(\d+)\.")


def empty_model(header: GgufHeader, config: Any) -> Any:
    """Return a model without weights (device meta).

    Raises:
        GgufError: transformers refuses the configuration.
    """
    with header.refusing(f"is no {config.model_type}"), torch.device("meta"):
        make: Any = AutoModelForCausalLM.from_config
        return make(config)


def places_of(header: GgufHeader, model: Any) -> Places:
    """Return where the weights of a model are.

    Raises:
        GgufError: a tensor is missing, has another shape, or belongs to nothing.
    """
    gguf = gguf_package()
    number = {name: arch for arch, name in gguf.MODEL_ARCH_NAMES.items()}[header.architecture]
    names = gguf.get_tensor_name_map(number, header.number("block_count"))
    places = {}
    for name, weight in model.state_dict().items():
        if name == "lm_head.weight" and model.config.tie_word_embeddings:
            continue
        tried = list(_candidates(name, names))
        place = next((each for each in tried if all(map(header.has_part, each))), None)
        if place is None:
            missing = next((part for part in tried[0] if not header.has_part(part)), name)
            raise GgufError(f"{header.path} has no tensor {missing}")
        _check_shape(header, name, place, tuple(weight.shape), model.config)
        places[name] = place
    _check_rotation(header, model)
    layers = model.config.num_hidden_layers
    used = {part for place in places.values() for part in place} | set(FACTORS)
    for left in sorted(set(header.tensors) - used):
        layer = _LAYER.search(left)
        if layer is None or int(layer[1]) < layers:  # later ones predict further tokens
            raise GgufError(
                f"{header.path}: {left} belongs to nothing in a {model.config.model_type}"
            )
    return places


def _candidates(name: str, names: Any) -> Iterator[tuple[str, ...]]:
    """Yield what the tensors of a weight may be called."""
    name = _ONE_OF_LIST.sub(".", name)
    whole = [name]
    for part, others in _RENAMED.items():
        if part in name:
            whole += [each.replace(part, other) for each in whole for other in others]
    whole += [each.replace("model.layers", "backbone.layers") for each in whole if "mixer" in each]
    for each in reversed(whole):
        if ".act_fn." in each:
            yield (f"xielu.{each.rpartition('.')[2]}",)
        groups: list[tuple[str, ...]] = []
        for part, halves in _HALVES.items():
            if part in each:
                groups.append(tuple(each.replace(part, half) for half in halves))
        if "in_proj_qkvz" not in each:  # a file with it has another order of rows
            groups.append((each,))
        for group in groups:
            found = [names.get_name(part, try_suffixes=(".weight", ".bias")) for part in group]
            if None not in found:
                if not found[0].endswith((".weight", ".bias")):
                    yield tuple(f"{part}.weight" for part in found)
                yield tuple(found)
                if _PROJECTION.search(name):
                    yield (_SINGLE.sub(".attn_qkv.", found[0]),)
    yield (name,)


def _rows(name: str, num_rows: int, config: Any) -> tuple[int, int]:
    """Return where the rows of a projection begin in a fused tensor, and how many rows that has."""
    projection = _PROJECTION.search(name)
    assert projection is not None
    heads, groups = config.num_attention_heads, config.num_key_value_heads
    size = num_rows // (heads if projection[1] == "q" else groups)
    start = {"q": 0, "k": heads, "v": heads + groups}[projection[1]]
    return start * size, (heads + 2 * groups) * size


def _check_shape(
    header: GgufHeader, name: str, place: tuple[str, ...], expected: tuple[int, ...], config: Any
) -> None:
    """Check that tensors have the numbers of a weight, in its shape if they are not reordered."""
    shapes = [header.tensors[part].shape for part in place if part in header.tensors]
    if not shapes:
        return
    if _ONE_OF_LIST.search(name):
        shapes = [shapes[0][1:]]
    if _FUSED in place[0] and _PROJECTION.search(name):
        expected = (_rows(name, expected[0], config)[1], *expected[1:])
    order: Any = list if architecture_of(header).change is None else sorted
    sizes = [order(size for size in shape if size > 1) for shape in (shapes[0], expected)]
    is_other = len(place) == 1 and len(sizes[0]) == len(sizes[1]) and sizes[0] != sizes[1]
    if is_other or sum(map(math.prod, shapes)) != math.prod(expected):
        raise GgufError(f"{header.path}: {place[0]} has the shape {shapes[0]}; expected {expected}")


def _check_rotation(header: GgufHeader, model: Any) -> None:
    turned = turned_dim(header)
    for name, frequencies in model.named_buffers():
        if name.endswith("inv_freq") and 2 * len(frequencies) != turned:
            raise GgufError(
                f"{header.path}: rotation of {turned} numbers of a head cannot be read; "
                f"a {model.config.model_type} turns {2 * len(frequencies)}"
            )


def stored_form(header: GgufHeader, name: str, place: tuple[str, ...]) -> str:
    """Return the dtype, as safetensors names it, that holds a weight without rounding.

    It is that of the file's tensors if they are 16-bit matrices, which are moved but not changed.
    """
    forms = {header.tensors[part].format.name for part in place if part in header.tensors}
    is_moved = not name.endswith(("norm.weight", "A_log"))
    form = forms.pop() if len(forms) == 1 else ""
    return form if is_moved and form in ("F16", "BF16") else "F32"


def own_rows(
    header: GgufHeader, name: str, part: str, values: Array, num_rows: int, config: Any
) -> Array:
    """Return the rows that a weight takes of a tensor, in its own order.

    Args:
        values: rows of the tensor `part`, as numbers or in blocks.
        num_rows: rows of the weight.
    """
    if _FUSED in part and _PROJECTION.search(name):
        start, _ = _rows(name, num_rows, config)
        values = values[start : start + num_rows]
    if architecture_of(header).is_interleaved and ("q_proj." in name or "k_proj." in name):
        heads = config.num_attention_heads if "q_proj." in name else config.num_key_value_heads
        pairs = values.reshape(heads, -1, 2, *values.shape[1:])
        values = pairs.swapaxes(1, 2).reshape(values.shape)
    return values


def weight_of(
    header: GgufHeader, name: str, place: tuple[str, ...], weight: torch.Tensor, config: Any
) -> Array:
    """Return a weight in float32.

    Args:
        place: the tensors that it is made of.
        weight: an empty one of the right shape.
    """
    found = architecture_of(header)
    parts: list[Array] = []
    for part in place:
        if part in header.metadata:
            layer = _LAYER.search(name)
            assert layer is not None, "values of layers"
            parts.append(np.array(header.metadata[part][int(layer[1])], np.float32))
            continue
        values = own_rows(header, name, part, read_tensor(header, part), len(weight), config)
        if found.norm_offset and part.endswith("norm.weight") and ".ssm_norm." not in part:
            values = values - np.float32(found.norm_offset)
        parts.append(values)
    one = _ONE_OF_LIST.search(name)
    whole: Array = parts[0][int(one[1])] if one else parts[0]
    if len(parts) > 1:
        whole = np.concatenate(parts, axis=-1 if name.endswith("bias") else -2)
    if name.endswith("A_log"):
        whole = np.log(-whole)
    if found.change is not None:
        whole = found.change(whole, name, config)
    return np.ascontiguousarray(whole).reshape(tuple(weight.shape))
