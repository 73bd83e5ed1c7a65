"""llama.cpp as a contender.

Shapes: B sequences, n tokens, V entries of the vocabulary.
"""

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from agentkv.cache.hf.families import describe
from agentkv_tasks.bench.contenders.gguf_file import (
    ARCHITECTURES,
    FORMATS,
    require_writable,
    write_gguf,
)
from agentkv_tasks.bench.contenders.llama_context import Context, GgufWeights, Sizes
from agentkv_tasks.bench.contenders.llama_format import stored
from agentkv_tasks.bench.contenders.models import form_of
from agentkv_tasks.bench.host import dtype_name


def weights_of(model: Any, file: Path | None = None) -> GgufWeights:
    """Let llama.cpp read a model of transformers on the CPU from a file.

    Args:
        file: where the model is from; None: a file is written and gone afterwards.

    Raises:
        BenchError: the model cannot be written, or llama.cpp does not take it.
        OSError: there is no room for the file.
    """
    if file is not None:
        return GgufWeights(file)
    require_writable(model)
    with tempfile.TemporaryDirectory(prefix="agentkv-") as folder:
        path = Path(folder) / "model.gguf"
        write_gguf(model, path)
        return GgufWeights(path)


def form_in_file(model: Any) -> str:
    """Return the formats of a model's weights as GGUF names them."""
    form = form_of(model)
    return FORMATS[model.dtype] if form == dtype_name(model) else form


def sizes_of(model: Any) -> Sizes:
    """Return what a context must know of a model."""
    layers = describe(model).layers
    return Sizes(
        head_dim=layers[0].head_dim,
        numbers_per_token=sum(2 * layer.num_heads * layer.head_dim for layer in layers),
        vocabulary=model.lm_head.weight.shape[0],
    )


@dataclass(slots=True)
class LlamaCpp:
    """A context of llama.cpp. It keeps all tokens, and returns to a saved state by removing what
    came after it.

    Raises:
        BenchError: the heads of the model do not fill the blocks of the format.
    """

    label: str
    """One of `VARIANTS`."""
    model: Any = field(repr=False)
    weights: GgufWeights = field(repr=False)
    """Weights of `model`."""
    form: str
    kind: str = "llama.cpp"
    decoding: str = "llama.cpp"
    _context: Context = field(init=False, repr=False)
    _num_held: int = 0

    def __post_init__(self) -> None:
        self._context = Context(self.label, self.weights, sizes_of(self.model))

    @property
    def parameters(self) -> Mapping[str, Any]:
        return self._context.parameters

    def begin(self, room: int, batch: int = 1) -> None:
        self._num_held = 0
        self._context.num_threads = torch.get_num_threads()
        self._context.begin(room, batch)

    def feed(self, ids: Tensor) -> Tensor:
        batch, num_new = ids.shape
        self._context.feed(ids.flatten().tolist())
        rows = [self._context.logits(num_new * (row + 1) - 1) for row in range(batch)]
        return torch.stack([torch.frombuffer(row, dtype=torch.float32) for row in rows])

    def as_stored(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Return keys and values (B, H, n, D) as llama.cpp reads them back; 16 bits are left as
        they are."""
        form = self._context.variant["cache"]
        if form == "f16":
            return keys, values
        is_interleaved = ARCHITECTURES.get(self.model.config.model_type) == "llama"
        return stored(keys, values, form, is_interleaved=is_interleaved)

    def hold(self) -> None:
        self._num_held = self._context.num_fed

    def resume(self) -> None:
        self._context.keep(self._num_held)

    def release(self) -> None:
        self.resume()

    def end(self) -> None:
        self._context.end()

    @property
    def live_bytes(self) -> int:
        return self._context.live_bytes

    @property
    def peak_bytes(self) -> int | None:
        return None

    @property
    def num_rows(self) -> float:
        return float(self._context.num_fed)
