"""Contenders of other libraries, and the reasons why some are missing."""

import contextlib
import copy
import importlib
import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from agentkv_tasks.bench.contenders.contender import (
    BASELINE,
    Contender,
    Transformers,
    pieces,
    rows_of,
    stored_bytes,
)
from agentkv_tasks.bench.contenders.models import twin
from agentkv_tasks.bench.errors import BenchError

AGAINST = (BASELINE, "static", "quantized", "kvpress", "llama.cpp")
"""Values of `--against`."""

_BACKENDS = {
    "fp8": "transformers",
    "quanto": "optimum.quanto",
    "hqq": "hqq",
}
"""Backends of transformers' QuantizedCache, and the module that each needs."""


def others(
    against: tuple[str, ...], plain: Any, *, chunk: int, budget: int | str | None
) -> tuple[list[Contender], list[str]]:
    """Make the baseline and the requested contenders, and a line for each that is missing.

    Args:
        plain: unmodified model with transformers' own attention.
        budget: entries per head for kvpress, which takes a number only.
    """
    found: list[Contender] = [Transformers(BASELINE, plain, chunk)]
    missing: list[str] = []
    if "static" in against:
        found.append(Transformers("static", plain, chunk, {"cache": "StaticCache"}))
    if "quantized" in against:
        for backend, module in _BACKENDS.items():
            label = f"quantized-{backend}"
            if not _is_here(module):
                missing.append(f"{label}: left out, {module} is not installed")
                continue
            try:
                parameters: dict[str, Any] = {"cache": "QuantizedCache", "backend": backend}
                found.append(Transformers(label, plain, chunk, parameters))
            except (ImportError, ValueError, TypeError) as error:
                missing.append(f"{label}: left out, {' '.join(str(error).split())}")
    if "kvpress" in against:
        if not _is_here("kvpress"):
            missing.append("kvpress: left out, it is not installed")
        elif not isinstance(budget, int):
            missing.append(f"kvpress: left out, it needs a number as budget, not {budget!r}")
        else:
            parameters = {
                "press": "SnapKVPress",
                "window_size": 32,
                "target_size": budget,
                "compression_interval": 64,
                "hidden_states_buffer_size": 64,
            }
            try:
                found.append(
                    Pressed(
                        "kvpress-snapkv", twin(plain, plain.config._attn_implementation), parameters
                    )
                )
            except (ImportError, AttributeError) as error:
                missing.append(f"kvpress: left out, {' '.join(str(error).split())}")
    if "llama.cpp" in against:
        own, left_out = _of_llama_cpp(plain)
        found += own
        missing += left_out
    return found, missing


def _of_llama_cpp(plain: Any) -> tuple[list[Contender], list[str]]:
    """Make the contenders of llama.cpp, which share their weights, and a line for each that is
    missing."""
    if not (_is_here("llama_cpp") and _is_here("gguf")):
        needs = "llama-cpp-python and gguf are not installed; pip install 'agentkv-web[llama-cpp]'"
        return [], [f"llama.cpp: left out, {needs}"]
    from agentkv_tasks.bench.contenders.llama_cpp import VARIANTS, LlamaCpp, Weights

    found: list[Contender] = []
    missing: list[str] = []
    try:
        weights = Weights(plain)
    except (BenchError, ImportError, OSError, RuntimeError) as error:
        return [], [f"llama.cpp: left out, {' '.join(str(error).split())}"]
    for label, variant in VARIANTS.items():
        try:
            found.append(LlamaCpp(label, plain, weights, variant))
        except BenchError as error:
            missing.append(f"{label}: left out, {error}")
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
            past_key_values=self.cache,
            use_cache=True,
            logits_to_keep=1,
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
