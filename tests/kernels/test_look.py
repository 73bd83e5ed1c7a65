"""The entries of the best blocks: torch, Numba and a plain loop choose the same."""

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from agentkv_kernels import look
from agentkv_kernels.numba import look as compiled

SHARES = st.integers(0, 8).map(lambda n: n / 8)  # many ties


@st.composite
def segments(draw):
    """Positions in the order of eviction, a score for each, and some that may not be fetched."""
    positions = draw(st.lists(st.integers(0, 60), unique=True, max_size=40))
    scores = [draw(SHARES) for _ in positions]
    hidden = [i for i in range(len(positions)) if draw(st.booleans())]
    return positions, scores, hidden


@given(segments(), st.integers(-3, 60), st.integers(1, 9), st.integers(1, 16), SHARES)
def test_the_entries_of_the_best_blocks_are_found(segment, oldest, blocks, block, least):
    positions, scores, hidden = segment
    free = [i for i, at in enumerate(positions) if at >= oldest and i not in hidden]
    best = {}
    for i in free:
        best[positions[i] // block] = max(best.get(positions[i] // block, 0.0), scores[i])
    able = [number for number in best if best[number] >= least]
    chosen = sorted(able, key=lambda number: (-best[number], number))[:blocks]
    expected = sorted(
        (i for i in free if positions[i] // block in chosen), key=positions.__getitem__
    )
    where, shares = torch.tensor(positions, dtype=torch.int32), torch.tensor(scores)
    found = look.best_blocks(
        where, shares, torch.tensor(hidden, dtype=torch.int64), oldest=oldest, blocks=blocks,
        block=block, least=least,
    )  # fmt: skip
    numbers = np.array(hidden, np.int64)
    compiled_found = compiled.best_blocks(
        where.numpy(), shares.numpy(), numbers, oldest, blocks, block, np.float32(least)
    )
    assert found.tolist() == compiled_found.tolist() == expected
