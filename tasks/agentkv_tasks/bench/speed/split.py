"""The parts of a step's time, measured at public seams: module hooks, backends, and the call of the
compiled step.

A module hook sends a step through transformers. Compiled steps are therefore split without hooks,
into other parts. Steps of llama.cpp are not split.

Every moment is charged to the innermost frame. The cost of entering and leaving a frame is measured
on calls that do nothing, and subtracted. Between other work a frame costs somewhat more, so
latencies are measured in rounds of their own, and the parts are upper bounds.
"""

import functools
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Self

from torch import Tensor, nn

from agentkv.cache.hf.families import attentions
from agentkv.cache.hf.forward import COMPILED
from agentkv.cache.storage.backend import Backend
from agentkv.cache.storage.evictions import Eviction
from agentkv.cache.storage.layer_storage import LayerStorage
from agentkv.cache.storage.table import Run
from agentkv_tasks.bench.contenders.contender import Contender, Ours

ATTENTION, BOOKKEEPING, COMPACTION, MODEL = "attention", "bookkeeping", "compaction", "model"
STEP, PYTHON = "step", "python"

PARTS = (ATTENTION, BOOKKEEPING, COMPACTION, MODEL)
"""Parts of a step layer by layer.

attention: the attention modules without their projections: rotation, the update of the cache, and
attention itself. compaction: entries dropped and quantized. bookkeeping: everything outside of the
model's modules: checks, the gate, scores, and the choice of entries. model: all other modules.
"""

COMPILED_PARTS = (STEP, PYTHON, COMPACTION)
"""Parts of a compiled step.

step: the compiled call, which has all layers' projections, attention and statistics in it.
compaction: entries dropped and quantized. python: everything else: checks, preparing the call, the
gate, and the choice of entries.
"""

KEEPING = (BOOKKEEPING, COMPACTION)
"""Parts that a step spends on keeping the cache small."""


@dataclass(frozen=True, slots=True)
class FrameCost:
    """Seconds that it takes to enter and leave a frame."""

    inside: float = 0.0
    """Charged to the frame."""
    outside: float = 0.0
    """Charged to the enclosing frame."""

    @classmethod
    def measure(
        cls, wait: Callable[[], None], *, num_calls: int = 500, num_rounds: int = 9
    ) -> Self:
        """Return medians over calls that do nothing, measured now."""
        found = [_frame_cost(wait, num_calls) for _ in range(num_rounds)]
        inside, outside = (statistics.median(each) for each in zip(*found, strict=True))
        return cls(max(0.0, inside), max(0.0, outside))


def _frame_cost(wait: Callable[[], None], num_calls: int) -> tuple[float, float]:
    def repeat(work: Callable[[], None]) -> None:
        for _ in range(num_calls):
            work()

    def nothing() -> None:
        pass

    watch = SplitStopwatch(wait)
    framed = watch.wrapped(nothing, "inside")
    watch.wrapped(repeat, "plain")(nothing)
    watch.wrapped(repeat, "outside")(framed)
    seconds = watch.seconds
    return seconds["inside"] / num_calls, (seconds["outside"] - seconds["plain"]) / num_calls


class SplitStopwatch:
    """Seconds by name, each moment charged to the innermost frame.

    Args:
        wait: waits for the device, so that launched work is charged to the frame that launched it.
        cost: subtracted for every frame.
    """

    def __init__(self, wait: Callable[[], None], cost: FrameCost | None = None) -> None:
        self._wait, self._cost_of_frame = wait, cost or FrameCost()
        self._names: list[str] = []
        self._since = 0.0
        self._charged: dict[str, float] = {}
        self._costs: dict[str, float] = {}

    @property
    def seconds(self) -> dict[str, float]:
        """Seconds by name, with the cost of frames subtracted."""
        costs = self._costs
        return {name: max(0.0, s - costs.get(name, 0.0)) for name, s in self._charged.items()}

    def enter(self, name: str) -> None:
        """Charge what follows to `name`."""
        self._charge()
        if self._names:
            self._add_cost(self._names[-1], self._cost_of_frame.outside)
        self._add_cost(name, self._cost_of_frame.inside)
        self._names.append(name)

    def leave(self) -> None:
        """Charge what follows to the enclosing frame."""
        self._charge()
        self._names.pop()

    def wrapped(self, work: Callable[..., Any], name: str) -> Callable[..., Any]:
        """Return `work`, charged to `name`."""

        @functools.wraps(work)
        def charged(*args: Any, **kwargs: Any) -> Any:
            self.enter(name)
            try:
                return work(*args, **kwargs)
            finally:
                self.leave()

        return charged

    def _charge(self) -> None:
        self._wait()
        now = time.perf_counter()
        if self._names:
            name = self._names[-1]
            self._charged[name] = self._charged.get(name, 0.0) + now - self._since
        self._since = now

    def _add_cost(self, name: str, seconds: float) -> None:
        self._costs[name] = self._costs.get(name, 0.0) + seconds


def parts_of(decoding: str) -> tuple[str, ...]:
    """Return the parts of a step that is decoded in this way; empty if they cannot be seen."""
    if decoding == "llama.cpp":
        return ()
    return COMPILED_PARTS if decoding == COMPILED else PARTS


@contextmanager
def watched(contender: Contender, watch: SplitStopwatch) -> Iterator[Callable[..., Any]]:
    """Charge the parts of a contender's steps to `watch`; yield what to call in place of `feed`."""
    is_compiled = contender.decoding == COMPILED
    layers = contender.cache.cache_layers if isinstance(contender, Ours) else []
    backends = [layer.backend for layer in layers]
    try:
        # one per backend, so that layers are still served together
        timed = {backend: _TimedBackend(backend, watch) for backend in backends}
        for layer, backend in zip(layers, backends, strict=True):
            layer.use_backend(timed[backend])
        with _compiled_step(watch) if is_compiled else _modules(contender.model, watch):
            yield watch.wrapped(contender.feed, PYTHON if is_compiled else BOOKKEEPING)
    finally:
        for layer, backend in zip(layers, backends, strict=True):
            layer.use_backend(backend)


@contextmanager
def _modules(model: Any, watch: SplitStopwatch) -> Iterator[None]:
    attention = set(attentions(model, with_sharing=True))
    handles = []
    try:
        for module in model.modules():
            handles += _hooks(module, watch, ATTENTION if module in attention else MODEL)
        yield
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def _compiled_step(watch: SplitStopwatch) -> Iterator[None]:
    from agentkv.cache.step import TEAM  # needs Numba

    vars(TEAM)["lead"] = watch.wrapped(TEAM.lead, STEP)
    try:
        yield
    finally:
        del vars(TEAM)["lead"]


def _hooks(module: nn.Module, watch: SplitStopwatch, name: str) -> list[Any]:
    # first of the module's forward hooks: the cache's own ones are no work of the model
    return [
        module.register_forward_pre_hook(lambda module, args: watch.enter(name)),
        module.register_forward_hook(lambda module, args, output: watch.leave(), prepend=True),
    ]


class _TimedBackend(Backend):
    """Charges compaction to a stopwatch."""

    def __init__(self, inner: Backend, watch: SplitStopwatch) -> None:
        self.name, self._inner, self._watch = inner.name, inner, watch
        self.is_compiled = inner.is_compiled
        self.append_attend = inner.append_attend  # type: ignore[method-assign]
        self.attend = inner.attend  # type: ignore[method-assign]

    def drop(self, evictions: Iterable[Eviction], *, tidies: bool = True) -> None:
        self._watch.wrapped(self._inner.drop, COMPACTION)(evictions, tidies=tidies)

    def tidy(self, storage: LayerStorage) -> None:
        self._watch.wrapped(self._inner.tidy, COMPACTION)(storage)

    def drop_runs(self, storage: LayerStorage, runs: Sequence[Run]) -> None:
        self._watch.wrapped(self._inner.drop_runs, COMPACTION)(storage, runs)

    def drop_span(self, storage: LayerStorage, ranges: Sequence[Run]) -> None:
        self._watch.wrapped(self._inner.drop_span, COMPACTION)(storage, ranges)

    def quantize_oldest(self, storage: LayerStorage, recent: Sequence[int]) -> None:
        self._watch.wrapped(self._inner.quantize_oldest, COMPACTION)(storage, recent)

    def quantize(self, storage: LayerStorage, picks: Sequence[Tensor]) -> None:
        self._watch.wrapped(self._inner.quantize, COMPACTION)(storage, picks)
