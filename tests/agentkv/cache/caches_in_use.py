"""Caches that were fed something, and whether two of them are the same."""

from typing import NamedTuple

import torch

import agentkv
from agentkv.cache.packed import PackedForward


class Fed(NamedTuple):
    logits: torch.Tensor
    errors: tuple


def kept(cache):
    return [
        [places.tolist() for heads in cache.kept(i) for places in heads]
        for i in range(len(cache.cache_layers))
    ]


def assert_same(found, expected):
    assert found.nbytes == expected.nbytes
    assert_same_stream(found, expected)


def used_nbytes(storages):
    """Return the bytes of entries and scales, unused capacity excluded."""
    tables = [table for each in storages for table in each.tables.values()]
    return sum(
        sum(table.counts) * sum(field.heads * field.num_bytes for field in table.fields)
        for table in tables
    )


def assert_same_stream(found, expected):
    assert kept(found) == kept(expected)
    assert (found.seen, found.batch_size) == (expected.seen, expected.batch_size)
    assert found.confidences == expected.confidences and found.pending == expected.pending
    if expected.ids is None:
        assert found.ids is None
    else:
        assert torch.equal(found.ids, expected.ids)


def used(model, tokens, policy, budget, *, batch=2, length=100):
    cache = agentkv.Cache.for_model(model, policy=policy, budget=budget, chunk=40)
    cache.feed(model, tokens(batch, length))
    cache.feed(model, tokens(batch, 1, seed=1))
    cache.pending = [[3, 1]] * batch
    return cache


def feed_packed(model, caches, ids):
    """Feed several caches in one forward and apply the gate of each: its logits and errors."""
    packed = PackedForward(model, caches, ids)
    logits = packed.read()
    packed.apply_gate(logits)
    return Fed(logits, tuple(packed.errors))
