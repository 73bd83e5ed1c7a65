"""Where a model meets a cache: its attention switched, its forwards checked, its logits read."""

from typing import Any

from torch import Tensor, nn
from transformers import Cache as TransformersCache
from transformers import LogitsProcessor, PreTrainedModel

from agentkv.cache.hf import ATTENTION, describe, register


class CheckedCache(TransformersCache):
    """A cache that looks at each forward of an attached model before it starts."""

    def check_input(self, module: nn.Module, batch: int, num_tokens: int) -> None:
        """Raise ValueError for a forward that cannot work; nothing has changed yet."""
        raise NotImplementedError

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
    if _check_forward not in model.base_model._forward_pre_hooks.values():
        # a hook sees a forward whole and before any work: refusals leave the cache as it was
        model.base_model.register_forward_pre_hook(_check_forward, with_kwargs=True)


def _check_forward(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    cache = kwargs.get("past_key_values")
    if isinstance(cache, CheckedCache):
        tokens = kwargs.get("input_ids")
        if tokens is None:
            tokens = kwargs.get("inputs_embeds") if not args else args[0]
        if isinstance(tokens, Tensor):
            cache.check_input(module, tokens.shape[0], tokens.shape[1])


class Gate(LogitsProcessor):
    """Hands raw logits to a cache's policy and passes them on unchanged."""

    def __init__(self, cache: CheckedCache) -> None:
        self.cache = cache

    def __call__(self, input_ids: Tensor | None, scores: Tensor) -> Tensor:
        self.cache.settle(scores)
        return scores
