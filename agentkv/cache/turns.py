"""How far attention turns the residual stream, read by hooks while a model runs.

Shapes: B sequences, n tokens of a forward, d hidden size.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle
from transformers import PreTrainedModel

from agentkv.cache.attach import CheckedCache
from agentkv.cache.families import FAMILIES, Family, decoder


class _Turn:
    """What passes between the hooks of one decoder layer in one forward."""

    __slots__ = ("cache", "handles", "layer_idx", "mask", "stream")

    def __init__(self, layer_idx: int, layer: nn.Module, family: Family) -> None:
        self.layer_idx = layer_idx
        self._forget()
        attention, added = getattr(layer, family.attention), getattr(layer, family.added)
        self.handles: list[RemovableHandle] = [
            layer.register_forward_pre_hook(self.enter, with_kwargs=True),
            # comes before `add`, which in most families is on the same module
            attention.register_forward_hook(self.attended, with_kwargs=True),
            added.register_forward_hook(self.add),
        ]

    def _forget(self) -> None:
        self.stream: Tensor | None = None
        self.cache: CheckedCache | None = None
        self.mask: Tensor | None = None

    def enter(self, layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.stream = args[0] if args else kwargs["hidden_states"]

    def attended(
        self, attention: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any
    ) -> None:
        cache = kwargs.get("past_key_values")
        if isinstance(cache, CheckedCache) and cache.turn_window > 0:
            self.cache, self.mask = cache, kwargs.get("attention_mask")

    def add(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        cache, stream, mask = self.cache, self.stream, self.mask
        self._forget()
        if cache is not None and stream is not None:
            added = output[0] if isinstance(output, tuple) else output
            cache.note_turn(self.layer_idx, _mean_turn(stream, added, mask, cache.turn_window))


class Watch:
    """Takes the hooks of `watch_turns` off again."""

    __slots__ = ("_turns",)

    def __init__(self, turns: list[_Turn]) -> None:
        self._turns = turns

    def remove(self) -> None:
        """The model is as it was. Doing it twice does nothing more."""
        for turn in self._turns:
            for handle in turn.handles:
                handle.remove()


def _mean_turn(stream: Tensor, added: Tensor, mask: Tensor | None, window: int) -> Tensor:
    """Mean over the last `window` real tokens; stream and added (B, n, d) to (B,) float32."""
    stream, added = stream.detach(), added.detach()
    num_new = added.shape[1]
    places = is_real = None
    if mask is None:
        stream, added = stream[:, -window:], added[:, -window:]
    else:
        # the real tokens with the highest places, where a padding token's is 0
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


def watch_turns(model: PreTrainedModel) -> Watch:
    """Let every layer of `model` tell the cache how far its attention turned the residual stream.

    In each forward whose `past_key_values` is a `CheckedCache` with a `turn_window`, each layer
    calls `note_turn` once: with 1 - cos(R, R + O), R being the stream that enters the layer and O
    what its attention adds to it (in Gemma 3 that is after a norm of its own), averaged over the
    last `turn_window` real tokens of this forward, or as many as it has. Other forwards are let be.

    Doing it twice does nothing more, and either result takes it off.

    Source: cosine dissimilarity of TADA (Task-Aware Dynamic KV Cache Eviction via Error-Driven
    Importance Estimation, equation 13); the mean over a window is our choice.
    """
    family = FAMILIES[str(model.config.model_type)]
    return Watch(
        [
            _watching(layer) or _Turn(layer_idx, layer, family)
            for layer_idx, layer in enumerate(getattr(decoder(model), family.layers))
        ]
    )


def _watching(layer: nn.Module) -> _Turn | None:
    for hook in layer._forward_pre_hooks.values():
        turn = getattr(hook, "__self__", None)
        if isinstance(turn, _Turn):
            return turn
    return None
