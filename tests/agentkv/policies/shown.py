"""Entries as a cache would show them, and the same in plain lists of float64 for brute force."""

import math
import random
from dataclasses import dataclass

import pytest
import torch

from agentkv.policies.entries import Drop, DropOne, Entries


@dataclass(frozen=True)
class Head:
    """One key-value head's entries, in plain lists."""

    weights: list[list[list[float]]]
    """[query head][query][entry]; the newest entries are the queries' own."""
    values: list[list[float]]
    positions: list[int]

    @property
    def num_entries(self) -> int:
        return len(self.values)


def random_head(seed, *, num_entries=20, num_queries=4, group=2, head_dim=5, sharpness=2.0):
    """Softmax weights of random queries over random keys; positions with holes."""
    draw = random.Random(seed)

    def gauss(count):
        return [draw.gauss(0, 1) for _ in range(count)]

    keys = [gauss(head_dim) for _ in range(num_entries)]
    weights = []
    for _ in range(group):
        of_head = []
        for j in range(num_queries):
            query, num_visible = gauss(head_dim), num_entries - num_queries + j + 1
            logits = [
                sharpness * sum(a * b for a, b in zip(query, key, strict=True))
                for key in keys[:num_visible]
            ]
            odds = [math.exp(x - max(logits)) for x in logits]
            hidden = [0.0] * (num_entries - num_visible)
            of_head.append([x / sum(odds) for x in odds] + hidden)
        weights.append(of_head)
    positions = sorted(draw.sample(range(3 * num_entries), num_entries))
    return Head(weights, [gauss(head_dim) for _ in range(num_entries)], positions)


def filled(segments, fill, *, dim=0, dtype=torch.float32):
    """Stack segments of different lengths into one tensor, padded at the front.

    Args:
        dim: of a segment, along which its entries lie.
    """
    tensors = [torch.tensor(segment, dtype=dtype).movedim(dim, 0) for segment in segments]
    most = max(len(x) for x in tensors)
    full = [torch.cat([x.new_full((most - len(x), *x.shape[1:]), fill), x]) for x in tensors]
    return torch.stack([x.movedim(0, dim) for x in full])


def shown(heads, *, sinks=0, protected=0, tracked=None, norms=None, is_shared=False, num_seen=None):
    """Entries of a layer with these heads; whatever is not promised of filled-up places is NaN.

    Args:
        tracked: [segment][entry], a number or a list of them.
        norms: [head][entry][query head, or one].
        is_shared: all heads hold the same entries; the first one's positions count.
    """
    weights = filled([head.weights for head in heads], 0.0, dim=2)  # (H, G, w, T)
    values = filled([head.values for head in heads], math.nan)
    columns = None if tracked is None else filled(tracked, math.nan)
    if columns is not None and columns.ndim == 2:
        columns = columns[..., None]
    segments = [heads[0].positions] if is_shared else [head.positions for head in heads]
    return Entries(
        positions=filled(segments, -1, dtype=torch.int64),
        num_seen=max(map(max, segments)) + 1 if num_seen is None else num_seen,
        num_heads=len(heads),
        sinks=sinks,
        protected=protected,
        tracked=columns,
        norms=None if norms is None else filled(norms, math.nan),
        attention=lambda: weights,
        keys_values=lambda: (values, values),
        queries=lambda: pytest.fail("nobody asks for queries here"),
    )


def kept_of(selection, lengths):
    """Return the entries that a selection keeps in segments of these lengths, by index."""
    most = max(lengths)
    if isinstance(selection, Drop):
        return [[i for i in range(most) if not selection.start <= i < selection.stop]] * len(
            lengths
        )
    if isinstance(selection, DropOne):
        assert selection.entries.shape == (len(lengths),) and set(lengths) == {most}
        return [[i for i in range(most) if i != int(entry)] for entry in selection.entries]
    assert selection.dtype == torch.bool and selection.shape == (len(lengths), most)
    for segment, count in zip(selection, lengths, strict=True):
        assert not segment[: most - count].any(), "a place without an entry stays"
    return [
        segment[most - count :].nonzero().squeeze(1).tolist()
        for segment, count in zip(selection, lengths, strict=True)
    ]
