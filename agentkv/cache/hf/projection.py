"""Reading the output projection of an attention module, adapters included.

Shapes: H query heads, T tokens, D head size, d hidden size.
"""

from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from agentkv.cache.geometry import LowRank, Projection
from agentkv.weights.linear import QuantizedLinear

DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


def output_projection(module: nn.Module, name: str, head_dim: int) -> Projection:
    """Return the output projection `name` of an attention module, as views of its weights.

    A head's output (T, D) times its (D, d), plus its product with the two matrices of each active
    adapter, is what the head adds to the stream, apart from biases. Views, because a copy per step
    would cost more than the projection itself. Weights in 8 or 4 bits are
    dequantized once, and kept.

    Raises:
        ValueError: the projection cannot be read: it is quantized, offloaded, or has an adapter
            that is more than a LoRA.
    """
    if not name:
        raise ValueError(f"{type(module).__name__} has no output projection that is a linear layer")
    found: Any = module.get_submodule(name)
    what = f"the {name} of {type(module).__name__}"
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


_kept: WeakKeyDictionary[nn.Module, tuple[int, Tensor]] = WeakKeyDictionary()
"""Dequantized weights, with the address of what they were dequantized from."""


def _dequantized(layer: QuantizedLinear) -> Tensor:
    address, weight = _kept.get(layer, (0, None))
    if weight is None or address != layer.codes.data_ptr():
        weight = layer.weight
        _kept[layer] = layer.codes.data_ptr(), weight
    return weight


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
    if isinstance(layer, QuantizedLinear):
        return _dequantized(layer).T
    weight = getattr(layer, "weight", None)
    if not isinstance(layer, nn.Linear | Conv1D) or weight is None:
        raise ValueError(
            f"{what} is a {type(layer).__name__}; expected nn.Linear or Conv1D, or a LoRA of one. "
            "Load the model unquantized, with other adapters merged, or take a policy that does "
            "not read it"
        )
    # quantized weights have a tensor class of their own, or an integer dtype
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
