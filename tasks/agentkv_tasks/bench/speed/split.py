"""Where the time of a step goes: parts of the cache are wrapped from outside while it is asked.

Whoever is innermost is charged. What asking costs is measured on calls that do nothing and taken
off; between other work it costs somewhat more, which is why latencies are measured in rounds of
their own, and why the parts are rather too large than too small.
"""

import functools
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import MappingProxyType, ModuleType
from typing import Any, Self

from transformers import Cache as TransformersCache
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

import agentkv.cache.evict as evict_module
import agentkv.cache.forward as forward_module
from agentkv.cache.cache import Cache
from agentkv.cache.forward import ForwardCache
from agentkv.cache.keeper import Keeper
from agentkv.cache.lanes import Lanes
from agentkv.cache.ring import QueryRing
from agentkv.cache.view import View
from agentkv_kernels import ops
from agentkv_tasks.bench.speed.contenders import Contender, Ours

MODEL = "model"
"""Whatever is nobody else's."""

ENTRIES = ("attend", "attend_lanes", "attend_row")
"""Of the kernels."""

SUMS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "attention": ("attention",),
        "bookkeeping": ("append", "tracking", "gate", "scores", "entry"),
        "compaction": ("drop", "keep", "quantise"),
        MODEL: (MODEL,),
    }
)
"""The four that are shown, and what each is made of.

attention: the kernel alone; where one compiled call stores a token's row and query, attends and
moves the statistic, all of that. append: new rows and queries stored else, room made for them.
tracking: the statistics of rows else. gate: is anything due, and how sure is the model. scores:
what rows are worth and which of them stay. entry: checks and hooks around a forward, the rows
handed over. drop, keep: rows let go. quantise: rows encoded, blocks of them merged.
"""

KEEPING = ("bookkeeping", "compaction")
"""What a step spends on the cache beside attention."""


@dataclass(frozen=True, slots=True)
class Asking:
    """What it costs to watch a call, in seconds."""

    inside: float = 0.0
    """Charged to what is called."""
    outside: float = 0.0
    """Charged to what calls it."""

    @classmethod
    def here(cls, wait: Callable[[], None], *, num_calls: int = 500, num_rounds: int = 9) -> Self:
        """Measured now, on calls that do nothing: medians."""
        found = [_asking(wait, num_calls) for _ in range(num_rounds)]
        inside, outside = (statistics.median(each) for each in zip(*found, strict=True))
        return cls(max(0.0, inside), max(0.0, outside))


def _asking(wait: Callable[[], None], num_calls: int) -> tuple[float, float]:
    def repeat(work: Callable[[], None]) -> None:
        for _ in range(num_calls):
            work()

    def nothing() -> None:
        pass

    watch = Stopwatch(wait)
    asked = watch.wrapped(nothing, "inside")
    watch.wrapped(repeat, "plain")(nothing)
    watch.wrapped(repeat, "outside")(asked)
    seconds = watch.seconds
    return seconds["inside"] / num_calls, (seconds["outside"] - seconds["plain"]) / num_calls


class Stopwatch:
    """Seconds by name, each moment charged to the innermost of what is running.

    Args:
        wait: until the device is done, so that what was launched is charged to who launched it.
        asking: what is taken off for every call that was watched.
    """

    def __init__(self, wait: Callable[[], None], asking: Asking | None = None) -> None:
        self._wait, self._asking = wait, asking or Asking()
        self._names: list[str] = []
        self._since = 0.0
        self._charged: dict[str, float] = {}
        self._costs: dict[str, float] = {}

    @property
    def seconds(self) -> dict[str, float]:
        """Of each name, what asking costs taken off."""
        costs = self._costs
        return {name: max(0.0, s - costs.get(name, 0.0)) for name, s in self._charged.items()}

    def wrapped(self, work: Callable[..., Any], name: str) -> Callable[..., Any]:
        """`work`, charged to `name`."""

        @functools.wraps(work)
        def charged(*args: Any, **kwargs: Any) -> Any:
            self._charge()
            if self._names:
                self._cost(self._names[-1], self._asking.outside)
            self._cost(name, self._asking.inside)
            self._names.append(name)
            try:
                return work(*args, **kwargs)
            finally:
                self._charge()
                self._names.pop()

        return charged

    def _charge(self) -> None:
        self._wait()
        now = time.perf_counter()
        if self._names:
            name = self._names[-1]
            self._charged[name] = self._charged.get(name, 0.0) + now - self._since
        self._since = now

    def _cost(self, name: str, seconds: float) -> None:
        self._costs[name] = self._costs.get(name, 0.0) + seconds


@contextmanager
def watched(contender: Contender, watch: Stopwatch) -> Iterator[Callable[..., Any]]:
    """While this is open, `watch` is told of every part; gives the contender's `feed`, to be called
    in place of its own. All is as before afterwards."""
    undo: list[Callable[[], None]] = []

    def wrap(owner: Any, attribute: str, name: str) -> None:
        if isinstance(owner, type):
            # where it is defined, or it would stay where it was inherited
            owner = next(each for each in owner.__mro__ if attribute in vars(each))
        inner = vars(owner)[attribute]
        setattr(owner, attribute, watch.wrapped(inner, name))
        undo.append(lambda: setattr(owner, attribute, inner))

    try:
        if isinstance(contender, Ours):
            _wrap_ours(contender, wrap)
        else:
            wrap(TransformersCache, "update", "append")
            # sdpa is looked up among the library's, eager in the family's own module
            if contender.model.config._attn_implementation == "sdpa":
                inner = ALL_ATTENTION_FUNCTIONS["sdpa"]
                ALL_ATTENTION_FUNCTIONS["sdpa"] = watch.wrapped(inner, "attention")
                undo.append(lambda: _forget("sdpa"))
            else:
                family = sys.modules[type(contender.model).__module__]
                wrap(family, "eager_attention_forward", "attention")
        yield watch.wrapped(contender.feed, MODEL)
    finally:
        for each in reversed(undo):
            each()


@contextmanager
def noting_paths(found: set[str]) -> Iterator[None]:
    """While this is open, the implementations that attention is computed by are added to `found`.

    Told by the choice that `ops` makes at each call; nothing is added where it makes none.
    """
    depth = 0
    entries = [(module, name, vars(module)[name]) for module, name in _entries()]
    choose = vars(ops).get("chosen")

    def inside(work: Callable[..., Any], name: str) -> Callable[..., Any]:
        def counted(*args: Any, **kwargs: Any) -> Any:
            nonlocal depth
            if name == "attend_row":
                found.add("numba")  # nothing is chosen there: nobody else serves it
            depth += 1
            try:
                return work(*args, **kwargs)
            finally:
                depth -= 1

        return counted

    def noted(*args: Any, **kwargs: Any) -> Any:
        assert choose is not None
        name = choose(*args, **kwargs)
        if depth:
            found.add(name)
        return name

    try:
        for module, name, entry in entries:
            setattr(module, name, inside(entry, name))
        if choose is not None:
            vars(ops)["chosen"] = noted
        yield
    finally:
        for module, name, entry in entries:
            setattr(module, name, entry)
        if choose is not None:
            vars(ops)["chosen"] = choose


def _forget(name: str) -> None:
    ALL_ATTENTION_FUNCTIONS.pop(name)  # the one of the library stands behind it


def _entries() -> list[tuple[ModuleType, str]]:
    """Where the cache calls the kernels by: its modules, and the names in them."""
    modules = [
        sys.modules[name] for name in sorted(sys.modules) if name.startswith("agentkv.cache.")
    ]
    return [
        (module, name)
        for module in modules
        for name in ENTRIES
        if vars(module).get(name) is vars(ops)[name]
    ]


def _wrap_ours(contender: Ours, wrap: Callable[[Any, str, str], None]) -> None:
    policy = contender.policy
    for owner, attribute in (
        (ForwardCache, "check_input"),
        (ForwardCache, "note_ids"),
        (ForwardCache, "update"),
        (ForwardCache, "attend"),
        (ForwardCache, "finish"),
        (Cache, "settle"),
    ):
        wrap(owner, attribute, "entry")
    for module, name in _entries():
        wrap(module, name, "attention")
    wrap(Lanes, "append", "append")
    wrap(QueryRing, "append", "append")
    if policy.scorer.tracker is not None:
        wrap(type(policy.scorer.tracker), "update", "tracking")
    wrap(forward_module, "evict", "gate")
    if policy.gate.needs_logits:
        wrap(type(policy.gate), "confidence", "gate")
    wrap(View, "rows", "scores")
    wrap(evict_module, "_scores", "scores")
    wrap(type(policy.selector), "select", "scores")
    wrap(Lanes, "apply", "keep")
    wrap(evict_module, "drop_rows", "drop")
    wrap(evict_module, "keep_rows", "keep")
    wrap(Lanes, "drop", "drop")
    wrap(Lanes, "drop_before", "drop")
    wrap(Lanes, "quantise_to", "quantise")
    wrap(Lanes, "quantise", "quantise")
    wrap(Keeper, "store_by_rank", "quantise")
