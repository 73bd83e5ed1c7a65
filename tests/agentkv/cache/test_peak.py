"""The reported peak equals a count of all storages that the cache creates and frees."""

import inspect
import sys
from pathlib import Path

import pytest
import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import agentkv
import agentkv_kernels
from agentkv.cache.storage import codes
from agentkv.cache.storage.backend import Backend
from agentkv.cache.storage.layer_storage import LayerStorage
from agentkv.cache.storage.query_window import QueryWindow
from agentkv.cache.storage.table import EntryTable
from agentkv.cache.storage.token_ids import TokenIds
from agentkv_kernels.formats import format_of
from tests.agentkv.cache.policies_under_test import CASES
from tests.sampling import sampled

HOLDERS = {
    inspect.getfile(each) for each in (EntryTable, Backend, codes, LayerStorage, QueryWindow)
}
"""Code that holds entries. What attends to them, scores them and shows them only computes."""
OTHERS = {inspect.getfile(TokenIds)}
"""Token ids are not counted as the cache's."""
OURS = tuple(str(Path(package.__file__).parent) for package in (agentkv, agentkv_kernels))
INDICES = (torch.int64, torch.bool)
"""No rows are stored as these: they say which rows are meant."""


class StoragesAlive(TorchDispatchMode):
    """Bytes of the storages that were made while code that holds rows was running, whoever made
    them, counted whenever that code itself calls torch: what its arithmetic has let go by then
    does not count, what it got back does."""

    def __init__(self):
        super().__init__()
        self.alive, self.peak = {}, 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        files = self.files()
        if OTHERS.intersection(files) or not HOLDERS.intersection(files):
            return out
        given = {id_of(x) for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)}
        for x in tree_leaves(out):
            if isinstance(x, torch.Tensor) and id_of(x) not in given and x.dtype not in INDICES:
                storage = x.untyped_storage()
                self.alive[id_of(x)] = (StorageWeakRef(storage), storage.nbytes())
        if files[0] in HOLDERS:
            self.peak = max(self.peak, self.now)
        return out

    @property
    def now(self):
        self.alive = {key: both for key, both in self.alive.items() if not both[0].expired()}
        return sum(num_bytes for _, num_bytes in self.alive.values())

    def files(self):
        """Return our frames, the innermost first."""
        found, frame = [], sys._getframe(2)
        while frame is not None:
            if frame.f_code.co_qualname.startswith(Backend.attend.__qualname__):
                return [""]  # attention's work space
            if frame.f_code.co_filename.startswith(OURS):
                found.append(frame.f_code.co_filename)
            frame = frame.f_back
        return found or [""]


def id_of(x):
    return x.untyped_storage()._cdata


def live(model, cache, tokens):
    """Grow, evict, quantize, decode, copy sequences, and drop some."""
    for piece in tokens(2, 160).split([90, 40, 1, 1, 20, 8], dim=1):
        logits = model(piece, past_key_values=cache).logits[:, -1]
        cache.apply_gate(logits * 50)
    cache.batch_repeat_interleave(2)
    model(tokens(4, 20, seed=1), past_key_values=cache)
    cache.reorder_cache(torch.tensor([3, 0, 0, 2]))
    for piece in tokens(4, 40, seed=2).split([1, 31, 1, 7], dim=1):
        model(piece, past_key_values=cache)
    cache.batch_select_indices(torch.tensor([1]))
    model(tokens(1, 9, seed=3), past_key_values=cache)


@torch.no_grad()
@pytest.mark.parametrize(
    "name",
    [
        "ada-snapkv",
        *sampled(
            ["full", "streaming", "h2o", "critical-snapkv", "arkv-int8", "conf-kv-int8"]
            + ["int8", "nf4"],
            every=8,
        ),
    ],
)
def test_the_peak_is_the_most_that_was_alive_at_any_moment(llama, cache_for, tokens, name):
    case = CASES[name]
    if case.format == "nf4":  # makes a table at its first use, which stays
        form = format_of("nf4")
        form.decode(*form.encode(torch.ones(1, 1, 32)), None)
    cache = cache_for(llama, policy=case.make(), budget=case.budget)
    with StoragesAlive() as counted:
        live(llama, cache, tokens)
        assert counted.now == cache.nbytes
    assert cache.peak_nbytes == counted.peak > cache.nbytes
    cache.check()


@torch.no_grad()
def test_a_padded_batch_in_bfloat16_has_its_peak_too(llama, cache_for, tokens):
    case, model = CASES["conf-kv-int8"], llama.to(torch.bfloat16)
    ids = tokens(3, 150)
    mask = torch.ones_like(ids)
    mask[0, :40], mask[1, :7] = 0, 0
    places = (mask.cumsum(1) - 1).clamp_min(0)
    for attempt in range(2):
        cache = cache_for(model, policy=case.make(), budget=case.budget)
        with StoragesAlive() as counted:
            model(ids, attention_mask=mask, position_ids=places, past_key_values=cache)
            assert counted.now == cache.nbytes
        assert cache.peak_nbytes == counted.peak or attempt == 0


@torch.no_grad()
def test_growing_entry_by_entry_takes_at_most_one_field_twice(llama, cache_for, tokens):
    cache = cache_for(llama, policy="full")
    llama(tokens(1, 1000), past_key_values=cache)
    for column in tokens(1, 130, seed=1).split(1, dim=1):
        llama(column, past_key_values=cache)
    # of four layers one has its keys or its values twice
    assert cache.nbytes < cache.peak_nbytes < cache.nbytes * (1 + 1 / 7)
