"""Attaching a model: its attention is switched, its forwards are checked, its logits are read."""

import inspect
from typing import Any

import torch
from torch import Tensor, nn
from transformers import LogitsProcessor, PreTrainedModel

from agentkv.cache.hf.compat import ATTENTION, cache_in, outside_compile, register, tokens_among
from agentkv.cache.hf.families import decoder, describe
from agentkv.cache.hf.forward import arguments_of, install
from agentkv.cache.hf.hooked_cache import HookedCache
from agentkv.cache.hf.trim import MIN_TOKENS, trim_heap
from agentkv.cache.misuse import Misuse


def attach(model: PreTrainedModel) -> None:
    """Switch a model's `attn_implementation` to agentkv, so that it can use a `Cache`.

    With other caches, and without one, the model works as before. Repeated calls do nothing.

    Raises:
        UnsupportedModel: a ValueError that names the part of the model that is not supported.
    """
    describe(model)
    register()
    inner = decoder(model)
    inner_config: Any = inner.config
    if inner_config._attn_implementation != ATTENTION:
        inner.set_attn_implementation(ATTENTION)
    if _check_forward not in inner._forward_pre_hooks.values():
        # hooks run before any layer does, so a refusal leaves the cache as it was
        inner.register_forward_pre_hook(_check_forward, with_kwargs=True)
        inner.register_forward_hook(_finish_forward, with_kwargs=True, always_call=True)
    outer: Any = model
    has_logits = outer.get_output_embeddings() is not None
    if has_logits and _read_logits not in model._forward_hooks.values():
        model.register_forward_hook(_read_logits, with_kwargs=True)
    if inner is not model.base_model and _check_text not in model._forward_pre_hooks.values():
        model.register_forward_pre_hook(_check_text, with_kwargs=True)
    install(model)


TEXT = frozenset(
    {"input_ids", "attention_mask", "position_ids", "cache_position", "inputs_embeds", "labels"}
    | {"token_type_ids", "mm_token_type_ids", "logits_to_keep"}
)
"""Tensors that a model of several modalities may be given with a cache."""


@outside_compile
def _check_text(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Refuse pictures and sounds, and note the ids that the decoder gets embeddings of."""
    given = arguments_of(module, args, kwargs)
    cache = cache_in(given)
    if isinstance(cache, HookedCache):
        other = [name for name, x in given.items() if isinstance(x, Tensor) and name not in TEXT]
        if other:
            raise Misuse(
                f"{', '.join(other)}: a cache reads text only. Give the model no picture or sound, "
                "or use a cache of transformers"
            )
        cache.embedded_ids, cache.embedded_mask = (
            given.get("input_ids"),
            given.get("attention_mask"),
        )


@outside_compile
def _check_forward(
    module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    given = arguments_of(module, args, kwargs)
    cache = cache_in(given)
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
    if ids is None:
        ids, cache.embedded_ids = cache.embedded_ids, None
    tokens = embeds if ids is None else ids
    if not isinstance(tokens, Tensor):
        return None
    batch, num_new = tokens.shape[:2]
    cache.check_input(module, batch, num_new)
    mask = given.get("attention_mask")
    # a model of several modalities gives its decoder a mask for each kind of layer
    given_mask = cache.embedded_mask if isinstance(mask, dict) else mask
    is_token = tokens_among(given_mask, num_new)
    cache.begin(num_new, is_token)
    cache.note_ids(None if ids is None else ids.to(torch.int32, copy=True))
    if is_token is None and isinstance(mask, dict):
        given = {**given, "attention_mask": dict.fromkeys(mask)}
    elif is_token is None and isinstance(mask, Tensor) and mask.dim() == 2:
        given = {**given, "attention_mask": None}
    elif is_token is not None and "logits_to_keep" in inspect.signature(module.forward).parameters:
        # else layers that share keys skip tokens, and take the rows of a mask (B, 1, Q, T) for it
        given = {**given, "logits_to_keep": None}
    places = given.get("position_ids")
    if isinstance(places, Tensor) and places.dim() == 3:
        places = places[0]  # one row for each axis of a picture; text has the same in each
    places = cache.rotary_positions(places, num_new)
    if places is not None:
        given = {**given, "position_ids": places.to(tokens.device)}
    return (), given


@outside_compile
def _finish_forward(
    module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any
) -> None:
    given = arguments_of(module, args, kwargs)
    cache = cache_in(given)
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
def _read_logits(
    module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any
) -> Any:
    """Let the cache look back and read the logits; return the output if a second pass changed
    it."""
    cache = cache_in(kwargs)
    if cache is None:
        cache = cache_in(arguments_of(module, args, kwargs))
    if isinstance(cache, HookedCache):
        logits = output[0] if isinstance(output, tuple) else getattr(output, "logits", None)
        if isinstance(logits, Tensor) and logits.dim() == 3:
            again = cache.look_back(module, logits[:, -1])
            if again is None:
                cache.note_logits(logits[:, -1])
                return None
            cache.note_logits(again)
            logits = torch.cat([logits[:, :-1], again[:, None]], dim=1)
            if isinstance(output, tuple):
                return (logits, *output[1:])
            output.logits = logits
            return output
    return None


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
