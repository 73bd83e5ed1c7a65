"""Reading a model for the compiled step: addresses of its weights, or why it goes the ordinary way.

The compiled step serves what it knows to the last part: classes of transformers, parameters of one
dtype on the CPU, no hooks but ours. It reads the model's own weights, not copies.
"""

import inspect
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from inspect import isfunction
from operator import is_
from types import CodeType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules import module as torch_module
from transformers import PreTrainedModel

from agentkv_kernels import decoder as numbers
from agentkv_kernels.device import choice_for
from agentkv_kernels.layout import DTYPES

REFERENCES = {
    "llama": "Llama",
    "ministral": "Ministral",
    "mistral": "Mistral",
    "qwen2": "Qwen2",
    "qwen3": "Qwen3",
    "seed_oss": "SeedOss",
}
"""Families whose classes the compiled step was written after, and what the names of these begin
with. It serves every model whose classes compute the same."""

PARTS = ("ForCausalLM", "Model", "DecoderLayer", "Attention", "MLP", "RMSNorm", "RotaryEmbedding")
"""Names of these classes, after the prefix."""

EAGER = "eager_attention_forward"
"""Function that a model falls back on without an attention of ours."""

FIXED_ROTATIONS = ("default", "linear", "llama3", "yarn")
"""Rotary embeddings whose frequencies are the same at every length."""


class NotCompiled(Exception):
    """The model goes the ordinary way; the text says why."""


@dataclass(frozen=True, slots=True)
class Decoder:
    """A model as the compiled step reads it."""

    numbers: Any
    """(`NUM_NUMBERS`,) int64, as in `agentkv_kernels.decoder`."""
    layers: Any
    """(L, `NUM_WEIGHTS`) int64."""
    constants: Any
    """(`NUM_CONSTANTS`,) float64."""
    dtype: torch.dtype
    """Dtype of all weights."""
    attentions: tuple[nn.Module, ...]
    """Attention module of every layer."""
    scales: tuple[float, ...]
    """Factor on the logits of attention, of every layer."""
    kept: tuple[Tensor, ...]
    """Tensors that only the addresses above name."""
    _seal: "_Seal"

    def is_current(self) -> bool:
        """Return whether the model still is what was read: weights, modules and hooks."""
        return self._seal.is_whole()


class _Seal:
    """Notices in microseconds whether something of a model has been replaced.

    The checks are loops of the interpreter's own, because every step of decoding makes them.
    """

    def __init__(self, model: nn.Module) -> None:
        modules = list(model.modules())
        inner = modules[1:]
        self._module_owners, self._names, self._modules = _slots(each._modules for each in modules)
        self._tensor_owners, self._tensor_names, self._tensors = _slots(
            own for each in modules for own in (each._parameters, each._buffers)
        )
        self._pointers = list(map(_pointer, self._tensors))
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
        modules = map(dict.get, self._module_owners, self._names)
        tensors = map(dict.get, self._tensor_owners, self._tensor_names)
        return (
            all(map(is_, modules, self._modules))
            and all(map(is_, tensors, self._tensors))
            and list(map(_pointer, self._tensors)) == self._pointers
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


def unknown_code(model: PreTrainedModel) -> str | None:
    """Return which part of a model computes what the compiled step does not; None for none."""
    known = _known_code()
    for name, each in model.named_modules():
        kind = type(each)
        if kind not in known and not (
            kind.__module__.startswith("transformers.models.") and _code(kind.forward) in known
        ):
            return f"its {name or 'whole'} is a {kind.__name__}"
    return None


@cache
def _known_code() -> frozenset[Any]:
    """Return the classes that the compiled step knows, and the code of those of `REFERENCES`."""
    silu = import_module("transformers.activations").ACT2FN["silu"]
    known: set[Any] = {nn.Linear, nn.Embedding, nn.ModuleList, type(silu)}
    for family, prefix in REFERENCES.items():
        try:
            source = import_module(f"transformers.models.{family}.modeling_{family}")
        except ModuleNotFoundError:  # not in every version
            continue
        known |= {_code(getattr(source, prefix + part).forward) for part in PARTS}
    return frozenset(known)


@cache
def _code(function: Any) -> Any:
    """Return a function's code and the code of the functions that it calls in its own module. Two
    functions that do the same in different modules give equal results."""
    plain = inspect.unwrap(function)
    calls = {}
    for name in plain.__code__.co_names:
        called = plain.__globals__.get(name)
        # attention itself is ours
        if isfunction(called) and called.__module__ == plain.__module__ and name != EAGER:
            calls[name] = _code(called)
    return _comparable(plain.__code__), tuple(calls.items())


def _comparable(code: CodeType) -> Any:
    """Return a function's code without its docstring and its place in a file."""
    # the first constant is the docstring
    constants = tuple(
        _comparable(each) if isinstance(each, CodeType) else (type(each), each)
        for each in code.co_consts[1:]
    )
    return code.co_code, code.co_names, code.co_varnames, constants


def read_decoder(model: PreTrainedModel) -> Decoder:
    """Read an attached model for the compiled step.

    Raises:
        NotCompiled: it must go the ordinary way.
    """
    config: Any = model.config
    choice = choice_for(model.device)
    if choice.implementation != "numba":
        raise NotCompiled(choice.reason)
    unknown = unknown_code(model)
    if unknown is not None:
        raise NotCompiled(unknown)
    _require_no_hooks(model)
    if config.hidden_act not in ("silu", "swish"):
        raise NotCompiled(f"its MLP uses {config.hidden_act}, not silu")
    whole: Any = model
    base = whole.model
    rotary = base.rotary_emb
    if rotary.rope_type not in FIXED_ROTATIONS:
        raise NotCompiled(f"its rotary embedding {rotary.rope_type} changes with the length")
    weights = _Weights(base.embed_tokens.weight.dtype)
    layers = np.zeros((len(base.layers), numbers.NUM_WEIGHTS), np.int64)
    for row, layer in zip(layers, base.layers, strict=True):
        for place, tensor in _layer_weights(layer):
            row[place] = weights.address(tensor)
    first = base.layers[0].self_attn
    head = np.zeros(numbers.NUM_NUMBERS, np.int64)
    frequencies = rotary.inv_freq.detach().to(torch.float32).contiguous()
    if whole.lm_head.bias is not None:
        raise NotCompiled("its projection to logits has a bias")
    kv_heads = config.num_key_value_heads or config.num_attention_heads
    if 2 * len(frequencies) != first.head_dim:
        raise NotCompiled("its rotary embedding turns only some channels")
    sizes = {
        numbers.NUM_LAYERS: len(base.layers),
        numbers.HIDDEN: config.hidden_size,
        numbers.INNER: config.intermediate_size,
        numbers.NUM_KV_HEADS: kv_heads,
        numbers.GROUP: config.num_attention_heads // kv_heads,
        numbers.HEAD_SIZE: first.head_dim,
        numbers.VOCABULARY: whole.lm_head.weight.shape[0],
        numbers.EMBEDDING: weights.address(base.embed_tokens.weight),
        numbers.LAST_NORM: weights.address(base.norm.weight),
        numbers.HEAD: weights.address(whole.lm_head.weight),
        numbers.FREQUENCIES: frequencies.data_ptr(),
        numbers.LAYERS: layers.ctypes.data,
    }
    for place, number in sizes.items():
        head[place] = number
    constants = np.zeros(numbers.NUM_CONSTANTS)
    constants[numbers.EPSILON] = config.rms_norm_eps
    constants[numbers.ROTARY_SCALE] = rotary.attention_scaling
    attentions = tuple(layer.self_attn for layer in base.layers)
    return Decoder(
        numbers=head,
        layers=layers,
        constants=constants,
        dtype=weights.dtype,
        attentions=attentions,
        scales=tuple(float(each.scaling) for each in attentions),
        kept=(frequencies,),
        _seal=_Seal(model),
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


def _layer_weights(layer: Any) -> Iterator[tuple[int, Tensor | None]]:
    attention, mlp = layer.self_attn, layer.mlp
    yield numbers.NORM, layer.input_layernorm.weight
    yield numbers.MLP_NORM, layer.post_attention_layernorm.weight
    linear: Sequence[tuple[int, int | None, Any]] = (
        (numbers.Q_WEIGHT, numbers.Q_BIAS, attention.q_proj),
        (numbers.K_WEIGHT, numbers.K_BIAS, attention.k_proj),
        (numbers.V_WEIGHT, numbers.V_BIAS, attention.v_proj),
        (numbers.O_WEIGHT, numbers.O_BIAS, attention.o_proj),
        (numbers.GATE, numbers.GATE_BIAS, mlp.gate_proj),
        (numbers.UP, numbers.UP_BIAS, mlp.up_proj),
        (numbers.DOWN, numbers.DOWN_BIAS, mlp.down_proj),
    )
    for weight, bias, module in linear:
        yield weight, module.weight
        if bias is not None:
            yield bias, module.bias
    for place, name in ((numbers.Q_NORM, "q_norm"), (numbers.K_NORM, "k_norm")):
        yield place, getattr(getattr(attention, name, None), "weight", None)


@dataclass(frozen=True, slots=True)
class _Weights:
    """Addresses of parameters of one dtype."""

    dtype: torch.dtype

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise NotCompiled(f"its weights are {self.dtype}")

    def address(self, tensor: Tensor | None) -> int:
        if tensor is None:
            return 0
        if type(tensor) is not nn.Parameter or tensor.dtype != self.dtype:
            kind = f"{type(tensor).__name__} of {tensor.dtype}"
            raise NotCompiled(f"its weights are {self.dtype}, one is a {kind}")
        if tensor.device.type != "cpu" or not tensor.is_contiguous():
            raise NotCompiled(f"a weight is on {tensor.device} or not contiguous")
        return tensor.data_ptr()
