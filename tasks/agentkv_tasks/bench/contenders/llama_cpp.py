"""llama.cpp as a contender, through the low-level interface of llama-cpp-python.

Shapes: B sequences, n tokens, V entries of the vocabulary.
"""

import ctypes
import importlib
import importlib.metadata
import tempfile
import weakref
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from agentkv.cache.hf.families import describe
from agentkv_tasks.bench.contenders.gguf_file import require_writable, write_gguf
from agentkv_tasks.bench.errors import BenchError

VARIANTS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "llama.cpp f16": {"cache": "f16", "flash_attention": True},
        "llama.cpp no-fa": {"cache": "f16", "flash_attention": False},
        "llama.cpp q8_0": {"cache": "q8_0", "flash_attention": True},
    }
)
"""Contenders, with the format of their entries and whether attention is llama.cpp's fused one,
which alone reads quantized values."""

BLOCKS = {"f16": (1, 2), "q8_0": (32, 34)}
"""Numbers of a block, and its bytes, by format."""

AT_ONCE = 512
"""Tokens that llama.cpp computes at once, its own default."""
CELLS = 256
"""llama.cpp pads its contexts to a multiple of so many tokens."""

_LOG = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)
_SILENT = _LOG(lambda level, text, data: None)
"""Must live as long as llama.cpp."""


class Weights:
    """A model in the memory of llama.cpp, freed with the last reference.

    The file that it is read from is gone afterwards.

    Args:
        model: model of transformers on the CPU; it is not changed.

    Raises:
        BenchError: the model cannot be written, or llama.cpp does not take it.
        OSError: there is no room for the file.
    """

    def __init__(self, model: Any) -> None:
        require_writable(model)
        self.llama: Any = importlib.import_module("llama_cpp")
        self.llama.llama_log_set(_SILENT, None)
        self.llama.llama_backend_init()
        numbers = self.llama.llama_model_default_params()
        numbers.n_gpu_layers = 0
        # a mapped file would have to stay
        numbers.load_mode = self.llama.LLAMA_LOAD_MODE_NONE
        with tempfile.TemporaryDirectory(prefix="agentkv-") as folder:
            path = Path(folder) / "model.gguf"
            write_gguf(model, path)
            self.pointer = self.llama.llama_model_load_from_file(bytes(path), numbers)
        if not self.pointer:
            raise BenchError("llama.cpp does not load the file of this model")
        weakref.finalize(self, self.llama.llama_model_free, self.pointer)


@dataclass(slots=True)
class LlamaCpp:
    """A context of llama.cpp. It keeps all tokens, and returns to a saved state by removing what
    came after it."""

    label: str
    model: Any = field(repr=False)
    weights: Weights = field(repr=False)
    variant: Mapping[str, Any]
    """One of `VARIANTS`."""
    parameters: Mapping[str, Any] = field(init=False)
    kind: str = "llama.cpp"
    decoding: str = "llama.cpp"
    _context: Any = field(default=None, repr=False)
    _batch: Any = field(default=None, repr=False)
    _buffers: Mapping[str, Tensor] = field(default_factory=dict, repr=False)
    """Arrays that `_batch` names."""
    _num_sequences: int = 1
    _num_fed: int = 0
    """Tokens of each sequence."""
    _num_held: int = 0

    def __post_init__(self) -> None:
        head_dim = describe(self.model).layers[0].head_dim
        block, _ = BLOCKS[self.variant["cache"]]
        if head_dim % block:
            raise BenchError(
                f"heads must be a multiple of {block} numbers for entries in "
                f"{self.variant['cache']}; found {head_dim}"
            )
        version = importlib.metadata.version("llama-cpp-python")
        self.parameters = {**self.variant, "n_ubatch": AT_ONCE, "llama-cpp-python": version}

    def begin(self, room: int, batch: int = 1) -> None:
        self.end()
        llama = self.weights.llama
        numbers = llama.llama_context_default_params()
        # sequences have their own cells, as many each
        cells = batch * CELLS * -(-room // CELLS)
        numbers.n_ctx = numbers.n_batch = cells
        numbers.n_ubatch = min(AT_ONCE, cells)
        numbers.n_seq_max = numbers.n_outputs_max = batch
        numbers.n_threads = numbers.n_threads_batch = torch.get_num_threads()
        numbers.flash_attn_type = int(self.variant["flash_attention"])
        kind = getattr(llama, f"GGML_TYPE_{self.variant['cache'].upper()}")
        numbers.type_k = numbers.type_v = kind
        self._context = llama.llama_init_from_model(self.weights.pointer, numbers)
        if not self._context:
            raise BenchError(f"{self.label}: llama.cpp makes no context of {cells} tokens")
        self._num_sequences, self._num_fed, self._num_held = batch, 0, 0
        self._prepare(cells)

    def feed(self, ids: Tensor) -> Tensor:
        num_new, batch, llama = ids.shape[1], self._batch, self.weights.llama
        batch.n_tokens = ids.numel()
        self._buffers["token"][: ids.numel()] = ids.flatten()
        if self._num_sequences > 1:
            self._assign(num_new)
        code = llama.llama_decode(self._context, batch)
        if code:
            raise BenchError(
                f"{self.label}: llama.cpp could not read {num_new} tokens after {self._num_fed} "
                f"(its code {code})"
            )
        self._num_fed += num_new
        return torch.stack(
            [self._logits(num_new * (row + 1) - 1) for row in range(self._num_sequences)]
        )

    def hold(self) -> None:
        self._num_held = self._num_fed

    def resume(self) -> None:
        llama = self.weights.llama
        memory = llama.llama_get_memory(self._context)
        for sequence in range(self._num_sequences):
            llama.llama_memory_seq_rm(memory, sequence, self._num_held, -1)
        self._num_fed = self._num_held

    def release(self) -> None:
        self.resume()

    def end(self) -> None:
        if self._context:
            self.weights.llama.llama_free(self._context)
        self._context, self._batch, self._buffers = None, None, {}

    @property
    def live_bytes(self) -> int:
        """Bytes of the entries that are held; a context has reserved more."""
        numbers, size = BLOCKS[self.variant["cache"]]
        per_token = sum(
            2 * layer.num_heads * layer.head_dim for layer in describe(self.model).layers
        )
        return per_token * self._num_fed * self._num_sequences * size // numbers

    @property
    def peak_bytes(self) -> int | None:
        return None

    @property
    def num_rows(self) -> float:
        return float(self._num_fed)

    def _prepare(self, cells: int) -> None:
        """Make a batch whose arrays hold up to `cells` tokens."""
        own = {"token": torch.zeros(cells, dtype=torch.int32)}
        if self._num_sequences > 1:
            # for a single sequence, llama.cpp fills in what is missing
            own["n_seq_id"] = torch.ones(cells, dtype=torch.int32)
            own["seq_id"] = torch.zeros(cells, dtype=torch.int64)
            own["logits"] = torch.zeros(cells, dtype=torch.int8)
        self._buffers, self._batch = own, self.weights.llama.llama_batch()
        for name, kind in self._batch._fields_:
            if name in own:
                setattr(self._batch, name, ctypes.cast(own[name].data_ptr(), kind))
        self._buffers["sequences"] = torch.arange(self._num_sequences, dtype=torch.int32)

    def _assign(self, num_new: int) -> None:
        """Give `num_new` tokens to every sequence, one sequence after another."""
        own, count = self._buffers, num_new * self._num_sequences
        names = own["sequences"]
        addresses = names.data_ptr() + names.element_size() * names.long()
        own["seq_id"][:count] = addresses.repeat_interleave(num_new)
        own["logits"][:count] = 0
        own["logits"][num_new - 1 : count : num_new] = 1

    def _logits(self, place: int) -> Tensor:
        """Return a copy of the logits (V,) of the token at `place` of the latest batch."""
        # -1 is the last output, whose place is not told for a single sequence
        found = self.weights.llama.llama_get_logits_ith(
            self._context, place if self._num_sequences > 1 else -1
        )
        count = self.model.lm_head.weight.shape[0]
        row = (ctypes.c_float * count).from_address(ctypes.addressof(found.contents))
        return torch.frombuffer(row, dtype=torch.float32).clone()
