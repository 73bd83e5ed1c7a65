"""Who is timed: our cache under a policy, and what others would be used in its place.

Shapes: B sequences, n tokens, V entries of the vocabulary.
"""

import copy
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any, Protocol

from torch import Tensor

from agentkv.cache.cache import Cache
from agentkv.policies.policy import Policy

BASELINE = "transformers"
"""DynamicCache over SDPA, or eager attention where there is no SDPA: what all is compared with."""


class Contender(Protocol):
    """A cache that reads tokens, and can be taken back to a state that it once held."""

    @property
    def label(self) -> str: ...

    @property
    def kind(self) -> str:
        """Whose it is."""

    @property
    def parameters(self) -> Mapping[str, Any]: ...

    @property
    def model(self) -> Any: ...

    def begin(self, room: int) -> None:
        """Be empty, and hold no state; no more than `room` tokens of a sequence will be read."""

    def feed(self, ids: Tensor) -> Tensor:
        """Read (B, n) more; the logits (B, V) of the last one."""

    def hold(self) -> None:
        """Remember the state of now, and give its working memory back."""

    def resume(self) -> None:
        """Be in the state that is held."""

    def release(self) -> None:
        """Give the working memory back; the state held stays."""

    def end(self) -> None:
        """Give all memory back."""

    @property
    def live_bytes(self) -> int:
        """Of all storage, now."""

    @property
    def peak_bytes(self) -> int | None:
        """The most at any moment; None where nobody counts."""

    @property
    def num_rows(self) -> float:
        """Rows held now, mean over layers, sequences and heads."""


@dataclass(slots=True)
class Ours:
    """An `agentkv.Cache` under a policy; a gate that needs logits is given them at every step."""

    label: str
    parameters: Mapping[str, Any]
    policy: Policy
    model: Any = field(repr=False)
    budget: int | str | None
    chunk: int
    kind: str = "agentkv"
    cache: Cache = field(init=False)
    _held: Any = None

    def __post_init__(self) -> None:
        self.begin(1)  # a budget that cannot be is refused now

    def begin(self, room: int) -> None:
        self._held = None
        self.cache = Cache.for_model(
            self.model, policy=self.policy, budget=self.budget, chunk=self.chunk
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
    """A cache of transformers' own, read by its own attention."""

    label: str
    model: Any = field(repr=False)
    chunk: int
    parameters: Mapping[str, Any] = field(default_factory=dict)
    """Of a StaticCache or QuantizedCache, `cache` by name and its own; empty for a DynamicCache."""
    kind: str = "transformers"
    cache: Any = field(init=False, repr=False)
    _held: Any = field(default=None, repr=False)

    def __post_init__(self) -> None:
        self.begin(1)  # what is not installed is missed now

    @property
    def is_quantised(self) -> bool:
        return self.parameters.get("cache") == "QuantizedCache"

    def begin(self, room: int) -> None:
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

    def feed(self, ids: Tensor) -> Tensor:
        logits: Any = None
        for piece in pieces(ids, self.chunk):
            said = self.model(
                input_ids=piece, past_key_values=self.cache, use_cache=True, logits_to_keep=1
            )
            logits = said.logits[:, -1]
        assert isinstance(logits, Tensor), "no tokens to feed"
        return logits

    def hold(self) -> None:
        self._held, self.cache = self.cache, None

    def resume(self) -> None:
        self.cache = copy.deepcopy(self._held)

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
        if self.parameters:  # others hold room for more, or rows in two places
            return float(self.cache.get_seq_length())
        return rows_of(self.cache)


def pieces(ids: Tensor, size: int) -> list[Tensor]:
    """(B, n) as pieces of at most so many tokens each."""
    return [ids[:, start : start + size] for start in range(0, ids.shape[1], size)]


def rows_of(cache: Any) -> float:
    """Of a DynamicCache, mean over its layers."""
    counts = [layer.keys.shape[-2] for layer in cache.layers]
    return float(sum(counts) / len(counts))


def stored_bytes(cache: Any) -> int:
    """Of all tensors that the layers of a cache of transformers' hold, each storage once."""
    storages: dict[int, int] = {}
    for layer in cache.layers:
        for x in _tensors(list(vars(layer).values())):
            storage = x.untyped_storage()
            storages[storage.data_ptr()] = storage.nbytes()
    return sum(storages.values())


def _tensors(values: Iterable[Any]) -> Iterator[Tensor]:
    for value in values:
        if isinstance(value, Tensor):
            inner = [getattr(value, name) for name in ("_data", "_scale") if hasattr(value, name)]
            # tensors of optimum-quanto are made of others
            yield from _tensors(inner) if inner else (value,)
        elif isinstance(value, list | tuple):
            yield from _tensors(value)
        elif isinstance(value, dict):
            yield from _tensors(value.values())
