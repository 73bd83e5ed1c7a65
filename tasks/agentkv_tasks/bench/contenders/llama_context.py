"""llama.cpp on a GGUF file, through the low-level interface of llama-cpp-python. Imports neither
torch nor transformers, so that a process that measures its memory holds neither.

Shapes: B sequences, V entries of the vocabulary.
"""

import ctypes
import importlib
import importlib.metadata
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from agentkv_tasks.bench.errors import BenchError

VARIANTS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "llama.cpp f16": {"cache": "f16", "flash_attention": True},
        "llama.cpp no-fa": {"cache": "f16", "flash_attention": False},
        "llama.cpp q8_0": {"cache": "q8_0", "flash_attention": True},
        "llama.cpp q4_0": {"cache": "q4_0", "flash_attention": True},
    }
)
"""Contenders, with the format of their entries and whether attention is llama.cpp's fused one,
which alone reads quantized values."""

BLOCKS = {"f16": (1, 2), "q8_0": (32, 34), "q4_0": (32, 18)}
"""Numbers of a block, and its bytes, by format."""

AT_ONCE = 512
"""Tokens that llama.cpp computes at once, its own default."""
CELLS = 256
"""llama.cpp pads its contexts to a multiple of this many tokens."""

_LOG = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)
_SILENT = _LOG(lambda level, text, data: None)
"""Must live as long as llama.cpp."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Sizes of a model, which the caller takes from its configuration."""

    head_dim: int
    numbers_per_token: int
    """Numbers in the entries of a token, in all layers."""
    vocabulary: int


class GgufWeights:
    """The model of a GGUF file in the memory of llama.cpp, freed with the last reference. The file
    is not needed afterwards.

    Raises:
        BenchError: llama.cpp does not take the file.
    """

    def __init__(self, path: Path) -> None:
        self.llama: Any = importlib.import_module("llama_cpp")
        self.llama.llama_log_set(_SILENT, None)
        self.llama.llama_backend_init()
        numbers = self.llama.llama_model_default_params()
        numbers.n_gpu_layers = 0
        # a mapped file would have to stay
        numbers.load_mode = self.llama.LLAMA_LOAD_MODE_NONE
        self.pointer = self.llama.llama_model_load_from_file(bytes(path), numbers)
        if not self.pointer:
            raise BenchError("llama.cpp does not load the file of this model")
        weakref.finalize(self, self.llama.llama_model_free, self.pointer)


@dataclass(slots=True)
class Context:
    """A context of llama.cpp, which keeps all tokens.

    Raises:
        BenchError: the heads do not fill the blocks of the format.
    """

    label: str
    """One of `VARIANTS`."""
    weights: GgufWeights = field(repr=False)
    sizes: Sizes
    num_threads: int = 1
    num_sequences: int = 1
    num_fed: int = 0
    """Tokens of each sequence."""
    _pointer: Any = field(default=None, repr=False)
    _batch: Any = field(default=None, repr=False)
    _arrays: dict[str, Any] = field(default_factory=dict, repr=False)
    """Arrays that `_batch` names."""

    def __post_init__(self) -> None:
        block, _ = BLOCKS[self.variant["cache"]]
        if self.sizes.head_dim % block:
            raise BenchError(
                f"heads must be a multiple of {block} numbers for entries in "
                f"{self.variant['cache']}; found {self.sizes.head_dim}"
            )

    @property
    def variant(self) -> Mapping[str, Any]:
        """Format of the entries, and the kind of attention."""
        return VARIANTS[self.label]

    @property
    def parameters(self) -> Mapping[str, Any]:
        """All parameters, and the version of llama-cpp-python."""
        version = importlib.metadata.version("llama-cpp-python")
        return {**self.variant, "n_ubatch": AT_ONCE, "llama-cpp-python": version}

    @property
    def live_bytes(self) -> int:
        """Bytes of the entries that are held; a context has reserved more."""
        numbers, size = BLOCKS[self.variant["cache"]]
        return self.sizes.numbers_per_token * self.num_fed * self.num_sequences * size // numbers

    def begin(self, room: int, batch: int = 1) -> None:
        """Start empty, for `batch` sequences of at most `room` tokens.

        Raises:
            BenchError: llama.cpp makes no such context.
        """
        self.end()
        llama = self.weights.llama
        numbers = llama.llama_context_default_params()
        # sequences have their own cells, as many each
        cells = batch * CELLS * -(-room // CELLS)
        numbers.n_ctx = numbers.n_batch = cells
        numbers.n_ubatch = min(AT_ONCE, cells)
        numbers.n_seq_max = numbers.n_outputs_max = batch
        numbers.n_threads = numbers.n_threads_batch = self.num_threads
        numbers.flash_attn_type = int(self.variant["flash_attention"])
        kind = getattr(llama, f"GGML_TYPE_{self.variant['cache'].upper()}")
        numbers.type_k = numbers.type_v = kind
        self._pointer = llama.llama_init_from_model(self.weights.pointer, numbers)
        if not self._pointer:
            raise BenchError(f"{self.label}: llama.cpp makes no context of {cells} tokens")
        self.num_sequences, self.num_fed = batch, 0
        self._prepare(cells)

    def feed(self, tokens: Sequence[int]) -> None:
        """Read as many more tokens of every sequence, one sequence after another.

        Raises:
            BenchError: llama.cpp could not read them.
        """
        num_new, batch, llama = len(tokens) // self.num_sequences, self._batch, self.weights.llama
        batch.n_tokens = len(tokens)
        self._arrays["token"][: len(tokens)] = tokens
        if self.num_sequences > 1:
            self._assign(num_new)
        code = llama.llama_decode(self._pointer, batch)
        if code:
            raise BenchError(
                f"{self.label}: llama.cpp could not read {num_new} tokens after {self.num_fed} "
                f"(its code {code})"
            )
        self.num_fed += num_new

    def logits(self, place: int = -1) -> "ctypes.Array[ctypes.c_float]":
        """Return the logits (V,) of the token at `place` of the latest tokens, of which the last
        one of each sequence has some; a view until the next ones are read."""
        # -1 is the last output, whose place is not told for a single sequence
        found = self.weights.llama.llama_get_logits_ith(
            self._pointer, place if self.num_sequences > 1 else -1
        )
        kind = ctypes.c_float * self.sizes.vocabulary
        return kind.from_address(ctypes.addressof(found.contents))

    def keep(self, count: int) -> None:
        """Forget all but the first `count` tokens of every sequence."""
        llama = self.weights.llama
        memory = llama.llama_get_memory(self._pointer)
        for sequence in range(self.num_sequences):
            llama.llama_memory_seq_rm(memory, sequence, count, -1)
        self.num_fed = count

    def end(self) -> None:
        """Free all memory."""
        if self._pointer:
            self.weights.llama.llama_free(self._pointer)
        self._pointer, self._batch, self._arrays = None, None, {}

    def _prepare(self, cells: int) -> None:
        """Make a batch whose arrays hold up to `cells` tokens."""
        own: dict[str, Any] = {"token": (ctypes.c_int32 * cells)()}
        if self.num_sequences > 1:
            # for a single sequence, llama.cpp fills in what is missing
            own["n_seq_id"] = (ctypes.c_int32 * cells)(*[1] * cells)
            own["seq_id"] = (ctypes.c_void_p * cells)()
            own["logits"] = (ctypes.c_int8 * cells)()
        self._arrays, self._batch = own, self.weights.llama.llama_batch()
        for name, kind in self._batch._fields_:
            if name in own:
                setattr(self._batch, name, ctypes.cast(own[name], kind))
        own["sequences"] = (ctypes.c_int32 * self.num_sequences)(*range(self.num_sequences))

    def _assign(self, num_new: int) -> None:
        """Give `num_new` tokens to every sequence, one sequence after another."""
        own, count = self._arrays, num_new * self.num_sequences
        first, size = ctypes.addressof(own["sequences"]), ctypes.sizeof(ctypes.c_int32)
        own["seq_id"][:count] = [first + size * (place // num_new) for place in range(count)]
        own["logits"][:count] = [int((place + 1) % num_new == 0) for place in range(count)]
