"""The parts of a decoder: what is in each layer and in which order, read from a model whose code is
known. Its weights need not be there.

Shapes: P pairs of channels that turn.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from agentkv.cache.geometry import LayerShape
from agentkv.cache.hf import known_code
from agentkv.cache.hf.families import describe
from agentkv.cache.hf.known_code import (
    Code,
    NormCode,
    NotCompiled,
    known,
    known_activation,
)
from agentkv.weights.linear import QuantizedEmbedding, QuantizedLinear
from agentkv_kernels import decoder as numbers


@dataclass(frozen=True, slots=True)
class Projector:
    """A linear layer, or those of its outputs that count as one."""

    module: nn.Linear | QuantizedLinear
    rows: slice | None = None

    @property
    def weight(self) -> Tensor:
        """Its rows of the weight, as the layer holds it; for `nn.Linear`."""
        return self.module.weight if self.rows is None else self.module.weight[self.rows]

    @property
    def bias(self) -> Tensor | None:
        """Its part of the bias."""
        bias: Tensor | None = self.module.bias
        return bias if bias is None or self.rows is None else bias[self.rows]

    @property
    def span(self) -> range:
        """Outputs of the linear layer that belong to it."""
        return range(self.module.out_features)[self.rows or slice(None)]


@dataclass(frozen=True, slots=True)
class Turning:
    """The rotary embedding of a layer."""

    frequencies: tuple[float, ...]
    """(P,); empty for a layer that turns nothing."""
    scale: float
    """Factor on cosines and sines."""
    step: int
    distance: int
    """A pair is channels i * step and i * step + distance."""


@dataclass(frozen=True, slots=True)
class AttentionParts:
    """The attention of a layer."""

    module: Any
    qkv: tuple[Projector, Projector, Projector]
    limit: float
    """Largest size of queries, keys and values as they are projected; 0 for none."""
    where: int
    """Where queries and keys are normed, a `*_HEADS`."""
    norms: tuple[nn.Module | None, nn.Module | None]
    """Of queries and keys."""
    turning: Turning
    output: Projector


@dataclass(frozen=True, slots=True)
class MlpParts:
    """The MLP of a layer."""

    gate: Projector
    up: Projector | None
    """The factor on the activations of `gate`; None without one."""
    down: Projector
    activation: nn.Module


@dataclass(frozen=True, slots=True)
class LayerParts:
    """A decoder layer. It norms and scales the outputs of attention and MLP, and adds them to the
    residual stream. None stands for a norm that it lacks."""

    module: nn.Module
    norm: nn.Module | None
    attention: AttentionParts
    attended_norm: nn.Module | None
    """The norm of the attention output."""
    is_parallel: bool
    """Whether attention and MLP read the same input."""
    mlp_norm: nn.Module | None
    mlp: MlpParts
    last_mlp_norm: nn.Module | None
    """The norm of the MLP output."""
    factor: float
    """On the outputs of attention and MLP."""


@dataclass(frozen=True, slots=True)
class DecoderParts:
    """A decoder with its projection to logits."""

    embedding: Any
    embedding_factor: float
    norms_embedding: bool
    """Whether the first layer reads normed embeddings, by the last norm."""
    layers: tuple[LayerParts, ...]
    norm: nn.Module
    norm_code: NormCode
    """Of all norms, with a number as its epsilon."""
    head: Projector
    logit_factor: float
    logit_cap: float | None
    query_growth: tuple[float, int] | None
    """Factor and length of `query_scales`; None if queries do not grow."""

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of what the layers compute with, and of all weights that are floats."""
        return _dtype_of(self.embedding)

    def finish_logits(self, logits: Tensor) -> Tensor:
        """Return the logits that the model returns, given the outputs of `head`."""
        if self.logit_factor != 1:
            logits = logits * self.logit_factor
        if self.logit_cap is not None:
            logits = torch.tanh(logits / self.logit_cap) * self.logit_cap
        return logits

    def query_scales(self, positions: Tensor) -> Tensor | None:
        """Return the factors on queries at rotary positions, which Llama 4 began; None for none."""
        if self.query_growth is None:
            return None
        factor, length = self.query_growth
        return 1 + factor * torch.log(1 + torch.floor(positions / length))


def read_parts(model: PreTrainedModel) -> DecoderParts:
    """Read a supported model.

    Raises:
        NotCompiled: naming the part that the compiled step does not know.
    """
    try:
        return _PartReader(model).read()
    except AttributeError as error:
        raise NotCompiled(f"a part of it has another name: {error}") from error


class _PartReader:
    """Reads one model. Paths are relative to it."""

    def __init__(self, model: PreTrainedModel) -> None:
        self._model: Any = model
        self._seen: set[nn.Module] = set()
        self._norm_codes: set[NormCode] = set()

    def read(self) -> DecoderParts:
        whole, whole_code = self._known(known_code.WHOLES, "")
        base, code = self._known(known_code.DECODERS, "model")
        embedding, factor_name = self._known(known_code.EMBEDDINGS, "model.embed_tokens")
        factor = torch.tensor(_number(embedding, factor_name)).to(_dtype_of(embedding))
        rotary, scale_name = self._known(known_code.ROTATIONS, "model.rotary_emb")
        geometry = describe(self._model)
        kinds = getattr(base.config, "layer_types", None) or [""] * len(base.layers)
        layers = []
        for i, (kind, shape) in enumerate(zip(kinds, geometry.layers, strict=True)):
            if shape.frequencies is None:
                raise NotCompiled(geometry.why_not_turned or "its rotary embedding is not known")
            scale = _number(rotary, scale_name.format(kind=kind)) if any(shape.frequencies) else 1.0
            path, turning = f"model.layers.{i}", _turning(shape, scale)
            layers.append(self._layer(path, shape, geometry.num_q_heads, turning))
        norm, head = self._norm(f"model.{code.norm}"), self._linear("lm_head")
        assert norm is not None
        self._require_all_seen()
        _, attention_code = self._known(known_code.ATTENTIONS, "model.layers.0.self_attn")
        growth = None
        if attention_code.scales_queries:
            rope = layers[0].attention.module.config.rope_parameters
            growth = rope["llama_4_scaling_beta"], rope["original_max_position_embeddings"]
        return DecoderParts(
            embedding=embedding,
            embedding_factor=float(factor) * _number(base, code.factor),
            norms_embedding=code.norms_embedding,
            layers=tuple(layers),
            norm=norm,
            norm_code=only(self._norm_codes, "norms"),
            head=head,
            logit_factor=_number(whole, whole_code.factor) / _number(whole, whole_code.divisor),
            logit_cap=attrgetter(whole_code.cap)(whole) if whole_code.cap else None,
            query_growth=growth,
        )

    def _layer(
        self, path: str, shape: LayerShape, num_q_heads: int, turning: Turning
    ) -> LayerParts:
        layer, code = self._known(known_code.LAYERS, path)
        is_parallel = code.is_parallel
        if isinstance(is_parallel, str):
            is_parallel = bool(getattr(layer, is_parallel))

        def norm(name: str) -> nn.Module | None:
            return self._norm(f"{path}.{name}") if name else None

        return LayerParts(
            module=layer,
            norm=norm(code.norm),
            attention=self._attention(f"{path}.self_attn", shape, num_q_heads, turning),
            attended_norm=norm(code.attended_norm),
            is_parallel=is_parallel,
            mlp_norm=norm(code.norm if is_parallel else code.mlp_norm),
            mlp=self._mlp(f"{path}.mlp"),
            last_mlp_norm=norm(code.last_mlp_norm),
            factor=_number(layer, code.factor),
        )

    def _attention(
        self, path: str, shape: LayerShape, num_q_heads: int, turning: Turning
    ) -> AttentionParts:
        module, code = self._known(known_code.ATTENTIONS, path)
        if code.unless and attrgetter(code.unless)(module):
            raise NotCompiled(f"its {path} has {code.unless.rpartition('.')[2]}")
        has_norms = code.where and (not code.optional or getattr(module, code.optional))
        q_size, kv_size = num_q_heads * shape.head_dim, shape.num_heads * shape.head_dim
        if code.fused:
            fused, q_and_k = self._linear(f"{path}.{code.fused}").module, q_size + kv_size
            rows = slice(0, q_size), slice(q_size, q_and_k), slice(q_and_k, q_and_k + kv_size)
            q, k, v = (Projector(fused, each) for each in rows)
        else:
            q, k, v = (self._linear(f"{path}.{name}_proj") for name in "qkv")
        q_norm, k_norm = (self._norm(f"{path}.{name}_norm") if has_norms else None for name in "qk")
        return AttentionParts(
            module=module,
            qkv=(q, k, v),
            limit=float((code.limit and attrgetter(code.limit)(module)) or 0),
            where=code.where if has_norms else numbers.NO_HEADS,
            norms=(q_norm, k_norm),
            turning=turning,
            output=self._linear(f"{path}.{code.output}"),
        )

    def _mlp(self, path: str) -> MlpParts:
        module, code = self._known(known_code.MLPS, path)
        activation = module.get_submodule(code.activation)
        if known_activation(activation) is None:
            raise self._unknown(f"{path}.{code.activation}")
        self._seen.add(activation)
        gate = self._linear(f"{path}.{code.gate}")
        up = self._linear(f"{path}.{code.up}") if code.up else None
        if code.gate == code.up:
            inner = gate.module.out_features // 2
            gate, up = (Projector(gate.module, rows) for rows in (slice(inner), slice(inner, None)))
        down = self._linear(f"{path}.{code.down}")
        return MlpParts(gate=gate, up=up, down=down, activation=activation)

    def _norm(self, path: str) -> nn.Module | None:
        module: nn.Module = self._model.get_submodule(path)
        if type(module) is nn.Identity:
            self._seen.add(module)
            return None
        module, code = self._known(known_code.NORMS, path)
        self._norm_codes.add(replace(code, epsilon=_epsilon(module, code)))
        return module

    def _linear(self, path: str) -> Projector:
        module = self._model.get_submodule(path)
        if type(module) is not nn.Linear and type(module) is not QuantizedLinear:
            raise self._unknown(path)
        self._seen.add(module)
        return Projector(module)

    def _known(self, table: Mapping[str | type, Code], path: str) -> tuple[Any, Code]:
        """Return a module and what the table says of it."""
        module = self._model.get_submodule(path)
        code = known(table, module)
        if code is None:
            raise self._unknown(path)
        self._seen.add(module)
        return module, code

    def _unknown(self, path: str) -> NotCompiled:
        kind = type(self._model.get_submodule(path))
        return NotCompiled(f"its {path or 'whole'} is a {kind.__name__}")

    def _require_all_seen(self) -> None:
        """Raise NotCompiled if a module is left that may compute something."""
        for path, module in self._model.named_modules():
            is_idle = type(module) is nn.Dropout and not (module.training and module.p)
            if module not in self._seen and not is_idle and type(module) is not nn.ModuleList:
                raise self._unknown(path)


Value = TypeVar("Value")


def only(values: Iterable[Value], what: str) -> Value:
    """Return the one value that all layers have. Raises NotCompiled if they differ."""
    found = set(values)
    if len(found) > 1:
        raise NotCompiled(f"its layers differ in their {what}")
    return found.pop()


def _dtype_of(embedding: Any) -> torch.dtype:
    is_quantized = type(embedding) is QuantizedEmbedding
    found: torch.dtype = (embedding.like if is_quantized else embedding.weight).dtype
    return found


def _number(module: Any, attribute: str) -> float:
    """Return a factor that a module has as an attribute, 1 for the attribute ""."""
    return float(attrgetter(attribute)(module)) if attribute else 1.0


def _epsilon(module: Any, code: NormCode) -> float:
    return float(getattr(module, code.epsilon) if isinstance(code.epsilon, str) else code.epsilon)


def _turning(shape: LayerShape, scale: float) -> Turning:
    """Return the rotation that a shape describes, without the pairs that stay."""
    assert shape.frequencies is not None
    half = len(shape.frequencies)
    order = range(2 * half) if shape.order is None else shape.order
    count = max((i + 1 for i, angle in enumerate(shape.frequencies) if angle), default=0)
    step = order[1] - order[0] if count > 1 else 1
    distance = order[half] - order[0] if count else 0
    for i in range(count):
        if (order[i], order[half + i]) != (i * step, i * step + distance):
            raise NotCompiled("its rotary embedding pairs channels in another way")
    return Turning(shape.frequencies[:count], scale, step, distance)
