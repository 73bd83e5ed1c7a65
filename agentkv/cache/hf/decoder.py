"""Reading a model for the compiled step: addresses of its weights, or why it goes the ordinary way.

The compiled step serves what it knows to the last part: classes of transformers, parameters of one
dtype on the CPU, no hooks but ours. It reads the model's own weights, not copies.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from operator import is_
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules import module as torch_module
from transformers import PreTrainedModel

from agentkv.cache.hf.known_code import NotCompiled, known_activation
from agentkv.cache.hf.parts import DecoderParts, LayerParts, Projector, only, read_parts
from agentkv.weights.linear import QuantizedEmbedding, QuantizedLinear
from agentkv_kernels import decoder as numbers
from agentkv_kernels.device import choice_for
from agentkv_kernels.layout import DTYPES
from agentkv_kernels.weights import PackedWeight, numbers_of


@dataclass(frozen=True, slots=True)
class Decoder:
    """A model as the compiled step reads it."""

    parts: DecoderParts

    numbers: Any
    """(`NUM_NUMBERS`,) int64, as in `agentkv_kernels.decoder`."""
    layers: Any
    """(L, `NUM_LAYER_NUMBERS`) int64."""
    constants: Any
    """(`NUM_CONSTANTS`,) float64."""
    dtype: torch.dtype
    """Dtype of all weights that are floats."""
    attentions: tuple[nn.Module, ...]
    """Attention module of every layer."""
    scales: tuple[float, ...]
    """Factor on the logits of attention, of every layer."""
    kept: tuple[Tensor, ...]
    """Tensors that only the addresses above name."""


class Seal:
    """Notices in microseconds whether weights, modules or hooks of a model have been replaced.

    The checks are loops of the interpreter's own, because every step of decoding makes them.
    """

    def __init__(self, model: nn.Module) -> None:
        modules = list(model.modules())
        inner = modules[1:]
        self._module_owners, self._names, self._modules = _slots(each._modules for each in modules)
        self._tensor_owners, self._tensor_names, self._tensors = _slots(
            own for each in modules for own in (each._parameters, each._buffers)
        )
        # sparse tensors, and some of quantization libraries, have no memory of their own
        self._placed = [each for each in self._tensors if _has_memory(each)]
        self._pointers = list(map(_pointer, self._placed))
        # a forward that is replaced is one attribute more
        self._vars = [vars(each) for each in inner]
        self._sizes = list(map(len, self._vars))
        hooks: list[dict[int, Any]] = [
            own for each in inner for own in (each._forward_hooks, each._forward_pre_hooks)
        ]
        hooks += [torch_module._global_forward_hooks, torch_module._global_forward_pre_hooks]
        self._hooked = [(own, tuple(own)) for own in hooks if own]
        self._unhooked = [own for own in hooks if not own]

    def is_whole(self) -> bool:
        """Return whether all is as it was when the seal was made."""
        modules = map(dict.get, self._module_owners, self._names)
        tensors = map(dict.get, self._tensor_owners, self._tensor_names)
        return (
            all(map(is_, modules, self._modules))
            and all(map(is_, tensors, self._tensors))
            and list(map(_pointer, self._placed)) == self._pointers
            and list(map(len, self._vars)) == self._sizes
            and not any(self._unhooked)
            and all(tuple(own) == known for own, known in self._hooked)
        )


def _slots(owners: Iterable[dict[str, Any]]) -> tuple[list[dict[str, Any]], list[str], list[Any]]:
    """Return where things are that could be replaced: their dictionaries, names, and the things."""
    places = [(own, name) for own in owners for name, thing in own.items() if thing is not None]
    return (
        [own for own, _ in places],
        [name for _, name in places],
        [own[name] for own, name in places],
    )


_pointer = torch.Tensor.data_ptr


def _has_memory(tensor: Tensor) -> bool:
    try:
        _pointer(tensor)
    except RuntimeError:
        return False
    return True


def unknown_code(model: PreTrainedModel) -> str | None:
    """Return which part of a model computes what the compiled step does not; None for none."""
    try:
        read_parts(model)
    except NotCompiled as error:
        return str(error)
    return None


def read_decoder(model: PreTrainedModel) -> Decoder:
    """Read an attached model for the compiled step.

    Raises:
        NotCompiled: it must go the ordinary way.
    """
    choice = choice_for(model.device)
    if choice.implementation != "numba":
        raise NotCompiled(choice.reason)
    parts = read_parts(model)
    _require_no_hooks(model)
    weights = _Weights(parts)
    layers = np.zeros((len(parts.layers), numbers.NUM_LAYER_NUMBERS), np.int64)
    for row, layer in zip(layers, parts.layers, strict=True):
        weights.write_layer(row, layer)
    attentions = [layer.attention for layer in parts.layers]
    head_dim = only((each.module.head_dim for each in attentions), "head sizes")
    q_size = only((len(each.qkv[0].span) for each in attentions), "heads")
    kv_size = only((len(each.qkv[1].span) for each in attentions), "heads")
    head = np.zeros(numbers.NUM_NUMBERS, np.int64)
    head[numbers.NUM_LAYERS] = len(layers)
    head[numbers.VOCABULARY] = len(parts.head.span)
    head[numbers.HIDDEN] = parts.embedding.embedding_dim
    head[numbers.INNER] = only((len(each.mlp.gate.span) for each in parts.layers), "MLPs")
    head[numbers.NUM_KV_HEADS], head[numbers.GROUP] = kv_size // head_dim, q_size // kv_size
    head[numbers.HEAD_SIZE] = head_dim
    head[numbers.WEIGHT_DTYPE] = DTYPES[weights.dtype]
    weights.write_embedding(head, parts.embedding)
    head[numbers.NORMS_EMBEDDING] = parts.norms_embedding
    head[numbers.IS_CENTERED] = parts.norm_code.is_centered
    weights.write_norm(head, numbers.LAST_NORM, parts.norm)
    weights.write_linear(head, numbers.HEAD, parts.head)
    head[numbers.LAYERS] = layers.ctypes.data
    constants = np.zeros(numbers.NUM_CONSTANTS)
    constants[numbers.EPSILON] = parts.norm_code.epsilon
    constants[numbers.NORM_OFFSET] = parts.norm_code.offset
    constants[numbers.EMBEDDING_SCALE] = parts.embedding_factor
    constants[numbers.RESIDUAL_SCALE] = only((each.factor for each in parts.layers), "factors")
    constants[numbers.QKV_LIMIT] = only((each.limit for each in attentions), "limits")
    return Decoder(
        parts=parts,
        numbers=head,
        layers=layers,
        constants=constants,
        dtype=weights.dtype,
        attentions=tuple(each.module for each in attentions),
        scales=tuple(float(each.module.scaling) for each in attentions),
        kept=tuple(weights.kept),
    )


def _require_no_hooks(model: PreTrainedModel) -> None:
    for name, each in model.named_modules():
        if name and "forward" in vars(each):
            raise NotCompiled(f"the forward of its {name} was replaced")
        # hooks of the whole model run anyway
        for hook in (*each._forward_hooks.values(), *each._forward_pre_hooks.values()):
            if name and not _is_ours(hook):
                raise NotCompiled(f"its {name} has a hook")
    if torch_module._global_forward_hooks or torch_module._global_forward_pre_hooks:
        raise NotCompiled("torch has hooks for all modules")


def _is_ours(hook: Any) -> bool:
    """Return whether a hook is one of `attach` or `watch_residual_shift`: the compiled step does
    their work, or their work has nothing to do in a forward of one token."""
    return str(getattr(hook, "__module__", "")).startswith("agentkv.cache.hf.")


class _Weights:
    """Writes addresses of parameters, all of one dtype, to numbers of a decoder or a layer."""

    def __init__(self, parts: DecoderParts) -> None:
        self.dtype = parts.dtype
        if self.dtype not in DTYPES:
            raise NotCompiled(f"its weights are {self.dtype}")
        sizes = (len(layer.attention.qkv[0].span) for layer in parts.layers)
        self._widest = max(parts.embedding.embedding_dim, *sizes)
        self.kept: list[Tensor] = []
        """Tensors that nothing but their addresses refers to."""

    def write_layer(self, row: Any, layer: LayerParts) -> None:
        """Write the numbers of a layer."""
        attention, mlp, turning = layer.attention, layer.mlp, layer.attention.turning
        for place, norm in {
            numbers.NORM: layer.norm,
            numbers.Q_NORM: attention.norms[0],
            numbers.K_NORM: attention.norms[1],
            numbers.ATTENDED_NORM: layer.attended_norm,
            numbers.MLP_NORM: layer.mlp_norm,
            numbers.LAST_MLP_NORM: layer.last_mlp_norm,
        }.items():
            self.write_norm(row, place, norm)
        for place, linear in {
            numbers.Q_WEIGHT: attention.qkv[0],
            numbers.K_WEIGHT: attention.qkv[1],
            numbers.V_WEIGHT: attention.qkv[2],
            numbers.O_WEIGHT: attention.output,
            numbers.GATE: mlp.gate,
            numbers.UP: mlp.up,
            numbers.DOWN: mlp.down,
        }.items():
            if linear is not None:
                self.write_linear(row, place, linear)
        row[numbers.FREQUENCIES] = self._keep([*turning.frequencies, turning.scale], torch.float32)
        row[numbers.NUM_PAIRS] = len(turning.frequencies)
        row[numbers.PAIR_STEP], row[numbers.PAIR_DISTANCE] = turning.step, turning.distance
        row[numbers.HEAD_NORM] = attention.where
        # a weight of two dimensions has a row for each head
        weight = getattr(attention.norms[0], "weight", None)
        has_rows = weight is not None and weight.dim() == 2
        row[numbers.HEAD_NORM_STEP] = attention.module.head_dim if has_rows else 0
        row[numbers.IS_PARALLEL] = layer.is_parallel
        row[numbers.ACTIVATION] = known_activation(mlp.activation)

    def write_norm(self, row: Any, place: int, norm: Any) -> None:
        """Write a norm, and nothing for None."""
        if norm is None:
            return
        weight = getattr(norm, "weight", None)
        row[place + 1] = self.address(getattr(norm, "bias", None))
        row[place] = self.address(weight) or self._keep([1.0] * self._widest, self.dtype)

    def write_linear(self, row: Any, place: int, linear: Projector) -> None:
        """Write a linear layer, or the part of one."""
        start, module = linear.span.start, linear.module
        if isinstance(module, QuantizedLinear):
            row[place] = self._packed(module.packed, start)
        else:
            row[place] = self._row_address(module.weight, start)
        if module.bias is not None:
            row[place + 1] = self._row_address(module.bias, start)

    def write_embedding(self, row: Any, embedding: Any) -> None:
        """Write the table of embeddings."""
        if isinstance(embedding, QuantizedEmbedding):
            row[numbers.EMBEDDING] = self._packed(embedding.packed, 0)
        else:
            row[numbers.EMBEDDING] = self.address(embedding.weight)

    def _packed(self, packed: PackedWeight, start: int) -> int:
        """Return what stands for a weight in a block format, from one of its rows on."""
        if packed.codes.device.type != "cpu":
            raise NotCompiled(f"a weight is on {packed.codes.device}")
        self.kept.append(numbers_of(packed, start))
        return -self.kept[-1].data_ptr()

    def _row_address(self, tensor: Tensor, row: int) -> int:
        return self.address(tensor) + row * tensor.stride(0) * tensor.element_size()

    def address(self, tensor: Tensor | None) -> int:
        """Return the address of a parameter, 0 for None."""
        if tensor is None:
            return 0
        if type(tensor) is not nn.Parameter or tensor.dtype != self.dtype:
            kind = f"{type(tensor).__name__} of {tensor.dtype}"
            raise NotCompiled(f"its weights are {self.dtype}, one is a {kind}")
        if tensor.device.type != "cpu" or not tensor.is_contiguous():
            raise NotCompiled(f"a weight is on {tensor.device} or not contiguous")
        return tensor.data_ptr()

    def _keep(self, values: Sequence[float], dtype: torch.dtype) -> int:
        """Return the address of a tensor of our own."""
        self.kept.append(torch.tensor(values, dtype=dtype))
        return self.kept[-1].data_ptr()
