"""The first step of a model, beside transformers' forward of the same tokens.

A model is read by what is known of its classes. If that is wrong of some version or some
configuration, this finds it before anyone reads a wrong word.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from agentkv.cache.hf.decoder import Decoder
from agentkv.cache.hf.families import describe
from agentkv.cache.layer import CacheLayer
from agentkv.cache.storage.table import Meter
from agentkv.weights.linear import QuantizedLinear

FAR = {torch.float32: 0.01, torch.float16: 0.3, torch.bfloat16: 0.7}
"""Largest distance of logits that rounding may explain, as a share of their spread (our choice;
transformers' own rounding came to 2e-5, 0.07 and 0.24 with SmolLM2-135M)."""

ROUNDED = 0.3
"""The same where weights are quantized, because activations are rounded to 8 bits: what rounding
tips over goes on to all later layers (our choice; SmolLM2-135M in Q4_1 came to 0.034)."""

NUM_TOKENS = 2
"""The last one is compared: a sequence's first one has activations so large that 16 bits lose
more."""


@torch.no_grad()
def why_apart(model: PreTrainedModel, decoder: Decoder, step: Any) -> str | None:
    """Return how far a model's compiled step is from transformers' forward; None if it is close.

    It takes a forward of two tokens and two steps, and a step of both if steps read inputs,
    on entries of their own. Where transformers finds no finite logits there is nothing to compare
    with.

    Args:
        step: `CompiledStep` of `decoder`, which is `model` as it was read.
    """
    whole: Any = model
    size = len(decoder.parts.head.span)
    ids = [size * (i + 1) // (NUM_TOKENS + 1) for i in range(NUM_TOKENS)]
    unasked = {"use_cache": False, "output_attentions": False, "output_hidden_states": False}
    own = type(whole).forward(whole, input_ids=torch.tensor([ids]), return_dict=True, **unasked)
    expected = own.logits[0, -1].float()
    if not bool(expected.isfinite().all()):
        return None
    ways = [[1] * NUM_TOKENS, *([[NUM_TOKENS]] if step.can_read(NUM_TOKENS, 1) else [])]
    found = torch.stack([_stepped(model, decoder, step, ids, lengths) for lengths in ways]).float()
    spread = float((expected - expected.mean()).norm())
    apart = float((found - expected).norm(dim=1).max()) / max(
        spread, torch.finfo(torch.float32).tiny
    )
    is_rounded = any(isinstance(each, QuantizedLinear) for each in model.modules())
    if apart <= max(FAR[decoder.dtype], ROUNDED if is_rounded else 0.0):
        return None
    return f"its compiled step differs from transformers' forward by {apart:.2g}; please report"


def _stepped(
    model: PreTrainedModel, decoder: Decoder, step: Any, ids: list[int], lengths: Sequence[int]
) -> Tensor:
    """Return the logits (V,) after tokens of a sequence of their own, fed by steps of some
    lengths."""
    geometry, cpu = describe(model), torch.device("cpu")
    layers = [CacheLayer(shape, policy=None, meter=Meter()) for shape in geometry.layers]
    for layer in layers:
        layer.begin(1, num_q_heads=geometry.num_q_heads, dtype=decoder.dtype, device=cpu)
    first = 0
    for length in lengths:
        both = zip(layers, decoder.attentions, decoder.scales, strict=True)
        for layer, module, scale in both:
            layer.begin_step(layer.attention_of(module, scale, None))
        new, places = ids[first : first + length], list(range(first, first + length))
        logits: Tensor = (
            step.run([layers], new, places) if length == 1 else step.read(layers, new, places, 1)
        )
        first += length
    return logits[0]
