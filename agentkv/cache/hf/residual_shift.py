"""The residual shift: how far attention turns the residual stream, read by hooks.

Shapes: B sequences, n tokens of a forward, d hidden size.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle
from transformers import PreTrainedModel

from agentkv.cache.hf.compat import cache_in
from agentkv.cache.hf.families import attending_layers, attentions
from agentkv.cache.hf.hooked_cache import HookedCache


class _LayerHooks:
    """Hooks of one decoder layer, and what passes between them in one forward."""

    def __init__(self, layer_idx: int, layer: nn.Module, attention: nn.Module) -> None:
        self.layer_idx = layer_idx
        self._forget()
        self.handles: list[RemovableHandle] = [
            layer.register_forward_pre_hook(self.enter, with_kwargs=True),
            attention.register_forward_hook(self.attended, with_kwargs=True),
            *(
                part.register_forward_hook(self.passed)
                for part in layer.children()
                if part is not attention
            ),
            layer.register_forward_hook(self.leave),
        ]

    def _forget(self) -> None:
        self.stream: Tensor | None = None
        self.added: Tensor | None = None
        self.cache: HookedCache | None = None
        self.mask: Tensor | None = None

    def enter(self, layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._forget()  # the last forward may have raised
        self.stream = args[0] if args else kwargs["hidden_states"]

    def attended(
        self, attention: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any
    ) -> None:
        cache = cache_in(kwargs)
        if isinstance(cache, HookedCache) and cache.shift_window > 0:
            self.cache, self.mask = cache, kwargs.get("attention_mask")
            self.added = output[0] if isinstance(output, tuple) else output

    def passed(self, part: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        """Follow what attention returned through the parts that read nothing else, such as a
        norm."""
        if self.added is not None and args and args[0] is self.added:
            self.added = output

    def leave(self, layer: Any, args: tuple[Any, ...], output: Any) -> None:
        cache, stream, added, mask = self.cache, self.stream, self.added, self.mask
        self._forget()
        if cache is not None and stream is not None and added is not None:
            added = added * getattr(layer, "residual_multiplier", 1)
            cache.note_residual_shift(
                self.layer_idx, mean_shift(stream, added, mask, cache.shift_window)
            )


class Watch:
    """Removes the hooks of `watch_residual_shift`."""

    def __init__(self, hooks: list[_LayerHooks]) -> None:
        self._hooks = hooks

    def remove(self) -> None:
        """Restore the model. Repeated calls do nothing."""
        for layer in self._hooks:
            for handle in layer.handles:
                handle.remove()


def mean_shift(stream: Tensor, added: Tensor, mask: Tensor | None, window: int) -> Tensor:
    """Return the mean shift (B,) float32 of the last `window` tokens; stream and added (B, n,
    d)."""
    stream, added = stream.detach(), added.detach()
    num_new = added.shape[1]
    places = is_real = None
    if mask is None:
        stream, added = stream[:, -window:], added[:, -window:]
    else:
        # the last tokens by number, padding having number 0
        numbers = torch.arange(1, num_new + 1, device=added.device)
        numbered = numbers * mask[:, -num_new:].to(added.device)
        last = numbered.topk(min(window, num_new), dim=1).values  # (B, at most window)
        is_real, places = last > 0, (last - 1).clamp_min(0)
        index = places[:, :, None].expand(-1, -1, added.shape[2])
        stream, added = stream.gather(1, index.to(stream.device)), added.gather(1, index)
    before = stream.to(added.device, torch.float32)
    turned = 1 - F.cosine_similarity(before, before + added.to(torch.float32), dim=-1)
    if is_real is None:
        return turned.mean(dim=1)
    return turned.where(is_real, 0).sum(dim=1) / is_real.sum(dim=1)


def watch_residual_shift(model: PreTrainedModel) -> Watch:
    """Let every layer of `model` report its residual shift to the cache.

    In each forward whose cache is a `HookedCache` with a `shift_window`, each layer
    calls `note_residual_shift` once. The shift is 1 - cos(R, R + O), with R the stream that enters
    the layer and O what its attention adds (after a norm, if it passes one), averaged over the last
    `shift_window` tokens of the forward. Other forwards are unaffected.

    Repeated calls do nothing, and either result removes the hooks. `Geometry.why_not_watched` says
    which models have no such shift.

    Source: cosine dissimilarity of TADA (Task-Aware Dynamic KV Cache Eviction via Error-Driven
    Importance Estimation, equation 13); the mean over a window is our choice.
    """
    layers = attending_layers(model)
    return Watch(
        [
            _watching(layer) or _LayerHooks(layer_idx, layer, attention)
            for layer_idx, (layer, attention) in enumerate(
                zip(layers, attentions(model), strict=True)
            )
        ]
    )


def is_watched(layer: nn.Module) -> bool:
    """Return whether a decoder layer reports its residual shift."""
    return _watching(layer) is not None


def _watching(layer: nn.Module) -> _LayerHooks | None:
    for hook in layer._forward_pre_hooks.values():
        layer_hooks = getattr(hook, "__self__", None)
        if isinstance(layer_hooks, _LayerHooks):
            return layer_hooks
    return None
