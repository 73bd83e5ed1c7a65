"""The one place that knows transformers' versions (4.57 to 5.x): how it calls a cache, and how it
is told of our attention and mask.

Two names are registered. The attention takes the handle that `Cache.update` returns instead of
keys; between the two no model code touches it. The mask hands the 2-D padding mask through, because
the attention works out causality and windows from stored positions. No model code is patched.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.cache_utils import CacheLayerMixin

from agentkv.cache.layer import LayerStore
from agentkv_kernels.ops import Dense, attend

ATTENTION = "agentkv"
"""The name under which attention and mask are registered."""


class Misuse(ValueError):
    """The cache was asked for something it cannot do; it is unchanged."""


class Handle:
    """What stands in for a layer's keys between `Cache.update` and the attention function."""

    __slots__ = ("keys", "layer_idx", "owner", "values")

    def __init__(self, owner: Any, layer_idx: int, keys: Tensor, values: Tensor) -> None:
        self.owner, self.layer_idx, self.keys, self.values = owner, layer_idx, keys, values

    def __getattr__(self, name: str) -> Any:
        raise Misuse(
            "this model does not use agentkv's attention: call agentkv.attach(model), and do not "
            "set another attn_implementation afterwards"
        )

    @classmethod
    def __torch_function__(cls, *args: Any, **kwargs: Any) -> Any:
        raise Misuse("this model does not use agentkv's attention: call agentkv.attach(model)")


class Layer(CacheLayerMixin):  # type: ignore[no-untyped-call]
    """The face of a `LayerStore` towards transformers."""

    is_compileable = False
    is_croppable = False
    supports_early_init = False

    def __init__(self, store: LayerStore) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.store = store
        self.is_sliding = store.shape.window is not None

    def lazy_initialization(self, *args: Any) -> None:
        # before 5.0: (keys); after: (keys, values)
        raise AssertionError("the cache makes its own storage")

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> Any:
        raise AssertionError("Cache.update answers for its layers")

    def get_mask_sizes(self, query_length: int | Tensor) -> tuple[int, int]:
        # before 5.4 a tensor of cache positions
        num_q = query_length if isinstance(query_length, int) else query_length.shape[0]
        return self.store.seen + num_q, 0

    def get_seq_length(self, *args: Any) -> int:
        """Tokens seen, not tokens stored: new tokens take their positions from it."""
        return self.store.seen

    def get_max_length(self) -> int:
        return -1

    def get_max_cache_shape(self) -> int:
        # its name before 5.13
        return -1

    def reset(self) -> None:
        self.store.reset()


def register() -> None:
    """Make the attention and the mask known to transformers. Doing it twice does nothing more."""
    AttentionInterface.register(ATTENTION, _attention)
    AttentionMaskInterface.register(ATTENTION, _mask)


def _mask(*args: Any, attention_mask: Tensor | None = None, **kwargs: Any) -> Tensor | None:
    if attention_mask is None or bool(attention_mask.all()):
        return None
    return attention_mask


def _attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor | Handle,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    s_aux: Tensor | None = None,
    softcap: float | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    if softcap is not None:
        raise Misuse("attention that soft-caps its logits is not supported")
    if scaling is None:
        # GPT-2 before 5.4 leaves its own factors to the attention function
        is_scaled = getattr(module, "scale_attn_weights", True)
        scaling = float(query.shape[-1] ** -0.5) if is_scaled else 1.0
        if getattr(module, "scale_attn_by_inverse_layer_idx", False):
            scaling /= int(getattr(module, "layer_idx", 0)) + 1
    if isinstance(key, Handle):
        owner = key.owner
        return owner.attend(module, key, query, attention_mask, scaling, s_aux), None
    return _attend_plainly(
        query, key, value, attention_mask, scaling, dropout, sliding_window, s_aux
    ), None


def _attend_plainly(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float,
    dropout: float,
    window: int | None,
    sinks: Tensor | None,
) -> Tensor:
    """Causal attention for an attached model that runs without our cache.

    The last query stands at the last key, as in every cache of transformers' own.
    """
    batch, num_q, num_kv = query.shape[0], query.shape[2], key.shape[2]
    if attention_mask is not None and attention_mask.dim() != 2:
        raise Misuse(f"a padding mask has 2 dimensions, this one {attention_mask.dim()}")
    places = torch.arange(num_kv, device=query.device)
    if sinks is not None:
        real = places.expand(batch, -1)
        if attention_mask is not None:
            real = real.masked_fill(~attention_mask[:, -num_kv:], -1)
        part = Dense(key, value, real, is_padded=attention_mask is not None)
        q_positions = places[num_kv - num_q :].expand(batch, -1)
        done = attend(
            query, [part], scale=scaling, q_positions=q_positions, window=window, sinks=sinks
        )
        return done.output.transpose(1, 2)
    visible = None
    if attention_mask is not None or window is not None or 1 < num_q < num_kv:
        behind = places[num_kv - num_q :, None] - places  # (Q, T)
        visible = behind >= 0
        if window is not None:
            visible = visible & (behind < window)
        visible = visible[None, None]
        if attention_mask is not None:
            visible = visible & attention_mask[:, None, None, -num_kv:]
            # a padding query sees itself, so that no softmax is empty
            visible = visible | (behind == 0)
    out = F.scaled_dot_product_attention(
        query,
        key,
        value,
        attn_mask=visible,
        dropout_p=dropout,
        is_causal=visible is None and num_q > 1,
        scale=scaling,
        enable_gqa=query.shape[1] != key.shape[1],
    )
    return out.transpose(1, 2)
