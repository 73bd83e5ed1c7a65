"""Replacing the linear layers of a model by ones with weights in 8 or 4 bits."""

from typing import Any, Literal

import torch
from torch import nn
from transformers import PreTrainedModel

from agentkv.weights.linear import QuantizedEmbedding, QuantizedLinear
from agentkv_kernels import weights

INT4 = "q4_1"
"""Format of 4 bits: the range of every block is cut into 15 steps."""

INT8 = "q8_0"
"""Format of 8 bits, and of embeddings and projections to logits always: they are most sensitive,
and llama.cpp keeps them in 8 bits too."""

CHOOSING = ("gate", "router", "classifier", "shared_expert_gate")
"""Last names of layers that choose between experts: small, and what they choose must not change."""


@torch.no_grad()
def quantize_linear(model: PreTrainedModel, format: Literal["int8", "int4"]) -> None:
    """Quantize the linear layers of a model on the CPU, and its embedding, in place.

    Layers stay as they are if they choose between experts, or if their inputs are no multiple of
    32; experts whose weights are in one tensor stay too.
    """
    form = {"int8": INT8, "int4": INT4}[format]
    known: Any = model
    embedding, head = known.get_input_embeddings(), known.get_output_embeddings()
    tied = None
    scale = getattr(
        embedding, "scalar_embed_scale", 1.0 if type(embedding) is nn.Embedding else None
    )
    if scale is not None and embedding.embedding_dim % weights.BLOCK == 0:
        table = weights.quantize(embedding.weight, INT8)
        tied = table if getattr(head, "weight", None) is embedding.weight else None
        known.set_input_embeddings(QuantizedEmbedding(table, embedding.weight.dtype, scale))
    for name, module in list(model.named_modules()):
        if type(module) is not nn.Linear or module.in_features % weights.BLOCK or _chooses(name):
            continue
        packed = tied if module is head else None
        if packed is None:
            packed = weights.quantize(module.weight, INT8 if module is head else form)
        model.set_submodule(name, QuantizedLinear(packed, module.bias))


def _chooses(name: str) -> bool:
    return name.rpartition(".")[2] in CHOOSING or "router" in name
