"""The compiled step: new tokens through all layers of a model, in one call.

They are one token of each sequence, or an input of one sequence.

Shapes: L layers, C caches, B sequences of all caches together, H key-value heads, D head size, V
vocabulary.
"""

import threading
from collections.abc import Sequence
from itertools import pairwise
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

MOST_READ = 64
"""Most tokens of a sequence that are read at a time, by one work space that stays: twice or eight
times as many gained nothing (SmolLM2-135M, two cores)."""

_PRODUCTS = (
    *(numbers.Q_WEIGHT, numbers.K_WEIGHT, numbers.V_WEIGHT, numbers.O_WEIGHT),
    *(numbers.GATE, numbers.UP, numbers.DOWN),
)


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
        self._reading: _WorkSpace | None = None
        """Work space for several tokens of a sequence."""
        linear = [decoder.layers[:, _PRODUCTS], decoder.numbers[numbers.HEAD]]
        self._is_packed = all(bool((each <= 0).all()) for each in linear)
        """True if all weights of products are in block formats."""

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

    def can_read(self, num_tokens: int, num_logits: int) -> bool:
        """Return whether `read` takes so many tokens and returns so many logits, and is faster than
        torch, whose matrix libraries are for weights in floats."""
        is_taken = num_tokens <= MOST_READ or num_logits == 1
        return self._is_packed and num_tokens > 1 and is_taken

    def read(
        self,
        layers: Sequence[CacheLayer],
        ids: Sequence[int],
        positions: Sequence[int],
        num_logits: int,
    ) -> Tensor:
        """Append tokens to the one sequence of a cache, and return the logits (num_logits, V) of
        the last of them, in the model's dtype.

        Args:
            layers: after `begin_step`; each can read (`CacheLayer.can_read`).
            ids: two tokens or more, read in equal parts of at most `MOST_READ`.
            positions: rotary position per token.
        """
        num_new = len(ids)
        num_parts = -(-num_new // MOST_READ)
        ends = [num_new * (i + 1) // num_parts for i in range(num_parts)]
        with self._lock:
            if self._reading is None:
                self._reading = _WorkSpace(self._decoder, MOST_READ)
            space = self._reading
            descriptors, step = _descriptors(layers), space.step
            step[numbers.NUM_CACHES] = 1
            step[numbers.LAYER_DESCRIPTORS] = descriptors.ctypes.data
            for start, stop in pairwise([0, *ends]):
                count, is_last = stop - start, stop == num_new
                step[numbers.NUM_ROWS] = step[numbers.NUM_TOKENS] = count
                step[numbers.NUM_LOGITS] = num_logits if is_last else 0
                for layer in layers:
                    layer.storage.descriptor.set_positions(layer.fed)
                if not kernel.can_begin(space.address):
                    for layer in layers:
                        layer.storage.reserve(num_new - start)
                done = self._lead(space, ids[start:stop], positions[start:stop])
                for layer in layers:
                    layer.finish_read(count)
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
        step, count = space.step, len(ids)
        space.ids[:count], space.positions[:count] = ids, positions
        scales = self._decoder.parts.query_scales(torch.from_numpy(space.positions[:count]))
        vocabulary = int(self._decoder.numbers[numbers.VOCABULARY])
        logits = torch.empty(int(step[numbers.NUM_LOGITS]), vocabulary)
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
    """Arrays of a step of `num_rows` tokens, or fewer, which stay."""

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
        self.step[numbers.NUM_ROWS] = self.step[numbers.NUM_LOGITS] = num_rows
        self.step[numbers.NUM_TOKENS] = 1
        self._alive = floats
        self.address = self.step.ctypes.data
