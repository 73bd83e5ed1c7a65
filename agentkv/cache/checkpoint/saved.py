"""A cache in a file, and the checks that a file must pass before it becomes a cache again.

The metadata names the model, policy and budget that the cache belongs to; the tensors are the
entries of its tables and the token ids. Everything that follows from these is derived anew, and
contradictions are refused before anything is used.
"""

import os
from collections.abc import Sequence
from typing import Literal, Protocol

import torch
from pydantic import ValidationError
from torch import Tensor
from transformers import PreTrainedModel

from agentkv.cache.budget import Allowance
from agentkv.cache.checkpoint.file import KINDS, CacheFileError, PendingTensor, SavedFile, write
from agentkv.cache.checkpoint.identity import identity, require_same
from agentkv.cache.checkpoint.schema import CacheState, Settings
from agentkv.cache.checkpoint.snapshot import Restorable, state_of, tables_of
from agentkv.cache.checkpoint.snapshot import fill as fill_cache
from agentkv.cache.geometry import Attention
from agentkv.cache.hf.families import attentions, describe, output_projection
from agentkv.cache.storage.choose import layout_for
from agentkv.cache.storage.table import Table
from agentkv.cache.storage.token_ids import TokenIds
from agentkv.policies.entries import PolicyError
from agentkv.policies.policy import Policy
from agentkv.policies.slots import Learner
from agentkv.policies.written import read, written

IDS = "ids"


class Saveable(Restorable, Protocol):
    """A cache as a file describes it; `Cache` is one."""

    prefill: Literal["chunked", "whole"]
    chunk: int


def save(cache: Saveable, model: PreTrainedModel, path: str | os.PathLike[str]) -> None:
    """Write a cache of `model` to a file; see `file.write`."""
    metadata = {
        **identity(model),
        "policy": written(cache.evictor.policy),
        "settings": Settings.of(cache.evictor.budget, cache.prefill, cache.chunk).model_dump_json(),
        "state": state_of(cache).model_dump_json(),
    }
    tensors = [
        PendingTensor(
            f"layers.{i}.{name}.{field}",
            table.fields[f].dtype,
            _shape(table, f, table.counts),
            lambda table=table, f=f: table.packed(f),  # type: ignore[misc]
        )
        for i, layer in enumerate(cache.evictor.layers)
        for name, table in tables_of(layer).items()
        for f, field in _written_fields(name, table)
    ]
    ids = cache.token_ids.all()
    if ids is not None:
        tensors.append(PendingTensor(IDS, torch.int32, tuple(ids.shape), lambda: ids))
    write(path, metadata, tensors)


def read_settings(
    file: SavedFile, model: PreTrainedModel, given: Policy | None
) -> tuple[Policy, Settings, CacheState]:
    """Return policy, settings and state from the metadata, for this model and a given policy.

    Raises:
        CacheFileError: naming the first difference.
    """
    require_same(file.path, file.metadata, model)
    try:
        policy = read(file.word("policy"), given)
        settings = Settings.model_validate_json(file.word("settings"))
        state = CacheState.model_validate_json(file.word("state"))
        Allowance(policy, settings.budget, describe(model))
    except PolicyError as error:
        raise CacheFileError(f"{file.path}: {error}") from error
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise CacheFileError(f"{file.path} is invalid: {where}: {first['msg']}") from error
    return policy, settings, state


def fill(cache: Saveable, model: PreTrainedModel, file: SavedFile, state: CacheState) -> None:
    """Fill an empty cache of the same model and policy from a file.

    Raises:
        CacheFileError: parts of the file contradict each other; the cache is still empty.
    """
    try:
        _Filling(cache, model, file, state).run()
    except PolicyError as error:
        cache.reset()
        raise CacheFileError(f"{file.path}: {error}") from error
    except AssertionError as error:
        cache.reset()
        raise CacheFileError(f"{file.path} holds what no cache can hold: {error}") from error


class _Filling:
    """One cache being filled from one file."""

    def __init__(
        self, cache: Saveable, model: PreTrainedModel, file: SavedFile, state: CacheState
    ) -> None:
        self.cache, self.model, self.file, self.state = cache, model, file, state
        self.layers = cache.evictor.layers

    def run(self) -> None:
        cache, state = self.cache, self.state
        modules = attentions(self.model)
        devices = [_device(module) for module in modules]
        if state.batch is None:
            self._require(not state.layers and not state.seen, "an empty cache has layers")
            self._require_tensors({})
        else:
            self._check_state(state.batch)
            self._require_tensors(self._expected_tensors(state.batch))
            self._check_indices()
        found: list[Attention | None] = []
        for own, module, layer in zip(state.layers, modules, self.layers, strict=False):
            reads = layer.policy is not None and cache.evictor.policy.selector.norms is not None
            projection = output_projection(module) if reads else None
            found.append(Attention(own.scale, getattr(module, "sinks", None), projection))
        fill_cache(
            cache,
            state,
            self._packed,
            attentions=found,
            devices=devices,
            token_ids=self._token_ids(),
        )
        cache.check()
        allocator, learned = cache.evictor.policy.allocator, state.learned
        for energies in () if learned is None else (learned.latest, learned.used):
            cache.evictor.allowance.use_state(energies)
            cache.evictor.allowance.layer(0, state.seen)  # raises if the layers differ in number
        if learned is not None and isinstance(allocator, Learner) and not allocator.state:
            # what a policy in use has learned since is newer
            allocator.load_state(learned.latest)

    def _require(self, holds: bool, what: str) -> None:
        if not holds:
            raise CacheFileError(f"{self.file.path} contradicts itself: {what}")

    def _token_ids(self) -> TokenIds:
        ids = TokenIds()
        if not self.state.has_ids:
            ids.append(None)
        elif self.state.batch is not None:
            embedding = self.model.get_input_embeddings()
            ids.append(self.file.tensor(IDS).to(_device(embedding)))
        return ids

    def _check_state(self, batch: int) -> None:
        """Check the counts."""
        cache, state = self.cache, self.state
        self._require(
            len(state.layers) == len(self.layers),
            f"it has {len(state.layers)} layers, the model {len(self.layers)}",
        )
        self._require(0 < state.num_new <= state.seen, "more is new than was seen")
        self._require(len(state.fed) == batch, "tokens of other sequences")
        self._require(max(state.fed) <= state.seen, "more was fed than was seen")
        if state.confidences is not None:
            self._require(len(state.confidences) == batch, "confidences of other sequences")
        learns = cache.evictor.policy.allocator.learns
        self._require((state.learned is not None) == learns, "energies of an allocator that learns")
        for i, (layer, own) in enumerate(zip(self.layers, state.layers, strict=True)):
            policy = None if layer.policy is None else layer.policy.policy
            layout = layout_for(
                layer.shape,
                policy,
                dtype=getattr(torch, own.dtype),
                num_q_heads=cache.evictor.geometry.num_q_heads,
            )
            for name, extents in own.extents.items():
                # before anything is allocated for so many segments
                per = 1 if name == "queries" else layout.segments_per_sequence
                num_segments = batch * per
                self._require(len(extents) == num_segments, f"segments of layer {i}, {name}")
            self._require((own.policy is None) == (policy is None), f"the policy of layer {i}")
            if own.policy is not None:
                qualities, num_steps = own.policy.qualities, own.policy.num_steps
                self._require(len(qualities) == batch, f"sequences of layer {i}")
                self._require(num_steps <= state.seen, "more steps than tokens")

    def _expected_tensors(self, batch: int) -> dict[str, tuple[str, tuple[int, ...]]]:
        """Return type and shape of every expected tensor, from empty tables and checked extents."""
        expected: dict[str, tuple[str, tuple[int, ...]]] = {}
        if self.state.has_ids:
            expected[IDS] = (KINDS[torch.int32], (batch, self.state.seen))
        for i, own in enumerate(self.state.layers):
            tables = self._empty_tables(i, batch)
            self._require(tables.keys() == own.extents.keys(), f"tables of layer {i}")
            for name, table in tables.items():
                extents = own.extents[name]
                for start, count, capacity in extents:
                    self._require(
                        start + count <= capacity <= count + table.spare + 1
                        and (not capacity or count > 0),
                        f"entries {start} to {start + count} in a capacity of {capacity} "
                        f"({i}, {name})",
                    )
                counts = [count for _, count, _ in extents]
                for f, field in _written_fields(name, table):
                    kind = KINDS[table.fields[f].dtype]
                    expected[f"layers.{i}.{name}.{field}"] = (kind, _shape(table, f, counts))
        return expected

    def _empty_tables(self, layer: int, batch: int) -> dict[str, Table]:
        own = self.layers[layer]
        own.begin(
            batch,
            num_q_heads=self.cache.evictor.geometry.num_q_heads,
            dtype=getattr(torch, self.state.layers[layer].dtype),
            device=torch.device("cpu"),
        )
        return tables_of(own)

    def _require_tensors(self, expected: dict[str, tuple[str, tuple[int, ...]]]) -> None:
        found = self.file.shapes
        for name in sorted({*expected, *found}):
            self._require(
                found.get(name) == expected.get(name),
                f"{name} is {found.get(name, 'missing')}, its metadata says "
                f"{expected.get(name, 'nothing')}",
            )

    def _check_indices(self) -> None:
        """Check positions and block ids, which index other things."""
        for i, own in enumerate(self.state.layers):
            for name in ("metadata", "queries"):
                if name in own.extents:
                    positions = self.file.tensor(f"layers.{i}.{name}.positions")
                    inside = (positions >= 0) & (positions < self.state.seen)
                    self._require(
                        bool(inside.all()), f"positions beyond the tokens seen, layer {i}"
                    )
            if "scales" not in own.extents:
                continue
            blocks = self.file.tensor(f"layers.{i}.codes.block_ids")
            both = zip(own.extents["codes"], own.extents["scales"], strict=True)
            start = 0
            for (_, count, _), (_, num_blocks, _) in both:
                ids, start = blocks[start : start + count], start + count
                inside = (ids >= 0) & (ids < num_blocks)
                self._require(bool(inside.all()), f"a block without scales, layer {i}")

    def _packed(self, layer: int, name: str) -> list[Tensor]:
        table = tables_of(self.layers[layer])[name]
        counts = [count for _, count, _ in self.state.layers[layer].extents[name]]
        fields = dict(_written_fields(name, table))
        return [
            self.file.tensor(f"layers.{layer}.{name}.{fields[f]}")
            if f in fields
            else empty.new_empty(_shape(table, f, counts))
            for f, empty in enumerate(table.tensors)
        ]


def _written_fields(name: str, table: Table) -> list[tuple[int, str]]:
    """Return index and name of the fields of a table that hold anything."""
    if name == "metadata":
        names = ["positions", "tracked", "norms"]
    elif name == "queries":
        names = ["queries", "positions"]
    elif name == "codes" and len(table.fields) == 3:
        names = ["keys", "values", "block_ids"]
    else:
        names = ["keys", "values", "key_scales", "value_scales"][: len(table.fields)]
    assert len(names) == len(table.fields)
    return [(f, word) for f, word in enumerate(names) if 0 not in table.fields[f].inner]


def _shape(table: Table, field: int, counts: Sequence[int]) -> tuple[int, ...]:
    """Return the shape of `Table.packed`."""
    return (table.fields[field].heads * sum(counts), *table.fields[field].inner)


def _device(module: torch.nn.Module) -> torch.device:
    return next(module.parameters()).device
