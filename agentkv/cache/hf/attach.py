"""Attaching a model: its attention is switched, its forwards are checked, its logits are read."""

import inspect
from typing import Any

import torch
from torch import Tensor, nn
from transformers import Cache as TransformersCache
from transformers import LogitsProcessor, PreTrainedModel

from agentkv.cache.hf.compat import ATTENTION, Misuse, outside_compile, register
from agentkv.cache.hf.families import decoder, describe
from agentkv.cache.hf.trim import MIN_TOKENS, trim_heap


class HookedCache(TransformersCache):
    """Methods that the hooks of an attached model call on a cache, in this order.

    `check_input`, `begin`, `note_ids`, `positions`; `update` and `attend` of every layer; then
    `finish` and `note_logits`, or `leave` if the forward raised.
    """

    @property
    def is_croppable(self) -> bool:
        """False: evicted entries cannot come back, so assisted decoding is refused."""
        # transformers before 5.0 does not ask
        return False

    def check_input(self, module: nn.Module, batch: int, num_tokens: int) -> None:
        """Refuse a forward that cannot work. Raises Misuse (ValueError); nothing has changed."""
        raise NotImplementedError

    def begin(self) -> None:
        """Start a forward that was checked: `finish` ends it, or `leave` if it fails.

        Raises:
            Misuse: a ValueError; another thread is in the middle of one, or the last did not end.
        """

    def note_ids(self, ids: Tensor | None) -> None:
        """Take the token ids of the forward that began.

        Args:
            ids: (B, n) int32, padding included, on their own device and shared with nobody; None
                for a forward that was given embeddings.
        """

    def positions(self, mask: Tensor | None, num_tokens: int) -> Tensor | None:
        """Return (B, num_tokens) int64, the positions of new tokens in their own sequences; None if
        transformers counts the same.

        Args:
            mask: (B, columns so far and new ones), zeros for padding; None: no new padding.
        """
        return None

    @property
    def shift_window(self) -> int:
        """Tokens at a forward's end over which `note_residual_shift` wants the mean; 0: no calls.

        Every layer asks in every forward of a model that `watch_residual_shift` watches.
        """
        return 0

    def note_residual_shift(self, layer_idx: int, shift: Tensor) -> None:
        """Take the residual shift of a layer; see `watch_residual_shift`.

        Args:
            shift: (B,) float32 on the layer's device; NaN for a sequence without a new token.
        """

    def finish(self) -> None:
        """End a forward that all layers have finished."""

    def leave(self) -> None:
        """End a forward of this thread that raised; do nothing if there is none."""

    def note_logits(self, logits: Tensor) -> None:
        """Take the raw logits (B, V) of a forward's last token, which may change afterwards."""

    def apply_gate(self, logits: Tensor) -> None:
        """Evict down to what the gate allows, given the raw logits (B, V) of the last token."""
        raise NotImplementedError

    def apply_noted_gate(self, logits: Tensor) -> None:
        """Apply the gate to the raw logits of the latest forward; to `logits` if it showed none.

        Args:
            logits: (B, V) of the last token, which logits processors may have changed.
        """
        self.apply_gate(logits)


def attach(model: PreTrainedModel) -> None:
    """Switch a model's `attn_implementation` to agentkv, so that it can use a `Cache`.

    With other caches, and without one, the model works as before. Repeated calls do nothing.

    Raises:
        UnsupportedModel: a ValueError that names the supported families.
    """
    describe(model)
    register()
    if model.config._attn_implementation != ATTENTION:
        model.set_attn_implementation(ATTENTION)
    inner = decoder(model)
    if _check_forward not in inner._forward_pre_hooks.values():
        # hooks run before any layer does, so a refusal leaves the cache as it was
        inner.register_forward_pre_hook(_check_forward, with_kwargs=True)
        inner.register_forward_hook(_finish_forward, with_kwargs=True, always_call=True)
    outer: Any = model
    has_logits = outer.get_output_embeddings() is not None
    if has_logits and _show_logits not in model._forward_hooks.values():
        model.register_forward_hook(_show_logits, with_kwargs=True)


@outside_compile
def _check_forward(
    module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    given = _arguments(module, args, kwargs)
    cache = given.get("past_key_values")
    config: Any = module.config
    wanted = given.get("output_attentions")
    if wanted is None:
        wanted = getattr(config, "output_attentions", False)
    if wanted and config._attn_implementation == ATTENTION:
        raise Misuse(
            "output_attentions: an attached model computes no matrix of attention weights. Call "
            'model.set_attn_implementation("eager") and use a cache of transformers, and attach '
            "the model again afterwards"
        )
    if not isinstance(cache, HookedCache):
        return None
    if config._attn_implementation != ATTENTION:
        raise Misuse(
            f"this model's attn_implementation was set to {config._attn_implementation!r} after "
            "agentkv.attach(model); attach it again"
        )
    ids, embeds = given.get("input_ids"), given.get("inputs_embeds")
    tokens = embeds if ids is None else ids
    if not isinstance(tokens, Tensor):
        return None
    cache.check_input(module, tokens.shape[0], tokens.shape[1])
    cache.begin()
    cache.note_ids(None if ids is None else ids.to(torch.int32, copy=True))
    if given.get("position_ids") is not None:
        return None
    places = cache.positions(given.get("attention_mask"), tokens.shape[1])
    if places is None:
        return None
    return (), {**given, "position_ids": places.to(tokens.device)}


@outside_compile
def _finish_forward(
    module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any
) -> None:
    given = _arguments(module, args, kwargs)
    cache = given.get("past_key_values")
    if isinstance(cache, HookedCache):
        # there is no output if the forward raised
        if output is None:
            cache.leave()
            return
        cache.finish()
        tokens = given.get("input_ids")
        tokens = given.get("inputs_embeds") if tokens is None else tokens
        if isinstance(tokens, Tensor) and tokens.device.type == "cpu":
            if tokens.shape[0] * tokens.shape[1] >= MIN_TOKENS:
                trim_heap()


@outside_compile
def _show_logits(
    module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any
) -> None:
    cache = kwargs.get("past_key_values")
    if cache is None:
        cache = _arguments(module, args, kwargs).get("past_key_values")
    if isinstance(cache, HookedCache):
        logits = output[0] if isinstance(output, tuple) else getattr(output, "logits", None)
        if isinstance(logits, Tensor) and logits.dim() == 3:
            cache.note_logits(logits[:, -1])


def _arguments(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    if not args:
        return kwargs
    return inspect.signature(module.forward).bind_partial(*args).arguments | kwargs


class LogitsGate(LogitsProcessor):
    """Applies a cache's gate after each forward, and returns the scores unchanged.

    The attached model shows the cache its raw logits, so other processors may come first:
    `generate` puts its own, such as `repetition_penalty`, in front.
    """

    def __init__(self, cache: HookedCache) -> None:
        self.cache = cache

    def __call__(self, input_ids: Tensor | None, scores: Tensor) -> Tensor:
        self.cache.apply_noted_gate(scores)
        return scores
