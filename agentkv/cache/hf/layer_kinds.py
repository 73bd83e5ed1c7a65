"""Kinds of decoder layers: which attend, which keep a recurrent state, and which do neither.

The names are those of `config.layer_types` in transformers.
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch
from transformers import Cache as TransformersCache
from transformers import DynamicCache, PreTrainedModel

from agentkv.cache.geometry import Hybrid
from agentkv.cache.hf.compat import CACHE

WINDOWED: Mapping[str, bool] = MappingProxyType(
    {"full_attention": False, "sliding_attention": True, "hybrid": False}
)
"""Kinds of layers that attend, and whether a sliding window bounds them."""

RECURRENT = ("linear_attention", "conv", "hybrid")
"""Kinds of layers that keep a recurrent state."""

STATELESS = ("moe", "mlp")
"""Kinds of layers that keep nothing."""


def hybrid_of(kinds: Sequence[str]) -> Hybrid | None:
    """Return where layers of these kinds attend; None if all do that and nothing else."""
    attending = tuple(i for i, kind in enumerate(kinds) if kind in WINDOWED)
    recurrent = tuple(i for i, kind in enumerate(kinds) if kind in RECURRENT)
    if len(attending) == len(kinds) and not recurrent:
        return None
    return Hybrid(len(kinds), attending, recurrent)


@torch.no_grad()
def state_nbytes(model: PreTrainedModel) -> int:
    """Return the bytes of one sequence's recurrent states, by a forward without weights.

    Args:
        model: on the device meta, in the dtype that it will compute in; its choice of experts
            changes.
    """
    given: Any = model
    given.set_experts_implementation("batched_mm")  # others read which experts a token has
    cache: Any = DynamicCache(config=model.config)
    ids = torch.zeros((1, 1), dtype=torch.int64, device="meta")
    model.base_model(input_ids=ids, use_cache=True, **{CACHE: cache})
    layers = [layer for layer in cache.layers if hasattr(layer, "recurrent_states")]
    held = [group for layer in layers for group in (layer.conv_states, layer.recurrent_states)]
    states = [state for group in held for state in group.values() if state is not None]
    return sum(state.nbytes for state in states)


def unserved_entries(config: Any) -> str | None:
    """Return why the cache does not serve what a model's attention stores; None if it does."""
    config = config.get_text_config(decoder=True)
    if getattr(config, "kv_lora_rank", None) is not None:
        return (
            "its attention caches latents (kv_lora_rank), which each layer expands to keys and "
            "values; the cache would store these, at many times the bytes"
        )
    return None


def unserved_kind(kinds: Sequence[str]) -> str | None:
    """Return why the cache does not serve layers of these kinds; None if it does."""
    unknown = sorted(set(kinds) - {*WINDOWED, *RECURRENT, *STATELESS})
    if unknown:
        known = ", ".join(dict.fromkeys((*WINDOWED, *RECURRENT, *STATELESS)))
        return f"layers of the kind {', '.join(unknown)}; known: {known}"
    if not set(kinds) & set(WINDOWED):
        return "none of its layers attends, so that a cache has nothing to keep small"
    recurrent = sorted(set(kinds) & set(RECURRENT))
    if recurrent and not hasattr(TransformersCache, "get_conv_state"):
        return (
            f"layers of the kind {', '.join(recurrent)} need a newer transformers, in which every "
            "cache may keep their state"
        )
    return None
