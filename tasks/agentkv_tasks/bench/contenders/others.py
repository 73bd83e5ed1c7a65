"""Contenders of other libraries, and the reasons why some are missing."""

import contextlib
import copy
import importlib
import importlib.util
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from agentkv.cache.hf.compat import CACHE
from agentkv.cache.hf.families import describe
from agentkv_tasks.bench.contenders.contender import (
    BASELINE,
    Contender,
    Transformers,
    pieces,
    rows_of,
    stored_bytes,
)
from agentkv_tasks.bench.contenders.left_out import line
from agentkv_tasks.bench.contenders.llama_context import VARIANTS
from agentkv_tasks.bench.contenders.models import form_of, twin
from agentkv_tasks.bench.errors import BenchError

AGAINST = (BASELINE, "static", "quantized", "kvpress", "llama.cpp")
"""Values of `--against`, beside single `LABELS`."""

_ALONG_0: Mapping[str, int] = {"axis_key": 0, "axis_value": 0}
_ALONG_1: Mapping[str, int] = {"axis_key": 1, "axis_value": 1}
_QUANTIZED: Mapping[str, tuple[str, str, Mapping[str, Any]]] = MappingProxyType(
    {
        "transformers fp8": ("transformers", "transformers", {"backend": "fp8"}),
        "quanto int4": (
            "optimum.quanto",
            "optimum-quanto",
            {"backend": "quanto", "nbits": 4, **_ALONG_0},
        ),
        "quanto int8": (
            "optimum.quanto",
            "optimum-quanto",
            {"backend": "quanto", "nbits": 8, **_ALONG_0},
        ),
        "hqq int4": ("hqq", "hqq", {"backend": "hqq", "nbits": 4, **_ALONG_1}),
        "hqq int8": ("hqq", "hqq", {"backend": "hqq", "nbits": 8, **_ALONG_1}),
    }
)
"""Contenders with transformers' QuantizedCache: the module that each needs, its package, and its
parameters. Axes are those that transformers' documentation recommends ("KV cache strategies"), the
rest has its defaults."""

PRESSED = "kvpress-snapkv"
"""Label of kvpress."""

LABELS = (BASELINE, "static", *_QUANTIZED, PRESSED, *VARIANTS)
"""Labels of all contenders of other libraries."""

_PRESSED: Mapping[str, Any] = MappingProxyType(
    {
        "press": "SnapKVPress",
        "window_size": 32,
        "compression_interval": 64,
        "hidden_states_buffer_size": 64,
    }
)
"""Parameters of kvpress, without the budget."""


def others(
    against: tuple[str, ...],
    plain: Any,
    *,
    chunk: int,
    budget: int | str | None,
    served: Any = None,
    file: Path | None = None,
) -> tuple[list[Contender], list[str]]:
    """Make the baseline and the requested contenders, and a line for each that is missing.

    Args:
        plain: unmodified model with transformers' own attention.
        budget: entries per head for kvpress, which takes a number only.
        served: the model whose weights llama.cpp reads; None: `plain`.
        file: a GGUF file with these weights; None: one is written.
    """
    found: list[Contender] = []
    missing: list[str] = []
    for label, make in _in_torch(against, plain, chunk, budget).items():
        try:
            found.append(make())
        except _REFUSED as error:
            missing.append(line(label, error))
    labels = [label for label in VARIANTS if {"llama.cpp", label} & set(against)]
    if labels:
        own, left_out = _of_llama_cpp(plain, labels, plain if served is None else served, file)
        found += own
        missing += left_out
    return found, missing


def other(
    label: str, against: tuple[str, ...], plain: Any, *, chunk: int, budget: int | str | None
) -> Contender:
    """Make one contender that `others` has made from the same arguments, but none of llama.cpp."""
    return _in_torch(against, plain, chunk, budget)[label]()


_REFUSED = (
    *(ImportError, AttributeError, ValueError, TypeError, RuntimeError, OSError),
    *(AssertionError, LookupError, ArithmeticError),
)
"""Exceptions of other libraries that do not support the model or the machine."""


def _in_torch(
    against: tuple[str, ...], plain: Any, chunk: int, budget: int | str | None
) -> dict[str, Callable[[], Contender]]:
    """Return what makes each requested contender that runs the model in torch, by label."""
    makers: dict[str, Callable[[], Contender]] = {
        BASELINE: partial(Transformers, BASELINE, plain, chunk)
    }
    if "static" in against:
        makers["static"] = partial(Transformers, "static", plain, chunk, {"cache": "StaticCache"})
    for label in _QUANTIZED:
        if {"quantized", label} & set(against):
            makers[label] = partial(_quantized, label, plain, chunk)
    if {"kvpress", PRESSED} & set(against):
        makers[PRESSED] = partial(_pressed, plain, budget)
    return makers


def _quantized(label: str, plain: Any, chunk: int) -> Contender:
    module, package, parameters = _QUANTIZED[label]
    if not _is_here(module):
        raise BenchError(f"{module} is not installed; pip install {package}")
    made = Transformers(label, plain, chunk, {"cache": "QuantizedCache", **parameters})
    # what a backend lacks on this machine is often seen only when it decodes
    shape = describe(plain).layers[0]
    layer, some = made.cache.layers[0], torch.ones(1, shape.num_heads, 64, shape.head_dim)
    some = some.to(plain.device, plain.dtype)
    for _ in range(2):
        layer.update(some, some)
    return made


def _pressed(plain: Any, budget: int | str | None) -> Contender:
    if not _is_here("kvpress"):
        raise BenchError("it is not installed; pip install kvpress")
    if not isinstance(budget, int):
        raise BenchError(f"it needs a number as budget, not {budget!r}")
    model = twin(plain, plain.config._attn_implementation)
    return Pressed(PRESSED, model, {**_PRESSED, "target_size": budget})


def _of_llama_cpp(
    plain: Any, labels: Iterable[str], served: Any, file: Path | None
) -> tuple[list[Contender], list[str]]:
    """Make the contenders of llama.cpp, which share their weights, and a line for each that is
    missing."""
    if not (_is_here("llama_cpp") and _is_here("gguf")):
        needs = "llama-cpp-python and gguf are not installed; pip install 'agentkv-web[llama-cpp]'"
        return [], [f"llama.cpp: left out, {needs}"]
    from agentkv_tasks.bench.contenders.llama_cpp import LlamaCpp, form_in_file, weights_of

    found: list[Contender] = []
    missing: list[str] = []
    try:
        weights = weights_of(served, file)
    except _REFUSED as error:
        return [], [line("llama.cpp", error)]
    for label in labels:
        try:
            found.append(LlamaCpp(label, plain, weights, form_in_file(served)))
        except BenchError as error:
            missing.append(line(label, error))
    return found, missing


def _is_here(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


@dataclass(slots=True)
class Pressed:
    """kvpress's `DecodingPress` around another press, with a DynamicCache.

    The press evicts only while decoding. The first input is therefore fed at once except for its
    last tokens, which are fed one by one until the press has acted once.
    """

    label: str
    model: Any = field(repr=False)
    parameters: Mapping[str, Any]
    """Class name (`press`) and `window_size` of the inner press, and parameters of the
    DecodingPress."""
    kind: str = "kvpress"
    decoding: str = "transformers"
    cache: Any = field(init=False, repr=False)
    press: Any = field(init=False, repr=False)
    _hooks: contextlib.ExitStack | None = field(default=None, repr=False)
    _num_fed: int = 0
    _held: Any = field(default=None, repr=False)

    def __post_init__(self) -> None:
        self.begin(1)

    @property
    def form(self) -> str:
        return form_of(self.model)

    def begin(self, room: int, batch: int = 1) -> None:
        from transformers import DynamicCache

        self.release()
        kvpress = importlib.import_module("kvpress")
        numbers = dict(self.parameters)
        kind, window = getattr(kvpress, numbers.pop("press")), numbers.pop("window_size")
        base = kind(window_size=window)
        self.press, self._num_fed, self._held = kvpress.DecodingPress(base, **numbers), 0, None
        self.cache = DynamicCache(config=self.model.config)

    def feed(self, ids: Tensor) -> Tensor:
        if self._hooks is None:
            self._hooks = contextlib.ExitStack()
            self._hooks.enter_context(self.press(self.model))
        alone = min(ids.shape[1], self.parameters["compression_interval"])
        if self._num_fed:
            alone = ids.shape[1]
        at_once, one_by_one = ids[:, : ids.shape[1] - alone], ids[:, ids.shape[1] - alone :]
        logits: Any = None
        for piece in (at_once, *pieces(one_by_one, 1)):
            if piece.shape[1]:
                logits = self._read(piece)
        assert isinstance(logits, Tensor), "no tokens to feed"
        return logits

    def _read(self, ids: Tensor) -> Tensor:
        # the cache is shorter than the stream, so positions must be given
        places = torch.arange(self._num_fed, self._num_fed + ids.shape[1], device=ids.device)
        self._num_fed += ids.shape[1]
        outputs = self.model(
            input_ids=ids,
            position_ids=places[None],
            use_cache=True,
            logits_to_keep=1,
            **{CACHE: self.cache},
        )
        logits: Tensor = outputs.logits[:, -1]
        return logits

    def hold(self) -> None:
        self._held = (self.cache, self.press, self._num_fed)
        self.release()

    def resume(self) -> None:
        self.release()
        cache, press, self._num_fed = self._held
        # the press counts its steps and holds hidden states
        self.cache, self.press = copy.deepcopy(cache), copy.deepcopy(press)

    def release(self) -> None:
        if self._hooks is not None:
            self._hooks.close()
        self._hooks, self.cache, self.press = None, None, None

    def end(self) -> None:
        self.release()
        self._held = None

    @property
    def live_bytes(self) -> int:
        return stored_bytes(self.cache)

    @property
    def peak_bytes(self) -> int | None:
        return None

    @property
    def num_rows(self) -> float:
        return rows_of(self.cache)
