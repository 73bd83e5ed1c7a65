"""Products of activations with packed weights, by the best implementation for their device."""

import itertools
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import torch
from torch import Tensor

from agentkv_kernels import weights
from agentkv_kernels.device import choice_for
from agentkv_kernels.weights import GROUP, PackedWeight

LEAST_WORK = 1 << 24
"""Multiplications from which on several threads share a product: a tenth of a millisecond (our
choice, as waking a thread takes some hundredths)."""

PIECES = 4
"""Pieces of a product per thread, so that threads end together even if one is interrupted."""


class Activations:
    """Inputs of linear layers, which are rounded to 8 bits once for all layers that read them.

    Args:
        x: (..., K).
    """

    def __init__(self, x: Tensor) -> None:
        self.shape, self.dtype = x.shape[:-1], x.dtype
        self._x = x.detach().reshape(self.shape.numel(), x.shape[-1])
        self._is_compiled = choice_for(x.device).implementation == "numba"
        self._space: Any = None

    def product(self, packed: PackedWeight, rows: range) -> Tensor:
        """Return the product with neighboring rows of a weight, (T, rows) float32."""
        if not self._is_compiled:
            return weights.product(packed, self._x)[:, rows.start : rows.stop]
        # imported here because Numba takes half a second, and is optional
        from agentkv_kernels.numba import block_product

        num_tokens, width = self._x.shape
        if self._space is None:
            self._space = block_product.rounded(num_tokens, width)
            own = self._x.to(torch.float32).contiguous()
            block_product.round_activations(own.numpy(), self._space)
        numbers, out = weights.numbers_of(packed, rows.start), torch.empty(num_tokens, len(rows))
        address, target = numbers.data_ptr(), out.numpy()

        def multiply(first: int, stop: int) -> None:
            block_product.multiply(address, self._space, num_tokens, first, stop, target)

        if torch.get_num_threads() == 1 or num_tokens * width * len(rows) < LEAST_WORK:
            multiply(0, len(rows))
        else:
            multiply(0, 0)  # compiles, which no other thread may do
            _share(multiply, len(rows), torch.get_num_threads())
        return out


def _share(work: Callable[[int, int], None], size: int, num_threads: int) -> None:
    """Do `work(first, stop)` for pieces of `size` rows, in several threads."""
    step = max(1, -(-size // (GROUP * PIECES * num_threads))) * GROUP
    pieces = itertools.count(0, step)

    def run() -> None:
        for first in pieces:
            if first >= size:
                return
            work(first, min(first + step, size))

    helpers = [_pool(num_threads - 1).submit(run) for _ in range(num_threads - 1)]
    run()
    for helper in helpers:
        if not helper.cancel():  # one that has not begun is not missed
            helper.result()


@cache
def _pool(size: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(size, thread_name_prefix="agentkv product")


if hasattr(os, "register_at_fork"):
    # threads do not survive a fork
    os.register_at_fork(after_in_child=_pool.cache_clear)
