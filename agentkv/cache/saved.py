"""A cache in a file, and the checks it has to pass before it is one again.

The file's metadata says which model, policy and budget the cache belongs to; the tensors are the
rows of its tables and the token ids. Everything that follows from these is worked out anew, and
what does not fit together is refused before it is used.
"""

import os
from collections.abc import Sequence

import torch
from pydantic import ValidationError
from torch import Tensor
from transformers import PreTrainedModel

from agentkv.cache.budget import Allowance
from agentkv.cache.families import attentions, describe, output_projection
from agentkv.cache.file import KINDS, CacheFileError, Entry, SavedFile, write
from agentkv.cache.identity import identity, require_same
from agentkv.cache.notes import Notes, Settings
from agentkv.cache.shape import lane_shape
from agentkv.cache.state import StatefulCache, tables_of
from agentkv.cache.stream import IdStream
from agentkv.cache.table import Table
from agentkv.cache.view import Attention
from agentkv.policies.policy import Policy
from agentkv.policies.rows import PolicyError
from agentkv.policies.slots import Learner
from agentkv.policies.written import read, written

IDS = "ids"


def save(cache: StatefulCache, model: PreTrainedModel, path: str | os.PathLike[str]) -> None:
    """Write a cache of `model` to a file; see `file.write`."""
    metadata = {
        **identity(model),
        "policy": written(cache.policy),
        "settings": Settings.of(cache.budget, cache.prefill, cache.chunk).model_dump_json(),
        "state": cache.notes().model_dump_json(),
    }
    entries = [
        Entry(
            f"layers.{i}.{name}.{field}",
            table.fields[f].dtype,
            _shape(table, f, table.counts),
            lambda table=table, f=f: table.packed(f),  # type: ignore[misc]
        )
        for i, store in enumerate(cache.stores)
        for name, table in tables_of(store).items()
        for f, field in _written_fields(name, table)
    ]
    ids = cache.ids
    if ids is not None:
        entries.append(Entry(IDS, torch.int32, tuple(ids.shape), lambda: ids))
    write(path, metadata, entries)


def read_settings(
    file: SavedFile, model: PreTrainedModel, given: Policy | None
) -> tuple[Policy, Settings, Notes]:
    """What the metadata says, if it is of this model and, where one is given, of this policy.

    Raises:
        CacheFileError: naming the first difference.
    """
    require_same(file.path, file.metadata, model)
    try:
        policy = read(file.word("policy"), given)
        settings = Settings.model_validate_json(file.word("settings"))
        notes = Notes.model_validate_json(file.word("state"))
        Allowance(policy, settings.budget, describe(model))
    except PolicyError as error:
        raise CacheFileError(f"{file.path}: {error}") from error
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise CacheFileError(f"{file.path} makes no sense: {where}: {first['msg']}") from error
    return policy, settings, notes


def fill(cache: StatefulCache, model: PreTrainedModel, file: SavedFile, notes: Notes) -> None:
    """Put what was saved into an empty cache of the same model and policy.

    Raises:
        CacheFileError: parts of the file contradict each other; the cache is empty still.
    """
    try:
        _Filling(cache, model, file, notes).run()
    except PolicyError as error:
        cache.reset()
        raise CacheFileError(f"{file.path}: {error}") from error
    except AssertionError as error:
        cache.reset()
        raise CacheFileError(f"{file.path} holds what no cache can hold: {error}") from error


class _Filling:
    """One file on its way into one cache."""

    def __init__(
        self, cache: StatefulCache, model: PreTrainedModel, file: SavedFile, notes: Notes
    ) -> None:
        self.cache, self.model, self.file, self.notes = cache, model, file, notes

    def run(self) -> None:
        cache, notes = self.cache, self.notes
        modules = attentions(self.model)
        devices = [_device(module) for module in modules]
        if notes.batch is None:
            self._require(not notes.layers and not notes.seen, "an empty cache has layers")
            self._require_tensors({})
        else:
            self._check_notes(notes.batch)
            self._require_tensors(self._expected_tensors(notes.batch))
            self._check_places()
        found: list[Attention | None] = []
        for note, module, store in zip(notes.layers, modules, cache.stores, strict=False):
            reads = store.keeper is not None and cache.policy.selector.norms is not None
            projection = output_projection(module) if reads else None
            found.append(Attention(note.scale, getattr(module, "sinks", None), projection))
        cache.put(notes, self._packed, attentions=found, devices=devices, ids=self._ids())
        cache.check()
        allocator, learned = cache.policy.allocator, notes.learned
        for memory in () if learned is None else (learned.remembered, learned.gone_by):
            cache.allowance.go_by(memory)
            cache.allowance.layer(0, notes.seen)  # is it of a model like this one?
        if learned is not None and isinstance(allocator, Learner) and not allocator.remembered:
            # what a policy that is in use has learned since is newer
            allocator.remember(learned.remembered)

    def _require(self, holds: bool, what: str) -> None:
        if not holds:
            raise CacheFileError(f"{self.file.path} contradicts itself: {what}")

    def _ids(self) -> IdStream:
        ids = IdStream()
        if not self.notes.has_ids:
            ids.append(None)
        elif self.notes.batch is not None:
            embedding = self.model.get_input_embeddings()
            ids.append(self.file.tensor(IDS).to(_device(embedding)))
        return ids

    def _check_notes(self, batch: int) -> None:
        """Numbers that say how much there is of everything."""
        cache, notes = self.cache, self.notes
        self._require(
            len(notes.layers) == len(cache.stores),
            f"it has {len(notes.layers)} layers, the model {len(cache.stores)}",
        )
        self._require(0 < notes.num_new <= notes.seen, "more is new than was seen")
        self._require(len(notes.fed) == batch, "it was fed other sequences")
        self._require(max(notes.fed) <= notes.seen, "more was fed than was seen")
        if notes.confidences is not None:
            self._require(len(notes.confidences) == batch, "confidences of other sequences")
        learns = cache.policy.allocator.learns
        self._require((notes.learned is not None) == learns, "what was learned, and by whom")
        for i, (store, note) in enumerate(zip(cache.stores, notes.layers, strict=True)):
            policy = None if store.keeper is None else store.keeper.policy
            shape = lane_shape(
                store.shape,
                policy,
                dtype=getattr(torch, note.dtype),
                num_q_heads=cache.geometry.num_q_heads,
            )
            for name, layout in note.tables.items():
                # before anything is made for so many lanes
                num_lanes = batch if name == "queries" else batch * shape.per_sequence
                self._require(len(layout) == num_lanes, f"lanes of layer {i}, {name}")
            self._require((note.keeper is None) == (policy is None), f"who keeps layer {i}")
            if note.keeper is not None:
                said = note.keeper
                self._require(len(said.qualities) == batch, f"sequences of layer {i}")
                self._require(said.num_steps <= notes.seen, "more steps than tokens")

    def _expected_tensors(self, batch: int) -> dict[str, tuple[str, tuple[int, ...]]]:
        """What must be in the file, told from empty tables and the layouts, which are checked."""
        expected: dict[str, tuple[str, tuple[int, ...]]] = {}
        if self.notes.has_ids:
            expected[IDS] = (KINDS[torch.int32], (batch, self.notes.seen))
        for i, note in enumerate(self.notes.layers):
            tables = self._empty_tables(i, batch)
            self._require(tables.keys() == note.tables.keys(), f"tables of layer {i}")
            for name, table in tables.items():
                layout = note.tables[name]
                for start, count, room in layout:
                    self._require(
                        start + count <= room <= count + table.spare + 1
                        and (not room or count > 0),
                        f"rows {start} to {start + count} in a room for {room} ({i}, {name})",
                    )
                counts = [count for _, count, _ in layout]
                for f, field in _written_fields(name, table):
                    kind = KINDS[table.fields[f].dtype]
                    expected[f"layers.{i}.{name}.{field}"] = (kind, _shape(table, f, counts))
        return expected

    def _empty_tables(self, layer: int, batch: int) -> dict[str, Table]:
        store, note = self.cache.stores[layer], self.notes.layers[layer]
        store.begin(
            batch,
            num_q_heads=self.cache.geometry.num_q_heads,
            dtype=getattr(torch, note.dtype),
            device=torch.device("cpu"),
        )
        return tables_of(store)

    def _require_tensors(self, expected: dict[str, tuple[str, tuple[int, ...]]]) -> None:
        found = self.file.shapes
        for name in sorted({*expected, *found}):
            self._require(
                found.get(name) == expected.get(name),
                f"{name} is {found.get(name, 'missing')}, its notes say "
                f"{expected.get(name, 'nothing of it')}",
            )

    def _check_places(self) -> None:
        """Numbers that something else is looked up by."""
        for i, note in enumerate(self.notes.layers):
            for name in ("about", "queries"):
                if name in note.tables:
                    places = self.file.tensor(f"layers.{i}.{name}.positions")
                    inside = (places >= 0) & (places < self.notes.seen)
                    self._require(bool(inside.all()), f"positions that nobody saw, layer {i}")
            if "scales" not in note.tables:
                continue
            blocks = self.file.tensor(f"layers.{i}.codes.block_ids")
            both = zip(note.tables["codes"], note.tables["scales"], strict=True)
            start = 0
            for (_, num_rows, _), (_, num_blocks, _) in both:
                mine, start = blocks[start : start + num_rows], start + num_rows
                inside = (mine >= 0) & (mine < num_blocks)
                self._require(bool(inside.all()), f"a block without its scale, layer {i}")

    def _packed(self, layer: int, name: str) -> list[Tensor]:
        table = tables_of(self.cache.stores[layer])[name]
        counts = [count for _, count, _ in self.notes.layers[layer].tables[name]]
        fields = dict(_written_fields(name, table))
        return [
            self.file.tensor(f"layers.{layer}.{name}.{fields[f]}")
            if f in fields
            else empty.new_empty(_shape(table, f, counts))
            for f, empty in enumerate(table.tensors)
        ]


def _written_fields(name: str, table: Table) -> list[tuple[int, str]]:
    """Number and name of the fields of a table that hold anything."""
    if name == "about":
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
    """Of `Table.packed`."""
    return (table.fields[field].heads * sum(counts), *table.fields[field].inner)


def _device(module: torch.nn.Module) -> torch.device:
    return next(module.parameters()).device
