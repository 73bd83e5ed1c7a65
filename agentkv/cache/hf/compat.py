"""The one module that depends on transformers' versions (4.57 to 5.x): how it calls a cache, and
how our attention and mask are registered.

Two functions are registered. The attention receives the handle that `Cache.update` returns instead
of keys; in between, no model code touches it. The mask passes the 2-D padding mask through, because
the attention derives causality and windows from stored positions. With any other cache, and without
one, both leave the work to transformers. No model code is patched.
"""

from collections.abc import Callable, Mapping, Sequence
from inspect import signature
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, cache_utils
from transformers.cache_utils import CacheLayerMixin
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import create_causal_mask, sdpa_mask

from agentkv.cache.geometry import Hybrid
from agentkv.cache.layer import CacheLayer
from agentkv.cache.misuse import Misuse

ATTENTION = "agentkv"
"""Name under which attention and mask are registered."""

CACHE = "cache" if "cache" in signature(create_causal_mask).parameters else "past_key_values"
"""Name of the argument with which a forward takes its cache. Since transformers 5.24 it is `cache`;
the older name draws a warning."""


def cache_in(given: Mapping[str, Any]) -> Any:
    """Return the cache among the arguments of a forward, under either name; None without one."""
    return given.get(CACHE, given.get("past_key_values"))


Function = TypeVar("Function", bound=Callable[..., Any])


def outside_compile(function: Function) -> Function:
    """Exclude `function` from `torch.compile`: it moves memory by address."""
    kept: Function = torch.compiler.disable(function)  # type: ignore[no-untyped-call]
    return kept


class Handle:
    """Stands in for a layer's keys between `Cache.update` and the attention function.

    Later layers that share the keys are given the same handle.
    """

    __slots__ = ("is_stored", "keys", "layer_idx", "owner", "values")

    def __init__(self, owner: Any, layer_idx: int, keys: Tensor, values: Tensor) -> None:
        self.owner, self.layer_idx, self.keys, self.values = owner, layer_idx, keys, values
        self.is_stored = False
        """Whether the layer has stored its keys and attended; layers that share them come later."""

    def to(self, *args: Any, **kwargs: Any) -> "Handle":
        """Return the handle itself, which a layer on another device is given as well."""
        return self

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)  # Python and compilers probe for special names
        raise Misuse(
            "this model does not use agentkv's attention: call agentkv.attach(model), and do not "
            "set another attn_implementation afterwards"
        )

    @classmethod
    def __torch_function__(cls, *args: Any, **kwargs: Any) -> Any:
        raise Misuse("this model does not use agentkv's attention: call agentkv.attach(model)")


class Columns(int):
    """Columns that our cache has seen, new ones included; its type tells the mask function so."""


class TransformersLayer(CacheLayerMixin):  # type: ignore[no-untyped-call]
    """Presents a `CacheLayer` to transformers."""

    is_compileable = False
    is_croppable = False
    supports_early_init = False

    def __init__(self, layer: CacheLayer) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.layer = layer
        self.is_sliding = layer.shape.window is not None

    def lazy_initialization(self, *args: Any) -> None:
        """Never called: the cache creates its own storage."""
        # the arguments are (keys) before 5.0 and (keys, values) after
        raise AssertionError("the cache creates its own storage")

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> Any:
        raise AssertionError("Cache.update serves all layers")

    @outside_compile
    def get_mask_sizes(self, query_length: int | Tensor) -> tuple[int, int]:
        """Return the columns seen plus the new ones, and an offset of 0."""
        # a tensor of cache positions before 5.4
        num_q = query_length if isinstance(query_length, int) else query_length.shape[0]
        return Columns(self.layer.seen + num_q), 0

    def get_seq_length(self, *args: Any) -> int:
        """Return the tokens seen, not those stored: new tokens derive their positions from it."""
        return self.layer.seen

    def get_max_length(self) -> int:
        """Return -1: the length has no limit."""
        return -1

    def get_max_cache_shape(self) -> int:
        """Return -1: the length has no limit."""
        # the method's name before 5.13
        return -1

    def reset(self) -> None:
        self.layer.reset()


def decoder_layers(layers: Sequence[CacheLayer], hybrid: Hybrid | None) -> list[Any]:
    """Return what stands for each decoder layer of a model in transformers' list of layers.

    For a layer that does not attend this is an empty layer of transformers, whose type says what
    the decoder layer is.
    """
    presented = [TransformersLayer(layer) for layer in layers]
    if hybrid is None:
        return presented
    kinds: Any = cache_utils  # the classes are missing before 5.x
    attending = dict(zip(hybrid.attending, presented, strict=True))
    return [
        attending.get(i)
        or (kinds.LinearAttentionLayer() if i in hybrid.recurrent else kinds.DummyLayer())
        for i in range(hybrid.num_layers)
    ]


def register() -> None:
    """Register the attention and the mask with transformers. Repeated calls do nothing."""
    AttentionInterface.register(ATTENTION, _attention)
    AttentionMaskInterface.register(ATTENTION, _mask)


def _mask(*, kv_length: int, attention_mask: Tensor | None, **kwargs: Any) -> Tensor | None:
    """Return the mask (B, columns) itself for our cache, and (B, 1, Q, T) for others."""
    if isinstance(kv_length, Columns):
        return attention_mask
    return sdpa_mask(kv_length=kv_length, attention_mask=attention_mask, **kwargs)


def tokens_among(mask: Any, num_new: int) -> Tensor | None:
    """Return which new columns are tokens, (B, num_new) bool on the CPU; None if none is padding.

    It waits for the device of the mask. A forward calls it once, before it has queued any work.

    Args:
        mask: what the model was given as `attention_mask`; `attend` refuses one that is no tensor
            (B, columns).
    """
    if not isinstance(mask, Tensor) or mask.dim() != 2:
        return None
    is_token = mask[:, -num_new:].to("cpu") != 0
    return None if is_token.all() else is_token


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
        # before 5.4, GPT-2 leaves its scale factors to the attention function
        is_scaled = getattr(module, "scale_attn_weights", True)
        scaling = float(query.shape[-1] ** -0.5) if is_scaled else 1.0
        if getattr(module, "scale_attn_by_inverse_layer_idx", False):
            scaling /= int(getattr(module, "layer_idx", 0)) + 1
    if isinstance(key, Handle):
        return _attend_in(key, module, query, attention_mask, scaling, s_aux), None
    if s_aux is None:
        # the mask includes the sliding window
        done, _ = sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout=dropout, scaling=scaling
        )
        return done, None
    return _attend_with_sinks(query, key, value, attention_mask, scaling, dropout, s_aux), None


@outside_compile
def _attend_in(
    handle: Handle,
    module: nn.Module,
    query: Tensor,
    mask: Tensor | None,
    scale: float,
    sinks: Tensor | None,
) -> Tensor:
    """Attend in our cache; see `CacheLayer.attend`."""
    device, own = query.device, handle.keys.device  # of a layer and of one that shares its keys
    output: Tensor = handle.owner.attend(module, handle, query.to(own), mask, scale, sinks)
    return output.to(device).contiguous()  # some models view it


class WithoutGradient(torch.autograd.Function):
    """Passes the output of attention on, and refuses to compute its gradient."""

    @staticmethod
    def forward(ctx: Any, output: Tensor, query: Tensor) -> Tensor:
        """Return `output` itself, tied to the graph of `query`."""
        return output.view_as(output)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        """Refuse. Raises Misuse."""
        raise Misuse(
            "a cache is for inference: what it stores has no gradient. Train the model without it, "
            "with use_cache=False"
        )


def _attend_with_sinks(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    scaling: float,
    dropout: float,
    sinks: Tensor,
) -> Tensor:
    """Attend with one sink logit (H,) per query head, for a model without our cache.

    Args:
        mask: (B, 1, Q, T), bool for visible keys or added to the logits; None: a single query sees
            all keys, and the first of several queries is aligned with the first key.
    """
    num_q, group = query.shape[2], query.shape[1] // key.shape[1]
    key, value = (x.repeat_interleave(group, dim=1) for x in (key, value))
    if mask is None and num_q > 1:
        key, value = key[:, :, :num_q], value[:, :, :num_q]
        mask = torch.ones(num_q, num_q, dtype=torch.bool, device=query.device).tril()
    logits = query @ key.transpose(2, 3) * scaling
    if mask is not None:
        least = torch.finfo(logits.dtype).min
        is_bool = mask.dtype is torch.bool
        logits = logits.masked_fill(~mask, least) if is_bool else logits + mask
    column = sinks.to(logits.dtype).view(1, -1, 1, 1).expand(*logits.shape[:3], 1)
    shares = torch.cat([logits, column], dim=-1).softmax(dim=-1)[..., :-1]
    shares = F.dropout(shares, p=dropout, training=dropout > 0)
    return (shares @ value).transpose(1, 2).contiguous()
