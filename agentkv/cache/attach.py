"""Where a model meets a cache: its attention switched, its forwards checked, its logits read."""

import inspect
from typing import Any

import torch
from torch import Tensor, nn
from transformers import Cache as TransformersCache
from transformers import LogitsProcessor, PreTrainedModel

from agentkv.cache.families import decoder, describe
from agentkv.cache.freed import MANY, give_back
from agentkv.cache.hf import ATTENTION, Misuse, register, uncompiled


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

    def begin(self) -> None:
        """Start a forward that was checked: `finish` ends it, or `leave` if it comes to nothing.

        Raises:
            Misuse: a ValueError; another thread is in the middle of one, or the last did not end.
        """

    def leave(self) -> None:
        """Take in that a forward of this thread raised; where none is going on, nothing is done."""

    def positions(self, mask: Tensor | None, num_tokens: int) -> Tensor | None:
        """(B, num_tokens) int64: where the new tokens stand in their own sequences, padding at any
        place; None where that is what transformers counts by itself.

        Args:
            mask: (B, columns so far and new ones), zeros for padding; None for no new padding.
        """
        return None

    def note_ids(self, ids: Tensor | None) -> None:
        """Take in the tokens of the forward that has begun.

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

    def note_logits(self, logits: Tensor) -> None:
        """Take in the raw logits (B, V) of a forward's last token, which may change afterwards."""

    def settle(self, logits: Tensor) -> None:
        """Evict down to what the policy allows, given the raw logits (B, V) of the last token."""
        raise NotImplementedError

    def settle_after_forward(self, logits: Tensor) -> None:
        """As `settle`, by the raw logits of the latest forward; by those given if it showed none.

        Args:
            logits: (B, V), of the last token, which others may have changed.
        """
        self.settle(logits)


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
        inner.register_forward_hook(_finish_forward, with_kwargs=True, always_call=True)
    outer: Any = model
    has_logits = outer.get_output_embeddings() is not None
    if has_logits and _show_logits not in model._forward_hooks.values():
        model.register_forward_hook(_show_logits, with_kwargs=True)


@uncompiled
def _check_forward(
    module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    given = _given(module, args, kwargs)
    cache = given.get("past_key_values")
    config: Any = module.config
    wanted = given.get("output_attentions")
    if wanted is None:
        wanted = getattr(config, "output_attentions", False)
    if wanted and config._attn_implementation == ATTENTION:
        raise Misuse(
            "output_attentions: an attached model forms no matrix of attention weights that it "
            'could give back. Call model.set_attn_implementation("eager") and use a cache of '
            "transformers, and attach the model again afterwards"
        )
    if not isinstance(cache, CheckedCache):
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


@uncompiled
def _finish_forward(
    module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any
) -> None:
    given = _given(module, args, kwargs)
    cache = given.get("past_key_values")
    if isinstance(cache, CheckedCache):
        # without an output an exception is on its way
        if output is None:
            cache.leave()
            return
        cache.finish()
        tokens = given.get("input_ids")
        tokens = given.get("inputs_embeds") if tokens is None else tokens
        if isinstance(tokens, Tensor) and tokens.device.type == "cpu":
            if tokens.shape[0] * tokens.shape[1] >= MANY:
                give_back()


@uncompiled
def _show_logits(
    module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any
) -> None:
    cache = kwargs.get("past_key_values")
    if cache is None:
        cache = _given(module, args, kwargs).get("past_key_values")
    if isinstance(cache, CheckedCache):
        logits = output[0] if isinstance(output, tuple) else getattr(output, "logits", None)
        if isinstance(logits, Tensor) and logits.dim() == 3:
            cache.note_logits(logits[:, -1])


def _given(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    if not args:
        return kwargs
    return inspect.signature(module.forward).bind_partial(*args).arguments | kwargs


class Gate(LogitsProcessor):
    """Lets a cache evict by the raw logits of its latest forward, and passes on what it is given.

    The attached model shows the cache its logits, so that it makes no difference which processors
    come before: `generate` puts its own, `repetition_penalty` for one, in front of ours.
    """

    def __init__(self, cache: CheckedCache) -> None:
        self.cache = cache

    def __call__(self, input_ids: Tensor | None, scores: Tensor) -> Tensor:
        self.cache.settle_after_forward(scores)
        return scores
