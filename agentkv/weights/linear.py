"""Modules that take the place of torch's, with weights in a block format of `FORMATS`."""

import torch
from torch import Tensor, nn

from agentkv.weights.products import Activations
from agentkv_kernels import weights
from agentkv_kernels.weights import FORMATS, PackedWeight


class _Packed(nn.Module):
    """Holds a packed weight. It stays as it is when a model changes its dtype."""

    codes: Tensor
    scales: Tensor
    steps: Tensor | None

    def __init__(self, packed: PackedWeight) -> None:
        super().__init__()
        self.format = packed.format.name
        self._shape = packed.rows, packed.width
        self.register_buffer("codes", packed.codes)
        # as integers, because floating-point buffers follow the dtype of a model
        self.register_buffer("scales", packed.scales.view(torch.int16))
        self.register_buffer("steps", packed.steps)

    @property
    def packed(self) -> PackedWeight:
        """The weight."""
        rows, width = self._shape
        return PackedWeight(
            format=FORMATS[self.format],
            rows=rows,
            width=width,
            codes=self.codes,
            scales=self.scales.view(torch.float16),
            steps=self.steps,
        )

    @property
    def weight(self) -> Tensor:
        """The whole weight (rows, width) as float32, dequantized at every call: for code that reads
        weights rather than calling modules."""
        return weights.dequantize(self.packed)

    def extra_repr(self) -> str:
        """Return what `print` shows of it."""
        rows, width = self._shape
        return f"{width} inputs, {rows} outputs, {self.format}"


class QuantizedLinear(_Packed):
    """A linear layer with a weight in 8 or 4 bits. Inference only: no gradient passes through it.

    Activations are rounded to 8 bits per block of 32, as llama.cpp does it.

    Args:
        packed: weight (outputs, inputs).
        bias: (outputs,), or None.
    """

    def __init__(self, packed: PackedWeight, bias: Tensor | None = None) -> None:
        super().__init__(packed)
        self.out_features, self.in_features = self._shape
        self.bias = None if bias is None else nn.Parameter(bias.detach(), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return the outputs (..., outputs) for inputs (..., inputs), in their dtype."""
        return self.outputs(Activations(x), range(self.out_features))

    def outputs(self, x: Activations, rows: range) -> Tensor:
        """Return some neighboring outputs only, (..., rows)."""
        out = x.product(self.packed, rows)
        if self.bias is not None:
            out += self.bias[rows.start : rows.stop]
        return out.view(*x.shape, len(rows)).to(x.dtype)


class QuantizedEmbedding(_Packed):
    """An embedding with a table in 8 or 4 bits, dequantized row by row.

    Args:
        packed: table (tokens, channels). A `QuantizedLinear` may hold the same one.
        dtype: of the rows; it changes with the model's.
        scale: factor on the rows, rounded to their dtype.
    """

    like: Tensor

    def __init__(
        self, packed: PackedWeight, dtype: torch.dtype = torch.float32, scale: float = 1.0
    ) -> None:
        super().__init__(packed)
        self.num_embeddings, self.embedding_dim = self._shape
        self.scale = scale
        self.register_buffer("like", torch.empty(0, dtype=dtype), persistent=False)

    def forward(self, ids: Tensor) -> Tensor:
        """Return the rows (..., channels) of ids (...), scaled."""
        found = self.rows(ids)
        return found if self.scale == 1 else found * torch.tensor(self.scale, dtype=found.dtype)

    def rows(self, ids: Tensor) -> Tensor:
        """Return the rows (..., channels) of ids (...) without the factor."""
        found = weights.dequantize_rows(self.packed, ids.flatten())
        return found.view(*ids.shape, self.embedding_dim).to(self.like.dtype)
