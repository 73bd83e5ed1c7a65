"""Contenders of the benchmarks: agentkv's cache under a policy, and transformers' caches.

Shapes: B sequences, n tokens, V entries of the vocabulary.
"""

import copy
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any, Protocol

import torch
from torch import Tensor
from transformers.cache_utils import DynamicLayer

from agentkv.cache.cache import Cache
from agentkv.cache.hf.compat import CACHE
from agentkv.cache.hf.forward import COMPILED, decoding
from agentkv.policies.policy import Policy
from agentkv.policies.recall import LookBack
from agentkv_tasks.bench.contenders.models import form_of

BASELINE = "transformers"
"""Label of the baseline: DynamicCache with SDPA, or eager attention for models without SDPA."""


class Contender(Protocol):
    """A cache that reads tokens and can return to a saved state."""

    @property
    def label(self) -> str:
        """Name in rows."""
        ...

    @property
    def kind(self) -> str:
        """Library of the cache."""

    @property
    def parameters(self) -> Mapping[str, Any]:
        """All parameters of the cache."""
        ...

    @property
    def model(self) -> Any:
        """Model that the cache belongs to."""
        ...

    @property
    def form(self) -> str:
        """Formats of the weights, or their dtype."""
        ...

    @property
    def decoding(self) -> str:
        """`COMPILED` if the next token takes one compiled call; else the library that runs the
        model, and for agentkv the reason."""
        ...

    def begin(self, room: int, batch: int = 1) -> None:
        """Start empty and without a saved state, for `batch` sequences of at most `room` tokens."""

    def feed(self, ids: Tensor) -> Tensor:
        """Read (B, n) more tokens and return the logits (B, V) of the last one."""

    def hold(self) -> None:
        """Save the current state and free the working memory."""

    def resume(self) -> None:
        """Return to the saved state."""

    def release(self) -> None:
        """Free the working memory, not the saved state."""

    def end(self) -> None:
        """Free all memory."""

    @property
    def live_bytes(self) -> int:
        """Current bytes of all storage."""

    @property
    def peak_bytes(self) -> int | None:
        """Peak bytes of all storage; None if the cache does not report it."""

    @property
    def num_rows(self) -> float:
        """Current entries, mean over layers, sequences and heads."""


@dataclass(slots=True)
class Ours:
    """An `agentkv.Cache` under a policy; `feed` applies the gate at every step."""

    label: str
    parameters: Mapping[str, Any]
    policy: Policy
    model: Any = field(repr=False)
    budget: int | str | None
    chunk: int
    dtype: str | None = None
    """Dtype of entries that are not quantized; None: the model's."""
    kind: str = "agentkv"
    cache: Cache = field(init=False)
    _held: Any = None

    def __post_init__(self) -> None:
        self.begin(1)  # refuses an impossible budget now

    @property
    def decoding(self) -> str:
        way = decoding(self.model)
        if way != COMPILED or self.cache.can_step(1):
            return way
        return "torch: compiled code does not read its entries"

    @property
    def form(self) -> str:
        return form_of(self.model)

    @property
    def entry_dtype(self) -> torch.dtype:
        """Dtype of entries that are not quantized."""
        found: torch.dtype = self.cache.dtype or self.model.dtype
        return found

    def begin(self, room: int, batch: int = 1) -> None:
        self._held = None
        self.cache = Cache.for_model(
            self.model, policy=self.policy, budget=self.budget, chunk=self.chunk, dtype=self.dtype
        )

    def feed(self, ids: Tensor) -> Tensor:
        return self.cache.feed(self.model, ids)

    def hold(self) -> None:
        self._held = self.cache.snapshot()
        self.cache.reset()

    def resume(self) -> None:
        self.cache.restore(self._held)

    def release(self) -> None:
        self.cache.reset()

    def end(self) -> None:
        self._held = None
        self.cache.reset()

    @property
    def looks_back(self) -> bool:
        """True if tokens may look back."""
        return isinstance(self.policy.recall, LookBack)

    @property
    def live_bytes(self) -> int:
        return self.cache.nbytes

    @property
    def peak_bytes(self) -> int | None:
        return self.cache.peak_nbytes

    @property
    def num_rows(self) -> float:
        storages = [layer.storage for layer in self.cache.cache_layers]
        return fmean(sum(each.counts) / each.num_segments for each in storages)


@dataclass(slots=True)
class Transformers:
    """A cache of transformers with transformers' own attention."""

    label: str
    model: Any = field(repr=False)
    chunk: int
    parameters: Mapping[str, Any] = field(default_factory=dict)
    """Class name (`cache`) and parameters of a StaticCache or QuantizedCache; empty for a
    DynamicCache."""
    kind: str = "transformers"
    decoding: str = "transformers"
    cache: Any = field(init=False, repr=False)
    _held: Any = field(default=None, repr=False)

    def __post_init__(self) -> None:
        self.begin(1)  # raises now if a backend is not installed

    @property
    def form(self) -> str:
        return form_of(self.model)

    @property
    def is_quantised(self) -> bool:
        """True for a QuantizedCache."""
        return self.parameters.get("cache") == "QuantizedCache"

    def begin(self, room: int, batch: int = 1) -> None:
        from transformers import DynamicCache, QuantizedCache, StaticCache

        numbers, config = dict(self.parameters), self.model.config
        kind = numbers.pop("cache", None)
        self._held = None
        if kind == "QuantizedCache":
            self.cache = QuantizedCache(config=config, **numbers)
        elif kind == "StaticCache":
            self.cache = StaticCache(config=config, max_cache_len=room, **numbers)
        else:
            self.cache = DynamicCache(config=config)

    def decoded(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the quantized keys and values (B, H, t, D) of each layer of a QuantizedCache,
        decoded; they are the first t tokens."""
        for layer in self.cache.layers:
            keys, values = layer._quantized_keys, layer._quantized_values
            yield layer._dequantize(keys), layer._dequantize(values)

    def feed(self, ids: Tensor) -> Tensor:
        logits: Any = None
        for piece in pieces(ids, self.chunk):
            outputs = self.model(
                input_ids=piece, use_cache=True, logits_to_keep=1, **{CACHE: self.cache}
            )
            logits = outputs.logits[:, -1]
        assert isinstance(logits, Tensor), "no tokens to feed"
        return logits

    def hold(self) -> None:
        self._held, self.cache = self.cache, None

    def resume(self) -> None:
        # quantized entries are replaced, never written to, and quanto's tensors cannot be copied
        layers = self._held.layers if self.is_quantised else ()
        same = [x for layer in layers for x in (layer._quantized_keys, layer._quantized_values)]
        self.cache = copy.deepcopy(self._held, {id(x): x for x in same})

    def release(self) -> None:
        self.cache = None

    def end(self) -> None:
        self._held, self.cache = None, None

    @property
    def live_bytes(self) -> int:
        return stored_bytes(self.cache)

    @property
    def peak_bytes(self) -> int | None:
        return None

    @property
    def num_rows(self) -> float:
        if self.parameters:  # these reserve capacity, or hold entries in two places
            return float(self.cache.get_seq_length())
        return rows_of(self.cache)


def cold_bytes(contender: Contender) -> int:
    """Return the bytes of a contender's cold tier and its index; only agentkv has one."""
    if not isinstance(contender, Ours):
        return 0
    return contender.cache.cold_nbytes + contender.cache.index_nbytes


def pieces(ids: Tensor, size: int) -> list[Tensor]:
    """Split (B, n) into pieces of at most `size` tokens."""
    return [ids[:, start : start + size] for start in range(0, ids.shape[1], size)]


def rows_of(cache: Any) -> float:
    """Return the entries of a DynamicCache, mean over its layers that attend."""
    layers = [layer for layer in cache.layers if isinstance(layer, DynamicLayer)]
    counts = [layer.keys.shape[-2] for layer in layers if layer.keys is not None]
    return float(sum(counts) / len(counts))


def stored_bytes(cache: Any) -> int:
    """Return the bytes of all tensors in the layers of a transformers cache, each storage once."""
    storages: dict[int, int] = {}
    for layer in cache.layers:
        for x in _tensors(list(vars(layer).values())):
            storage = x.untyped_storage()
            storages[storage.data_ptr()] = storage.nbytes()
    return sum(storages.values())


def _tensors(values: Iterable[Any]) -> Iterator[Tensor]:
    for value in values:
        if isinstance(value, Tensor):
            # tensors of optimum-quanto consist of other tensors
            names = ("_data", "_scale", "_shift")
            inner = [getattr(value, name) for name in names if hasattr(value, name)]
            yield from _tensors(inner) if inner else (value,)
        elif isinstance(value, list | tuple):
            yield from _tensors(value)
        elif isinstance(value, dict):
            yield from _tensors(value.values())
