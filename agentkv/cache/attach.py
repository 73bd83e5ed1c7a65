"""Where a model meets a cache: its attention switched, its forwards checked, its logits read."""

import inspect
from typing import Any

import torch
from torch import Tensor, nn
from transformers import Cache as TransformersCache
from transformers import LogitsProcessor, PreTrainedModel

from agentkv.cache.families import decoder, describe
from agentkv.cache.freed import MANY, give_back
from agentkv.cache.hf import ATTENTION, Misuse, register


class CheckedCache(TransformersCache):
    """A cache that looks at each forward of an attached model before it starts."""

    @property
    def is_croppable(self) -> bool:
        # before 5.0 nobody asks
        return False

    @property
    def turn_window(self) -> int:
        """Over how many of a forward's last tokens `note_turn` wants the mean; 0 for no calls.

        Asked in every layer of every forward of a model watched by `watch_turns`.
        """
        return 0

    def check_input(self, module: nn.Module, batch: int, num_tokens: int) -> None:
        """Raise ValueError for a forward that cannot work; nothing has changed yet."""
        raise NotImplementedError

    def note_ids(self, ids: Tensor | None) -> None:
        """Take in the tokens of the forward that now starts; it has been checked.

        Args:
            ids: (B, n) int32, padding included, on the device they came on (no waiting for it) and
                shared with nobody; None for a forward that was given embeddings.
        """

    def note_turn(self, layer_idx: int, turn: Tensor) -> None:
        """Take in how far a layer's attention turned the stream; see `watch_turns`.

        Args:
            turn: (B,) float32, on the layer's device; NaN for a sequence without a new token.
        """

    def finish(self) -> None:
        """Do what has to wait until all layers of a forward are done."""

    def settle(self, logits: Tensor) -> None:
        """Evict down to what the policy allows, given the raw logits (B, V) of the last token."""
        raise NotImplementedError


def attach(model: PreTrainedModel) -> None:
    """Let `model` attend through agentkv, so that it can use a `Cache`.

    Switches `attn_implementation`; the model works as before with other caches and with none. Doing
    it twice does nothing more.

    Raises:
        UnsupportedModel: a ValueError that names the supported families.
    """
    describe(model)
    register()
    if model.config._attn_implementation != ATTENTION:
        model.set_attn_implementation(ATTENTION)
    inner = decoder(model)
    if _check_forward not in inner._forward_pre_hooks.values():
        # a hook sees a forward whole and before any work: refusals leave the cache as it was
        inner.register_forward_pre_hook(_check_forward, with_kwargs=True)
        inner.register_forward_hook(_finish_forward, with_kwargs=True)


def _check_forward(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    given = _given(module, args, kwargs)
    cache = given.get("past_key_values")
    if not isinstance(cache, CheckedCache):
        return
    config: Any = module.config
    if config._attn_implementation != ATTENTION:
        raise Misuse(
            f"this model's attn_implementation was set to {config._attn_implementation!r} after "
            "agentkv.attach(model); attach it again"
        )
    ids, embeds = given.get("input_ids"), given.get("inputs_embeds")
    tokens = embeds if ids is None else ids
    if isinstance(tokens, Tensor):
        cache.check_input(module, tokens.shape[0], tokens.shape[1])
        cache.note_ids(None if ids is None else ids.to(torch.int32, copy=True))


def _finish_forward(
    module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any
) -> None:
    given = _given(module, args, kwargs)
    cache = given.get("past_key_values")
    if isinstance(cache, CheckedCache):
        cache.finish()
        tokens = given.get("input_ids")
        tokens = given.get("inputs_embeds") if tokens is None else tokens
        if isinstance(tokens, Tensor) and tokens.device.type == "cpu":
            if tokens.shape[0] * tokens.shape[1] >= MANY:
                give_back()


def _given(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    if not args:
        return kwargs
    return inspect.signature(module.forward).bind_partial(*args).arguments | kwargs


class Gate(LogitsProcessor):
    """Hands raw logits to a cache's policy and passes them on unchanged."""

    def __init__(self, cache: CheckedCache) -> None:
        self.cache = cache

    def __call__(self, input_ids: Tensor | None, scores: Tensor) -> Tensor:
        self.cache.settle(scores)
        return scores
