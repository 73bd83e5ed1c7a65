"""The reference for all contenders: a full cache whose attention hides evicted entries.

It uses a DynamicCache of transformers and attention in float64.

Shapes: B sequences, H key-value heads, G query heads each, n new tokens, T tokens read, D head
size, V entries of the vocabulary.
"""

import weakref
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface, DynamicCache
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

from agentkv.cache.cache import Cache
from agentkv.cache.hf.compat import CACHE
from agentkv.cache.hf.families import describe
from agentkv_tasks.bench.contenders.models import twin

ATTENTION = "agentkv-bench-judge"

Kept = list[list[list[Tensor]]]
"""Positions still stored, per layer, sequence and KV head, as `Cache.kept` returns them."""

Stored = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
"""New keys and values -> the same as a cache stores them."""


class CacheJudge:
    """Reads the same tokens as a cache and hides the entries that the cache has evicted.

    Args:
        plain: model whose weights are shared; it is not changed.
        as_stored: new keys and values (B, H, n, D) -> the same as the cache stores them, before any
            token reads them; None: unchanged.
    """

    def __init__(self, plain: Any, as_stored: Stored | None = None) -> None:
        self._as_stored = as_stored
        # transformers never forgets a registered function; the model must not stay alive with it
        attend = weakref.WeakMethod(self._attend)
        AttentionInterface.register(ATTENTION, partial(_attend_through, attend))
        AttentionMaskInterface.register(ATTENTION, _no_mask)
        self._model = twin(plain, ATTENTION)
        geometry = describe(plain)
        hybrid = geometry.hybrid
        self._sources = (*range(len(geometry.layers)), *geometry.sources)
        """For each decoder layer that attends, the layer of a cache that has its keys."""
        # without a configuration, all layers keep everything
        self._cache = DynamicCache() if hybrid is None else _hybrid_cache(self._model)
        self._attending = None if hybrid is None else hybrid.attending
        """Decoder layers that attend; None: all."""
        self._kept: Kept | None = None

    def feed(self, ids: Tensor, kept: Kept | None) -> Tensor:
        """Read (B, n) more tokens and return the logits (B, V) of the last one.

        Args:
            kept: positions to see among the tokens read so far; None: all.
        """
        self._kept = kept
        outputs = self._model(input_ids=ids, use_cache=True, **{CACHE: self._cache})
        logits: Tensor = outputs.logits[:, -1]
        return logits

    def _layers(self) -> list[Any]:
        """Return the cache's layers that hold keys and values."""
        layers: Any = self._cache.layers
        return list(layers) if self._attending is None else [layers[i] for i in self._attending]

    def take_quantised(self, cache: Cache) -> float:
        """Replace entries by their decoded values wherever `cache` stores them quantized.

        Returns:
            The largest distance of a segment's quantized keys or values from the entries here, as a
            share of their norm; 0 without quantized entries.
        """
        worst = 0.0
        for own, layer in zip(self._layers(), cache.cache_layers, strict=True):
            storage = layer.storage
            width, per = storage.layout.num_heads, storage.layout.segments_per_sequence
            for segment, count in enumerate(storage.num_quantized):
                if not count:
                    continue
                sequence, heads = (
                    segment // per,
                    slice(segment % per * width, (segment % per + 1) * width),
                )
                places = storage.positions(segment)[:count].long()
                read_back = storage.parts(segment)[0].decode(torch.float32)
                for mine, theirs in zip((own.keys, own.values), read_back, strict=True):
                    rows = mine[sequence, heads]  # (w, T, D), a view
                    before = rows[:, places].float()
                    distance = (theirs[0] - before).norm() / before.norm()
                    worst = max(worst, float(distance))
                    rows[:, places] = theirs[0].to(rows.dtype)
        return worst

    def take_decoded(self, decoded: Iterable[tuple[Tensor, Tensor]]) -> float:
        """Replace the first entries of every layer by decoded ones.

        Args:
            decoded: keys and values (B, H, t, D) of the first t tokens, of each layer.

        Returns:
            The largest distance of a head's keys or values from the entries here, as a share of
            their norm.
        """
        worst = 0.0
        for own, read_back in zip(self._layers(), decoded, strict=True):
            for mine, theirs in zip((own.keys, own.values), read_back, strict=True):
                first = mine[:, :, : theirs.shape[2]]  # a view
                before, found = first.double(), theirs.double()
                norms = before.norm(dim=(2, 3)).clamp(min=torch.finfo(torch.float32).tiny)
                distances = (found - before).norm(dim=(2, 3)) / norms
                worst = max(worst, float(distances.max()))
                first.copy_(theirs)
        return worst

    def _attend(
        self,
        module: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        scaling: float | None = None,
        sliding_window: int | None = None,
        s_aux: Tensor | None = None,
        **kwargs: Any,
    ) -> tuple[Tensor, None]:
        num_new, num_all = query.shape[2], key.shape[2]
        if self._as_stored is not None:
            # views into the cache
            new = key[:, :, num_all - num_new :], value[:, :, num_all - num_new :]
            for mine, theirs in zip(new, self._as_stored(*new), strict=True):
                mine.copy_(theirs)
        place = torch.arange(num_all, device=query.device)
        behind = place[num_all - num_new :, None] - place
        visible = behind >= 0
        if sliding_window is not None:
            visible &= behind < sliding_window
        visible = visible.expand(query.shape[0], key.shape[1], -1, -1)  # (B, H, n, T)
        if self._kept is not None:
            number = module.layer_idx
            if self._attending is not None:
                number = self._attending.index(number)
            kept = self._kept[self._sources[number]]
            visible = visible & self._held(kept, key, num_new)[:, :, None]
        if scaling is None:
            scaling = query.shape[-1] ** -0.5
        return attention_of(query, key, value, visible, scaling, s_aux).to(query.dtype), None

    @staticmethod
    def _held(kept: list[list[Tensor]], key: Tensor, num_new: int) -> Tensor:
        """Return (B, H, T) bool, True for stored entries and new tokens."""
        held = torch.zeros(key.shape[:3], dtype=torch.bool, device=key.device)
        held[..., key.shape[2] - num_new :] = True
        for sequence, heads in enumerate(kept):
            for head, positions in enumerate(heads):
                held[sequence, head, positions.to(key.device)] = True
        return held


def attention_of(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    visible: Tensor | None,
    scaling: float,
    sinks: Tensor | None,
) -> Tensor:
    """Compute softmax attention in float64.

    Args:
        query: (B, H * G, n, D).  key, value: (B, H, T, D).
        visible: (B, H, n, T) bool; None: all.
        sinks: (H * G,) logits that join the softmax.

    Returns:
        (B, n, H * G, D) float64.
    """
    outputs = []
    for b in range(query.shape[0]):  # one sequence after another: float64 is large
        q, k, v = query[b].double(), key[b].double(), value[b].double()
        grouped = q.view(k.shape[0], -1, *q.shape[1:])  # (H, G, n, D)
        logits = torch.einsum("hgnd,htd->hgnt", grouped, k) * scaling
        if visible is not None:
            logits = logits.masked_fill(~visible[b][:, None], -torch.inf)
        if sinks is not None:
            beside = sinks.double().view(*logits.shape[:2], 1, 1)
            logits = torch.cat([logits, beside.expand(*logits.shape[:3], 1)], dim=-1)
        weights = logits.softmax(dim=-1)[..., : k.shape[1]]
        outputs.append(torch.einsum("hgnt,htd->nhgd", weights, v).flatten(1, 2))
    return torch.stack(outputs)


def _attend_through(attend: "weakref.WeakMethod[Any]", *args: Any, **kwargs: Any) -> Any:
    method = attend()
    assert method is not None, "the judge lives as long as its model runs"
    return method(*args, **kwargs)


def _no_mask(*args: Any, **kwargs: Any) -> None:
    return None


def _hybrid_cache(model: Any) -> DynamicCache:
    """Return a cache of transformers for a hybrid."""
    cache = DynamicCache(config=model.config)
    make: Any = DynamicLayer
    cache.layers = [
        make() if isinstance(layer, DynamicSlidingWindowLayer) else layer for layer in cache.layers
    ]
    return cache
