"""A model whose matrices stay in the blocks of its GGUF file."""

import contextlib
import functools
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import nn
from transformers import AutoModelForCausalLM, GenerationConfig

from agentkv.cache.hf.trim import trim_heap
from agentkv.models.gguf.architectures import architecture_of
from agentkv.models.gguf.converted import GgufModel
from agentkv.models.gguf.tensors import Array, read_blocks
from agentkv.models.gguf.tokenizer import end_ids
from agentkv.models.gguf.weights import own_rows, weight_of
from agentkv.weights.linear import QuantizedEmbedding, QuantizedLinear
from agentkv_kernels.weights import FORMATS, PackedWeight, pack

UNQUANTIZED = ("F32", "F16", "BF16", "F64")
"""Formats of tensors that are no blocks."""

_RELEASED = 16 << 20
"""Bytes that are read before the memory that packing them took is released (our choice)."""

_ROWS = 4096
"""Rows that are packed at once, because packing takes several times their memory."""


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    """Let torch compute in one thread: what is packed at once is so little that threads would wait
    for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def formats_of(model: GgufModel) -> dict[str, str]:
    """Return the format of each matrix that is quantized in the file, by the name of its weight."""
    tensors, found = model.header.tensors, {}
    for name, place in model.places.items():
        forms = {tensors[part].format.name for part in place if part in tensors}
        if forms - set(UNQUANTIZED):
            found[name] = "+".join(sorted(form.lower() for form in forms))
    return found


def why_float(model: GgufModel) -> str:
    """Return why the matrices of a file cannot stay in its blocks; empty if they can."""
    formats = formats_of(model)
    if not formats:
        return "none of its matrices is quantized"
    if architecture_of(model.header).change is not None:
        return f"weights of {model.header.architecture} have another order in files"
    for name, form in formats.items():
        module = model.empty.get_submodule(name.rpartition(".")[0])
        if form not in FORMATS:
            return f"{name} is in {form.upper()}, for which there are no products"
        if type(module) is not nn.Linear and not isinstance(module, nn.Embedding):
            return f"{name} is not the matrix of a linear layer"
    return ""


def named_formats(model: GgufModel) -> str:
    """Return the formats of the quantized matrices of a file, those of most numbers first."""
    numbers: Counter[str] = Counter()
    weights = model.empty.state_dict()
    for name, form in formats_of(model).items():
        numbers[form.upper()] += weights[name].numel()
    return ", ".join(form for form, _ in numbers.most_common())


def nbytes_in_blocks(model: GgufModel) -> int:
    """Return the bytes of the weights that `load_blocks` makes, without reading any."""
    weights, formats = model.empty.state_dict(), formats_of(model)
    embedding = model.empty.get_input_embeddings()
    is_tied = "lm_head.weight" not in model.places
    total = 0
    for name in model.places:
        module = model.empty.get_submodule(name.rpartition(".")[0])
        is_packed = name in formats and type(module) in (nn.Linear, nn.Embedding)
        if is_packed or (name in formats and module is embedding and is_tied):
            total += _packed_nbytes(formats[name], *weights[name].shape)
        if not is_packed:
            total += 4 * weights[name].numel()
    return total


@functools.cache
def _packed_nbytes(form: str, rows: int, width: int) -> int:
    blocks = FORMATS[form]
    with torch.device("meta"):
        raw = torch.empty(rows, width // blocks.file_inputs * blocks.file_bytes, dtype=torch.uint8)
        return pack(form, raw).nbytes


@_one_thread()
def load_blocks(model: GgufModel) -> Any:
    """Return the model of a file for which `why_float` is empty.

    Matrices are packed one after the other, and what is not quantized becomes float32. The memory
    that this takes is little more than the weights have in the end. An embedding that is more than
    a table, such as one that scales its rows, becomes float32 as well.

    Raises:
        GgufError: the file cannot be read.
    """
    header, config, formats = model.header, model.config, formats_of(model)
    with _on_meta():
        make: Any = AutoModelForCausalLM.from_config
        made = make(config, dtype=torch.float32)
    weights = dict(model.empty.state_dict())
    embedding, head = made.get_input_embeddings(), made.get_output_embeddings()
    is_tied = "lm_head.weight" not in model.places
    waiting = 0
    # the largest first, while the others take no memory
    for name in sorted(model.places, key=lambda name: -weights[name].numel()):
        place, (path, _, leaf) = model.places[name], name.rpartition(".")
        module = made.get_submodule(path)
        if name in formats:
            rows = [
                own_rows(header, name, part, read_blocks(header, part), len(weights[name]), config)
                for part in place
            ]
            packed = _packed(formats[name], rows[0] if len(rows) == 1 else np.concatenate(rows))
            del rows
            waiting += packed.nbytes
            if waiting >= _RELEASED:
                trim_heap()
                waiting = 0
            if type(module) is nn.Linear:
                made.set_submodule(path, QuantizedLinear(packed))
            elif type(module) is nn.Embedding:
                made.set_submodule(path, QuantizedEmbedding(packed))
            if module is embedding and is_tied:
                made.set_output_embeddings(QuantizedLinear(packed))
            if type(module) in (nn.Linear, nn.Embedding):
                continue
        values = torch.from_numpy(weight_of(header, name, place, weights[name], config))
        if leaf in module._buffers:
            getattr(module, leaf).copy_(values)
        else:
            setattr(module, leaf, nn.Parameter(values, requires_grad=False))
        if module is embedding and is_tied and name not in formats:
            head.weight = module.weight
    generation: Any = GenerationConfig  # has no types
    made.generation_config = generation(
        eos_token_id=end_ids(header), bos_token_id=config.bos_token_id
    )
    return made.eval()


def _packed(form: str, rows: Array) -> PackedWeight:
    """Pack rows of blocks (R, bytes), some at a time."""
    raw = torch.from_numpy(rows)
    first = pack(form, raw[:_ROWS])
    if len(raw) <= _ROWS:
        return first

    def room(part: torch.Tensor) -> torch.Tensor:
        group = _ROWS // len(part)
        return part.new_empty(-(-len(raw) // group), *part.shape[1:])

    whole = replace(
        first,
        rows=len(raw),
        codes=room(first.codes),
        scales=room(first.scales),
        steps=None if first.steps is None else room(first.steps),
    )
    done = 0
    for start in range(0, len(raw), _ROWS):
        packed = first if start == 0 else pack(form, raw[start : start + _ROWS])
        end = done + len(packed.codes)
        for mine, new in ((whole.codes, packed.codes), (whole.scales, packed.scales)):
            mine[done:end] = new
        if whole.steps is not None and packed.steps is not None:
            whole.steps[done:end] = packed.steps
        done = end
    return whole


@contextlib.contextmanager
def _on_meta() -> Iterator[None]:
    """Give parameters that are made in this thread no memory, whereas buffers get theirs: those of
    rotary embeddings are in no file."""
    own, register = threading.get_ident(), nn.Module.register_parameter

    def on_meta(module: nn.Module, name: str, parameter: nn.Parameter | None) -> None:
        if parameter is not None and threading.get_ident() == own:
            empty: Any = nn.Parameter(parameter.to("meta"), requires_grad=False)
            empty._is_hf_initialized = True  # transformers would draw numbers for it
            parameter = empty
        register(module, name, parameter)

    patched: Any = nn.Module
    patched.register_parameter = on_meta
    try:
        yield
    finally:
        patched.register_parameter = register
