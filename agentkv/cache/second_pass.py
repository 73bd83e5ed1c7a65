"""The second pass of a token that looks back: its last position is computed again."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from agentkv.cache.hf.compat import Handle, outside_compile
from agentkv.cache.hf.hooked_cache import HookedCache

if TYPE_CHECKING:
    from agentkv.cache.cache import Cache


class SecondPass(HookedCache):
    """Stands for a cache in one forward of the tokens that it was fed last.

    In every layer the sequences that look back replace the key and value of their newest token and
    attend with what they fetch. All other sequences are unchanged, and their logits mean nothing.

    Args:
        looking: per sequence, whether it looks back.
    """

    def __init__(self, cache: "Cache", looking: Sequence[bool]) -> None:
        super().__init__(layers=cache.layers)
        self._cache, self._looking = cache, looking

    def check_input(self, module: nn.Module, batch: int, num_tokens: int) -> None:
        assert (batch, num_tokens) == (self._cache.batch, 1), "the newest token of each sequence"

    def positions(self, mask: Tensor | None, num_tokens: int) -> Tensor:
        return torch.tensor(self._cache.cache_layers[0].fed)[:, None].sub_(1).clamp_min_(0)

    @outside_compile
    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> Any:
        return Handle(self, layer_idx, key_states, value_states), value_states

    @torch.no_grad()
    def attend(
        self,
        module: nn.Module,
        handle: Handle,
        query: Tensor,
        mask: Tensor | None,
        scale: float,
        sinks: Tensor | None,
    ) -> Tensor:
        layer = self._cache.cache_layers[handle.layer_idx]
        attention = self._cache.attention_of(layer, module, scale, sinks)
        return layer.attend_again(query, handle.keys, handle.values, self._looking, attention)
