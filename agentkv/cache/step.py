"""The compiled step: one new token per sequence through all layers of a model, in one call.

Shapes: L layers, C caches, B sequences of all caches together, H key-value heads, D head size, V
vocabulary.
"""

import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from agentkv.cache.hf.decoder import Decoder
from agentkv.cache.layer import CacheLayer
from agentkv.cache.look_step import LookStep
from agentkv.cache.storage.numba_backend import LOG2_E
from agentkv_kernels import decoder as numbers
from agentkv_kernels.layout import POSITION
from agentkv_kernels.numba import decode as kernel
from agentkv_kernels.numba.team import Team

TEAM = Team()


class CompiledStep:
    """Runs steps of one model. Threads take turns.

    Args:
        decoder: the model as `read_decoder` read it.
    """

    def __init__(self, decoder: Decoder) -> None:
        self._decoder = decoder
        self._lock = threading.Lock()
        self._spaces: dict[int, _WorkSpace] = {}
        """Work space by number of sequences."""

    def run(
        self,
        members: Sequence[Sequence[CacheLayer]],
        ids: Sequence[int],
        positions: Sequence[int],
        look: LookStep | None = None,
    ) -> Tensor:
        """Append one token to every sequence and return the logits (B, V), in the model's dtype.

        Args:
            members: per cache, its layers, after `begin_step`.
            ids: token per sequence.
            positions: rotary position per sequence.
            look: lets the tokens of some sequences of one cache look back, and says whether they
                are new or computed again; `members` then names the cache for each sequence.
        """
        with self._lock:
            space = self._spaces.get(len(ids))
            if space is None:
                space = self._spaces[len(ids)] = _WorkSpace(self._decoder, len(ids))
            if look is None:
                by_layer = [member[i] for i in range(len(members[0])) for member in members]
                done = self._run(space, by_layer, len(members), ids, positions)
            else:
                done = self._look(space, members[0], look, ids, positions)
        return self._decoder.parts.finish_logits(done).to(self._decoder.dtype)

    def _run(
        self,
        space: "_WorkSpace",
        by_layer: Sequence[CacheLayer],
        num_caches: int,
        ids: Sequence[int],
        positions: Sequence[int],
    ) -> Tensor:
        first_rows = [0]
        for layer in by_layer[:num_caches]:
            first_rows.append(first_rows[-1] + layer.storage.batch)
        rows, step = np.array(first_rows, np.int64), space.step
        descriptors = _descriptors(by_layer)
        step[numbers.NUM_CACHES] = num_caches
        step[numbers.FIRST_ROWS] = rows.ctypes.data
        step[numbers.LAYER_DESCRIPTORS] = descriptors.ctypes.data
        step[numbers.LOOK] = 0
        self._reserve(space, by_layer)
        emas = np.zeros((len(by_layer), 3))
        masses: list[Tensor | None] = [None] * len(by_layer)
        for i, layer in enumerate(by_layer):
            tracker = layer.tracker
            if tracker is None:
                continue
            if tracker.ema is not None:
                emas[i] = tracker.ema.keep, tracker.ema.gain, tracker.ema.starts_at_mass
            else:
                masses[i] = torch.empty(layer.storage.metadata.tensors[POSITION].shape[0])
        addresses = np.array([0 if x is None else x.data_ptr() for x in masses], np.int64)
        step[numbers.EMAS] = emas.ctypes.data
        step[numbers.MASSES] = addresses.ctypes.data
        logits = self._lead(space, ids, positions)
        for i, layer in enumerate(by_layer):
            idx, cache = divmod(i, num_caches)
            values = space.values[idx, first_rows[cache] : first_rows[cache + 1], :, None]
            layer.finish_step(values, masses[i])
        return logits

    def _reserve(self, space: "_WorkSpace", by_layer: Sequence[CacheLayer]) -> None:
        """Give the tables of a step's layers capacity for one more entry."""
        if not kernel.can_begin(space.address):
            for layer in by_layer:
                layer.storage.reserve()

    def _look(
        self,
        space: "_WorkSpace",
        layers: Sequence[CacheLayer],
        look: LookStep,
        ids: Sequence[int],
        positions: Sequence[int],
    ) -> Tensor:
        descriptors, step = _descriptors(layers), space.step
        step[numbers.NUM_CACHES] = 1
        step[numbers.LAYER_DESCRIPTORS] = descriptors.ctypes.data
        if look.appends:
            self._reserve(space, layers)
        step[numbers.LOOK] = look.begin()
        logits = self._lead(space, ids, positions)
        look.finish(space.values)
        return logits

    def _lead(self, space: "_WorkSpace", ids: Sequence[int], positions: Sequence[int]) -> Tensor:
        """Do a step whose layers are told, and return the logits of `head`, float32."""
        step = space.step
        space.ids[:], space.positions[:] = ids, positions
        scales = self._decoder.parts.query_scales(torch.from_numpy(space.positions))
        logits = torch.empty(len(ids), int(self._decoder.numbers[numbers.VOCABULARY]))
        step[numbers.QUERY_SCALES] = 0 if scales is None else scales.data_ptr()
        step[numbers.LOGITS] = logits.data_ptr()
        step[numbers.NUM_THREADS] = torch.get_num_threads()
        kernel.begin(space.address)
        TEAM.lead(space.address, int(step[numbers.NUM_THREADS]))
        return logits


def _descriptors(layers: Sequence[CacheLayer]) -> Any:
    """Return the addresses of the descriptors of some layers, int64."""
    return np.array([layer.storage.descriptor.address for layer in layers], np.int64)


class _WorkSpace:
    """Arrays of a step of `num_rows` sequences, which stay."""

    def __init__(self, decoder: Decoder, num_rows: int) -> None:
        sizes = decoder.numbers.tolist()
        num_layers, hidden = sizes[numbers.NUM_LAYERS], sizes[numbers.HIDDEN]
        kv_heads, dim = sizes[numbers.NUM_KV_HEADS], sizes[numbers.HEAD_SIZE]
        q_shape = (num_rows, kv_heads * sizes[numbers.GROUP], dim)
        new_shape = (num_layers, num_rows, kv_heads, dim)
        num_phases = numbers.PHASES_PER_LAYER * num_layers + 1
        self.ids, self.positions = np.zeros(num_rows, np.int64), np.zeros(num_rows, np.int64)
        self.values = torch.zeros(new_shape)
        """New values (L, B, H, D) of the latest step."""
        factors = np.array([scale * LOG2_E for scale in decoder.scales])
        floats: dict[int, Any] = {
            numbers.NEW_KEYS: np.zeros(new_shape, np.float32),
            numbers.STREAM: np.zeros((num_rows, hidden), np.float32),
            numbers.QUERIES: np.zeros(q_shape, np.float32),
            numbers.MIXED: np.zeros(q_shape, np.float32),
            numbers.ADDED: np.zeros((num_rows, hidden), np.float32),
            numbers.ACTIVATED: np.zeros((num_rows, sizes[numbers.INNER]), np.float32),
            numbers.COUNTERS: np.zeros(num_phases * numbers.COUNTER_STRIDE, np.int64),
            numbers.FACTORS: factors,
            numbers.DECODER: decoder.numbers,
            numbers.CONSTANTS: decoder.constants,
            numbers.IDS: self.ids,
            numbers.POSITIONS: self.positions,
        }
        self.step = np.zeros(numbers.STEP_NUMBERS, np.int64)
        for place, array in floats.items():
            self.step[place] = array.ctypes.data
        self.step[numbers.NEW_VALUES] = self.values.data_ptr()
        self.step[numbers.NUM_ROWS] = num_rows
        self._alive = floats
        self.address = self.step.ctypes.data
