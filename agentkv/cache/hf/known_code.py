"""The classes of transformers that the compiled step knows, and what each computes.

A class is known by its code: it computes what a class of the tables computes if both forwards have
equal bytecode, whatever families they belong to. The tables say what a forward reads from its
module by name, such as a norm or a factor. Everything else is read from the model.
"""

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from inspect import isfunction
from types import CodeType
from typing import Any, TypeVar

import transformers
from torch import nn
from transformers.activations import ACT2FN

from agentkv.weights.linear import QuantizedEmbedding
from agentkv_kernels import decoder as numbers


class NotCompiled(Exception):
    """The model goes the ordinary way; the text says why."""


@dataclass(frozen=True, slots=True)
class WholeCode:
    """A model for language: its decoder is `model`, and `lm_head` projects to logits."""

    factor: str = ""
    """Attribute of a factor on logits."""
    divisor: str = ""
    cap: str = ""
    """Attribute of the soft cap on logits, which may be None."""


@dataclass(frozen=True, slots=True)
class DecoderCode:
    """A decoder: `embed_tokens`, `rotary_emb`, `layers`, and a norm."""

    norm: str = "norm"
    factor: str = ""
    """Attribute of a factor on embeddings."""
    norms_embedding: bool = False
    """Whether the first layer reads normed embeddings, by the same norm."""


@dataclass(frozen=True, slots=True)
class LayerCode:
    """A decoder layer. It adds the outputs of `self_attn` and `mlp` to the residual stream.

    Norms go by their names; "" stands for none.
    """

    norm: str = "input_layernorm"
    attended_norm: str = ""
    """The norm of the attention output."""
    mlp_norm: str = "post_attention_layernorm"
    last_mlp_norm: str = ""
    """The norm of the MLP output."""
    is_parallel: bool | str = False
    """Whether attention and MLP read the same input; or the name of the attribute that says so."""
    factor: str = ""
    """Attribute of a factor on both outputs."""


@dataclass(frozen=True, slots=True)
class AttentionCode:
    """An attention module."""

    where: int = numbers.NO_HEADS
    """Where `q_norm` and `k_norm` stand."""
    fused: str = ""
    """Linear layer of queries, keys and values together; "" for one each."""
    output: str = "o_proj"
    optional: str = ""
    """Attribute that says whether the norms are there; "" if they always are."""
    unless: str = ""
    """Attribute that asks for something that the step does not know."""
    limit: str = ""
    """Attribute of the largest size of queries, keys and values, which may be None."""
    scales_queries: bool = False
    """Whether a factor on queries grows with the position, as in Llama 4."""


@dataclass(frozen=True, slots=True)
class MlpCode:
    """An MLP: the names of its linear layers and its activation."""

    gate: str
    """The layer whose outputs are activated."""
    up: str
    """The layer whose outputs multiply these; "" for none, `gate` again if that computes both."""
    down: str
    activation: str


@dataclass(frozen=True, slots=True)
class NormCode:
    """A norm."""

    epsilon: str | float
    """Attribute of the epsilon, or itself."""
    is_centered: bool = False
    """Whether it subtracts the mean."""
    offset: float = 0.0
    """Added to the weight."""


WHOLES: Mapping[str | type, WholeCode] = {
    "llama.LlamaForCausalLM": WholeCode(),
    "stablelm.StableLmForCausalLM": WholeCode(),
    "nemotron.NemotronForCausalLM": WholeCode(),
    "granite.GraniteForCausalLM": WholeCode(divisor="config.logits_scaling"),
    "hyperclovax.HyperCLOVAXForCausalLM": WholeCode(factor="config.logits_scaling"),
    "cohere.CohereForCausalLM": WholeCode(factor="logit_scale"),
    "gemma3.Gemma3ForCausalLM": WholeCode(cap="config.final_logit_softcapping"),
}
DECODERS: Mapping[str | type, DecoderCode] = {
    "llama.LlamaModel": DecoderCode(),
    "mistral.MistralModel": DecoderCode(),
    "ministral.MinistralModel": DecoderCode(),
    "qwen2.Qwen2Model": DecoderCode(),
    "exaone4.Exaone4Model": DecoderCode(),
    "olmo3.Olmo3Model": DecoderCode(),
    "gemma.GemmaModel": DecoderCode(),
    "gemma3.Gemma3TextModel": DecoderCode(),
    "cohere2.Cohere2Model": DecoderCode(),
    "stablelm.StableLmModel": DecoderCode(),
    "starcoder2.Starcoder2Model": DecoderCode(),
    "phi.PhiModel": DecoderCode("final_layernorm"),
    "granite.GraniteModel": DecoderCode(factor="embedding_multiplier"),
    "nanochat.NanoChatModel": DecoderCode(norms_embedding=True),
}
EMBEDDINGS: Mapping[str | type, str] = {
    nn.Embedding: "",
    QuantizedEmbedding: "scale",
    "gemma.GemmaTextScaledWordEmbedding": "scalar_embed_scale",
}
"""Attributes of a factor on embeddings, in the dtype of the weights."""

ROTATIONS: Mapping[str | type, str] = {
    "llama.LlamaRotaryEmbedding": "attention_scaling",
    "olmo2.Olmo2RotaryEmbedding": "attention_scaling",
    "cohere.CohereRotaryEmbedding": "attention_scaling",
    "gemma3.Gemma3RotaryEmbedding": "{kind}_attention_scaling",
    "olmo3.Olmo3RotaryEmbedding": "{kind}_attention_scaling",
}
"""Attributes of the factor on cosines and sines, by the kind of a layer."""

LAYERS: Mapping[str | type, LayerCode] = {
    "llama.LlamaDecoderLayer": LayerCode(),
    "phi3.Phi3DecoderLayer": LayerCode(),
    "nemotron.NemotronDecoderLayer": LayerCode(),
    "granite.GraniteDecoderLayer": LayerCode(factor="residual_multiplier"),
    "hyperclovax.HyperCLOVAXDecoderLayer": LayerCode(
        attended_norm="post_norm1", last_mlp_norm="post_norm2", factor="residual_multiplier"
    ),
    "glm4.Glm4DecoderLayer": LayerCode(
        attended_norm="post_self_attn_layernorm", last_mlp_norm="post_mlp_layernorm"
    ),
    "gemma3.Gemma3DecoderLayer": LayerCode(
        attended_norm="post_attention_layernorm",
        mlp_norm="pre_feedforward_layernorm",
        last_mlp_norm="post_feedforward_layernorm",
    ),
    "olmo2.Olmo2DecoderLayer": LayerCode(
        norm="",
        attended_norm="post_attention_layernorm",
        mlp_norm="",
        last_mlp_norm="post_feedforward_layernorm",
    ),
    "cohere.CohereDecoderLayer": LayerCode(is_parallel=True),
    "cohere2.Cohere2DecoderLayer": LayerCode(is_parallel=True),
    "phi.PhiDecoderLayer": LayerCode(is_parallel=True),
    "stablelm.StableLmDecoderLayer": LayerCode(is_parallel="use_parallel_residual"),
}
ATTENTIONS: Mapping[str | type, AttentionCode] = {
    "llama.LlamaAttention": AttentionCode(),
    "mistral.MistralAttention": AttentionCode(),
    "qwen2.Qwen2Attention": AttentionCode(),
    "seed_oss.SeedOssAttention": AttentionCode(),
    "qwen3.Qwen3Attention": AttentionCode(numbers.EACH_HEAD),
    "phi3.Phi3Attention": AttentionCode(fused="qkv_proj"),
    "smollm3.SmolLM3Attention": AttentionCode(),
    "cohere2.Cohere2Attention": AttentionCode(),
    "exaone4.Exaone4Attention": AttentionCode(numbers.EACH_HEAD),
    "gemma3.Gemma3Attention": AttentionCode(numbers.EACH_HEAD),
    "olmo2.Olmo2Attention": AttentionCode(numbers.ALL_HEADS),
    "olmo3.Olmo3Attention": AttentionCode(numbers.ALL_HEADS),
    "olmo.OlmoAttention": AttentionCode(limit="config.clip_qkv"),
    "cohere.CohereAttention": AttentionCode(numbers.EACH_HEAD, optional="use_qk_norm"),
    "nanochat.NanoChatAttention": AttentionCode(numbers.TURNED_HEADS),
    "glm4.Glm4Attention": AttentionCode(),
    "helium.HeliumAttention": AttentionCode(),
    "ernie4_5.Ernie4_5Attention": AttentionCode(),
    "nemotron.NemotronAttention": AttentionCode(),
    "starcoder2.Starcoder2Attention": AttentionCode(),
    "stablelm.StableLmAttention": AttentionCode(unless="qk_layernorm"),
    "phi.PhiAttention": AttentionCode(output="dense", unless="qk_layernorm"),
    "ministral3.Ministral3Attention": AttentionCode(scales_queries=True),
}
MLPS: Mapping[str | type, MlpCode] = {
    "llama.LlamaMLP": MlpCode("gate_proj", "up_proj", "down_proj", "act_fn"),
    "seed_oss.SeedOssMLP": MlpCode("gate_proj", "up_proj", "down_proj", "act_fn"),
    "phi3.Phi3MLP": MlpCode("gate_up_proj", "gate_up_proj", "down_proj", "activation_fn"),
    "nemotron.NemotronMLP": MlpCode("up_proj", "", "down_proj", "act_fn"),
    "phi.PhiMLP": MlpCode("fc1", "", "fc2", "activation_fn"),
    "starcoder2.Starcoder2MLP": MlpCode("c_fc", "", "c_proj", "act"),
}
NORMS: Mapping[str | type, NormCode] = {
    "llama.LlamaRMSNorm": NormCode("variance_epsilon"),
    "olmo2.Olmo2RMSNorm": NormCode("variance_epsilon"),
    "helium.HeliumRMSNorm": NormCode("variance_epsilon"),
    "gemma.GemmaRMSNorm": NormCode("eps", offset=1.0),
    "nanochat.NanoChatRMSNorm": NormCode("eps"),
    "cohere.CohereLayerNorm": NormCode("variance_epsilon", is_centered=True),
    "olmo.OlmoLayerNorm": NormCode(1e-5, is_centered=True),
    "nemotron.NemotronLayerNorm1P": NormCode("eps", is_centered=True, offset=1.0),
    nn.LayerNorm: NormCode("eps", is_centered=True),
}
ACTIVATIONS: Mapping[str, int] = {
    "silu": numbers.SILU,
    "gelu_pytorch_tanh": numbers.GELU_TANH,
    "gelu_new": numbers.GELU_TANH,
    "relu2": numbers.RELU_SQUARED,
}
"""Activations by the names that transformers has for them."""

MODELS = "transformers.models."

EAGER = "eager_attention_forward"
"""Function that a model falls back on without an attention of ours."""

LONG_KNOWN = ("llama", "ministral", "mistral", "qwen2", "qwen3", "seed_oss")
"""Families whose classes compute the same in every version of transformers that is supported."""

READ_IN = (5, 23)
"""Version of transformers from which on the other families compute what the tables say."""

Code = TypeVar("Code")


def known(table: Mapping[str | type, Code], module: nn.Module) -> Code | None:
    """Return what a table says that a module computes; None if it does not know the code."""
    kind: Any = type(module)
    if kind in table:
        return table[kind]
    if not kind.__module__.startswith(MODELS):
        return None
    own, code = f"{kind.__module__.split('.')[2]}.{kind.__name__}", code_of(kind)
    names = [name for name in table if isinstance(name, str)]
    # a class that is in the table itself is found without the modules of other families
    for name in sorted(names, key=lambda name: name != own):
        if _code_of_name(name) == code:
            return table[name]
    return None


def known_activation(module: nn.Module) -> int | None:
    """Return the number of an activation; None if it is another."""
    for name, number in ACTIVATIONS.items():
        if type(module) is type(ACT2FN[name]):
            return number
    return None


@cache
def _code_of_name(name: str) -> Any:
    """Return the code of a class of the tables; None if this version of transformers has none."""
    family, _, kind = name.partition(".")
    version = tuple(map(int, transformers.__version__.split(".")[:2]))
    if family not in LONG_KNOWN and version < READ_IN:
        return None
    try:
        source = import_module(f"{MODELS}{family}.modeling_{family}")
    except ModuleNotFoundError:  # not in every version
        return None
    return code_of(getattr(source, kind))


@cache
def code_of(kind: Any) -> Any:
    """Return the code of a class's forward, of the methods of transformers' models that it calls,
    and of the forward that it extends."""
    forward = kind.forward
    names = inspect.unwrap(forward).__code__.co_names
    methods = {
        name: _code(getattr(kind, name))
        for name in names
        for owner in kind.__mro__
        if isfunction(vars(owner).get(name)) and owner.__module__.startswith(MODELS)
    }
    extended = _code(kind.__mro__[1].forward) if "super" in names else None
    return _code(forward), tuple(methods.items()), extended


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
    # the first constant is the docstring
    return _comparable(plain.__code__, plain.__code__.co_consts[1:]), tuple(calls.items())


def _comparable(code: CodeType, constants: tuple[Any, ...]) -> Any:
    """Return code without its place in a file."""
    found = tuple(
        _comparable(each, each.co_consts) if isinstance(each, CodeType) else (type(each), each)
        for each in constants
    )
    return code.co_code, code.co_names, code.co_varnames, found
