"""A cache in a file, and the checks that a file must pass before it becomes a cache again.

The metadata names the model, policy and budget that the cache belongs to; the tensors are the
entries of its tables and the token ids. Everything that follows from these is derived anew.
"""

import os
from collections.abc import Callable
from itertools import chain
from typing import TypeVar

import torch
from pydantic import ValidationError
from torch import Tensor, nn
from transformers import PreTrainedModel

from agentkv.cache.checkpoint.file import CacheFileError, read, write
from agentkv.cache.checkpoint.identity import identity, require_same
from agentkv.cache.checkpoint.snapshot import (
    LayerEntries,
    Restorable,
    entries_of,
    fill,
    recurrent_of,
    state_of,
)
from agentkv.cache.checkpoint.state import (
    CacheState,
    LayerState,
    SavedCache,
    dtype_name,
    first_error,
)
from agentkv.cache.hf.families import attentions, decoder
from agentkv.cache.hf.reading import layers_of
from agentkv.policies.policy import Policy
from agentkv.policies.slots import Learner
from agentkv.policies.written import read as read_policy
from agentkv.policies.written import written
from agentkv_kernels.layout import BLOCK_IDS, POSITION, QUERY_POSITION

IDS = "ids"
"""Name of the tensor with the token ids. Field f of a table is layers.<layer>.<table>.<f>, in the
order of `agentkv_kernels.layout`."""

C = TypeVar("C", bound=Restorable)


def save(
    cache: Restorable,
    model: PreTrainedModel,
    path: str | os.PathLike[str],
    *,
    most_bytes: int | None = None,
) -> None:
    """Write a cache of `model` to a file; see `file.write`. It copies the entries to the CPU."""
    saved = SavedCache(
        model=identity(model),
        policy=written(cache.evictor.policy),
        budget=cache.evictor.budget,
        prefill=cache.prefill,
        chunk=cache.chunk,
        dtype=None if cache.dtype is None else dtype_name(cache.dtype),
        state=state_of(cache),
    )
    tensors = {
        f"layers.{i}.{name}.{f}": tensor.cpu()
        for i, layer in enumerate(entries_of(cache))
        for name, fields in layer.tables.items()
        for f, tensor in enumerate(fields)
    }
    for i, states in recurrent_of(cache).items():
        tensors |= {f"{_prefix(i)}{name}": state.cpu() for name, state in states.items()}
    ids = cache.token_ids.all()
    if ids is not None:
        tensors[IDS] = ids
    write(path, saved.model_dump_json(), tensors, most_bytes=most_bytes)


def load(
    make: Callable[..., C],
    model: PreTrainedModel,
    path: str | os.PathLike[str],
    given: Policy | None,
) -> C:
    """Return the cache in a file.

    Args:
        make: returns an empty cache of `model`, given policy, budget, prefill, chunk and dtype.
        given: policy of the cache; None: rebuild it by name.

    Raises:
        CacheFileError: naming the first difference or contradiction.
        OSError: the file does not exist or may not be read.
    """
    text, tensors = read(path)
    try:
        saved = SavedCache.model_validate_json(text)
        require_same(saved.model, model)
        policy, state = read_policy(saved.policy, given), saved.state
        cache = make(
            policy=policy,
            budget=saved.budget,
            prefill=saved.prefill,
            chunk=saved.chunk,
            dtype=None if saved.dtype is None else getattr(torch, saved.dtype),
        )
        _fill(cache, model, state, tensors)
    except ValidationError as error:
        raise CacheFileError(f"{path} is invalid: {first_error(error)}") from error
    except (AssertionError, ValueError) as error:
        raise CacheFileError(f"{path} cannot be used: {error}") from error
    allocator = policy.allocator
    if isinstance(allocator, Learner) and not allocator.state:
        # what a policy in use has learned since is newer
        allocator.load_state(state.learned)
    return cache


def _fill(
    cache: Restorable, model: PreTrainedModel, state: CacheState, tensors: dict[str, Tensor]
) -> None:
    """Fill an empty cache from the tensors of a file, which are removed from the dictionary.

    Raises:
        AssertionError, ValueError: the file contradicts itself.
    """
    modules, evictor = attentions(model), cache.evictor
    expected = len(modules) if state.fed else 0
    if len(state.layers) != expected:
        raise ValueError(f"found {len(state.layers)} layers, expected {expected}")
    ids, shape = tensors.pop(IDS, None), (len(state.fed), state.seen)
    if ids is not None and (ids.dtype != torch.int32 or ids.shape != shape):
        raise ValueError(f"found ids {tuple(ids.shape)} of {ids.dtype}, expected int32 {shape}")
    layers = []
    for i, own in enumerate(state.layers):
        tables = {name: _take_fields(tensors, f"layers.{i}.{name}") for name in own.extents}
        layer, module = evictor.layers[i], modules[i]
        sinks = getattr(module, "sinks", None)
        attention = layer.attention_of(module, own.scale, sinks)
        layers.append(LayerEntries(tables, attention, _device_of(module)))
    recurrent = {}
    for i in cache.recurrent if state.fed else ():
        names = [name for name in tensors if name.startswith(_prefix(i))]
        device = _device_of(layers_of(decoder(model))[i])
        recurrent[i] = {
            name.removeprefix(_prefix(i)): tensors.pop(name).to(device) for name in names
        }
    if tensors:
        raise ValueError(f"found a tensor {min(tensors)!r:.80}, which no table has")
    fill(cache, state, layers, recurrent, ids)
    for own, entries in zip(state.layers, layers, strict=True):
        _check_indices(entries.tables, own, state.seen)
    cache.check()
    if not evictor.policy.allocator.learns and (state.learned or state.used):
        raise ValueError("found energies, but the policy learns none")
    for energies in (state.learned, state.used):
        evictor.allowance.use_state(energies)
        evictor.allowance.layers(state.seen)  # raises if the layers differ in number


def _device_of(module: nn.Module) -> torch.device:
    """Return where a module computes; quantized weights are buffers, not parameters."""
    return next(chain(module.parameters(), module.buffers())).device


def _prefix(layer: int) -> str:
    """Return how the names of a decoder layer's recurrent states begin."""
    return f"recurrent.{layer}."


def _take_fields(tensors: dict[str, Tensor], table: str) -> list[Tensor]:
    """Remove and return the fields of a table, as many as are numbered without a gap."""
    fields: list[Tensor] = []
    while (name := f"{table}.{len(fields)}") in tensors:
        fields.append(tensors.pop(name))
    return fields


def _check_indices(tables: dict[str, list[Tensor]], own: LayerState, seen: int) -> None:
    """Check positions and block ids, which compiled code uses as indices. Raises ValueError."""
    places = [
        ("metadata", POSITION),
        ("cold metadata", POSITION),
        ("queries", QUERY_POSITION),
        ("queries of chunks", QUERY_POSITION),
    ]
    for name, field in places:
        if name in tables and not _are_indices(tables[name][field], seen):
            raise ValueError(f"found a position in {name} outside of the {seen} tokens seen")
    for tier in ("", "cold "):
        if f"{tier}scales" not in tables:
            continue
        counts, num_blocks = (
            torch.tensor([count for _, count, _ in own.extents[tier + name]])
            for name in ("codes", "scales")
        )
        ids = tables[f"{tier}codes"][BLOCK_IDS]
        if not _are_indices(ids, num_blocks.repeat_interleave(counts)):
            raise ValueError("found a quantized entry whose block has no scales")


def _are_indices(numbers: Tensor, end: int | Tensor) -> bool:
    return bool(((numbers >= 0) & (numbers < end)).all())
